"""States that are emptied, so that the logs that feed them are read again: ``--reset-state``."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account, crash, limits
from ferryman.errors import PermanentError, TransientError, UsageError
from ferryman.operations import run as run_whole
from ferryman.plan import Plan
from ferryman.plan.flow import Flow
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Changes, Memory, Queue
from ferryman.state.state import state_root
from tests.engine.test_replicas import Copy
from tests.support.invariants import states
from tests.support.keyed import count, count_words
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder
from tests.support.tiers import sampled


def told(words: PlanWorld) -> dict[str, int]:
    """What the queue below was told last of each key; ``old`` is what it was told before."""
    last: Counter[str] = Counter()
    for message in words.queue("out").read(limit=100_000):
        key = message.meta["id"] if message.meta.get("operation") == "delete" else message.body["key"]
        if message.meta.get("operation") == "delete":
            assert key in last, "a key was removed twice"
            del last[key]
        else:
            assert message.body["old"] == last[key], message
            last[key] = message.body["new"]
    return dict(last)


def move(words: PlanWorld, index: int) -> None:
    """As ``ferryman queue rewind``."""
    [reader] = words.into.readers()
    words.into.tailer(reader).to(index)


@pytest.mark.rule("keyed.reset")
def test_what_was_rewound_is_counted_again(place: Path) -> None:
    """From where it was moved to; what was told is taken back first. The move is followed once."""
    words = count_words(place)
    words.put("a", "b", "a")
    words.run()
    move(words, 2)
    watch = Watch()
    assert words.run(observer=watch).waves == 0
    assert any("run once with --reset-state counts" in m for m in watch.messages), watch.messages
    assert words.run(reset=["counts"]).exit == 0
    assert words.states() == told(words) == {"a": 1, "b": 1}
    watch = Watch()
    words.put("a")
    words.run(observer=watch)
    assert words.states() == told(words) == {"a": 2, "b": 1}
    assert not watch.messages


@pytest.mark.rule("keyed.reset")
def test_a_queue_that_was_made_again_is_counted_alone(place: Path) -> None:
    """Keys that do not come again are removed, also where somebody reads the changes of the state."""
    words, copy = count_words(place), Copy(place)
    replica = Plan("replica", version=1)
    replica.source("changes", Changes(words.plan, "counts", words.state)).destination("copy", copy)
    words.put("a", "b", "a", "c")
    words.run()
    run_plan(replica, words.state)
    words.into.delete()
    words.into = DurableQueue("in", place)
    words.put("a", "d")
    with pytest.raises(UsageError, match="or run once with --reset-state counts"):
        words.run()
    assert words.run(reset=["counts"]).exit == 0
    assert words.states() == told(words) == {"a": 1, "d": 1}
    run_plan(replica, words.state)
    assert copy.values() == words.states()


def chain(folder: Path, *, other: Any = None, second: bool = False) -> Plan:
    """Queue ``in`` → ``counts`` → ``sizes`` (how many keys have which count) → a recorder."""
    plan = Plan("chain", version=1)
    source = plan.source("from_in", Queue("in", folder))
    fork = source.route("fork", Duplicate())
    if second:
        fork.keyed("second", count, key="word").destination("third", Recorder(folder / "third.jsonl"), backoff=0)
    counts = fork.keyed("counts", count, key="word")
    above = [counts, plan.source("other", other)] if other is not None else [counts]
    sizes = plan.keyed("sizes", sizes_of, key=lambda doc: str(len(doc["key"])), after=above)
    sizes.destination("out", Recorder(folder / "out.jsonl"), backoff=0)
    return plan


def sizes_of(
    key: str, state: dict[str, int] | None, documents: list[Document]
) -> tuple[dict[str, int], dict[str, Any]]:
    """The count of each key of this length."""
    new = {**(state or {}), **{doc["key"]: doc.get("new", 0) for doc in documents}}
    return new, {"sizes": new}


@pytest.mark.rule("keyed.reset")
def test_nodes_below_are_emptied_too(place: Path) -> None:
    into = DurableQueue("in", place)
    into.append([{"word": word} for word in ("a", "b", "cc", "a")])
    plan = chain(place)
    run_plan(plan, place / "state")
    [reader] = into.readers()
    into.tailer(reader).to(3)
    watch = Watch()
    assert run_plan(plan, place / "state", reset=["counts"], observer=watch).exit == 0
    root = state_root(plan, place / "state")
    assert states(root, "counts") == {"a": 1, "cc": 1}
    assert states(root, "sizes") == {"1": {"a": 1}, "2": {"cc": 1}}
    assert watch.messages[0] == "counts, sizes: 5 states were removed; what fed them is read again: from_in at in 3"


@pytest.mark.rule("keyed.reset-refused")
def test_what_could_not_be_right_is_refused(place: Path) -> None:
    """Documents that can change, another node that would count twice, one above that is not emptied, a flow."""
    DurableQueue("in", place).append([{"word": word} for word in "ab"])
    for plan, names, says in (
        (chain(place), ["sums"], "sums is not a keyed node of this plan. It has: counts, sizes"),
        (chain(place), ["sizes"], "counts also feeds sizes, and would not be counted again"),
        (chain(place, second=True), ["counts"], "from_in also feeds second, which would count it twice"),
        (
            chain(place, other=Memory([{"id": "x", "key": "x"}])),
            ["counts"],
            "documents of other come to counts or sizes",
        ),
    ):
        run_plan(plan, place / "state", checked=False)
        waves = waves_of(plan, place)
        with pytest.raises(UsageError, match=says):
            run_plan(plan, place / "state", reset=names)
        assert waves_of(plan, place) == waves
    both = chain(place, second=True)
    [reader] = DurableQueue("in", place).readers()
    DurableQueue("in", place).tailer(reader).to(1)
    assert run_plan(both, place / "state", reset=["counts", "second"], checked=False).exit == 0
    with pytest.raises(UsageError, match="reset_state is for one plan"):
        run_whole(Flow("flow", [chain(place)]), state=place / "state", reset_state=["counts"])


def waves_of(plan: Plan, place: Path) -> int:
    return int(account.status(state_root(plan, place / "state"), plan)["waves"])


@pytest.mark.rule("keyed.reset-refused")
@pytest.mark.parametrize("error", [TransientError("not now"), PermanentError("never")])
def test_while_something_waits_nothing_is_emptied(place: Path, error: Exception) -> None:
    """At the node, pending or refused; above it; below it."""

    def raising(*_: Any) -> Any:
        raise error

    at = count_words(place / "at", raising, on_error="continue")
    at.put("a")
    at.run(wait=0)
    with pytest.raises(UsageError, match="counts: 1 documents are committed, and not counted yet, or held for review"):
        at.run(reset=["counts"])
    plan = Plan("above", version=1)
    into = DurableQueue("in", place)
    into.append([{"word": "a"}])
    source = plan.source("from_in", Queue("in", place, on_error="continue", ordered=False))
    source.step("above", raising).keyed("counts", count, key="word")
    run_plan(plan, place / "state", wait=0)
    with pytest.raises(UsageError, match="from_in: 1 entries wait at a step or router, or failed there"):
        run_plan(plan, place / "state", reset=["counts"])


class Killed(BaseException):
    pass


RESET = ("reset.staged", "commit.ready", "wave.logged", "wave.synced", "settle.closed", "ledger.synced")
RESET += ("state.synced", "exports.synced", "settle.rewritten", "outbox.logged", "outbox.synced")


@pytest.mark.rule("keyed.reset")
@pytest.mark.parametrize("point", sampled(RESET, 3))
def test_a_kill_empties_all_or_nothing(place: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, or a run without it, goes on."""
    words = count_words(place)
    words.put("a", "b", "a")
    words.run()
    move(words, 2)
    armed = [point]

    def kill(name: str) -> None:
        if name in armed:
            armed.clear()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(crash, "point", kill)
        with pytest.raises(Killed):
            words.run(reset=["counts"])
    words.run()
    if point in ("reset.staged", "commit.ready"):
        assert words.states() == told(words) == {"a": 2, "b": 1}
        assert words.run(reset=["counts"]).exit == 0
    assert words.states() == told(words) == {"a": 1, "b": 1}
    with pytest.raises(UsageError, match="was killed, it was done: run without it"):
        words.run(reset=["counts"])
    words.put("b")
    words.run()
    assert words.states() == told(words) == {"a": 1, "b": 2}


@pytest.mark.rule("keyed.reset")
@pytest.mark.parametrize("seed", sampled(range(20), 10))
def test_at_any_time(place: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between runs of many words, with merges, each reset counts what lies behind the place that was chosen."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 3)
    chance, words = random.Random(seed), count_words(place)
    put: list[str] = []
    first = 0
    for _ in range(6):
        more = [f"w{chance.randrange(12)}" for _ in range(chance.randrange(1, 20))]
        words.put(*more)
        put += more
        reset = []
        if len(put) > len(more) and chance.random() < 0.6:
            reset = ["counts"]
            first = chance.randrange(len(put)) if chance.random() < 0.7 else 0
            move(words, first + 1)
        assert words.run(reset=reset).exit == 0
        assert words.states() == told(words) == dict(Counter(put[first:]))
