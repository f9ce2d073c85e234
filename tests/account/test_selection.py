"""Of a large state a question reads only what it is about; the answer is what reading everything gives."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ferryman import account, limits
from ferryman.account import families, relations
from ferryman.destinations.base import Outcome
from ferryman.engine.commands import count_concerned
from ferryman.errors import StateDamaged
from ferryman.records.rows import LEDGER
from ferryman.state.commands import Command
from ferryman.state.maintenance import maintain
from ferryman.state.state import State
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.tiers import sampled

IDS = ("a", "b", "c", "d", "e", "f")
STATUSES = ("failed", "rejected", "in_doubt", "pending", "dropped", "held", "stopped", "delivered", None)


def questions(trial: PlanWorld) -> dict[str, Callable[[], Any]]:
    """Every question that may be answered from a part of the state."""
    root, plan = trial.root, trial.plan
    found: dict[str, Callable[[], Any]] = {
        "reasons": lambda: account.reasons(root, plan=plan),
        "reasons among": lambda: account.reasons(root, plan=plan, among=("failed", "rejected")),
        "by node": lambda: account.by_node(root, plan),
        "wave times": lambda: account.wave_times(root, 3, plan),
    }
    for status in STATUSES:
        for more in ({}, {"family": "a"}, {"source": "docs", "destination": "out"}):
            options: Any = {"status": status, **more}
            found[f"deliveries {options}"] = lambda options=options: account.deliveries(
                root, plan=plan, limit=9, **options
            )
            found[f"all {options}"] = lambda options=options: list(account.iter_deliveries(root, plan=plan, **options))
            found[f"number {options}"] = lambda options=options: account.count_deliveries(root, plan=plan, **options)
    for id in (*IDS, "a#part", "nobody"):
        found[f"history {id}"] = lambda id=id: account.history(root, id, plan)
        found[f"family {id}"] = lambda id=id: families.family_statuses(root, id, plan)
    for wave in (1, 3, 5):
        for limit in (2, 100):
            found[f"wave {wave} {limit}"] = lambda wave=wave, limit=limit: account.wave_events(
                root, wave, plan, limit=limit
            )
    for verb in ("retry", "resolve --as dropped", "retry --force"):
        command = Command(verb, "me", "", document="a" if "force" in verb else None)
        found[f"concerned {verb}"] = lambda command=command: count_concerned(root, plan, command)
    messages = [
        e["message"] for e in account.tables(root, plan).ledger.to_pylist() if e["status"] in ("RESTART", "FORCE")
    ]
    for message in {*messages[-2:], "nobody said this"}:
        found[f"outcomes {message}"] = lambda message=message: account.outcomes(root, message, plan)
    return found


def answers(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, events: int) -> dict[str, Any]:
    """All answers, if a state is large from so many events on."""
    monkeypatch.setattr(limits, "SELECTED_FROM", events)
    return {name: ask() for name, ask in questions(trial).items()}


@pytest.mark.parametrize("seed", sampled(range(2), 2))
def test_a_part_gives_the_answers_of_the_whole(
    trial: PlanWorld, small: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After changes, deletes, failures, outages and commands; also in the middle of a wave."""
    chance = random.Random(seed)
    outcomes = [Outcome.ok(), Outcome.permanent("no 'title' in line 7"), Outcome.transient("later")]

    def passes(doc: Any) -> Any:
        if chance.random() < 0.2:
            raise ValueError(f"a bug in {doc.id}")
        return [doc, doc.child("part", raw=b"x")] if chance.random() < 0.5 else doc if chance.random() < 0.8 else None

    trial.build(passes, answer=lambda _: chance.choice(outcomes), attempts=2)
    for turn in range(6):
        for id in chance.sample(IDS, 4):
            trial.drop(id) if chance.random() < 0.2 else trial.put(id, text=str(turn))
        if turn > 1:
            trial.retry(force=turn == 3)
        options: dict[str, Any] = {"observer": Until(turn + 1, "deliver")} if turn == 4 else {}
        with contextlib.suppress(Interrupted):
            trial.run(checked=False, wait=0, **options)
    monkeypatch.setattr(limits, "SELECTED_EVENTS", chance.choice([5, 1000]))
    everything = answers(trial, monkeypatch, 1_000_000)
    assert any(everything.values())
    assert answers(trial, monkeypatch, 0) == everything


