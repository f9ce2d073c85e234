"""Reports by e-mail: in text, to submitters that are addresses."""

from __future__ import annotations

import re
import smtplib
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from ferryman.destinations.webhook import signature_headers, signing_key
from ferryman.errors import DeliveryError, PermanentError, TransientError, UsageError
from ferryman.intake.service import fetch
from ferryman.intake.service.errors import Corrupt
from ferryman.intake.service.hosts import SlowHosts
from ferryman.intake.service.manifest import checked_url
from ferryman.net import urls
from ferryman.net.http import expand_variables
from ferryman.net.reach import NOTHING_PRIVATE, Reach
from ferryman.net.urls import redact

if TYPE_CHECKING:
    from urllib3 import PoolManager


# Telling submitters: a JSON object posted to the URL that they gave.

TRIES: Final = 3
CALLBACK_TIMEOUT_S: Final = 10.0
"""A receiver that needs longer to say yes keeps a consumer from its work."""


class Callback:
    """Posts to submitters, each time a bounded number of times. A kill between the answer and its note posts again:
    receivers know what they have by ``id``.

    Args:
        stop: set it, and pauses end with ``Stopping``.
        reach: what URLs may lead to.
        slow: a receiver that is slow is not waited for, but ``SlowHost``; None: it is.
        secret: signs what is posted, as webhooks are signed; ``${NAME}`` in it is filled in from the environment.

    Raises:
        Misconfigured: the secret cannot be used.
    """

    def __init__(
        self,
        stop: threading.Event | None = None,
        *,
        reach: Reach = NOTHING_PRIVATE,
        secret: str | None = None,
        tries: int = TRIES,
        pause_s: float = fetch.PAUSE_FIRST_S,
        timeout_s: float = CALLBACK_TIMEOUT_S,
        slow: SlowHosts | None = None,
    ) -> None:
        self._slow = slow
        if slow is not None:
            timeout_s = min(timeout_s, slow.prompt_s)
        self._stop, self._reach = stop or threading.Event(), reach
        self._key = signing_key(secret, "--report-secret")
        self._tries, self._pause_s, self._timeout_s = tries, pause_s, timeout_s

    def tell(self, submitted: Mapping[str, Any], what: Mapping[str, Any]) -> bool:
        """Post to the ``response_url`` of a submission, or of a job. False: none was given.

        Raises:
            PermanentError: the URL is invalid, or its server refuses.
            TransientError: no good answer, as often as it was tried.
            SlowHost: its server keeps us waiting, and is to be waited for apart.
            Stopping.
        """
        url = str(submitted.get("response_url") or "")
        if not url:
            return False
        if not _can_be_posted_to(url):
            raise Corrupt(f"the response_url {redact(url)} is not an http or https URL. Correct it.")
        body = msgspec.json.encode(dict(what))
        fetch.trying(lambda: self._post(url, body, str(what.get("id") or "")), self._tries, self._pause_s, self._stop)
        return True

    def _post(self, url: str, body: bytes, id: str) -> None:
        from urllib3 import exceptions as of

        signed = signature_headers(self._key, id, body) if self._key else {}
        kind = {"content-type": "application/json", **signed}
        if self._slow is not None:
            self._slow.refuse(url)
        try:
            with urls.send_request(self._pool, "POST", url, kind, self._timeout_s, body) as answer:
                pass  # what else it says matters to nobody, and may come a byte at a time
        except of.LocationValueError:
            raise PermanentError(f"{redact(url)}: this is not a possible host name. Correct it.") from None
        except of.HTTPError as e:
            if self._slow is not None and isinstance(e, of.TimeoutError):
                raise self._slow.add(url) from None
            raise TransientError(f"{redact(url)}: {type(e).__name__}, no answer") from None
        if 200 <= answer.status < 300:
            return
        said = f"{redact(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
        if urls.is_retryable(answer.status):
            raise TransientError(said)
        raise PermanentError(said)

    @cached_property
    def _pool(self) -> PoolManager:
        return self._reach.pool(4)


def _can_be_posted_to(url: str) -> bool:
    try:
        return urls.split(checked_url(url))[1].scheme in ("http", "https")
    except Corrupt:
        return False


MAIL_TIMEOUT_S: Final = 10.0
"""For each answer of the server."""

JOBS: Final = 1000
"""Jobs of a kind that a mail names; the report is kept with the batch, whole."""

