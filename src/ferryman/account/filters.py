"""Which deliveries are asked for."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from ferryman.errors import UsageError
from ferryman.records.family import in_family
from ferryman.records.statuses import Status, stored
from ferryman.storage.query import quoted_list


class FilterOptions(TypedDict, total=False):
    """What users narrow deliveries down by; nothing: all of them."""

    status: str | None
    """As shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case."""
    destination: str | None
    source: str | None
    family: str | None
    """Only of this origin and what was made of it; or of the rows of this file."""


class Filter(NamedTuple):
    """The same by what is stored. Without arguments every delivery passes."""

    statuses: frozenset[str] = frozenset()
    """Any of these; empty: whatever it is."""
    destination: str | None = None
    source: str | None = None
    document: str | None = None
    """The delivery's document, or the origin of its family."""
    family: str | None = None
    operation: str | None = None

    @staticmethod
    def of(asked: FilterOptions) -> Filter:
        """
        Raises:
            UsageError: there is no such status.
        """
        rest: dict[str, Any] = dict(asked)
        statuses, operation = named_statuses(rest.pop("status", None))
        return Filter(statuses, operation=operation, **rest)

    def conditions(self) -> tuple[list[str], dict[str, str]]:
        """On events, as SQL, and the parameters that these name."""
        named = {"destination": self.destination, "source": self.source}
        wanted = {column: value for column, value in named.items() if value}
        where = ["destination <> ''", *(f"{column} = ${column}" for column in wanted)]
        if self.statuses:
            where.append(f"status IN {quoted_list(sorted(self.statuses))}")
        if self.document is not None:
            where.append("(document = $document OR origin = $document)")
            wanted["document"] = self.document
        if self.family is not None:
            where.append(in_family(self.family))
        if self.operation is not None:
            where.append(f"operation = '{self.operation}'")
        return where, wanted


def named_statuses(status: str | None) -> tuple[frozenset[Status], str | None]:
    """The stored statuses that are meant, none for any, and the operation where it matters.

    Raises:
        UsageError: there is no such status.
    """
    if status is None:
        return frozenset(), None
    try:
        return stored(status)
    except ValueError as e:
        raise UsageError(f"status {status}: {e}.") from None
