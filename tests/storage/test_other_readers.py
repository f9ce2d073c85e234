"""DuckDB's own reader of Delta tables reads every table that runs leave, as delta-rs does: states and queues, with
checkpoints. (Spark's Delta has no version for the Spark that is installed here.)"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ferryman import limits
from ferryman.document import Document
from tests.engine.keyed.test_changes import build_ledger
from tests.servers.cache import Missing, cached
from tests.servers.registry import require
from tests.support.keyed import count_words
from tests.support.once import Once
from tests.support.plan_world import Interrupted, PlanWorld, Until, place

__all__ = ["place"]

VERSION = "1.4.4"
"""DuckDB's version for which its extension is in a package; the one that Ferryman uses has none there."""

READ = """
import duckdb, glob, json, sys
folder, *tables = sys.argv[1:]
[extension] = glob.glob(f"{folder}/duckdb_ext/**/delta.duckdb_extension", recursive=True)
db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
db.execute(f"LOAD '{extension}'")
print(json.dumps([db.execute("SELECT count(*) FROM delta_scan(?)", [f"file://{t}"]).fetchone()[0] for t in tables]))
"""


def install(folder: Path) -> None:
    """Install DuckDB and its extension there, beside the version that Ferryman uses."""
    packages = [f"duckdb=={VERSION}", f"duckdb-ext-delta=={VERSION}.20260205"]
    pip = [sys._base_executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *packages]  # type: ignore[attr-defined]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode:
        raise Missing(f"DuckDB's Delta extension cannot be installed: {done.stderr.strip()[-300:]}")


def counted_by_duckdb(tables: list[Path]) -> list[int]:
    """Return the rows of each table."""
    try:
        folder = cached(f"duckdb-delta-{VERSION}", install)
    except Missing as e:
        require(str(e))
    read = subprocess.run(
        [sys.executable, "-c", READ, str(folder), *map(str, tables)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert read.returncode == 0, read.stderr
    found: list[int] = json.loads(read.stdout)
    return found


def counted_by_delta_rs(table: Path) -> int:
    """Return the rows of the files that are live."""
    paths = [uri.removeprefix("file://") for uri in DeltaTable(str(table)).file_uris()]
    return sum(pq.read_metadata(path).num_rows for path in paths)


def fails(doc: Document) -> Document:
    if doc.id == "d1":
        raise ValueError("no")
    return doc


def snapshots(place: Path) -> Iterator[Path]:
    """Yield a folder of states and queues after each kind of run."""

    def copy(of: Path) -> Path:
        return Path(shutil.copytree(of, place / f"{of.name}-{uuid.uuid4().hex}"))

    documents = PlanWorld(place / "documents").build(fails, called={"attempts": 1})
    documents.put("d0", "d1", "d2")
    with pytest.raises(Interrupted):
        documents.run(observer=Until(1, "deliver"), checked=False)
    yield copy(documents.folder)  # committed, not sent
    documents.run()
    yield copy(documents.folder)
    documents.put("d0", text="two")
    documents.drop("d2")
    documents.retry(document="d1")
    for n in range(4):
        documents.put(f"e{n}")
        documents.run()
    yield copy(documents.folder)  # with checkpoints

    words = count_words(place / "words")
    for _ in range(4):
        words.put("a", "b", "a")
        words.run()
    yield copy(words.folder)
    [reader] = words.into.readers()
    words.into.tailer(reader).to(1)
    words.run(reset=["counts"])
    yield copy(words.folder)

    once = Once(place / "once")
    for n in range(4):
        once.put(n)
        once.run()
    once.queue("out").trim("0s")
    yield copy(once.folder)

    sums = build_ledger(place / "sums")
    for n in range(3):
        sums.contents |= {"x": {"key": "k", "n": n}, "y": {"key": "l", "n": 2 * n}}
        sums.run()
    yield copy(sums.folder)


@pytest.mark.server
@pytest.mark.rule("queue.delta")
def test_duckdb_reads_every_table_as_delta_rs_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and queues, in the middle of a wave, after runs with commands, keyed nodes and at-most-once plans."""
    for name in ("documents", "words", "once", "sums"):
        (place / name).mkdir()
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 4)
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    tables = [log.parent for folder in snapshots(place) for log in sorted(folder.rglob("_delta_log"))]
    counts = {str(table.relative_to(place)): counted_by_delta_rs(table) for table in tables}
    assert dict(zip(counts, counted_by_duckdb(tables), strict=True)) == counts
    names = {table.name for table in tables}
    assert names >= {"outbox", "ledger", "documents", "messages", "counts", "sums"}, names
    assert sum(counts.values()) > 100
    assert any(list((table / "_delta_log").glob("*.checkpoint.parquet")) for table in tables)
