"""The plan of a case, what happens outside it between its runs, and what must have arrived by an oracle of its own.

There are two corpora: from the first to the second some documents change, some move to another key, some go, some come.
A log gets what is new in the second. Every step multiplies by ten and leaves out the key ``drop``.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ferryman import account
from ferryman.destinations import Null, Sql
from ferryman.destinations import Queue as ToQueue
from ferryman.destinations.base import Effect
from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.remembered import Remember
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Changes, DataFrame, Files, JsonLines, Memory, Queue, Source
from ferryman.state.state import state_root
from tests.matrix.cases import KEYED, LOGS, Case
from tests.support.invariants import states
from tests.support.recorder import Recorder, Store

Corpus = Mapping[str, tuple[str, int]]
"""Name -> key, n."""

CORPORA: tuple[Corpus, Corpus] = (
    {"a": ("x", 1), "b": ("x", 2), "c": ("y", 3), "d": ("drop", 4), "e": ("w", 5), "f": ("z", 9)},
    {"a": ("x", 7), "b": ("y", 2), "c": ("y", 3), "d": ("z", 4), "f": ("drop", 9), "g": ("x", 6)},
)
BAD = ("bad", 13)
"""Key and number of a document that fails for good, where the plan has a queue of errors. Its name is its key."""
SIDE = 100
"""Number of each message of the other queue of a join."""
RATE = 5000
CHUNK = 3


class Arrival(NamedTuple):
    """What a destination was given."""

    op: str
    id: str
    sequence: int
    hash: str
    fields: dict[str, Any]


# -- what the plans do -------------------------------------------------------------------------------------------------


def payload(doc: Document) -> dict[str, Any]:
    """What a document says, whatever it comes from."""
    if doc.raw is not None:
        found: dict[str, Any] = json.loads(doc.raw)
        return found
    if "value" in doc.fields:
        return {"name": doc["key"], "key": doc["key"], "n": doc["value"]}
    return {name: doc[name] for name in ("name", "key", "n")}


def worked(given: dict[str, Any]) -> dict[str, Any] | None:
    """What a step makes of it."""
    if given["key"] == BAD[0]:
        raise PermanentError("bad on principle")
    return None if given["key"] == "drop" else {**given, "n": 10 * given["n"]}


def plain(doc: Document) -> Document | None:
    made = worked(payload(doc))
    if made is not None:
        doc.fields.clear()
        doc.fields.update(made)
        doc.raw = None
        return doc
    return None


def read(doc: Document) -> Document:
    """What it says as fields: what a key was given of it before is known by these."""
    given = payload(doc)
    doc.fields.clear()
    doc.fields.update(given)
    doc.raw = None
    return doc


async def awaited(doc: Document) -> Document | None:
    await asyncio.sleep(0)
    return plain(doc)


def several(docs: list[Document]) -> list[Any]:
    found: list[Any] = []
    for doc in docs:
        try:
            found.append(plain(doc))
        except PermanentError as e:
            found.append(e)
    return found


async def several_awaited(docs: list[Document]) -> list[Any]:
    await asyncio.sleep(0)
    return several(docs)


def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.to_pylist()
    found = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("id", "raw") and value is not None}
        made = worked(payload(Document.of(row["id"], fields, row["raw"])))
        if made is not None:
            found.append({"id": row["id"], **made})
    schema = pa.schema(
        {"id": pa.string(), "raw": pa.binary(), "name": pa.string(), "key": pa.string(), "n": pa.int64()}
    )
    return pa.RecordBatch.from_pylist(found, schema)


MODES: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (plain, {}),
    "batch": (several, {"batch": 4}),
    "arrow": (columns, {"arrow": True, "batch": 4}),
    "threads": (plain, {"concurrency": 3}),
    "async": (awaited, {}),
    "async batch": (several_awaited, {"batch": 2, "concurrency": 2}),
    "rate": (plain, {"rate": RATE}),
}


def halves(doc: Document) -> Iterator[Document]:
    """The document, and a child."""
    yield doc
    child = doc.child("half")
    child.fields.update({**doc.fields, "n": doc["n"] // 2})
    yield child


def pair(docs: dict[str, Document]) -> dict[str, Any]:
    return {**payload(docs["one"]), "n": payload(docs["one"])["n"] + payload(docs["other"])["n"]}


def key_of(doc: Document) -> str:
    return str(payload(doc)["key"])


def number_of(doc: Document) -> int:
    return int(payload(doc)["n"])


def balance(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, Document]:
    """The sum of the numbers of a key; a key without any is exported as a deletion."""
    new = state or 0
    for doc in documents:
        new -= payload(_before(doc))["n"] if doc.previous else 0
        new += payload(doc)["n"] if doc.operation == "upsert" else 0
    exported = Document(key, name=key, key=key, n=new) if new else Document.deletion(key)
    return new or None, exported


def _before(doc: Document) -> Document:
    return Document.of(doc.id, doc.previous or {})


def total(key: str, values: list[int]) -> int:
    return sum(values)


# -- the world ---------------------------------------------------------------------------------------------------------


class World:
    """A case in a folder.

    Args:
        states: where states are: a folder, or the URL of one.
        queues: where queues are.
    """

    def __init__(self, case: Case, root: Path, states: str, queues: str) -> None:
        self.case, self.root, self.states, self.queues = case, root, states, queues

    @property
    def place(self) -> Any:
        """The state of the plan."""
        return state_root(self.plan(0), self.states)

    # -- what is outside

    def corpus(self, stage: int) -> dict[str, tuple[str, int]]:
        bad = {BAD[0]: BAD} if self.case.end == "errors" else {}
        return {**CORPORA[stage], **bad}

    def new_in(self, stage: int) -> dict[str, tuple[str, int]]:
        """What a log gets for a stage."""
        before = self.corpus(0) if stage else {}
        return {name: given for name, given in self.corpus(stage).items() if before.get(name) != given}

    def feed(self, stage: int) -> None:
        """Let the sources have what a stage brings; it may be done again."""
        match self.case.source:
            case "files":
                folder = self.root / "corpus"
                folder.mkdir(exist_ok=True)
                for path in folder.iterdir():
                    path.unlink()
                for given in told(self.corpus(stage)):
                    (folder / str(given["name"])).write_text(json.dumps(given))
            case "jsonlines":
                lines = (json.dumps(given) + "\n" for given in told(self.corpus(stage)))
                (self.root / "corpus.jsonl").write_text("".join(lines))
            case "queue":
                DurableQueue("in", self.queues).append(told(self.new_in(stage)), key=f"stage {stage}")
        if self.case.shape == "alts":
            DurableQueue("side", self.queues).append(told(self.new_in(stage)), key=f"stage {stage}")
        elif self.case.shape == "join":
            side = [{"name": "side", "key": "side", "n": SIDE}] * len(self.new_in(stage))
            DurableQueue("side", self.queues).append(side, key=f"stage {stage}")

    def upstream(self, stage: int) -> Plan | None:
        """The plan that must have run before, in the same folder of states; None: there is none."""
        if self.case.source != "changes":
            return None
        plan = Plan("upstream", version=1)
        listed = plan.source("list", Memory(_with_ids(self.corpus(stage)), max_deleted=1.0))
        listed.keyed("sums", balance, key="key").destination("nowhere", Null())
        return plan

    # -- the plan

    def plan(self, stage: int) -> Plan:
        """The plan as it runs in a stage."""
        case = self.case
        plan = Plan("matrix", version=1, strategy=case.strategy or None)  # type: ignore[arg-type]
        node = plan.source("docs", self._source(stage))
        if case.shape in ("join", "alts"):
            other = plan.source("side", Queue("side", self.queues))
            node = plan.alts("both", [node, other]) if case.shape == "alts" else None
            node = node or plan.join("both", pair, {"one": "docs", "other": "side"})
        fn, options = MODES[case.mode]
        if case.shape == "exports":
            node = node.step("read", read).keyed("sums", balance, key=key_of)
        if case.remember:  # what a document says must be in fields: they are what is remembered
            node = node.step("say", read)
            options = {**options, "remember": Remember("v1", name="worked")}
        node = node.step("work", fn, **options)
        if case.shape == "family":
            node = node.step("halves", halves)
        elif case.shape == "keyed":
            node = node.keyed("sums", balance, key=key_of)
        elif case.shape == "combine":
            node = node.combine("sums", total, key=key_of, value=number_of, inverse=operator.neg)
        elif case.shape == "tee":
            node = node.tee("other", Store(self.root / "other.jsonl"), **self._policy())
        elif case.shape == "copies":
            node = node.route("fork", Duplicate())
        elif case.shape == "route":
            node = node.route("fork", ByField("key", {"x": "out"}, default="other"))
        if case.shape in ("copies", "route"):
            node.destination("other", Store(self.root / "other.jsonl"), **self._policy())
        guarantee = {"least": "at-least-once", "most": "at-most-once"}.get(case.end)
        node.destination("out", self._end(), guarantee=guarantee, **self._policy())
        if case.end == "errors":
            plan.errors(ToQueue("errors", self.queues), backoff=0)
        return plan

    def _policy(self) -> dict[str, Any]:
        return {"backoff": 0, "batch": CHUNK}

    def _source(self, stage: int) -> Source:
        rows = _with_ids(self.corpus(stage))
        match self.case.source:
            case "memory":
                return Memory(rows, max_deleted=1.0)
            case "files":
                return Files(str(self.root / "corpus"), max_deleted=1.0)
            case "jsonlines":
                return JsonLines(str(self.root / "corpus.jsonl"), id="name", max_deleted=1.0)
            case "dataframe":
                listed = told(self.corpus(stage))
                return DataFrame(lambda spark: spark.createDataFrame(listed), id="name", max_deleted=1.0)
            case "queue":
                return Queue("in", self.queues)
            case "changes":
                upstream = self.upstream(0)
                return Changes(upstream, "sums", self.states)
        raise ValueError(self.case.source)

    def _end(self) -> Any:
        match self.case.end:
            case "exactly" | "errors":
                return Store(self.root / "out.jsonl")
            case "least":
                return Recorder(self.root / "out.jsonl")
            case "most":
                return Recorder(self.root / "out.jsonl", effect=Effect.POTENT)
            case "sql":
                return Sql(f"sqlite:///{self.root}/out.db")
            case "queue":
                return ToQueue("out", self.queues)
        raise ValueError(self.case.end)

    # -- what has arrived

    def arrived(self, name: str) -> list[Arrival]:
        """What came to a destination, in the order of the sequences; of ``sql`` what is there."""
        found: list[Arrival]
        if name == "out" and self.case.end == "queue":
            messages = DurableQueue("out", self.queues).read(limit=10_000)
            found = [
                Arrival(m.meta.get("operation", "upsert"), m.meta["id"], m.meta["sequence"], str(m.index), m.body)
                for m in messages
            ]
        elif name == "out" and self.case.end == "sql":
            with sqlite3.connect(self.root / "out.db") as db:
                rows = db.execute("SELECT id, sequence, delivery_hash, fields FROM documents").fetchall()
            found = [Arrival("upsert", id, sequence, digest, json.loads(text)) for id, sequence, digest, text in rows]
        else:
            lines = [line for line in Recorder(self.root / f"{name}.jsonl").lines() if line["said"] == "ok"]
            found = [Arrival(d["op"], d["id"], d["seq"], d["hash"], d["fields"]) for d in lines]
        return sorted(found, key=lambda each: each.sequence)

    def check(self, place: Path, kills: int) -> None:
        """Compare what has arrived with what must have.

        Args:
            place: the state, on this machine.
            kills: how many processes were killed.
        """
        doubt = account.deliveries(place, status="in_doubt")
        for name in self._ends():
            self._check_end(name, {id for d in doubt if d["destination"] == name for id in _each(d["document"])}, kills)
        if self.case.shape in KEYED:
            assert states(place, "sums") == self._sums(), "the states of the keys"
        if self.case.end == "errors" and not self.case.strategy:
            read = DurableQueue("errors", self.queues).read(limit=100)
            assert [m.body["where"] for m in read] == ["work"] * self._bad(), "the errors"

    def _ends(self) -> list[str]:
        return ["out", "other"] if self.case.shape in ("tee", "copies", "route") else ["out"]

    def _check_end(self, name: str, doubt: set[str], kills: int) -> None:
        found = self.arrived(name)
        case = self.case
        sure = name == "other" or case.end != "most"
        once = name == "other" or case.end not in ("least", "sql")
        by_hash = Counter(each.hash for each in found)
        doubled = by_hash.total() - len(by_hash)
        assert doubled <= (0 if once else CHUNK * kills), f"{name}: {doubled} came twice"
        view = _view(found)
        wanted = self._wanted(name)
        if case.strategy or not sure:
            differ = {id for id in view.keys() | wanted.keys() if view.get(id) != wanted.get(id)}
            unknown = {id for id in differ if not doubt & {id, id.partition("#")[0]}}
            assert not unknown, f"{name}: {unknown} differ, in doubt are {doubt}"
            assert not doubt or kills, f"{name}: in doubt without a kill: {doubt}"
        else:
            assert not doubt, f"{name}: {doubt} in doubt"
            assert view == wanted, f"{name} holds {view} in place of {wanted}"
        if case.shape not in KEYED and sure and not case.strategy and not (name == "out" and case.end == "sql"):
            first = {each.hash: each for each in found}
            got = Counter((each.op, each.id) for each in first.values())
            assert got == self._deliveries(name), f"{name}: other deliveries"

    # -- the oracle

    def _wanted(self, name: str) -> dict[str, dict[str, Any]]:
        """Id -> fields, as a destination has it at the end."""
        if self.case.shape in ("keyed", "combine", "exports"):
            return self._exported()
        found: dict[str, dict[str, Any]] = {}
        for stage in (0, 1):
            made = self._made(stage, name)
            found = {**found, **made} if self._reads_log() else made
        return found

    def _deliveries(self, name: str) -> Counter[tuple[str, str]]:
        """(operation, id) -> how often it must have come, all in all."""
        first, second = self._made(0, name), self._made(1, name)
        if self._reads_log():
            return Counter(("upsert", id) for id in [*first, *second])
        changed = [id for id, fields in second.items() if first.get(id) != fields]
        gone = first.keys() - second.keys()
        return Counter(("upsert", id) for id in [*first, *changed]) + Counter(("delete", id) for id in gone)

    def _reads_log(self) -> bool:
        return self.case.source == "queue"

    def _is_log(self) -> bool:
        return self.case.source in LOGS

    def _made(self, stage: int, name: str) -> dict[str, dict[str, Any]]:
        """What the steps make of a stage's documents for a destination; of a log, of what is new in it."""
        found: dict[str, dict[str, Any]] = {}
        for id, given in self._given(stage).items():
            try:
                made = worked(given)
            except PermanentError:
                continue
            if made is None or (self.case.shape == "route" and (made["key"] == "x") != (name == "out")):
                continue
            found[id] = made
            if self.case.shape == "family":
                found[f"{id}#half"] = {**made, "n": made["n"] // 2}
        return found

    def _given(self, stage: int) -> dict[str, dict[str, Any]]:
        """Id -> what the step is called with."""
        case = self.case
        if case.source == "changes":
            sums = _sums(told(self.corpus(stage)))
            return {key: {"name": key, "key": key, "n": n} for key, n in sums.items()}
        if case.source != "queue":
            return {given["name"]: given for given in told(self.corpus(stage))}
        first = len(self.new_in(0)) * stage
        entries = list(enumerate(told(self.new_in(stage)), first + 1))
        if case.shape == "join":
            return {f"in/{n}&side/{n}": {**given, "n": given["n"] + SIDE} for n, given in entries}
        names = ("in", "side") if case.shape == "alts" else ("in",)
        return {f"{name}/{n}": given for name in names for n, given in entries}

    def _counted(self) -> list[dict[str, Any]]:
        """What the keyed node has now: of a log all there ever was, of the changes of another state each of them."""
        first, second = (
            self._given(stage) if self.case.shape == "exports" else self._made(stage, "out") for stage in (0, 1)
        )
        if self.case.source == "changes":
            second = {id: given for id, given in second.items() if first.get(id) != given}
        return [*(first.values() if self._is_log() else ()), *second.values()]

    def _sums(self) -> dict[str, int]:
        found = _sums(self._counted())
        if self.case.shape == "combine":  # what is taken back leaves 0
            gone = {} if self._is_log() else {given["key"]: 0 for given in self._made(0, "out").values()}
            return {**gone, **found}
        return found

    def _exported(self) -> dict[str, dict[str, Any]]:
        """Id -> fields of what the keyed node exports, as it is at the end."""
        if self.case.shape == "combine":
            return {key: {"key": key, "new": n} for key, n in self._sums().items()}
        found = {key: {"name": key, "key": key, "n": n} for key, n in self._sums().items()}
        if self.case.shape == "exports":
            found = {key: {**given, "n": 10 * given["n"]} for key, given in found.items() if key not in ("drop", "bad")}
        return found

    def _bad(self) -> int:
        """How many documents fail."""
        if self.case.shape == "alts":
            return 2
        return 1


def told(corpus: Corpus) -> list[dict[str, Any]]:
    """Documents as their sources have them."""
    return [{"name": name, "key": key, "n": n} for name, (key, n) in corpus.items()]


def _with_ids(corpus: Corpus) -> list[dict[str, Any]]:
    return [{"id": given["name"], **given} for given in told(corpus)]


def _sums(given: list[dict[str, Any]]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for each in given:
        found[each["key"]] += each["n"]
    return {key: n for key, n in found.items() if n}


def _each(document: str) -> list[str]:
    """The ids of what is in doubt: of a log's entries in a row one says first and last, ``in/7..11``, also where two
    logs are joined, ``in/7..11&side/7..11``."""
    return ["&".join(ids) for ids in zip(*map(_range, document.split("&")), strict=True)]


def _range(entries: str) -> list[str]:
    log, _, numbers = entries.rpartition("/")
    first, dots, last = numbers.partition("..")
    return [f"{log}/{n}" for n in range(int(first), int(last) + 1)] if dots else [entries]


def _view(found: list[Arrival]) -> dict[str, dict[str, Any]]:
    """What a destination holds that refuses older sequences."""
    view: dict[str, dict[str, Any]] = {}
    for each in found:
        if each.op == "delete":
            view.pop(each.id, None)
        else:
            view[each.id] = {name: value for name, value in each.fields.items() if name != "old"}
    return view
