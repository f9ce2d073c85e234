"""Notifications of submitters: JSON posted to the URL that they gave, and reports by e-mail."""

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
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.fetch import SlowHosts
from ferryman.intake.service.manifest import check_response_url
from ferryman.net import http, urls
from ferryman.net.allowed_addresses import NOTHING_PRIVATE, NotAllowed, Reach
from ferryman.net.http import expand_variables
from ferryman.net.urls import redact

if TYPE_CHECKING:
    from urllib3 import PoolManager


# Callbacks: a JSON object is posted to the URL that the submitter gave.

CALLBACK_TRIES: Final = 3
CALLBACK_TIMEOUT_S: Final = 10.0
"""Seconds for a receiver to answer; slower ones would keep a consumer from its work."""


class Callback:
    """Posts reports to submitters, with a limited number of attempts. After a kill it may post again; receivers
    recognize repeated posts by ``id``.

    Args:
        stop: when it is set, pauses end with ``StopRequested``.
        reach: addresses that URLs may lead to.
        slow: known slow receivers, for which ``SlowHost`` is raised; None: wait for slow receivers.
        secret: secret for signing posts, as for webhooks; ``${NAME}`` in it is filled in from the environment.

    Raises:
        Misconfigured: the secret cannot be used.
    """

    def __init__(
        self,
        stop: threading.Event | None = None,
        *,
        reach: Reach = NOTHING_PRIVATE,
        secret: str | None = None,
        tries: int = CALLBACK_TRIES,
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

    def check(self, submission: Mapping[str, Any]) -> None:
        """Check that reports may be posted to the ``response_url`` of a submission or a job, before its work is done.
        A host that is not known now may be known later.

        Raises:
            CorruptSubmission: it is not an http or https URL, or leads where it may not.
        """
        url = str(submission.get("response_url") or "")
        if not url:
            return
        _, parts = urls.split(check_response_url(url))
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            self._reach.addresses(parts.hostname or "", port)
        except NotAllowed as e:
            raise CorruptSubmission(f"the response_url {redact(url)}: {e}") from None
        except (OSError, UnicodeError):
            return

    def send(self, submission: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
        """Post to the ``response_url`` of a submission or a job. Returns False if there is none.

        Raises:
            PermanentError: the URL is invalid, or its server refuses the post.
            TransientError: the last attempt got no successful answer.
            SlowHost: the server is slow, and must be waited for in a separate thread.
            StopRequested.
        """
        url = str(submission.get("response_url") or "")
        if not url:
            return False
        check_response_url(url)
        body = msgspec.json.encode(dict(content))
        fetch.retry(lambda: self._post(url, body, str(content.get("id") or "")), self._tries, self._pause_s, self._stop)
        return True

    def _post(self, url: str, body: bytes, id: str) -> None:
        signature = signature_headers(self._key, id, body) if self._key else {}
        headers = {"content-type": "application/json", **signature}
        if self._slow is not None:
            self._slow.raise_if_slow(url)
        try:
            with http.exchange(self._pool, "POST", url, headers, self._timeout_s, body) as answer:
                pass  # the rest of the answer does not matter, and may arrive one byte at a time
        except (http.NotSent, http.Unanswered) as e:
            raise fetch.describe_failure(url, e, self._slow, "no answer") from None
        if 200 <= answer.status < 300:
            return
        message = f"{redact(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
        if urls.is_retryable(answer.status):
            raise TransientError(message)
        raise PermanentError(message)

    @cached_property
    def _pool(self) -> PoolManager:
        return http.pool(self._reach, 4)


MAIL_TIMEOUT_S: Final = 10.0
"""Seconds for each answer of the mail server."""

JOBS_IN_MAIL: Final = 1000
"""Maximum number of jobs of each kind named in a mail; the complete report is kept with the batch."""

_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
"""Matches a submitter that receives mail. It has no spaces, quotes or line breaks, so it is a single recipient."""

_PORTS: Final = {"smtp": 25, "smtps": 465}


class MailServer(NamedTuple):
    """Mail server and sender, parsed from a URL."""

    is_tls: bool
    host: str
    port: int
    user: str
    password: str
    sender: str

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def parse_mail_server(url: str) -> MailServer:
    """Parse ``smtp://USER:${PASSWORD}@HOST:PORT?from=ADDRESS``, or ``smtps://…`` for TLS from the first byte.

    Raises:
        UsageError: it is something else. Passwords are not shown.
        Misconfigured: an environment variable in it is not set.
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
    """Return whether the text is an e-mail address."""
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


class Mail:
    """Mails reports to submitters that are e-mail addresses.

    After a kill between the server's answer and its record, the same mail is sent again, with the same ``Message-ID``.

    Args:
        url: see ``parse_mail_server``.
        stop: when it is set, pauses end with ``StopRequested``.
    """

    def __init__(
        self,
        url: str,
        stop: threading.Event | None = None,
        *,
        pause_s: float = fetch.PAUSE_FIRST_S,
        timeout_s: float = MAIL_TIMEOUT_S,
    ) -> None:
        self._server = parse_mail_server(url)
        self._stop, self._pause_s, self._timeout_s = stop or threading.Event(), pause_s, timeout_s

    def send(self, submission: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
        """Mail the report of a batch. Returns False if its submitter is not an address.

        Raises:
            PermanentError: the server refuses the mail, the recipient, or the login.
            TransientError: the last attempt got no successful answer.
            StopRequested.
        """
        recipient = submission.get("submitter")
        if not is_address(recipient):
            return False
        message = compose_mail(content, str(recipient), self._server)
        fetch.retry(lambda: self._send(message), CALLBACK_TRIES, self._pause_s, self._stop)
        return True

    def _send(self, message: EmailMessage) -> None:
        address = self._server.address
        try:
            self._deliver(message)
        except smtplib.SMTPRecipientsRefused as e:
            code, reply = next(iter(e.recipients.values()))
            raise _smtp_error(code, f"{address}: refuses {message['To']}: {_server_text(reply)}") from None
        except smtplib.SMTPAuthenticationError as e:  # its text may repeat what was sent
            raise _smtp_error(e.smtp_code, f"{address}: refuses user and password ({e.smtp_code})") from None
        except smtplib.SMTPResponseException as e:
            raise _smtp_error(e.smtp_code, f"{address}: {e.smtp_code} {_server_text(e.smtp_error)}") from None
        except (smtplib.SMTPException, OSError) as e:
            raise TransientError(f"{address}: {type(e).__name__}, the mail was not taken") from None

    def _deliver(self, message: EmailMessage) -> None:
        server = self._server
        context = ssl.create_default_context()
        plain = smtplib.SMTP(timeout=self._timeout_s)
        smtp = smtplib.SMTP_SSL(timeout=self._timeout_s, context=context) if server.is_tls else plain
        smtp._host = server.host  # type: ignore[attr-defined]  # what the certificate is compared with
        try:
            smtp.connect(server.host, server.port)
            smtp.ehlo()
            if not server.is_tls and smtp.has_extn("starttls"):
                smtp.starttls(context=context if server.password else None)
                smtp.ehlo()
            elif not server.is_tls and server.password:
                raise PermanentError(f"{server.address}: offers no STARTTLS, and a password is not sent in the clear")
            if server.password:
                _log_in(smtp, server)
            smtp.send_message(message)
            with suppress(smtplib.SMTPException, OSError):  # the mail was accepted, whatever happens now
                smtp.quit()
        finally:
            smtp.close()


def _log_in(smtp: smtplib.SMTP, server: MailServer) -> None:
    """Log in by the methods that the server offers, one after another.

    Raises:
        smtplib.SMTPAuthenticationError: the login is refused, even if the server hangs up before the next method is
            tried.
        smtplib.SMTPException, OSError: the server did not answer.
    """
    refusals: list[smtplib.SMTPAuthenticationError] = []
    authenticate = smtp.auth

    def auth(*args: Any, **kwargs: Any) -> tuple[int, bytes]:
        try:
            return authenticate(*args, **kwargs)
        except smtplib.SMTPAuthenticationError as e:
            refusals.append(e)
            raise
        except (smtplib.SMTPException, OSError):
            if refusals:
                raise refusals[-1] from None
            raise

    smtp.auth = auth  # type: ignore[method-assign]
    smtp.login(server.user, server.password)


def _smtp_error(code: int, why: str) -> DeliveryError:
    return PermanentError(why) if 500 <= code < 600 else TransientError(why)


def _server_text(reply: bytes | str) -> str:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    return " ".join(text.split())[:200]


def compose_mail(content: Mapping[str, Any], recipient: str, server: MailServer) -> EmailMessage:
    """Compose a mail with the content of a report."""
    message = EmailMessage()
    message["To"], message["From"] = recipient, server.sender
    name = content.get("batchID") or content["batch"]
    message["Subject"] = " ".join(f"Batch {name}: {str(content['status']).lower()}".split())[:200]
    message["Date"] = formatdate()
    number = blake2b(str(content["id"]).encode(), digest_size=8).hexdigest()
    message["Message-ID"] = f"<{content['batch']}.{number}@{server.sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(_report_lines(content)) + "\n")
    return message


def _report_lines(content: Mapping[str, Any]) -> Iterator[str]:
    batch = f"{content['batch']}" + (f" ({content['batchID']})" if content.get("batchID") else "")
    yield f"Batch {batch}: {content['status']}"
    if content.get("why"):
        yield f"\n{content['why']}"
    if content.get("update"):
        yield "\nThis is what has changed since the last report."
    for title, jobs in (
        ("Failed", content.get("failed_jobs") or []),
        ("Completed", content.get("completed_jobs") or []),
    ):
        if jobs:
            yield f"\n{title}: {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}\n"
        for job in jobs[:JOBS_IN_MAIL]:
            yield f"  {_job_title(job)}" + (f": {job['why']}" if job.get("why") else "")
        if len(jobs) > JOBS_IN_MAIL:
            yield f"  … and {len(jobs) - JOBS_IN_MAIL} more: ask those who run the queue, or give a response_url."


def _job_title(job: Mapping[str, Any]) -> str:
    local = job.get("local_id") or []
    names = [job.get("primary_id"), *(local if isinstance(local, list) else [local])]
    label = ", ".join(str(name) for name in names if name)
    return f"{job['job']} ({label})" if label else str(job["job"])


class BatchReports:
    """Sends reports of batches by all channels: once by each channel, even if another one has to be tried again."""

    def __init__(self, callback: Callback, mail: Mail | None) -> None:
        self._callback, self._mail = callback, mail
        self._channels: list[Callback | Mail] = [callback, *([mail] if mail else [])]
        self._outcomes: dict[str, dict[int, DeliveryError | None]] = {}
        """Report -> channel -> why it refused for good, None: it was sent; while another one is to be tried again."""

    def check(self, submission: Mapping[str, Any]) -> None:
        """Check the channels that a submission names. Raises as ``Callback.check``."""
        self._callback.check(submission)

    def with_callback(self, callback: Callback) -> BatchReports:
        """Return a sender with another callback; both know what the other has sent."""
        reports = BatchReports(callback, self._mail)
        reports._outcomes = self._outcomes
        return reports

    def send(self, submission: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
        """Send a report by every channel that the submission names. Returns False if there is none.

        Raises:
            TransientError: one of the channels has to be tried again.
            PermanentError: one of the channels refuses.
            SlowHost: as ``Callback.send``; nothing was sent by the other channels yet.
            StopRequested.
        """
        id = str(content["id"])
        outcomes = self._outcomes.setdefault(id, {})
        temporary: list[TransientError] = []
        has_channel = False
        for number, channel in enumerate(self._channels):
            if number in outcomes:
                has_channel = True
                continue
            try:
                has_channel |= channel.send(submission, content)
                outcomes[number] = None
            except TransientError as e:
                temporary.append(e)
            except DeliveryError as e:
                outcomes[number] = e  # other channels may still have to be tried
        if not temporary:
            del self._outcomes[id]
        for error in [*temporary, *outcomes.values()]:
            if error is not None:
                raise error
        return has_channel
