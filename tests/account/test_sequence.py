"""Sequences grow with every commit and row, over waves, restarts and lost states."""

from __future__ import annotations

import itertools
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.state.state import State
from tests.support import NOT_SOON_S
from tests.support.plan_world import Interrupted, PlanWorld, Until


def by_id(lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in lines:
        found.setdefault(line["id"], []).append(line["seq"])
    return found


@pytest.mark.rule("destination.sequence")
def test_sequences_grow_over_waves_and_restarts(trial: PlanWorld) -> None:
    """Later deliveries of an id have higher ones, no two have the same; each commit's are above the last's."""
    highest = 0
    for turn in range(4):
        trial.put("a", "b", "c", text=f"turn {turn}")
        trial.put(f"new {turn}")
        before = len(trial.out().lines())
        trial.run()
        fresh = [line["seq"] for line in trial.out().lines()[before:]]
        assert min(fresh) > highest
        highest = max(fresh)
    lines = trial.out().lines()
    assert len({line["seq"] for line in lines}) == len(lines) == 16
    assert all(a < b for seqs in by_id(lines).values() for a, b in itertools.pairwise(seqs))


@pytest.mark.rule("destination.sequence")
def test_a_delete_has_a_higher_sequence_than_what_it_deletes(trial: PlanWorld) -> None:
    """And what comes back after it a higher one still."""
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    trial.put("a")
    trial.run()
    assert [line["op"] for line in trial.out().lines() if line["id"] == "a"] == ["upsert", "delete", "upsert"]
    one, two, three = by_id(trial.out().lines())["a"]
    assert one < two < three


def test_every_attempt_has_the_same_sequence(trial: PlanWorld) -> None:
    """It is the delivery's, not the attempt's; also after the outbox file was rewritten and merged."""

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.ok() if delivery.attempt == 3 or delivery.id == "b" else Outcome.transient("not yet")

    trial.build(answer=answer)
    trial.put("a", "b", "c")
    trial.run()
    assert all(len(set(seqs)) == 1 for seqs in by_id(trial.out().lines()).values())
    assert [line["attempt"] for line in trial.out().lines() if line["id"] == "a"] == [1, 2, 3]
    hashes = {(line["id"], line["hash"]) for line in trial.out().lines()}
    assert len(hashes) == 3


def test_merging_the_outbox_keeps_sequences(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait for long are merged into one file; each keeps its own."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 3)
    trial.build(answer=lambda d: Outcome.transient("not yet"), backoff=NOT_SOON_S, attempts=9)
    for id in "abcdef":
        trial.put(id)
        trial.run(wait=0)
    sent = {id: set(sequences) for id, sequences in by_id(trial.out().lines()).items()}
    assert all(len(sequences) == 1 for sequences in sent.values())
    state = State(trial.root, trial.plan)
    state.load()
    assert len(state.outbox.files) <= 3
    trial.build(answer=lambda d: Outcome.ok())
    trial.retry()
    trial.run()
    assert {id: set(sequences) for id, sequences in by_id(trial.out().lines()).items()} == sent
    assert [line["id"] for line in trial.out().lines()[-6:]] == list("abcdef")


def test_a_wave_that_was_not_committed_leaves_its_sequences_to_the_next(trial: PlanWorld) -> None:
    """Nobody has seen them; what was committed and not sent keeps them."""
    trial.put("a")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "commit"), checked=False)
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "deliver"), checked=False)
    state = State(trial.root, trial.plan)
    state.load()
    [file] = state.outbox.files.values()
    trial.run()
    assert by_id(trial.out().lines()) == {"a": [int(file.partition["first_sequence"])]}


def test_a_state_that_was_lost_and_made_anew_still_overwrites(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh state begins at its creation time, far above what the old one can have used in between."""
    trial.put(*(f"d{i}" for i in range(5)))
    trial.run()
    old = max(line["seq"] for line in trial.out().lines())
    shutil.rmtree(trial.root)
    later = (old // limits.SEQUENCE_PER_SECOND) + 1
    monkeypatch.setattr("ferryman.state.state.time", SimpleNamespace(time=lambda: float(later)))
    trial.out().forget()
    trial.run()
    assert min(line["seq"] for line in trial.out().lines()) > old


def test_sequences_fit_into_a_double(trial: PlanWorld) -> None:
    """Below 2**53, so that JSON keeps them; with room for two centuries."""
    trial.put("a")
    trial.run()
    [line] = trial.out().lines()
    assert line["seq"] < 2**53
    year_2240 = 8_520_336_000
    assert year_2240 * limits.SEQUENCE_PER_SECOND < 2**53
