"""A library's plan as a whole: two sources of 44 plays, a tee, a classification into three branches, and what fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

KINDS = ["comedy", "history", "tragedy"]
PLAYS = 44


@pytest.fixture(params=["in process", pytest.param("spark", marks=pytest.mark.spark)])
def runner(request: pytest.FixtureRequest) -> Any:
    return InProcess() if request.param == "in process" else request.getfixturevalue("spark")


def kind_of(n: int) -> str:
    return KINDS[n % 4] if n % 4 < 3 else "other"


def library(place: Path) -> PlanWorld:
    """Sources ``left`` and ``right`` with 44 documents each, the same ids."""
    net = PlanWorld.empty(place)
    for source in ("left", "right"):
        net.source(source)
        for n in range(PLAYS):
            net.put(f"play{n:02}", source=source, kind=kind_of(n), text=f"{source} {n}")
    return net


def failing_once(net: PlanWorld, *numbers: int) -> Any:
    """A step that fails the first call for these plays, of each source: known calls, on any runner."""
    wanted = {f"play{n:02}" for n in numbers}
    folder = net.folder

    def step(doc: Document) -> Document:
        mark = folder / f"{doc.text().replace(' ', '-')}.failed"
        if doc.id in wanted and not mark.exists():
            mark.touch()
            raise TransientError("not yet")
        return doc

    return step


def test_counts_agree_and_a_failing_branch_is_alone(place: Path, runner: Any) -> None:
    """At the tee, and at the ends; exactly as many ERROR events as calls failed, and no other new event."""
    net = library(place)
    joined = net.plan.step("join", lambda doc: doc, after=["left", "right"])
    kind = joined.tee("seen", net.out("seen")).route("by-kind", ByField("kind", default="other"))
    kind.step("comedy", failing_once(net, 0, 8, 12)).destination("comedies", net.out("comedies"), backoff=0)
    kind.destination("history", net.out("history"))
    kind.destination("other", net.out("other"))  # tragedies, too: they match no branch
    summary = net.run(runner=runner)
    assert (summary.exit, summary.delivered, summary.waves) == (0, 4 * PLAYS, 2)
    expected = Counter(kind_of(n) for n in range(PLAYS))
    assert sum(net.arrived("seen").values()) == 2 * PLAYS
    assert sum(net.arrived("comedies").values()) == 2 * expected["comedy"]
    assert sum(net.arrived("history").values()) == 2 * expected["history"]
    assert sum(net.arrived("other").values()) == 2 * (expected["tragedy"] + expected["other"])
    assert all(set(net.arrived(name).values()) == {2} for name in ("seen", "comedies", "history", "other"))
    events = Counter((e["destination"], e["status"], e["wave"]) for e in rows(net.root, "ledger"))
    assert {key: n for key, n in events.items() if key[1] == "ERROR"} == {("comedies", "ERROR", 1): 6}
    assert {key for key in events if key[2] == 2} == {("comedies", "INDEXED", 2)}
    assert events["comedies", "INDEXED", 2] == 6
    status = account.status(net.root, net.plan)
    for name in ("comedies", "history", "other"):
        assert status["destinations"][name]["delivered"] + status["destinations"][name]["dropped"] == 2 * PLAYS


def test_copies_are_delivered_by_the_branch_they_were_first_given(place: Path, runner: Any) -> None:
    """A duplicate and rejoin above (two routes), a round robin below, of which a branch fails once."""
    net = library(place)
    twice = net.plan.route("twice", Duplicate(), after=["left", "right"])
    near, far = twice.step("near", lambda doc: doc), twice.step("far", lambda doc: doc)
    turns = net.plan.route("turns", RoundRobin(), after=[near, far])
    turns.step("odd", failing_once(net, *range(0, PLAYS, 3))).destination("one", net.out("one"), backoff=0)
    turns.step("even", failing_once(net, *range(0, PLAYS, 3))).destination("two", net.out("two"), backoff=0)
    summary = net.run(runner=runner)
    assert (summary.exit, summary.delivered) == (0, 4 * PLAYS)
    both = net.arrived("one") + net.arrived("two")
    assert both == {f"play{n:02} by {way}": 2 for n in range(PLAYS) for way in ("near", "far")}
    ledger = rows(net.root, "ledger")
    first = {_copy(e): e["branches"] for e in ledger if e["status"] == "ERROR" and e["wave"] == 1}
    last = {_copy(e): e["branches"] for e in ledger if e["status"] == "INDEXED"}
    assert len(last) == 4 * PLAYS
    assert 2 * len(range(0, PLAYS, 3)) <= len(first)
    assert all(last[copy] == branches for copy, branches in first.items())
    counts = [sum(net.arrived(name).values()) for name in ("one", "two")]
    assert abs(counts[0] - counts[1]) <= 2 * 2 * 2, "±1 a task"


def _copy(event: dict[str, Any]) -> tuple[str, str, str]:
    return event["source"], event["document"], event["route"]
