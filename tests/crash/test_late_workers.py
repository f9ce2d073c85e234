"""A killed driver's workers may go on sending: stopped before the kill, woken while the next driver delivers."""

from __future__ import annotations

import collections
import fcntl
import signal
from pathlib import Path

import pytest

from tests.crash import scenario, spark
from tests.support.zygote import Zygote

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # test_overtaken does so each time, without Spark

DOCUMENTS = 60


def corpus() -> dict[str, bytes]:
    return {f"d{i:02}.txt": f"text {i}".encode() for i in range(DOCUMENTS)}


def nobody_writes(root: Path) -> bool:
    """Is the destination's lock free? A worker stopped inside it would stop the next driver too."""
    with (root / "delivered.jsonl").open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("guarantee", scenario.GUARANTEES)
def test_late_workers_break_no_guarantee(tmp_path: Path, guarantee: str) -> None:
    """Old workers that wake up in the middle of the new driver's pass send no more than the guarantee allows."""
    scenario.write_corpus(tmp_path, corpus())
    first = spark.start(tmp_path, guarantee, shape="slow", log="first.log")
    try:
        spark.until(lambda: len(scenario.delivered(tmp_path)) >= 4 * scenario.BATCH, "the first driver delivers")
        old = spark.family(first.pid)
        spark.stop(old)
        while not nobody_writes(tmp_path):
            spark.end(old, signal.SIGCONT)
            spark.stop(old)
    finally:
        first.kill()
    first.wait()
    before = len(scenario.delivered(tmp_path))
    workers = [p for p in old if not spark.is_java(p)]
    assert workers, "the workers outlived their driver: they are stopped"
    second = spark.start(tmp_path, guarantee, shape="slow", log="second.log")
    try:
        spark.until(lambda: len(scenario.delivered(tmp_path)) > before, "the second driver delivers")
        spark.end(workers, signal.SIGCONT)
        assert second.wait(300) == 0, (tmp_path / "second.log").read_text()
    finally:
        second.kill()
        spark.end(old, signal.SIGCONT)
        spark.end(old, signal.SIGKILL)
    third = spark.start(tmp_path, guarantee, shape="slow", log="third.log")  # folds what answered late
    assert third.wait(300) == 0, (tmp_path / "third.log").read_text()

    zygote = Zygote(tmp_path)
    code, said = zygote.run(verb="late", root=str(tmp_path), guarantee=guarantee, shape="slow")
    zygote.close()
    assert code == 0, said


def check(root: Path, guarantee: str, status: dict[str, object], unknown: list[dict[str, object]]) -> None:
    """Called in a child: destination and ledger against the corpus."""
    got = collections.Counter((d["op"], d["id"]) for d in scenario.delivered(root))
    wanted = {("upsert", i) for i in corpus()}
    missing = wanted - got.keys()
    doubled = [k for k, n in got.items() if n > 1]
    in_flight = 2 * scenario.BATCH  # two lanes, a chunk each
    assert status["balanced"], status
    if guarantee == "at-most-once":
        assert not doubled
        assert missing <= {("upsert", u["document"]) for u in unknown}
        assert len(unknown) <= in_flight
        return
    assert not missing
    assert not unknown
    assert len(doubled) <= in_flight
    if guarantee == "exactly-once":
        assert not doubled
