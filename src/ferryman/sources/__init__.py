"""Where documents come from. ``Source`` is the port; a source of your own is a subclass of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ferryman.sources.base import Bookmark, Complete, Doubt, Fetched, Listed, Note, Retained, Source, Unchanged
from ferryman.sources.dataframe import DataFrame
from ferryman.sources.files import Files
from ferryman.sources.functions import Cursor, CursorExpired, Rows
from ferryman.sources.log import Entry, Log, Piece
from ferryman.sources.memory import Memory
from ferryman.sources.records import Csv, JsonLines, Lines

if TYPE_CHECKING:
    from ferryman.intake.source import Jobs
    from ferryman.sources.changes import Changes
    from ferryman.sources.dlt import Dlt
    from ferryman.sources.git import Git
    from ferryman.sources.imap import Imap
    from ferryman.sources.indexes import Elasticsearch, OpenSearch, Solr
    from ferryman.sources.kafka import Kafka
    from ferryman.sources.mailbox import Mailbox
    from ferryman.sources.parquet import Parquet
    from ferryman.sources.postgres_changes import PostgresChanges
    from ferryman.sources.queue import Queue
    from ferryman.sources.site import Site
    from ferryman.sources.sql import Sql
    from ferryman.sources.stream import Stream
    from ferryman.sources.table_changes import TableChanges

__all__ = [
    "Bookmark",
    "Changes",
    "Complete",
    "Csv",
    "Cursor",
    "CursorExpired",
    "DataFrame",
    "Dlt",
    "Doubt",
    "Elasticsearch",
    "Entry",
    "Fetched",
    "Files",
    "Git",
    "Imap",
    "Jobs",
    "JsonLines",
    "Kafka",
    "Lines",
    "Listed",
    "Log",
    "Mailbox",
    "Memory",
    "Note",
    "OpenSearch",
    "Parquet",
    "Piece",
    "PostgresChanges",
    "Queue",
    "Retained",
    "Rows",
    "Site",
    "Solr",
    "Source",
    "Sql",
    "Stream",
    "TableChanges",
    "Unchanged",
]

_HEAVY: Final = {
    "Changes": "sources.changes",
    "Dlt": "sources.dlt",
    "Elasticsearch": "sources.indexes",
    "Git": "sources.git",
    "Imap": "sources.imap",
    "Jobs": "intake.source",
    "Kafka": "sources.kafka",
    "Mailbox": "sources.mailbox",
    "PostgresChanges": "sources.postgres_changes",
    "OpenSearch": "sources.indexes",
    "Parquet": "sources.parquet",
    "Queue": "sources.queue",
    "Solr": "sources.indexes",
    "Site": "sources.site",
    "Sql": "sources.sql",
    "TableChanges": "sources.table_changes",
    "Stream": "sources.stream",
}
"""Names loaded on demand, and their modules: SQLAlchemy takes longer to load than all of Ferryman, and few plans read a
queue."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(f"ferryman.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
