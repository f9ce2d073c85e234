"""LanceDB keeps every promise of the port, in a folder and in an object store; two writers, kills and compaction."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferryman.destinations import Destination, DestinationContext, Guarantee, LanceDB, Outcome
from ferryman.destinations.lancedb import COMPACT_FRAGMENTS
from ferryman.destinations.vectors import TOMBSTONE_S, Declaration, VectorDestination, VectorField
from ferryman.errors import Misconfigured, PlanError, Unavailable
from ferryman.testing.destinations import DestinationSuite, delete
from ferryman.testing.vectors import VectorSuite, vector_delivery
from tests.servers.registry import require_package

lancedb = require_package("lancedb")


def hashes(folder: Path, table: str = "documents") -> list[str]:
    """Delivery hashes of the table's live rows, read as any program reads them."""
    opened = lancedb.connect(folder).open_table(table)
    return opened.search().where("deleted_at IS NULL").select(["delivery_hash"]).to_arrow()["delivery_hash"].to_pylist()


class TestLanceDB(DestinationSuite):
    keyed = True

    def destination(self, folder: Path) -> Destination:
        return LanceDB(folder / "index", vectors={"vector": 4})

    def hashes(self, folder: Path) -> list[str]:
        return hashes(folder / "index")


class TestVectors(VectorSuite):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return LanceDB(folder / "index", vectors=vectors)


# Kills, two writers, tombstones, compaction.

CONTEXT = DestinationContext("suite", 1, "node", 1, Guarantee.EXACTLY_ONCE)


def opened(folder: Path, **options: Any) -> LanceDB:
    destination = LanceDB(folder / "index", vectors={"vector": VectorField(4)}, **options)
    destination.check()
    destination.open(CONTEXT)
    return destination


def point(i: int) -> list[float]:
    return [float(x) for x in np.random.default_rng(i).standard_normal(4).astype(np.float32)]


KILLED = """
import sys
from pathlib import Path
from tests.destinations.test_lancedb import CONTEXT, opened, point
from ferryman.testing.vectors import vector_delivery
destination = opened(Path(sys.argv[1]))
rows = [vector_delivery(f"doc-{i}", i + 1, point(i)) for i in range(100)]
for start in range(0, 100, 2):
    destination.write(rows[start : start + 2])
destination.close()
"""


@pytest.mark.parametrize("where", ["target.made", "target.written", "target.written:7", "target.compacted"])
def test_a_writer_that_is_killed_leaves_all_of_a_chunk_or_nothing(tmp_path: Path, where: str) -> None:
    """The next one writes the same chunks: each document is there once, whole."""
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "FERRYMAN_CRASH": where, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    rows = [vector_delivery(f"doc-{i}", i + 1, point(i)) for i in range(100)]
    destination = opened(tmp_path)
    before = {each.id for each in destination.inventory(CONTEXT)}
    assert len(before) == {"target.made": 0, "target.written": 2, "target.written:7": 14}.get(where, 100)
    assert {o.kind for o in destination.write(rows)} == {"ok"}
    destination.close()
    assert sorted(hashes(tmp_path / "index")) == sorted(d.hash for d in rows)
    assert all(each.intact for each in destination.inventory(CONTEXT))


TWIN = """
import sys
from pathlib import Path
from tests.destinations.test_lancedb import CONTEXT, opened, point
from ferryman.testing.vectors import vector_delivery
destination, number = opened(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
for round in range(12):
    sys.stdin.readline()
    rows = [vector_delivery(f"{round}-{i}", 10 * round + number + 1, point(i), n=number) for i in range(40)]
    print({o.kind for o in destination.write(rows)} <= {"ok", "stale"}, flush=True)
"""


