"""Plans from queues to queues that meet every branch, in two stages; their oracle knows the messages alone.

The field ``n`` of a message says what happens to it: the step or join fails for it at its first call (FLAKY), always
(BROKEN), or until somebody mends it (MENDED_LATER); the destination ``one`` refuses it (REFUSED). Before the second
stage more messages are appended, the step is mended, and a person retries what failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ferryman import account
from ferryman.destinations import Delivery, Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state.state import state_root

STAGES = (1, 2)
FLAKY = (4, 14, 104)
BROKEN = (16, 106)
MENDED_LATER = (7,)
REFUSED = (9, 19, 109)
MENDED = "mended"
"""A file: the step's code is another one by now."""

Ends = Counter[tuple[str, int]]
"""(node that failed, n) -> how often."""


class Choosy(ToQueue):
    """A queue that refuses some messages."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        bad = {d.hash for d in chunk if d.fields.get("n") in REFUSED}
        good = iter(super().write([d for d in chunk if d.hash not in bad]))
        return [Outcome.permanent("refused on principle") if d.hash in bad else next(good) for d in chunk]


def working(root: Path) -> Callable[[Document], Document]:
    def work(doc: Document) -> Document:
        meet(root, doc["n"])
        return doc

    return work


def meet(root: Path, n: int) -> None:
    """Raise what is raised for this number."""
    if n in FLAKY:
        calls = root / f"{n}.calls"
        with calls.open("ab") as file:
            file.write(b".")
        if calls.stat().st_size == 1:
            raise TransientError("not the first time")
    if n in BROKEN or (n in MENDED_LATER and not (root / MENDED).exists()):
        raise PermanentError(f"{n} is broken")


class Line(NamedTuple):
    """A plan, what is appended before each stage, and what must be there after it.

    Attributes:
        fill: stage -> {queue: messages}.
        outputs: queue -> the numbers that it must have after both stages, in order, without those that were retried;
            where inputs may be mixed in any way, those of each are in order.
        ends: final failures of each stage.
        again: outputs that a retry gives, anywhere after those of the first stage.
        indices: where each message of an output came from, by its number.
    """

    plan: Callable[[Path], Plan]
    fill: Mapping[int, Mapping[str, list[dict[str, Any]]]]
    outputs: Mapping[str, Mapping[int, list[int]]]
    ends: Mapping[int, Ends]
    again: Mapping[str, list[int]]
    origins: Callable[[int], dict[str, int]]
    mixed: bool = False


def pipe(root: Path) -> Plan:
    plan = Plan("pipe", version=1)
    fork = plan.source("from_in", Queue("in", root)).step("work", working(root)).route("both", Duplicate())
    return _ends(root, plan, fork)


def join(root: Path) -> Plan:
    def added(docs: dict[str, Document]) -> dict[str, Any]:
        n = docs["a"]["n"]
        assert docs["b"]["n"] == 100 + n, docs
        meet(root, n)
        return {"n": n}

    plan = Plan("join", version=1)
    a = plan.source("in_a", Queue("a", root, types=["pair"]))
    b = plan.source("in_b", Queue("b", root))
    return _ends(root, plan, plan.join("work", added, {"a": a, "b": b}).route("both", Duplicate()))


def alts(root: Path) -> Plan:
    plan = Plan("alts", version=1)
    inputs = [plan.source(f"in_{name}", Queue(name, root)) for name in "ab"]
    return _ends(root, plan, plan.alts("any", inputs).step("work", working(root)).route("both", Duplicate()))


def _ends(root: Path, plan: Plan, fork: Any) -> Plan:
    fork.destination("one", Choosy("one", root), batch=2, backoff=0)
    fork.destination("two", ToQueue("two", root), batch=2, backoff=0)
    plan.errors(ToQueue("errors", root), batch=2, backoff=0)
    plan.notify(f"tee -a {root / 'told.jsonl'}")
    return plan


def _numbered(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"n": n, **more} for n in numbers]


def _pairs(*numbers: int) -> list[dict[str, Any]]:
    """Each with one before it that the filter drops."""
    return [body for n in numbers for body in ({"n": -n, "type": "other"}, {"n": n, "type": "pair"})]


def _without(numbers: range, *classes: tuple[int, ...]) -> list[int]:
    return [n for n in numbers if not any(n in each for each in classes)]


_FIRST, _SECOND = range(1, 13), range(13, 21)
_TO_ONE = {1: _without(_FIRST, BROKEN, MENDED_LATER, REFUSED), 2: _without(_SECOND, BROKEN, REFUSED)}
_TO_TWO = {1: _without(_FIRST, BROKEN, MENDED_LATER), 2: _without(_SECOND, BROKEN)}
_ENDS = {1: Ends({("work", 7): 1, ("one", 9): 1}), 2: Ends({("work", 16): 1, ("one", 19): 1, ("one", 9): 1})}
_OF_B = range(101, 111)

LINES = {
    "pipe": Line(
        pipe,
        {1: {"in": _numbered(*_FIRST)}, 2: {"in": _numbered(*_SECOND)}},
        {"one": _TO_ONE, "two": _TO_TWO},
        _ENDS,
        {"one": [7], "two": [7]},
        lambda n: {"in": n},
    ),
    "join": Line(
        join,
        {
            1: {"a": _pairs(*_FIRST), "b": _numbered(*(100 + n for n in _FIRST))},
            2: {"a": _pairs(*_SECOND), "b": _numbered(*(100 + n for n in range(13, 25)))},
        },
        {"one": _TO_ONE, "two": _TO_TWO},
        _ENDS,
        {"one": [7], "two": [7]},
        lambda n: {"a": 2 * n, "b": n},
    ),
    "alts": Line(
        alts,
        {
            1: {"a": _numbered(*_FIRST), "b": _numbered(*_OF_B)},
            2: {"a": _numbered(*_SECOND), "b": _numbered(111, 112)},
        },
        {
            "one": {
                1: _TO_ONE[1] + _without(_OF_B, BROKEN, REFUSED),
                2: [*_TO_ONE[2], 111, 112],
            },
            "two": {1: _TO_TWO[1] + _without(_OF_B, BROKEN), 2: [*_TO_TWO[2], 111, 112]},
        },
        {
            1: _ENDS[1] + Ends({("work", 106): 1, ("one", 109): 1}),
            2: _ENDS[2] + Ends({("work", 106): 1, ("one", 109): 1}),
        },
        {"one": [7], "two": [7]},
        lambda n: {"b": n - 100} if n > 100 else {"a": n},
        mixed=True,
    ),
}


def fill(line: str, root: Path, stage: int) -> None:
    """What comes before a stage."""
    for queue, messages in LINES[line].fill[stage].items():
        DurableQueue(queue, root).append(messages, key=f"stage {stage}")
    if stage == 2:
        (root / MENDED).touch()


def check(line: str, root: Path, stage: int, plan: Plan) -> None:
    """All queues and positions against the oracle."""
    told = LINES[line]
    for queue, by_stage in told.outputs.items():
        messages = DurableQueue(queue, root).read(limit=10_000)
        found = [m.body["n"] for m in messages]
        wanted = [n for each in range(1, stage + 1) for n in by_stage[each]]
        extra = told.again[queue] if stage == 2 else []
        doubled = {n: times for n, times in Counter(found).items() if times > 1}
        assert not doubled, f"doubled in {queue}: {doubled}"
        assert sorted(found) == sorted([*wanted, *extra]), f"{queue}: {found}"
        assert all(found.index(n) >= len(by_stage[1]) for n in extra), f"{queue}: {found}"
        rest = [n for n in found if n not in extra]
        if told.mixed:
            assert [n for n in rest if n <= 100] == [n for n in wanted if n <= 100], f"{queue}: {found}"
            assert [n for n in rest if n > 100] == [n for n in wanted if n > 100], f"{queue}: {found}"
        else:
            assert rest == wanted, f"{queue}: {found}"
        for message in messages:
            about = message.meta["queues"]
            indices = {name: about[name]["index"] for name in about}
            assert indices == told.origins(message.body["n"]), (queue, message)
    _check_errors(told, root, stage)
    status = account.status(state_root(plan, root / "state"), plan)
    for name, counts in status["sources"].items():
        if "positions" in counts:
            for queue, position in counts["positions"].items():
                if (root / queue).is_dir():
                    _check_position(root, name, queue, position, line, stage)


def _check_position(root: Path, name: str, queue: str, position: int, line: str, stage: int) -> None:
    end = DurableQueue(queue, root).last_index + 1
    if (line, queue, stage) == ("join", "b", 2):
        end = 21  # the other input has no more
    assert position == end, f"{name} stands at {position} of {queue}, which ends at {end}"


def _check_errors(told: Line, root: Path, stage: int) -> None:
    by_id = {"&".join(f"{name}/{index}" for name, index in told.origins(n).items()): n for n in range(1, 113)}
    errors = [m.body for m in DurableQueue("errors", root).read(limit=10_000)]
    failed = [(body["where"], by_id[message["id"]]) for body in errors for message in body["messages"]]
    assert len(failed) == len(errors)
    wanted: Ends = sum((told.ends[each] for each in range(1, stage + 1)), Ends())
    assert Ends(failed) == wanted, failed
    if not told.mixed:
        assert failed[:2] == [("work", 7), ("one", 9)]
