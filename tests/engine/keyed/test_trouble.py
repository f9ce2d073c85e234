"""An ``update`` that kills its process, or that hangs; and what failed as a message of the plan's error queue."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account
from ferryman.destinations import Queue as IntoQueue
from ferryman.destinations.base import Outcome
from ferryman.errors import PermanentError, WorkerDied
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import states
from tests.support.keyed import count, count_words
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


class Killer:
    """Ends its process, in one of several ways, over a document that says so, until it is mended."""

    def __init__(self, folder: Path) -> None:
        self.mended = str(folder / "mended")

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        for doc in documents:
            if doc.fields.get("do") == "exit" and not Path(self.mended).exists():
                os._exit(3)
            if doc.fields.get("do") == "kill" and not Path(self.mended).exists():
                os.kill(os.getpid(), signal.SIGKILL)
        return count(key, state, documents)


@pytest.mark.rule("keyed.deadly")
@pytest.mark.parametrize(("do", "how"), [("exit", "exit code 3"), ("kill", r"signal 9 (SIGKILL)")])
def test_a_document_that_kills_update_is_rejected(place: Path, do: str, how: str) -> None:
    """Those before it in its call are counted, those behind it wait, other keys go on; a retry counts the rest."""
    words = count_words(place, Killer(place))
    entries: list[dict[str, Any]] = [{"word": f"w{n % 7}"} for n in range(50)]
    entries[20]["do"] = do
    words.into.append(entries)
    summary = words.run(runner=InProcess(fork=True, failures=1), checked=False)
    behind = len([n for n in range(21, 50) if n % 7 == 20 % 7])
    assert (summary.exit, summary.rejected, summary.pending) == (4, 1, behind), summary
    assert words.states() == {
        f"w{k}": len([n for n in range(50) if n % 7 == k and (k != 6 or n < 20)]) for k in range(7)
    }
    [row] = account.deliveries(words.root, status="rejected")
    assert f"it ended its process in each of 3 tries: {how}" in row["message"]
    (place / "mended").touch()
    retry(words.plan, state=words.state)
    assert words.run().exit == 0
    assert words.states() == {f"w{k}": len([n for n in range(50) if n % 7 == k]) for k in range(7)}


class Slow:
    """Takes for ever over a document that says so: where Python can interrupt it, or where it cannot."""

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        for doc in documents:
            if "sleep" in doc.fields:
                if doc["sleep"] == "stuck":
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                time.sleep(600)
        return count(key, state, documents)


@pytest.mark.rule("keyed.timeout")
@pytest.mark.parametrize("how", ["interrupted", pytest.param("stuck", marks=pytest.mark.slow)])
def test_an_update_that_takes_too_long_fails_for_its_document(place: Path, how: str) -> None:
    """The others of its call are counted, and other keys."""
    words = count_words(place, Slow(), timeout=0.2, attempts=1, on_error="continue")
    words.into.append([{"word": "a"}, {"word": "a", "sleep": how}, {"word": "a"}, {"word": "b"}])
    summary = words.run(runner=InProcess(fork=True, failures=1), checked=False)
    assert (summary.exit, summary.failed, summary.pending) == (3, 1, 0), summary
    assert words.states() == {"a": 2, "b": 1}
    [row] = account.deliveries(words.root, status="failed")
    assert "took longer than timeout=0.2 s" in row["message"]


def choosy(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
    if any("bad" in doc.fields for doc in documents):
        raise PermanentError("a bad one")
    return count(key, state, documents)


def fussy(doc: Document) -> Document:
    if (doc["key"], doc["new"]) == ("b", 2):
        raise PermanentError("not this one")
    return doc


@pytest.mark.rule("keyed.errors")
def test_with_an_error_queue_failures_are_messages_and_hold_nothing(place: Path) -> None:
    """Of ``update``, of a step below it, and of a destination: one message each, and what comes later goes on."""
    plan, errors = Plan("reported", version=1), DurableQueue("errors", place)
    plan.errors(IntoQueue("errors", place))
    node = plan.source("from_in", Queue("in", place)).keyed("counts", choosy, key="word", buffer_bytes=1)
    gate = Recorder(place / "gate.jsonl", refuse_third)
    node.step("fussy", fussy).destination("gate", gate)
    entries: list[dict[str, Any]] = [{"word": word} for word in "aabbccccb"]
    entries[1]["bad"] = True
    DurableQueue("in", place).append([*entries, {"word": "a"}])
    summary = run_plan(plan, place / "state")
    assert (summary.exit, summary.rejected, summary.failed, summary.pending) == (0, 2, 1, 0), summary
    assert states(place / "state" / "reported-v1", "counts") == {"a": 2, "b": 3, "c": 4}
    taken = [(line["fields"]["key"], line["fields"]["new"]) for line in gate.lines() if line["said"] == "ok"]
    assert sorted(taken) == [("a", 1), ("a", 2), ("b", 1), ("b", 3), ("c", 1), ("c", 2), ("c", 4)]
    told = sorted((m.body["where"], m.body["cause"]) for m in errors.read())
    assert [where for where, _ in told] == ["counts", "fussy", "gate"]
    assert ["a bad one" in told[0][1], "not this one" in told[1][1], "refused" in told[2][1]] == [True] * 3


def test_an_update_whose_process_is_killed_from_outside_accuses_nobody(place: Path) -> None:
    """With what it was forked from: no attempt of the document is spent, though it has but one."""
    queue = DurableQueue("words", place)
    queue.append([{"word": "a"}, {"word": "b"}])
    deaths = [place / f"death-{n}" for n in range(3)]

    def killed(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        for number, death in enumerate(deaths):
            if key == "b" and not death.exists():
                death.touch()
                os.kill(os.getppid(), signal.SIGKILL) if number == 2 else None
                os.kill(os.getpid(), signal.SIGKILL)
        return count(key, state, documents)

    plan = Plan("words", 1)
    counted = plan.source("words", Queue("words", place)).keyed("counts", killed, key="word", attempts=1)
    counted.destination("out", Recorder(place / "out.jsonl"))
    summary = run_plan(plan, place / "state", runner=InProcess(fork=True, failures=1), wait=0, checked=False)
    assert (summary.exit, summary.delivered) == (0, 4), summary
    assert all(death.exists() for death in deaths)


def refuse_third(delivery: Any) -> Any:
    told = (delivery.fields["key"], delivery.fields["new"])
    return Outcome.permanent("refused") if told == ("c", 3) else Outcome.ok()


@pytest.mark.parametrize("isolated", [False, True], ids=["at first", "in isolation"])
def test_a_counted_entry_that_asks_to_be_read_again_is_refused(place: Path, isolated: bool) -> None:
    """It would be counted twice. Its log stops there, in words, also where a worker died over another one."""

    def step(doc: Document) -> Document:
        if doc["word"] == "again":
            doc.again("1h")
        if doc["word"] == "kills" and isolated:
            os._exit(3)
        return doc

    queue = DurableQueue("words", place)
    queue.append([{"word": "a"}, {"word": "again"}, {"word": "kills"}, {"word": "a"}])
    plan = Plan("words", 1)
    counted = plan.source("words", Queue("words", place)).step("step", step).keyed("counts", count, key="word")
    counted.destination("out", Recorder(place / "out.jsonl"))
    summary = run_plan(plan, place / "state", runner=InProcess(fork=True, failures=1), wait=0)
    assert summary.exit == 4
    assert any(
        "entries of a log are not read again where a keyed node counts them" in said for said in summary.messages
    )


@pytest.mark.rule("step.misbehaves")
def test_an_update_that_raises_what_says_that_a_worker_died_fails_for_its_document(place: Path) -> None:
    """Also in a child process, after another document has ended the worker."""

    def dies(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        if key == "kills":
            os._exit(9)
        if key == "raises":
            raise WorkerDied("dead")
        return count(key, state, documents)

    words = count_words(place, dies, attempts=1, on_error="continue")
    words.into.append([{"word": word} for word in ("a", "kills", "raises", "b")])
    summary = words.run(runner=InProcess(fork=True, failures=1), checked=False)
    assert (summary.exit, summary.failed + summary.rejected, summary.pending) == (3, 2, 0), summary
    assert words.states() == {"a": 1, "b": 1}
    [row] = account.deliveries(words.root, status="failed")
    assert "WorkerDied: dead" in row["message"]
