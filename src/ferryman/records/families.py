"""Record of a document's family in the table ``documents``: where it was published, and where its steps failed.

A family is a source document, its *origin*, with everything that steps made of it. Its members are named by what their
id has after the origin's: "" for the origin itself, "#3" for a child, "#3#a" for a grandchild.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import msgspec
import pyarrow.compute as pc

from ferryman.document import content_version
from ferryman.records.rows import HELD, HELD_DELETE, LEDGER_COLUMNS
from ferryman.storage.query import quote


class Published(NamedTuple):
    """An upsert of a member was committed for a destination, and no delete since."""

    member: str
    route: str
    destination: str
    content: str = ""
    """Hash of the content that was sent, see ``content_of``; "" if the member is sent with each version; ``STALE`` if
    the current version no longer makes it, and its delete is held."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Return (member, route, destination), which is unique in a family."""
        return self[:3]


class MissingDelivery(msgspec.Struct, frozen=True, array_like=True):
    """Delivery that is missing because a step failed.

    Attributes:
        route: the whole route to the destination.
        attempt: number of attempts made.
        open: whether it is still retried; False: it ended as DEAD or ERROR_DOC, and an operator may reopen it.
        since: time of its first transient error, µs since 1970; None: it had none.
        transient: number of attempts that ended in a transient error.
    """

    destination: str
    route: str
    attempt: int
    open: bool = True
    since: int | None = None
    transient: int = 0

    @property
    def end(self) -> tuple[str, str]:
        """Return (destination, route)."""
        return self.destination, self.route


class FailedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member whose processing failed at a node, and the deliveries that are missing because of it.

    Attributes:
        node: the node at which the member failed, and from which a retry continues.
        route, branches: those taken before this node.
        owed: the missing deliveries.
    """

    member: str
    node: str
    route: str
    branches: str
    owed: list[MissingDelivery]

    @property
    def open(self) -> bool:
        """Return whether any of the missing deliveries is still retried."""
        return any(o.open for o in self.owed)


def descends(member: str, ancestor: str) -> bool:
    """Return whether ``member`` is ``ancestor`` or was made from it."""
    return member == ancestor or member.startswith(f"{ancestor}#")


def ancestry(member: str) -> Iterator[str]:
    """Yield the member itself, its parent, and so on up to the origin, ""."""
    yield member
    while member:
        member = member.rpartition("#")[0]
        yield member


SEPARATOR: Final = "#"
"""Separates the id of a file from the name of a row that is a document of its own; ids contain no other ``#``."""


def in_family_sql(family: str, column: str = "origin") -> str:
    """Return SQL that tests whether a column holds this id, or the id of a row of this file."""
    return f"({column} = {quote(family)} OR starts_with({column}, {quote(family + SEPARATOR)}))"


def in_family(family: str, column: str = "origin") -> pc.Expression:
    """Return the condition of ``in_family_sql`` for Arrow, by whose bounds row groups can be left out."""
    first, field = family + SEPARATOR, pc.field(column)
    return (field == family) | ((field >= first) & (field < first[:-1] + chr(ord(first[-1]) + 1)))


def parent_of(child: str) -> str:
    """Return the id of a child's parent; a key contains no ``#``."""
    return child.rpartition("#")[0]


CONTENT: Final = "="
"""First character of the ``content`` of a ``Published``; names of nodes and members do not begin with it."""


CONTENT_BEGINS: Final = f',"{CONTENT}'
"""Text that the encoding of what is published has if there is the ``content`` of a ``Published`` in it."""


STALE: Final = "-"
"""``content`` of a member whose delete is held, since a part of the version that does not make it has failed."""


def older_publications(given: str, failed: str | None) -> Iterator[tuple[Published, FailedMember | None]]:
    """Yield what older versions of a document have left at destinations, each with a failure that keeps it there.

    Its delete is held, or it may still be made again below a node that has failed for good.

    Args:
        given, failed: of the document's last row in ``documents``.
    """
    failures = decode_failures(failed)
    ended = [failure for failure in failures if not failure.open]
    for each in decode_published(given):
        end = (each.destination, each.route)
        for failure in ended:
            below = each.member != failure.member and descends(each.member, failure.member)
            if below and end in [owed.end for owed in failure.owed]:
                yield each, failure
                break
        else:
            if each.content == STALE:
                at_destination = (f for f in failures if any(o.destination == each.destination for o in f.owed))
                yield each, next(at_destination, None)


