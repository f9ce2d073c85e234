"""Runs small plans of which one step misbehaves for one document, each in a process of its own, called in every way
that there is; and looks what became of this document and of all others.

``WAYS`` says how a step can be called. ``applies`` says which misbehaviours make sense in which way.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate, Router
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import Files
from tests.support.misbehaviours import TABLE, Misbehaviour, good
from tests.support.plan_world import Watch, run_plan
from tests.support.recorder import Recorder

KILLER: Final = 900
"""Field ``n`` of the last document, which ends its worker in the way "isolated", so that all others are isolated."""
CHILD: Final = 1000
"""What is added to ``n`` for children that the step does not misbehave for."""

_BY_NAME = {each.name: each for each in TABLE}
_STATUS = {"failed": "DEAD", "rejected": "ERROR_DOC", "dropped": "DROPPED", "delivered": "INDEXED"}
_LONG_S: Final = 300.0
"""A run that takes so long hangs."""
_TIMEOUT_S: Final = 0.5
"""Of a call that does not return."""


class Job(msgspec.Struct):
    """Misbehaviours, each for a document of its own, and how the step is called."""

    names: list[str]
    way: str
    folder: str


# -- the step, as what it is called as -------------------------------------------------------------------


class Alone:
    """Called for one document. Of the numbers from 0, the odd ones are those of documents that it misbehaves for."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, doc: Document) -> Any:
        how = self.how(doc)
        return good(doc) if how is None else how.call(doc)

    def how(self, doc: Document) -> Misbehaviour | None:
        """None: it is a document like any other."""
        return misbehaviour(self.names, doc["n"])


def misbehaviour(names: list[str], n: int) -> Misbehaviour | None:
    """Of the document of this number."""
    return _BY_NAME[names[n // 2]] if n % 2 and n // 2 < len(names) else None


class Generator(Alone):
    def __call__(self, doc: Document) -> Iterator[Any]:
        yield super().__call__(doc)


class Batch(Alone):
    def __call__(self, docs: list[Document]) -> Any:  # type: ignore[override]
        one = super().__call__
        return [one(doc) for doc in docs]


class Async(Alone):
    async def __call__(self, doc: Document) -> Any:  # type: ignore[override]
        how, out = self.how(doc), super().__call__(doc)
        return await out if how is not None and how.kind.startswith("async") else out


class AsyncBatch(Async):
    async def __call__(self, docs: list[Document]) -> Any:  # type: ignore[override]
        one = super().__call__
        return [await one(doc) for doc in docs]


class Arrow(Alone):
    def __call__(self, batch: pa.RecordBatch) -> Any:  # type: ignore[override]
        numbers = batch["n"].to_pylist()
        for n in numbers:
            super().__call__(Document("arrow", n=n))
        names = [*batch.schema.names, "seen"]
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(numbers)], names)


class Join(Alone):
    def __call__(self, docs: dict[str, Document]) -> Any:  # type: ignore[override]
        return super().__call__(docs["a"])


class Key(Alone):
    def __call__(self, doc: Document) -> str:
        super().__call__(doc)
        return str(doc["n"])


class Update(Alone):
    def __call__(self, key: str, state: Any, docs: list[Document]) -> Any:  # type: ignore[override]
        for doc in docs:
            super().__call__(doc)
        return len(docs), docs


class Combiner(Alone):
    def __call__(self, key: str, values: list[int]) -> int:  # type: ignore[override]
        for n in values:
            super().__call__(Document("combined", n=n))
        return values[0]


class Choice(Router):
    def __init__(self, names: list[str]) -> None:
        self.step = Alone(names)

    def choose(self, document: Document) -> str:
        self.step(document)
        return "chosen"


# -- the ways to call it -----------------------------------------------------------------------------------


class Way(NamedTuple):
    """How the step is called.

    Attributes:
        build: makes plan and documents in the folder; returns the destinations.
        kinds: of misbehaviours.
        id: of the document of a number; "": the plan makes one.
    """

    build: Callable[[Plan, Path, list[str], dict[str, Any]], list[Recorder]]
    kinds: tuple[str, ...]
    id: str = "d{}"


def same(doc: Document) -> Document:
    return doc


def same_batch(docs: list[Document]) -> list[Document]:
    return docs


def parts(doc: Document) -> list[Document]:
    return [doc.child("0", n=CHILD + doc["n"]), doc.child("1", n=doc["n"])]


def kills(doc: Document) -> Document:
    if doc["n"] == KILLER:
        os._exit(9)
    return doc


def _source(plan: Plan, names: list[str]) -> Any:
    numbers = [*range(count(names)), KILLER]
    return plan.source("docs", Memory([{"id": f"d{n}", "raw": f"text {n}".encode(), "n": n} for n in numbers]))