@pytest.mark.parametrize("seed", sampled(range(8), 8))
def test_new_results_are_those_of_the_whole(trial: PlanWorld, small: None, seed: int) -> None:
    """What a driver reads of its last waves alone: whatever it says ended well did so, and each document with a failure
    of any wave is among those that may have failed; also when files were merged, and when it begins late."""
    chance = random.Random(seed)
    outcomes = [Outcome.ok()] * 5 + [Outcome.permanent("no"), Outcome.transient("later")]

    def passes(doc: Any) -> Any:
        if chance.random() < 0.1:
            raise ValueError(f"a bug in {doc.id}")
        return [doc, doc.child("part", raw=b"x")] if chance.random() < 0.5 else doc

    trial.build(passes, answer=lambda _: chance.choice(outcomes), attempts=2)
    trial.run(checked=False, wait=0)
    state = State(trial.root, trial.plan)
    readers: list[families.NewResults] = []
    said = missed = 0
    for turn in range(7):
        if turn in (0, 4):
            readers.append(families.NewResults(state))
        for id in chance.sample(IDS, 2):
            trial.drop(id) if chance.random() < 0.1 else trial.put(id, text=str(turn))
        if turn % 4 == 3:
            trial.retry()
        trial.run(checked=False, wait=0)
        state.load()
        whole = families.document_results(trial.root, trial.plan, "docs", IDS)
        failed = {id for id, result in whole.items() if result.failures}
        for reader in readers:
            found = reader.read().get("docs", {})
            assert {id: whole[id] for id in found} == found
            assert failed <= set(reader.may_have_failed("docs", IDS))
            said += len(found)
        missed += len(failed)
    assert said
    assert missed


def test_little_is_read_for_a_few_failures(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files without a failure the statistics are enough: not even one with a flipped byte is noticed."""
    monkeypatch.setattr(limits, "SELECTED_FROM", 0)
    trial.build(answer=lambda d: Outcome.permanent("no") if d.id == "bad" else Outcome.ok())
    for id in ("a", "bad", "b"):
        trial.put(id)
        trial.run(checked=False)
    read: list[Path] = []
    select = relations.select_rows

    def note(paths: Any, schema: Any, columns: Any, *rest: Any) -> Any:
        for batch in select(paths, schema, columns, *rest):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(relations, "select_rows", note)
    monkeypatch.setattr(relations, "register", None)  # nothing is read whole
    [group] = account.reasons(trial.root, plan=trial.plan, status="failed")
    assert group["example"] == "bad"
    assert sum(read) == 1


def test_failures_in_a_file_with_others_are_read_alone(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered is in other row groups: not even flipped bytes there are noticed. So after a merge."""
    monkeypatch.setattr(limits, "SELECTED_FROM", 0)
    monkeypatch.setattr(limits, "APART_EVENTS", 2)
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    trial.build(answer=lambda d: Outcome.permanent("no") if d.id in ("b", "d") else Outcome.ok())
    for ids in ("abc", "def"):
        trial.put(*ids)
        trial.run(checked=False)
    with trial.take() as state:
        maintain(state)
        [path] = state.ledger.paths()
    metadata, column = pq.read_metadata(path), LEDGER.get_field_index("status")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    statuses = [
        (each.num_rows, each.column(column).statistics.min, each.column(column).statistics.max) for each in groups
    ]
    assert statuses == [(4, "INDEXED", "INDEXED"), (2, "DEAD", "DEAD")]
    _flip_last_byte(path, groups[0].column(column))
    [group] = account.reasons(trial.root, plan=trial.plan, status="failed")
    assert group["deliveries"] == account.count_deliveries(trial.root, plan=trial.plan, status="failed") == 2
    assert [each["document"] for each in account.deliveries(trial.root, plan=trial.plan, limit=9, status="failed")] == [
        "d",
        "b",
    ]
    assert [each["document"] for each in account.wave_events(trial.root, 1, trial.plan, limit=1)] == ["b"]
    with pytest.raises(StateDamaged, match=path.name):
        account.history(trial.root, "a", trial.plan)


def _flip_last_byte(path: Path, column: pq.ColumnChunkMetaData) -> None:
    """Flip the last byte of a column's page."""
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def test_damage_in_what_is_read_is_named(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECTED_FROM", 0)
    trial.build(answer=lambda _: Outcome.permanent("no"))
    trial.put("a", "b")
    trial.run(checked=False)
    with trial.take() as state:
        paths = state.ledger.paths()
    for path in paths:
        _flip_last_byte(path, pq.read_metadata(path).row_group(0).column(LEDGER.get_field_index("status")))
    with pytest.raises(StateDamaged, match="|".join(path.name for path in paths)):
        account.reasons(trial.root, plan=trial.plan, status="failed")
