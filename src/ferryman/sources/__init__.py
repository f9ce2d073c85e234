"""Where documents come from. ``Source`` is the port; a source of your own is a subclass of it."""

from ferryman.sources.base import Listed, Source
from ferryman.sources.csv import Csv
from ferryman.sources.dataframe import Table
from ferryman.sources.files import Files
from ferryman.sources.jsonlines import JsonLines
from ferryman.sources.lines import Lines
from ferryman.sources.memory import Memory

__all__ = ["Csv", "Files", "JsonLines", "Lines", "Listed", "Memory", "Source", "Table"]
