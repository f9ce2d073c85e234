"""A large state is counted from a snapshot and the events since: the result is what counting all events gives."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan, account, crash, limits
from ferryman.account import queries, relations
from ferryman.account.counts import WAVES, load_cached, load_snapshot
from ferryman.account.queries import load_for_reading, open_view
from ferryman.account.relations import View
from ferryman.account.snapshot import Snapshot, SnapshotUnusable
from ferryman.destinations.base import Outcome
from ferryman.operations import check
from ferryman.records.rows import LEDGER
from ferryman.routers import Duplicate
from ferryman.state.state import COUNTED, SNAPSHOTS
from ferryman.storage import files
from ferryman.storage.parquet import read_part, write_part
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.tiers import sampled

POINTS = ("counted.staged", "counted.kept", "counted.logged", "counted.synced")


@pytest.fixture
def trial(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> PlanWorld:
    """Every state is large, and each run writes a snapshot."""
    monkeypatch.setattr(limits, "COUNTED_EVENTS", 0)
    monkeypatch.setattr(limits, "SNAPSHOT_SHARE", 1_000_000)
    return trial


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ledger's files that queries read."""
    names: list[str] = []
    register = relations.register

    def note(db: Any, name: str, paths: list[Path], schema: Any) -> None:
        names.extend(path.name for path in paths if path.parent.name == "ledger")
        register(db, name, paths, schema)

    monkeypatch.setattr(relations, "register", note)
    return names


def ask(view: View) -> list[Any]:
    return [view.status(), view.waves(WAVES), view.ended()]


def differs(trial: PlanWorld, description: Snapshot | None) -> bool:
    """Whether counting from a snapshot, which must be valid, gives something else than counting all events."""
    with open_view(trial.root, trial.plan, description) as view:
        assert view.snapshot is not None
        found = ask(view)
    with open_view(trial.root, trial.plan) as view:
        everything = [*ask(view), view.has_not_read()]
    stored = load_cached(load_for_reading(trial.root, trial.plan))
    if stored is not None:
        assert [stored.status, stored.waves, stored.ended, stored.has_not_read] == everything
    return found != everything[:3]


def description_of(trial: PlanWorld) -> Snapshot:
    found = load_snapshot(trial.root)
    assert found is not None
    return found


def is_used(trial: PlanWorld, description: Snapshot) -> bool:
    try:
        with open_view(trial.root, trial.plan, description) as view:
            view.status()
            return view.snapshot is not None
    except SnapshotUnusable:
        return False


def fill(trial: PlanWorld, runs: int = 3, third: str = "bad") -> None:
    """Run several times; in each run three documents have changed, and ``bad`` is refused."""
    trial.build(answer=lambda d: Outcome.permanent("no") if d.id == "bad" else Outcome.ok())
    for n in range(runs):
        trial.put("a", "b", third, text=str(n))
        trial.run()


@pytest.mark.rule("status.snapshot")
def test_a_run_reads_only_the_events_since(trial: PlanWorld, read: list[str]) -> None:
    """The snapshot has a row for each document, whatever the number of events; its file is the only one."""
    fill(trial, runs=5, third="c")
    assert description_of(trial).rows == 3
    with trial.take() as state:
        before = set(state.ledger.files)
    read.clear()
    trial.put("a", text="last")
    trial.run(checked=False)
    assert read
    assert not before & set(read)
    assert not differs(trial, description_of(trial))
    assert [path.name for path in (trial.root / SNAPSHOTS).iterdir()] == [description_of(trial).file]


