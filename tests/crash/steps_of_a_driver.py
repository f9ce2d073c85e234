"""Runs in forked children of the zygote: a driver whose durable steps are counted, and that is stopped at one of them.

A durable step is what others can see: on a disk a link, rename, replace or unlink, and the sync of a folder; in an
object store every request. What is done with a file under a temporary name is left out: nobody else knows it. So are
places that differ from no other one: before the sync of a folder is after the step that it makes durable, and after a
request is before the next one.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ferryman import Document, account, crash, limits, operations
from ferryman.destinations import Queue as ToQueue
from ferryman.engine import driver
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import StateLost
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Memory, Queue
from ferryman.state.state import State, state_root
from ferryman.storage import objects
from ferryman.storage.disk import TEMPORARY
from ferryman.testing.inprocess import InProcess
from tests.crash.child import OVERTAKEN
from tests.servers.faulty_s3 import settings
from tests.support import no_lock
from tests.support.http_store import HttpStore
from tests.support.invariants import states
from tests.support.plan_world import Watch
from tests.support.recorder import Store

WORDS = ("a", "b", "a", "c")
"""Of the messages of a stage."""
DOCUMENTS = ({"one": b"1", "two": b"2"}, {"one": b"new", "two": b"2", "three": b"3"}, {"one": b"new"}, {"four": b"4"})
"""The source's documents at each stage, from 1."""


class Job(msgspec.Struct):
    """What a child does.

    ``verb``: fill (the queue has the messages of this stage) | run | run and check.
    """

    verb: str
    root: str
    """A folder: what is on the disk is in ``world`` below it."""
    state: str
    queues: str
    stage: int
    counted_from: int = 1
    """The stage from which on the plan has its keyed node."""
    documents: bool = False
    """The plan has a source of documents that come, change and go."""
    store: str = ""
    """URL of a server of object stores."""
    stop: int = 0
    """The number of the step at which it is stopped; 0: it is not."""
    pattern: str = ""
    """Steps that do not match are not counted."""
    list_in: str = ""
    """A file that gets the steps, a line each."""


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = limits.QUEUE_FILES = 2  # type: ignore[misc]  # so that few waves meet every maintenance
    limits.CHECKPOINT_COMMITS = limits.QUEUE_COMMITS = 4  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.01  # type: ignore[misc]
    limits.READERS_GRACE_S = -1.0  # type: ignore[misc]  # what was replaced is removed at once
    limits.QUEUE_TURN_S = 0.0  # type: ignore[misc]  # whoever has it sleeps until we have ended
    no_lock.remove_all_locks()
    os.environ[objects.CACHE_VARIABLE] = f"{job.root}/cache-{os.getpid()}"  # each driver is on a machine of its own
    if job.store:
        os.environ.update(settings(job.store))
        objects.set_store_opener(HttpStore)
    if job.verb == "fill":
        DurableQueue("in", job.queues).append(messages(job.stage), key=f"stage {job.stage}")
        return
    if job.stop or job.list_in:
        Steps(job).watch()
    try:
        run(job)
    except StateLost as e:
        print(f"{OVERTAKEN}: {e}")
    if job.verb == "run and check":
        check(job)


def messages(stage: int) -> list[dict[str, Any]]:
    return [{"word": word, "n": len(WORDS) * (stage - 1) + n} for n, word in enumerate(WORDS)]


def plan_of(job: Job) -> Plan:
    """Queue ``in`` → queue ``out`` and, by key, → queue ``changes``; documents → a recorder."""
    plan = Plan("p", version=1)
    words = plan.source("words", Queue("in", job.queues)).route("both", Duplicate())
    words.destination("to_out", ToQueue("out", job.queues), batch=3, backoff=0)
    if job.stage >= job.counted_from:
        counts = words.keyed("counts", count, key="word")
        counts.destination("to_changes", ToQueue("changes", job.queues), batch=2, backoff=0)
    if not job.documents:
        return plan
    docs = [{"id": id, "raw": raw} for id, raw in DOCUMENTS[job.stage - 1].items()]
    plan.source("docs", Memory(docs, max_deleted=1.0)).destination("rec", recorder(job), batch=2, backoff=0)
    return plan


def count(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
    """How many documents a key has had; exports what it was and what it is."""
    return (state or 0) + len(documents), Document(key, old=state or 0, new=(state or 0) + len(documents))


def recorder(job: Job) -> Store:
    return Store(Path(job.root, "rec.jsonl"))


def run(job: Job) -> None:
    plan = plan_of(job)
    plan.freeze()
    root = state_root(plan, job.state)
    with State.take(root, plan, take_over=bool(job.store)) as taken, driver.explain_errors(taken):
        driver.record_plan_changes(taken, accept_changes=True)
        said = Run(taken, InProcess(slots=1), Watch(), RunSettings(wait=30)).run()
        assert said.exit == 0, said


def check(job: Job) -> None:
    """Every message came once and in order, keys count right, the destination has what the source has."""
    wanted = [message for stage in range(1, job.stage + 1) for message in messages(stage)]
    counted = Counter(m["word"] for stage in range(job.counted_from, job.stage + 1) for m in messages(stage))
    found = DurableQueue("out", job.queues).read(limit=10_000)
    assert [m.body["n"] for m in found] == [m["n"] for m in wanted]
    last: dict[str, int] = {}
    for change in DurableQueue("changes", job.queues).read(limit=10_000):
        assert change.body["old"] == last.get(change.meta["id"], 0), change
        last[change.meta["id"]] = change.body["new"]
    assert last == counted
    plan = plan_of(job)
    root = state_root(plan, job.state)
    if isinstance(root, Path):
        assert states(root, "counts") == counted
    have: dict[str, str] = {}
    for line in recorder(job).lines():
        if line["op"] == "delete":
            del have[line["id"]]
        else:
            have[line["id"]] = line["text"]
    assert have.keys() == (DOCUMENTS[job.stage - 1].keys() if job.documents else set())
    assert operations.check(root) == []
    assert account.status(root, plan)["balanced"]


class Steps:
    """Counts the durable steps of this process, and stops it at one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._world = f"{job.root}/world/"
        self._number = 0
        self._turn = threading.Lock()

    def watch(self) -> None:
        """From now on."""
        for name in ("fsync", "link", "rename", "replace", "unlink"):
            setattr(os, name, self._on_disk(name, getattr(os, name)))
        ask = HttpStore.ask

        def counted(store: HttpStore, method: str, key: str, *more: Any, **named: Any) -> Any:
            if threading.current_thread().name != "ferryman-lease":
                self._pass(f"{method} {key or named.get('query', '')}")
            return ask(store, method, key, *more, **named)

        HttpStore.ask = counted  # type: ignore[method-assign]

    def _on_disk(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            what = given[1] if name in ("link", "rename", "replace") else given[0]
            if isinstance(what, int):
                what = os.readlink(f"/proc/self/fd/{what}")
            elif (folder := named.get("dir_fd")) is not None:
                what = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), what)
            said = f"{name} {str(what).removeprefix(self._world)}"
            if not str(what).startswith(self._world) or TEMPORARY in said:
                return real(*given, **named)
            if name != "fsync":
                self._pass(f"before {said}")
            try:
                return real(*given, **named)
            finally:
                self._pass(f"after {said}")

        return counted

    def _pass(self, step: str) -> None:
        if self._job.pattern and not re.search(self._job.pattern, step):
            return
        with self._turn:
            self._number += 1
            mine = self._number
            if self._job.list_in:
                with open(self._job.list_in, "a") as out:
                    out.write(f"{step}\n")
        if mine == self._job.stop:
            crash.stop_here(signal.SIGSTOP)
