"""What keys were given of documents that may change, looked up by document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ferryman.storage.files import path_of
from ferryman.storage.parquet import data_files
from ferryman.storage.query import connect, quoted_list, verify


class Contribution(NamedTuple):
    """What a key has of a document.

    Attributes:
        fields: JSON.
    """

    key: str
    revision: int
    fields: bytes


Whose = tuple[str, str]
"""(source, document): a document that may change comes to a node by one way only, another one in another version of the
plan."""


def contributions_of(files: Sequence[str], documents: pa.Table, folder: Path) -> dict[Whose, list[Contribution]]:
    """Of these documents, by ``source`` and ``document``: what keys have of them.

    Args:
        files: of the table: paths, or URLs of objects.
        folder: for what does not fit into memory.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    found: dict[Whose, list[Contribution]] = defaultdict(list)
    if not files or not documents.num_rows:
        return found
    paths = data_files(map(path_of, files))
    verify(paths)
    with connect(folder) as db:
        db.register("wanted", documents)
        rows = db.execute(f"""
            SELECT source, document, key, revision, fields FROM (
                SELECT * FROM read_parquet({quoted_list(map(str, paths))}) SEMI JOIN wanted USING (source, document)
                QUALIFY row_number() OVER (PARTITION BY source, document, key ORDER BY wave DESC) = 1
            ) WHERE fields IS NOT NULL ORDER BY key
        """)
        for source, document, *contribution in rows.fetchall():
            found[source, document].append(Contribution(*contribution))
    return found
