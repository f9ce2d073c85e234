"""Where documents come from. ``Source`` is the port; a source of your own is a subclass of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferryman.sources.base import Listed, Source
from ferryman.sources.csv import Csv
from ferryman.sources.dataframe import Table
from ferryman.sources.files import Files
from ferryman.sources.jsonlines import JsonLines
from ferryman.sources.lines import Lines
from ferryman.sources.memory import Memory

if TYPE_CHECKING:
    from ferryman.sources.jobs import Jobs
    from ferryman.sources.sql import Sql

__all__ = ["Csv", "Files", "Jobs", "JsonLines", "Lines", "Listed", "Memory", "Source", "Sql", "Table"]


def __getattr__(name: str) -> Any:
    """``Sql`` on demand: SQLAlchemy takes longer to load than all of Ferryman, and most plans do not need it. ``Jobs``
    likewise: only who serves a queue needs one."""
    if name == "Sql":
        from ferryman.sources.sql import Sql

        return Sql
    if name == "Jobs":
        from ferryman.sources.jobs import Jobs

        return Jobs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
