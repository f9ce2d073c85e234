"""Children: documents that steps make of others. Their ids, their retries, and what a new version leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, PermanentError, TransientError
from ferryman.ledger import account
from ferryman.plan import Handle
from ferryman.routers import ByField, Duplicate
from tests.support.invariants import rows
from tests.support.network import Network


@pytest.fixture
def net(place: Path) -> Network:
    return Network(place)


def words(doc: Document) -> Iterator[Document]:
    """A child for each word, keyed by it; not the document itself."""
    for word in doc.text().split():
        yield doc.child(word, raw=word.encode(), first=word[0])


def letters(doc: Document) -> list[Document]:
    """The document, and a child for each letter."""
    return [doc, *(doc.child(raw=letter.encode()) for letter in doc.text())]


def failing(times: int, *ids: str) -> Callable[[Document], Document]:
    calls: Counter[str] = Counter()

    def step(doc: Document) -> Document:
        if doc.id in ids:
            calls[doc.id] += 1
            if calls[doc.id] <= times:
                raise TransientError("not yet")
        return doc

    return step


def end(handle: Handle, net: Network, name: str = "out", **policy: Any) -> None:
    handle.destination(name, net.out(name), **{"backoff": 0, **policy})


def test_a_step_may_make_children(net: Network) -> None:
    """Each goes on as a document of its own: with its parent, its origin, and the origin's version."""
    end(net.source().step("words", words), net)
    net.put("a", text="to be")
    assert net.run().delivered == 2
    lines = {line["id"]: line for line in net.out("out").lines()}
    assert set(lines) == {"a#to", "a#be"}
    for line in lines.values():
        assert (line["parent"], line["origin"]) == ("a", "a")
    assert len({line["version"] for line in lines.values()} | {rows(net.root, "documents")[0]["version"]}) == 1
    assert net.run().waves == 0
    history = account.history(net.root, "a", net.plan)
    assert {(e["document"], e["parent"], e["origin"], e["status"]) for e in history} == {
        ("a#to", "a", "a", "INDEXED"),
        ("a#be", "a", "a", "INDEXED"),
    }


def test_as_many_children_as_documents(net: Network) -> None:
    """A block of which some documents give nothing, and another as many children as the block has documents."""
    end(net.source().step("words", words), net)
    net.put("a", "b", text="old")
    net.run()
    net.put("b", text="to be")
    net.run()
    now = {line["id"]: line for line in net.out("out").lines()[2:]}
    assert {id: line["origin"] for id, line in now.items()} == {"b#to": "b", "b#be": "b", "b#old": "b"}
    changed = max(rows(net.root, "documents"), key=lambda row: row["wave"])
    assert {line["version"] for line in now.values()} == {changed["version"]}
    assert {e["document"] for e in account.history(net.root, "b", net.plan)} == set(now)
    net.put("c", text="")  # of which no child is made
    net.put("d", text="not to")
    net.run()
    assert {line["origin"] for line in net.out("out").lines() if line["id"].startswith("d#")} == {"d"}


def test_children_may_have_children(net: Network) -> None:
    """Ids nest; the default key is the number among its siblings."""
    end(net.source().step("words", words).step("letters", letters), net)
    net.put("a", text="to be")
    net.run()
    assert set(net.arrived("out")) == {"a#to", "a#to#0", "a#to#1", "a#be", "a#be#0", "a#be#1"}
    assert {line["id"]: line["parent"] for line in net.out("out").lines()}["a#to#1"] == "a#to"


def test_keys_are_encoded(net: Network) -> None:
    """So that none can look like another's descendant, or like a path."""

    def odd(doc: Document) -> list[Document]:
        return [doc.child(key) for key in ("x#y", "x/y", "ä", 7, "100%")]

    end(net.source().step("odd", odd), net)
    net.put("a")
    net.run()
    assert set(net.arrived("out")) == {"a#x%23y", "a#x%2Fy", "a#%C3%A4", "a#7", "a#100%25"}


def empty(doc: Document) -> list[Document]:
    return []


def twins(doc: Document) -> list[Document]:
    return [doc.child("k"), doc.child("k")]


def itself_twice(doc: Document) -> list[Document]:
    return [doc, doc]


def strangers(doc: Document) -> list[Document]:
    return [Document("b")]


def texts(doc: Document) -> list[str]:
    return ["b"]


def keyless(doc: Document) -> list[Document]:
    return [doc.child("")]


def breaks_off(doc: Document) -> Iterator[Document]:
    yield doc.child()
    raise PermanentError("page 2 is torn")


def lets_go(doc: Document) -> Iterator[Document]:
    yield doc.child()
    raise Dropped("a draft")


