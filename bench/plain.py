"""What Ferryman is measured beside: the same rows, the same step, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.harness import spark
from ferryman.document import content_version, encode_fields


def step(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The step of all plans here; works on a Document and on a dict."""
    document["characters"] = len(document["body"])
    return document


def version(row: dict[str, Any]) -> str:
    """What a scan must know of a row."""
    return content_version(encode_fields(row), None)


def for_each_row(rows: Path, work: Callable[[dict[str, Any]], Any]) -> int:
    """Plain ``mapInArrow``: each row as a dict, and this work on it; how many there were."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                work(row)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counted = spark().read.parquet(str(rows)).mapInArrow(stage, "rows long").collect()
    return sum(row[0] for row in counted)


def for_each_batch(rows: Path, work: Callable[[pa.RecordBatch], Any]) -> int:
    """Plain ``mapInArrow``: this work on each record batch as it is; how many rows there were."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            work(batch)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counted = spark().read.parquet(str(rows)).mapInArrow(stage, "rows long").collect()
    return sum(row[0] for row in counted)
