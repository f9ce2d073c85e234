"""Steps, routers and sources that are away, or broken: the documents wait, and nothing is condemned."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.wave import Run
from ferryman.errors import BadDocument, Dropped, Misconfigured, PermanentError, TransientError, Unavailable
from ferryman.routers import Duplicate, Router
from ferryman.sources import Memory
from ferryman.sources.base import Listed
from ferryman.testing.inprocess import InProcess
from tests.support.network import Network
from tests.support.sleeper import Sleeper
from tests.support.tiers import sampled
from tests.support.trial import Trial, Watch

AWAY: dict[str, Callable[[], BaseException]] = {
    "unavailable": lambda: Unavailable("the database is being moved"),
    "connection": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "time-out": lambda: TimeoutError("no answer"),
}


def down(folder: Path, what: str = "down") -> Path:
    """As long as this file is there, the service is away."""
    path = folder / what
    path.touch()
    return path


def asking(flag: Path, error: Callable[[], BaseException], calls: Path | None = None) -> Callable[[Document], Document]:
    """A step whose service is away while the flag is there."""

    def step(doc: Document) -> Document:
        if calls is not None:
            with calls.open("a") as file:
                file.write(f"{doc.id}\n")
        if flag.exists():
            raise error()
        return doc

    return step


def ids(n: int) -> list[str]:
    return [f"d{i:03}" for i in range(n)]


def attempts(trial: Trial) -> Counter[int]:
    """Attempts spent -> deliveries, by their latest events."""
    return Counter(d["attempt"] for d in trial.docs())


@pytest.mark.rule("outage.step")
@pytest.mark.parametrize("error", AWAY.values(), ids=AWAY)
@pytest.mark.parametrize("documents", [3, 50])
def test_a_step_that_is_away_harms_nobody(trial: Trial, error: Callable[[], BaseException], documents: int) -> None:
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
    assert trial.out.counted() == dict.fromkeys(ids(documents), 1)


@pytest.mark.rule("outage.again")
def test_it_is_asked_again_within_the_run(trial: Trial) -> None:
    """After 1, 4, 16 s; when it is back, all is delivered, with the first attempt."""
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, AWAY["unavailable"], calls))
    trial.put(*ids(50))
    sleeper = Sleeper(lambda total: flag.unlink() if total > 20 else None)
    assert trial.run(**sleeper.options()).exit == 0
    assert [round(s) for s in sleeper.slept] == [1, 4, 16]
    assert len(calls.read_text().splitlines()) == 3 + 50, "one call asks for all"
    assert {line["attempt"] for line in trial.out.lines()} == {1}


def test_the_wait_is_as_long_as_it_was_asked_for(trial: Trial) -> None:
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
def test_a_step_that_somebody_has_to_mend_is_stopped(trial: Trial) -> None:
    """For this run: it is called once, and nothing is waited for; the next run asks it again."""
    sleeper = Sleeper()
    flag, calls = down(trial.folder), trial.folder / "calls"
    trial.build(asking(flag, lambda: Misconfigured("set the variable MODEL"), calls))
    trial.put(*ids(30))
    summary = trial.run(**sleeper.options())
    assert (summary.exit, sleeper.slept) == (4, [])
    assert summary.messages[-1] == (
        "step step is stopped: Misconfigured: set the variable MODEL. 30 deliveries are pending: mend it and run again."
    )
    assert len(calls.read_text().splitlines()) == 1
    assert attempts(trial) == {0: 30}
    flag.unlink()
    assert trial.run().exit == 0
    assert len(trial.out.arrived()) == 30


@pytest.mark.rule("outage.others")
def test_other_branches_and_sources_go_on(place: Path) -> None:
    """Only what comes to the node waits; what was delivered before it is not delivered again."""
    net = Network(place)
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
    net = Network(place)
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


class Share(Memory):
    """A source whose reads fail while the flag is there."""

    def __init__(self, documents: Any, flag: Path, error: Callable[[], BaseException], **options: Any) -> None:
        super().__init__(documents, **{"max_deleted": 1.0, **options})
        self.flag, self.error = flag, error
        self.reads = flag.with_name("reads")

    def listing(self, partition: Any) -> Iterator[Listed]:
        for doc in super().listing(partition):
            assert isinstance(doc, Document)
            yield Listed(doc.id, len(doc.raw or b""), location=(doc.raw or b"").decode())

    def read(self, listed: Listed) -> Document:
        with self.reads.open("a") as file:
            file.write(f"{listed.id}\n")
        if self.flag.exists():
            raise self.error()
        return Document(listed.id, raw=listed.location.encode())


SHARES: dict[str, Callable[[], BaseException]] = {
    **AWAY,
    "device": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "stale": lambda: OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
}


@pytest.mark.rule("outage.source")
@pytest.mark.parametrize("error", sampled(SHARES.values(), 4), ids=SHARES)
def test_a_source_that_is_away_harms_nobody(trial: Trial, error: Callable[[], BaseException]) -> None:
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
    assert trial.out.counted() == dict.fromkeys(ids(30), 1) | {"d003": 2}


@pytest.mark.rule("outage.source")
def test_a_source_that_comes_back_is_scanned_again_within_the_run(trial: Trial) -> None:
    """What could not be looked at is looked at then, changed or not."""
    flag = trial.folder / "down"
    trial.build(source=Share(trial.documents, flag, AWAY["unavailable"]))
    trial.put(*ids(5))
    assert trial.run().exit == 0
    flag.touch()
    trial.put("d003", text="two")
    sleeper = Sleeper(lambda total: flag.unlink())
    assert trial.run(**sleeper.options()).exit == 0
    assert trial.out.counted() == dict.fromkeys(ids(5), 1) | {"d003": 2}


def test_one_file_that_cannot_be_read_is_no_outage(trial: Trial) -> None:
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
def test_single_errors_of_the_connection_are_transient(trial: Trial) -> None:
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
def test_an_outage_between_small_waves(trial: Trial) -> None:
    """A service that has worked goes away, and a document comes in each wave: at the third it is no document's own, and
    from then on nothing is spent."""
    flag, watch, sleeper = trial.folder / "down", Watch(), Sleeper()
    trial.build(asking(flag, AWAY["connection"]), backoff=1)
    with trial.take() as state:
        run = Run(state, InProcess(), watch, wait=0, **sleeper.options())
        for name in ["before", "first", "second", "third", "fourth", "fifth"]:
            trial.put(name)
            run.turn()
            assert bool(watch.messages) is (name in ("third", "fourth", "fifth"))
            flag.touch()
    [told] = watch.messages
    assert told.startswith("step step: ConnectionRefusedError")
    flag.unlink()
    assert trial.run(wait=60).exit == 0
    assert {line["id"] for line in trial.out.lines() if line["attempt"] > 1} == {"first", "second"}


@pytest.mark.rule("outage.small-waves")
def test_dead_addresses_do_not_stop_a_step_that_works(trial: Trial) -> None:
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


# -- the brake -------------------------------------------------------------------------------------


def buggy(*good: str) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id in good:
            return doc
        return doc["no such field"]  # type: ignore[no-any-return]

    return step


@pytest.mark.rule("brake.stopped")
def test_a_bug_condemns_nobody(trial: Trial) -> None:
    """After 20 in a row, 20 more of the rest; then the step is stopped, and all others have spent nothing."""
    sleeper = Sleeper()
    trial.build(buggy())
    trial.put(*ids(400))
    summary = trial.run(runner=InProcess(slots=1), **sleeper.options())
    assert (summary.exit, sleeper.slept) == (4, [])
    line = buggy.__code__.co_firstlineno + 4
    message = summary.messages[-1]
    assert message.startswith("step step is stopped: KeyError: 'no such field' ("), message
    assert f"{Path(__file__).name}:{line}). 400 deliveries are pending" in message
    spent = attempts(trial)
    assert spent[1] in (40, 80), "40 a task"
    assert spent[0] == 400 - spent[1]
    tried = sorted(d["document"] for d in trial.docs() if d["attempt"])
    assert tried[:20] == ids(20)
    assert tried[-1] > "d360", "the second look is spread over the rest"


@pytest.mark.rule("brake.stopped")
def test_a_mended_bug_goes_on_by_itself(trial: Trial) -> None:
    """The code has changed: the next run tries all again."""
    trial.build(buggy())
    trial.put(*ids(100))
    assert trial.run(wait=0).exit == 4
    trial.build(asking(trial.folder / "none", AWAY["unavailable"]))
    assert trial.run().exit == 0
    assert trial.out.counted() == dict.fromkeys(ids(100), 1)


@pytest.mark.rule("brake.odd")
@pytest.mark.parametrize("slots", [1, 2])
def test_odd_documents_end_after_three_runs(trial: Trial, slots: int) -> None:
    """25 that no code can take: they do not hold up the rest."""
    odd, good = [f"a{i:02}" for i in range(25)], [f"b{i:03}" for i in range(200)]
    trial.build(buggy(*good))
    trial.put(*odd, *good)
    for _ in range(3):
        trial.run(wait=10)
    assert trial.counts() == {"delivered": 200, "failed": 25}


@pytest.mark.rule("brake.odd")
def test_odd_documents_alone_end_after_three_runs(trial: Trial) -> None:
    """They are all that there is."""
    trial.build(buggy())
    trial.put(*ids(25))
    for _ in range(2):
        assert trial.run(wait=0).exit == 4
    assert trial.run(wait=0).exit == 3
    assert trial.counts() == {"failed": 25}


def test_fewer_than_the_brake_are_the_documents_own(trial: Trial) -> None:
    """19 documents and a bug: three attempts each, in one run."""
    trial.build(buggy())
    trial.put(*ids(19))
    assert trial.run().exit == 3
    assert trial.counts() == {"failed": 19}


@pytest.mark.rule("brake.purpose")
@pytest.mark.parametrize(
    "error", [BadDocument("broken PDF"), PermanentError("no"), Dropped("draft")], ids=["bad", "permanent", "dropped"]
)
def test_what_code_says_on_purpose_stops_nothing(trial: Trial, error: Exception) -> None:
    """A folder of broken files is no outage."""

    def step(doc: Document) -> Document:
        raise error

    trial.build(step)
    trial.put(*ids(200))
    assert trial.run().exit == (0 if isinstance(error, Dropped) else 3)
    assert trial.counts() == {"dropped" if isinstance(error, Dropped) else "rejected": 200}


def test_without_a_brake_nothing_is_stopped(trial: Trial) -> None:
    """``brake=None``: every document has its own three attempts."""
    trial.build(buggy(), called={"brake": None})
    trial.put(*ids(60))
    assert trial.run().exit == 3
    assert trial.counts() == {"failed": 60}


def test_a_brake_of_its_own(trial: Trial) -> None:
    """``brake=5``."""
    trial.build(buggy(), called={"brake": 5})
    trial.put(*ids(60))
    assert trial.run(wait=0, runner=InProcess(slots=1)).exit == 4
    assert attempts(trial) == {1: 10, 0: 50}


def test_a_success_of_another_task_is_a_success(trial: Trial) -> None:
    """A task has met only odd documents: they are the documents' own, for the step is well elsewhere."""
    odd, good = [f"a{i:02}" for i in range(60)], [f"b{i:02}" for i in range(60)]
    trial.build(buggy(*good))
    trial.put(*odd, *good)
    summary = trial.run(wait=100, wave_bytes=1)
    assert summary.exit == 3
    assert trial.counts() == {"delivered": 60, "failed": 60}


