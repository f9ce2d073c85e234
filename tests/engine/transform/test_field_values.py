"""Fields that hold what no document can: an error of that document which names the field, whoever made it and however
the step is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import account
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document, decode_json, encode_fields, encode_value, replace_nan
from ferryman.errors import BadDocument, Dropped
from ferryman.plan import Handle
from ferryman.routers import Duplicate, Router
from ferryman.sources import JsonLines, Listed, Memory, Source
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder

NAN = float("nan")
HALF = "\udcff"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def ends(net: PlanWorld, id: str) -> list[dict[str, Any]]:
    """What the ledger says of a document's own deliveries."""
    events = account.history(net.root, id, net.plan)
    return [event for event in events if event["destination"] and event["document"] == id]


@pytest.mark.rule("doc.numbers")
@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf"), [1.0, NAN], {"a": [None, {"b": NAN}]}, (NAN,)])
def test_what_is_no_number_is_refused_by_its_field(value: Any) -> None:
    """At any depth, also beside nulls and texts that say null."""
    with pytest.raises(BadDocument, match=r"field 'mean' holds (nan|-?inf), which is not a number in JSON"):
        encode_fields({"text": "null", "nothing": None, "mean": value, "n": 1.5})
    assert (
        encode_fields({"text": "null", "mean": None, "n": [1.5, None]}) == b'{"mean":null,"n":[1.5,null],"text":"null"}'
    )


@pytest.mark.parametrize("value", ["a\ud800", ["\udc00"], {"\ud83d": 1}])
def test_half_a_character_is_said_to_be_one(value: Any) -> None:
    """A file's name may have it, and JSON may write it. It is text already, and the message does not ask for text."""
    with pytest.raises(BadDocument, match=r"field 'name' holds text with half a character in it .* Replace it in a"):
        encode_fields({"n": 1, "name": value})
    with pytest.raises(ValueError, match=r"half a character .*: \\ud83d stands alone"):
        decode_json('{"name": "\\ud83d!"}')
    with pytest.raises(ValueError, match="truncated"):
        decode_json('{"name": "\\ud83d')


@pytest.mark.rule("doc.nested")
def test_levels_of_fields() -> None:
    """Two hundred, with the fields themselves; brackets in texts are no levels. So it is of JSON from outside."""
    assert decode_json(encode_fields({"a": nested(199), "text": "[{" * 300})) == {"a": nested(199), "text": "[{" * 300}
    for levels in (200, 500, 5000):
        with pytest.raises(BadDocument, match="field 'a' is nested more than 200 deep"):
            encode_fields({"b": 1, "a": nested(levels)})
        with pytest.raises(ValueError, match="it is nested more than 200 deep"):
            decode_json("[" * (levels + 1) + "]" * (levels + 1))
    with pytest.raises(BadDocument, match="the state is nested more than 200 deep"):
        encode_value(nested(200), "the state")


@pytest.mark.rule("doc.copied")
def test_a_copy_that_cannot_be_made_names_the_field() -> None:
    doc = Document("a", title="A", handle=threading.Lock())
    with pytest.raises(Exception, match="field 'handle' holds a lock, of which no copy can be made"):
        doc.copy()
    doc["handle"] = nested(2000)
    with pytest.raises(Exception, match="field 'handle' is nested more than 200 deep, of which no copy can be made"):
        doc.copy()


def several(docs: list[Document]) -> list[Document]:
    return [closed(doc) for doc in docs]


def fails_together(docs: list[Document]) -> list[Document]:
    if len(docs) > 1:
        raise ValueError("not together")
    return several(docs)


async def awaited(docs: list[Document]) -> list[Document]:
    return several(docs)


def closed(doc: Document) -> Document:
    doc.fields.pop("handle", None)
    return doc


def opened(doc: Document) -> Document:
    if doc.id == "d1":
        doc["handle"] = threading.Lock()
    if doc.id == "d2":
        doc["handle"] = (n for n in range(3))
    if doc.id == "d3":
        doc["handle"] = nested(600)
    return doc


def batched(fn: Callable[..., Any], **options: Any) -> Callable[[PlanWorld, Handle], None]:
    return lambda net, node: _ends(net, node.step("closed", fn, **{"batch": 2, **options}))


def forked(net: PlanWorld, node: Handle) -> None:
    fork = node.route("fork", Duplicate())
    for name in ("left", "right"):
        fork.step(name, closed).destination(f"{name}_out", net.out("out"))


def _ends(net: PlanWorld, node: Handle) -> None:
    node.destination("out", net.out("out"))


