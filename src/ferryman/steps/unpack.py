"""The step that makes documents of an archive's members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, DeliveryError, Dropped, describe
from ferryman.steps.formats.content import Unreadable
from ferryman.steps.values import Plain

if TYPE_CHECKING:
    from ferryman.steps.formats.archive import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class unpack(Plain):
    """Make a child of each member of an archive: zip, tar, and tar compressed by gzip, bzip2, xz or zstd.

    A child's key is the member's path, its ``raw`` the member's bytes; of members with one path the last counts. The
    archive itself goes no further, and one without members is DROPPED. What is not an archive is passed on: a DOCX is
    none, nor is a single compressed file.

    A member that is encrypted, broken, a link or a device, or whose path is absolute or climbs out by ``..``, is
    refused by its name (ERROR_DOC); the others go on. An archive that goes over a limit is refused as a whole, and
    nothing of it goes on.

    ``Plan.step("unpack", unpack)`` is ``unpack()``.

    Args:
        max_bytes: what all members, those of archives inside too, may have unpacked (bytes).
        max_members: how many there may be.
        max_ratio: unpacked bytes a packed byte, from the first megabyte on.
        depth: how deep archives inside archives are unpacked: with 1, the default, they are children as they are; with
            2 their members are children of them.

    Raises:
        BadDocument: the archive is broken, or goes over a limit: a bomb, or too large.
        ValueError: when the step is made: a limit that is not above 0.
    """

    max_bytes: int = limits.UNPACK_BYTES
    max_members: int = limits.UNPACK_MEMBERS
    max_ratio: float = limits.UNPACK_RATIO
    depth: int = 1

    def __post_init__(self) -> None:
        if min(self.max_bytes, self.max_members, self.max_ratio, self.depth) <= 0:
            raise ValueError("give max_bytes, max_members, max_ratio and depth above 0.")

    def __call__(self, doc: Document) -> Document | list[Document]:
        from ferryman.steps.formats.archive import is_archive

        if doc.raw is None or not is_archive(doc.raw):
            return doc
        budget = _Budget(self, len(doc.raw))
        children = list(self._unpacked(doc, doc.raw, budget, self.depth))
        if not children:
            raise Dropped("an archive without members")
        return children

    def _unpacked(self, doc: Document, raw: bytes, budget: _Budget, depth: int) -> Iterator[Document]:
        """Children, and theirs, of one archive.

        Raises:
            BadDocument: it is broken, or one limit is passed.
        """
        from ferryman.steps.formats.archive import members

        try:
            found = {member.path: member for member in members(raw, budget.take)}
        except (DeliveryError, MemoryError):  # the step's time is up; the machine is too small
            raise
        except Unreadable as e:
            raise BadDocument(f"{doc.id}: {e}.") from None
        except Exception as e:
            why = " ".join(describe(e).split())[:_SHOWN]
            raise BadDocument(f"{doc.id}: the archive is broken: {why}. Pack it again.") from None
        for member in found.values():
            yield from self._made(doc, member, budget, depth)

    def _made(self, doc: Document, member: Member, budget: _Budget, depth: int) -> Iterator[Document]:
        from ferryman.steps.formats.archive import is_archive

        child = doc.child(member.path)
        if member.refused:
            child.refused = f"{doc.id}: member {member.path!r} {member.refused}."
        elif depth > 1 and is_archive(member.raw):
            try:
                yield from list(self._unpacked(child, member.raw, budget, depth - 1))
                return
            except BadDocument as e:
                if budget.is_spent:
                    raise
                child.refused = str(e)
        else:
            child.raw = member.raw
        yield child


_SHOWN: Final = 200
"""Characters of a library's own words in a message, which is a line."""


class _Budget:
    """What an archive may still unpack to, counted over all archives in it."""

    def __init__(self, allowed: unpack, packed_bytes: int) -> None:
        self._allowed = allowed
        self._packed = packed_bytes
        self._bytes = 0
        self._members = 0
        self.is_spent = False

    def take(self, members: int, size: int) -> None:
        """Count what is about to be unpacked.

        Raises:
            Unreadable: it goes over a limit.
        """
        allowed = self._allowed
        self._members += members
        self._bytes += size
        why = ""
        if self._members > allowed.max_members:
            why = f"it has more than max_members={allowed.max_members} members"
        elif self._bytes > allowed.max_bytes:
            why = f"it unpacks to more than max_bytes={allowed.max_bytes}"
        elif self._bytes > limits.UNPACK_FREE_BYTES and self._bytes > self._packed * allowed.max_ratio:
            why = (
                f"it unpacks to more than max_ratio={allowed.max_ratio:g} times its size, as a decompression bomb does"
            )
        if why:
            self.is_spent = True
            raise Unreadable(f"{why}. Raise the limit if you trust it, or unpack it yourself")
