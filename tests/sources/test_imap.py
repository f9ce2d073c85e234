"""``Imap`` against Dovecot: each mail once, nothing changed on the server, nothing deleted that was only not seen."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.servers import certificates
from tests.servers.dovecot import PASSWORD, Dovecot
from tests.servers.registry import require_package
from tests.support.imap_proxy import ImapProxy, imap_proxy, once
from tests.support.mails import Scanned, mail, mbox

from ferryman import limits
from ferryman.errors import Misconfigured, TransientError, Unavailable, UsageError
from ferryman.sources import Imap, Source, Unchanged
from ferryman.sources import imap as module
from ferryman.testing.sources import SourceSuite

imapclient = require_package("imapclient")
pytestmark = pytest.mark.server

HERE = "127.0.0.1"


class Account:
    """A user's mails, as another program of hers sees them."""

    def __init__(self, server: Dovecot, user: str) -> None:
        self.server, self.user = server, user
        self.client = imapclient.IMAPClient(HERE, server.port, ssl=False)
        self.client.login(user, PASSWORD)

    def put(self, *numbers: int | str, folder: str = "INBOX", **headers: str) -> None:
        if not self.client.folder_exists(folder):
            self.client.create_folder(folder)
        for number in numbers:
            self.client.append(folder, mail(number, **headers))

    def open(self, folder: str = "INBOX") -> Any:
        self.client.select_folder(folder)
        return self.client

    def move(self, number: int, source: str, target: str) -> None:
        client = self.open(source)
        client.move(client.search(["HEADER", "Message-ID", f"<{number}@"]), target)

    def remove(self, *numbers: int | str, folder: str = "INBOX") -> None:
        client = self.open(folder)
        for number in numbers:
            client.delete_messages(client.search(["HEADER", "Message-ID", f"<{number}@"]))
        client.expunge()

    def number_anew(self) -> None:
        """Let the server forget its numbers, so that it gives new ones under another UIDVALIDITY."""
        folder = self.server.folder / "mail" / self.user
        self.client.logout()
        for path in [*folder.rglob("dovecot.*"), *folder.rglob("dovecot-uidvalidity*")]:
            path.unlink()
        for path in folder.rglob("dovecot-uidlist"):
            [validity] = re.findall(r"\bV(\d+)", path.read_text())
            path.write_text(f"3 V{int(validity) + 1000} N1\n")
        self.__init__(self.server, self.user)  # type: ignore[misc]

    def source(self, folders: Any = "*", port: int = 0, **options: Any) -> Imap:
        return Imap(HERE, folders, user=self.user, security="none", port=port or self.server.port, **options)


@pytest.fixture(scope="module")
def dovecot(server: Callable[[str], Any]) -> Dovecot:
    found: Dovecot = server("dovecot")
    return found


@pytest.fixture
def ann(dovecot: Dovecot, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Account]:
    monkeypatch.setenv("IMAP_PASSWORD", PASSWORD)
    account = Account(dovecot, f"ann{crc32(request.node.nodeid.encode())}")
    yield account
    account.client.shutdown()


@pytest.fixture
def proxy(dovecot: Dovecot) -> Iterator[ImapProxy]:
    with imap_proxy(dovecot.port) as found:
        yield found


# --- documents --------------------------------------------------------------------------------------------------------


def test_a_mail_is_a_document(ann: Account) -> None:
    ann.put(1)
    ann.put(2, folder="Projects/Ärger & Co")
    first, second = Scanned(ann.source()).documents()
    assert first.id.startswith("1@example.org/")
    assert first.raw == mail(1).replace(b"\n", b"\r\n")
    assert first.fields == {
        "folders": ["INBOX"],
        "size": len(first.raw),
        "mime": "message/rfc822",
        "message_id": "1@example.org",
        "url": "mid:1%40example.org",
    }
    assert second["folders"] == ["Projects/Ärger & Co"]


def test_an_id_is_the_one_in_every_other_mailbox(ann: Account, tmp_path: Path) -> None:
    from ferryman.sources import Mailbox

    ann.put(1, 2)
    (tmp_path / "m.mbox").write_bytes(mbox(mail(1), mail(2)))
    assert Scanned(ann.source()).ids() == Scanned(Mailbox(tmp_path / "m.mbox")).ids()


