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

    Raises:
        BadDocument: the archive is broken, or goes over a limit: a bomb, or too large.
        ValueError: when the step is made: a limit that is not above 0.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    max_bytes: int = limits.UNPACK_BYTES
    max_members: int = limits.UNPACK_MEMBERS
    max_ratio: float = limits.UNPACK_RATIO
    depth: int = 1

    def __post_init__(self) -> None:
        if min(self.max_bytes, self.max_members, self.max_ratio, self.depth) <= 0:
            raise ValueError("give max_bytes, max_members, max_ratio and depth above 0.")

    def __call__(self, doc: Document) -> Document | list[Document]:
        from ferryman.steps.formats.archive import children, is_archive

        if doc.raw is None or not is_archive(doc.raw):
            return doc
        members = children(doc, doc.raw, self.max_members, self.max_bytes, self.max_ratio, self.depth)
        if not members:
            raise Dropped("an archive without members")
        return members
