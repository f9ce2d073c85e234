"""Where documents come from. ``Source`` is the port; a source of your own is a subclass of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ferryman.sources.base import Doubt, Listed, Source
from ferryman.sources.dataframe import DataFrame
from ferryman.sources.files import Files
from ferryman.sources.log import Entry, Log, Piece
from ferryman.sources.memory import Memory
from ferryman.sources.records import Csv, JsonLines, Lines

if TYPE_CHECKING:
    from ferryman.intake.source import Jobs
    from ferryman.sources.changes import Changes
    from ferryman.sources.kafka import Kafka
    from ferryman.sources.queue import Queue
    from ferryman.sources.sql import Sql

__all__ = [
    "Changes",
    "Csv",
    "DataFrame",
    "Doubt",
    "Entry",
    "Files",
    "Jobs",
    "JsonLines",
    "Kafka",
    "Lines",
    "Listed",
    "Log",
    "Memory",
    "Piece",
    "Queue",
    "Source",
    "Sql",
]

_HEAVY: Final = {
    "Changes": "sources.changes",
    "Jobs": "intake.source",
    "Kafka": "sources.kafka",
    "Queue": "sources.queue",
    "Sql": "sources.sql",
}
"""Names loaded on demand, and their modules: SQLAlchemy takes longer to load than all of Ferryman, and few plans read a
queue."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(f"ferryman.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
