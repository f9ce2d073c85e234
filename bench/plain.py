"""Plain Spark for comparison: the same rows and the same step, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.harness import spark
from ferryman.document import content_version, encode_fields


def step(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Count characters; the step of most benchmarks, for a Document or a dict."""
    document["characters"] = len(document["body"])
    return document


def version(row: dict[str, Any]) -> str:
    """Return the content version of a row, which a scan needs."""
    return content_version(encode_fields(row), None)


def for_each_row(rows: Path, work: Callable[[dict[str, Any]], Any]) -> int:
    """Call ``work`` with each row as a dict, in plain ``mapInArrow``; return the number of rows."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                work(row)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counts = spark().read.parquet(str(rows)).mapInArrow(stage, "rows long").collect()
    return sum(row[0] for row in counts)


def for_each_batch(rows: Path, work: Callable[[pa.RecordBatch], Any]) -> int:
    """Call ``work`` with each record batch, in plain ``mapInArrow``; return the number of rows."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            work(batch)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counts = spark().read.parquet(str(rows)).mapInArrow(stage, "rows long").collect()
    return sum(row[0] for row in counts)
