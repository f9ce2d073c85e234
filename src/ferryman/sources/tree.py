"""Files below a root, wherever that is: in a folder of this machine, or in what fsspec reaches."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from ferryman import limits
from ferryman.errors import TransientError
from ferryman.outages import is_connection
from ferryman.sources.base import THERE, Doubt, Listed


class FolderPiece(NamedTuple):
    """A folder of a piece."""

    id: str
    below: str | None
    """None: the folders below belong to it too. Else they are pieces of their own: ``names_hash`` of their names."""


Piece = list[FolderPiece]
"""A piece of a listing."""

_NAMED_FOLDERS: Final = 3  # folders that an error names; a broken mount may have thousands


class FileContent(NamedTuple):
    """A file as it was read."""

    data: bytes
    modified_s: float | None
    """When it was modified (seconds since 1970); None: not known."""


class OneFile(Protocol):
    """A root that is itself a file. The plan names it, so a link may lead anywhere."""

    def shown(self, id: str) -> str:
        """See ``FileTree``."""

    def listed(self) -> Listed:
        """Its entry: the id is its name.

        Raises:
            TransientError: it was deleted, or cannot be looked at.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """See ``FileTree``."""


class FileTree(Protocol):
    """Files below a root, by ids relative to it. Travels to the workers; opens nothing before it is asked."""

    @property
    def where(self) -> str:
        """The root: a path or a URL, without secrets."""

    def not_installed(self) -> str:
        """See ``Source``."""

    def shown(self, id: str) -> str:
        """A file's whole path or URL for a message: on one line, without secrets."""

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """

    def is_file(self) -> bool:
        """Is the root itself a file?"""

    def alone(self) -> OneFile:
        """The root, if it is a file."""

    def pieces(self) -> list[Piece]:
        """Up to ``limits.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until there are enough."""

    def listing(self, piece: Piece) -> Iterator[Listed | Doubt]:
        """Every file of these folders, in an order that stays; and folders that are not as they may be elsewhere.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """

    def still_there(self, ids: Iterable[str]) -> str:
        """See ``Source``."""

    def contradiction(self, doubt: Doubt) -> str:
        """See ``Source``."""

    def uri(self, id: str) -> str:
        """Where a file can be opened: absolute, without secrets."""

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        """A file's bytes as they are now.

        Raises:
            BadDocument: this user may not read it; it is no longer a file, or larger than the limit.
            TransientError: it was deleted, or reading failed.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """The same bytes, to be read piece by piece, however many there are; the caller closes it.

        Raises:
            FileNotFoundError: it was deleted.
            BadDocument, TransientError: as ``read``; the stream too.
        """


def pieces(folders: Callable[[str], list[str]], id_of: Callable[[str], str]) -> list[Piece]:
    """See ``FileTree.pieces``; ``folders`` says the names of the folders in a folder, and may raise."""
    walked: list[tuple[str, list[str]]] = []  # their folders are pieces of their own, so they bring only their files
    whole: list[str] = []
    waiting = deque([""])
    while waiting and len(walked) + len(whole) + len(waiting) < limits.SMALL_LISTING_PARTS:
        folder = waiting.popleft()
        try:
            below = folders(folder)
            waiting.extend(below)
            walked.append((folder, below))
        except Exception:
            whole.append(folder)  # its listing meets the same and can say so without stopping the others
    found = [FolderPiece(id_of(folder), names_hash(below)) for folder, below in walked]
    found += [FolderPiece(id_of(folder), None) for folder in (*whole, *waiting)]
    parts = min(len(found), limits.SMALL_LISTING_PARTS)
    cuts = [len(found) * i // parts for i in range(parts + 1)]
    return [found[start:end] for start, end in pairwise(cuts)]


def names_hash(names: Iterable[str]) -> str:
    """What two machines that see the same names have in common."""
    both = "\0".join(sorted(names)).encode("utf-8", "surrogatepass")
    return blake2b(both, digest_size=16).hexdigest()


@dataclass(slots=True)
class Found:
    """What is found in a folder beside its files."""

    below: list[str]
    """Folders in it, whole names."""
    troubles: list[str] = field(default_factory=list)
    """What went wrong, here and before."""
    outages: list[Exception] = field(default_factory=list)
    """Of the errors that led to it, those of the device and of the connection."""
    seen: str = ""
    """MISSING or EMPTY, if it is."""

    def fail(self, why: str, error: Exception) -> None:
        """Something could not be looked at."""
        self.troubles.append(why)
        if is_connection(error, reading=True):
            self.outages.append(error)


def walked(
    piece: Piece,
    name_of: Callable[[str], str],
    folder: Callable[[str, Found], Iterator[Listed]],
    id_of: Callable[[str], str],
    remedy: str,
) -> Iterator[Listed | Doubt]:
    """See ``FileTree.listing``.

    Args:
        folder: lists the folder of a name, and notes what it finds.
    """
    troubles: list[str] = []
    outages: list[Exception] = []
    doubts: list[Doubt] = []
    for id, names in piece:
        waiting = [name_of(id)]
        while waiting:
            name = waiting.pop()
            found = Found([], troubles, outages)
            yield from folder(name, found)
            if found.seen:
                doubts.append(Doubt(id_of(name), found.seen))
            if names is None:
                waiting.extend(reversed(found.below))
            elif names_hash(found.below) != names:
                doubts.extend(Doubt(id_of(each), THERE) for each in found.below)
    yield from doubts[: limits.DOUBTS]
    if troubles:
        more = f"; and {len(troubles) - _NAMED_FOLDERS} more" if len(troubles) > _NAMED_FOLDERS else ""
        raise TransientError(f"{'; '.join(troubles[:_NAMED_FOLDERS])}{more}. {remedy}") from next(iter(outages), None)
