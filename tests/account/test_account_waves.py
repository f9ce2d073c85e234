"""The account in the middle of a wave, and what shows that something is lost."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Self

import pytest

from ferryman import account
from ferryman.records import rows
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.situations import answer, step


def test_a_committed_wave_counts_before_it_is_settled(trial: PlanWorld) -> None:
    """Rows of the outbox without an event are BATCHED and owed; what the steps ended counts at once."""
    trial.build(step, answer=answer)
    trial.put("a", "b")
    trial.put("c", text="drop")
    trial.documents.append({"id": "bad", "field": 1j})
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "deliver"), checked=False)
    status = trial.status()
    assert trial.counts() == {"pending": 2, "dropped": 1, "rejected": 1}
    assert status["balanced"]
    assert status["waves"] == 1
    assert status["sources"] == {"docs": {"documents": 4, "deleted": 0, "again": 0}}
    assert {d["document"]: d["status"] for d in trial.deliveries()} == {
        "a": "BATCHED",
        "b": "BATCHED",
        "c": "DROPPED",
        "bad": "ERROR_DOC",
    }
    assert trial.statuses("a") == ["BATCHED"]
    assert [d["document"] for d in trial.deliveries(status="batched")] == ["a", "b"]
    trial.run()


@pytest.mark.parametrize("phase", ["deliver", "settle"])
def test_a_second_wave_that_is_not_settled(trial: PlanWorld, phase: str) -> None:
    """The changed document's new version is owed, its old one no more counted; a delete is owed as a delete."""
    trial.put("a", "b", "c")
    trial.run()
    trial.put("a", text="two")
    trial.drop("b")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, phase), checked=False)
    assert trial.counts() == {"delivered": 1, "pending": 2}
    assert trial.status()["balanced"]
    assert trial.statuses("a") == ["INDEXED", "BATCHED"]
    assert [(d["operation"], d["status"]) for d in trial.deliveries() if d["document"] == "b"] == [
        ("delete", "BATCHED")
    ]
    left = account.outstanding(trial.root, trial.plan)
    assert left == {"failed": 0, "rejected": 0, "in_doubt": 0, "pending": 2}
    trial.run()
    assert trial.counts() == {"delivered": 2, "deleted": 1}


class SetBack(dt.datetime):
    """A clock that goes an hour after the others."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Self:
        return super().now(tz) - dt.timedelta(hours=1)


def test_start_times_of_waves_are_in_order(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the clock has been set back."""
    trial.put("a")
    trial.run()
    monkeypatch.setattr(rows, "dt", SimpleNamespace(**{**vars(dt), "datetime": SetBack}))
    trial.put("b")
    trial.run()
    started = [wave["created"] for wave in account.waves(trial.root, plan=trial.plan)]
    assert len(started) >= 2
    assert started == sorted(started, reverse=True)


def test_a_wave_that_is_not_committed_does_not_count(trial: PlanWorld) -> None:
    """Nobody sees what is staged."""
    trial.put("a")
    trial.run()
    trial.put("a", "b", text="two")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, "commit"), checked=False)
    assert trial.counts() == {"delivered": 1}
    assert trial.statuses("b") == []
    assert trial.status()["waves"] == 1
    trial.run()


def test_questions_change_nothing(trial: PlanWorld) -> None:
    """Not a byte, in a settled state and in the middle of a wave; and they need no lock."""
    trial.put("a")
    trial.run()
    trial.put("b")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, "settle"), checked=False)
    before = {p: p.read_bytes() for p in trial.root.rglob("*") if p.is_file()}
    with trial.folder.joinpath("anything").open("w"):
        trial.status()
        trial.deliveries()
        trial.history("a")
        account.waves(trial.root)
        account.outstanding(trial.root, trial.plan)
    assert {p: p.read_bytes() for p in trial.root.rglob("*") if p.is_file()} == before
    with trial.take():
        after = trial.status()
    assert after["waves"] == 2
    trial.run()


def test_a_loss_shows(trial: PlanWorld) -> None:
    """If the ledger lost a delivery, ``status`` says that it does not add up."""
    trial.put("a", "b")
    trial.run()
    assert trial.status()["balanced"]
    with trial.take() as state:
        state.ledger.commit("compact", removes=list(state.ledger.files))
    assert not trial.status()["balanced"]
    assert trial.counts() == {}


def test_a_double_end_shows(trial: PlanWorld) -> None:
    """If a delivery ended twice, ``status`` says so."""
    trial.put("a")
    trial.run()
    with trial.take() as state:
        from ferryman.storage.parquet import read_part, write_part

        [path] = state.ledger.paths()
        rows = read_part(path)
        state.ledger.commit("ledger", adds=[state.ledger.data_file(write_part(state.ledger.folder, rows, epoch=1))])
    assert not trial.status()["balanced"]
