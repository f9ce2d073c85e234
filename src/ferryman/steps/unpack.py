"""The step that makes documents of an archive's members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Dropped
from ferryman.steps.fields import StepWithDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class unpack(StepWithDefaults):
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
        names: encoding of the members' names where the archive does not say that they are UTF-8: ``names="cp866"`` for
            zip archives of Russian Windows, ``"cp932"`` of Japanese. By default they are UTF-8 if they are valid as
            such, else cp437 in a zip, as its standard says, and cp1252 in a tar.

    Raises:
        BadDocument: the archive is broken, or goes over a limit: a bomb, or too large.
        ValueError: when the step is made: a limit that is not above 0, or an unknown encoding.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    max_bytes: int = limits.UNPACK_BYTES
    max_members: int = limits.UNPACK_MEMBERS
    max_ratio: float = limits.UNPACK_RATIO
    depth: int = 1
    names: str = ""

    def __post_init__(self) -> None:
        if min(self.max_bytes, self.max_members, self.max_ratio, self.depth) <= 0:
            raise ValueError("give max_bytes, max_members, max_ratio and depth above 0.")
        try:
            b"x".decode(self.names or "utf-8")
        except LookupError:
            raise ValueError(f"names={self.names!r}: give an encoding that Python knows, such as 'cp866'.") from None

    def __call__(self, doc: Document) -> Document | list[Document]:
        from ferryman.steps.formats.archive import children, is_archive

        if doc.raw is None or not is_archive(doc.raw):
            return doc
        members = children(doc, doc.raw, self.max_members, self.max_bytes, self.max_ratio, self.depth, self.names)
        if not members:
            raise Dropped("an archive without members")
        return members
