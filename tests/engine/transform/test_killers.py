"""Documents that kill: the process of a step, of the source, of a sender. They are found, and harm only themselves."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.run import Summary
from ferryman.errors import EngineError, TransientError, WorkerDied
from ferryman.records.rows import reason_of
from ferryman.routers import Duplicate, Router
from ferryman.sources import Listed, Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld
from tests.support.tiers import sampled

IDS = [f"d{n:02}" for n in range(40)]


@pytest.fixture
def net(place: Path) -> PlanWorld:
    net = PlanWorld.empty(place)
    net.source()
    net.put(*IDS)
    return net


def run(net: PlanWorld, failures: int = 1, **options: Any) -> Summary:
    return net.run(runner=InProcess(fork=True, failures=failures), **options)


def segfault() -> None:
    faulthandler.disable()  # pytest's report of it would fill the screen
    signal.raise_signal(signal.SIGSEGV)  # in this thread: it does not return


def leave() -> None:
    os._exit(3)


def out_of_memory() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # so the kernel ends who takes too much


def close_all() -> None:
    os.closerange(3, 200)  # also those by which the process answers


def killing(how: Callable[[], object], *ids: str) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id in ids:
            how()
        return doc

    return step


HOW: list[tuple[Callable[[], object], str]] = [
    (segfault, "signal 11 (SIGSEGV)"),
    (leave, "exit code 3"),
    (out_of_memory, "signal 9 (SIGKILL)"),
    (close_all, "exit code 9"),
]


@pytest.mark.rule("kill.named", "kill.others")
@pytest.mark.parametrize("failures", sampled([1, 4], 2))
@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(("d07",), id="one", marks=pytest.mark.slow),
        pytest.param(("d00", "d01", "d20", "d39"), id="several"),
    ],
)
@pytest.mark.parametrize(("how", "says"), HOW, ids=[name.__name__ for name, _ in HOW])
def test_a_document_that_kills_its_step_is_named(
    net: PlanWorld, how: Callable[[], object], says: str, ids: tuple[str, ...], failures: int
) -> None:
    """ERROR_DOC with the signal or exit code; all others are delivered, nobody else is accused."""
    net.plan.step("deadly", killing(how, *ids), after="docs")
    net.plan.destination("out", net.out("out"), after="deadly")
    summary = run(net, failures)
    assert (summary.exit, summary.delivered, summary.rejected) == (3, len(IDS) - len(ids), len(ids))
    bad = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert {row["document"]: row["message"] for row in bad} == dict.fromkeys(
        ids, f"step deadly: PermanentError: it ended its process in each of 3 tries: {says}"
    )
    assert set(net.arrived("out").values()) == {1}
    assert run(net, failures).waves == 0


@pytest.mark.rule("kill.others")
def test_a_step_that_kills_takes_only_its_own_branch(net: PlanWorld) -> None:
    """What does not pass it is delivered, of the same document too."""
    twice = net.plan.route("twice", Duplicate(), after="docs")
    twice.step("deadly", killing(segfault, "d05")).destination("one", net.out("one"))
    twice.destination("two", net.out("two"))
    assert run(net).rejected == 1
    assert len(net.arrived("one")) == len(IDS) - 1
    assert len(net.arrived("two")) == len(IDS)


@pytest.mark.rule("kill.others")
@pytest.mark.parametrize("how", [leave, close_all])
def test_a_child_that_kills_takes_not_its_family(net: PlanWorld, how: Callable[[], object]) -> None:
    """Its siblings are delivered. A generator's own death is its document's."""

    def split(doc: Document) -> Any:
        for key in "xyz":
            if doc.id == "d03" and key == "y":
                segfault()
            yield doc.child(key)

    net.plan.step("split", split, after="docs").step("deadly", killing(how, "d01#y")).destination("out", net.out("out"))
    summary = run(net)
    assert (summary.delivered, summary.rejected) == (3 * len(IDS) - 1 - 3, 2)
    bad = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert {row["document"]: row["message"].split(":")[0] for row in bad} == {
        "d01#y": "step deadly",
        "d03": "step split",
    }


@pytest.mark.rule("kill.tries")
def test_who_kills_once_is_not_accused(net: PlanWorld) -> None:
    """It may have been chance: as many tries as a delivery has attempts."""
    marks = [net.folder / f"mark-{n}" for n in range(3)]

    def twice_deadly(doc: Document) -> Document:
        if doc.id == "d09":
            for mark in marks:
                if not mark.exists():
                    mark.touch()
                    segfault()
        return doc

    net.plan.step("deadly", twice_deadly, after="docs").destination("out", net.out("out"))
    summary = run(net)
    assert (summary.exit, summary.delivered) == (0, len(IDS))


def test_a_worker_that_is_killed_from_outside_accuses_nobody(net: PlanWorld) -> None:
    """Also when it dies in careful mode, together with its child."""
    deaths = [net.folder / f"death-{n}" for n in range(3)]

    def outside(doc: Document) -> Document:
        if doc.id == "d09":
            for death in deaths:
                if not death.exists():
                    death.touch()
                    os.kill(os.getppid(), signal.SIGKILL) if death == deaths[2] else None
                    os.kill(os.getpid(), signal.SIGKILL)
        return doc

    net.plan.step("step", outside, after="docs").destination("out", net.out("out"))
    summary = run(net)
    assert (summary.exit, summary.delivered) == (0, len(IDS))


def test_a_worker_that_always_dies_ends_the_run(net: PlanWorld) -> None:
    """With an error, and nothing is lost: the next run takes it up."""
    me = os.getpid()

    def hostile(doc: Document) -> Document:
        if (net.folder / "hostile").exists():
            for pid in (os.getppid(), os.getpid()):
                if pid != me:
                    os.kill(pid, signal.SIGKILL)
        return doc

    net.plan.step("step", hostile, after="docs").destination("out", net.out("out"))
    (net.folder / "hostile").touch()
    with pytest.raises(WorkerDied):
        run(net, checked=False)
    (net.folder / "hostile").unlink()
    assert run(net).delivered == len(IDS)


class Reading(Memory):
    """Lists what it has, and reads it later; reading ``d11`` kills."""

    def listing(self, partition: Any) -> Any:
        return (Listed(doc.id, 1) for doc in super().listing(partition))

    def read(self, listed: Listed) -> Document:
        if listed.id == "d11":
            segfault()
        return Document(listed.id, raw=b"read")


@pytest.mark.rule("kill.named")
def test_a_document_may_kill_while_it_is_read(place: Path) -> None:
    """It ends as one that cannot be read; changed, it is taken up again."""
    net = PlanWorld.empty(place)
    net.plan.source("docs", Reading([{"id": id} for id in IDS])).destination("out", net.out("out"))
    summary = run(net)
    assert (summary.exit, summary.delivered, summary.rejected) == (3, len(IDS) - 1, 1)
    [bad] = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert bad["message"] == "reading it: PermanentError: it ended its process in each of 3 tries: signal 11 (SIGSEGV)"


@pytest.mark.rule("timeout.interrupted")
def test_a_call_that_hangs_is_interrupted(net: PlanWorld) -> None:
    """TransientError: tried again; in a generator too."""

    def slow(doc: Document) -> Any:
        if doc.id == "d02":
            time.sleep(3600)
        yield doc

    net.plan.step("slow", slow, timeout=1, after="docs").destination("out", net.out("out"), attempts=2, backoff=0)
    summary = run(net)
    assert (summary.delivered, summary.failed) == (len(IDS) - 1, 1)
    [first, last] = account.history(net.root, "d02", net.plan)
    hung = slow.__code__.co_firstlineno + 2
    why = f"step slow: TransientError: step slow took longer than timeout=1 s ({__file__}:{hung})"
    assert reason_of(first["message"]) == why
    assert (first["status"], last["status"]) == ("ERROR", "DEAD")


@pytest.mark.rule("timeout.stuck")
def test_a_call_that_hangs_in_c_loses_its_process(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be interrupted: its process is ended, and it is found as one that kills."""
    from ferryman.engine.transform import calls

    monkeypatch.setattr(calls, "_GRACE_S", 0.2)

    def stuck(doc: Document) -> Document:
        if doc.id == "d02":
            c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
            for _ in range(2):  # the second one waits for the first, in C, and no signal ends that
                c.pthread_mutex_lock(lock)
        return doc

    net.plan.step("stuck", stuck, timeout=1, after="docs").destination("out", net.out("out"), attempts=2)
    summary = run(net)
    assert (summary.delivered, summary.rejected) == (len(IDS) - 1, 1)
    [bad] = account.history(net.root, "d02", net.plan)
    assert bad["message"].startswith("step stuck: PermanentError: it ended its process in each of 2 tries: ")
    assert "took longer than timeout=1 s and could not be interrupted" in bad["message"]


