"""Children of archives in memory: a document for each member, or the reason why it is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, DeliveryError, describe
from ferryman.net import archives
from ferryman.net.archives import ARCHIVE_ERRORS, Budget, BudgetExceeded, Flaw, Member
from ferryman.steps import formats

_FLAW_MESSAGES: Final = {
    Flaw.OUTSIDE: "has a path that leads out of the archive. Pack it again with paths below one folder",
    Flaw.ENCRYPTED: "is encrypted. Pack it without a password",
    Flaw.SPARSE: "is a file with holes, which may be of any size. Pack it without --sparse",
}

_LIMIT_MESSAGES: Final = (
    "has more than max_members={} members",
    "unpacks to more than max_bytes={}",
    "unpacks to more than max_ratio={:g} times its size, as a decompression bomb does",
)

_SHOWN_CHARACTERS: Final = 200
"""Characters of a library's error in a message, which is one line."""


def is_archive(raw: bytes) -> bool:
    """Return whether content is an archive to unpack. An office document is not, although it is a zip inside."""
    return formats.kind_of(raw) == formats.ZIP if raw.startswith(b"PK") else archives.is_archive(io.BytesIO(raw))


def children(
    doc: Document, raw: bytes, max_members: int, max_bytes: int, max_ratio: float, depth: int, names: str = ""
) -> list[Document]:
    """Return the children of an archive, with the members of nested archives up to ``depth``.

    Raises:
        BadDocument: it is broken, or goes over a limit.
    """
    budget = Budget(len(raw), max_members, max_bytes, max_ratio, limits.UNPACK_FREE_BYTES, _LIMIT_MESSAGES)
    return list(_unpack(doc, raw, budget, depth, names))


def _unpack(doc: Document, raw: bytes, budget: Budget, depth: int, names: str) -> Iterator[Document]:
    try:
        contents = {each.path: _read_member(each, raw) for each in archives.members(io.BytesIO(raw), budget, names)}
    except (DeliveryError, MemoryError):  # the step's time is up; the machine is too small
        raise
    except BudgetExceeded as e:
        raise BadDocument(f"{doc.id}: it {e}. Raise the limit if you trust it, or unpack it yourself.") from None
    except Exception as e:
        why = " ".join(describe(e).split())[:_SHOWN_CHARACTERS]
        raise BadDocument(f"{doc.id}: the archive is broken: {why}. Pack it again.") from None
    for path, content in contents.items():
        yield from _make_children(doc, path, content, budget, depth, names)


def _make_children(
    doc: Document, path: str, content: bytes | str, budget: Budget, depth: int, names: str
) -> Iterator[Document]:
    child = doc.child(path)
    if isinstance(content, str):
        child.refused = f"{doc.id}: member {path!r} {content}."
    elif depth > 1 and is_archive(content):
        try:
            yield from list(_unpack(child, content, budget, depth - 1, names))
            return
        except BadDocument as e:
            if budget.is_spent:
                raise
            child.refused = str(e)
    else:
        child.raw = content
    yield child


def _read_member(member: Member, archive: bytes) -> bytes | str:
    """Return a member's content, or why it is refused and what to do. A broken member of a tar raises, because the
    members after it cannot be read."""
    if member.flaw:
        return _FLAW_MESSAGES.get(member.flaw, f"is {member.flaw}, not a file. Pack the file itself")
    try:
        content: bytes = member.open().read()
        return content
    except NotImplementedError as e:
        return f"is compressed in a way that is not known here ({e}). Pack it again as deflate"
    except ARCHIVE_ERRORS as e:
        if not archive.startswith(b"PK"):
            raise
        return f"is broken: {e}. Pack it again"
