"""``Mailbox``: Maildirs and mailbox files, whose mails are documents wherever they lie."""

from __future__ import annotations

import os
import time
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from tests.support.mails import LINE, Scanned, mail, mbox

from ferryman import limits, steps
from ferryman.errors import TransientError, UsageError
from ferryman.net.mailboxes import split_mailbox
from ferryman.sources import Mailbox, Source, Unchanged
from ferryman.sources import mail as shared
from ferryman.sources import mailbox as module
from ferryman.testing.sources import SourceSuite


def maildir(path: Path, *names: str) -> Path:
    """Make a Maildir, and further ones in it."""
    for each in (path, *(path / name for name in names)):
        for part in ("cur", "new", "tmp"):
            (each / part).mkdir(parents=True)
    return path


def settle(path: Path) -> None:
    """Let a file be so old that its last mail is taken to be whole."""
    then = time.time_ns() - 10 * module.SETTLED_NS
    os.utime(path, ns=(then, then))


@pytest.fixture
def box(tmp_path: Path) -> Path:
    path = maildir(tmp_path / "Maildir", ".Sent", ".Projects.2024")
    (path / "new" / "1.a.host").write_bytes(mail(1))
    (path / "cur" / "2.b.host:2,S").write_bytes(mail(2))
    (path / ".Sent" / "cur" / "3.c.host:2,").write_bytes(mail(3))
    return path


def test_a_mail_is_a_document(box: Path) -> None:
    first, second, third = Scanned(Mailbox(box)).documents()
    assert first.id.startswith("1@example.org/")
    assert first.raw == mail(1)
    assert first.fields == {
        "folders": ["INBOX"],
        "size": len(mail(1)),
        "mime": "message/rfc822",
        "message_id": "1@example.org",
        "url": "mid:1%40example.org",
    }
    assert (second["folders"], third["folders"]) == (["INBOX"], ["Sent"])


def test_a_mail_is_one_document_wherever_it_lies(box: Path) -> None:
    (box / ".Projects.2024" / "cur" / "4.d.host:2,").write_bytes(mail(1))
    (box / "archive.d").mkdir()
    found = Scanned(Mailbox(box))
    assert found.folders() == {"1": ["INBOX", "Projects/2024"], "2": ["INBOX"], "3": ["Sent"]}
    assert len(found.listed) == 3


def test_a_moved_mail_moves(box: Path) -> None:
    before = Scanned(Mailbox(box))
    os.rename(box / "cur" / "2.b.host:2,S", box / ".Sent" / "cur" / "9.x.host:2,S")
    after = Scanned(Mailbox(box), before)
    assert after.folders() == {"1": ["INBOX"], "2": ["Sent"], "3": ["Sent"]}
    assert set(after.ids()) == set(before.ids())
    changed = {id for id, fingerprint in after.fingerprints().items() if before.fingerprints()[id] != fingerprint}
    assert changed == {id for id in after.ids() if id.startswith("2@")}


@pytest.mark.parametrize("now", ["cur/1.a.host:2,S", "cur/1.a.host:2,FRS"])
def test_flags_change_nothing(box: Path, now: str) -> None:
    source = Mailbox(box)
    before = Scanned(source)
    os.rename(box / "new" / "1.a.host", box / now)
    assert before.documents()[0].raw == mail(1)  # it is found under its new name
    after = Scanned(source, before)
    assert (after.fingerprints(), after.changed) == (before.fingerprints(), [])


def test_a_mail_that_is_marked_as_deleted_counts_as_deleted(box: Path) -> None:
    before = Scanned(Mailbox(box))
    os.rename(box / "cur" / "2.b.host:2,S", box / "cur" / "2.b.host:2,ST")
    after = Scanned(Mailbox(box), before)
    assert [id[0] for id in after.ids()] == ["1", "3"]
    os.rename(box / "cur" / "2.b.host:2,ST", box / "cur" / "2.b.host:2,S")
    assert sorted(Scanned(Mailbox(box), after).ids()) == sorted(before.ids())