def test_errors_in_careful_mode_are_errors_as_ever(net: PlanWorld) -> None:
    """What raises is tried again or ends, whatever kind of exception it is; a retry in careful mode, too."""

    class Odd(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("not to be pickled")

    def step(doc: Document) -> Document:
        if doc.id == "d00":
            segfault()
        if doc.id == "d01":
            raise Odd("odd")
        if doc.id == "d02" and not (net.folder / "second").exists():
            (net.folder / "second").touch()
            raise TransientError("once")
        return doc

    net.plan.step("step", step, after="docs").destination("out", net.out("out"), attempts=2, backoff=0)
    summary = run(net)
    assert (summary.delivered, summary.failed, summary.rejected) == (len(IDS) - 2, 1, 1)
    assert account.history(net.root, "d01", net.plan)[0]["message"].startswith("step step: Odd: odd (")
    assert net.events("d02", "out") == ["ERROR", "INDEXED"]


# -- senders ---------------------------------------------------------------------------------------


def kills(*ids: str) -> Callable[[list[Any]], object]:
    def before(chunk: list[Any]) -> None:
        if any(d.id in ids for d in chunk):
            segfault()

    return before


@pytest.mark.rule("kill.named")
@pytest.mark.parametrize("failures", sampled([1, 4], 2))
@pytest.mark.parametrize(
    "ids",
    [pytest.param(("d07",), id="one", marks=pytest.mark.slow), pytest.param(("d00", "d20", "d39"), id="several")],
)
def test_a_row_that_kills_its_sender_is_named(net: PlanWorld, ids: tuple[str, ...], failures: int) -> None:
    """The others are delivered, each at least once."""
    net.out("out").before = kills(*ids)
    net.plan.destination("out", net.out("out"), after="docs", batch=10)
    summary = run(net, failures)
    assert (summary.exit, summary.delivered, summary.rejected) == (3, len(IDS) - len(ids), len(ids))
    bad = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert {row["document"]: row["message"] for row in bad} == dict.fromkeys(
        ids, "it ended its sender's process in each of 3 tries: signal 11 (SIGSEGV)"
    )
    net.out("out").before = None
    assert net.retry(document=ids[0]).count == 1
    assert run(net, failures).delivered == 1


def test_under_at_most_once_its_chunk_is_unknown(net: PlanWorld) -> None:
    """Nothing of it is sent again; the rest is."""
    net.out("out").before = kills("d07")
    net.plan.destination("out", net.out("out"), after="docs", batch=10, guarantee="at-most-once")
    summary = run(net)
    assert (summary.exit, summary.in_doubt, summary.delivered) == (3, 10, 30)
    assert set(net.arrived("out").values()) == {1}


def test_a_sender_that_dies_delays_no_other_destination(net: PlanWorld) -> None:
    twice = net.plan.route("twice", Duplicate(), after="docs")
    net.out("bad").before = kills(*IDS)
    twice.destination("bad", net.out("bad"), attempts=1)
    twice.destination("good", net.out("good"))
    summary = run(net)
    assert (summary.delivered, summary.rejected) == (len(IDS), len(IDS))


def test_a_destination_that_answers_is_heard_in_careful_mode(net: PlanWorld) -> None:
    """Outcomes, universal trouble and exceptions come through the child's pipe."""
    out = net.out("out")
    out.before = kills("d00")
    out.answer = moody
    net.plan.destination("out", out, after="docs", batch=10, attempts=2, backoff=0)
    summary = run(net)
    assert (summary.failed, summary.rejected) == (1, 1)
    assert summary.delivered == len(IDS) - 2


def test_a_destination_that_leaves_ends_no_worker_in_careful_mode(net: PlanWorld) -> None:
    """``sys.exit()`` is its error for that chunk, as it is without a child process."""
    out = net.out("out")
    out.before = kills("d00")
    out.answer = leaving
    net.plan.destination("out", out, after="docs", batch=1, attempts=2, backoff=0)
    summary = run(net)
    assert (summary.failed, summary.rejected, summary.delivered) == (1, 1, len(IDS) - 2)
    [bad] = account.deliveries(net.root, status="failed", plan=net.plan)
    assert bad["message"] == "RuntimeError: it raised SystemExit: 3 (attempt 2, the last)"


def leaving(delivery: Any) -> Outcome:
    return sys.exit(3) if delivery.id == "d20" else Outcome.ok()


class Deadly(Router):
    """Kills the process in which it is opened."""

    def open(self, branches: Sequence[str], task: int) -> None:
        segfault()


def test_a_router_that_kills_when_it_is_opened_accuses_no_document(net: PlanWorld) -> None:
    """No document was read yet: the run ends with an error, and nothing is lost."""
    net.plan.route("deadly", Deadly(), after="docs").destination("out", net.out("out"))
    with pytest.raises(EngineError):
        run(net, checked=False)
    assert account.deliveries(net.root, plan=net.plan) == []


def moody(delivery: Any) -> Outcome:
    return Outcome.permanent("no") if delivery.id == "d20" else Outcome.ok()
