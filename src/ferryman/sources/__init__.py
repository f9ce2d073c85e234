"""Where documents come from. ``Source`` is the port; a source of your own is a subclass of it."""

from ferryman.sources.base import Listed, Source
from ferryman.sources.dataframe import Table
from ferryman.sources.files import Files
from ferryman.sources.jobs import Jobs
from ferryman.sources.memory import Memory

__all__ = ["Files", "Jobs", "Listed", "Memory", "Source", "Table"]