@pytest.mark.parametrize(
    ("step", "status", "says"),
    [
        (empty, "DROPPED", "step step returned no document"),
        (lets_go, "DROPPED", "a draft"),
        (twins, "ERROR_DOC", "two children of one key, 'a#k'"),
        (itself_twice, "ERROR_DOC", "returned the document itself twice"),
        (strangers, "ERROR_DOC", "returned a document of another id, 'b': make children with document.child()"),
        (texts, "ERROR_DOC", "returned a str among its documents"),
        (keyless, "ERROR_DOC", "a child with an empty key"),
        (breaks_off, "ERROR_DOC", "page 2 is torn"),
    ],
)
def test_what_a_step_may_not_return(net: Network, step: Any, status: str, says: str) -> None:
    """It is the error of the document that the step was called for; none of the children goes on."""
    end(net.source().step("step", step), net)
    net.put("a")
    net.run()
    [event] = account.history(net.root, "a", net.plan)
    assert (event["document"], event["status"]) == ("a", status)
    assert says in event["message"]
    assert net.arrived("out") == {}


def test_two_steps_may_not_make_one_child(net: Network) -> None:
    """The second one's document ends, the first one's child is delivered."""

    def again(doc: Document) -> list[Document]:
        return [doc, Document("k").child()] if doc.id != "a" else [doc, doc.child("k")]

    def first(doc: Document) -> list[Document]:
        return [doc, doc.child("k")]

    def second(doc: Document) -> Any:
        return [doc, doc.child("k")] if doc.id == "a" else doc

    end(net.source().step("first", first).step("second", second), net)
    net.put("a")
    net.run()
    assert net.events("a", "out") == ["ERROR_DOC"]
    assert net.events("a#k", "out") == ["INDEXED"]


def test_the_default_key_goes_on_counting(net: Network) -> None:
    """Over the steps of a path."""

    def more(doc: Document) -> Any:
        return [doc, doc.child()] if doc.id == "a" else doc

    end(net.source().step("one", more).step("two", more), net)
    net.put("a")
    net.run()
    assert set(net.arrived("out")) == {"a", "a#0", "a#1"}


def test_a_retry_reads_the_origin_once_and_drops_what_is_done(net: Network) -> None:
    """Children that were delivered are let go as soon as they are made: no step is called for them."""
    made = net.source().step("origin", net.counting("origin")).step("words", words)
    end(made.step("after", net.counting("after")).step("late", failing(2, "a#b", "a#d")), net)
    net.put("a", text="a b c d e")
    summary = net.run()
    assert (summary.exit, summary.delivered) == (0, 5)
    assert net.arrived("out") == {f"a#{k}": 1 for k in "abcde"}
    assert net.calls("origin") == {"a": 3}
    assert net.calls("after") == {"a#a": 1, "a#b": 3, "a#c": 1, "a#d": 3, "a#e": 1}
    assert net.events("a#b", "out") == ["ERROR", "ERROR", "INDEXED"]
    assert net.events("a#a", "out") == ["INDEXED"]
    dues = {e["due"] for e in rows(net.root, "ledger") if e["status"] == "ERROR" and e["wave"] == 1}
    assert len(dues) == 1, "a family is retried together"


def test_the_parent_may_fail_when_its_children_are_through(net: Network) -> None:
    """It goes on alone, its children are neither doubled nor deleted."""
    end(net.source().step("letters", letters).step("late", failing(2, "a")), net)
    net.put("a", text="xy")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a": 1, "a#0": 1, "a#1": 1}


def test_a_parent_that_failed_before_its_children_is_superseded_by_them(net: Network) -> None:
    """What was owed to it, it will not get: it is replaced by its children."""
    end(net.source().step("early", failing(1, "a")).step("words", words), net)
    net.put("a", text="x y")
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.dropped) == (0, 2, 1)
    assert net.events("a", "out") == ["ERROR", "DROPPED"]
    assert net.arrived("out") == {"a#x": 1, "a#y": 1}


def test_children_that_a_new_version_has_not_are_deleted(net: Network) -> None:
    """After the upserts, at every destination that had them; grandchildren too."""
    twice = net.source().step("words", words).route("twice", Duplicate())
    end(twice.step("letters", letters), net, "deep")
    end(twice, net, "flat")
    net.put("a", text="to be")
    net.run()
    net.put("a", text="be or")
    assert net.run().exit == 0
    flat = net.out("flat").arrived()
    assert Counter(flat[:2]) == {"a#to": 1, "a#be": 1}
    assert Counter(flat[2:4]) == {"a#be": 1, "a#or": 1}
    assert flat[4:] == ["-a#to"]
    deep = net.out("deep").arrived()
    assert Counter(deep[12:]) == {"-a#to": 1, "-a#to#0": 1, "-a#to#1": 1}
    assert set(deep[6:12]) == {"a#be", "a#be#0", "a#be#1", "a#or", "a#or#0", "a#or#1"}
    net.drop("a")
    net.run()
    assert Counter(net.out("flat").arrived()[5:]) == {"-a#be": 1, "-a#or": 1}


def test_a_destination_that_keeps_gets_no_deletes(net: Network) -> None:
    """It says so for each child."""
    end(net.source().step("words", words), net, deletes=False)
    net.put("a", text="to be")
    net.run()
    net.put("a", text="be")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#to": 1, "a#be": 2}
    assert net.events("a#to", "out") == ["INDEXED", "-DROPPED"]


