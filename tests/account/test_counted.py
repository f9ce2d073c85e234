"""What ``status`` says of a large state is kept in a file: read only if it is of this very moment, and verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.account.relations import View
from ferryman.destinations.base import Outcome
from ferryman.engine import run
from ferryman.engine.run import CountCache
from ferryman.errors import StateDamaged
from ferryman.operations import check
from ferryman.state.state import COUNTED
from ferryman.storage import files
from ferryman.storage import files as seals
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import Interrupted, PlanWorld, Until


@pytest.fixture
def trial(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> PlanWorld:
    """Every state is large; one document was refused, two were delivered, one of them in two versions."""
    monkeypatch.setattr(limits, "COUNTED_EVENTS", 0)
    trial.build(answer=lambda d: Outcome.permanent("no") if d.id == "bad" else Outcome.ok())
    trial.put("a", "b", "bad")
    trial.run()
    trial.put("a", text="two")
    trial.run()
    return trial


@pytest.fixture
def nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on whoever counts fails."""

    def counted(*_: object) -> Any:
        raise AssertionError("it counts")

    def begin() -> None:
        for name in ("status", "outstanding", "waves", "has_not_read"):
            monkeypatch.setattr(View, name, counted)

    return begin


def questions(trial: PlanWorld) -> list[Any]:
    return [
        trial.status(),
        account.outstanding(trial.root, trial.plan),
        account.waves(trial.root, plan=trial.plan),
        account.has_not_read(trial.root, trial.plan),
    ]


@pytest.mark.rule("status.kept")
def test_what_was_counted_is_read(trial: PlanWorld, nothing_is_counted: Callable[[], None]) -> None:
    """It is what counting says; and a run that finds nothing new does not count again."""
    kept = questions(trial)
    (trial.root / COUNTED).unlink()
    assert questions(trial) == kept
    assert kept[0]["destinations"]["out"]["failed"] == 1
    trial.run()
    nothing_is_counted()
    assert questions(trial) == kept
    trial.run(checked=False)


def test_counts_of_another_version_are_not_read(trial: PlanWorld) -> None:
    """It counted other things of a wave; so neither they nor the snapshot with them are taken."""
    kept = questions(trial)
    found: Any = files.unseal(trial.root / COUNTED)
    for waves in (found["waves"], found["snapshot"]["waves"]):
        for wave in waves:
            del wave["rejected"]
    files.replace(trial.root / COUNTED, files.seal(found))
    assert questions(trial) == kept


def test_merged_files_say_the_same(
    trial: PlanWorld, nothing_is_counted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a wave makes what is kept old."""
    kept = questions(trial)
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    nothing_is_counted()
    trial.run(checked=False)
    with trial.take() as state:
        assert len(state.ledger.files) == 1
    assert questions(trial) == kept


@pytest.mark.rule("status.kept")
@pytest.mark.parametrize("phase", ["deliver", "settle", "count"])
def test_after_a_wave_everything_is_counted_anew(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """Whether a kill leaves it unsettled, or settled and not counted."""
    before = trial.status()
    trial.put("new")
    trial.drop("b")

    def killed(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr(run, "cache_counts", killed)
    with pytest.raises(Interrupted):
        trial.run(observer=Until(3, phase), checked=False)
    found = questions(trial)
    assert found[0] != before
    (trial.root / COUNTED).unlink()
    assert questions(trial) == found


def test_another_plan_is_counted_by_itself(trial: PlanWorld) -> None:
    """A destination that the plan has now lacks all documents: it does not balance."""
    assert trial.status()["balanced"]
    trial.build()
    [source] = [node for node in trial.plan.nodes if node.kind == "source"]
    trial.plan.destination("more", trial.out(), after=[source.name])
    assert not trial.status()["balanced"]


@pytest.mark.rule("status.kept")
def test_a_file_that_is_wrong_is_found_by_check(trial: PlanWorld) -> None:
    """It counts again, compares, and says what to do."""
    path = trial.root / COUNTED
    found: Any = seals.unseal(path)
    found["status"]["destinations"]["out"]["delivered"] += 1
    files.replace(path, seals.seal(found))
    [finding] = check(trial.root)
    assert finding.path == str(path)
    assert finding.remedy.startswith("remove this file")
    path.unlink()
    assert check(trial.root) == []


def test_a_damaged_file_stops_nobody(trial: PlanWorld) -> None:
    """Questions count anew, and so does the next run, which keeps it again."""
    before = questions(trial)
    path = trial.root / COUNTED
    path.write_bytes(path.read_bytes()[:-3])
    assert [finding.path for finding in check(trial.root)] == [str(path)]
    assert questions(trial) == before
    trial.run()
    assert check(trial.root) == []
    assert questions(trial) == before


def test_a_file_of_another_format_is_none(trial: PlanWorld) -> None:
    """Whoever finds it counts."""
    path = trial.root / COUNTED
    files.replace(path, seals.seal({"of": "something else"}))
    assert trial.status()["balanced"]
    assert check(trial.root) == []


def test_a_missing_data_file_is_named_all_the_same(trial: PlanWorld) -> None:
    """Although no data file is read."""
    with trial.take() as state:
        path = state.ledger.paths()[0]
    path.unlink()
    with pytest.raises(StateDamaged, match=path.name):
        trial.status()


def test_small_states_keep_nothing(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted when somebody asks."""
    (trial.root / COUNTED).unlink()
    monkeypatch.setattr(limits, "COUNTED_EVENTS", 100)
    trial.run()
    assert not (trial.root / COUNTED).exists()


def test_an_endless_run_counts_in_a_small_part_of_the_time(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting that took two seconds is not done again for forty."""
    now = [100.0]
    counted = []

    def cache_counts(*_: object, **__: object) -> None:
        counted.append(now[0])
        now[0] += 2

    monkeypatch.setattr(run, "cache_counts", cache_counts)
    with trial.take() as state:
        counter = CountCache(state, clock=lambda: now[0])
        for _ in range(12):
            counter.refresh()
            now[0] += 10
    assert counted == [100.0, 142.0, 184.0]


def test_a_run_that_goes_on_keeps_it(trial: PlanWorld) -> None:
    """After its first wave."""
    trial.put("c")

    def stop(_pause: float) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        trial.run(runner=InProcess(), every=0, sleep=stop, checked=False)
    found: Any = seals.unseal(trial.root / COUNTED)
    assert found["status"]["destinations"]["out"]["delivered"] == 3
