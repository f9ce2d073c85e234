"""What is reported: what is newly failed, rejected or in doubt, with some examples, and which nodes are stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import smtplib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.message import EmailMessage
from hashlib import blake2b
from math import inf
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import duckdb
import msgspec

from ferryman import crash, limits
from ferryman.destinations.webhook import signature_headers, signing_key
from ferryman.errors import StateDamaged
from ferryman.net.http import Http, NotSent, Unanswered, filled
from ferryman.plan.plan import NotifyTarget
from ferryman.records.rows import DOCUMENTS, LEDGER, reason_of
from ferryman.state.state import NOTIFIED, State
from ferryman.storage import files, parquet
from ferryman.storage import files as seals
from ferryman.storage.query import connect

__all__ = ["Digest", "Example", "Reporter", "Stopped"]


NEWS: Final = {"DEAD": "failed", "ERROR_DOC": "rejected", "INDEXING": "in_doubt"}
"""Status in the ledger -> what it is called."""


class Example(msgspec.Struct, frozen=True):
    """A delivery that somebody should look at."""

    document: str
    source: str
    destination: str
    status: str
    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """A node that nothing goes through for now.

    Attributes:
        kind: source, step, router, tee or destination.
        permanent: it does not come back by itself.
    """

    node: str
    kind: str
    why: str
    permanent: bool


class Digest(msgspec.Struct, frozen=True):
    """What happened after wave ``since``, up to wave ``wave``.

    Attributes:
        state: path of the state's folder.
        new: failed, rejected, in_doubt -> how many deliveries of current documents became that.
        examples: the newest of them.
        stopped: nodes that are stopped or unavailable; those of them that were not told before come first.
    """

    plan: str
    version: int
    state: str
    since: int
    wave: int
    new: dict[str, int]
    examples: list[Example]
    stopped: list[Stopped]

    def headline(self) -> str:
        """``plays v1: 3 failed, 1 rejected; index is unavailable``."""
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in self.new.items() if count]
        parts = [", ".join(counts)] if counts else []
        if self.stopped:
            names = ", ".join(s.node for s in self.stopped)
            parts.append(f"stopped or unavailable: {names}")
        return f"{self.plan} v{self.version}: {'; '.join(parts)}"

    def text(self) -> str:
        """All of it for people to read."""
        lines = [self.headline(), "", f"State: {self.state}"]
        if self.stopped:
            lines += ["", "Stopped or unavailable:"]
            for s in self.stopped:
                back = "it needs you" if s.permanent else "it is asked again"
                lines.append(f"  {s.kind} {s.node}: {s.why} ({back})")
        if self.examples:
            shown, total = len(self.examples), sum(self.new.values())
            lines += ["", "Deliveries:" if shown == total else f"The newest {shown} of {total} deliveries:"]
            lines += [
                f"  {e.document} for {e.destination}, {e.status.replace('_', ' ')}: {e.reason}" for e in self.examples
            ]
        return "\n".join(lines) + "\n"


def news_since(state: State, since: int) -> tuple[dict[str, int], list[Example]]:
    """What became failed, rejected or in doubt after a wave and still is: counts, and the newest examples.

    Only events after that wave are looked at, in shares that fit into memory whatever happened.
    """
    counts = dict.fromkeys(NEWS.values(), 0)
    examples: list[tuple[int, Example]] = []
    with connect(state.local_scratch) as db:
        db.register("events", parquet.scan(state.ledger.paths(), LEDGER))
        bad = f"wave > {since} AND destination <> '' AND status IN {tuple(NEWS)}"
        [(found,)] = db.execute(f"SELECT count(*) FROM events WHERE {bad}").fetchall()
        if not found:
            return counts, []
        db.register("documents", parquet.scan(state.documents.paths(), DOCUMENTS))
        shares = -(-found // limits.QUERY_ROWS)
        for share in range(shares):
            _pick(db, f"{bad} AND hash(delivery_hash) % {shares} = {share}", since)
            for status, count in db.execute("SELECT status, count(*) FROM news GROUP BY ALL").fetchall():
                counts[NEWS[status]] += count
            examples += [(wave, _example(*row)) for wave, *row in db.execute(_NEWEST).fetchall()]
    examples.sort(key=lambda each: (-each[0], each[1].document, each[1].destination))
    return counts, [example for _, example in examples[: limits.NOTIFY_EXAMPLES]]


_NEWEST: Final = f"""
    SELECT wave, document, source, destination, status, message FROM news
    ORDER BY wave DESC, document, destination LIMIT {limits.NOTIFY_EXAMPLES}
