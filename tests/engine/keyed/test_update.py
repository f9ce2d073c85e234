"""State by key: what an ``update`` gets, what becomes of what it returns, and of documents that it cannot take."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account, limits
from ferryman.account.families import key_counts, key_states
from ferryman.destinations import Queue as IntoQueue
from ferryman.errors import Dropped, Misconfigured, PermanentError, TransientError, UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import ByField
from ferryman.sources import Queue
from tests.support.invariants import states
from tests.support.keyed import count_words
from tests.support.plan_world import run_plan


@pytest.mark.rule("keyed.commit")
def test_each_key_has_the_state_that_its_documents_make(place: Path) -> None:
    """Over several runs; an export tells each change, and ``old`` is always the ``new`` that was told before."""
    words = count_words(place)
    for batch in ("a b a", "b c", "a", "c c c"):
        words.put(*batch.split())
        assert words.run().exit == 0
    assert words.states() == {"a": 3, "b": 2, "c": 4}
    told: Counter[str] = Counter()
    for export in words.bodies():
        assert export["old"] == told[export["key"]]
        told[export["key"]] = export["new"]
    assert told == words.states()


def test_a_run_without_new_documents_does_nothing(place: Path) -> None:
    words = count_words(place)
    words.put("a")
    words.run()
    again = words.run()
    assert (again.waves, again.delivered) == (0, 0)


@pytest.mark.rule("keyed.status")
def test_status_has_the_node_among_destinations_and_among_sources(place: Path) -> None:
    """What came in is counted as delivered there; what went out as read from it."""
    words = count_words(place)
    words.put("a", "a", "b")
    words.run()
    status = words.status()
    assert status["balanced"]
    assert status["destinations"]["counts"]["delivered"] == 3
    assert status["destinations"]["to_out"]["delivered"] == 2
    assert (status["sources"]["counts"]["read"], status["sources"]["counts"]["lag"]) == (2, 0)


def together(key: str, state: Any, documents: list[Document]) -> tuple[list[int], None]:
    return [*(state or []), *(doc["n"] for doc in documents)], None


@pytest.mark.rule("keyed.order")
def test_documents_of_a_key_come_in_their_order(place: Path) -> None:
    """Also with several tasks and buffers, and over runs."""
    words = count_words(place, together, buffer_bytes=100)
    numbers = defaultdict(list)
    for first in (0, 3000):
        words.into.append([{"word": f"w{n % 7}", "n": n} for n in range(first, first + 3000)])
        words.run()
        for n in range(first, first + 3000):
            numbers[f"w{n % 7}"].append(n)
    assert words.states() == numbers


def sizes(key: str, state: Any, documents: list[Document]) -> tuple[list[int], None]:
    return [*(state or []), len(documents)], None


@pytest.mark.rule("keyed.buffer")
def test_a_call_gets_documents_of_so_many_bytes(place: Path) -> None:
    """And a larger document alone; each call gets the state that the one before returned."""
    words = count_words(place, sizes, buffer_bytes=100)
    small, large = {"word": "a", "x": "x" * 10}, {"word": "a", "x": "x" * 500}
    words.into.append([small] * 5 + [large] + [small])
    words.run()
    assert words.states() == {"a": [3, 2, 1, 1]}


def toggle(key: str, state: Any, documents: list[Document]) -> tuple[Any, list[Document]]:
    if state is None:
        return {"since": 1}, [Document(f"x/{key}", here=True)]
    return None, [Document.deletion(f"x/{key}")]


@pytest.mark.rule("keyed.exports")
def test_a_state_can_be_removed_and_an_export_be_a_deletion(place: Path) -> None:
    words = count_words(place, toggle)
    words.put("a", "b")
    words.run()
    words.put("a")
    summary = words.run()
    assert words.states() == {"b": {"since": 1}}
    assert summary.deleted == 1
    words.put("a")
    words.run()
    assert words.states() == {"a": {"since": 1}, "b": {"since": 1}}


def plain(key: str, state: Any, documents: list[Document]) -> tuple[int, dict[str, Any]]:
    return 1, {"n": len(documents)}


def test_a_dict_is_exported_under_the_key(place: Path) -> None:
    """To a step that sees its id."""
    plan = Plan("dicts")
    queue, out = DurableQueue("in", place), DurableQueue("out", place)

    def note(doc: Document) -> Document:
        doc["id"] = doc.id
        return doc

    node = plan.source("in", Queue("in", place)).keyed("counts", plain, key="word")
    node.step("note", note).destination("out", IntoQueue("out", place))
    queue.append([{"word": "a b/c"}])
    run_plan(plan, place / "state")
    assert [message.body for message in out.read()] == [{"id": "a b/c", "n": 1}]


@pytest.mark.rule("keyed.chain")
def test_keyed_nodes_follow_each_other(place: Path) -> None:
    """A count by (x, y), then by x, then by how many have that count: all are a recount after each round."""

    def tally(key: str, state: int | None, documents: list[Document]) -> tuple[int, dict[str, Any]]:
        new = (state or 0) + sum(doc["by"] for doc in documents)
        return new, {"key": key, "by": new - (state or 0)}

    def first(doc: Document) -> Document:
        doc["key"] = doc["key"].partition("/")[0]
        return doc

    plan = Plan("tree")
    pairs = plan.source("in", Queue("in", place)).keyed("pairs", tally, key=lambda doc: f"{doc['x']}/{doc['y']}")
    pairs.step("first", first).keyed("firsts", tally, key="key").destination("out", IntoQueue("out", place))
    queue = DurableQueue("in", place)
    DurableQueue("out", place)
    expected: Counter[str] = Counter()
    for turn in range(3):
        entries = [{"x": n % 3, "y": (n * turn) % 5, "by": 1} for n in range(40)]
        queue.append(entries)
        assert run_plan(plan, place / "state").exit == 0
        for entry in entries:
            expected.update([f"{entry['x']}", f"{entry['x']}/{entry['y']}"])
        root = place / "state" / "tree-v0"
        assert {**states(root, "pairs"), **states(root, "firsts")} == expected


def test_exports_are_routed(place: Path) -> None:
    """A deletion goes to every destination that the export may have come to."""
    plan = Plan("routed")
    queue, even, odd = (DurableQueue(name, place) for name in ("in", "even", "odd"))

    def export(key: str, state: int | None, documents: list[Document]) -> tuple[int, list[Document]]:
        new = (state or 0) + len(documents)
        return new, [
            Document.deletion(f"{key}{state}"),
            Document(f"{key}{new}", kind="even" if new % 2 == 0 else "odd"),
        ]

    counts = plan.source("in", Queue("in", place)).keyed("counts", export, key="word").route("kind", ByField("kind"))
    for name in ("even", "odd"):
        counts.destination(name, IntoQueue(name, place))
    for _ in range(3):
        queue.append([{"word": "a"}])
        run_plan(plan, place / "state")
    assert len(even.read()) == 1 + 3
    assert len(odd.read()) == 2 + 3


# -- what goes wrong -----------------------------------------------------------------------------------------


def choosy(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
    """Refuses a document that says so."""
    for doc in documents:
        if "raise" in doc:
            raise {"permanent": PermanentError, "unforeseen": ValueError, "dropped": Dropped}[doc["raise"]]("no")
    return (state or 0) + len(documents), Document(key, n=(state or 0) + len(documents))


@pytest.mark.rule("keyed.failure")
def test_a_document_that_fails_harms_only_itself(place: Path) -> None:
    """Those before it in its call are counted, those behind it wait, as an ordered log asks; other keys go on."""
    words = count_words(place, choosy)
    words.into.append([{"word": "a"}, {"word": "a"}, {"word": "a", "raise": "permanent"}, {"word": "a"}, {"word": "b"}])
    summary = words.run()
    assert (summary.exit, summary.rejected, summary.pending) == (4, 1, 1)
    assert words.states() == {"a": 2, "b": 1}


@pytest.mark.rule("keyed.failure")
def test_where_the_log_goes_on_so_do_later_documents(place: Path) -> None:
    words = count_words(place, choosy, on_error="continue")
    words.into.append([{"word": "a", "raise": "permanent"}, {"word": "a"}, {"word": "a"}])
    summary = words.run()
    assert (summary.exit, summary.rejected, summary.pending) == (3, 1, 0)
    assert words.states() == {"a": 2}


def test_an_unforeseen_error_is_retried_and_fails_after_its_attempts(place: Path) -> None:
    words = count_words(place, choosy, on_error="continue", attempts=2)
    words.into.append([{"word": "a", "raise": "unforeseen"}, {"word": "a"}])
    summary = words.run(sleep=lambda _: None)
    assert (summary.exit, summary.failed) == (3, 1)
    assert words.states() == {"a": 1}


@pytest.mark.rule("keyed.failure")
def test_a_dropped_document_changes_nothing(place: Path) -> None:
    """The others of its call are counted, those behind it too."""
    words = count_words(place, choosy)
    words.into.append([{"word": "a"}, {"word": "a", "raise": "dropped"}, {"word": "a"}, {"word": "b"}])
    summary = words.run()
    assert (summary.exit, summary.dropped, summary.delivered) == (0, 1, 3 + 3)
    assert words.counts("counts") == {"delivered": 3, "dropped": 1}
    assert words.states() == {"a": 2, "b": 1}


class Broken:
    """An ``update`` that raises for every document until it is mended."""

    def __init__(self, marker: Path, error: type[Exception]) -> None:
        self.marker, self.error = str(marker), error

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, None]:
        if not Path(self.marker).exists():
            raise self.error("out of order")
        return (state or 0) + len(documents), None


@pytest.mark.rule("keyed.trouble")
@pytest.mark.parametrize("error", [Misconfigured, ValueError, TransientError])
def test_an_update_that_is_broken_keeps_its_documents(place: Path, error: type[Exception]) -> None:
    """Nothing is lost, and once it is mended all is counted."""
    words = count_words(place, Broken(place / "mended", error))
    words.put(*(f"w{n}" for n in range(200)))
    summary = words.run(wait=0)
    assert (summary.exit, summary.pending, summary.failed) == (4, 200, 0), summary
    (place / "mended").touch()
    summary = words.run(sleep=lambda _: None)
    assert (summary.exit, summary.pending) == (0, 0), summary
    assert words.states() == {f"w{n}": 1 for n in range(200)}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (5, "return a pair"),
        ((object(), None), "JSON cannot hold"),
        ((1, "text"), "returned a str to export"),
        ((1, [3]), "returned a int among its exports"),
        ((1, Document("")), "an id is text that is not empty"),
        ((1, Document("a\ud800")), "half a character"),
    ],
)
def test_what_an_update_may_not_return_is_refused(place: Path, given: Any, why: str) -> None:
    words = count_words(place, lambda key, state, documents: given)
    words.put("a")
    assert words.run().exit == 3
    [row] = account.deliveries(words.root, status="rejected")
    assert why in row["message"]


@pytest.mark.rule("keyed.key")
@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"other": 1}, "no field 'word'"),
        ({"word": 7}, "gives a int: a key is text"),
        ({"word": "x" * 1_000_000}, f"a key has {limits.format_count(262_144)} at most"),
    ],
)
def test_a_document_without_a_key_is_rejected(place: Path, message: dict[str, Any], why: str) -> None:
    words = count_words(place, on_error="continue")
    words.into.append([message, {"word": "a"}])
    summary = words.run()
    assert (summary.exit, summary.rejected) == (3, 1)
    [row] = account.deliveries(words.root, status="rejected")
    assert why in row["message"]
    assert words.states() == {"a": 1}


@pytest.mark.rule("keyed.key")
def test_keys_are_any_text(place: Path) -> None:
    keys = ["", " ", "a\nb", "ä", "\0", "'; --", "x" * limits.KEY_BYTES, "🚢"]
    words = count_words(place, lambda key, state, documents: ((state or 0) + len(documents), Document(f"k{key}")))
    for _ in range(2):
        words.put(*keys)
        assert words.run().exit == 0
    assert words.states() == dict.fromkeys(keys, 2)


# -- looking at states -----------------------------------------------------------------------------------------


@pytest.mark.rule("keyed.lookup")
def test_the_state_of_a_key_can_be_looked_up(place: Path) -> None:
    """From Python and on the command line, as of the last settled wave."""
    words = count_words(place)
    assert words.plan.state("counts", words.state).get("a") is None
    words.put("a", "b", "a")
    words.run()
    states = words.plan.state("counts", words.state)
    assert (states.get("a"), states.get("b"), states.get("c")) == (2, 1, None)
    entry = states.entry("a")
    assert entry is not None
    words.put("a")
    words.run()
    later = states.entry("a")
    assert later is not None
    assert (later.value, later.sequence > entry.sequence, later.wave > entry.wave) == (3, True, True)
    assert key_counts(words.root, words.plan) == {"counts": 2}
    assert [(row["key"], row["value"]) for row in key_states(words.root, words.plan, "counts", 1)] == [("a", "3")]


def test_a_node_that_keeps_no_state_is_named(place: Path) -> None:
    words = count_words(place)
    with pytest.raises(UsageError, match=r"other is not a keyed node of this plan\. It has: counts"):
        words.plan.state("other")
    with pytest.raises(UsageError, match="a key is text"):
        words.plan.state("counts", words.state).get(1)  # type: ignore[arg-type]