# -- patience --------------------------------------------------------------------------------------


def busy_step(doc: Document) -> Document:
    raise TransientError("not yet")


@pytest.mark.rule("patience.time")
def test_what_is_transient_is_tried_with_patience(trial: Trial) -> None:
    """Until the time has passed, and so many tries at least; then it is failed."""
    trial.build(busy_step, called={"patience": 0})
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * (limits.PATIENCE_TRIES - 1) + ["DEAD"]
    assert trial.history("a")[-1]["message"] == "step busy_step: TransientError: not yet (attempt 8, the last)"


def busy(delivery: Any) -> Outcome:
    return Outcome.transient("not yet")


@pytest.mark.rule("patience.time")
def test_a_destination_is_tried_with_patience(trial: Trial) -> None:
    """As a step: what it says is transient."""
    trial.build(answer=busy, patience=0)
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * (limits.PATIENCE_TRIES - 1) + ["DEAD"]


@pytest.mark.rule("patience.attempts")
def test_a_fault_of_a_destination_counts_against_attempts(trial: Trial) -> None:
    """Transient errors before it do not, not even those of a step."""

    def answer(delivery: Any) -> Outcome:
        if delivery.attempt <= 5:
            return Outcome.transient("not yet")
        raise RuntimeError("a bug")

    trial.build(once_busy(trial.folder / "flag"), answer=answer)
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * 7 + ["DEAD"]


