"""Steps, routers and sources that are away: the documents wait, and nothing is condemned."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import Misconfigured, PermanentError, TransientError, Unavailable
from ferryman.routers import Duplicate, Router
from ferryman.sources.base import Listed
from ferryman.testing.inprocess import InProcess
from tests.support.outages import AWAY, Share, asking, attempts, down, ids
from tests.support.plan_world import PlanWorld, Watch
from tests.support.sleeper import Sleeper
from tests.support.tiers import sampled


@pytest.mark.rule("outage.step")
@pytest.mark.parametrize("error", AWAY.values(), ids=AWAY)
@pytest.mark.parametrize("documents", sampled([50, 3], 2))
def test_a_step_that_is_away_harms_nobody(trial: PlanWorld, error: Callable[[], BaseException], documents: int) -> None:
    """Nothing is spent, however often it is asked; the run ends with 4 and names the step; later all goes on."""
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, error, calls), called={"attempts": 2})
    trial.put(*ids(documents))
    for _ in range(4):
        summary = trial.run(wait=0)
        assert summary.exit == 4
        assert f"step step is not available: {type(error()).__name__}: " in summary.messages[-1]
        assert f"{documents} deliveries are pending" in summary.messages[-1]
    assert attempts(trial) == {0: documents}
    assert trial.status()["balanced"]
    assert len(calls.read_text().splitlines()) <= 4 * 2 * limits.BRAKE, "it was not left alone"
    assert all(trial.statuses(id) == ["ERROR"] for id in ids(3)), "said once, and not at every try"
    flag.unlink()
    assert trial.run().exit == 0
    assert trial.out().counted() == dict.fromkeys(ids(documents), 1)


@pytest.mark.rule("outage.again")
def test_it_is_asked_again_within_the_run(trial: PlanWorld) -> None:
    """After 1, 4, 16 s; when it is back, all is delivered, with the first attempt."""
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, AWAY["unavailable"], calls))
    trial.put(*ids(50))
    sleeper = Sleeper(lambda total: flag.unlink() if total > 20 else None)
    assert trial.run(**sleeper.options()).exit == 0
    assert [round(s) for s in sleeper.slept] == [1, 4, 16]
    assert len(calls.read_text().splitlines()) == 3 + 50, "one call asks for all"
    assert {line["attempt"] for line in trial.out().lines()} == {1}


def test_the_wait_is_as_long_as_it_was_asked_for(trial: PlanWorld) -> None:
    """``--wait``: in an outage, too; 0 is not at all."""
    sleeper = Sleeper()
    flag = down(trial.folder)
    trial.build(asking(flag, AWAY["unavailable"]))
    trial.put("a")
    assert trial.run(**sleeper.options(), wait=0).exit == 4
    assert sleeper.slept == []
    assert trial.run(**sleeper.options(), wait=500).exit == 4
    assert [round(s) for s in sleeper.slept] == [1, 4, 16, 64, 256]


@pytest.mark.rule("outage.misconfigured")
def test_a_step_that_somebody_has_to_mend_is_stopped(trial: PlanWorld) -> None:
    """For this run: it is called once, and nothing is waited for; the next run asks it again."""
    sleeper = Sleeper()
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, lambda: Misconfigured("set the variable MODEL"), calls))
    trial.put(*ids(30))
    summary = trial.run(**sleeper.options())
    assert (summary.exit, sleeper.slept) == (4, [])
    assert summary.messages[-1] == (
        "step step is stopped: Misconfigured: set the variable MODEL. 30 deliveries are pending: fix it and run again."
    )
    assert len(calls.read_text().splitlines()) == 1
    assert attempts(trial) == {0: 30}
    flag.unlink()
    assert trial.run().exit == 0
    assert len(trial.out().arrived()) == 30


@pytest.mark.rule("outage.others")
def test_other_branches_and_sources_go_on(place: Path) -> None:
    """Only what comes to the node waits; what was delivered before it is not delivered again."""
    net = PlanWorld.empty(place)
    flag = down(place)
    fork = net.source().route("fork", Duplicate())
    fork.step("away", asking(flag, AWAY["connection"])).destination("far", net.out("far"))
    fork.step("here", net.counting("here")).destination("near", net.out("near"))
    net.source("more").destination("more-out", net.out("more-out"))
    net.put(*ids(30))
    net.put("x", source="more")
    summary = net.run(wait=0)
    assert summary.exit == 4
    assert net.counts("near") == {"delivered": 30}
    assert net.counts("more-out") == {"delivered": 1}
    assert net.counts("far")["pending"] == 30
    flag.unlink()
    assert net.run().exit == 0
    assert net.counts("far") == {"delivered": 30}
    assert net.calls("here") == dict.fromkeys(ids(30), 1)
    assert set(net.arrived("near").values()) == {1}


class Chooser(Router):
    """Asks a service for the branch."""

    deterministic = True
    copies = False

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def choose(self, doc: Document) -> str:
        if self.flag.exists():
            raise Unavailable("no answer")
        return "left"


@pytest.mark.rule("outage.step")
def test_a_router_that_is_away_harms_nobody(place: Path) -> None:
    """As a step."""
    net = PlanWorld.empty(place)
    flag = down(place)
    fork = net.source().route("fork", Chooser(flag))
    fork.destination("left", net.out("left"))
    fork.destination("right", net.out("right"))
    net.put(*ids(25))
    summary = net.run(wait=0)
    assert (summary.exit, net.counts("left"), net.counts("right")) == (
        4,
        {"pending": 25},
        {"pending": 25},
    )
    assert "router fork is not available: Unavailable: no answer" in summary.messages[-1]
    flag.unlink()
    assert net.run().exit == 0
    assert len(net.arrived("left")) == 25


class Opening(Router):
    """Cannot be opened while something is missing."""

    def __init__(self, flag: Path, error: Callable[[], BaseException]) -> None:
        self.flag = flag
        self.error = error

    def open(self, branches: Sequence[str], task: int) -> None:
        if self.flag.exists():
            raise self.error()

    def choose(self, doc: Document) -> str:
        return "left"


OPENING: dict[str, tuple[Callable[[], BaseException], str]] = {
    "unforeseen": (lambda: KeyError("rules"), "is not available: Unavailable: open: KeyError: 'rules'"),
    "exit": (lambda: SystemExit(3), "is not available: Unavailable: open: SystemExit: 3"),
    "permanent": (lambda: PermanentError("no rules"), "is stopped: Misconfigured: open: PermanentError: no rules"),
}


@pytest.mark.rule("outage.step", "outage.others")
@pytest.mark.parametrize("way", ["one by one", "concurrent", "in a child"])
@pytest.mark.parametrize(("error", "says"), OPENING.values(), ids=OPENING)
def test_a_router_that_cannot_be_opened_harms_nobody(
    place: Path, error: Callable[[], BaseException], says: str, way: str
) -> None:
    """It is named, its documents wait and spend no attempt, and what does not come to it is delivered."""
    net = PlanWorld.empty(place)
    flag = down(place)
    first = net.source()
    if way == "in a child":
        first = first.step("kills", kill_for_the_first, attempts=1)
    both = first.route("both", Duplicate())
    both.destination("near", net.out("near"))
    before = both.step("before", net.counting("before"), concurrency=2 if way == "concurrent" else 1)
    fork = before.route("fork", Opening(flag, error))
    fork.destination("left", net.out("left"))
    fork.destination("right", net.out("right"))
    net.source("more").destination("more-out", net.out("more-out"))
    net.put(*ids(25))
    net.put("x", source="more")
    runner = InProcess(fork=way == "in a child")
    summary = net.run(wait=0, runner=runner)
    assert f"router fork {says}" in " ".join(summary.messages)
    count = 24 if way == "in a child" else 25
    assert (net.counts("left")["pending"], net.counts("near")["delivered"], net.counts("more-out")["delivered"]) == (
        count,
        count,
        1,
    )
    assert (summary.exit, summary.rejected) == (4, 0 if count == 25 else 3)
    assert {d["attempt"] for d in net.deliveries() if d["destination"] == "left" and d["status"] == "ERROR"} == {0}
    flag.unlink()
    net.run(runner=runner)
    assert (len(net.arrived("left")), net.counts("right")["dropped"]) == (count, count)


def kill_for_the_first(doc: Document) -> Document:
    if doc.id == "d001":
        os.kill(os.getpid(), signal.SIGKILL)
    return doc


SHARES: dict[str, Callable[[], BaseException]] = {
    **AWAY,
    "device": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "stale": lambda: OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
}


@pytest.mark.rule("outage.source")
@pytest.mark.parametrize("error", sampled(SHARES.values(), 4), ids=SHARES)
def test_a_source_that_is_away_harms_nobody(trial: PlanWorld, error: Callable[[], BaseException]) -> None:
    """New documents are pending; known ones stay as they are, and are not sent again when it is back."""
    flag = down(trial.folder)
    trial.build(source=Share(trial.documents, flag, error))
    trial.put(*ids(30))
    for _ in range(4):
        summary = trial.run(wait=0)
        assert summary.exit == 4
        assert f"source docs is not available: {type(error()).__name__}: " in summary.messages[-1]
    assert attempts(trial) == {0: 30}
    assert trial.counts()["pending"] == 30
    flag.unlink()
    assert trial.run().exit == 0
    flag.touch()
    trial.put("d003", text="two")
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 30}
    flag.unlink()
    assert trial.run().exit == 0
    assert trial.out().counted() == dict.fromkeys(ids(30), 1) | {"d003": 2}


@pytest.mark.rule("outage.source")
def test_a_source_that_comes_back_is_scanned_again_within_the_run(trial: PlanWorld) -> None:
    """What could not be looked at is looked at then, changed or not."""
    flag = trial.folder / "down"
    trial.build(source=Share(trial.documents, flag, AWAY["unavailable"]))
    trial.put(*ids(5))
    assert trial.run().exit == 0
    flag.touch()
    trial.put("d003", text="two")
    sleeper = Sleeper(lambda total: flag.unlink())
    assert trial.run(**sleeper.options()).exit == 0
    assert trial.out().counted() == dict.fromkeys(ids(5), 1) | {"d003": 2}


def test_one_file_that_cannot_be_read_is_no_outage(trial: PlanWorld) -> None:
    """Not of the device: the others go on, and it is failed after its attempts."""
    flag = down(trial.folder)

    def error() -> BaseException:
        return PermissionError(errno.EACCES, "Permission denied")

    class OneLocked(Share):
        def read(self, listed: Listed) -> Document:
            if listed.id == "d001":
                raise self.error()
            return Document(listed.id, raw=listed.location.encode())

    source = OneLocked(trial.documents, flag, error)
    trial.build(source=source)
    trial.put(*ids(3))
    assert trial.run().exit == 3
    assert trial.statuses("d001") == ["ERROR", "ERROR", "DEAD"]


@pytest.mark.rule("outage.connection")
def test_single_errors_of_the_connection_are_transient(trial: PlanWorld) -> None:
    """Some documents that meet them among others that do not: they are tried again, with patience."""

    def step(doc: Document) -> Document:
        if doc.id in ("d001", "d004"):
            raise ConnectionResetError("reset")
        return doc

    trial.build(step, called={"attempts": 3})
    trial.put(*ids(10))
    assert trial.run().exit == 3
    assert trial.counts() == {"delivered": 8, "failed": 2}
    assert trial.statuses("d001") == ["ERROR", "ERROR", "DEAD"]


@pytest.mark.rule("outage.small-waves")
def test_an_outage_between_small_waves(trial: PlanWorld) -> None:
    """A service that has worked goes away, and a document comes in each wave: at the third it is no document's own, and
    from then on nothing is spent."""
    flag, watch, sleeper = trial.folder / "down", Watch(), Sleeper()
    trial.build(asking(flag, AWAY["connection"]), backoff=1)
    with trial.take() as state:
        run = Run(state, InProcess(), watch, RunSettings(wait=0), sleeper.clock())
        for name in ["before", "first", "second", "third", "fourth", "fifth"]:
            trial.put(name)
            run.turn()
            assert bool(watch.messages) is (name in ("third", "fourth", "fifth"))
            flag.touch()
    [told] = watch.messages
    assert told.startswith("step step: ConnectionRefusedError")
    flag.unlink()
    assert trial.run(wait=60).exit == 0
    assert {line["id"] for line in trial.out().lines() if line["attempt"] > 1} == {"first", "second"}


@pytest.mark.rule("outage.transient")
def test_a_transient_error_of_all_documents_is_an_outage(trial: PlanWorld) -> None:
    """Nothing is spent, and the step is left alone for longer and longer, not for each document anew."""
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, lambda: TransientError("503: try later"), calls), called={"attempts": 2})
    trial.put(*ids(50))
    sleeper = Sleeper(lambda total: flag.unlink() if total > 20 else None)
    assert trial.run(**sleeper.options()).exit == 0
    assert [round(s) for s in sleeper.slept] == [1, 4, 16]
    assert len(calls.read_text().splitlines()) <= 3 * 2 * 2 * limits.BRAKE + 50, "it was not left alone"
    assert {line["attempt"] for line in trial.out().lines()} == {1}


@pytest.mark.rule("outage.transient")
@pytest.mark.parametrize("good", [0, 1])
def test_transient_errors_of_some_documents_are_their_own(trial: PlanWorld, good: int) -> None:
    """Beside one that works, or fewer than three: they spend their attempts and fail."""
    bad = ids(limits.OUTAGE_DOCUMENTS - 1 if not good else limits.OUTAGE_DOCUMENTS + 2)

    def step(doc: Document) -> Document:
        if doc.id in bad:
            raise TransientError("503: try later")
        return doc

    trial.build(step, called={"attempts": 3})
    trial.put(*["good"][:good], *bad)
    assert trial.run(runner=InProcess(slots=1)).exit == 3
    assert trial.counts() == {"failed": len(bad)} | ({"delivered": 1} if good else {})


@pytest.mark.rule("outage.small-waves")
def test_dead_addresses_do_not_stop_a_step_that_works(trial: PlanWorld) -> None:
    """Five documents that never reach theirs are retried by themselves: that is no outage, and they end as failed."""
    dead = [f"dead-{i}" for i in range(5)]

    def step(doc: Document) -> Document:
        if doc.id in dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return doc

    trial.build(step, called={"attempts": 3})
    trial.put("good", *dead)
    watch = Watch()
    assert trial.run(observer=watch).exit == 3
    assert trial.counts() == {"delivered": 1, "failed": 5}
    assert watch.messages == []


# -- where documents kill --------------------------------------------------------------------------


@pytest.mark.rule("outage.step")
def test_in_isolation_too(trial: PlanWorld) -> None:
    """A worker died: each document is read in a child process; outages are the same there."""
    flag, calls = down(trial.folder), trial.folder / "calls"

    def step(doc: Document) -> Document:
        if doc.id == "d010":
            os._exit(3)
        with calls.open("a") as file:
            file.write(f"{doc.id}\n")
        if flag.exists():
            raise Unavailable("away")
        return doc

    trial.build(step)
    trial.put("d010", *[i for i in ids(40) if i != "d010"])
    summary = trial.run(runner=InProcess(fork=True, failures=1), wait=0)
    assert summary.exit == 4
    assert "step step is not available" in summary.messages[-1]
    assert trial.counts() == {"pending": 39, "rejected": 1}
    flag.unlink()
    assert trial.run(runner=InProcess(fork=True, failures=1)).exit == 3
    assert trial.counts() == {"delivered": 39, "rejected": 1}
