"""The mails of mailboxes on a disk: Maildir, where each mail is a file, and mbox, where a folder is one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import ENOENT
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import TransientError, UsageError, plain_text
from ferryman.net.mailboxes import (
    HEADER_BYTES,
    MAILBOX_LINE,
    has_whole_headers,
    mail_id,
    names_a_mail,
    split_mailbox,
    unquote_lines,
)
from ferryman.net.relative_paths import absolute
from ferryman.net.urls import redact
from ferryman.sources.base import Bookmark, Detect, Fetched, Listed, Source, Unchanged, id_of, name_of, printable_path
from ferryman.sources.mail import (
    KnownMail,
    MailFolder,
    MailLocation,
    changed_bookmarks,
    check_patterns,
    ids_of,
    is_selected,
    list_mails,
    load_folders,
    mail_document,
    marked,
    raise_if_empty,
    unless_known,
)

INBOX: Final = "INBOX"

SETTLED_NS: Final = 2_000_000_000
"""Age of a file from which the last headers in it are taken to be whole."""

_TAIL_BYTES: Final = 4096
"""Bytes before the end of a mailbox file by which one that has only grown is known again."""

_MAILDIR: Final = {"cur", "new"}

_ROUNDS: Final = 6
"""Times that folders are looked at until no mail is missing that was only moved."""


class Mailbox(Source):
    """The mails of a Maildir, of a mailbox file (mbox), or of all that are below a folder: ``Mailbox("~/Maildir")``.

    A mail is one document, with its source as ``raw``, whichever folders it is in; their names are the field
    ``folders``, so a mail that is moved changes in this field. The id is the Message-ID and a hash of the headers.
    Other fields: ``message_id``, ``url`` (``mid:``), ``size``, ``mime``. ``steps.extract_text`` reads text, sender,
    date and attachments.

    Folders are named by their paths: ``Projects/2024`` for the Maildir ``.Projects.2024``, the Maildir
    ``Projects/2024``, the file ``Projects/2024.mbox``, and Thunderbird's ``Projects.sbd/2024``; the Maildir or the file
    at ``path`` itself is ``INBOX``. Nothing is changed, and nothing is locked: a mail that is being appended to an mbox
    is read as far as it has come, and again when it is whole; while a program rewrites an mbox, which takes it two
    seconds at most, nothing of it is deleted. Only the headers of new mails are read while listing; a
    mailbox file that has grown is read from its old end on.

    Args:
        path: see above.
        folders: globs of the names of folders; ``*`` stands for anything.
        exclude: folders that are left out, likewise.
        max_bytes: largest mail; a larger one is rejected.
        may_be_empty: whether no mails at all are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        folders: str | Sequence[str] = "*",
        *,
        exclude: str | Sequence[str] = (),
        max_bytes: int = limits.MAX_FILE_BYTES,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "fingerprint",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if max_bytes < 1:
            raise UsageError("Mailbox(): max_bytes must be above 0.")
        if "://" in os.fspath(path):
            raise UsageError(
                f"Mailbox({redact(os.fspath(path))!r}): give a path of this machine; Imap reads from a server."
            )
        self.path = absolute(path)
        self.folders = check_patterns("Mailbox", "folders", folders)
        self.exclude = check_patterns("Mailbox", "exclude", exclude)
        self.may_be_empty = may_be_empty
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"Mailbox({printable_path(self.path)!r})"

    def place(self) -> str | None:
        return self.path

    def local_paths(self) -> tuple[str, ...]:
        return (self.path,)

    def check(self) -> None:
        """Raises:
        UsageError: there is no mailbox.
        """
        if not os.path.exists(self.path):
            raise UsageError(f"{self!r}: there is no such file or folder.")
        path = Path(self.path)
        if path.is_file() and path.stat().st_size and not _is_mailbox_file(path, []):
            raise UsageError(f"{self!r}: it is not a mailbox: an mbox begins with a line 'From … 2024'.")

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        return [dict(bookmarks)]

    def listing(self, partition: dict[str, Any]) -> Iterator[Listed | Bookmark]:
        known = load_folders(partition)
        folders, failures = self._look(known)
        for _ in range(_ROUNDS):  # a mail may be moved from a folder not yet seen into one that was
            if not ids_of(known) - ids_of(folders):
                break
            before = ids_of(folders)
            folders, failures = self._look(folders)
            if ids_of(folders) == before:
                break
        else:
            failures.append(f"its mails were moved while they were listed, {_ROUNDS} times in a row")
        if failures:
            folders = {**known, **folders}
        elif not self.may_be_empty:
            raise_if_empty(repr(self), folders, known)
        yield from list_mails(folders, "path", self.max_bytes)
        yield from changed_bookmarks(partition, known, folders)
        if failures:
            raise TransientError(f"{self!r}: {'; '.join(failures)}")

    def read(self, listed: Listed) -> Document | Fetched | Unchanged:
        if (same := unless_known(listed)) is not None:
            return same
        location = MailLocation.decode(listed.location)
        path = Path(self.path, name_of(location.where))
        try:
            if path.is_dir():
                content = _read_file(path, name_of(location.name))
            else:
                with path.open("rb") as file:
                    file.seek(int(location.name))
                    content = unquote_lines(file.read(listed.size))
        except FileNotFoundError:
            content = None
        if content is None or mail_id(content) != listed.id:
            raise TransientError(f"{listed.id}: {printable_path(str(path))} has changed since it was listed")
        return mail_document(listed, location, content)

    def _look(self, known: Mapping[str, MailFolder]) -> tuple[dict[str, MailFolder], list[str]]:
        """Return the selected folders as they are now, and why some are as they were."""
        folders: dict[str, MailFolder] = {}
        failures: list[str] = []
        names = {folder.state["path"]: name for name, folder in known.items()}
        root = Path(self.path)
        for relative in _find_mailboxes(root, names.keys(), failures):
            place = id_of(relative)
            name = names.get(place) or _folder_name(relative)
            if name in folders:
                name = f"./{place}"
            if not is_selected(name, (), self.folders) or is_selected(name, (), self.exclude):
                continue
            path, before = root / relative, known.get(name)
            try:
                folders[name] = list_maildir(path, before) if path.is_dir() else list_mailbox_file(path, before)
            except FileNotFoundError:
                continue  # removed, or renamed, after it was found
            except OSError as e:
                failures.append(plain_text(e))
                if before is None:
                    continue
                folders[name] = before
            folders[name].state["path"] = place
        return folders, failures


