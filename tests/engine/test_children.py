"""Children: documents that steps make of others. Their ids, their retries, and what a new version leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import account, limits
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, PermanentError, TransientError
from ferryman.plan import Handle
from ferryman.routers import ByField, Duplicate, Router
from ferryman.sources import Listed, Source
from ferryman.storage.parquet import PartWriter
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.network import Network
from tests.support.tiers import sampled


@pytest.fixture(params=sampled(["held", "streamed"], 2))
def net(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    """What holds for few children holds for many, which go on while others are made."""
    if request.param == "streamed":
        monkeypatch.setattr(limits, "HELD_CHILDREN", 1)
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
                raise RuntimeError("not yet")
        return doc

    return step


def end(handle: Handle, net: Network, name: str = "out", **policy: Any) -> None:
    handle.destination(name, net.out(name), **{"backoff": 0, **policy})


@pytest.mark.rule("step.several", "child.version", "child.history")
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


@pytest.mark.rule("step.several", "child.default-key", "child.nested")
def test_children_may_have_children(net: Network) -> None:
    """Ids nest; the default key is the number among its siblings."""
    end(net.source().step("words", words).step("letters", letters), net)
    net.put("a", text="to be")
    net.run()
    assert set(net.arrived("out")) == {"a#to", "a#to#0", "a#to#1", "a#be", "a#be#0", "a#be#1"}
    assert {line["id"]: line["parent"] for line in net.out("out").lines()}["a#to#1"] == "a#to"


def test_a_large_family_is_written_in_large_pieces(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it passes the size of a row group, it is written piece by piece: not row by row from there on."""
    pieces: list[int] = []
    write = PartWriter.write

    def noted(writer: PartWriter, table: pa.Table) -> None:
        if "delivery_hash" in table.schema.names and "row" in table.schema.names:
            pieces.append(table.num_rows)
        write(writer, table)

    monkeypatch.setattr(PartWriter, "write", noted)
    monkeypatch.setattr(limits, "GROUP_BYTES", 15_000)
    end(net.source().step("letters", letters), net)
    net.put("a", text="x" * 200)
    assert net.run().delivered == 201
    assert sum(pieces) == 201
    assert len(pieces) <= 5


@pytest.mark.rule("child.id")
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


@pytest.mark.rule("child.twins")
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


@pytest.mark.rule("child.default-key")
def test_the_default_key_goes_on_counting(net: Network) -> None:
    """Over the steps of a path."""

    def more(doc: Document) -> Any:
        return [doc, doc.child()] if doc.id == "a" else doc

    end(net.source().step("one", more).step("two", more), net)
    net.put("a")
    net.run()
    assert set(net.arrived("out")) == {"a", "a#0", "a#1"}


@pytest.mark.rule("child.read-once", "child.filtered")
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


@pytest.mark.rule("child.gone", "delete.given")
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


@pytest.mark.rule("child.kept")
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
    end(source.step("early", early).step("split", words), net, backoff=NOT_SOON_S)
    return plan


@pytest.mark.rule("child.kept")
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


@pytest.mark.rule("child.gone")
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


@pytest.mark.rule("child.replaced")
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
    end(net.source().step("words", words).step("late", failing(9, "a#x", "a#y")), net, backoff=NOT_SOON_S)
    net.put("a", text="x y z")
    net.run(wait=0)
    assert net.counts("out") == {"delivered": 1, "pending": 2}
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


def by_route(net: Network, step: Callable[[Document], Document]) -> Network:
    """left | right, which make copies → one destination."""
    fork = net.source().route("fork", Either())
    sides = [fork.step("left", lambda doc: doc), fork.step("right", step)]
    net.plan.destination("right-out", net.out("right-out"), after=sides, backoff=NOT_SOON_S)
    return net


def by_node(net: Network, step: Callable[[Document], Document]) -> Network:
    """left → a destination, right → another one, in one place."""
    fork = net.source().route("fork", Either())
    for out in (net.out("left-out"), net.out("right-out")):
        out.place = "one place"
    fork.step("left", lambda doc: doc).destination("left-out", net.out("left-out"), backoff=NOT_SOON_S)
    fork.step("right", step).destination("right-out", net.out("right-out"), backoff=NOT_SOON_S)
    return net