def test_mails_without_an_id_of_one_second_are_two(ann: Account, tmp_path: Path) -> None:
    """https://github.com/jbostoen/itop-jb-mail-to-ticket-automation-v2/issues/253; see ``test_mailbox``."""
    from ferryman.sources import Mailbox

    head = b"Subject: disk full\nDate: Mon, 06 May 2024 10:00:00 +0200\n\n"
    texts = [head + b"Disk %d is full\n" % n for n in range(3)]
    for text in (*texts, texts[0]):
        ann.client.append("INBOX", text)
    (tmp_path / "m.mbox").write_bytes(mbox(*texts, b"Subject: last\nMessage-ID: <9@example.org>\n\n"))
    found = Scanned(ann.source())
    assert len(found.ids()) == 3
    assert set(found.ids()) < set(Scanned(Mailbox(tmp_path / "m.mbox")).ids())
    assert all(doc.raw for doc in found.documents())


@pytest.mark.parametrize("name", ["EMAILID", "X-GM-MSGID"])
def test_an_id_is_the_servers_where_it_has_one(ann: Account, proxy: ImapProxy, name: str) -> None:
    """Dovecot calls its own X-GUID; the proxy calls it as other servers do."""
    ann.put(1, 1)
    capability = b"OBJECTID" if name == "EMAILID" else b"X-GM-EXT-1"
    shown = rb"EMAILID (\1)" if name == "EMAILID" else rb"X-GM-MSGID \1"
    proxy.command = lambda line: line.replace(name.encode(), b"X-GUID")
    proxy.answer = lambda line: re.sub(
        rb"X-GUID (\S+?)(?=[ )])", shown, line.replace(b"IMAP4rev1 ", b"IMAP4rev1 " + capability + b" ")
    )
    found = Scanned(ann.source(port=proxy.port))
    assert len(set(found.ids())) == 2  # two of the same headers
    assert all(re.fullmatch(r"[0-9a-f]{32}|[\w.,=-]+", id) for id in found.ids())
    assert [doc["message_id"] for doc in found.documents()] == ["1@example.org"] * 2
    assert not any("HEADER" in command for command in proxy.commands)


@pytest.mark.rule("mail.once")
def test_a_mail_is_one_document_wherever_it_lies(ann: Account) -> None:
    ann.put(1, 1, 2)
    ann.put(1, folder="Archive")
    assert Scanned(ann.source()).folders() == {"1": ["Archive", "INBOX"], "2": ["INBOX"]}


def test_nothing_is_changed_on_the_server(ann: Account, proxy: ImapProxy) -> None:
    """EXAMINE and BODY.PEEK only: no mail is marked as read, not even as seen by a client (\\Recent)."""
    ann.put(1, 2)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    before.documents()
    Scanned(source, before)
    verbs = {command.upper().removeprefix("UID ").split()[0] for command in proxy.commands if command}
    assert verbs <= {"LOGIN", "CAPABILITY", "LIST", "STATUS", "EXAMINE", "SEARCH", "FETCH", "UNSELECT", "LOGOUT"}
    fetches = [command for command in proxy.commands if "FETCH" in command]
    assert fetches
    assert not re.search(r"BODY\[|RFC822(?!\.SIZE)", " ".join(fetches))
    client = ann.open()
    assert all(b"\\Seen" not in flags for flags in client.get_flags([1, 2]).values())


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_folder_without_changes_is_not_listed(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1, 2, 3)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    proxy.commands.clear()
    after = Scanned(source, before)
    assert (after.listed, after.changed) == (before.listed, [])
    assert not any(word in command for command in proxy.commands for word in ("EXAMINE", "SEARCH", "FETCH"))


def test_only_new_mails_are_looked_at(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1, 2, 3)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    ann.put(4)
    ann.remove(2)
    proxy.commands.clear()
    after = Scanned(source, before)
    assert [id[0] for id in after.ids()] == ["1", "3", "4"]
    assert [command.split()[2] for command in proxy.commands if "FETCH" in command] == ["4"]


def test_flags_need_no_list_of_mails(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1, 2)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    ann.open().add_flags([1], [b"\\Seen"])
    proxy.commands.clear()
    after = Scanned(source, before)
    assert after.fingerprints() == before.fingerprints()
    assert [command.split()[-1] for command in proxy.commands if "SEARCH" in command] == ["DELETED"]
    assert not any("FETCH" in command for command in proxy.commands)


