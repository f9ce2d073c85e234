"""Child processes of a worker: what libraries of the worker have opened does not reach them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.destinations import Delivery, DestinationContext, Guarantee, Queue
from ferryman.engine.deliver.callers import ProcessCaller
from ferryman.engine.runner.child import Child, Died
from ferryman.engine.runner.fork_server import fork_server
from ferryman.errors import WorkerDied
from ferryman.queues import Queue as DurableQueue
from ferryman.queues import merging
from tests.support.in_store import faulty, states

__all__ = ["faulty", "states"]

CONTEXT = DestinationContext("tests", 1, "out", 1, Guarantee.EXACTLY_ONCE, "here")


@pytest.fixture(autouse=True)
def _folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)


def written_by_a_child(queues: Path | str) -> None:
    """This process folds a queue's log, so that delta-rs has threads here; then a child writes and folds."""
    used = DurableQueue("used", queues)
    for n in range(8):
        used.append([{"n": n}])
    out = Queue("out", queues)
    out.check()
    caller = ProcessCaller(out)
    try:
        caller.call(out.open, CONTEXT, timeout_s=300)
        for n in range(70):  # in the child, a log is folded after 64 commits
            caller.call(out.write, [Delivery(f"d{n}", f"{n:032x}", n + 1, fields={"n": n})], timeout_s=300)
    finally:
        caller.end()
    assert [m.body["n"] for m in DurableQueue("out", queues).read()] == list(range(70))


@pytest.mark.rule("engine.fresh-child")
def test_a_child_of_a_worker_that_has_folded_a_log(tmp_path: Path) -> None:
    written_by_a_child(tmp_path)
    marks = tmp_path / "out" / "messages" / "_marks"
    assert [mark.name for mark in marks.iterdir()], "the child has folded the log"


@pytest.mark.rule("engine.fresh-child")
def test_a_child_of_a_worker_that_uses_a_store(states: str) -> None:
    written_by_a_child(states)


def test_a_child_that_dies() -> None:
    """The next request begins another one; what the worker has said of itself since reaches it."""

    def serve(request: str) -> int:
        if request == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        assert threading.active_count() == 1
        return os.getpid()

    child = Child(serve)
    try:
        first = child.ask("go")
        with pytest.raises(Died, match="SIGKILL"):
            child.ask("die")
        assert child.ask("go") not in (first, os.getpid())
    finally:
        child.end()


def test_a_child_that_is_killed_with_what_it_was_forked_from() -> None:
    """Somebody outside has done that: it is not held against what the child was at."""

    def serve(_: None) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    child = Child(serve)
    with pytest.raises(WorkerDied, match="killed from outside"):
        child.ask(None)
    child.end()
    assert fork_server().alive


class Panic(BaseException):
    """What a Rust extension raises: no Exception."""


@pytest.mark.rule("queue.upkeep")
@pytest.mark.parametrize("error", [Panic("a panic"), RuntimeError("anything"), MemoryError()])
def test_upkeep_that_fails_does_not_fail_the_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The append has taken effect: it says so, and another one does what was left."""
    queue = DurableQueue("orders", tmp_path)

    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(merging, "maintain", fail)
        assert [queue.append([{"n": n}]) for n in range(8)] == [[n + 1] for n in range(8)]
    queue.append([{"n": 8}])
    assert list((tmp_path / "orders" / "messages" / "_marks").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    queue = DurableQueue("orders", tmp_path)

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(merging, "maintain", fail)
    with pytest.raises(error):
        queue.append([{"n": 1}])
    assert queue.last_index == 1
