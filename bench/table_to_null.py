"""From a Parquet table through one step to the null destination, beside plain ``mapInArrow``.

The step is called with documents, with lists of documents, and with record batches. The last is compared with both: the
step on each row as a dict, and on the record batches, where plain Spark does nothing but read the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import data, plain
from bench.harness import Row, Sizes, alternate, empty_folder, phases, spark, speed_row
from ferryman import Document, Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

TARGET, ARROW_TARGET = 0.33, 0.5
BATCH = 64


def plan(rows: Path, step: Callable[..., Any] = plain.step, **options: Any) -> Plan:
    plan = Plan("table-to-null")
    source = plan.source("rows", DataFrame(lambda spark: read(spark, rows), id="key"))
    source.step("characters", step, **options).destination("nowhere", Null())
    return plan


def read(session: Any, rows: Path) -> Any:
    """Read the table, with ``id`` renamed: record batches have a column ``id`` of their own."""
    return session.read.parquet(str(rows)).withColumnRenamed("id", "key")


def for_list(documents: list[Document]) -> list[Document]:
    """Count characters of a list of documents."""
    for document in documents:
        document["characters"] = len(document["body"])
    return documents


def for_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Count characters of a record batch."""
    return batch.append_column("characters", pc.utf8_length(batch["body"]))


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)

    def ours(step: Callable[..., Any], **options: Any) -> Callable[[], None]:
        def work() -> None:
            with phases() as watch:
                summary = run(
                    plan(rows, step, **options), state=empty_folder(folder / "null"), spark=spark(), observer=watch
                )
            assert summary.delivered == sizes.documents, summary

        return work

    def beside() -> None:
        assert plain.for_each_row(rows, plain.step) == sizes.documents

    def beside_batches() -> None:
        assert plain.for_each_batch(rows, for_batch) == sizes.documents

    took, listed, batched, bare, bare_batches = alternate(
        sizes.rounds,
        ours(plain.step),
        ours(for_list, batch=BATCH),
        ours(for_batch, arrow=True),
        beside,
        beside_batches,
    )
    what = "table → one step → Null; plain mapInArrow with the step"
    yield speed_row(what, sizes.documents, took, bare, TARGET, "into Null")
    what = f"the same, the step takes lists of {BATCH}; plain mapInArrow, row by row"
    yield speed_row(what, sizes.documents, listed, bare, TARGET, f"into Null, batch={BATCH}")
    what = "the same, the step takes record batches; plain mapInArrow, row by row"
    yield speed_row(what, sizes.documents, batched, bare, ARROW_TARGET, "into Null, arrow")
    what = "the same, the step takes record batches; plain mapInArrow with the step on record batches"
    yield speed_row(what, sizes.documents, batched, bare_batches, ARROW_TARGET, "into Null, arrow, of both")