# Maildir: a mail is a file, whose name before the colon is its own for ever; behind it are flags.


def list_maildir(path: Path, before: MailFolder | None) -> MailFolder:
    """Return the mails of a Maildir; of those that are not known, the headers are read.

    Raises:
        OSError: it cannot be read.
    """
    known = before.mails if before is not None else {}
    places = _maildir_files(path)
    mails: dict[str, KnownMail] = {}
    for name, place in places.items():
        is_deleted = "T" in place.partition(":2,")[2]
        mail = known.get(name)
        if mail is None:
            try:
                with open_mail(path, name_of(place)) as file:
                    mail = KnownMail(mail_id(file.read(HEADER_BYTES)), os.fstat(file.fileno()).st_size)
            except FileNotFoundError:
                continue
        mails[name] = marked(mail, is_deleted)
    return MailFolder({}, mails, places)


def _maildir_files(path: Path) -> dict[str, str]:
    """Return the names of a Maildir's mails, and where each one is: from ``new`` to ``cur``, as a mail goes."""
    found: dict[str, str] = {}
    for folder in ("new", "cur"):
        with os.scandir(path / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.startswith(".") and entry.is_file():
                    found[id_of(entry.name.partition(":")[0])] = id_of(f"{folder}/{entry.name}")
    return found


def open_mail(path: Path, place: str) -> BinaryIO:
    """Open a mail of a Maildir, also if it has got other flags meanwhile."""
    with suppress(FileNotFoundError):
        return (path / place).open("rb")
    own = place.rpartition("/")[2].partition(":")[0]
    now = _maildir_files(path).get(id_of(own))
    if now is None:
        raise FileNotFoundError(ENOENT, "no such mail", str(path / place))
    return (path / name_of(now)).open("rb")


def _read_file(path: Path, place: str) -> bytes:
    with open_mail(path, place) as file:
        return file.read()


# mbox: a folder is a file, to which mails are appended.


def list_mailbox_file(path: Path, before: MailFolder | None) -> MailFolder:
    """Return the mails of a mailbox file; one that has only grown is read from its last known mail on.

    Raises:
        OSError: it cannot be read, or is a mailbox no more.
    """
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        end, is_settled = stat.st_size, time.time_ns() - stat.st_mtime_ns > SETTLED_NS
        has_grown = before is not None and _begins_alike(file, before, end)
        if before is not None and has_grown and before.state["bytes"] == end and not before.state["is_cut"]:
            return before
        state = {"bytes": end, "tail": _tail(file, end), "is_cut": False}
        mails: dict[str, KnownMail] = {}
        start, is_inside = 0, False
        if before is not None and before.mails and has_grown:
            last = max(before.mails, key=int)
            mails = {name: mail for name, mail in before.mails.items() if name != last}
            start, is_inside = int(last), True
        if end and not is_inside and not MAILBOX_LINE.match(os.pread(file.fileno(), _TAIL_BYTES, 0)):
            raise OSError(f"{printable_path(str(path))} is not a mailbox any more: it does not begin with a mail")
        for span in split_mailbox(file, start, end, is_inside=is_inside):
            head = os.pread(file.fileno(), min(HEADER_BYTES, span.end - span.start), span.start)
            if span.end == end and not is_settled and not (has_whole_headers(head) and names_a_mail(head)):
                state["is_cut"] = True
            else:
                mails[str(span.start)] = KnownMail(mail_id(unquote_lines(head)), span.end - span.start)
        if before is not None and not has_grown and not is_settled and _ids(before.mails) - _ids(mails):
            raise OSError(f"{printable_path(str(path))} was rewritten just now, perhaps not to its end")
        return MailFolder(state, mails)


def _ids(mails: Mapping[str, KnownMail]) -> set[str]:
    return {mail.id for mail in mails.values()}


def _begins_alike(file: BinaryIO, before: MailFolder, end: int) -> bool:
    return bool(before.state["bytes"] <= end) and bool(_tail(file, before.state["bytes"]) == before.state["tail"])


def _tail(file: BinaryIO, end: int) -> str:
    start = max(0, end - _TAIL_BYTES)
    return blake2b(os.pread(file.fileno(), end - start, start), digest_size=16).hexdigest()


# Which mailboxes there are.


def _find_mailboxes(root: Path, known: Collection[str], failures: list[str]) -> Iterator[str]:
    """Yield the paths of Maildirs and mailbox files at or below a folder, relative to it."""
    if root.is_file():
        yield "."
        return
    for folder, subfolders, files in os.walk(root, onerror=lambda e: failures.append(plain_text(e))):
        relative = os.path.relpath(folder, root)
        subfolders.sort()
        if _MAILDIR.issubset(subfolders):
            subfolders[:] = [name for name in subfolders if name not in (*_MAILDIR, "tmp")]
            yield relative
            continue
        for name in sorted(files):
            path = os.path.normpath(os.path.join(relative, name))
            if id_of(path) in known or (not name.startswith(".") and _is_mailbox_file(root / path, failures)):
                yield path


def _is_mailbox_file(path: Path, failures: list[str]) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return MAILBOX_LINE.match(file.read(_TAIL_BYTES)) is not None
    except OSError as e:
        failures.append(plain_text(e))
        return False


_ENCODED: Final = re.compile("&([A-Za-z0-9+,]*)-")


def _folder_name(relative: str) -> str:
    """Return the name of a folder for its path: as Maildir++, mbox and Thunderbird write it."""
    if relative == ".":
        return INBOX
    parts = [
        _decode_name(part[1:]).replace(".", "/")
        if part.startswith(".")
        else part.removesuffix(".sbd").removesuffix(".mbox")
        for part in relative.split("/")
    ]
    return id_of("/".join(parts))


def _decode_name(name: str) -> str:
    """Return a folder's name that is in the UTF-7 of IMAP."""

    def decode(match: re.Match[str]) -> str:
        return f"+{match[1].replace(',', '/')}-".encode().decode("utf-7") if match[1] else "&"

    try:
        return _ENCODED.sub(decode, name)
    except UnicodeDecodeError:
        return name
