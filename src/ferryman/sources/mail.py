"""Memory and documents that the sources of mail share: a mail is one document, whichever folders it is in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

import msgspec

from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.net.mailboxes import headers_of, message_id_of
from ferryman.sources.base import Bookmark, Fetched, Listed, Unchanged

_SHARE_MAILS: Final = 1500
"""Mails of a folder in one bookmark, about: ids may have 255 characters."""

MIME: Final = "message/rfc822"


class KnownMail(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Mail as it is remembered, so that its headers need not be read again."""

    id: str
    size: int
    is_deleted: bool = False
    """Whether it is marked as deleted, and still there."""


class MailFolder(msgspec.Struct):
    """Folder as it was listed.

    Attributes:
        state: what the folder said of itself; if it says the same again, its mails are the same.
        mails: name in the folder -> mail: a UID, the name of a file, the place in a file.
        places: name -> where it is now, if that is not its name; this is not remembered.
    """

    state: dict[str, Any] = {}
    mails: dict[str, KnownMail] = {}
    places: dict[str, str] = {}


class MailLocation(NamedTuple):
    """Place of a mail, and all folders that it is in; ``Listed.location`` is its JSON."""

    folder: str
    name: str
    where: Any
    """Part of the folder's state by which the mail is found."""
    folders: list[str]

    @classmethod
    def decode(cls, location: str) -> MailLocation:
        return cls(*msgspec.json.decode(location))


# Folders in bookmarks: one with the state and the number of shares, and one for each share of the mails.


def load_folders(bookmarks: Mapping[str, Any]) -> dict[str, MailFolder]:
    """Return the folders that are in a source's bookmarks."""
    folders: dict[str, MailFolder] = {}
    for key, value in bookmarks.items():
        if not key.startswith("/"):
            continue
        mails: dict[str, KnownMail] = {}
        for share in range(value["shares"]):
            mails |= msgspec.convert(bookmarks[_share_key(share, key[1:])], dict[str, KnownMail])
        in_order = sorted(mails.items(), key=lambda item: (len(item[0]), item[0]))
        folders[key[1:]] = MailFolder(value["state"], dict(in_order))
    return folders


def changed_bookmarks(
    bookmarks: Mapping[str, Any], known: Mapping[str, MailFolder], folders: Mapping[str, MailFolder]
) -> Iterator[Bookmark]:
    """Yield the bookmarks of these folders that differ from what they were, and forget the others.

    Args:
        known: the folders that the bookmarks have.
    """
    current: dict[str, Any] = {}
    same: set[str] = set()
    for name, folder in folders.items():
        before = known.get(name)
        if before is not None and before.state == folder.state and before.mails == folder.mails:
            same |= {f"/{name}", *(_share_key(number, name) for number in range(bookmarks[f"/{name}"]["shares"]))}
            continue
        count = 1 << max(0, len(folder.mails) // _SHARE_MAILS).bit_length()
        shares: list[dict[str, Any]] = [{} for _ in range(count)]
        for mail_name, mail in folder.mails.items():
            shares[crc32(mail_name.encode("utf-8", "surrogateescape")) % count][mail_name] = msgspec.to_builtins(mail)
        current[f"/{name}"] = {"state": folder.state, "shares": count}
        current |= {_share_key(number, name): share for number, share in enumerate(shares)}
    for key in (bookmarks.keys() | current.keys()) - same:
        if current.get(key) != bookmarks.get(key):
            yield Bookmark(key, current.get(key))


def _share_key(number: int, folder: str) -> str:
    return f"{number}/{folder}"


# Documents.


def list_mails(folders: Mapping[str, MailFolder], where: str, max_bytes: int) -> Iterator[Listed]:
    """Yield each mail once, with all folders that it is in. Of several copies in one folder, the last one counts.

    Args:
        where: name of what is needed of a folder's state to read a mail.
    """
    found: dict[str, tuple[str, str, KnownMail, list[str]]] = {}
    for name in sorted(folders):
        for mail_name, mail in folders[name].mails.items():
            if mail.is_deleted:
                continue
            before = found.get(mail.id)
            if before is None or before[0] == name:
                found[mail.id] = (name, mail_name, mail, [name])
            elif before[3][-1] != name:
                before[3].append(name)
    for id, (name, mail_name, mail, names) in found.items():
        folder = folders[name]
        location = MailLocation(name, folder.places.get(mail_name, mail_name), folder.state[where], names)
        refused = ""
        if mail.size > max_bytes:
            refused = f"{id}: it has {mail.size} bytes, more than max_bytes={max_bytes}. Raise the limit."
        yield Listed(id, mail.size, _fingerprint(mail.size, names), msgspec.json.encode(location).decode(), refused)


def _fingerprint(size: int, folders: Iterable[str]) -> str:
    """Return the fingerprint of a mail: a mail does not change, but where it lies does."""
    return f"{size}-{_hash_of(tuple(folders))}"


@lru_cache(maxsize=1024)
def _hash_of(folders: tuple[str, ...]) -> str:
    return blake2b("\n".join(folders).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def unless_known(listed: Listed) -> Unchanged | None:
    """Return ``Unchanged`` if the document was processed as it was listed."""
    return Unchanged() if listed.known and listed.known == listed.fingerprint else None


def mail_document(listed: Listed, location: MailLocation, content: bytes) -> Fetched:
    fields: dict[str, Any] = {"folders": location.folders, "size": len(content), "mime": MIME}
    if message_id := message_id_of(headers_of(content)):
        fields |= {"message_id": message_id, "url": f"mid:{quote(message_id)}"}
    return Fetched(Document.of(listed.id, fields, content), listed.fingerprint)


def raise_if_empty(what: str, folders: Mapping[str, MailFolder], known: Mapping[str, MailFolder]) -> None:
    """
    Raises:
        TransientError: there is no mail, where some were known.
    """
    before = sum(len(folder.mails) for folder in known.values())
    if before and not any(folder.mails for folder in folders.values()):
        raise TransientError(
            f"{what}: no mails, where {before} were known: a mailbox that shows nothing may have been replaced or be "
            "closed to this reader. If that is right, say may_be_empty=True"
        )


def marked(mail: KnownMail, is_deleted: bool) -> KnownMail:
    """Return a mail that is marked as deleted, or is not."""
    return mail if mail.is_deleted == is_deleted else msgspec.structs.replace(mail, is_deleted=is_deleted)


def ids_of(folders: Mapping[str, MailFolder]) -> set[str]:
    """Return the ids of all mails that are not marked as deleted."""
    return {mail.id for folder in folders.values() for mail in folder.mails.values() if not mail.is_deleted}


def check_patterns(source: str, option: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Return globs that are given as one or as several.

    Raises:
        UsageError: they are something else.
    """
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns) or (option == "folders" and not patterns):
        raise UsageError(f"{source}({option}={given!r}): give the name of a folder, or several.")
    return patterns


def is_selected(name: str, flags: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return whether a folder is one of these: globs of names, or special uses such as ``\\Sent``."""
    uses = {flag.lower() for flag in flags}
    return any(pattern.lower() in uses if pattern.startswith("\\") else _matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or (name.upper() == "INBOX" and pattern.upper() == "INBOX")
