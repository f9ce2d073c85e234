"""The account: what `deliveries` and `history` say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import account
from ferryman.cli.app import start
from ferryman.destinations.base import Delivery, Outcome
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from ferryman.records.rows import LEDGER_COLUMNS
from ferryman.sources import Memory
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder
from tests.support.situations import answer, step

# --- docs -----------------------------------------------------------------------------------------------


@pytest.fixture
def two_ways(trial: PlanWorld) -> tuple[PlanWorld, Plan]:
    """Two sources, each to a destination of its own; the second refuses everything."""
    trial.build(step, answer=answer)
    plan = trial.plan
    other = Recorder(trial.folder / "other", lambda d: Outcome.permanent("refused"))
    plan.source("more", Memory([{"id": "x"}, {"id": "a"}])).destination("other", other)
    trial.put("a", "b")
    trial.put("c", text="drop")
    run_plan(plan, trial.state)
    return trial, plan


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {("docs", "a"), ("docs", "b"), ("docs", "c"), ("more", "a"), ("more", "x")}),
        ({"status": "indexed"}, {("docs", "a"), ("docs", "b")}),
        ({"status": "Dead"}, {("more", "a"), ("more", "x")}),
        ({"destination": "out"}, {("docs", "a"), ("docs", "b"), ("docs", "c")}),
        ({"source": "more"}, {("more", "a"), ("more", "x")}),
        ({"source": "docs", "status": "dropped"}, {("docs", "c")}),
        ({"source": "docs", "destination": "other"}, set()),
        ({"status": "indexed", "destination": "out", "source": "docs"}, {("docs", "a"), ("docs", "b")}),
        ({"source": "'; DROP TABLE ledger; --"}, set()),
    ],
)
def test_documents_are_listed_by_what_is_asked(
    two_ways: tuple[PlanWorld, Plan], filters: dict[str, str], found: set[tuple[str, str]]
) -> None:
    """Filters narrow it down together."""
    trial, plan = two_ways
    rows = account.deliveries(trial.root, plan=plan, **filters)  # type: ignore[arg-type]
    assert {(r["source"], r["document"]) for r in rows} == found
    assert len(rows) == len(found)
    assert list(account.iter_deliveries(trial.root, plan=plan, **filters)) == rows  # type: ignore[arg-type]
    assert account.count_deliveries(trial.root, plan=plan, **filters) == len(rows)  # type: ignore[arg-type]


def test_the_newest_come_first(trial: PlanWorld) -> None:
    """By wave; and no more than are asked for."""
    for id in "abc":
        trial.put(id)
        trial.run()
    assert [d["document"] for d in trial.deliveries()] == ["c", "b", "a"]
    assert [d["document"] for d in trial.deliveries(limit=2)] == ["c", "b"]
    assert trial.deliveries(limit=0) == []
    trial.put("a", text="two")
    trial.run()
    assert [d["document"] for d in trial.deliveries()] == ["a", "c", "b"]
    assert [d["document"] for d in account.iter_deliveries(trial.root, limit=2)] == ["a", "c"]
    assert account.count_deliveries(trial.root) == 3, "of each its latest event alone"


def test_deliveries_come_while_a_driver_commits(trial: PlanWorld) -> None:
    """What was asked is answered to its end, whatever is committed and removed meanwhile; then nothing is left open."""
    trial.put(*(f"d{n}" for n in range(5000)))
    trial.run()
    rows = account.iter_deliveries(trial.root, plan=trial.plan)
    found = [next(rows)["document"]]
    trial.put("late")
    trial.run()
    found += [each["document"] for each in rows]
    assert sorted(found) == sorted(f"d{n}" for n in range(5000))
    rows = account.iter_deliveries(trial.root, plan=trial.plan)
    assert next(rows)["document"] == "late"
    rows.close()
    assert account.count_deliveries(trial.root) == 5001


def test_rows_have_the_public_columns(two_ways: tuple[PlanWorld, Plan]) -> None:
    """Those that are documented, in this order; times as text that sorts."""
    trial, _ = two_ways
    for row in (*trial.deliveries(), *trial.history("a")):
        assert list(row) == LEDGER_COLUMNS
        assert row["created"][:2] == "20"
        assert row["created"].endswith("+00:00")


# --- history --------------------------------------------------------------------------------------------


@pytest.mark.rule("retry.counted")
def test_history_is_in_the_order_of_what_happened(trial: PlanWorld) -> None:
    """Every attempt of every revision, the oldest first."""

    def second(delivery: Delivery) -> Outcome:
        return Outcome.ok() if delivery.attempt > 1 else Outcome.transient("not the first time")

    trial.build(answer=second)
    for text in ("one", "two", "one"):
        trial.put("a", text=text)
        trial.run()
    trial.drop("a")
    trial.run()
    events = trial.history("a")
    assert [e["status"] for e in events] == ["ERROR", "INDEXED"] * 4
    assert [e["revision"] for e in events] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [e["operation"] for e in events] == ["upsert"] * 6 + ["delete"] * 2
    assert [e["attempt"] for e in events] == [1, 2] * 4
    assert [e["wave"] for e in events] == sorted(e["wave"] for e in events)
    assert len({e["delivery_hash"] for e in events}) == 4
    assert trial.history("b") == []


def test_waves_are_told_newest_first(trial: PlanWorld) -> None:
    """What each came to."""
    trial.build(answer=answer, backoff=3600)
    trial.put("a", "b")
    trial.run()
    trial.put("c", text="refuse")
    trial.put("d")
    trial.put("e", text="fail")
    trial.run(wait=0)
    last, first = ({**wave, "created": ""} for wave in account.waves(trial.root))
    none = {"created": "", "delivered": 0, "failed": 0, "rejected": 0, "in_doubt": 0, "pending": 0}
    assert last == none | {"wave": 2, "events": 3, "delivered": 1, "failed": 1, "pending": 1}
    assert first == none | {"wave": 1, "events": 2, "delivered": 2}
    assert [w["wave"] for w in account.waves(trial.root, limit=1)] == [2]


def test_an_id_with_half_a_character_is_looked_for_as_it_is_stored(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a terminal gives a name that is not UTF-8: a source's id of that kind is stored escaped. One that is not there
    is said to be not there."""
    plan = place / "plan.py"
    plan.write_text(
        "from ferryman import Plan\nfrom ferryman.destinations import Null\nfrom ferryman.sources import Memory\n"
        "plan = Plan('odd')\nplan.source('docs', Memory([{'id': 'caf\\\\udce9.txt'}])).destination('out', Null())\n"
    )
    run_plan(load_plan(str(plan)), place / "state", checked=False)
    arguments = [str(plan), "--state", str(place / "state")]
    assert start(["history", *arguments, "caf\udce9.txt"]) == 0
    assert start(["deliveries", *arguments, "--family", "caf\udce9.txt"]) == 0
    assert start(["retry", *arguments, "--force", "--doc", "caf\udce9.txt", "--why", "\udce9"]) == 0
    assert start(["retry", *arguments, "--force", "--doc", "caf\udce8.txt"]) == 0
    assert start(["retry", *arguments, "--destination", "typo"]) == 2
    assert start(["preview", *arguments, "--doc", "caf\udce9.txt"]) == 0
    said = capsys.readouterr().out
    assert said.count("delivered") + said.count("INDEXED") >= 2
    assert "1 due now" in said.partition("Nothing matches")[0]
    assert start(["history", *arguments, "caf\udce8.txt"]) != 0
    said = capsys.readouterr().err
    assert "there is no such document" in said
    assert "caf\\udce9.txt" in said.partition("Nearest")[2]