def count(names: list[str]) -> int:
    """Documents of a plan with so many misbehaviours, but for the last one."""
    return 2 * len(names) + 1


def _queue(plan: Plan, place: Path, name: str, names: list[str]) -> Any:
    DurableQueue(name, place).append([{"n": n} for n in [*range(count(names)), KILLER]])
    return plan.source(name, Queue(name, place, on_error="continue"))


def _to(node: Any, place: Path, name: str = "out") -> Recorder:
    out = Recorder(place / f"{name}.jsonl")
    node.destination(name, out, attempts=1)
    return out


def _step(form: type[Alone], *above: Any, below: Any = None, **options: Any) -> Any:
    def build(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
        node = _source(plan, names)
        for fn in above:
            node = node.step(fn.__name__, fn)
        node = node.step("odd", form(names), **{**options, **limit})
        if below is not None:
            node = node.step("below", below, batch=2)
        return [_to(node, place)]

    return build


def _duplicate(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    fork = _source(plan, names).step("odd", Alone(names), **limit).route("fork", Duplicate())
    return [_to(fork.step(f"to_{name}", same), place, name) for name in ("left", "right")]


def _join(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    inputs = {name: _queue(plan, place, name, names) for name in ("a", "b")}
    return [_to(plan.join("odd", Join(names), inputs, **limit), place)]


def _keyed(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    return [_to(_source(plan, names).keyed("odd", first_of, key=Key(names), attempts=1), place)]


def first_of(key: str, state: Any, docs: list[Document]) -> Any:
    return len(docs), [good(doc) for doc in docs]


def number_of(doc: Document) -> str:
    return str(doc["n"])


def _update(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    node = _source(plan, names).keyed("odd", Update(names), key=number_of, attempts=1, **limit)
    return [_to(node, place)]


def _combiner(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    numbers = _queue(plan, place, "numbers", names)
    node = numbers.combine("odd", Combiner(names), key=number_of, value="n", attempts=1, **limit)
    return [_to(node.step("told", told), place)]


def told(doc: Document) -> Document:
    n = doc["new"]
    doc.fields.clear()
    doc["n"] = doc["seen"] = n
    return doc


def _router(plan: Plan, place: Path, names: list[str], limit: dict[str, Any]) -> list[Recorder]:
    return [_to(_source(plan, names).route("odd", Choice(names)).step("chosen", good), place)]


_ALL = ("return", "raise", "field", "change", "process", "kill", "time")
_RAISES = ("raise", "process", "kill", "time")
_ASYNC = ("return", "raise", "field", "change", "process", "kill", "async", "async time")
_TOGETHER = ("return", "raise", "field", "change", "process", "kill", "time")

WAYS: Final = {
    "plain": Way(_step(Alone), _ALL),
    "below": Way(_step(Alone, same), _ALL),
    "after children": Way(_step(Alone, parts), _ALL, "d{}#1"),
    "after children, batch": Way(_step(Batch, parts, batch=2), _TOGETHER, "d{}#1"),
    "above a batch": Way(_step(Alone, below=same_batch), _ALL),
    "generator": Way(_step(Generator), ("raise", "field", "process", "kill", "time")),
    "timeout": Way(_step(Alone, timeout=100), _ALL),
    "batch": Way(_step(Batch, batch=2), _TOGETHER),
    "batch below": Way(_step(Batch, same, batch=2), _TOGETHER),
    "concurrency": Way(_step(Alone, concurrency=2), _TOGETHER),
    "batch concurrency": Way(_step(Batch, batch=2, concurrency=2), _TOGETHER),
    "async": Way(_step(Async), _ASYNC),
    "async concurrency": Way(_step(Async, concurrency=2, timeout=100), _ASYNC),
    "async batch": Way(_step(AsyncBatch, batch=2), _ASYNC),
    "arrow": Way(_step(Arrow, arrow=True, batch=2), _RAISES),
    "duplicate": Way(_duplicate, _ALL),
    "join": Way(_join, ("raise", "field", "change", "process", "kill", "time"), ""),
    "isolated": Way(_step(Alone, kills), _ALL),
    "forked": Way(_step(Alone), ("return", "raise", "field", "change", "time")),
    "key": Way(_keyed, ("raise",)),
    "update": Way(_update, ("raise", "kill", "time")),
    "combiner": Way(_combiner, ("raise", "kill", "time"), ""),
    "router": Way(_router, ("raise", "kill")),
}


_TOGETHER_MOST: Final = 6
"""Misbehaviours in one plan: those that say something of their document alone."""


def cases() -> list[tuple[tuple[str, ...], str]]:
    """Every misbehaviour in every way where it makes sense, as (names, way). Some stand together in a plan."""
    found: list[tuple[tuple[str, ...], str]] = []
    for name, way in WAYS.items():
        mine = [each for each in TABLE if each.kind in way.kinds and name not in each.without]
        alone = [each.name for each in mine if each.kind in ("process", "kill", "time", "async time")]
        together = [each.name for each in mine if each.name not in alone]
        found += [((each,), name) for each in alone]
        most = _TOGETHER_MOST
        found += [(tuple(together[at : at + most]), name) for at in range(0, len(together), most)]
    return found


# -- a case --------------------------------------------------------------------------------------------------


def work(job: Job) -> None:
    """Run the plan of the case, and look at what became of all documents."""
    os.setpgid(0, 0)
    hang = threading.Timer(_LONG_S, os.killpg, (0, signal.SIGKILL))
    hang.daemon = True
    hang.start()
    way, place = WAYS[job.way], Path(job.folder)
    kinds = {_BY_NAME[name].kind for name in job.names}
    plan = Plan("odd", version=1)
    limit = {"timeout": _TIMEOUT_S} if kinds & {"time", "async time"} else {}
    outs = way.build(plan, place, job.names, limit)
    fork = bool(kinds & {"process", "kill"}) or job.way in ("forked", "isolated")
    watch = Watch()
    run_plan(plan, place / "state", runner=InProcess(slots=1, fork=fork, failures=1), observer=watch, checked=False)
    died = any("died" in message for message in watch.messages)
    if job.way not in ("update", "combiner"):  # of them no message says it
        assert died == ("kill" in kinds or job.way == "isolated"), watch.messages
    rows = [row for row in Files(state_root(plan, place / "state"), "ledger").rows() if row["destination"]]
    for out in outs:
        _look_at_deliveries(out, job)
    _look_at_events(rows, job)


def _numbers(job: Job) -> dict[int, Misbehaviour | None]:
    """The documents that come to the step, by number, and what it does to them."""
    found = {n: misbehaviour(job.names, n) for n in [*range(count(job.names)), KILLER]}
    if job.way.startswith("after children"):
        found |= {CHILD + n: None for n in found}
    if job.way == "isolated":
        del found[KILLER]
    return found


def _outcome(how: Misbehaviour | None, way: str) -> tuple[str, str]:
    return ("delivered", "") if how is None else how.but.get(way, (how.outcome, how.says))


def _look_at_deliveries(out: Recorder, job: Job) -> None:
    """What is delivered arrived once, with fields of its own."""
    lines: dict[int, list[dict[str, Any]]] = {}
    for line in out.lines():
        n = line["fields"].get("n")
        lines.setdefault(int(line["id"][1:].partition("#")[0]) if n is None else n, []).append(line)
    for n, how in _numbers(job).items():
        mine = lines.pop(n, [])
        if _outcome(how, job.way)[0] != "delivered":
            assert mine == [], (how, mine)
            continue
        assert len(mine) == 1, (n, how, mine)
        fields = ("n", "seen") if how is None else how.fields
        assert fields is None or mine[0]["fields"] == dict.fromkeys(fields, n), (how, mine)
        if how is None and mine[0]["text"]:
            assert mine[0]["text"] == f"text {n}"
        if WAYS[job.way].id and job.way not in ("key", "update") and n < CHILD:
            assert mine[0]["id"] == WAYS[job.way].id.format(n), (how, mine)
    assert lines == {}, "nobody has asked for them"


def _look_at_events(rows: list[dict[str, Any]], job: Job) -> None:
    """The ledger names each document that was not delivered, with what was wrong; and no other one."""
    left = [row for row in rows if row["status"] != "INDEXED"]
    if job.way == "isolated":
        left = [row for row in left if row["document"] != f"d{KILLER}"]
    numbers = sorted(_numbers(job).items(), key=lambda each: -len(_outcome(each[1], job.way)[1]))  # the plainest last
    for n, how in numbers:
        outcome, says = _outcome(how, job.way)
        if outcome == "delivered":
            continue
        id = WAYS[job.way].id.format(n)
        mine = [
            row
            for row in left
            if id in ("", row["document"]) and row["status"] == _STATUS[outcome] and says in row["message"]
        ]
        assert mine, (how, [(row["document"], row["status"], row["message"][:500]) for row in left])
        for row in mine if id else mine[:1]:
            left.remove(row)
            named = any(name in row["message"] for name in ("odd", "for out", "for left", "for right"))
            assert named or outcome != "failed", row
    assert left == [], "others were not delivered"