_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
"""Pattern of a submitter that gets mail. Without spaces, quotes or line breaks, so that it is one recipient."""

_PORTS: Final = {"smtp": 25, "smtps": 465}


class MailServer(NamedTuple):
    """Where mails are handed in, as its URL says."""

    is_tls: bool
    host: str
    port: int
    user: str
    password: str
    sender: str

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


def mail_server(url: str) -> MailServer:
    """``smtp://USER:${PASSWORD}@HOST:PORT?from=ADDRESS``, or ``smtps://…`` for TLS from the first byte.

    Raises:
        UsageError: it is something else. Passwords are not shown.
        Misconfigured: a variable in it is not set.
    """
    try:
        parts = urlsplit(url)
        host, port, options = parts.hostname or "", parts.port, parse_qs(parts.query)
    except ValueError:
        host, port, options = "", None, {}
    if not host or parts.scheme not in _PORTS or parts.path not in ("", "/") or options.keys() - {"from"}:
        raise UsageError("--smtp: give smtp://HOST:PORT or smtps://HOST:PORT, with USER:PASSWORD@ and ?from=ADDRESS.")
    sender = options.get("from", [f"ferryman@{host}"])[-1]
    if not is_address(sender):
        raise UsageError(f"--smtp: from={sender!r} is not an address. Give ?from=NAME@HOST.")
    user, password = (expand_variables(unquote(text or ""), "--smtp") for text in (parts.username, parts.password))
    return MailServer(parts.scheme == "smtps", host, port or _PORTS[parts.scheme], user, password, sender)


def is_address(text: object) -> bool:
    """Can a mail go there?"""
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


class Mail:
    """Sends reports to submitters that are addresses.

    A kill between the server's answer and its note sends the same mail again, with the same ``Message-ID``.

    Args:
        url: see ``mail_server``.
        stop: set it, and pauses end with ``Stopping``.
    """

    def __init__(
        self,
        url: str,
        stop: threading.Event | None = None,
        *,
        pause_s: float = fetch.PAUSE_FIRST_S,
        timeout_s: float = MAIL_TIMEOUT_S,
    ) -> None:
        self._server = mail_server(url)
        self._stop, self._pause_s, self._timeout_s = stop or threading.Event(), pause_s, timeout_s

    def tell(self, submitted: Mapping[str, Any], what: Mapping[str, Any]) -> bool:
        """Send what a batch has come to. False: its submitter is not an address.

        Raises:
            PermanentError: the server refuses the mail, the recipient, or user and password.
            TransientError: no good answer, as often as it was tried.
            Stopping.
        """
        to = submitted.get("submitter")
        if not is_address(to):
            return False
        message = mail_of(what, str(to), self._server)
        fetch.trying(lambda: self._send(message), TRIES, self._pause_s, self._stop)
        return True

    def _send(self, message: EmailMessage) -> None:
        shown = self._server.shown
        try:
            self._hand_in(message)
        except smtplib.SMTPRecipientsRefused as e:
            code, said = next(iter(e.recipients.values()))
            raise _error(code, f"{shown}: refuses {message['To']}: {_text(said)}") from None
        except smtplib.SMTPAuthenticationError as e:  # its text may repeat what was sent
            raise _error(e.smtp_code, f"{shown}: refuses user and password ({e.smtp_code})") from None
        except smtplib.SMTPResponseException as e:
            raise _error(e.smtp_code, f"{shown}: {e.smtp_code} {_text(e.smtp_error)}") from None
        except (smtplib.SMTPException, OSError) as e:
            raise TransientError(f"{shown}: {type(e).__name__}, the mail was not taken") from None

    def _hand_in(self, message: EmailMessage) -> None:
        server = self._server
        checked = ssl.create_default_context()
        plain = smtplib.SMTP(timeout=self._timeout_s)
        smtp = smtplib.SMTP_SSL(timeout=self._timeout_s, context=checked) if server.is_tls else plain
        smtp._host = server.host  # type: ignore[attr-defined]  # what the certificate is compared with
        try:
            smtp.connect(server.host, server.port)
            smtp.ehlo()
            if not server.is_tls and smtp.has_extn("starttls"):
                smtp.starttls(context=checked if server.password else None)
                smtp.ehlo()
            elif not server.is_tls and server.password:
                raise PermanentError(f"{server.shown}: offers no STARTTLS, and a password is not sent in the clear")
            if server.password:
                _log_in(smtp, server)
            smtp.send_message(message)
            with suppress(smtplib.SMTPException, OSError):  # the mail was taken, whatever comes now
                smtp.quit()
        finally:
            smtp.close()