def once_busy(flag: Path) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if not flag.exists():
            flag.touch()
            raise TransientError("not yet")
        return doc

    return step


@pytest.mark.rule("patience.time")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_patience_is_a_day(trial: Trial, where: str) -> None:
    """More tries than that do not end it; a run that is not to wait ends with 4."""
    trial.build(*([busy_step] if where == "step" else []), answer=busy)
    trial.put("a")
    assert trial.run(wait=0).exit == 4
    assert set(trial.statuses("a")) == {"ERROR"}
    assert len(trial.statuses("a")) >= limits.PATIENCE_TRIES


@pytest.mark.rule("patience.attempts")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_attempts_win_where_they_are_given(trial: Trial, where: str) -> None:
    """Whoever says them, the step or the destination below it."""
    if where == "step":
        trial.build(busy_step, called={"attempts": 2})
    else:
        trial.build(busy_step, attempts=2)
    trial.put("a")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "DEAD"]


@pytest.mark.rule("patience.attempts")
def test_what_nobody_anticipated_counts_against_attempts(trial: Trial) -> None:
    """Transient errors before it do not."""
    calls = trial.folder / "calls"

    def step(doc: Document) -> Document:
        with calls.open("a") as file:
            file.write("x")
        if len(calls.read_text()) <= 5:
            raise TransientError("not yet")
        raise RuntimeError("a bug")

    trial.build(step)
    trial.put("a")
    trial.run(wait=100)
    assert trial.statuses("a") == ["ERROR"] * 7 + ["DEAD"]


# -- where documents kill --------------------------------------------------------------------------


@pytest.mark.rule("outage.step")
def test_in_isolation_too(trial: Trial) -> None:
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
