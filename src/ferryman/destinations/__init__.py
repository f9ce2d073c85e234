"""Where documents end, or pass by with an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.destinations.jsonlines import JsonLines
from ferryman.destinations.memory import Memory
from ferryman.destinations.null import Null

if TYPE_CHECKING:
    from ferryman.destinations.sql import Sql

__all__ = [
    "Delivery",
    "Destination",
    "DestinationContext",
    "Effect",
    "Guarantee",
    "JsonLines",
    "Memory",
    "Null",
    "Outcome",
    "Sql",
]


def __getattr__(name: str) -> Any:
    """``Sql`` on demand: SQLAlchemy takes longer to load than all of Ferryman, and most commands do not need it."""
    if name == "Sql":
        from ferryman.destinations.sql import Sql

        return Sql
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