@pytest.mark.parametrize("condstore", [True, False])
def test_a_mail_that_is_marked_as_deleted_counts_as_deleted(ann: Account, proxy: ImapProxy, condstore: bool) -> None:
    if not condstore:
        proxy.answer = lambda line: line.replace(b" CONDSTORE QRESYNC", b"").replace(b"HIGHESTMODSEQ", b"X-OTHER")
    ann.put(1, 2)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    ann.open().add_flags([1], [b"\\Deleted"])
    after = Scanned(source, before)
    assert [id[0] for id in after.ids()] == ["2"]
    ann.open().remove_flags([1], [b"\\Deleted"])
    assert [id[0] for id in Scanned(source, after).ids()] == ["1", "2"]


@pytest.mark.rule("mail.once")
def test_new_numbers_double_and_delete_nothing(ann: Account) -> None:
    """A new UIDVALIDITY: headers are read again, contents are not."""
    ann.put(1, 2, 3)
    ann.put(3, folder="Sent")
    source = ann.source()
    before = Scanned(source)
    ann.number_anew()
    with pytest.raises(TransientError, match="not in 'INBOX' any more"):
        ann.source().read(before.listed[0])
    after = Scanned(source, before)
    assert after.fingerprints() == before.fingerprints()
    assert after.error is None
    assert all(source.read(entry._replace(known=entry.fingerprint)) == Unchanged() for entry in after.listed)
    assert after.changed
    assert len(after.documents()) == 3


@pytest.mark.rule("mail.once")
def test_a_moved_mail_moves(ann: Account) -> None:
    ann.put(1, 2)
    ann.put(3, folder="Archive")
    before = Scanned(ann.source())
    ann.move(1, "INBOX", "Archive")
    after = Scanned(ann.source(), before)
    assert after.folders() == {"1": ["Archive"], "2": ["INBOX"], "3": ["Archive"]}
    assert set(after.ids()) == set(before.ids())
    changed = {id for id in after.ids() if after.fingerprints()[id] != before.fingerprints()[id]}
    assert changed == {id for id in after.ids() if id.startswith("1@")}


def test_a_renamed_folder(ann: Account) -> None:
    ann.put(1)
    ann.put(2, 3, folder="Old")
    before = Scanned(ann.source())
    ann.client.rename_folder("Old", "New/Name")
    after = Scanned(ann.source(), before)
    assert after.folders() == {"1": ["INBOX"], "2": ["New/Name"], "3": ["New/Name"]}
    assert (after.error, set(after.ids())) == (None, set(before.ids()))
    assert not any("Old" in mark for mark in after.marks)


