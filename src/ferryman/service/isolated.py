"""The child of ``isolation``: does one task, and asks its parent for what it needs of the queue."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Protocol, cast

from ferryman.errors import PermanentError, describe
from ferryman.intake import Job, JobState, Queue
from ferryman.service.payload import planned
from ferryman.service.serving import Serving
from ferryman.service.together import finish
from ferryman.service.workspace import Workspace

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux
_KILL_FIRST: Final = "1000"
"""On Linux: where memory runs out, this process ends and not its parent."""

_METHODS: Final = ("set_space_needed", "set_identifiers", "set_inventory", "set_store", "check", "lock", "unlock")


class Question(NamedTuple):
    """From the child: a value, or with ``args`` the result of a method."""

    whose: str
    name: str
    args: tuple[Any, ...] | None


class AskedValue(NamedTuple):
    """The answer to ``Question``; from the child, the end of its task."""

    value: Any


class AskedError(NamedTuple):
    """The same, but this was raised."""

    error: BaseException


class Task(Protocol):
    """What a child does."""

    def run(self, ask: Callable[..., Any]) -> Any:
        """Do it. ``ask(whose, name, *args)`` asks the parent."""
        ...


@dataclass(frozen=True)
class StageTask:
    """The work of a stage."""

    serving: Serving
    state: JobState

    def run(self, ask: Callable[..., Any]) -> Any:
        queue = cast("Queue", _QueueAsked(ask))
        stop, work = threading.Event(), Workspace(self.serving.work)
        fetcher, callback = self.serving.fetcher(stop), self.serving.callback(stop)
        stages = self.serving.stages(queue, work, fetcher, callback, stop, lambda text: None)
        (stage,) = (one for one in stages if one.state is self.state)
        done = stage.work(cast("Job", _Asked(ask, "job")))
        finish(done.steps)
        return done._replace(steps=())


@dataclass(frozen=True)
class BatchTask:
    """The jobs of a batch."""

    serving: Serving
    submission: dict[str, Any]
    batch_id: str

    def run(self, ask: Callable[..., Any]) -> Any:
        fetcher = self.serving.fetcher(threading.Event())
        return list(planned(self.submission, self.batch_id, Workspace(self.serving.work), fetcher))


class _Asked:
    """An object of the parent's."""

    def __init__(self, ask: Callable[..., Any], whose: str) -> None:
        self._ask, self._whose = ask, whose

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args: self._ask(Question(self._whose, name, args))
        return self._ask(Question(self._whose, name, None))


class _QueueAsked:
    """What stages need of a queue."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.locks = _Asked(ask, "locks")


def main(descriptor: int) -> None:
    """Do the task that comes over this connection."""
    _end_with(os.getppid())
    with Connection(descriptor) as parent:
        try:
            task: Task = parent.recv()
            try:
                said: AskedValue | AskedError = AskedValue(task.run(partial(_ask, parent, threading.Lock())))
            except Exception as e:
                said = AskedError(_portable(e))
            parent.send(said)
        except (EOFError, ConnectionError):
            os._exit(1)  # nobody wants to know any more


def _ask(parent: Connection, turn: threading.Lock, question: Question) -> Any:
    with turn:  # files are fetched by several threads
        parent.send(question)
        said: AskedValue | AskedError = parent.recv()
    if isinstance(said, AskedError):
        raise said.error
    return said.value


def _portable(error: Exception) -> Exception:
    """This error, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return PermanentError(describe(error))
    return error


def _end_with(parent: int) -> None:
    """This process ends with its parent: another one may do the same work then. Signals from a terminal are the
    parent's business."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as out:
            out.write(_KILL_FIRST)
    if os.getppid() != parent:
        os._exit(1)
