"""Shapes with retries, words of operators, and a new version of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from tests.crash.shapes.shape import (
    BATCH,
    Arrived,
    Corpus,
    Shelf,
    chapters,
    deletes,
    failing,
    quiet,
    source,
    upserts,
    words_of,
)

# -- waves that carry retries, and a person's words between ------------------------------------------------------------


AGAIN = [
    {"k1": "kept", "k2": "gone", "dead": "dead", "refused": "r", "unsure": "u", "slow": "s", "past": "p", "bad": "bad"},
    {"k1": "kept", "dead": "dead", "refused": "r", "unsure": "u", "slow": "s", "past": "newer", "bad": "bad",
     "n1": "twice", "n2": "never", "n3": "refused"},
]  # fmt: skip


def picky(stage: int, doc: Document) -> Document:
    if doc.text() == "bad" and stage == 0:
        raise PermanentError("bad")
    return doc


def build_retries(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("retries", version=1)
    all_ = source(plan, "docs", AGAIN[stage]).step("picky", partial(picky, stage)).route("all", Duplicate())
    one = all_.step("one-step", failing(root, f"one-{stage}", [{"dead": 99}, {"n1": 2, "n2": 99, "dead": 1}][stage]))
    three = all_.step("three-step", failing(root, f"three-{stage}", [{"slow": 9, "past": 9}, {"slow": 1}][stage]))
    two = Shelf(root, "two", [{"refused": "refuse"}, {"n3": "refuse", "refused": "first"}][stage])
    one.destination("one", Shelf(root, "one"), guarantee=guarantee(0), batch=BATCH, backoff=0)
    all_.destination("two", two, guarantee=guarantee(1), batch=BATCH, backoff=0)
    three.destination(
        "three",
        Shelf(root, "three", [{"unsure": "break"}, {}][stage]),
        guarantee=guarantee(2),
        batch=1,
        backoff=[3600, 0][stage],
    )
    return plan


def expected_retries() -> dict[str, Arrived]:
    old, new = AGAIN
    again = {i: t for i, t in new.items() if old.get(i) != t}
    late = {"bad": "bad"}  # every way was open to it only in the second stage

    def at(route: str, missing: Iterable[str], more: Corpus, given: bool = True) -> Arrived:
        first = {i: t for i, t in old.items() if i not in {*missing, "bad"}}
        second = {i: t for i, t in again.items() if i not in missing}
        return upserts(first, second, late, more, route=route) + deletes(["k2"] if given else [], route=route)

    return {
        "one": at("one-step", {"dead", "n2"}, {"dead": "dead"}),
        "two": at("two", {"refused", "n3"}, {"refused": "r"}),
        "three": at("three-step", {"slow", "past", "unsure"}, {"slow": "s", "past": "newer", "unsure": "u"}),
    }


# -- version 2 continues from version 1 -------------------------------------------------------------------------------


STILL = [{"s1": "still", "s2": "quiet"}, {"s1": "still", "s2": "quiet", "s3": "late"}]
MOVED = [{"m1": "a b", "m2": "c"}, {"m1": "a d", "m2": "c", "m4": "e", "m5": "f"}]


def louder(doc: Document) -> Document:
    doc.raw = (doc.raw or b"") + b"!"
    return doc


def build_version(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    version, corpus, down = (1, stage, stage == 1) if stage < 2 else (2, 1, False)
    plan = Plan("version", version=version)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 3600 if stage < 2 else 0}
    still = source(plan, "still", STILL[corpus]).step("quiet", quiet)
    still.destination("kept", Shelf(root, "kept", down=down), guarantee=guarantee(0), **policy)
    moved = source(plan, "moved", MOVED[corpus]).step("chapters", chapters)
    moved = moved.step("often", failing(root, f"often-{stage}", {"m5": 9} if stage < 2 else {"m5": 1}))
    if version == 2:
        moved = moved.step("louder", louder)
    all_ = moved.route("all", Duplicate())
    all_.destination("out", Shelf(root, "out", down=down), guarantee=guarantee(1), **policy)
    other = ("old", "new")[version - 1]
    all_.destination(other, Shelf(root, other, down=down), guarantee=guarantee(2), **policy)
    return plan


def expected_version() -> dict[str, Arrived]:
    first = words_of(MOVED[0])
    second = words_of({i: t for i, t in MOVED[1].items() if MOVED[0].get(i) != t})
    del second["m5"]  # its step failed: version 2 takes it up
    third = {i: f"{t}!" for i, t in words_of(MOVED[1]).items()}
    return {
        "kept": upserts(STILL[1]),
        "out": upserts(first, second, third, route="out") + deletes(["m1#b"], route="out"),
        "old": upserts(first, route="old"),
        "new": upserts(third, route="new"),
    }
