"""Files below a root, wherever that is: in a folder of this machine, or in what fsspec reaches."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Protocol

from ferryman import settings
from ferryman.errors import TransientError
from ferryman.sources.base import Listed

Piece = list[tuple[str, bool]]
"""A piece of a listing: folders by their id, each with whether the folders below belong to it too."""

_NAMED_FOLDERS: Final = 3  # folders that an error names; a broken mount may have thousands


class OneFile(Protocol):
    """A root that is itself a file. A person named it, so a link may lead anywhere."""

    def shown(self, id: str) -> str:
        """See ``Tree``."""

    def listed(self) -> Listed:
        """Its entry: the id is its name.

        Raises:
            TransientError: it vanished, or cannot be looked at.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """See ``Tree``."""


class Tree(Protocol):
    """Files below a root, by ids relative to it. Travels to the workers; opens nothing before it is asked."""

    @property
    def where(self) -> str:
        """The root: a path or a URL, without secrets."""

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
        """Up to ``settings.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until there are enough."""

    def listing(self, piece: Piece) -> Iterator[Listed]:
        """Every file of these folders, in an order that stays.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """

    def read(self, listed: Listed, limit_bytes: int) -> bytes:
        """A file's bytes as they are now.

        Raises:
            BadDocument: this user may not read it; it is no file any more, or larger than the limit.
            TransientError: it vanished, or reading failed.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """The same bytes, to be read piece by piece, however many there are; the caller closes it.

        Raises:
            FileNotFoundError: it vanished.
            BadDocument, TransientError: as ``read``; the stream too.
        """


def pieces(folders: Callable[[str], list[str]], id_of: Callable[[str], str]) -> list[Piece]:
    """See ``Tree.pieces``; ``folders`` says the names of the folders in a folder, and may raise."""
    walked: list[str] = []  # their folders are pieces of their own, so they bring only their files
    whole: list[str] = []
    waiting = deque([""])
    while waiting and len(walked) + len(whole) + len(waiting) < settings.SMALL_LISTING_PARTS:
        folder = waiting.popleft()
        try:
            waiting.extend(folders(folder))
            walked.append(folder)
        except Exception:
            whole.append(folder)  # its listing meets the same and can say so without stopping the others
    found = [(id_of(folder), False) for folder in walked]
    found += [(id_of(folder), True) for folder in (*whole, *waiting)]
    parts = min(len(found), settings.SMALL_LISTING_PARTS)
    cuts = [len(found) * i // parts for i in range(parts + 1)]
    return [found[start:end] for start, end in pairwise(cuts)]


def walked(
    piece: Piece,
    name_of: Callable[[str], str],
    folder: Callable[[str, list[str], list[str]], Iterator[Listed]],
    remedy: str,
) -> Iterator[Listed]:
    """See ``Tree.listing``.

    Args:
        folder: lists the folder of a name; adds those below it to the first list, and what went wrong to the second.
    """
    troubles: list[str] = []
    for id, deep in piece:
        waiting = [name_of(id)]
        while waiting:
            below: list[str] = []
            yield from folder(waiting.pop(), below, troubles)
            if deep:
                waiting.extend(reversed(below))
    if troubles:
        more = f"; and {len(troubles) - _NAMED_FOLDERS} more" if len(troubles) > _NAMED_FOLDERS else ""
        raise TransientError(f"{'; '.join(troubles[:_NAMED_FOLDERS])}{more}. {remedy}")