@pytest.mark.parametrize("seed", sampled(range(3), 3))
def test_any_changes_and_failures_are_counted_as_by_all_events(
    trial: PlanWorld, small: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Runs of which some are killed; changes, deletes, failures, outages, commands; files are merged."""
    chance = random.Random(seed)
    monkeypatch.setattr(limits, "SNAPSHOT_SHARE", chance.choice([1, 3, 1_000_000]))
    answers = [Outcome.ok(), Outcome.ok(), Outcome.permanent("no"), Outcome.transient("later")]

    def passes(doc: Any) -> Any:
        if chance.random() < 0.1:
            raise ValueError("a bug")
        return doc if chance.random() < 0.9 else None

    trial.build(passes, answer=lambda _: chance.choice(answers), attempts=2)
    used = 0
    for turn in range(10):
        for id in chance.sample("abcdef", 3):
            trial.drop(id) if chance.random() < 0.2 else trial.put(id, text=str(turn))
        if chance.random() < 0.3:
            trial.retry(force=chance.random() < 0.3)
        options: dict[str, Any] = {"wait": 0}
        if chance.random() < 0.3:
            options["observer"] = Until(turn + 2, chance.choice(["deliver", "settle", "count"]))
        try:
            trial.run(checked=False, **options)
        except Interrupted:
            continue
        description = description_of(trial)
        if is_used(trial, description):
            used += 1
            assert not differs(trial, description)
    assert used > 3


@pytest.mark.rule("status.snapshot")
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_it_is_written_changes_no_count(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fill(trial)
    trial.put("a", "new", text="other")

    def killed(name: str) -> None:
        if name == point:
            raise Interrupted

    with monkeypatch.context() as armed:
        armed.setattr(crash, "point", killed)
        with pytest.raises(Interrupted):
            trial.run(checked=False)
    assert trial.counts() == {"delivered": 3, "failed": 1}
    assert check(trial.root) == []
    trial.put("a", text="last")
    trial.run()
    assert not differs(trial, description_of(trial))
    assert [path.name for path in (trial.root / SNAPSHOTS).iterdir()] == [description_of(trial).file]


@pytest.mark.rule("status.snapshot")
@pytest.mark.parametrize("harm", ["remove", "cut", "flip"])
def test_a_damaged_snapshot_is_not_used(trial: PlanWorld, harm: str) -> None:
    """``fsck`` names it, unless it was removed; the next run with a wave writes another."""
    fill(trial)
    path = trial.root / SNAPSHOTS / description_of(trial).file
    content = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        middle = len(content) // 3
        path.write_bytes(content[:-9] if harm == "cut" else content[:middle] + b"\xff\xfe\xfd" + content[middle + 3 :])
    assert not is_used(trial, description_of(trial))
    (trial.root / COUNTED).rename(trial.root / "aside")
    everything = trial.status()
    (trial.root / "aside").rename(trial.root / COUNTED)
    assert trial.status() == everything
    assert [finding.path for finding in check(trial.root)] == [str(path)] * (harm != "remove")
    trial.put("a", text="last")
    trial.run()
    assert check(trial.root) == []
    assert not differs(trial, description_of(trial))


def test_a_state_of_an_older_version_is_counted_whole(trial: PlanWorld) -> None:
    """It has counts without a snapshot; the next run makes one."""
    fill(trial)
    found: Any = files.unseal(trial.root / COUNTED)
    del found["snapshot"]
    files.replace(trial.root / COUNTED, files.seal(found))
    shutil.rmtree(trial.root / SNAPSHOTS)
    assert load_snapshot(trial.root) is None
    trial.put("a", text="last")
    trial.run()
    assert not differs(trial, description_of(trial))


@pytest.mark.rule("status.snapshot")
def test_a_snapshot_of_another_copy_of_the_state_is_not_used(trial: PlanWorld) -> None:
    """Tables put back from a copy, with other documents since, and as many waves and events."""
    fill(trial, runs=2)
    shutil.copytree(trial.root, trial.folder / "copy")
    trial.put("a", "b", "bad", text="one branch")
    trial.run()
    cache = [files.read(trial.root / COUNTED), *(path for path in (trial.root / SNAPSHOTS).iterdir())]
    shutil.move(trial.root, trial.folder / "other")
    shutil.copytree(trial.folder / "copy", trial.root)
    trial.put("x", "y", "z", text="other branch")
    trial.drop("a", "b", "bad")
    trial.run(checked=False)
    for path in cache[1:]:
        shutil.copy(trial.folder / "other" / SNAPSHOTS / path.name, trial.root / SNAPSHOTS)
    files.replace(trial.root / COUNTED, cache[0])
    assert not is_used(trial, description_of(trial))
    trial.put("x", text="last")
    trial.run(checked=False)
    assert not differs(trial, description_of(trial))


def test_a_reader_that_is_overtaken_counts_all_events(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the description of a snapshot that a driver has replaced meanwhile."""
    fill(trial)
    old = description_of(trial)
    trial.put("a", text="last")
    trial.run()
    (trial.root / COUNTED).unlink()
    everything = trial.status()
    monkeypatch.setattr(queries, "load_snapshot", lambda _: old)
    assert trial.status() == everything


@pytest.mark.rule("status.snapshot")
def test_an_old_version_that_ends_late_is_counted_once(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had no event when the snapshot was made, and its document had a newer version already: it has a row."""
    answer = [Outcome.unavailable("down")]
    trial.out().answer = lambda _: answer[0]
    trial.plan = Plan("copied", version=1)
    copies = trial.source().route("copies", Duplicate())
    for name in ("out", "more"):
        copies.destination(name, trial.out(name), backoff=0)
    for text in ("one", "two"):
        trial.put("a", "b", text=text)
        trial.run(wait=0, checked=False)
    description, answer[0] = description_of(trial), Outcome.ok()
    assert not differs(trial, description)
    monkeypatch.setattr(limits, "SNAPSHOT_SHARE", 0)
    trial.run()
    assert description_of(trial) == description
    assert not differs(trial, description)
    assert trial.counts() == trial.counts("more") == {"delivered": 2}


def end_again(trial: PlanWorld, document: str, wave: int | None = None) -> None:
    """Write the last event of a document's delivery once more, as an error of the program would."""
    with trial.take() as state:
        table = next(t for t in map(read_part, reversed(state.ledger.paths())) if document in t["document"].to_pylist())
        row = next(r for r in table.to_pylist() if r["document"] == document)
        row |= {"wave": state.wave if wave is None else wave, "ordinal": 2}
        part = write_part(state.ledger.folder, table.from_pylist([row], LEDGER), epoch=state.epoch)
        state.ledger.commit("ledger", adds=[state.ledger.data_file(part)])


@pytest.mark.rule("status.snapshot")
def test_a_delivery_that_ended_twice_is_not_forgotten(trial: PlanWorld) -> None:
    """Its document has changed since, and no snapshot has a row for it."""
    fill(trial, runs=1)
    end_again(trial, "a", wave=2)
    for text in ("two", "three"):
        trial.put("a", text=text)
        trial.run(checked=False)
        assert not differs(trial, description_of(trial))
        assert not trial.status()["balanced"]


def test_events_that_are_written_behind_a_snapshot_are_noticed(trial: PlanWorld) -> None:
    """Of a wave that it has counted: no program does that, and none may take the snapshot for right."""
    fill(trial)
    end_again(trial, "a", wave=1)
    assert not is_used(trial, description_of(trial))
    assert not account.status(trial.root, trial.plan)["balanced"]


def test_an_event_of_a_version_that_was_left_out_is_noticed(trial: PlanWorld) -> None:
    """Nothing could tell whether it has ended for the second time."""
    fill(trial)
    with trial.take() as state:
        oldest = read_part(state.ledger.paths()[0]).to_pylist()[0]
        oldest |= {"wave": state.wave + 1, "ordinal": 2}
        part = write_part(
            state.ledger.folder, read_part(state.ledger.paths()[0]).from_pylist([oldest], LEDGER), epoch=1
        )
        state.ledger.commit("ledger", adds=[state.ledger.data_file(part)])
    assert not is_used(trial, description_of(trial))
