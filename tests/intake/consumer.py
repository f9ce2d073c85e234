"""Processes that tests start, stop and kill: `python -m tests.intake.consumer WHAT URL SESSION_S [...]`."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable

from ferryman.intake import JobQueue, LockLost, NodeInvalid
from ferryman.intake.states import JOB, JobState

THREADS = 3
"""A state."""


def hold(queue: JobQueue) -> None:
    """Acquire a job; on a word from stdin try to move it, and say what came of it."""
    job = queue.acquire_job("Pending")
    assert job is not None
    say(job.id)
    sys.stdin.readline()
    try:
        job.set_status("Estimating")
    except LockLost:
        say(f"lost {job.locked}")
    else:
        say("moved")


def drain(queue: JobQueue) -> None:
    """Acquire until there is nothing left, as soon as stdin says so; say what was acquired."""
    say("ready")
    sys.stdin.readline()
    got = []
    while job := queue.acquire_job("Pending"):
        got.append(job.id)
    say(" ".join(got))
    sys.stdin.readline()  # the locks live as long as this process


def wander(queue: JobQueue, seed: str) -> None:
    """Move jobs about, any legal move, until killed."""
    chance = random.Random(seed)
    say("ready")
    while True:
        state = chance.choice([s for s in JobState if JOB.moves[s]])
        job = queue.acquire_job(state)
        if job is None:
            continue
        try:
            for _ in range(chance.randint(1, 4)):
                moves = sorted(JOB.moves[JobState(job.status)] - JOB.final)
                job.set_status(chance.choice(moves), priority=chance.randint(0, 120), retry=chance.random() < 0.5)
        except (LockLost, NodeInvalid) as e:
            say(str(e))
            raise
        job.unlock()


def carry(queue: JobQueue) -> None:
    """Serve all states with several threads each, until killed. Each is careless: it unlocks and moves once more what
    it has done with, which must harm nobody."""
    say("ready")
    states = [state for state in JobState if state in JOB.success or state is JobState.PENDING]
    for state in states:
        for _ in range(THREADS):
            threading.Thread(target=_carry, args=(queue, state), daemon=True).start()
    threading.Event().wait()


def _carry(queue: JobQueue, state: JobState) -> None:
    while True:
        watch = queue.watch_jobs(state)
        job = queue.acquire_job(state)
        if job is None:
            watch.wait(0.1)
            continue
        with contextlib.suppress(LockLost):
            if state is JobState.PENDING:
                job.set_status("Estimating")
                job.unlock()
            else:
                job.set_inventory({**job.inventory, state.value: 1})  # the work
                job.success(unlock=True)
        job.unlock()
        with contextlib.suppress(LockLost):
            job.success()


def say(text: str) -> None:
    print(text, flush=True)


WHAT: dict[str, Callable[..., None]] = {"hold": hold, "drain": drain, "wander": wander, "carry": carry}


def main(what: str, url: str, session_s: str, *rest: str) -> None:
    with JobQueue.open(url, session_timeout_s=float(session_s), clock=time.time) as queue:
        WHAT[what](queue, *rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
