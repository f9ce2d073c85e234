"""Index the paragraphs of a folder of pages with their vectors into SQLite with CocoIndex, for ``bench.retrieval``.

    python cocoindex_pages.py FOLDER DATABASE STATE

The flow of CocoIndex's guide to embedding texts: a remembered component for each file, a row for each chunk, and a
remembered function of a text for its vector, which collects texts into batches as the guide's own embedder does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

os.environ["COCOINDEX_DISABLE_USAGE_TRACKING"] = "1"  # read at import

import cocoindex as coco
import numpy as np
from cocoindex.connectors import localfs, sqlite
from cocoindex.resources.id import IdGenerator
from numpy.typing import NDArray
from sqlite_vec import serialize_float32

from bench.peers.embedding import BATCH, embed, paragraphs

FOLDER, DATABASE, STATE = (Path(argument) for argument in sys.argv[1:4])
DB = coco.ContextKey[sqlite.ManagedConnection]("db")
CORPUS = coco.ContextKey[Path]("corpus")
VECTOR = sqlite.SqliteType("BLOB", serialize_float32)
"""Bytes as sqlite-vec has them: without its extension, which not every Python can load, and which questions need."""


@dataclass
class Row:
    id: int
    page: str
    text: str
    vector: Annotated[NDArray[np.float32], VECTOR]


@coco.lifespan
def lifespan(builder: coco.EnvironmentBuilder) -> Iterator[None]:
    builder.settings.db_path = STATE
    builder.provide(CORPUS, FOLDER)
    builder.provide_with(DB, sqlite.managed_connection(DATABASE, load_vec=False))
    yield


@coco.fn.as_async(batching=True, max_batch_size=BATCH)
def embed_batch(texts: list[str]) -> list[NDArray[np.float32]]:
    return [np.array(vector, np.float32) for vector in embed(texts)]


@coco.fn(memo=True)
async def embed_one(text: str) -> NDArray[np.float32]:
    return await embed_batch(text)


@coco.fn
async def chunk(text: str, page: str, ids: IdGenerator, table: sqlite.TableTarget[Row]) -> None:
    table.declare_row(row=Row(await ids.next_id(text), page, text, await embed_one(text)))


@coco.fn(memo=True)
async def one(file: localfs.File, table: sqlite.TableTarget[Row]) -> None:
    """Index a page."""
    page = file.file_path.path.as_posix()
    await coco.map(chunk, paragraphs(await file.read_text()), page, IdGenerator(page), table)


@coco.fn
async def main() -> None:
    schema = await sqlite.TableSchema.from_class(Row, primary_key=["id"])
    table = await sqlite.mount_table_target(DB, "documents", schema)
    await coco.mount_each(one, localfs.walk_dir(CORPUS, recursive=True).items(), table)


if __name__ == "__main__":
    coco.App("pages", main).update_blocking()