def _log_in(smtp: smtplib.SMTP, server: MailServer) -> None:
    """Log in by the ways that the server offers, one after the other.

    Raises:
        smtplib.SMTPAuthenticationError: it refuses, also if it hangs up before the next way is tried.
        smtplib.SMTPException, OSError: it did not answer.
    """
    refused: list[smtplib.SMTPAuthenticationError] = []
    by_one_way = smtp.auth

    def auth(*given: Any, **named: Any) -> tuple[int, bytes]:
        try:
            return by_one_way(*given, **named)
        except smtplib.SMTPAuthenticationError as e:
            refused.append(e)
            raise
        except (smtplib.SMTPException, OSError):
            if refused:
                raise refused[-1] from None
            raise

    smtp.auth = auth  # type: ignore[method-assign]
    smtp.login(server.user, server.password)


def _error(code: int, why: str) -> DeliveryError:
    return PermanentError(why) if 500 <= code < 600 else TransientError(why)


def _text(said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join(text.split())[:200]


def mail_of(what: Mapping[str, Any], to: str, server: MailServer) -> EmailMessage:
    """A report, as it is posted, in words."""
    message = EmailMessage()
    message["To"], message["From"] = to, server.sender
    name = what.get("batchID") or what["batch"]
    message["Subject"] = " ".join(f"Batch {name}: {str(what['status']).lower()}".split())[:200]
    message["Date"] = formatdate()
    number = blake2b(str(what["id"]).encode(), digest_size=8).hexdigest()
    message["Message-ID"] = f"<{what['batch']}.{number}@{server.sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(_lines(what)) + "\n")
    return message


def _lines(what: Mapping[str, Any]) -> Iterator[str]:
    batch = f"{what['batch']}" + (f" ({what['batchID']})" if what.get("batchID") else "")
    yield f"Batch {batch}: {what['status']}"
    if what.get("why"):
        yield f"\n{what['why']}"
    if what.get("update"):
        yield "\nThis is what has changed since the last report."
    for title, jobs in (("Failed", what.get("failed_jobs") or []), ("Completed", what.get("completed_jobs") or [])):
        if jobs:
            yield f"\n{title}: {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}\n"
        for job in jobs[:JOBS]:
            yield f"  {_named(job)}" + (f": {job['why']}" if job.get("why") else "")
        if len(jobs) > JOBS:
            yield f"  … and {len(jobs) - JOBS} more: ask those who run the queue, or give a response_url."


def _named(job: Mapping[str, Any]) -> str:
    local = job.get("local_id") or []
    names = [job.get("primary_id"), *(local if isinstance(local, list) else [local])]
    known = ", ".join(str(name) for name in names if name)
    return f"{job['job']} ({known})" if known else str(job["job"])


class BatchReports:
    """All ways by which a batch's submitter is told: each once, also if another one has to be tried again."""

    def __init__(self, callback: Callback, mail: Mail | None) -> None:
        self._mail = mail
        self._ways: list[Callback | Mail] = [callback, *([mail] if mail else [])]
        self._told: dict[str, set[int]] = {}

    def by(self, callback: Callback) -> BatchReports:
        """Return reports sent by another callback; each knows what the other has sent."""
        found = BatchReports(callback, self._mail)
        found._told = self._told
        return found

    def tell(self, submitted: Mapping[str, Any], what: Mapping[str, Any]) -> bool:
        """Tell by every way that the submission names. False: it names none.

        Raises:
            TransientError: by one of them it has to be tried again.
            PermanentError: one of them refuses.
            SlowHost: as ``Callback.tell``; nothing was told yet by the others.
            Stopping.
        """
        id = str(what["id"])
        told = self._told.setdefault(id, set())
        errors: list[DeliveryError] = []
        ways = False
        for number, way in enumerate(self._ways):
            if number in told:
                ways = True
                continue
            try:
                ways |= way.tell(submitted, what)
                told.add(number)
            except DeliveryError as e:
                errors.append(e)
                if not isinstance(e, TransientError):
                    told.add(number)  # it is refused for good; others may still have to be tried
        again = [e for e in errors if isinstance(e, TransientError)]
        if not again:
            self._told.pop(id, None)
        for error in [*again, *errors]:
            raise error
        return ways
