"""Entries of logs that meet nothing unusual are walked a block at a time, too; the outcome is the same as entry by
entry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from ferryman import Document, Plan
from ferryman.document import encode_fields
from ferryman.engine.keyed.grouping import key_decoder
from ferryman.engine.transform.walk import Walk
from ferryman.errors import BadDocument, Dropped, PermanentError
from ferryman.queues import Queue as DurableQueue
from ferryman.records.provenance import merge_provenances
from ferryman.routers import Duplicate, Router
from ferryman.sources import Queue
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.engine.transform.test_block_walk import committed, one_by_one
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder

MESSAGES = 40


class Sides(Router):
    """Three of four go left; one document of 13 has a branch that does not exist."""

    def choose(self, document: Document) -> str:
        return "nowhere" if document["n"] % 13 == 12 else "left" if document["n"] % 4 else "right"


class Own(Exception):
    """An error of a step that nobody foresaw."""


def plain(doc: Document) -> Any:
    doc["twice"] = 2 * doc["n"]
    return doc


def all_kinds(doc: Document) -> Any:
    """One kind of answer for each number."""
    match doc["n"] % 10:
        case 1:
            return None
        case 2:
            return [doc, doc.child("part", n=1)]
        case 3:
            raise BadDocument("not this one")
        case 4:
            raise Dropped("not wanted")
        case 5:
            doc.raw = b"raw bytes"
        case 6:
            return (doc.child(n, n=n) for n in range(2))
        case 7 if doc["n"] == 27:
            doc.again("1h")
    return doc


def some_fail(doc: Document) -> Any:
    if doc["n"] in (17, 18, 31):
        raise Own("for now, perhaps")
    return doc


def fill(place: Path) -> None:
    """Append messages: their fields are in no order, some have a time of their own, of one the key is missing."""
    queue = DurableQueue("in", place)
    for first in range(0, MESSAGES, 16):
        numbers = range(first, min(first + 16, MESSAGES))
        queue.append([{"type": "kept" if n % 7 else "left out", "n": n, "key": f"k{n % 3}"} for n in numbers])
    queue.append([{"n": 100, "key": 5}, {"n": 101}, {"n": 102, "key": "k1", "text": "é\u2028\\"}])
    DurableQueue("other", place).append([{"b": [1, {"z": 1, "a": 2}], "a": n} for n in range(MESSAGES)])


def forked(step: Callable[[Document], Any], **options: Any) -> Callable[[Path, Path], Plan]:
    def build(queues: Path, outs: Path) -> Plan:
        plan = Plan("forked")
        handle = plan.source("in", Queue("in", queues, **options)).step("work", step, attempts=2)
        copies = handle.route("copies", Duplicate())
        copies.destination("all", Recorder(outs / "all"))
        copies.tee("again", Recorder(outs / "again")).destination("behind", Recorder(outs / "behind"))
        sides = copies.route("sides", Sides())
        sides.destination("left", Recorder(outs / "left"))
        sides.step("right", lambda doc: doc).destination("end", Recorder(outs / "end"))
        return plan

    return build


def with_errors(queues: Path, outs: Path) -> Plan:
    plan = forked(all_kinds)(queues, outs)
    plan.errors(Recorder(outs / "errors"))
    return plan


def keyed(key: Any) -> Callable[[Path, Path], Plan]:
    """What a keyed node exports goes through a step, that deletes one key, and fails for another."""

    def update(name: str, state: Any, documents: list[Document]) -> Any:
        count = (state or 0) + len(documents)
        return count, [Document(name, count=count), Document.deletion(f"no {name}"), Document(name, count=-count)]

    def build(queues: Path, outs: Path) -> Plan:
        def fail_once(doc: Document) -> Document:
            if doc.id == "k1":
                raise Own("for now")
            return doc

        plan = Plan("keyed")
        source = plan.source("in", Queue("in", queues, on_error="continue"))
        counts = source.step("work", plain).keyed("counts", update, key=key)
        counts.step("after", fail_once, attempts=2).destination("out", Recorder(outs / "out"))
        return plan

    return build


def key_function(doc: Document) -> Any:
    doc["key"] = str(doc["key"])
    return doc["key"] if doc["n"] % 5 else 1


def joined(step: Callable[[Document], Any], **options: Any) -> Callable[[Path, Path], Plan]:
    def add(docs: Any) -> Any:
        if docs["one"]["n"] == 5:
            raise PermanentError("not these")
        return {"n": docs["one"]["n"], "sum": docs["two"]["a"], "b": docs["two"]["b"], "id": docs["two"].id}

    def build(queues: Path, outs: Path) -> Plan:
        plan = Plan("joined")
        one = plan.source("one", Queue("in", queues, on_error="continue", **options))
        two = plan.source("two", Queue("other", queues, on_error="continue", prefix="p&%/"))
        plan.join("add", add, {"one": one, "two": two}).step("work", step).destination("out", Recorder(outs / "out"))
        return plan

    return build


PLANS = {
    "nothing unusual": forked(plain),
    "it stops": forked(all_kinds),
    "it goes on": forked(all_kinds, on_error="continue"),
    "out of order": forked(some_fail, ordered=False),
    "an entry waits": forked(some_fail),
    "filtered": forked(plain, types=["kept"]),
    "an error queue": with_errors,
    "keyed by a field": keyed("key"),
    "keyed by a function": keyed(key_function),
    "joined": joined(plain),
    "joined, all kinds": joined(all_kinds),
    "joined and filtered": joined(plain, types=["kept"]),
}


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("queues")
    fill(place)
    return place


@pytest.mark.parametrize("what", PLANS)
def test_waves_commit_the_same(queues: Path, place: Path, what: str) -> None:
    """Rows of the outbox with their sequences, of ``documents`` and of the ledger."""

    def waves(name: str) -> dict[str, list[Any]]:
        (place / name).mkdir()
        plan = PLANS[what](queues, place / name)
        run = partial(run_plan, plan, place / name / "state", runner=InProcess(slots=1))
        return committed(run, lambda: state_root(plan, place / name / "state"))

    quick = waves("quick")
    with one_by_one():
        slow = waves("slow")
    assert quick["outbox"]
    assert quick == slow


@pytest.mark.parametrize("build", [forked(plain), keyed("key"), joined(plain)], ids=["steps", "keyed", "joined"])
def test_usual_entries_are_walked_in_blocks(queues: Path, place: Path, build: Callable[[Path, Path], Plan]) -> None:
    """No usual entry takes the general walk."""
    walked: list[str] = []

    def note(walk: Walk, doc: Document) -> Any:
        walked.append(doc.id)
        yield from ()

    with patch.object(Walk, "walk_document", note), contextlib.suppress(AssertionError):
        run_plan(build(queues, place), place / "state", runner=InProcess(slots=1), checked=False)
    assert not walked


@pytest.mark.parametrize("field", ["key", 'a"b', "a\\b", "é\u2028", "", "x" * 300])
@pytest.mark.parametrize("value", ["v", "", 'é\u2028"\\', "k" * 100_000, 5, None, ["v"]])
def test_a_key_is_decoded_alone_as_with_its_document(field: str, value: Any) -> None:
    """Other fields do not count, whatever they hold; what is not text is left to the node."""
    fields = encode_fields({field: value, "other": {field: "inner"}, "z": [field]})
    decode = key_decoder(field)
    if decode is None:
        assert {'"', "\\"} & set(field)
    elif isinstance(value, str):
        assert decode(fields).key == value
    else:
        with pytest.raises(msgspec.ValidationError):
            decode(fields)


def test_provenances_are_merged_in_order() -> None:
    """One of another form gives nothing."""
    one, two = '{"queues":{"a":{"index":1}},"tx":1}', '{"queues":{"b":{"index":2}},"tx":7}'
    assert merge_provenances([one, two]) == '{"queues":{"a":{"index":1},"b":{"index":2}},"tx":1}'
    assert merge_provenances(["no JSON", None, "[1]", two]) == two
    assert merge_provenances([None, "{}"]) is None


def test_rows_of_documents_are_kept_only_for_what_failed(queues: Path, place: Path) -> None:
    """The position of the log says of all others that they were processed."""
    added: list[int] = []
    plan = forked(plain)(queues, place)
    with patch("ferryman.engine.transform.rows.DocumentStage.add_plain", lambda self, i, published: added.append(i)):
        run_plan(plan, place / "state", runner=InProcess(slots=1))
    assert not added
