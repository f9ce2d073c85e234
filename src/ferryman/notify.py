"""Notifications about newly failed, rejected and in-doubt deliveries and about stopped nodes, by URL, mail or command.

A ``Reporter`` notifies the targets of a run, once a run or a period, and records what was sent:

1. compare the state with what each target was notified of last: if nothing is new, nothing is sent
2. send the digest to each target; a target that fails gets the rest with the next digest
3. record, durably, up to which wave each target was notified, and of which stopped nodes

A kill between 2 and 3 sends the same digest again, to a URL under the same id.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from math import inf
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import duckdb
import msgspec

from ferryman import crash, limits
from ferryman.errors import StateDamaged
from ferryman.plan.plan import NotifyTarget
from ferryman.records.rows import DOCUMENTS, EVENT_ORDER, LEDGER, reason_of
from ferryman.state.state import NOTIFIED, State
from ferryman.storage import files, parquet
from ferryman.storage.query import connect

__all__ = ["Digest", "Example", "Reporter", "Stopped"]


REPORTED: Final = {"DEAD": "failed", "ERROR_DOC": "rejected", "INDEXING": "in_doubt"}
"""Stored status that is reported -> its public name."""


class Example(msgspec.Struct, frozen=True):
    """A delivery that needs an operator."""

    document: str
    source: str
    destination: str
    status: str
    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """A node that is stopped or unavailable.

    Attributes:
        kind: source, step, router, tee or destination.
        permanent: whether it stays stopped until an operator acts.
    """

    node: str
    kind: str
    why: str
    permanent: bool


class Digest(msgspec.Struct, frozen=True):
    """Notification about the waves after ``since`` up to ``wave``.

    Attributes:
        state: path of the state's folder.
        new: failed, rejected, in_doubt -> number of deliveries of current documents that became so.
        examples: the newest of these deliveries.
        stopped: nodes that are stopped or unavailable, newly stopped ones first.
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
        """Return ``plays v1: 3 failed, 1 rejected; stopped or unavailable: index``."""
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in self.new.items() if count]
        parts = [", ".join(counts)] if counts else []
        if self.stopped:
            names = ", ".join(s.node for s in self.stopped)
            parts.append(f"stopped or unavailable: {names}")
        return f"{self.plan} v{self.version}: {'; '.join(parts)}"

    def text(self) -> str:
        """Return the digest as text for a mail."""
        lines = [self.headline(), "", f"State: {self.state}"]
        if self.stopped:
            lines += ["", "Stopped or unavailable:"]
            for s in self.stopped:
                remedy = "it needs you" if s.permanent else "it is asked again"
                lines.append(f"  {s.kind} {s.node}: {s.why} ({remedy})")
        if self.examples:
            listed, total = len(self.examples), sum(self.new.values())
            lines += ["", "Deliveries:" if listed == total else f"The newest {listed} of {total} deliveries:"]
            lines += [
                f"  {e.document} for {e.destination}, {e.status.replace('_', ' ')}: {e.reason}" for e in self.examples
            ]
        return "\n".join(lines) + "\n"