def test_two_processes_that_insert_the_same_new_ids_leave_each_once(tmp_path: Path) -> None:
    """With the higher sequence, whoever was first; also where somebody has made an index on the ids."""
    first = opened(tmp_path)
    first.write([vector_delivery("first", 1, point(1))])
    first.close()
    table = lancedb.connect(tmp_path / "index").open_table("documents")
    table.create_index("id", config=lancedb.index.BTree())
    twins = [
        subprocess.Popen(
            [sys.executable, "-c", TWIN, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for number in (0, 1)
    ]
    pipes = [(twin.stdin, twin.stdout) for twin in twins]
    assert [out.readline() for _, out in pipes if out] == ["ready\n"] * 2
    for _ in range(12):
        for into, _ in pipes:
            assert into is not None
            into.write("go\n")
            into.flush()
        assert [out.readline() for _, out in pipes if out] == ["True\n"] * 2
    assert [twin.communicate()[0] for twin in twins] == ["", ""]
    found = lancedb.connect(tmp_path / "index").open_table("documents").search().select(["id", "sequence"]).to_arrow()
    ids, sequences = found["id"].to_pylist(), found["sequence"].to_pylist()
    assert len(ids) == len(set(ids)) == 12 * 40 + 1
    assert {s % 10 for s in sequences if s > 1} <= {2}, "an older version is in force"


def test_a_delete_is_forgotten_when_nobody_can_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an hour an older upsert is stale; no search and no count of ours shows it; then its row goes."""
    destination = opened(tmp_path)
    destination.write([vector_delivery("a", 1, point(1)), vector_delivery("b", 2, point(2)), delete("a", 3)])
    assert destination.write([vector_delivery("a", 2, point(1))]) == [Outcome.stale()]
    table = lancedb.connect(tmp_path / "index").open_table("documents")
    destination.check()
    table.checkout_latest()
    assert table.count_rows() == 2
    assert [hit.id for hit in destination.nearest("vector", point(1), 10)] == ["b"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + TOMBSTONE_S + 2)
    destination.check()
    table.checkout_latest()
    assert table.search().select(["id"]).to_arrow()["id"].to_pylist() == ["b"]


def test_many_small_chunks_are_compacted(tmp_path: Path) -> None:
    """When the task ends; a reader that has the older version open goes on reading it."""
    destination = opened(tmp_path)
    for i in range(COMPACT_FRAGMENTS + 1):
        destination.write([vector_delivery(f"doc-{i}", i + 1, point(i))])
    reader = lancedb.connect(tmp_path / "index").open_table("documents")
    assert reader.stats()["fragment_stats"]["num_fragments"] > COMPACT_FRAGMENTS
    destination.close()
    assert reader.count_rows() == COMPACT_FRAGMENTS + 1
    reader.checkout_latest()
    assert reader.stats()["fragment_stats"]["num_fragments"] == 1
    assert reader.count_rows() == COMPACT_FRAGMENTS + 1


def test_a_compaction_that_fails_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported, and the next one tries again."""
    destination = opened(tmp_path)
    for i in range(COMPACT_FRAGMENTS + 1):
        assert destination.write([vector_delivery(f"doc-{i}", i + 1, point(i))]) == [Outcome.ok()]

    async def conflict() -> None:
        raise RuntimeError("Retryable commit conflict for version 7")

    monkeypatch.setattr(destination, "_optimize", conflict)
    destination.close()
    assert "was not compacted, the next run tries again: Retryable commit conflict" in caplog.text
    again = opened(tmp_path)
    again.write([vector_delivery("last", 100, point(7))])
    again.close()
    table = lancedb.connect(tmp_path / "index").open_table("documents")
    assert table.stats()["fragment_stats"]["num_fragments"] == 1


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    """A table of another program, a name of a column, an option that cannot be meant."""
    lancedb.connect(tmp_path / "index").create_table("documents", [{"id": "a", "vector": [1.0, 2.0, 3.0, 4.0]}])
    with pytest.raises(Misconfigured, match="was not made by Ferryman"):
        LanceDB(tmp_path / "index", vectors={"vector": 4}).check()
    for wrong in ({"vectors": {"text": 4}}, {"table": "a/b"}, {"keep_versions": "long"}, {"vectors": {"v": 0}}):
        with pytest.raises(PlanError):
            LanceDB(tmp_path / "index", **wrong)  # type: ignore[arg-type]  # that is what is tested


def test_a_folder_that_cannot_be_written_is_for_a_person(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "index").write_text("a file")
    with pytest.raises(Misconfigured):
        LanceDB(tmp_path / "index", vectors={"vector": 4}).check()


@pytest.mark.server
def test_a_table_in_an_object_store(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, found, compacted, and asked what it holds; away it is unavailable, wrong keys are not shown."""
    s3 = server("s3")
    s3.client().create_bucket(Bucket="vectors")
    monkeypatch.setenv("KEY_OF_TEST", "s3cr3t")
    options = {
        "aws_access_key_id": "k3y-of-tests", "aws_secret_access_key": "${KEY_OF_TEST}", "region": "us-east-1",
        "endpoint": s3.url, "allow_http": "true",
    }  # fmt: skip

    def place(bucket: str = "vectors", **more: str) -> LanceDB:
        return LanceDB(f"s3://{bucket}/index", vectors={"vector": 4}, storage_options={**options, **more})

    destination = place()
    assert destination.local_paths() == ()
    assert destination.identity() == ""
    destination.check()
    destination.open(CONTEXT)
    for i in range(3):
        rows = [vector_delivery(f"doc-{i}-{n}", i + 1, point(n)) for n in range(5)]
        assert {o.kind for o in destination.write(rows)} == {"ok"}
        assert {o.kind for o in destination.write(rows)} == {"ok"}
    destination.close()
    assert len(list(place().inventory(CONTEXT))) == 15
    assert len(place().nearest("vector", point(1), 100)) == 15
    assert place().identity() == destination.identity() != ""
    with pytest.raises((Misconfigured, Unavailable)):
        place("nowhere").check()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(Unavailable):
        place(endpoint=f"http://127.0.0.1:{port}", client_max_retries="0", client_retry_timeout="1").check()


@pytest.mark.slow
def test_after_many_edits_it_finds_as_much_and_is_no_larger(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """20 rounds that edit a tenth: recall of a fresh index's within 5 %, files at most twice a fresh one's."""
    fields = {"vector": VectorField(32, index="hnsw")}
    points = np.random.default_rng(5).standard_normal((10_000, 32)).astype(np.float32)

    def write(folder: Path, chosen: Any, turn: int) -> None:
        destination = LanceDB(folder, vectors=fields, keep_versions="0s")
        destination.check()
        destination.open(CONTEXT)
        rows = [vector_delivery(f"doc-{i}", 100_000 * turn + int(i), points[i]) for i in chosen]
        for start in range(0, len(rows), 5000):
            assert {o.kind for o in destination.write(rows[start : start + 5000])} == {"ok"}
        destination.close()

    def recall(folder: Path) -> float:
        destination, hits = LanceDB(folder, vectors=fields), 0
        for i in range(0, 1000, 10):
            question = points[i] + 0.3
            likeness = points @ question / np.linalg.norm(points, axis=1)
            best = {f"doc-{n}" for n in np.argsort(-likeness)[:10]}
            hits += len(best & {hit.id for hit in destination.nearest("vector", question, 10)})
        return hits / 1000

    write(tmp_path / "edited", range(len(points)), 0)
    for turn in range(1, 21):
        chosen = np.random.default_rng(turn).choice(len(points), len(points) // 10, replace=False)
        points[chosen] = np.random.default_rng(100 + turn).standard_normal((len(chosen), 32)).astype(np.float32)
        write(tmp_path / "edited", chosen, turn)
    write(tmp_path / "fresh", range(len(points)), 0)
    edited, fresh = recall(tmp_path / "edited"), recall(tmp_path / "fresh")
    sizes = [sum(f.stat().st_size for f in (tmp_path / n).rglob("*") if f.is_file()) for n in ("edited", "fresh")]
    assert edited >= 0.95 * fresh
    assert sizes[0] <= 2 * sizes[1]
    record_property("figures", f"recall {edited:.3f} of {fresh:.3f}, size {sizes[0] / sizes[1]:.2f}")


def test_the_table_remembers_the_model(tmp_path: Path) -> None:
    """Another one is refused with the way on; a plan that begins to name one is believed."""

    def named(model: str) -> LanceDB:
        return LanceDB(tmp_path / "index", vectors={"vector": VectorField(4, model=model)})

    for model in ("", "m1", "m1", ""):
        named(model).check()
    with pytest.raises(Misconfigured, match=r"model m1 there.*--from-version"):
        named("m2").check()
