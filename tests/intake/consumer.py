"""Processes that tests start, stop and kill: `python -m tests.intake.consumer WHAT URL SESSION_S [...]`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from ferryman.intake import LockLost, NodeInvalid, Queue
from ferryman.intake.states import JOB, JobState


def hold(queue: Queue) -> None:
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


def drain(queue: Queue) -> None:
    """Acquire until there is nothing left, as soon as stdin says so; say what was acquired."""
    say("ready")
    sys.stdin.readline()
    got = []
    while job := queue.acquire_job("Pending"):
        got.append(job.id)
    say(" ".join(got))
    sys.stdin.readline()  # the locks live as long as this process


def wander(queue: Queue, seed: str) -> None:
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


def say(text: str) -> None:
    print(text, flush=True)


WHAT: dict[str, Callable[..., None]] = {"hold": hold, "drain": drain, "wander": wander}


def main(what: str, url: str, session_s: str, *rest: str) -> None:
    with Queue.open(url, session_timeout_s=float(session_s), clock=time.time) as queue:
        WHAT[what](queue, *rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
