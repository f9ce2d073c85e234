"""Reports by e-mail, handed to a real mail server."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

from ferryman.errors import FerrymanError, PermanentError, TransientError, UsageError
from ferryman.intake.service.reports import (
    JOBS_IN_MAIL,
    BatchReports,
    Mail,
    compose_mail,
    is_address,
    parse_mail_server,
)
from tests.intake.service.place import Place
from tests.intake.service.receiver import Receiver
from tests.servers import certificates


class KeptMails:
    """Keeps what is handed in; answers with the next of ``answers``, then takes all."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.answers: list[str] = []

    async def handle_RCPT(self, server: SMTP, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("nobody"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 ok"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:
        if self.answers:
            return self.answers.pop(0)
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        self.recipients.append(envelope.rcpt_tos)
        return "250 kept"


class AnyPort(Controller):
    """Listens where there is room."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def mailbox() -> Iterator[tuple[KeptMails, str]]:
    """What comes, and the server's URL."""
    box = KeptMails()
    controller = AnyPort(box, hostname="127.0.0.1", port=0)
    controller.start()
    yield box, f"smtp://127.0.0.1:{controller.port}?from=library@example.org"
    controller.stop()


@pytest.fixture(scope="module")
def vouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate, and what a server at 127.0.0.1 that it vouches for speaks TLS with."""
    folder = tmp_path_factory.mktemp("authority")
    authority = certificates.authority(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server(folder))
    return authority, context


class Login:
    """Lets in one user, and notes who came, and whether through TLS."""

    def __init__(self) -> None:
        self.came: list[tuple[bytes, bytes, bool]] = []

    def __call__(self, server: SMTP, session: Any, envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        is_secret = session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None
        self.came.append((data.login, data.password, is_secret))
        return AuthResult(success=(data.login, data.password) == (b"me", b"p/w"), handled=False)


@contextlib.contextmanager
def secured(context: ssl.SSLContext, login: Login, *, at_once: bool) -> Iterator[tuple[KeptMails, str]]:
    """A server that speaks TLS from the first byte on, or once it is asked (STARTTLS); its users and host."""
    box = KeptMails()
    options: dict[str, Any] = {"authenticator": login, "auth_required": True}
    if at_once:
        options |= {"ssl_context": context, "auth_require_tls": False}  # it does not count TLS from the first byte on
    else:
        options |= {"tls_context": context, "require_starttls": True}
    controller = AnyPort(box, hostname="127.0.0.1", port=0, **options)
    controller.start()
    yield box, f"{'smtps' if at_once else 'smtp'}://{{}}127.0.0.1:{controller.port}?from=library@example.org"
    controller.stop()


@pytest.mark.rule("intake.mail")
@pytest.mark.parametrize("at_once", [True, False], ids=["smtps", "starttls"])
def test_a_server_with_tls_and_login(
    vouched: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """The password goes through TLS only; a wrong one is refused for good, and not repeated."""
    authority, context = vouched
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    login = Login()
    with secured(context, login, at_once=at_once) as (box, url):
        assert Mail(url.format("me:p%2Fw@"), pause_s=0).send(TO, WHAT)
        with pytest.raises(PermanentError, match="refuses user and password") as refused:
            Mail(url.format("me:other@"), pause_s=0).send(TO, WHAT)
        assert "other" not in str(refused.value)
        with pytest.raises(PermanentError, match="530"):
            Mail(url.format(""), pause_s=0).send(TO, WHAT)
    assert len(box.mails) == 1
    assert {user for user, _, _ in login.came} == {b"me"}
    assert [(password, is_secret) for _, password, is_secret in login.came[:1]] == [(b"p/w", True)]
    assert all(is_secret for _, _, is_secret in login.came)


@pytest.mark.rule("intake.mail")
@pytest.mark.parametrize("at_once", [True, False], ids=["smtps", "starttls"])
def test_a_server_that_nobody_vouches_for(vouched: tuple[Path, ssl.SSLContext], at_once: bool) -> None:
    """Gets neither the password nor the mail."""
    login = Login()
    with secured(vouched[1], login, at_once=at_once) as (box, url), pytest.raises(TransientError):
        Mail(url.format("me:p%2Fw@"), pause_s=0).send(TO, WHAT)
    assert (login.came, box.mails) == ([], [])


@pytest.mark.rule("intake.mail")
def test_a_submitter_with_an_address_gets_the_report(intake: Place, mailbox: tuple[KeptMails, str]) -> None:
    """Once a batch, in text: what has failed and why, what is completed; then what has changed."""
    box, url = mailbox
    rows = [intake.row("a.txt", local_id="map-1"), intake.row("b.txt", "x\0", local_id="map-2")]
    batch = intake.submit(manifest_url=intake.manifest(rows), submitter="anna@example.org", batchID="b-1")
    intake.submit(payload_url=intake.put("c.txt", "c").as_uri(), submitter="anna")
    intake.serve(smtp=url)
    (mail,) = box.mails
    assert box.recipients == [["anna@example.org"]]
    assert (mail["To"], mail["From"], mail["Subject"]) == (
        "anna@example.org",
        "library@example.org",
        "Batch b-1: failed",
    )
    text = mail.get_content().replace("\r\n", "\n")
    assert "Failed: 1 job\n" in text
    assert "(map-2): map-2/b.txt: holds a zero byte\n" in text
    assert "Completed: 1 job\n" in text
    job = intake.queue.load_batch(batch).failed_jobs[0]
    intake.queue.load_job(job).set_status("Notify")
    intake.serve(smtp=url)
    intake.queue.load_batch(batch).set_status("UpdateReporting")
    intake.serve(smtp=url)
    assert "has changed" in box.mails[1].get_content()
    assert len({mail["Message-ID"] for mail in box.mails}) == len(box.mails) == 2


@pytest.mark.rule("intake.mail")
def test_a_refused_batch_is_mailed(intake: Place, mailbox: tuple[KeptMails, str]) -> None:
    """With the reason."""
    box, url = mailbox
    broken = intake.put("broken.jsonl", "{").as_uri()
    intake.submit(manifest_url=broken, payload_type="manifest", submitter="anna@example.org")
    intake.serve(smtp=url)
    assert [mail["Subject"] for mail in box.mails] == ["Batch bid0000000000: failed"]
    assert "line 1 of the manifest is not JSON" in box.mails[0].get_content()


@pytest.mark.rule("intake.mail")
def test_a_mail_that_is_refused_fails_nothing(intake: Place, mailbox: tuple[KeptMails, str]) -> None:
    """The batch ends as its jobs did, and its message says why there was no mail."""
    _, url = mailbox
    batch = intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), submitter="nobody@example.org")
    intake.serve(smtp=url)
    found = intake.queue.load_batch(batch)
    assert found.status == "Completed"
    assert "refuses nobody@example.org: no such user" in found.message


WHAT = {"id": "b/report/", "batch": "b", "status": "Completed", "completed_jobs": [], "failed_jobs": []}
TO = {"submitter": "anna@example.org"}


def test_each_way_is_told_once(mailbox: tuple[KeptMails, str]) -> None:
    """While a URL has to be tried again, the mail is not sent again."""
    box, url = mailbox
    from ferryman.intake.service.reports import Callback
    from ferryman.net.allowed_addresses import Reach

    with Receiver(503, 503) as receiver:
        told = BatchReports(Callback(reach=Reach((), ("127.0.0.1",)), tries=1, pause_s=0), Mail(url, pause_s=0))
        submitted = {**TO, "response_url": receiver.url}
        for _ in range(2):
            with pytest.raises(TransientError):
                told.send(submitted, WHAT)
        assert told.send(submitted, WHAT)
    assert (len(box.mails), len(receiver.told)) == (1, 1)


def test_a_refusal_is_reported_when_the_other_way_has_succeeded(mailbox: tuple[KeptMails, str]) -> None:
    """Also if that had to be tried again, and only then: the batch's message says why."""
    box, url = mailbox
    from ferryman.intake.service.reports import Callback
    from ferryman.net.allowed_addresses import Reach

    with Receiver(404) as receiver:
        told = BatchReports(Callback(reach=Reach((), ("127.0.0.1",)), tries=1, pause_s=0), Mail(url, pause_s=0))
        box.answers = ["451 later"] * 3
        submitted = {**TO, "response_url": receiver.url}
        with pytest.raises(TransientError, match="451"):
            told.send(submitted, WHAT)
        with pytest.raises(PermanentError, match="404"):
            told.send(submitted, WHAT)
        assert len(box.mails) == 1
        assert told.send(submitted, {**WHAT, "id": "b/report/2"})


def test_answers_of_the_server(mailbox: tuple[KeptMails, str]) -> None:
    """One that passes is tried again; one that stays is the end; no server is one that passes."""
    box, url = mailbox
    box.answers = ["451 later", "451 later"]
    assert Mail(url, pause_s=0).send(TO, WHAT)
    box.answers = ["554 never"]
    with pytest.raises(PermanentError, match="554 never"):
        Mail(url, pause_s=0).send(TO, WHAT)
    with pytest.raises(TransientError):
        Mail("smtp://127.0.0.1:1", pause_s=0).send(TO, WHAT)
    with pytest.raises(PermanentError, match="STARTTLS"):
        Mail(url.replace("//", "//me:secret@"), pause_s=0).send(TO, WHAT)


@pytest.mark.parametrize(
    "text", ["anna", "a@b c", "a@b\nBcc: c@d", "a@b, c@d", "<a@b>", "@b", "a@", "a@-", 5, None, "a" * 65 + "@b"]
)
def test_what_is_no_address_gets_no_mail(text: object) -> None:
    """Names, lists, and what would become a header."""
    assert not is_address(text)
    assert not Mail("smtp://127.0.0.1:1").send({"submitter": text}, WHAT)


def test_a_hostile_batch_id_is_text() -> None:
    """No header of its own; and a report of many jobs names the first."""
    jobs = [{"job": f"jid{n}"} for n in range(JOBS_IN_MAIL + 5)]
    what = {**WHAT, "batchID": "x\r\nBcc: eve@example.org", "completed_jobs": jobs}
    mail = compose_mail(what, "anna@example.org", parse_mail_server("smtp://h"))
    assert mail["Bcc"] is None
    assert "and 5 more" in mail.get_content()


@pytest.mark.parametrize(
    "url", ["h:25", "http://h", "smtp://", "smtp://h:x", "smtp://h?to=a@b", "smtp://h?from=x", "smtp://h/path"]
)
def test_a_bad_url_is_refused(url: str) -> None:
    """When `serve` is started."""
    with pytest.raises(UsageError, match="--smtp"):
        parse_mail_server(url)


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not set is an error."""
    monkeypatch.setenv("MAIL_PASSWORD", "p/w")
    assert parse_mail_server("smtps://me:${MAIL_PASSWORD}@h").password == "p/w"
    monkeypatch.delenv("MAIL_PASSWORD")
    with pytest.raises(FerrymanError, match="MAIL_PASSWORD"):
        parse_mail_server("smtps://me:${MAIL_PASSWORD}@h")