"""


def _pick(db: duckdb.DuckDBPyConnection, among: str, since: int) -> None:
    """The table ``news``: of these events those that are the last of their delivery, and of a current document."""
    db.execute(f"""
        CREATE OR REPLACE TEMP TABLE bad AS
            SELECT source, document, origin, revision, destination, delivery_hash, status, message, wave, ordinal
            FROM events WHERE {among};
        CREATE OR REPLACE TEMP TABLE last AS
            SELECT delivery_hash, max(wave * 4 + ordinal) AS at FROM events
            WHERE wave > {since} AND delivery_hash IN (SELECT delivery_hash FROM bad) GROUP BY delivery_hash;
        CREATE OR REPLACE TEMP TABLE current AS
            SELECT source, document, max(revision) AS revision FROM documents
            WHERE document IN (SELECT origin FROM bad) GROUP BY source, document;
        CREATE OR REPLACE TEMP TABLE news AS
            SELECT b.* FROM bad b JOIN last l ON b.delivery_hash = l.delivery_hash AND b.wave * 4 + b.ordinal = l.at
            JOIN current c ON b.source = c.source AND b.origin = c.document AND b.revision = c.revision
    """)


def _example(document: str, source: str, destination: str, status: str, message: str | None) -> Example:
    reason = reason_of(message or "no reason was given").removeprefix(f"{document}: ")
    return Example(document, source, destination, NEWS[status], reason[: limits.NOTIFY_REASON_CHARACTERS])


def digest(state: State, since: int, stopped: Sequence[Stopped], news: tuple[dict[str, int], list[Example]]) -> Digest:
    """The digest of a settled state."""
    plan = state.plan
    return Digest(plan.name, plan.version, str(state.root), since, state.settled, *news, list(stopped))


def encoded(told: Digest) -> bytes:
    """As JSON; equal digests are equal bytes."""
    found: dict[str, Any] = msgspec.to_builtins(told)
    return msgspec.json.encode(found)


# The ways a digest goes: posted to a URL, by mail, into a command.

SECRET_VARIABLE: Final = "FERRYMAN_NOTIFY_SECRET"
"""Environment variable with the secret of a URL that was given none."""

_SENDMAIL: Final = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
"""Where it lies when it is not in PATH, as for cron."""


class Undelivered(Exception):
    """A digest did not get across; says why, without passwords."""


def send(target: NotifyTarget, told: Digest) -> None:
    """Send a digest.

    Raises:
        Undelivered: or it is not known whether it got across.
        FerrymanError, OSError: what it needs is not there.
    """
    match target.kind:
        case "url":
            _post(target, encoded(told))
        case "mail":
            _mail(target, told)
        case _:
            _run(target, encoded(told))


def _post(target: NotifyTarget, body: bytes) -> None:
    """As a webhook is: a digest that is sent again has the same id."""
    id = blake2b(body, digest_size=16).hexdigest()
    headers = {"content-type": "application/json", "idempotency-key": id}
    secret = target.secret
    if secret is None and os.environ.get(SECRET_VARIABLE):
        secret = f"${{{SECRET_VARIABLE}}}"
    if (key := signing_key(secret, target.shown)) is not None:
        headers |= signature_headers(key, id, body)
    http = Http(target.to, shown=target.shown)
    try:
        answer = http.request("POST", http.path, body, timeout_s=target.timeout_s, headers=headers)
        if not answer.fine:
            said = http.shown(answer.body)
            raise Undelivered(f"answered {answer.status} {answer.reason}".rstrip() + (f" ({said})" if said else ""))
    except (NotSent, Unanswered) as e:
        raise Undelivered(str(e)) from e
    finally:
        http.close()


def _mail(target: NotifyTarget, told: Digest) -> None:
    """``mailto:a@b,c@d?server=host:port&from=e@f&user=…&password=${NAME}``; without a server by ``sendmail``, or to
    this machine's port 25."""
    addresses, _, query = target.to[len("mailto:") :].partition("?")
    options = {name: filled(values[-1], target.shown) for name, values in parse_qs(query).items()}
    if unknown := options.keys() - {"server", "from", "user", "password"}:
        raise Undelivered(f"{', '.join(sorted(unknown))}: not known here: give server, from, user or password")
    message = EmailMessage()
    message["To"] = unquote(addresses)
    message["From"] = options.get("from", f"ferryman@{socket.getfqdn()}")
    message["Subject"] = " ".join(f"Ferryman: {told.headline()}".split())[:200]
    message.set_content(told.text())
    sendmail = shutil.which("sendmail") or next(filter(os.path.exists, _SENDMAIL), None)
    if "server" not in options and sendmail is not None:
        _call([sendmail, "-t", "-i"], message.as_bytes(), target.timeout_s)
        return
    host, _, port = (
        options.get("server", "localhost").rpartition(":")
        if ":" in options.get("server", "")
        else (options.get("server", "localhost"), "", "25")
    )
    if not port.isdigit():
        raise Undelivered(f"server={host}:{port}: give host:port, as in server=mail.example.org:25")
    try:
        with smtplib.SMTP(host, int(port), timeout=target.timeout_s) as server:
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls()
                server.ehlo()
            elif "password" in options:
                raise Undelivered(f"{host}:{port} offers no STARTTLS: a password is not sent over a line in the clear")
            if "password" in options:
                server.login(options.get("user", ""), options["password"])
            server.send_message(message)
    except smtplib.SMTPAuthenticationError as e:  # its text may repeat what was sent
        raise Undelivered(f"{host}:{port} refuses user and password ({e.smtp_code})") from None
    except smtplib.SMTPException as e:
        raise Undelivered(f"{host}:{port}: {e}") from e


