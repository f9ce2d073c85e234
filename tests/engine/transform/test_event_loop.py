"""The loop of ``async def`` steps outlives what a coroutine does to it, and every call in it is answered."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.engine.transform import event_loop
from ferryman.engine.transform.calls import interrupt_after
from ferryman.errors import Interrupted
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld


async def leaves() -> None:
    sys.exit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def gathers() -> None:
    await asyncio.gather(leaves(), interrupts())


async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leaves())


async def waits() -> None:
    await asyncio.wait_for(leaves(), 60)


async def asks_a_thread() -> None:
    await asyncio.to_thread(sys.exit, 3)


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancelled_as_it_returns() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def fine() -> str:
    await asyncio.sleep(0)
    return "fine"


@pytest.mark.rule("step.async-harm")
@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (leaves, SystemExit),
        (interrupts, KeyboardInterrupt),
        (gathers, SystemExit),
        (groups, SystemExit),
        (waits, SystemExit),
        (asks_a_thread, SystemExit),
        (cancels_itself, asyncio.CancelledError),
        (cancelled_as_it_returns, asyncio.CancelledError),
    ],
)
def test_what_a_coroutine_ends_in_is_its_caller_s(fn: Callable[[], Any], error: type[BaseException]) -> None:
    """Whatever it is, the caller gets it, and the same loop takes the next call."""
    before = event_loop.run(where())
    with pytest.raises(error):
        event_loop.run(fn())
    assert event_loop.run(fine()) == "fine"
    assert event_loop.run(where()) is before


async def where() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def stops() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "stopped"


async def leaves_a_task_behind() -> str:
    asyncio.get_running_loop().create_task(interrupts())
    return "left"


async def leaves_a_callback_behind() -> str:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    return "left"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fn", [stops, leaves_a_task_behind, leaves_a_callback_behind])
def test_what_a_coroutine_leaves_behind_does_not_end_the_loop(fn: Callable[[], Any]) -> None:
    """Its own answer counts, and the next calls run in the same loop."""
    before = event_loop.run(where())
    assert event_loop.run(fn()) in ("stopped", "left")
    assert event_loop.run(fine()) == "fine"
    assert event_loop.run(where()) is before


async def breaks() -> None:
    """The loop is stopped, and closed by another thread before it is run again."""
    loop = asyncio.get_running_loop()
    for task in asyncio.all_tasks():
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody waits for them in this test
    loop._check_closed = lambda: None  # type: ignore[attr-defined]  # run_forever asks it first
    loop.is_running = lambda: False  # type: ignore[method-assign]
    loop.close()
    await asyncio.Event().wait()


async def never() -> None:
    await asyncio.Event().wait()


def test_a_loop_that_is_lost_is_replaced_and_its_calls_hear_of_it() -> None:
    """A coroutine closes the loop while another one waits in it: both end in an error that says so."""
    ended: list[BaseException | None] = []
    heard = threading.Semaphore(0)

    def through(_found: Any, error: BaseException | None, _late: bool) -> None:
        ended.append(error)
        heard.release()

    event_loop.start(never(), None, through)
    event_loop.start(breaks(), None, through)
    for _ in range(2):
        assert heard.acquire(timeout=60)
    assert [type(e) for e in ended] == [RuntimeError] * 2
    assert "the event loop that it ran in has ended" in str(ended[0])
    assert event_loop.run(fine()) == "fine"


def test_a_call_that_another_cancels_before_it_begins_is_answered() -> None:
    """All tasks of the loop are cancelled: those that have not begun end, too."""

    async def cancels_all() -> None:
        event_loop.start(never(), None, lambda _, error, late: (ended.append(error), heard.set()))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            task.cancel()

    ended: list[BaseException | None] = []
    heard = threading.Event()
    with pytest.raises(asyncio.CancelledError):
        event_loop.run(cancels_all())
    assert heard.wait(60)
    assert isinstance(ended[0], asyncio.CancelledError)


def test_a_loop_that_begins_no_call_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step has left behind blocks it, or it cannot be woken: another one takes the call."""
    monkeypatch.setattr(event_loop, "_START_S", 0.1)
    before, over = event_loop.run(where()), threading.Event()
    before.call_soon_threadsafe(over.wait)
    assert event_loop.run(where()) is not before
    over.set()


def test_a_watch_that_somebody_has_set_does_not_hang_a_fork() -> None:
    """faulthandler's watch has a thread, which a fork does not have: a time limit there does not wait for it."""
    import faulthandler

    faulthandler.dump_traceback_later(600)
    try:
        child = os.fork()
        if child == 0:  # pragma: no cover - the child
            signal.alarm(60)
            with interrupt_after(60, "late"):
                pass
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        faulthandler.cancel_dump_traceback_later()


def raises(error: type[BaseException]) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id == "b":
            raise error
        return doc

    return step


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler of Ctrl-C: Spark leaves one of its own in a process in which a session was started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_ends_the_run(place: Path) -> None:
    """Ctrl-C while a step is called is not an error of its document."""
    net = PlanWorld.empty(place)

    def interrupted(doc: Document) -> Document:
        signal.raise_signal(signal.SIGINT)
        return doc

    net.source().step("asks", interrupted).destination("out", net.out("out"), attempts=1)
    net.put("a", "b", "c")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        net.run()
    assert isinstance(caught.value, Interrupted)
    assert signal.getsignal(signal.SIGINT) is before
    assert net.out("out").arrived() == []


@pytest.mark.rule("step.interrupts")
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"batch": 2}])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_step_that_raises_an_interrupt_fails_its_document(
    place: Path, error: type[BaseException], options: dict[str, Any]
) -> None:
    """No signal came: it is an error like any other, and names document and step."""
    net = PlanWorld.empty(place)
    step = raises(error)
    fn = (lambda docs: [step(doc) for doc in docs]) if "batch" in options else step
    net.source().step("asks", fn, **options).destination("out", net.out("out"), attempts=1)
    net.put("a", "b", "c")
    assert net.run(runner=InProcess(slots=1)).failed == 1
    assert sorted(net.out("out").arrived()) == ["a", "c"]
    assert net.events("b", "out") == ["DEAD"]
