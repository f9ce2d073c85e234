"""Shapes that branch and join; copies, turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.plan import Plan
from ferryman.routers import ByField, Duplicate, RoundRobin
from tests.crash.shapes.shape import BATCH, Arrived, Shelf, failing, source, upserts

# -- two sources joined, a tee, a router by a field, three branches ----------------------------------------------------


PLAYS = {"much-ado": "comedy of Messina", "hamlet": "tragedy of Elsinore", "lear": "tragedy of age", "torn": "?"}
POEMS = {"venus": "poem", "lucrece": "poem, refused", "parody": "comedy in verse", "phoenix": "tragedy in verse"}


def kind(doc: Document) -> Document:
    if doc.text() == "?":
        raise PermanentError("it is torn")
    doc["kind"] = doc.text().split()[0]
    return doc


def build_join(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("join", version=1)
    both = plan.step("kind", kind, after=[source(plan, "plays", PLAYS), source(plan, "poems", POEMS)])
    teed = both.tee("seen", Shelf(root, "seen"), guarantee=guarantee(2), batch=BATCH, backoff=0)
    by = teed.route("by-kind", ByField("kind", default="rest"))
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    comedies, rest = Shelf(root, "comedy", {"much-ado": "first"}), Shelf(root, "rest", {"lucrece": "refuse"})
    by.destination("comedy", comedies, guarantee=guarantee(0), **policy)
    late = by.step("tragedy", failing(root, "tragedy", {"lear": 2}))
    late.destination("tragedies", Shelf(root, "tragedies"), guarantee=guarantee(1), **policy)
    by.destination("rest", rest, guarantee=guarantee(2), **policy)
    return plan


def expected_join() -> dict[str, Arrived]:
    fine = {i: t for i, t in {**PLAYS, **POEMS}.items() if t != "?"}
    return {
        "seen": upserts(fine),
        "comedy": upserts({i: t for i, t in fine.items() if t.startswith("comedy")}),
        "tragedies": upserts({i: t for i, t in fine.items() if t.startswith("tragedy")}),
        "rest": upserts({"venus": fine["venus"]}),
    }


# -- a copy down each of two ways, that meet again above a router that takes turns -------------------------------------


ROUND = [
    {"d1": "one", "d2": "two", "d3": "three", "d4": "four"},
    {"d1": "one changed", "d2": "two", "d4": "four changed", "d5": "five", "d6": "six"},
]


def by(name: str, doc: Document) -> Document:
    doc["by"] = name
    return doc


def build_rejoin(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("rejoin", version=1)
    twice = source(plan, "docs", ROUND[stage]).route("twice", Duplicate())
    ways = [twice.step(name, partial(by, name)) for name in ("near", "far")]
    spread = plan.route("spread", RoundRobin(), after=ways)
    times = {"d3": 1} if stage == 0 else {"d1": 1, "d5": 2}
    for n, name in enumerate(("east", "south", "west")):
        step = spread.step(f"{name}ward", failing(root, f"{name}-{stage}", times))
        step.destination(name, Shelf(root, name, {"d6": "first"}), guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_rejoin() -> dict[str, Arrived]:
    """Its deletes depend on who was given what: see ``check_turns``."""
    new = {i: t for i, t in ROUND[1].items() if ROUND[0].get(i) != t}
    return {"east|south|west": upserts(ROUND[0], new, route="near") + upserts(ROUND[0], new, route="far")}
