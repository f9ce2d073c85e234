"""Tables and files of their own, in memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ferryman.storage.parquet import write_part
from ferryman.storage.tables import Table
from tests.support.plan_world import place  # noqa: F401 - a fixture

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
APPLICATION = "test.epoch"


def make_table(folder: Path, epoch: int = 1) -> Table:
    """A table, made and fenced."""
    table = Table(folder, SCHEMA, [])
    table.create()
    table.load([APPLICATION])
    table.fence(APPLICATION, epoch)
    return table


def add(table: Table, *numbers: int, **options: object) -> str:
    """Commit a file with these numbers; its path."""
    rows = pa.table({"number": list(numbers), "text": [f"row {n}" for n in numbers]}, schema=SCHEMA)
    part = write_part(table.folder, rows, epoch=1)
    table.commit("wave", adds=[table.data_file(part)], **options)  # type: ignore[arg-type]
    return part.path


@pytest.fixture
def table(place: Path) -> Table:  # noqa: F811
    return make_table(place / "table")