def news_since(state: State, since: int) -> tuple[dict[str, int], list[Example]]:
    """Find deliveries that became failed, rejected or in doubt after a wave and still are: counts, newest examples.

    Reads only events after that wave, in shares that fit into memory.
    """
    counts = dict.fromkeys(REPORTED.values(), 0)
    examples: list[tuple[int, Example]] = []
    with connect(state.local_scratch) as db:
        db.register("events", parquet.scan(state.ledger.paths(), LEDGER))
        reported = f"wave > {since} AND destination <> '' AND status IN {tuple(REPORTED)}"
        [(number,)] = db.execute(f"SELECT count(*) FROM events WHERE {reported}").fetchall()
        if not number:
            return counts, []
        db.register("documents", parquet.scan(state.documents.paths(), DOCUMENTS))
        shares = -(-number // limits.QUERY_ROWS)
        for share in range(shares):
            _select_news(db, f"{reported} AND hash(delivery_hash) % {shares} = {share}", since)
            for status, count in db.execute("SELECT status, count(*) FROM news GROUP BY ALL").fetchall():
                counts[REPORTED[status]] += count
            examples += [(wave, _example(*row)) for wave, *row in db.execute(_NEWEST).fetchall()]
    examples.sort(key=lambda each: (-each[0], each[1].document, each[1].destination))
    return counts, [example for _, example in examples[: limits.NOTIFY_EXAMPLES]]


_NEWEST: Final = f"""
    SELECT wave, document, source, destination, status, message FROM news
    ORDER BY wave DESC, document, destination LIMIT {limits.NOTIFY_EXAMPLES}
"""


def _select_news(db: duckdb.DuckDBPyConnection, condition: str, since: int) -> None:
    """Make the table ``news``: events that meet the condition, are the last of their delivery, and are current."""
    db.execute(f"""
        CREATE OR REPLACE TEMP TABLE reported AS
            SELECT source, document, origin, revision, destination, delivery_hash, status, message, wave, ordinal
            FROM events WHERE {condition};
        CREATE OR REPLACE TEMP TABLE last AS
            SELECT delivery_hash, max({EVENT_ORDER}) AS at FROM events
            WHERE wave > {since} AND delivery_hash IN (SELECT delivery_hash FROM reported) GROUP BY delivery_hash;
        CREATE OR REPLACE TEMP TABLE current AS
            SELECT source, document, max(revision) AS revision FROM documents
            WHERE document IN (SELECT origin FROM reported) GROUP BY source, document;
        CREATE OR REPLACE TEMP TABLE news AS
            SELECT r.* FROM reported r
            JOIN last l ON r.delivery_hash = l.delivery_hash AND r.wave * 4 + r.ordinal = l.at
            JOIN current c ON r.source = c.source AND r.origin = c.document AND r.revision = c.revision
    """)


def _example(document: str, source: str, destination: str, status: str, message: str | None) -> Example:
    reason = reason_of(message or "no reason was given").removeprefix(f"{document}: ")
    return Example(document, source, destination, REPORTED[status], reason[: limits.NOTIFY_REASON_CHARACTERS])


def make_digest(
    state: State, since: int, stopped: Sequence[Stopped], news: tuple[dict[str, int], list[Example]]
) -> Digest:
    """Make the digest of a settled state."""
    plan = state.plan
    return Digest(plan.name, plan.version, str(state.root), since, state.settled, *news, list(stopped))


def encode(digest: Digest) -> bytes:
    """Encode a digest as JSON; equal digests give equal bytes."""
    value: dict[str, Any] = msgspec.to_builtins(digest)
    return msgspec.json.encode(value)


# --- sending: POST to a URL, mail, or the input of a command ---

SECRET_VARIABLE: Final = "FERRYMAN_NOTIFY_SECRET"
"""Environment variable with the secret for URLs that the plan gives none."""

_SENDMAIL: Final = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
"""Paths of sendmail where PATH lacks it, as under cron."""


class Undelivered(Exception):
    """A digest was not delivered; the message says why, without passwords."""


def send(target: NotifyTarget, digest: Digest) -> None:
    """Send a digest.

    Raises:
        Undelivered: the digest was not delivered, or that is unknown.
        FerrymanError, OSError: something that sending needs is missing.
    """
    match target.kind:
        case "url":
            _post(target, encode(digest))
        case "mail":
            _mail(target, digest)
        case _:
            _run(target, encode(digest))


def _post(target: NotifyTarget, body: bytes) -> None:
    """POST it, signed like a webhook; a repeated digest has the same id."""
    from ferryman.destinations.webhook import signature_headers, signing_key  # most runs notify nobody
    from ferryman.net.http import Http, NotSent, Unanswered

    id = blake2b(body, digest_size=16).hexdigest()
    headers = {"content-type": "application/json", "idempotency-key": id}
    secret = target.secret
    if secret is None and os.environ.get(SECRET_VARIABLE):
        secret = f"${{{SECRET_VARIABLE}}}"
    if (key := signing_key(secret, target.redacted)) is not None:
        headers |= signature_headers(key, id, body)
    http = Http(target.to, shown=target.redacted)
    try:
        answer = http.request("POST", http.path, body, timeout_s=target.timeout_s, headers=headers)
        if not answer.is_success:
            text = http.redact(answer.body)
            raise Undelivered(f"answered {answer.status} {answer.reason}".rstrip() + (f" ({text})" if text else ""))
    except (NotSent, Unanswered) as e:
        raise Undelivered(str(e)) from e
    finally:
        http.close()


def _mail(target: NotifyTarget, digest: Digest) -> None:
    """Send mail to ``mailto:a@b,c@d?server=host:port&from=e@f&user=…&password=${NAME}``.

    Without a server: by ``sendmail``, or to this machine's port 25.
    """
    import smtplib  # most runs notify nobody
    from email.message import EmailMessage

    from ferryman.net.http import expand_variables

    addresses, _, query = target.to[len("mailto:") :].partition("?")
    options = {name: expand_variables(values[-1], target.redacted) for name, values in parse_qs(query).items()}
    if unknown := options.keys() - {"server", "from", "user", "password"}:
        raise Undelivered(f"{', '.join(sorted(unknown))}: not known here: give server, from, user or password")
    message = EmailMessage()
    message["To"] = unquote(addresses)
    message["From"] = options.get("from", f"ferryman@{socket.getfqdn()}")
    message["Subject"] = " ".join(f"Ferryman: {digest.headline()}".split())[:200]
    message.set_content(digest.text())
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
    """Run the command, without a shell, with the digest as JSON on its standard input."""
    _call(shlex.split(target.to), body + b"\n", target.timeout_s)


def _call(command: list[str], stdin: bytes, timeout_s: float) -> None:
    """Run a command; after the timeout kill it with all processes that it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, stderr = process.communicate(stdin, timeout=timeout_s)
    except BaseException as e:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(e, subprocess.TimeoutExpired):
            raise Undelivered(f"took longer than {timeout_s:g} s and was ended") from None
        raise
    if process.returncode:
        text = " ".join(stderr.decode("utf-8", "replace").split())[-300:]
        raise Undelivered(f"ended with {process.returncode}" + (f" ({text})" if text else ""))


# --- the reporter of a run; the numbers are those of the module's docstring ---


class Notified(msgspec.Struct, frozen=True):
    """Record of a target: it was notified of everything up to this wave, and of these stopped nodes."""

    wave: int = 0
    stopped: list[str] = []


class Reporter:
    """Notifies the targets of a run.

    Args:
        warn: called with a message for the run's observer.
    """

    def __init__(self, state: State, targets: Sequence[NotifyTarget], warn: Callable[[str], None]) -> None:
        self._state = state
        self._targets = list(dict.fromkeys(targets))
        self._warn = warn
        self._sent_at = -inf
        self._notified: dict[str, Notified] | None = None
        self._last_warning: dict[str, str] = {}
        """Target -> its last warning, so that a run of months prints it once."""

    def report(self, stopped: Sequence[Stopped] = (), least_s: float = 0.0) -> None:
        """Send what is new, if anything is. Errors become warnings; none is raised.

        Args:
            least_s: least seconds between two digests; until then nothing is compared.
        """
        if not self._targets or time.monotonic() < self._sent_at + least_s:
            return
        try:
            self._report(stopped)
        except Exception as e:
            self._warn_once("", f"no notification could be sent: {type(e).__name__}: {e}")

    def _report(self, stopped: Sequence[Stopped]) -> None:
        if self._notified is None:
            self._notified = self._read()
        before = self._notified
        after = dict(before)
        news: dict[int, tuple[dict[str, int], list[Example]]] = {}
        for target in self._targets:
            key = _key(target)
            last = before.get(key, Notified())
            since = last.wave if last.wave <= self._state.settled else 0  # a higher wave is from another state
            if since not in news:  # 1
                news[since] = news_since(self._state, since) if self._state.settled > since else ({}, [])
            newly_stopped = [s for s in stopped if s.node not in last.stopped]
            notified = Notified(self._state.settled, [s.node for s in stopped])
            if any(news[since][0].values()) or newly_stopped:
                ordered = [*newly_stopped, *(s for s in stopped if s not in newly_stopped)]
                self._sent_at = time.monotonic()
                if not self._send(target, make_digest(self._state, since, ordered, news[since])):  # 2
                    continue
                crash.point("notify.sent")
            after.pop(key, None)
            after[key] = notified
        if after != before:
            self._notified = after
            self._save(after)  # 3

    def _send(self, target: NotifyTarget, digest: Digest) -> bool:
        """Send a digest and return whether it was delivered; a send that hangs is abandoned in its thread."""
        errors: list[str] = []

        def work() -> None:
            try:
                send(target, digest)
            except Exception as e:
                errors.append(str(e) if isinstance(e, Undelivered) else f"{type(e).__name__}: {e}")

        thread = threading.Thread(target=work, name="ferryman-notify", daemon=True)
        thread.start()
        thread.join(target.timeout_s + limits.NOTIFY_GRACE_S)
        if thread.is_alive():
            errors.append(f"no end after {target.timeout_s:g} s")
        if errors:
            self._warn_once(target.redacted, f"{errors[0]}. The next digest repeats it.")
            return False
        self._last_warning.pop(target.redacted, None)
        return True

    def _warn_once(self, target: str, what: str) -> None:
        if self._last_warning.get(target) != what:
            self._last_warning[target] = what
            self._warn(f"notify {target}: {what}" if target else f"notify: {what}")

    # --- the durable record of what was sent ---

    def _read(self) -> dict[str, Notified]:
        path = self._state.root / NOTIFIED
        if not files.exists(path):
            return {}
        try:
            return msgspec.convert(files.unseal(path), dict[str, Notified])
        except (StateDamaged, msgspec.ValidationError) as e:
            self._warn_once("", f"{path} is damaged: everything failed is reported again ({e})")
            return {}

    def _save(self, notified: dict[str, Notified]) -> None:
        newest: dict[str, Any] = dict(list(notified.items())[-limits.NOTIFY_TARGETS :])
        files.replace(self._state.root / NOTIFIED, files.seal(newest))
        crash.point("notify.kept")


def _key(target: NotifyTarget) -> str:
    """Return the key of a target in the state, which hides its password."""
    return blake2b(target.to.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