def test_ranges_of_numbers(ann: Account, proxy: ImapProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many mails with gaps between their numbers."""
    monkeypatch.setattr(module, "SEARCHED_UIDS", 4)
    monkeypatch.setattr(module, "FETCHED_MAILS", 3)
    ann.put(*range(40))
    ann.remove(*range(5, 30))
    found = Scanned(ann.source(port=proxy.port))
    assert [int(id.partition("@")[0]) for id in found.ids()] == [*range(5), *range(30, 40)]
    ranges = [c.split()[3].split(":") for c in proxy.commands if "SEARCH" in c and "DELETED" not in c]
    assert ranges[0] == ["1", "4"]
    assert len(ranges) < 10
    assert all(int(later[0]) == int(earlier[1]) + 1 for earlier, later in pairwise(ranges))


@pytest.mark.slow
def test_three_hundred_thousand_mails(ann: Account, dovecot: Dovecot, proxy: ImapProxy) -> None:
    """In one folder: each once; then it is not listed, and of a new one that one is looked at."""
    folder = dovecot.folder / "mail" / ann.user
    for name in ("cur", "new", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(300_000):
        (folder / "cur" / f"{number}.host:2,S").write_bytes(b"Message-ID: <%d@example.org>\n\nText\n" % number)
    subprocess.run(["chown", "-R", "--reference", folder.parent, folder], check=True)
    found = Scanned(ann.source())
    assert (found.error, len(found.listed)) == (None, 300_000)
    assert len(set(found.ids())) == 300_000
    source = ann.source(port=proxy.port)
    again = Scanned(source, found)
    assert (again.fingerprints() == found.fingerprints(), again.changed) == (True, [])
    assert not any(word in command for command in proxy.commands for word in ("EXAMINE", "SEARCH", "FETCH"))
    ann.put("new")
    [new] = Scanned(source, found).fingerprints().keys() - found.fingerprints().keys()
    assert new.startswith("new@")
    assert [command.split()[2] for command in proxy.commands if "FETCH" in command] == ["300001"]


def test_folders_are_chosen(ann: Account) -> None:
    for number, folder in enumerate(("INBOX", "Sent", "Projects/a", "Projects/b", "Junk", "Trash")):
        ann.put(number, folder=folder)
    assert set(Scanned(ann.source()).folders()) == {"0", "1", "2", "3"}
    assert set(Scanned(ann.source(["inbox", "Projects/*"])).folders()) == {"0", "2", "3"}
    assert set(Scanned(ann.source("\\Junk", exclude=())).folders()) == {"4"}
    assert set(Scanned(ann.source(exclude=["*/a", "Trash"])).folders()) == {"0", "1", "3", "4"}


def test_folders_that_cannot_be_opened_are_left_out(ann: Account) -> None:
    """Dovecot shows a name that only leads to others as \\Noselect."""
    ann.put(1, folder="Only/Here")
    assert any(b"\\Noselect" in flags for flags, _, _ in ann.client.list_folders())
    found = Scanned(ann.source())
    assert (found.error, found.folders()) == (None, {"1": ["Only/Here"]})


# --- what is not complete deletes nothing -----------------------------------------------------------------------------


def test_no_mails_where_some_were_known(ann: Account) -> None:
    ann.put(1, 2)
    before = Scanned(ann.source())
    ann.remove(1, 2)
    after = Scanned(ann.source(), before)
    assert isinstance(after.error, TransientError)
    assert "no mails, where 2 were known" in str(after.error)
    assert Scanned(ann.source(may_be_empty=True), before).error is None


def test_fewer_mails_than_are_announced(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1, 2, 3)
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    ann.put(4)
    proxy.answer = lambda line: re.sub(rb"SEARCH (.*) 3\b", rb"SEARCH \1", line)
    after = Scanned(source, before)
    assert "announces 4 mails and shows 3" in str(after.error)
    assert [id[0] for id in after.ids()] == ["1", "2", "3", "4"]  # what is known stays, what is new comes
    proxy.answer = lambda line: line
    assert (Scanned(source, after).error, Scanned(source, after).ids()) == (None, after.ids())


def test_a_mail_that_the_server_cannot_give(ann: Account, proxy: ImapProxy) -> None:
    """The others come; nothing is deleted, and a person reads why."""
    ann.put(1, 2, 3)
    proxy.command = lambda line: re.sub(rb"FETCH (1,2,3|2,3|2) ", b"FETCH BAD ", line)
    found = Scanned(ann.source(port=proxy.port))
    assert [id[0] for id in found.ids()] == ["1", "3"]
    assert "announces 3 mails and shows 2" in str(found.error)


def test_a_folder_that_is_refused_is_as_it_was(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1)
    ann.put(2, folder="Secret")
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    proxy.command = lambda line: re.sub(rb'STATUS "?Secret"?', b"STATUS no/such", line)
    ann.put(3)
    after = Scanned(source, before)
    assert {id[0] for id in after.ids()} == {"1", "2", "3"}
    assert "folder 'Secret'" in str(after.error)


def test_a_folder_that_vanishes_between_two_answers(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1)
    ann.put(2, folder="Going")
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    proxy.command = once(lambda: ann.client.delete_folder("Going"), at=b"STATUS")
    after = Scanned(source, before)
    assert (after.error, [id[0] for id in after.ids()]) == (None, ["1"])


def test_a_mail_that_moves_while_folders_are_listed(ann: Account, proxy: ImapProxy) -> None:
    """From a folder that was not yet looked at into one that was: it would be seen in neither."""
    ann.put(1, folder="A")
    ann.put(2, 3, folder="B")
    source = ann.source(port=proxy.port)
    before = Scanned(source)
    ann.put(4, folder="A")
    ann.put(5, folder="B")

    def move() -> None:
        ann.move(2, "B", "A")

    proxy.command = once(move, at=b"UNSELECT")  # A was listed; B is next
    after = Scanned(source, before)
    assert (after.error, set(before.ids()) - set(after.ids())) == (None, set())
    assert after.folders()["2"] == ["A"]


def test_a_mailbox_that_never_rests_deletes_nothing(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1)

    def disturb(line: bytes) -> bytes:
        if b"STATUS" in line:
            ann.client.append("INBOX", mail(ann.client.folder_status("INBOX", ["UIDNEXT"])[b"UIDNEXT"]))
        return line

    proxy.command = disturb
    found = Scanned(ann.source(port=proxy.port))
    assert "6 times in a row" in str(found.error)
    assert found.ids()


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_connection_that_was_closed_is_made_anew(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1, 2)
    source = ann.source(port=proxy.port)
    first, second = Scanned(source).listed
    assert source.read(first)
    before = proxy.connections
    proxy.cut()
    assert source.read(second)
    assert proxy.connections == before + 1


@pytest.mark.parametrize("command", [b"LIST", b"STATUS", b"EXAMINE", b"SEARCH", b"FETCH"])
def test_a_connection_that_ends_at_each_command(ann: Account, proxy: ImapProxy, command: bytes) -> None:
    """Once: it goes on. Always: the source is unavailable, and is listed again later."""
    ann.put(1, 2)
    ends = [1]
    proxy.command = lambda line: None if command in line and ends and (ends.pop() or True) else line
    found = Scanned(ann.source(port=proxy.port))
    assert (found.error, len(found.ids())) == (None, 2)
    proxy.command = lambda line: None if command in line else line
    assert isinstance(Scanned(ann.source(port=proxy.port)).error, Unavailable)


def test_a_server_that_says_nothing(ann: Account, proxy: ImapProxy) -> None:
    proxy.is_silent = True
    source = ann.source(port=proxy.port, timeout_s=0.2)
    for ask in (source.check, lambda: next(iter(source.listing({})))):
        with pytest.raises(Unavailable, match=f"127.0.0.1:{proxy.port}"):
            ask()


def test_a_server_that_falls_silent(ann: Account, proxy: ImapProxy) -> None:
    ann.put(1)
    proxy.answer = lambda line: b"" if b"EXISTS" in line or b"EXAMINE" in line or b"Select" in line else line
    proxy.command = lambda line: b"" if b"EXAMINE" in line else line
    assert isinstance(Scanned(ann.source(port=proxy.port, timeout_s=0.3)).error, Unavailable)


def test_a_server_that_is_away(ann: Account) -> None:
    from tests.docs.test_connectors import free_port

    with pytest.raises(Unavailable, match="does not answer"):
        ann.source(port=free_port()).check()


def test_a_large_mail(ann: Account) -> None:
    ann.client.append("INBOX", mail(1, "x" * 70 + "\n") + b"0123456789abcde\n" * 4_000_000)
    ann.put(2)
    [large, _] = Scanned(ann.source()).listed
    assert large.size > 60 * limits.MIB
    assert not large.refused
    answer: Any = ann.source().read(large)
    assert len(answer.document.raw) == large.size
    refused = Scanned(ann.source(max_bytes=limits.MIB)).listed
    assert "more than max_bytes=1048576" in refused[0].refused
    assert not refused[1].refused


def test_hostile_mails(ann: Account) -> None:
    odd = [
        b"\n\njust text",
        b"\n\nother text",
        b"Subject: " + b"x" * 300_000 + b"\n\ntext",
        b"Message-ID: <a#b%23/../\xf0\x9f\x98\x80@c>\n\nt",
        b"Message-ID: <" + b"i" * 10_000 + b"@c>\n\nt",
        b"Subject: {100}\r\n\r\n) OK FETCH (\r\n{3}\r\n* BYE\r\n",
    ]
    for content in odd:
        ann.client.append("INBOX", content)
    found = Scanned(ann.source())
    assert (found.error, len(found.documents())) == (None, len(odd))


# --- logins -----------------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_said_and_not_shown(
    ann: Account, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("IMAP_PASSWORD", "wr0ng-secret")
    source = ann.source()
    with pytest.raises(Misconfigured, match="refuses the login of") as raised:
        source.check()
    shown = [repr(source), str(source.place()), str(raised.value), caplog.text, pickle.dumps(source).decode("latin-1")]
    assert not any("wr0ng-secret" in text for text in shown)
    monkeypatch.setenv("IMAP_PASSWORD", PASSWORD)
    source.check()
    Scanned(source)
    assert PASSWORD not in caplog.text


def test_a_password_of_other_letters(ann: Account, monkeypatch: pytest.MonkeyPatch, proxy: ImapProxy) -> None:
    monkeypatch.setenv("IMAP_PASSWORD", 'pässw0rd "\\ {3}')
    with pytest.raises(Misconfigured, match="refuses the login of") as raised:
        ann.source(port=proxy.port).check()
    assert "pässw0rd" not in str(raised.value)
    assert any(command.startswith("AUTHENTICATE PLAIN") for command in proxy.commands)


@pytest.mark.parametrize(
    "answer", [b"NO [UNAVAILABLE] Temporary authentication failure.", b"NO [LIMIT] Too many connections"]
)
def test_a_login_that_is_not_taken_now(ann: Account, proxy: ImapProxy, answer: bytes) -> None:
    """It says nothing about the password: the source is listed again later."""
    proxy.answer = lambda line: re.sub(rb"OK .*Logged in", answer, line)
    with pytest.raises(Unavailable, match="does not take the login now"):
        ann.source(port=proxy.port).check()


def test_a_token(ann: Account, proxy: ImapProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dovecot does not take tokens here: it is asked in the right way, and its answer is said without the token."""
    monkeypatch.setenv("TOKEN", "t0ken-secret")
    source = ann.source(port=proxy.port, token="${TOKEN}")
    with pytest.raises(Misconfigured, match="refuses the login of") as raised:
        source.check()
    assert any(command.startswith("AUTHENTICATE XOAUTH2") for command in proxy.commands)
    assert "t0ken-secret" not in str(raised.value)


def test_few_deletes_are_believed_behind_a_login() -> None:
    assert Imap("imap.example.org").max_deleted == 0.1


def test_a_missing_variable(ann: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAP_PASSWORD")
    with pytest.raises(Misconfigured, match="the environment variable IMAP_PASSWORD is not set"):
        ann.source().check()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"password": "literal"}, "comes from the environment"),
        ({"token": "literal"}, "comes from the environment"),
        ({"host": "ann:secret@example.org"}, "without a login"),
        ({"host": "imaps://example.org"}, "without a login"),
        ({"host": ""}, "name of a server"),
        ({"host": "example.org", "security": "none"}, "without TLS"),
        ({"security": "ssl"}, "choose one of"),
        ({"folders": []}, "name of a folder"),
        ({"timeout_s": 0}, "above 0"),
        ({"max_deleted": 2}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], said: str) -> None:
    host = options.pop("host", "127.0.0.1")
    with pytest.raises(UsageError, match=said) as raised:
        Imap(host, **options)
    assert "literal" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dovecot: Dovecot) -> None:
    authority = certificates.authority(tmp_path)
    monkeypatch.setenv("IMAP_PASSWORD", PASSWORD)
    with Dovecot(certificate=certificates.server(tmp_path)) as server:
        plain = Account(server, "bob")
        plain.put(1)
        trusted = Imap(HERE, user="bob", port=server.tls_port, ca=authority)
        assert len(Scanned(trusted).documents()) == 1
        started = Imap(HERE, user="bob", port=server.port, ca=authority, security="starttls")
        assert len(Scanned(started).documents()) == 1
        for port, security in ((server.tls_port, "tls"), (server.port, "starttls")):
            with pytest.raises(Misconfigured, match="certificate"):
                Imap(HERE, user="bob", port=port, security=security).check()  # type: ignore[arg-type]
        plain.client.shutdown()


