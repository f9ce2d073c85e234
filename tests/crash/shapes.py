"""Plans that branch, join, tee, make children and change, for the crash matrix; each with an oracle of its own.

A shape is a row of stages: the corpus of each, and the plan that runs then. All stages but the last go well, once; in
the last one the process is killed, at every point. What must have arrived is computed from the corpora alone, by
functions that know nothing of the engine.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, Unavailable
from ferryman.plan import Handle, Plan
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.sources import Listed, Memory

BATCH = 3
MIXED = "mixed"
"""Each destination of the plan under another guarantee."""

Arrived = collections.Counter[tuple[str, str, str, str]]
"""(operation, id, route, text) -> how often."""
Corpus = Mapping[str, str]
"""Id -> text."""


class Shelf(Destination):
    """Appends a line a delivery to ``<root>/<name>.jsonl``, visible to all processes; transactional if it is asked to.

    Args:
        answers: id -> what it answers to an upsert of it: ``refuse`` (for good), ``first`` (not at the first attempt),
            ``break`` (raises: under at-most-once nobody knows what became of the chunk).
        down: it takes nothing at all.
    """

    effect = Effect.IDEMPOTENT
    transactional = True

    def __init__(self, root: Path, name: str, answers: Mapping[str, str] | None = None, *, down: bool = False) -> None:
        self.path = str(root / f"{name}.jsonl")
        self.answers = dict(answers or {})
        self.down = down

    def open(self, context: DestinationContext) -> None:
        self._exactly_once = context.guarantee is Guarantee.EXACTLY_ONCE

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self.down:
            return [Outcome.unavailable("down")] * len(chunk)
        with open(self.path, "a+") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.seek(0)
            there = {json.loads(line)["hash"] for line in log} if self._exactly_once else set()
            outcomes, lines = [], []
            for d in chunk:
                outcome = self._answer(d)
                outcomes.append(outcome)
                if outcome.kind == "ok" and d.hash not in there:
                    lines.append(json.dumps(_told(d)))
            os.write(log.fileno(), "".join(line + "\n" for line in lines).encode())
        return outcomes

    def _answer(self, d: Delivery) -> Outcome:
        match self.answers.get(d.id) if d.operation == "upsert" else None:
            case "refuse":
                return Outcome.permanent("refused on principle")
            case "first" if d.attempt < 2:
                return Outcome.transient("not the first time")
            case "break":
                raise RuntimeError("the line broke")
        return Outcome.ok()


def _told(d: Delivery) -> dict[str, Any]:
    return {
        "op": d.operation,
        "id": d.id,
        "route": "/".join(d.route),
        "text": d.text(),
        "hash": d.hash,
        "seq": d.sequence,
        "family": (d.origin_id, d.version),
        "attempt": d.attempt,
    }


@dataclass(frozen=True)
class Shape:
    """A plan and what is done with it.

    Attributes:
        build: (root, stage from 0, guarantee of the n-th destination) -> the plan as it runs in that stage.
        expected: what must have arrived at each destination at the end. Destinations joined by ``|`` are the branches
            of a router that takes turns: each copy comes to one of them.
        expected_by: the same, where it depends on what was committed, which the ledger tells.
        verbs: what is done in the last stage.
        left: what the last stage leaves: the exit code of its run.
        passes: points that only some shapes pass; see ``applies``.
        failures: how often a worker may die before its task is run apart.
        wait: seconds for which a run waits for what comes due.
        waits: the same for each stage, where they differ.
        hangs: each destination hangs once a stage, in a worker that outlives its tasks.
    """

    stages: int
    build: Callable[[Path, int, Callable[[int], str]], Plan]
    expected: Callable[[], dict[str, Arrived]]
    left: int = 0
    verbs: tuple[str, ...] = ("run",)
    passes: tuple[str, ...] = ()
    wave_bytes: int = 30
    failures: int = 4
    wait: float = 5
    waits: tuple[float, ...] = ()
    hangs: bool = False
    from_version: int | None = None
    expected_by: Callable[[list[dict[str, Any]]], dict[str, Arrived]] | None = None
    prepare: tuple[tuple[str, ...], ...] = field(default=())
    """Stages but the last: verbs, each with the point at which it is killed (``run@deliver.done``); () is ("run",)."""

    def plan(self, root: Path, stage: int, guarantee: str) -> Plan:
        guarantees = [g.value for g in Guarantee]
        return self.build(root, stage, lambda n: guarantees[n % 3] if guarantee == MIXED else guarantee)

    def guarantees(self, guarantee: str) -> dict[str, str]:
        """Destination -> its guarantee, in the last stage."""
        from ferryman.plan.nodes import DestinationNode

        plan = self.plan(Path("nowhere"), self.stages - 1, guarantee)
        return {n.name: n.policy.guarantee.value for n in plan.nodes if isinstance(n, DestinationNode)}


def source(plan: Plan, name: str, corpus: Corpus) -> Handle:
    return plan.source(name, Memory([{"id": i, "raw": t.encode()} for i, t in corpus.items()], max_deleted=1.0))


def failing(root: Path, name: str, times: Mapping[str, int]) -> Callable[[Document], Document]:
    """A step that fails so many calls for these documents, counted over all processes: a kill may use one up."""

    def step(doc: Document) -> Document:
        if doc.id in times:
            calls = root / f"{name}.{doc.id}.{doc.get('by', '')}.calls".replace("/", "_")
            with calls.open("ab") as file:
                file.write(b".")
            if calls.stat().st_size <= times[doc.id]:
                raise RuntimeError("not yet")
        return doc

    return step


def upserts(*corpora: Corpus, route: str = "") -> Arrived:
    return collections.Counter(("upsert", i, route, t) for corpus in corpora for i, t in corpus.items())


def deletes(ids: Iterable[str], route: str = "") -> Arrived:
    return collections.Counter(("delete", i, route, "") for i in ids)


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


# -- children in two levels, whose next version has others, elsewhere --------------------------------------------------

FAMILY = [
    {"a": "AB cd", "b": "xy zz ZZZ", "c": "PQ r", "d": "same Game", "e": "e"},
    {"a": "ab EF", "b": "zz XYW", "d": "same Game", "e": "E", "f": "new OLD"},
]


def chapters(doc: Document) -> Iterator[Document]:
    """The document, and a child for each word."""
    yield doc
    for word in doc.text().split():
        yield doc.child(word.lower(), raw=word.encode())


def verses(doc: Document) -> Any:
    """A child for each letter of a child."""
    if doc.id == doc.origin_id:
        return doc
    letters = dict.fromkeys(doc.text())
    return [doc, *(doc.child(letter.lower(), raw=letter.encode()) for letter in letters)]


def half(doc: Document) -> Document:
    doc["half"] = "upper" if doc.text().isupper() else "lower"
    return doc


def members(corpus: Corpus) -> dict[str, str]:
    """Id -> text of all families: what ``chapters`` and ``verses`` make."""
    found = dict(corpus)
    for id, text in corpus.items():
        for word in text.split():
            found[f"{id}#{word.lower()}"] = word
            found |= {f"{id}#{word.lower()}#{letter.lower()}": letter for letter in word}
    return found


def build_family(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("family", version=1)
    made = source(plan, "docs", FAMILY[stage]).step("chapters", chapters).step("verses", verses)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    teed = made.step("half", half).tee("all", Shelf(root, "all"), guarantee=guarantee(2), **policy)
    fork = teed.route("by-half", ByField("half"))
    upper = fork.step("upper", failing(root, f"upper-{stage}", {"a#ef#f": 1, "b#xyw": 2}))
    upper.destination("above", Shelf(root, "above"), guarantee=guarantee(0), **policy)
    fork.destination("lower", Shelf(root, "lower", {"f#new#n": "first"}), guarantee=guarantee(1), **policy)
    return plan


def expected_family() -> dict[str, Arrived]:
    old = members(FAMILY[0])
    changed = {i: t for i, t in FAMILY[1].items() if FAMILY[0].get(i) != t}
    again, now = members(changed), members(FAMILY[1])
    is_in: dict[str, Callable[[str], bool]] = {
        "all": lambda _: True,
        "above": str.isupper,
        "lower": lambda text: not text.isupper(),
    }
    return {
        name: upserts(*({i: t for i, t in corpus.items() if taken(t)} for corpus in (old, again)))
        + deletes({i for i, t in old.items() if taken(t)} - {i for i, t in now.items() if taken(t)})
        for name, taken in is_in.items()
    }


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


# -- version 2 carries on from version 1 -------------------------------------------------------------------------------

STILL = [{"s1": "still", "s2": "quiet"}, {"s1": "still", "s2": "quiet", "s3": "late"}]
MOVED = [{"m1": "a b", "m2": "c"}, {"m1": "a d", "m2": "c", "m4": "e", "m5": "f"}]


def louder(doc: Document) -> Document:
    doc.raw = (doc.raw or b"") + b"!"
    return doc


def quiet(doc: Document) -> Document:
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


def words_of(corpus: Corpus) -> dict[str, str]:
    return {**corpus, **{f"{i}#{word}": word for i, t in corpus.items() for word in t.split()}}


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


# -- a document that kills: careful mode -------------------------------------------------------------------------------

DEADLY = {f"d{n}": f"text {n}" for n in range(6)}


def deadly(doc: Document) -> Document:
    if doc.id in ("d1", "d4#4"):
        os._exit(3)
    return doc


def build_deadly(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("deadly", version=1)
    twice = source(plan, "docs", DEADLY).step("chapters", chapters).route("twice", Duplicate())
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    twice.step("deadly", deadly).destination("through", Shelf(root, "through"), guarantee=guarantee(0), **policy)
    twice.destination("past", Shelf(root, "past"), guarantee=guarantee(2), **policy)
    return plan


def expected_deadly() -> dict[str, Arrived]:
    found = words_of(DEADLY)
    return {
        "past": upserts(found, route="past"),
        "through": upserts({i: t for i, t in found.items() if i not in ("d1", "d4#4")}, route="deadly"),
    }


# -- a step and a source were away; now they are back, and some of what waits has changed or is gone -------------------

NEWS = [{"n1": "a", "n2": "b", "n3": "c"}, {"n1": "a", "n2": "d", "n4": "e"}]
SHARED = [{"s1": "x", "s2": "y"}, {"s1": "x", "s2": "z", "s3": "w"}]


class Share(Memory):
    """A source whose reads fail while it is away."""

    def __init__(self, corpus: Corpus, away: bool) -> None:
        super().__init__([{"id": i, "raw": t.encode()} for i, t in corpus.items()], max_deleted=1.0)
        self.away = away

    def listing(self, partition: Any) -> Iterator[Listed]:
        for doc in super().listing(partition):
            assert isinstance(doc, Document)
            yield Listed(doc.id, 1, location=doc.text())

    def read(self, listed: Listed) -> Document:
        if self.away:
            raise ConnectionRefusedError("nobody there")
        return Document(listed.id, raw=listed.location.encode())


def away(doc: Document) -> Document:
    raise Unavailable("the service is being moved")


def build_outage(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("outage", version=1)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    both = source(plan, "news", NEWS[stage]).route("both", Duplicate())
    asked = both.step("ask", away if stage == 0 else quiet)
    asked.destination("through", Shelf(root, "through"), guarantee=guarantee(0), **policy)
    both.destination("past", Shelf(root, "past"), guarantee=guarantee(1), **policy)
    share = plan.source("share", Share(SHARED[stage], stage == 0))
    share.destination("shared", Shelf(root, "shared"), guarantee=guarantee(2), **policy)
    return plan


def expected_outage() -> dict[str, Arrived]:
    return {
        "through": upserts(NEWS[1], route="ask"),
        "past": upserts(NEWS[0], {"n2": "d", "n4": "e"}, route="past") + deletes(["n3"], route="past"),
        "shared": upserts(SHARED[1]),
    }


# -- a destination that hangs is given up; what its server has taken in acts later -------------------------------------

POSTED = [{"p1": "a", "p2": "b", "p3": "c", "p4": "d"}, {"p1": "a", "p2": "bb", "p4": "dd", "p5": "e"}]
GIVEN_UP_S = 0.4
HANGS_AT_MOST_S = 60.0


class Server(Shelf):
    """Hangs once a stage: a server that has taken a chunk in, and carries it out when it likes: after the next chunk
    that it is sent. It compares sequences, as the guarantees ask of a server that may be so late.

    The thread that called waits as long, and would then write too, if it was still there: without looking.
    """

    def __init__(self, root: Path, name: str, stage: int) -> None:
        super().__init__(root, name)
        self.taken = root / f"{name}.{stage}.taken"
        self.earlier = root / f"{name}.{stage - 1}.taken"
        self.next = root / f"{name}.{stage}.next"

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        try:
            with self.taken.open("x") as taken:
                taken.write("".join(json.dumps(_told(d)) + "\n" for d in chunk))
        except FileExistsError:
            self.next.touch()
            done = super().write(chunk)
            self._carry_out(self.earlier)
            self._carry_out(self.taken)
            return done
        end = time.monotonic() + HANGS_AT_MOST_S
        while not self.next.exists():
            assert time.monotonic() < end, "nobody gave it up"
            time.sleep(0.01)
        return super().write(chunk)

    def _carry_out(self, taken: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            lines = [json.loads(line) for line in taken.read_text().splitlines()]
            with open(self.path, "a+") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                log.seek(0)
                highest: dict[str, int] = {}
                for line in map(json.loads, log):
                    highest[line["id"]] = max(line["seq"], highest.get(line["id"], 0))
                late = [line for line in lines if line["seq"] > highest.get(line["id"], 0)]
                os.write(log.fileno(), "".join(json.dumps(line) + "\n" for line in late).encode())


def build_hung(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("hung", version=1)
    all_ = source(plan, "docs", POSTED[stage]).route("all", Duplicate())
    for n, name in enumerate(("north", "middle", "far")):
        all_.destination(
            name,
            Server(root, name, stage),
            guarantee=guarantee(n),
            batch=BATCH,
            backoff=0,
            send_timeout=GIVEN_UP_S,
        )
    return plan


def expected_hung() -> dict[str, Arrived]:
    new = {i: t for i, t in POSTED[1].items() if POSTED[0].get(i) != t}
    return {
        name: upserts(POSTED[0], new, route=name) + deletes(["p3"], route=name) for name in ("north", "middle", "far")
    }


# -- a step that makes other children at each try ----------------------------------------------------------------------

TRIED = [{"forced": "f", "changed": "c"}, {"forced": "f", "changed": "cc", "late": "l"}]
FIRST_TRY = ("a", "b", "c")


def next_try(times: list[str]) -> tuple[str, ...]:
    """Keys of the children that the try with this number makes."""
    return ("b", *(f"d{n}" for n in times))


def split(root: Path, stage: int, doc: Document) -> Iterator[Document]:
    """The document and its children: which, and their texts, says the number of the try, counted over all processes."""
    calls = root / f"split-{stage}.{doc.id}.calls"
    with calls.open("ab") as file:
        file.write(b".")
    n = calls.stat().st_size
    if (stage, doc.id, n) == (1, "changed", 1):
        raise RuntimeError("not yet")
    yield doc
    first = stage == 0 or (doc.id, n) == ("late", 1)
    for key in FIRST_TRY if first else next_try([str(n)]):
        yield doc.child(key, raw=f"try {n}".encode())


def build_others(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    """``forced`` is tried again for a person says so, ``changed`` for its first try failed where the children are made,
    ``late`` for it failed itself when its children were through."""
    plan = Plan("others", version=1)
    made = source(plan, "docs", TRIED[stage]).step("split", partial(split, root, stage))
    all_ = made.step("flaky", failing(root, f"flaky-{stage}", {"late": 1})).route("all", Duplicate())
    for n, name in enumerate(("left", "middle", "right")):
        shelf = Shelf(root, name, {"changed#b": "first"})
        all_.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_others(ledger: list[dict[str, Any]]) -> dict[str, Arrived]:
    """By the tries that were committed. A retry of ``late`` alone lets go what else is made on the way to it, and takes
    back what is not."""
    members = {e["document"] for e in ledger if e["operation"] == "upsert"}

    def family(id: str, stage: int, n: int, keys: Iterable[str]) -> dict[str, str]:
        return {id: TRIED[stage][id], **{f"{id}#{key}": f"try {n}" for key in keys}}

    def at(route: str) -> Arrived:
        wanted = Arrived()
        for id in TRIED[1]:
            before = set(FIRST_TRY)
            if id in TRIED[0]:
                wanted += upserts(family(id, 0, 1, FIRST_TRY), route=route)
            elif f"{id}#a" in members:
                wanted += upserts(family(id, 1, 1, FIRST_TRY), route=route)
                wanted += deletes((f"{id}#{key}" for key in before - {"b"}), route=route)
                continue
            else:
                before = set()
            tries = sorted(int(m.partition("#d")[2]) for m in members if m.startswith(f"{id}#d"))
            assert tries, f"no later try of {id} was committed"
            assert len(tries) == 1 or id == "forced", f"{id} was committed again: {tries}"
            for n in tries:
                keys = next_try([str(n)])
                wanted += upserts(family(id, 1, n, keys), route=route)
                wanted += deletes((f"{id}#{key}" for key in before - {*keys}), route=route)
                before = set(keys)
        return wanted

    return {name: at(name) for name in ("left", "middle", "right")}


# -- a family of more children than are held at once -------------------------------------------------------------------

HELD = 5
"""Children that are held at once, in this shape."""
PAGES = [{"book": "12"}, {"book": "10"}]
IN_STREAM = "in-stream"
"""While this file is there, the process is killed in which a step is in the middle of making the children."""


def pages(root: Path, doc: Document) -> Iterator[Document]:
    """As many children as its text says; the document itself comes between them."""
    for n in range(int(doc.text())):
        if n == HELD + 2 and (root / IN_STREAM).exists():
            (root / IN_STREAM).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 1:
            yield doc
        yield doc.child(n, raw=f"{n} of {doc.text()}".encode())


def build_streamed(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("streamed", version=1)
    made = source(plan, "docs", PAGES[stage]).step("pages", partial(pages, root)).route("all", Duplicate())
    for n, name in enumerate(("first", "second", "third")):
        shelf = Shelf(root, name, {"book#7": "first"})
        made.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_streamed() -> dict[str, Arrived]:
    def family(stage: int) -> dict[str, str]:
        total = PAGES[stage]["book"]
        return {"book": total, **{f"book#{n}": f"{n} of {total}" for n in range(int(total))}}

    gone = family(0).keys() - family(1).keys()
    return {
        name: upserts(family(0), family(1), route=name) + deletes(gone, route=name)
        for name in ("first", "second", "third")
    }


SHAPES: dict[str, Shape] = {
    "join": Shape(1, build_join, expected_join, left=3, passes=("create.", "plan."), wave_bytes=60),
    "rejoin": Shape(2, build_rejoin, expected_rejoin, wave_bytes=20),
    "family": Shape(2, build_family, expected_family, wave_bytes=15),
    "retries": Shape(
        2, build_retries, expected_retries, left=3, verbs=("retry", "resolve", "run"), passes=("command.",)
    ),
    "version": Shape(
        3,
        build_version,
        expected_version,
        passes=("version.", "plan.", "command.staged", "command.done"),
        from_version=1,
        prepare=((), ("run@deliver.done", "retry@command.queued")),
        wave_bytes=100,
    ),
    "outage": Shape(2, build_outage, expected_outage, wait=0),
    "hung": Shape(2, build_hung, expected_hung, waits=(0, 30), wave_bytes=2, hangs=True),
    "others": Shape(
        2, build_others, dict, verbs=("force", "run"), passes=("command.",), expected_by=expected_others, wave_bytes=2
    ),
    "streamed": Shape(2, build_streamed, expected_streamed),
    "deadly": Shape(1, build_deadly, expected_deadly, left=3, failures=1, wave_bytes=1 << 30),
}


def applies(point: str, guarantee: str, shape: str) -> bool:
    """Does this case pass the point?"""
    for prefix in ("create.", "plan.", "version.", "command.", "notify."):
        if point.startswith(prefix):
            return point.startswith(SHAPES[shape].passes) if SHAPES[shape].passes else False
    if point == "deliver.hung":
        return SHAPES[shape].hangs
    if shape == "deadly" and not point.startswith(("transform.", "commit.", "wave.", "deliver.", "sweep.")):
        return False
    if point == "deliver.claimed":
        return guarantee in (MIXED, "at-most-once")
    return guarantee != "exactly-once" or point not in ("deliver.noted", "settle.repair")


# -- the oracle --------------------------------------------------------------------------------------------------------


def delivered(root: Path, name: str) -> list[dict[str, Any]]:
    log = root / f"{name}.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def counted(lines: Iterable[dict[str, Any]]) -> Arrived:
    return collections.Counter((d["op"], d["id"], d["route"], d["text"]) for d in lines)


Unknown = set[tuple[str, str, str, str]]
"""(destination, operation, id, route)."""


def check(root: Path, name: str, guarantee: str, unknown: Unknown, ledger: list[dict[str, Any]], killed: str) -> None:
    """Every destination against the oracle. ``killed``: what was killed in the last stage: driver, executor or ""."""
    shape = SHAPES[name]
    of = shape.guarantees(guarantee)
    unknown = unknown | _ever_unknown(ledger) if shape.hangs else unknown
    doubled_at = set()
    by_chance = shape.expected_by is not None
    for names, all_wanted in (shape.expected_by(ledger) if shape.expected_by else shape.expected()).items():
        lines = {n: delivered(root, n) for n in names.split("|")}
        wanted = all_wanted + _turns(lines, ledger) if len(lines) > 1 else all_wanted
        got = sum((counted({d["hash"]: d for d in there}.values()) for there in lines.values()), Arrived())
        # A delete that waits when a newer revision is taken up is made again with it: it may yet be refused.
        extra = {d for d in got - wanted if shape.from_version is None or d[0] != "delete" or d not in wanted}
        assert not extra, f"{names}: nobody asked for {extra}"
        for op, id, route, _ in wanted - got:
            assert any((n, op, id, route) in unknown for n in lines), f"{names}: lost {op} of {id} by {route!r}"
        for each, there in lines.items():
            if doubled := len(there) - len({d["hash"] for d in there}):
                assert of[each] == "at-least-once", f"{each}: doubled"
                assert killed == "executor", f"{each}: doubled, though nothing was in flight"
                assert doubled <= BATCH, f"{each}: {doubled} doubled, more than was in flight"
                doubled_at.add(each)
            _in_order(there, again=by_chance or shape.from_version is not None)
    assert len(doubled_at) <= 1, "one process was killed, and several destinations got doubles"
    assert all(of[n] == "at-most-once" for n, *_ in unknown), "unknown, where nothing can be"
    given_up = BATCH * shape.stages * sum(promise == "at-most-once" for promise in of.values()) if shape.hangs else 0
    assert not unknown or killed == "executor" or given_up, "nothing was in flight, and something is unknown"
    assert len(unknown) <= BATCH + given_up, "more in doubt than was in flight"
    _one_branch(ledger)


def _ever_unknown(ledger: list[dict[str, Any]]) -> Unknown:
    """Also of versions that are not the last any more."""
    last = {e["delivery_hash"]: e for e in sorted(ledger, key=lambda e: (e["wave"], e["ordinal"]))}
    return {
        (e["destination"], e["operation"], e["document"], e["route"])
        for e in last.values()
        if e["status"] == "INDEXING"
    }


def _in_order(lines: list[dict[str, Any]], *, again: bool) -> None:
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

    A copy goes to one branch or another, and a kill may use up a try: then only what is pending is the same.
    """
    turns = "west" in counts or SHAPES[name].expected_by is not None
    for name in counts:
        for kinds in (("delivered", "deleted", "failed", "in_doubt"), ("dropped",), ("rejected",), ("pending",)):
            if turns and kinds != ("pending",):
                continue
            now, then = (sum(c[name][kind] for kind in kinds) for c in (counts, reference))
            assert now == then, f"{name}: {kinds} {now}, without a kill {then}"
        if not counts[name]["in_doubt"]:
            assert turns or counts[name] == reference[name], name