def test_what_failed_keeps_its_old_version(net: Network) -> None:
    """Nothing is deleted for which the new version may still come; once it has come, what it has not is."""

    def split(doc: Document) -> Iterable[Document]:
        return words(doc)

    end(net.source().step("early", failing(1, "a")).step("split", split), net)
    net.put("a", text="x")
    net.run()
    assert net.arrived("out") == {"a#x": 1}
    net.plan = _fresh(net, failing(1, "a"))
    net.put("a", text="y z")
    net.run(wait=0)
    assert net.arrived("out") == {"a#x": 1}
    assert net.retry().count == 1
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 1, "a#y": 1, "a#z": 1, "-a#x": 1}


def _fresh(net: Network, early: Callable[[Document], Document]) -> Any:
    """The plan of ``test_what_failed_keeps_its_old_version``, its calls not counted yet."""
    from ferryman.plan import Plan
    from ferryman.sources import Memory

    plan = Plan("network", version=1)
    source = plan.source("docs", Memory(net.documents["docs"], max_deleted=1.0))
    end(source.step("early", early).step("split", words), net, backoff=3600)
    return plan


def test_a_document_that_ends_as_error_keeps_its_old_children(net: Network) -> None:
    """ERROR_DOC: the new version is bad, the old one stays."""

    def picky(doc: Document) -> Any:
        if doc.text() == "bad":
            raise PermanentError("bad")
        return words(doc)

    end(net.source().step("picky", picky), net)
    net.put("a", text="x y")
    net.run()
    net.put("a", text="bad")
    assert net.run().exit == 3
    net.put("a", text="x")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 2, "a#y": 1, "-a#y": 1}


def test_children_change_branches(net: Network) -> None:
    """Deleted at one destination, inserted at the other; the same target by another node gets no delete."""
    kind = net.source().step("words", words).route("by-first", ByField("first", default="rest"))
    end(kind, net, "x")
    end(kind, net, "rest")

    net.put("a", text="xa yb")
    net.run()
    assert (set(net.arrived("x")), set(net.arrived("rest"))) == ({"a#xa"}, {"a#yb"})
    net.put("a", text="yb xc")
    net.run()
    assert net.arrived("x") == {"a#xa": 1, "-a#xa": 1, "a#xc": 1}
    assert net.arrived("rest") == {"a#yb": 2}


def test_one_target_by_another_way_is_replaced_not_deleted(net: Network) -> None:
    """Two nodes, one physical place: the delete would take out what the upsert put there."""
    left, right = net.out("left"), net.out("right")
    left.place = right.place = "one place"
    kind = net.source().route("by-kind", ByField("kind"))
    end(kind, net, "left")
    end(kind, net, "right")
    net.put("a", kind="left")
    net.run()
    net.put("a", kind="right")
    assert net.run().exit == 0
    assert net.arrived("left") == {"a": 1}
    assert net.arrived("right") == {"a": 1}
    assert sorted(net.events("a", "left")) == ["-DROPPED", "DROPPED", "INDEXED"]
    net.drop("a")
    net.run()
    assert net.arrived("right")["-a"] == 1


def test_a_new_version_supersedes_what_is_owed_of_the_old(net: Network) -> None:
    """Each member's delivery that exists only as an error ends."""
    end(net.source().step("words", words).step("late", failing(9, "a#x", "a#y")), net, backoff=3600)
    net.put("a", text="x y z")
    net.run(wait=0)
    assert net.counts("out") == {"indexed": 1, "owed": 2, "error": 2}
    net.put("a", text="z")
    assert net.run(wait=0).exit == 0
    assert net.events("a#x", "out") == ["ERROR", "DROPPED"]
    net.put("a", text="x")
    net.run(wait=0)
    net.drop("a")
    assert net.run(wait=0).exit == 0
    assert net.events("a#x", "out")[-1] == "DROPPED"


def test_a_dead_child_is_opened_alone(net: Network) -> None:
    """By its id; its siblings get no event."""
    end(net.source().step("words", words).step("late", failing(3, "a#x")), net)
    net.put("a", text="x y")
    assert net.run().exit == 3
    assert net.retry(document="a#x").count == 1
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 1, "a#y": 1}
    assert net.events("a#x", "out") == ["ERROR", "ERROR", "DEAD", "RESTART", "INDEXED"]


def test_deletes_wait_for_the_familys_upserts(net: Network) -> None:
    """While the destination is down neither is sent; then the upserts come first."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = down
    net.put("a", text="y z")
    assert net.run(wait=0).exit == 4
    net.out("out").answer = None
    assert net.run().exit == 0
    said = [line["id"] if line["op"] == "upsert" else "-" + line["id"] for line in net.out("out").lines()]
    assert said[-1] == "-a#x"


def down(delivery: Any) -> Outcome:
    return Outcome.transient("down", universal=True)