class TestImap(SourceSuite):
    @pytest.fixture(autouse=True)
    def account(self, ann: Account) -> None:
        self.ann = ann

    def source(self, folder: Path) -> Source:
        if not Scanned(self.ann.source()).ids():
            self.ann.put(0, 1, 2)
        return self.ann.source()

    def remove(self, source: Source, id: str) -> None:
        self.ann.remove(id[0])


@pytest.mark.parametrize("step", ["starttls", "login"])
def test_a_connection_that_is_not_logged_in_is_closed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers take few connections of an account, and a run asks again and again."""
    closed: list[bool] = []

    class Refusing:
        """A client whose server takes the connection, and refuses the rest."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._imap = self

        def __getattr__(self, name: str) -> Any:
            def ask(*_: Any) -> None:
                if name == step:
                    raise imapclient.exceptions.LoginError("no")

            return ask

        def shutdown(self) -> None:
            closed.append(True)

    monkeypatch.setattr("imapclient.IMAPClient", Refusing)
    monkeypatch.setenv("IMAP_PASSWORD", "secret")
    address = module.ServerAddress(HERE, 1, "starttls", "ann", "${IMAP_PASSWORD}", "", None, 1.0)
    with pytest.raises((Misconfigured, Unavailable)):
        address.connect()
    assert closed == [True]