@pytest.mark.rule("doc.copied")
@pytest.mark.parametrize(
    "build",
    [
        batched(several),
        batched(several, batch=3),
        batched(fails_together),
        batched(several, concurrency=2),
        batched(awaited),
        forked,
    ],
    ids=["batch", "an odd batch", "halves", "threads", "event loop", "copying router"],
)
def test_what_cannot_be_copied_is_its_documents_error(
    net: PlanWorld, build: Callable[[PlanWorld, Handle], None]
) -> None:
    """Wherever a call takes copies, also for the only document that is left."""
    build(net, net.source().step("opened", opened))
    net.put(*(f"d{n}" for n in range(6)))
    assert net.run(wait=0).exit == 3
    assert {line["id"] for line in net.out("out").lines()} == {"d0", "d4", "d5"}
    for id, what in (("d1", "holds a lock"), ("d2", "holds a generator"), ("d3", "is nested more than 200 deep")):
        errors = ends(net, id)
        assert errors, id
        for event in errors:
            assert event["status"] == "ERROR_DOC"
            assert f"field 'handle' {what}, of which no copy can be made" in event["message"]


def spoiled(doc: Document) -> Any:
    """Each of these is of one document, made in each way that a step can make one."""
    bad = {"d1": NAN, "d2": [float("inf")], "d3": nested(300), "d4": "\udcff", "d5": {"\udcff": 1}}.get(doc.id)
    if bad is not None:
        doc["bad"] = bad
    return [doc, doc.child("c", bad=bad)] if doc.id == "d2" else doc


def spoiled_together(docs: list[Document]) -> list[Any]:
    return [spoiled(doc) for doc in docs]


async def spoiled_later(doc: Document) -> Any:
    return spoiled(doc)


@pytest.mark.rule("doc.numbers", "doc.nested")
@pytest.mark.parametrize(
    ("fn", "options"),
    [(spoiled, {}), (spoiled_together, {"batch": 3}), (spoiled, {"concurrency": 2}), (spoiled_later, {})],
    ids=["plain", "batch", "threads", "event loop"],
)
def test_a_value_that_json_has_not_is_its_documents_error(
    net: PlanWorld, fn: Callable[..., Any], options: dict[str, Any]
) -> None:
    net.source().step("spoiled", fn, **options).destination("out", net.out("out"))
    net.put(*(f"d{n}" for n in range(8)))
    assert net.run(wait=0).exit == 3
    assert {line["id"] for line in net.out("out").lines()} == {"d0", "d6", "d7"}
    for n in range(1, 6):
        [*_, event] = ends(net, f"d{n}")
        assert event["status"] == "ERROR_DOC"
        assert "field 'bad' " in event["message"]


def measured(doc: Document) -> Document:
    deep = {"a": [{"b": float("-inf")}]}
    doc.fields.update({"mean": NAN, "row": (1.0, float("inf")), "deep": deep, "n": 1.5, "t": "nan"})
    return doc


def measured_children(doc: Document) -> Iterator[Document]:
    yield measured(doc.child("c"))
    yield measured(doc)


def measured_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id"]).append_column("mean", pa.array([NAN] * len(batch)))


async def measured_later(doc: Document) -> list[Document]:
    return [measured(doc)]


@pytest.mark.rule("doc.nan-null")
@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (measured, {}),
        (measured_children, {}),
        (lambda docs: [measured(doc) for doc in docs], {"batch": 2}),
        (measured_rows, {"arrow": True}),
        (measured, {"concurrency": 2}),
        (measured_later, {}),
    ],
    ids=["plain", "children", "batch", "arrow", "threads", "event loop"],
)
def test_a_steps_nan_is_null_where_its_policy_says_so(
    net: PlanWorld, fn: Callable[..., Any], options: dict[str, Any]
) -> None:
    """At any depth, of each document that it returns; without it they are rejected."""
    null = net.source().step("measured", fn, nan="null", **options)
    null.destination("out", net.out("out"))
    net.put("a", "b")
    assert net.run(wait=0).exit == 0
    for line in net.out("out").lines():
        assert line["fields"]["mean"] is None
        expected = [None] if fn is measured_rows else [[1.0, None], {"a": [{"b": None}]}, 1.5, "nan"]
        names = ["mean"] if fn is measured_rows else ["row", "deep", "n", "t"]
        assert [line["fields"][name] for name in names] == expected
    assert len(net.out("out").lines()) == (4 if fn is measured_children else 2)


def test_what_is_nested_too_deep_stays_so() -> None:
    """Beside what is no number; the error then names it."""
    fields = {"a": [nested(300), NAN], "b": NAN}
    replace_nan(fields)
    assert fields["b"] is None
    with pytest.raises(BadDocument, match="field 'a' is nested more than 200 deep"):
        encode_fields(fields)


@pytest.mark.rule("doc.numbers", "doc.nested")
def test_a_source_of_a_program_names_the_field(place: Path) -> None:
    """The list of a program, and a source of its own: what they give is refused by the document's id."""
    given = [{"id": "a", "n": 1}, {"id": "b", "n": NAN}, {"id": "c", "n": nested(300)}, {"id": "d", "n": "\udcff"}]
    for name, source in (("memory", Memory(given)), ("own", Own(given))):
        net = PlanWorld.empty(place / name)
        net.plan.source("docs", source).destination("out", net.out("out"))
        assert net.run(wait=0).exit == 3
        assert [line["id"] for line in net.out("out").lines()] == ["a"]
        for id in "bcd":
            [event] = ends(net, id)
            assert event["status"] == "ERROR_DOC"
            assert "field 'n' " in event["message"]


