"""Record of a document's family in ``documents``: which deliveries it had, and where its steps failed.

A family is a source document, its *origin*, with everything that steps made of it. Its members are named by what their
id has after the origin's: "" for the origin itself, "#3" for a child, "#3#a" for a grandchild.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Self

import msgspec

from ferryman.document import content_version
from ferryman.storage.query import quote


class Published(NamedTuple):
    """An upsert of a member was committed for a destination, and no delete since."""

    member: str
    route: str
    destination: str
    content: str = ""
    """Hash of the content that was sent, see ``content_of``; "" if it is not compared: it is sent with each version."""

    @property
    def place(self) -> tuple[str, str, str]:
        """(member, route, destination): there is one of it in a family."""
        return self[:3]


class MissingDelivery(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that is missing because a step failed.

    Attributes:
        route: the whole route to the destination.
        attempt: attempts made.
        open: it is tried again; False: it ended as DEAD or ERROR_DOC, and an operator may open it again.
        since: its first transient error, µs since 1970; None: it had none.
        transient: how many of the attempts ended in a transient error.
    """

    destination: str
    route: str
    attempt: int
    open: bool = True
    since: int | None = None
    transient: int = 0

    @property
    def end(self) -> tuple[str, str]:
        """(destination, route)."""
        return self.destination, self.route


class FailedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member came to a node, which failed: what is missing below it.

    Attributes:
        node: where a retry goes on; what was done before it is not done again.
        route, branches: as far as there.
    """

    member: str
    node: str
    route: str
    branches: str
    owed: list[MissingDelivery]

    @property
    def open(self) -> bool:
        """Return whether a part of the failure is tried again."""
        return any(o.open for o in self.owed)


def descends(member: str, ancestor: str) -> bool:
    """Return whether ``member`` is ``ancestor`` or was made from it."""
    return member == ancestor or member.startswith(f"{ancestor}#")


def ancestry(member: str) -> Iterator[str]:
    """The member itself, the one that it was made from, and so on up to the origin, ""."""
    yield member
    while member:
        member = member.rpartition("#")[0]
        yield member


SEPARATOR: Final = "#"
"""Stands between a file's id and its row's name, where rows are documents of their own; ids have no other."""


def family_of(document: str) -> str:
    """Id of the file that an origin is a row of; of a child, of its origin; else its own."""
    return document.partition(SEPARATOR)[0]


def in_family_sql(family: str, column: str = "origin") -> str:
    """SQL: is this the origin of that id, or a row of that file?"""
    return f"({column} = {quote(family)} OR starts_with({column}, {quote(family + SEPARATOR)}))"


def parent_of(child: str) -> str:
    """Id of the document that a child was made from; a key has no ``#`` of its own."""
    return child.rpartition("#")[0]


CONTENT: Final = "="
"""Begins every content of a ``Published``: names of nodes and members do not."""


def content_of(fields: bytes, raw: bytes | None) -> str:
    """Equal for equal fields and raw bytes."""
    return CONTENT + content_version(fields, raw)


def was_published_sql(destination: str) -> str:
    """SQL: was something of a document's family, a row of ``documents``, given to this destination?"""
    ends = (f',"{destination}"]', f',"{destination}","{CONTENT}')
    return "(" + " OR ".join(f"contains(given, {quote(end)})" for end in ends) + ")"


def encode_published(given: Iterable[Published]) -> str:
    """Encode for ``documents``; "" for nothing. A large family takes several lines."""
    if isinstance(given, (list, tuple)) and len(given) <= _SMALL_FAMILY:
        return _encode_small(tuple(given))
    return (given if isinstance(given, PublishedLines) else PublishedLines(given)).encode()


def decode_published(text: str) -> Collection[Published]:
    """From ``documents``. What a large family was given is decoded on each pass."""
    if "\n" in text:
        return PublishedLines.of(text)
    return _decode_short(text) if len(text) <= _SHORT else _decode(text)


class PublishedLines(Collection[Published]):
    """Deliveries of a large family, in order. All but the last are held encoded: as objects, a million take some 200
    MB."""

    def __init__(self, given: Iterable[Published] = ()) -> None:
        self._lines: list[str] = []
        self._last: list[Published] = []
        for each in given:
            self.append(each)

    @classmethod
    def of(cls, text: str) -> Self:
        """Decode the result of ``encode``."""
        found = cls()
        found._lines = text[1:-1].split(_BREAK)
        return found

    def append(self, given: Published) -> None:
        self._last.append(given)
        if len(self._last) == _LINE:
            self._lines.append(_encode(tuple(self._last))[1:-1])
            self._last = []

    def mark(self) -> tuple[int, list[Published]]:
        """To come back to, see ``cut``."""
        return len(self._lines), self._last.copy()

    def cut(self, mark: tuple[int, list[Published]]) -> None:
        """Forget what has come since."""
        del self._lines[mark[0] :]
        self._last = mark[1].copy()

    def encode(self) -> str:
        """One JSON array, a line for each thousand: within a text JSON has no line end."""
        lines = [*self._lines, _encode(tuple(self._last))[1:-1]] if self._last else self._lines
        return f"[{_BREAK.join(lines)}]" if lines else ""

    def __iter__(self) -> Iterator[Published]:
        for line in self._lines:
            yield from _decode(f"[{line}]")
        yield from self._last

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, given: object) -> bool:
        return any(each == given for each in self)


_SMALL_FAMILY: Final = 8
_SHORT: Final = 1024
"""Members and characters of families that are remembered: most are a document alone, and many of these are alike. What
a large one takes as objects is never alike, and never freed."""
_LINE: Final = 1000
"""Members a line."""
_BREAK: Final = ",\n"
"""Between two lines: the array stays valid JSON, for whoever reads the open table."""


def _encode(given: tuple[Published, ...]) -> str:
    return msgspec.json.encode([each if each.content else each.place for each in given]).decode() if given else ""


def _decode(text: str) -> tuple[Published, ...]:
    return msgspec.json.decode(text, type=tuple[Published, ...]) if text else ()


_encode_small = lru_cache(maxsize=1024)(_encode)
_decode_short = lru_cache(maxsize=1024)(_decode)


def encode_failures(failures: Iterable[FailedMember]) -> str | None:
    """Encode for ``documents``; None if there are none."""
    failures = list(failures)
    return msgspec.json.encode(failures).decode() if failures else None


def decode_failures(text: str | None) -> list[FailedMember]:
    """From ``documents``."""
    return msgspec.json.decode(text, type=list[FailedMember]) if text else []


def count_open_deliveries(failures: Sequence[FailedMember]) -> int:
    """How many deliveries are tried again."""
    return sum(o.open for failure in failures for o in failure.owed)


def encode_held(keys: Iterable[str]) -> str | None:
    """Nodes (or what single ones have to do with) that all that is pending waits for, as text for ``documents``."""
    return "\n".join(sorted({" ".join(key.split("\n")) for key in keys})) or None


def decode_held(text: str | None) -> list[str]:
    """From ``documents``."""
    return text.split("\n") if text else []