def _run(target: NotifyTarget, body: bytes) -> None:
    """The command gets the digest as JSON on its standard input; no shell is asked."""
    _call(shlex.split(target.to), body + b"\n", target.timeout_s)


def _call(command: list[str], given: bytes, timeout_s: float) -> None:
    """Run it; whoever takes too long is ended with all that it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(given, timeout=timeout_s)
    except BaseException as e:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(e, subprocess.TimeoutExpired):
            raise Undelivered(f"took longer than {timeout_s:g} s and was ended") from None
        raise
    if process.returncode:
        words = " ".join(said.decode("utf-8", "replace").split())[-300:]
        raise Undelivered(f"ended with {process.returncode}" + (f" ({words})" if words else ""))


# Tells whom a plan or a command line named, once a run or a period, and remembers what got across.
#
# 1. compare the state with what was told last: nothing new, nothing is sent
# 2. send the digest to each target: those that fail get the rest with the next one
# 3. keep, durably, up to which wave each was told, and of which stopped nodes
#
# A kill between 2 and 3 tells the same again, to a URL under the same id.


class Notified(msgspec.Struct, frozen=True):
    """What one target knows: all up to this wave, and that these nodes are stopped."""

    wave: int = 0
    stopped: list[str] = []


class Reporter:
    """Tells the targets of a run.

    Args:
        tell: takes a message for whoever watches the run.
    """

    def __init__(self, state: State, targets: Sequence[NotifyTarget], tell: Callable[[str], None]) -> None:
        self._state = state
        self._targets = list(dict.fromkeys(targets))
        self._tell = tell
        self._told_at = -inf
        self._known: dict[str, Notified] | None = None
        self._said: dict[str, str] = {}
        """Target -> the trouble with it that was told last: a run for months says it once."""

    def report(self, stopped: Sequence[Stopped] = (), least_s: float = 0.0) -> None:
        """Tell what is new, if anything is. Nothing that goes wrong over it goes on to the caller.

        Args:
            least_s: seconds that lie between two digests; before that nothing is looked at.
        """
        if not self._targets or time.monotonic() < self._told_at + least_s:
            return
        try:
            self._report(stopped)
        except Exception as e:
            self._complain("", f"no notification could be sent: {type(e).__name__}: {e}")

    def _report(self, stopped: Sequence[Stopped]) -> None:
        if self._known is None:
            self._known = self._read()
        before = self._known
        after = dict(before)
        news: dict[int, tuple[dict[str, int], list[Example]]] = {}
        for target in self._targets:
            key = _key(target)
            known = before.get(key, Notified())
            since = known.wave if known.wave <= self._state.settled else 0  # else it is another state's
            if since not in news:  # 1
                news[since] = news_since(self._state, since) if self._state.settled > since else ({}, [])
            fresh = [s for s in stopped if s.node not in known.stopped]
            told = Notified(self._state.settled, [s.node for s in stopped])
            if any(news[since][0].values()) or fresh:
                ordered = [*fresh, *(s for s in stopped if s not in fresh)]
                self._told_at = time.monotonic()
                if not self._sent(target, digest(self._state, since, ordered, news[since])):  # 2
                    continue
                crash.point("notify.sent")
            after.pop(key, None)
            after[key] = told
        if after != before:
            self._known = after
            self._keep(after)  # 3

    def _sent(self, target: NotifyTarget, told: Digest) -> bool:
        """Send it; one that does not come to an end in time is left to itself."""
        trouble: list[str] = []

        def work() -> None:
            try:
                send(target, told)
            except Exception as e:
                trouble.append(str(e) if isinstance(e, Undelivered) else f"{type(e).__name__}: {e}")

        thread = threading.Thread(target=work, name="ferryman-notify", daemon=True)
        thread.start()
        thread.join(target.timeout_s + limits.NOTIFY_GRACE_S)
        if thread.is_alive():
            trouble.append(f"no end after {target.timeout_s:g} s")
        if trouble:
            self._complain(target.shown, f"{trouble[0]}. The next digest repeats it.")
            return False
        self._said.pop(target.shown, None)
        return True

    def _complain(self, where: str, what: str) -> None:
        if self._said.get(where) != what:
            self._said[where] = what
            self._tell(f"notify {where}: {what}" if where else f"notify: {what}")

    # -- what was told before ----------------------------------------------------------------------

    def _read(self) -> dict[str, Notified]:
        path = self._state.root / NOTIFIED
        if not files.exists(path):
            return {}
        try:
            return msgspec.convert(seals.unseal(path), dict[str, Notified])
        except (StateDamaged, msgspec.ValidationError) as e:
            self._complain("", f"{path} is damaged: everything failed is reported again ({e})")
            return {}

    def _keep(self, told: dict[str, Notified]) -> None:
        newest: dict[str, Any] = dict(list(told.items())[-limits.NOTIFY_TARGETS :])
        files.replace(self._state.root / NOTIFIED, seals.seal(newest))
        crash.point("notify.kept")


def _key(target: NotifyTarget) -> str:
    """Names it in the state, without its password."""
    return blake2b(target.to.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