@pytest.mark.rule("child.kept", "child.replaced")
@pytest.mark.parametrize("end", ["made", "dropped", "dead"])
@pytest.mark.parametrize("build", [by_route, by_node])
def test_the_old_one_stays_until_the_new_one_comes_by_another_way(
    net: Network, build: Callable[..., Network], end: str
) -> None:
    """While it is owed nothing is deleted there; then it is replaced, or deleted if it will not come."""
    mark = net.folder / "mark"
    mark.write_text("fail")

    def step(doc: Document) -> Document | None:
        if mark.read_text() == "fail":
            raise TransientError("not yet")
        if mark.read_text() == "dead":
            raise PermanentError("never")
        return doc if mark.read_text() == "made" else None

    build(net, step)
    net.put("a", text="left")
    net.run()
    net.put("a", text="right")
    assert net.run(wait=0).exit == 4
    mark.write_text(end)
    assert sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-") == 0
    assert net.retry().count == 1
    net.run()
    gone = sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-")
    assert gone == (1 if end == "dropped" else 0)
    assert net.arrived("right-out")["a by right"] == (1 if end == "made" else 0)
    net.drop("a")
    assert net.run().exit == 0
    gone = sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-")
    assert gone == 1


@pytest.mark.rule("child.kept")
def test_copies_in_one_place_are_cleaned_up_when_both_are_through(net: Network) -> None:
    """What the one copy brought is not taken for old when the other one is tried again."""
    left, right = net.out("left"), net.out("right")
    left.place = right.place = "one place"
    mark = net.folder / "mark"

    def late(doc: Document) -> Document:
        if mark.exists():
            raise TransientError("not yet")
        return doc

    fork = net.source().route("fork", Duplicate())
    end(fork.step("words", words), net, "left")
    end(fork.step("late", late).step("more-words", words), net, "right", backoff=NOT_SOON_S)
    net.put("a", text="x y")
    net.run()
    mark.touch()
    net.put("a", text="y z")
    net.run(wait=0)
    mark.unlink()
    assert left.arrived()[2:] == ["a#y", "a#z"]
    net.retry()
    assert net.run().exit == 0
    assert (left.arrived()[4:], right.arrived()[2:]) == ([], ["a#y", "a#z", "-a#x"])
    net.drop("a")
    net.run()
    assert Counter(left.arrived()[4:]) == Counter(right.arrived()[5:]) == {"-a#y": 1, "-a#z": 1}


@pytest.mark.rule("child.after")
def test_a_familys_deletes_are_in_the_wave_of_its_upserts(net: Network) -> None:
    """And come after them, by their sequences too."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").forget()
    net.put("a", text="y z")
    assert net.run().waves == 1
    *upserts, delete = net.out("out").lines()
    assert ({line["id"] for line in upserts}, delete["id"], delete["op"]) == ({"a#y", "a#z"}, "a#x", "delete")
    assert delete["seq"] > max(line["seq"] for line in upserts)
    assert {e["wave"] for e in account.history(net.root, "a", net.plan)[-3:]} == {2}


@pytest.mark.rule("child.stable")
def test_the_same_input_makes_the_same_children(net: Network) -> None:
    """Fed again they are the same documents: nothing is deleted, nothing is new."""
    end(net.source(detect="none").step("letters", letters).step("words", lambda doc: [doc, doc.child("k")]), net)
    net.put("a", text="xy")
    for _ in range(3):
        net.run()
    ids = ["a", "a#0", "a#1", "a#k", "a#0#k", "a#1#k"]
    assert net.arrived("out") == dict.fromkeys(ids, 3)


@pytest.mark.rule("child.complete")
def test_a_family_is_done_when_all_its_members_are(net: Network) -> None:
    """While one child is owed the run is not complete, though all the others are there."""
    end(net.source().step("letters", letters).step("late", failing(1, "a#1")), net, backoff=NOT_SOON_S)
    net.put("a", text="xyz")
    summary = net.run(wait=0)
    assert (summary.exit, summary.delivered, summary.pending) == (4, 3, 1)
    assert account.status(net.root, net.plan)["balanced"]
    net.retry()
    assert net.run().exit == 0


class Shelf(Source):
    """One document with a word a child; counts how often it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def partitions(self) -> list[int]:
        return [0]

    def listing(self, partition: int) -> Iterator[Listed]:
        yield Listed("a", 10)

    def read(self, listed: Listed) -> Document:
        with self.path.open("a") as file:
            file.write("read\n")
        return Document(listed.id, raw=b"v w x y z")


