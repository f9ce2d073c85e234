"""Index a folder of text files into a table of SQLite with CocoIndex, for ``bench.small_files`` and ``bench.watch``.

    python cocoindex_flow.py FOLDER DATABASE STATE [live]

Each file is a memoized component, as in CocoIndex's guide: it runs again only if a file's time of modification and
content have changed. Its state (LMDB) is a folder; no server is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["COCOINDEX_DISABLE_USAGE_TRACKING"] = "1"  # read at import

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

FOLDER, DATABASE, STATE = (Path(argument) for argument in sys.argv[1:4])
LIVE = sys.argv[4:] == ["live"]
"""Keep running, and index files as they change."""
DB = coco.ContextKey[sqlite.ManagedConnection]("db")
CORPUS = coco.ContextKey[Path]("corpus")


@dataclass
class Row:
    id: str
    text: str
    characters: int


@coco.lifespan
def lifespan(builder: coco.EnvironmentBuilder) -> Iterator[None]:
    builder.settings.db_path = STATE
    builder.provide(CORPUS, FOLDER)
    builder.provide_with(DB, sqlite.managed_connection(DATABASE, load_vec=False))
    yield


@coco.fn(memo=True)
async def one(file: localfs.File, table: sqlite.TableTarget[Row]) -> None:
    """Count the characters of a file; the step."""
    text = await file.read_text()
    table.declare_row(row=Row(file.file_path.path.as_posix(), text, len(text)))


@coco.fn
async def main() -> None:
    schema = await sqlite.TableSchema.from_class(Row, primary_key=["id"])
    table = await sqlite.mount_table_target(DB, "documents", schema)
    await coco.mount_each(one, localfs.walk_dir(CORPUS, live=LIVE, recursive=True).items(), table)


if __name__ == "__main__":
    coco.App("bench", main).update_blocking(live=LIVE)
