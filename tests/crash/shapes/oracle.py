"""What must have arrived of a shape, and what may have: the comparison after a kill."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.shapes import SHAPES
from tests.crash.shapes.routes import ROUND
from tests.crash.shapes.shape import BATCH, Arrived


def delivered(root: Path, name: str) -> list[dict[str, Any]]:
    log = root / f"{name}.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def counted(lines: Iterable[dict[str, Any]]) -> Arrived:
    return collections.Counter((d["op"], d["id"], d["route"], d["text"]) for d in lines)


def family_of(id: str) -> str:
    return id.partition("#")[0]


Unknown = set[tuple[str, str, str, str]]
"""(destination, operation, id, route)."""


def check(root: Path, name: str, guarantee: str, unknown: Unknown, ledger: list[dict[str, Any]], killed: str) -> None:
    """Every destination against the oracle. ``killed``: what was killed in the last stage: driver, executor or ""."""
    shape = SHAPES[name]
    of = shape.guarantees(guarantee)
    given_up = shape.hangs or shape.breaks
    unknown = unknown | ever_unknown(ledger) if given_up else unknown
    doubled_at = set()
    by_chance = shape.expected_by is not None
    for names, all_wanted in (shape.expected_by(ledger) if shape.expected_by else shape.expected()).items():
        lines = {n: delivered(root, n) for n in names.split("|")}
        wanted = all_wanted + _turns(lines, ledger) if len(lines) > 1 else all_wanted
        got = sum((counted({d["hash"]: d for d in there}.values()) for there in lines.values()), Arrived())
        # A delete that waits when a newer revision is taken up is made again with it: it may yet be refused.
        extra = {d for d in got - wanted if shape.from_version is None or d[0] != "delete" or d not in wanted}
        assert not extra, f"{names}: nobody asked for {extra}"
        doubted = {(n, family_of(id)) for n, op, id, _ in unknown if op == "upsert"} if shape.holds else set()
        for op, id, route, _ in wanted - got:
            held = op == "delete" and any((n, family_of(id)) in doubted for n in lines)
            assert held or any((n, op, id, route) in unknown for n in lines), f"{names}: lost {op} of {id} by {route!r}"
        for each, there in lines.items():
            if doubled := len(there) - len({d["hash"] for d in there}):
                assert of[each] == "at-least-once", f"{each}: doubled"
                assert killed == "executor", f"{each}: doubled, though nothing was in flight"
                assert doubled <= BATCH, f"{each}: {doubled} doubled, more than was in flight"
                doubled_at.add(each)
            in_order(there, again=by_chance or shape.from_version is not None)
    assert len(doubled_at) <= 1, "one process was killed, and several destinations got doubles"
    assert all(of[n] == "at-most-once" for n, *_ in unknown), "unknown, where nothing can be"
    at_most_once = sum(promise == "at-most-once" for promise in of.values())
    without_kill = BATCH * shape.stages * at_most_once if given_up else 0
    assert not unknown or killed == "executor" or without_kill, "nothing was in flight, and something is unknown"
    assert len(unknown) <= BATCH + without_kill, "more in doubt than was in flight"
    _one_branch(ledger)


def ever_unknown(ledger: list[dict[str, Any]]) -> Unknown:
    """Also of versions that are not the last any more."""
    last = {e["delivery_hash"]: e for e in sorted(ledger, key=lambda e: (e["wave"], e["ordinal"]))}
    return {
        (e["destination"], e["operation"], e["document"], e["route"])
        for e in last.values()
        if e["status"] == "INDEXING"
    }


def in_order(lines: list[dict[str, Any]], *, again: bool) -> None:
    """No older delivery of an id by a route comes after a newer one, and what a family lost goes after what it has.

    (What was tried again may come after both; and with ``again`` a version of a document is delivered a second time.)
    """
    highest: dict[tuple[str, str], int] = {}
    lost: set[tuple[str, ...]] = set()
    seen = set()
    for line in lines:
        key, family = (line["id"], line["route"]), tuple(line["family"])
        assert line["seq"] >= highest.get(key, 0), f"{key} went back in time"
        highest[key] = line["seq"]
        if line["op"] == "delete":
            lost.add(family)
        elif not again and line["hash"] not in seen and line["attempt"] == 1:
            assert family not in lost, f"{line['id']}: its family lost something before it came"
        seen.add(line["hash"])


def _turns(lines: dict[str, list[dict[str, Any]]], ledger: list[dict[str, Any]]) -> Arrived:
    """Copies that take turns: each went to one branch only; the deletes that must follow from where they went."""
    at: dict[tuple[str, str, str], set[str]] = collections.defaultdict(set)
    for name, there in lines.items():
        for d in there:
            if d["op"] == "upsert":
                at[d["id"], d["route"], d["hash"]].add(name)
    assert all(len(names) == 1 for names in at.values()), "a copy was delivered to two branches"
    given: dict[str, dict[int, set[tuple[str, str]]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for event in ledger:
        if event["operation"] == "upsert" and event["status"] in ("INDEXED", "INDEXING"):
            given[event["document"]][event["revision"]].add((event["destination"], event["route"]))
    last = {i: max(revisions) for i, revisions in given.items()}
    wanted = Arrived()
    for id, revisions in given.items():
        ways = [revisions[r] for r in sorted(revisions)]
        assert all(len({route for _, route in each}) == len(each) for each in ways), "one copy, two branches"
        if id not in ROUND[1]:
            wanted += collections.Counter(("delete", id, route, "") for _, route in ways[-1])
        elif last[id] > 1:
            now = {name for name, _ in ways[-1]}
            wanted += collections.Counter(
                ("delete", id, route, "") for name, route in ways[-2] - ways[-1] if name not in now
            )
    return wanted


def _one_branch(ledger: list[dict[str, Any]]) -> None:
    """What a router that takes turns chose for a copy once it was committed, it is: in every event of a retry too."""
    taken: dict[tuple[str, int, str], set[str]] = collections.defaultdict(set)
    for event in ledger:
        if event["branches"].startswith("spread=") and event["operation"] == "upsert":
            taken[event["document"], event["revision"], event["route"]].add(event["branches"])
    assert all(len(branches) == 1 for branches in taken.values()), taken


def check_account(name: str, counts: dict[str, dict[str, int]], reference: dict[str, dict[str, int]]) -> None:
    """What ``status`` counts is what it counts after a run that nobody killed; but for what is in doubt, and for turns.

    A copy goes to one branch or another, and a kill may use up a try: then only what is pending is the same. A row that
    breaks the connection, and is the only one left after a kill, has no others that show that it is to blame: it waits.
    """
    if SHAPES[name].breaks and any(counts[each]["pending"] for each in counts):
        assert all(counts[each]["pending"] <= 1 for each in counts), counts
        counts = {each: {**of, "failed": of["failed"] + of["pending"], "pending": 0} for each, of in counts.items()}
    turns = "west" in counts or SHAPES[name].expected_by is not None
    for name in counts:
        for kinds in (("delivered", "deleted", "failed", "in_doubt"), ("dropped",), ("rejected",), ("pending",)):
            if turns and kinds != ("pending",):
                continue
            now, then = (sum(c[name][kind] for kind in kinds) for c in (counts, reference))
            assert now == then, f"{name}: {kinds} {now}, without a kill {then}"
        if not counts[name]["in_doubt"]:
            assert turns or counts[name] == reference[name], name
