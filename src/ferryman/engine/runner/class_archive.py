"""The training run of an archive of classes: a session that does what runs do, so that its JVM loads their classes and
writes them to an archive at its end.

``python -m ferryman.engine.runner.class_archive ARCHIVE``, in a folder of its own: see ``class_sharing.train``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import SparkContext

from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner


def main(archive: Path) -> int:
    """Run the session, and return the JVM's exit code."""
    option = shlex.quote(f"-XX:ArchiveClassesAtExit={archive}")
    session = start("local[2]", {"spark.driver.extraJavaOptions": option}, "ferryman training", queries=False)
    runner = SparkRunner(session)
    runner.submit(_number, [0, 1, 2]).result()
    pq.write_table(pa.table({"id": ["a", "b"], "number": [1, 2]}), "rows.parquet")
    runner.run_frame(_rows, _count)
    session.stop()
    jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
    jvm.stdin.close()  # which ends it
    return int(jvm.wait())


def _number(number: Any) -> Any:
    return number


def _rows(spark: Any) -> Any:
    """Return selected rows of a table, the least that a ``DataFrame`` source computes."""
    table = spark.read.parquet(str(Path("rows.parquet").absolute()))
    wanted = spark.createDataFrame([("a",)], "wanted string").hint("broadcast")
    return table.where("number < 3").join(wanted, table["id"] == wanted["wanted"], "left_semi")


def _count(_number: int, batches: Any) -> int:
    return sum(batch.num_rows for batch in batches)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