def held_delete(row: Mapping[str, Any], published: Published, failure: FailedMember | None) -> dict[str, Any]:
    """Return a row of ``deliveries`` for a delete that a failed step holds.

    Args:
        row: the last row of the family's document.
        failure: where a part of the newer version failed; None: it is not known any more.
    """
    where = "a step failed" if failure is None else f"{failure.node} failed for {row['origin'] + failure.member}"
    message = f"{HELD_DELETE}{where} of the newer version; `ferryman retry PLAN` tries it again"
    values = {
        **{name: row[name] for name in ("source", "origin", "version", "revision", "wave")},
        "document": row["origin"] + published.member,
        "operation": "delete",
        "route": published.route,
        "destination": published.destination,
        "status": HELD,
        "message": message,
        "attempt": 0,
    }
    return {name: values.get(name) for name in LEDGER_COLUMNS}


def content_of(fields: bytes, raw: bytes | None) -> str:
    """Return a hash that is equal for equal fields and raw bytes."""
    return CONTENT + content_version(fields, raw)


def was_published_sql(destination: str) -> str:
    """Return SQL that tests whether a member of the family in a row of ``documents`` was published to this
    destination."""
    ends = (f',"{destination}"]', f',"{destination}"{CONTENT_BEGINS}', f',"{destination}","{STALE}"')
    return "(" + " OR ".join(f"contains(given, {quote(end)})" for end in ends) + ")"


def encode_published(published: Iterable[Published]) -> str:
    """Encode for ``documents``; "" for nothing. A large family takes several lines."""
    if isinstance(published, (list, tuple)) and len(published) <= _SMALL_FAMILY:
        return _encode_small(tuple(published))
    return (published if isinstance(published, PublishedLines) else PublishedLines(published)).encode()


def decode_published(text: str) -> Collection[Published]:
    """Decode a value of ``documents``. The result for a large family is decoded again at each iteration."""
    if "\n" in text:
        return PublishedLines.of(text)
    return _decode_short(text) if len(text) <= _SHORT else _decode(text)


class PublishedLines(Collection[Published]):
    """Publications of a large family, in order. All but the last ones are held in encoded form, since a million objects
    take some 200 MB."""

    def __init__(self, published: Iterable[Published] = ()) -> None:
        self._lines: list[str] = []
        self._last: list[Published] = []
        for each in published:
            self.append(each)

    @classmethod
    def of(cls, text: str) -> Self:
        """Decode the result of ``encode``."""
        lines = cls()
        lines._lines = text[1:-1].split(_BREAK)
        return lines

    def append(self, published: Published) -> None:
        self._last.append(published)
        if len(self._last) == _LINE:
            self._lines.append(_encode(tuple(self._last))[1:-1])
            self._last = []

    def mark(self) -> tuple[int, list[Published]]:
        """Return a mark of the current end, for ``cut``."""
        return len(self._lines), self._last.copy()

    def cut(self, mark: tuple[int, list[Published]]) -> None:
        """Remove what was appended since the mark."""
        del self._lines[mark[0] :]
        self._last = mark[1].copy()

    def encode(self) -> str:
        """Encode as one JSON array with a line for each thousand; JSON has no line ends inside texts."""
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
"""Members and characters of a family up to which its encoding is cached: most families are single documents, and many
of these are equal. A large one would never be found again in the cache, but stay in memory."""
_LINE: Final = 1000
"""Members in a line."""
_BREAK: Final = ",\n"
"""Separates two lines: the array stays valid JSON, for readers of the open table."""


def _encode(published: tuple[Published, ...]) -> str:
    return (
        msgspec.json.encode([each if each.content else each.place for each in published]).decode() if published else ""
    )


def _decode(text: str) -> tuple[Published, ...]:
    return msgspec.json.decode(text, type=tuple[Published, ...]) if text else ()


_encode_small = lru_cache(maxsize=1024)(_encode)
_decode_short = lru_cache(maxsize=1024)(_decode)


def encode_failures(failures: Iterable[FailedMember]) -> str | None:
    """Encode for ``documents``; None if there are none."""
    failures = list(failures)
    return msgspec.json.encode(failures).decode() if failures else None


def decode_failures(text: str | None) -> list[FailedMember]:
    """Decode a value of ``documents``."""
    return msgspec.json.decode(text, type=list[FailedMember]) if text else []


def count_open_deliveries(failures: Sequence[FailedMember]) -> int:
    """Count the missing deliveries that are still retried."""
    return sum(o.open for failure in failures for o in failure.owed)


def encode_held(keys: Iterable[str]) -> str | None:
    """Encode, for ``documents``, the nodes or scopes of nodes that all pending deliveries of a document wait for."""
    return "\n".join(sorted({" ".join(key.split("\n")) for key in keys})) or None


def decode_held(text: str | None) -> list[str]:
    """Decode a value of ``documents``."""
    return text.split("\n") if text else []