def test_only_new_mails_are_opened(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Scanned(Mailbox(box))
    opened: list[str] = []
    really = module.open_mail

    def noting(path: Path, place: str) -> Any:
        opened.append(place)
        return really(path, place)

    monkeypatch.setattr(module, "open_mail", noting)
    (box / "new" / "5.e.host").write_bytes(mail(5))
    after = Scanned(Mailbox(box), before)
    assert (opened, len(after.listed)) == (["new/5.e.host"], 4)


def test_what_is_known_is_not_read_again(box: Path) -> None:
    source = Mailbox(box)
    [first, *_] = Scanned(source).listed
    assert source.read(first._replace(known=first.fingerprint)) == Unchanged()
    assert source.read(first._replace(known="other")) != Unchanged()


def test_folders_are_chosen(box: Path) -> None:
    assert set(Scanned(Mailbox(box, "inbox")).folders()) == {"1", "2"}
    assert set(Scanned(Mailbox(box, ["Sent", "Projects/*"])).folders()) == {"3"}
    assert set(Scanned(Mailbox(box, exclude="S*")).folders()) == {"1", "2"}
    for wrong in ("", [], [""], [3]):
        with pytest.raises(UsageError, match="folder"):
            Mailbox(box, wrong)  # type: ignore[arg-type]


def test_names_of_folders(tmp_path: Path) -> None:
    for name in (".&AOQ-rger", "plain", ".A.&-.C", "a/b"):
        (maildir(tmp_path / name) / "cur" / "1:2,").write_bytes(mail(name.encode().hex()))
    (tmp_path / "mail.sbd").mkdir()
    for name in ("mail.sbd/old", "mail", "2024.mbox", "sp ace#.mbox"):
        (tmp_path / name).write_bytes(mbox(mail(name.encode().hex())))
    found = Scanned(Mailbox(tmp_path)).folders()
    assert {bytes.fromhex(number).decode(): folders for number, folders in found.items()} == {
        ".&AOQ-rger": ["ärger"],
        "plain": ["plain"],
        ".A.&-.C": ["A/&/C"],
        "a/b": ["a/b"],
        "mail.sbd/old": ["mail/old"],
        "mail": ["mail"],
        "2024.mbox": ["2024"],
        "sp ace#.mbox": ["sp ace%23"],
    }


def test_two_folders_with_one_name_are_two(tmp_path: Path) -> None:
    for number, name in enumerate((".a.b", "a/b")):
        (maildir(tmp_path / name) / "cur" / "1:2,").write_bytes(mail(number))
    before = Scanned(Mailbox(tmp_path))
    assert before.folders() == {"0": ["a/b"], "1": ["./a/b"]}
    after = Scanned(Mailbox(tmp_path), before)
    assert (after.fingerprints(), after.changed) == (before.fingerprints(), [])


# --- mailbox files ----------------------------------------------------------------------------------------------------


def test_a_mailbox_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mail.mbox"
    path.write_bytes(mbox(mail(1, "From here\nFrom ann on\n"), mail(2)))
    first, second = Scanned(Mailbox(path)).documents()
    assert (first.raw, first["folders"]) == (mail(1, "From here\nFrom ann on\n") + b"\n", ["INBOX"])
    assert second.raw == mail(2) + b"\n"


def test_a_mail_has_the_same_id_in_every_kind_of_mailbox(tmp_path: Path, box: Path) -> None:
    (tmp_path / "mail.mbox").write_bytes(mbox(mail(1), mail(2)).replace(b"\n", b"\r\n"))
    assert Scanned(Mailbox(tmp_path / "mail.mbox")).ids() == Scanned(Mailbox(box)).ids()[:2]
    found = Scanned(Mailbox(tmp_path)).folders()
    assert found == {"1": ["Maildir", "mail"], "2": ["Maildir", "mail"], "3": ["Maildir/Sent"]}


def test_a_file_that_has_grown_is_read_from_its_old_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mail.mbox"
    path.write_bytes(mbox(*map(mail, range(100))))
    before = Scanned(Mailbox(path))
    with path.open("ab") as file:
        file.write(mbox(mail(100)))
    starts: list[int] = []

    def noting(file: Any, start: int, *arguments: Any, **options: Any) -> Any:
        starts.append(start)
        return split_mailbox(file, start, *arguments, **options)

    monkeypatch.setattr(module, "split_mailbox", noting)
    after = Scanned(Mailbox(path), before)
    assert (after.ids()[:100], len(after.ids())) == (before.ids(), 101)
    assert starts == [path.read_bytes().index(b"Message-ID: <99@")]
    starts.clear()
    again = Scanned(Mailbox(path), after)
    assert (again.fingerprints(), again.changed, starts) == (after.fingerprints(), [], [])


def test_a_file_that_was_compacted_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mail.mbox"
    path.write_bytes(mbox(*map(mail, range(50))))
    before = Scanned(Mailbox(path))
    path.write_bytes(mbox(*map(mail, range(5, 70))))
    settle(path)
    after = Scanned(Mailbox(path), before)
    assert [int(id.partition("@")[0]) for id in after.ids()] == list(range(5, 70))
    assert [doc.raw for doc in after.documents()] == [mail(n) + b"\n" for n in range(5, 70)]
    with pytest.raises(TransientError, match="has changed since it was listed"):
        Mailbox(path).read(before.listed[20])


def test_a_file_that_is_being_appended_to(tmp_path: Path) -> None:
    """At whatever byte the last mail ends now: the others are whole, and it becomes whole."""
    path = tmp_path / "mail.mbox"
    whole = mbox(mail(1), mail(2, "Text\n" * 20))
    start = whole.rindex(LINE.encode())
    for end in range(start, len(whole), 3):
        path.write_bytes(whole[:end])
        before = Scanned(Mailbox(path))
        assert (before.error, before.ids()[0][0]) == (None, "1")
        assert before.documents()
        path.write_bytes(whole)
        after = Scanned(Mailbox(path), before)
        assert [doc.raw for doc in after.documents()] == [mail(1) + b"\n", mail(2, "Text\n" * 20) + b"\n"], end
        if len(before.ids()) == 2:
            assert before.ids() == after.ids()
            assert before.fingerprints()[before.ids()[1]] != after.fingerprints()[before.ids()[1]]


def test_a_mail_without_an_end_of_its_headers_is_read_when_the_file_is_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "mail.mbox"
    path.write_bytes(f"{LINE}Subject: no text".encode())
    before = Scanned(Mailbox(path))
    assert before.ids() == []
    settle(path)
    assert len(Scanned(Mailbox(path), before).ids()) == 1


# --- what is not complete deletes nothing -----------------------------------------------------------------------------


def test_no_mails_where_some_were_known(box: Path) -> None:
    before = Scanned(Mailbox(box))
    for path in box.rglob("*.host*"):
        path.unlink()
    after = Scanned(Mailbox(box), before)
    assert isinstance(after.error, TransientError)
    assert "no mails, where 3 were known" in str(after.error)
    assert (Scanned(Mailbox(box, may_be_empty=True), before).error, Scanned(Mailbox(box)).error) == (None, None)


def test_a_folder_that_cannot_be_read_is_as_it_was(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Scanned(Mailbox(box))
    really = module.list_maildir

    def refuse(path: Path, known: Any) -> Any:
        if path.name == ".Sent":
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, known)

    monkeypatch.setattr(module, "list_maildir", refuse)
    after = Scanned(Mailbox(box), before)
    assert (after.fingerprints(), after.changed) == (before.fingerprints(), [])
    assert isinstance(after.error, TransientError)
    assert ".Sent" in str(after.error)


@pytest.mark.parametrize("end", [0, 100, -100, -3])
def test_a_file_that_is_being_written_anew_deletes_nothing(tmp_path: Path, end: int) -> None:
    """https://github.com/mailpile/Mailpile/issues/1955: mails were removed from a file, and none was found any more.
    A program that removes a mail writes the whole file again, and who reads meanwhile sees a part of it."""
    path = tmp_path / "a.mbox"
    path.write_bytes(mbox(*map(mail, range(20))))
    (tmp_path / "b.mbox").write_bytes(mbox(mail("other")))
    before = Scanned(Mailbox(tmp_path))
    whole = mbox(*map(mail, range(1, 20)))
    path.write_bytes(whole[:end] if end else b"")
    after = Scanned(Mailbox(tmp_path), before)
    assert (after.ids(), after.changed) == (before.ids(), [])
    assert "rewritten just now" in str(after.error)
    path.write_bytes(whole)
    settle(path)
    assert len(Scanned(Mailbox(tmp_path), after).ids()) == 20


def test_mails_without_an_id_of_one_second_are_two(tmp_path: Path) -> None:
    """https://github.com/jbostoen/itop-jb-mail-to-ticket-automation-v2/issues/253: they have the same sender, subject
    and date, and the second one was taken for the first."""
    box = maildir(tmp_path / "Maildir")
    texts = [b"Subject: disk full\nDate: Mon, 06 May 2024 10:00:00 +0200\n\nDisk %d is full\n" % n for n in range(3)]
    for number, text in enumerate(texts):
        (box / "cur" / f"{number}.host:2,").write_bytes(text if number else text.replace(b"\n", b"\r\n"))
    (box / "cur" / "9.host:2,").write_bytes(texts[0])
    ids = Scanned(Mailbox(box)).ids()
    assert len(ids) == 3
    file = tmp_path / "a.mbox"
    file.write_bytes(mbox(*texts))
    assert sorted(Scanned(Mailbox(file)).ids()) != []
    settle(file)
    assert sorted(Scanned(Mailbox(file)).ids()) == sorted(ids)


def test_a_file_that_is_no_mailbox_any_more(tmp_path: Path) -> None:
    path = tmp_path / "a.mbox"
    path.write_bytes(mbox(mail(1)))
    (tmp_path / "b.mbox").write_bytes(mbox(mail(2)))
    before = Scanned(Mailbox(tmp_path))
    path.write_bytes(b"\0" * 100)
    after = Scanned(Mailbox(tmp_path), before)
    assert after.ids() == before.ids()
    assert "is not a mailbox any more" in str(after.error)


def test_a_mail_that_moves_while_folders_are_listed(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder not yet seen into one that was."""
    before = Scanned(Mailbox(box))
    really = module.list_maildir

    def move(path: Path, known: Any) -> Any:
        found = really(path, known)
        if path == box and (box / ".Sent" / "cur" / "3.c.host:2,").exists():
            os.rename(box / ".Sent" / "cur" / "3.c.host:2,", box / "cur" / "8.y.host:2,")
        return found

    monkeypatch.setattr(module, "list_maildir", move)
    after = Scanned(Mailbox(box), before)
    assert (after.error, sorted(after.ids())) == (None, sorted(before.ids()))
    assert after.folders()["3"] == ["INBOX"]


def test_mails_that_never_rest_delete_nothing(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Scanned(Mailbox(box))
    turns = iter(range(1000))

    def shift(path: Path, known: Any) -> Any:
        turn = next(turns) // 3
        mails = {f"{n}": shared.KnownMail(f"m{n}", 1) for n in range(turn, turn + 3)}
        return shared.MailFolder({}, mails)

    monkeypatch.setattr(module, "list_maildir", shift)
    after = Scanned(Mailbox(box), before)
    assert "6 times in a row" in str(after.error)


# --- limits, and what is wrong ----------------------------------------------------------------------------------------


def test_a_large_mail_is_refused_by_its_id(box: Path) -> None:
    listed = Scanned(Mailbox(box, max_bytes=len(mail(1)) - 1)).listed
    assert all("more than max_bytes" in entry.refused for entry in listed)
    assert {entry.id for entry in listed} == set(Scanned(Mailbox(box)).ids())


def test_many_mails_are_many_small_bookmarks(tmp_path: Path) -> None:
    long = "x" * 60
    path = tmp_path / "mail.mbox"
    path.write_bytes(mbox(*(mail(f"{n}.{long}") for n in range(5000))))
    before = Scanned(Mailbox(path))
    assert len(before.marks) > 3
    assert max(len(repr(value)) for value in before.marks.values()) < limits.BOOKMARK_BYTES / 2
    with path.open("ab") as file:
        file.write(mbox(mail("new")))
    after = Scanned(Mailbox(path), before)
    assert len(after.listed) == 5001
    assert len(after.changed) <= 3  # the folder's, the share's of the new mail, and of the one before
    path.unlink()
    (tmp_path / "other").write_bytes(mbox(mail(1)))
    other = Scanned(Mailbox(tmp_path), Scanned(Mailbox(tmp_path / "other")))
    assert len(other.marks) == 2


def test_hostile_mails(tmp_path: Path) -> None:
    path = maildir(tmp_path / "m")
    odd = {
        "empty": b"",
        "no headers": b"\n\njust text",
        "bytes": bytes(range(256)) * 10,
        "long header": b"Subject: " + b"x" * 1_000_000 + b"\n\ntext",
        "many headers": b"X: y\n" * 100_000 + b"\ntext",
        "id": b"Message-ID: <a#b%23/../\xf0\x9f\x98\x80@c>\n\nt",
        "long id": b"Message-ID: <" + b"i" * 10_000 + b"@c>\n\nt",
    }
    for name, content in odd.items():
        (path / "cur" / name).write_bytes(content)
    (path / "cur" / os.fsdecode(b"\xff#\n:2,S")).write_bytes(mail("undecodable"))
    found = Scanned(Mailbox(path))
    assert (found.error, len(found.documents())) == (None, len(odd) + 1)
    assert {doc.raw for doc in found.documents()} == {*odd.values(), mail("undecodable")}
    assert all(len(id) < 250 for id in found.ids())
    assert Scanned(Mailbox(path), found).fingerprints() == found.fingerprints()


def test_nested_forwards(tmp_path: Path) -> None:
    """A mail in a mail is part of the outer one, whose id it does not change; ``extract_text`` reads what is in it."""
    inner = message_from_bytes(mail(0, "The innermost.\n\nFrom ann Mon May  6 10:00:00 2024\nX: y\n"), policy=default)
    for number in (1, 2):
        outer = EmailMessage()
        outer["Message-ID"], outer["Subject"] = f"<{number}@example.org>", "Fwd"
        outer.set_content(f"Forward {number}")
        outer.add_attachment(inner)
        inner = outer
    path = tmp_path / "m.mbox"
    path.write_bytes(mbox(inner.as_bytes(), mail(3)))
    first, second = Scanned(Mailbox(path)).documents()
    assert (first["message_id"], second["message_id"]) == ("2@example.org", "3@example.org")
    assert first.raw == inner.as_bytes() + b"\n"
    out = steps.extract_text()(first)
    texts = [doc.text() for doc in out] if isinstance(out, list) else []
    assert [text.split("\n")[0] for text in texts] == ["Forward 2", "Forward 1", "The innermost."]


@pytest.mark.parametrize("content", [None, b"no mailbox\n"])
def test_what_is_no_mailbox_is_said(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"no such file|not a mailbox"):
        Mailbox(path).check()


class TestMaildir(SourceSuite):
    def source(self, folder: Path) -> Source:
        path = folder / "Maildir"
        if not path.exists():
            maildir(path)
            for number in range(3):
                (path / "cur" / f"{number}.host:2,").write_bytes(mail(number))
        return Mailbox(path)

    def absent(self, folder: Path) -> Source:
        return Mailbox(folder / "absent")

    def remove(self, source: Source, id: str) -> None:
        assert isinstance(source, Mailbox)
        Path(source.path, "cur", f"{id[0]}.host:2,").unlink()


class TestMailboxFile(SourceSuite):
    def source(self, folder: Path) -> Source:
        path = folder / "mail.mbox"
        if not path.exists():
            path.write_bytes(mbox(*map(mail, range(3))))
        return Mailbox(path)

    def absent(self, folder: Path) -> Source:
        return Mailbox(folder / "absent")

    def remove(self, source: Source, id: str) -> None:
        assert isinstance(source, Mailbox)
        Path(source.path).write_bytes(mbox(*(mail(n) for n in range(3) if str(n) != id[0])))