class Own(Source):
    """Lists documents."""

    def __init__(self, given: list[dict[str, Any]]) -> None:
        super().__init__()
        self._given = given

    def partitions(self) -> list[Any]:
        return [0]

    def listing(self, partition: Any) -> Iterator[Document]:
        yield from (Document.of(each["id"], {"n": each["n"]}) for each in self._given)


@pytest.mark.rule("doc.nested")
@pytest.mark.parametrize("levels", [300, 600, 20_000])
def test_a_line_that_is_nested_deep_is_refused(place: Path, levels: int) -> None:
    """Its neighbours are delivered, whatever comes after the source."""
    (place / "in").mkdir()
    deep = "[" * levels + "]" * levels
    (place / "in" / "a.jsonl").write_text(f'{{"t": 1}}\n{{"t": {deep}}}\n{{"t": 3}}\n')
    net = PlanWorld.empty(place)
    lines = net.plan.source("docs", JsonLines(place / "in"))
    lines.step("first", several, batch=2).step("second", several, batch=2).destination("out", net.out("out"))
    assert net.run(wait=0).exit == 3
    assert [line["fields"]["t"] for line in net.out("out").lines()] == [1, 3]
    [event] = ends(net, "a.jsonl#line=2")
    assert "nested" in event["message"] or "recursion depth" in event["message"]


class Odd(Source):
    """Lists what no listing may have, among what it may."""

    def partitions(self) -> list[Any]:
        return [0]

    def listing(self, partition: Any) -> Iterator[Any]:
        yield Document("a", n=1)
        yield Document("b\udcff", n=2)
        yield Listed("c\udcff", 1, "1")
        yield Listed("d", 1, fingerprint="\udcff")
        yield Listed("e", 1, refused="not \udcff")
        yield Listed("f", -5)
        yield Document("g", raw="text")  # type: ignore[arg-type]
        yield Document("h", raw=bytearray(b"x"))  # type: ignore[arg-type]
        yield Document("i", n=3)


@pytest.mark.rule("doc.half-characters")
def test_what_cannot_be_stored_of_a_listing_is_that_documents_error(place: Path) -> None:
    """It is named, with what is wrong escaped; all others are delivered."""
    net = PlanWorld.empty(place)
    net.plan.source("docs", Odd()).destination("out", net.out("out"))
    assert net.run(wait=0).exit == 3
    assert {line["id"] for line in net.out("out").lines()} == {"a", "h", "i"}
    for id, why in (
        (r"b\udcff", "half a character"),
        (r"c\udcff", "half a character"),
        ("d", "fingerprint"),
        ("e", r"not \udcff"),
        ("f", "the size -5"),
        ("g", "a str as raw"),
    ):
        [event] = ends(net, id)
        assert event["status"] == "ERROR_DOC"
        assert why in event["message"]


class Halves(Router):
    def choose(self, document: Document) -> str:
        return "same" if document.id != "d6" else HALF


def halved(doc: Document) -> Any:
    match doc.id:
        case "d1":
            doc.again("1h", why=HALF)
        case "d2":
            raise Dropped(HALF)
        case "d3":
            doc.refused = HALF
        case "d4":
            return [doc, Document(f"d4#{HALF}")]
        case "d5":
            return [doc, doc.child(HALF)]
    return doc


@pytest.mark.rule("doc.half-characters")
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
def test_half_a_character_never_ends_a_run(net: PlanWorld, options: dict[str, Any]) -> None:
    """In words it is shown escaped; in an id it is that document's error, but in a child's key, which is encoded."""
    node = net.source().step("halved", halved, **options).route("fork", Halves())
    node.step("same", closed).destination("out", Halving(Path(net.out("out").path)), attempts=1)
    net.put(*(f"d{n}" for n in range(9)))
    assert net.run(wait=0).exit == 3
    arrived = {line["id"] for line in net.out("out").lines() if line["said"] == "ok"}
    assert arrived == {"d0", "d1", "d5", "d5#%ED%B3%BF", "d8"}
    messages = {n: " ".join(event["message"] or "" for event in ends(net, f"d{n}")) for n in range(9)}
    for n in (2, 3, 4, 6, 7):
        assert r"\udcff" in messages[n], n


class Halving(Recorder):
    """Refuses one, in half a character."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        said = super().write([delivery for delivery in chunk if delivery.id != "d7"])
        kept = iter(said)
        return [Outcome.permanent(HALF) if delivery.id == "d7" else next(kept) for delivery in chunk]
