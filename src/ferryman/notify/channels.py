"""The ways a digest goes: posted to a URL, by mail, into a command."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import smtplib
import socket
import subprocess
from contextlib import suppress
from email.message import EmailMessage
from hashlib import blake2b
from typing import Final
from urllib.parse import parse_qs, unquote

from ferryman.destinations.environment import filled
from ferryman.destinations.http import Http, NotSent, Unanswered
from ferryman.destinations.webhook.signing import signature_headers, signing_key
from ferryman.notify.digest import Digest, encoded
from ferryman.plan.notice import NotifyTarget

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
