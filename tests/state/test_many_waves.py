"""Many small waves: the number of files stays bounded, a wave does not get slower, and nothing is forgotten."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.observe import Silent
from tests.support.plan_world import PlanWorld
from tests.support.tiers import sampled

TABLES = ("outbox", "documents", "ledger")


class Enough(Exception):
    """Ends a run that would go on for ever."""


class Scans:
    """Changes something before each scan of ``run --every 0s``, measures, and ends it after so many."""

    def __init__(self, trial: PlanWorld, waves: int, most_files: int) -> None:
        self.trial = trial
        self.waves = waves
        self.most_files = most_files
        self.done = 0
        self.seconds: list[float] = []
        self.files: list[int] = []
        self._chance = random.Random(1)
        self._began = time.perf_counter()

    def __call__(self, _pause: float) -> None:
        """In place of ``time.sleep`` between two scans."""
        self.seconds.append(time.perf_counter() - self._began)
        self.files.append(sum(p.is_file() for p in self.trial.root.rglob("*")))
        assert self.files[-1] <= self.most_files, f"{self.files[-1]} files after {self.done} waves"
        self.done += 1
        if self.done >= self.waves:
            raise Enough
        self.change()
        self._began = time.perf_counter()

    def change(self) -> None:
        """One of twenty documents: new, changed, or gone."""
        id = f"d{self._chance.randrange(20)}"
        if self._chance.random() < 0.2 and len(self.trial.documents) > 10:
            self.trial.drop(self._chance.choice(self.trial.documents)["id"])
        else:
            self.trial.put(id, text=f"{id} as of {self.done}")


def some_fail(delivery: Delivery) -> Outcome:
    """Some are refused for good, some the first time, by their content: parked and waiting rows are met too."""
    at = int(delivery.text().rpartition(" ")[2] or 0) if delivery.operation == "upsert" else 1
    if at % 17 == 0:
        return Outcome.permanent("refused")
    if at % 11 == 0 and delivery.attempt == 1:
        return Outcome.transient("not the first time")
    return Outcome.ok()


def carry(trial: PlanWorld, waves: int, most_files: int) -> Scans:
    """So many scans in one run, each with one change."""
    trial.build(answer=some_fail)
    trial.put(*(f"d{i}" for i in range(20)), text="x 1")
    scans = Scans(trial, waves, most_files)
    with pytest.raises(Enough):
        trial.run(every=0, sleep=scans, observer=Silent(), checked=False)
    trial.run(wait=0)  # and everything is checked
    return scans


def history_is_complete(trial: PlanWorld) -> None:
    """Every delivery that arrived has its event; every id its revisions without a gap."""
    events: list[dict[str, Any]] = []
    for i in range(20):
        found = trial.history(f"d{i}")
        revisions = {e["revision"] for e in found}
        assert revisions == set(range(1, len(revisions) + 1)), f"d{i}: {sorted(revisions)}"
        events += found
    arrived = Counter(line["hash"] for line in trial.out().lines() if line["said"] == "ok")
    assert set(arrived.values()) == {1}
    assert {e["delivery_hash"] for e in events if e["status"] == "INDEXED"} == set(arrived)
    refused = {line["hash"] for line in trial.out().lines() if line["said"] == "permanent"}
    assert {e["delivery_hash"] for e in events if e["status"] == "DEAD"} == refused


@pytest.mark.parametrize("waves", sampled([40, 100], 2))
def test_files_stay_few_over_many_waves(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, waves: int) -> None:
    """With maintenance every eighth wave: never more than 130 files, whatever was changed, refused or retried."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 8)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 8)
    carry(trial, waves, most_files=130)
    history_is_complete(trial)


def test_files_stay_few_over_many_starts(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that finds nothing to do adds to the logs too (its epoch): they are folded all the same."""
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 5)
    trial.put("a")
    trial.run()
    files = []
    for _ in range(20):
        trial.run(checked=False)
        files.append(sum(p.is_file() for p in trial.root.rglob("*")))
    assert max(files) <= 50, files
    trial.run()


def test_files_stay_few_over_many_words_of_a_person(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retry` without a run after it: the next run folds what piled up."""
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr(limits, "COMPACT_FILES", 5)
    trial.build(answer=lambda d: Outcome.permanent("no"))
    trial.put("a")
    trial.run()
    for _ in range(10):
        trial.retry(force=True)
    trial.run()
    assert sum(p.is_file() for p in trial.root.rglob("*")) <= 60
    assert trial.statuses("a") == ["DEAD", *["FORCE"] * 10, "DEAD"]


def bound() -> int:
    """What the default settings allow: for each table its data files, log and marks; lock, name, journal."""
    data = 2 * limits.COMPACT_FILES + 8  # of two classes of size; those of PART_BYTES / 4 and more are not merged
    logs = 2 * (limits.CHECKPOINT_COMMITS + 8)
    return len(TABLES) * (data + logs) + 20


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_ten_thousand_waves(trial: PlanWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings as they are: files bounded, and the last hundred waves take less than twice the first."""
    scans = carry(trial, 10_000, most_files=bound())
    early, late = (statistics.median(s) for s in (scans.seconds[50:150], scans.seconds[-100:]))
    with capsys.disabled():
        times = f"{early * 1e3:.0f} ms a wave at 100, {late * 1e3:.0f} ms at 10 000"
        sys.stderr.write(f"\n10 000 waves: {times}; {max(scans.files)} files at most\n")
    history_is_complete(trial)
    assert late < 2 * early