@pytest.mark.rule("child.read-once")
def test_a_retry_wave_reads_the_source_once_for_all_children(net: Network) -> None:
    """However many of them failed; three waves, three reads."""
    reads = net.folder / "reads"
    node = net.plan.source("docs", Shelf(reads)).step("words", words)
    end(node.step("late", failing(2, "a#w", "a#x", "a#y")), net)
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.waves) == (0, 5, 3)
    assert reads.read_text().splitlines() == ["read"] * 3


class Either(Router):
    copies = True

    def choose(self, document: Document) -> str:
        return document.text()


@pytest.mark.rule("child.replaced")
def test_one_target_by_another_route_is_replaced_not_deleted(net: Network) -> None:
    """One destination below two branches that make copies: the new version comes by the other one."""
    fork = net.source().route("fork", Either())
    sides = [fork.step("left", lambda doc: doc), fork.step("right", lambda doc: doc)]
    net.plan.destination("out", net.out("out"), after=sides)
    net.put("a", text="left")
    net.run()
    net.put("a", text="right")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a by left": 1, "a by right": 1}
    net.drop("a")
    net.run()
    assert net.arrived("out")["-a by right"] == 1


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
    return Outcome.unavailable("down")


@pytest.mark.parametrize("later", ["x z", None])
def test_a_delete_that_was_refused_is_not_forgotten(net: Network, later: str | None) -> None:
    """The next version, or the end of the document, takes it up again; once it is confirmed nothing more is sent."""

    def refuse_deletes(delivery: Any) -> Outcome:
        return Outcome.permanent("no deletes today") if delivery.operation == "delete" else Outcome.ok()

    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refuse_deletes
    net.put("a", text="x")
    assert net.run().failed == 1
    net.out("out").answer = None
    net.drop("a")
    if later:
        net.put("a", text=later)
    assert net.run().exit == 0
    assert net.arrived("out")["-a#y"] == 1
    net.drop("a")
    net.run()
    assert net.arrived("out")["-a#y"] == 1


def test_a_delete_that_waits_may_still_die(net: Network) -> None:
    """After a newer version it would belong to nobody: that version sends one of its own."""
    end(net.source().step("words", words), net, backoff=NOT_SOON_S)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = down
    net.put("a", text="x")
    assert net.run(wait=0).exit == 4
    net.put("a", text="x z")
    assert net.run(wait=0).exit == 4
    net.out("out").answer = None
    assert net.run(wait=0).exit == 0
    assert net.arrived("out") == {"a#x": 3, "a#y": 1, "-a#y": 2, "a#z": 1}


def test_each_member_is_of_its_own_family(net: Network) -> None:
    """Also where a task has as many rows for a destination as documents, but not one of each."""

    def one_has_all(doc: Document) -> Iterable[Document] | None:
        return None if doc.id == "a" else [doc, *words(doc)]

    end(net.source().step("step", one_has_all), net)
    net.put("a", text="other")
    net.put("b", text="x")
    assert net.run().exit == 0
    versions = {row["document"]: row["version"] for row in rows(net.root, "documents")}
    told = {line["id"]: (line["origin"], line["version"]) for line in net.out("out").lines()}
    assert told == {"b": ("b", versions["b"]), "b#x": ("b", versions["b"])}


@pytest.mark.rule("delete.given")
def test_a_confirmed_delete_is_not_repeated(net: Network) -> None:
    """A document comes back with fewer children, or is dropped then: what was taken out is out."""

    def split(doc: Document) -> Any:
        return None if doc.text() == "none" else words(doc)

    end(net.source().step("split", split), net)
    net.put("a", "b", text="x y")
    net.run()
    net.drop("a", "b")
    net.run()
    net.put("a", text="x")
    net.put("b", text="none")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 2, "a#y": 1, "-a#x": 1, "-a#y": 1, "b#x": 1, "b#y": 1, "-b#x": 1, "-b#y": 1}


def test_a_generator_cannot_change_the_id_of_its_document(place: Path) -> None:
    """As a function cannot: what is delivered, and later deleted, has the id that the source gave."""
    net = Network(place)
    net.source()

    def renaming(doc: Document) -> Any:
        doc.id = f"{doc.id}#another"
        yield doc

    net.plan.step("renaming", renaming, after="docs").destination("out", net.out("out"))
    net.put("a")
    net.run()
    net.drop("a")
    net.run()
    assert net.arrived("out") == {"a": 1, "-a": 1}
