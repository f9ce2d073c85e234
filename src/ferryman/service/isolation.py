"""Work in a child process: what may end its process ends the child, and ``serve`` sees how.

The child does the work of a stage; what it needs of the job and of the queue it asks its parent for, who has the lock.
So it needs no access to the queue. It dies with its parent.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from signal import Signals
from typing import Any, Final

from ferryman.intake import Batch, Job, JobState, Queue
from ferryman.service.errors import ChildDied, Stopping
from ferryman.service.isolated import AskedError, AskedValue, BatchTask, Question, StageTask, Task
from ferryman.service.payload import Planned
from ferryman.service.serving import Serving
from ferryman.service.stages import Done

COMMAND: Final = (
    sys.executable,
    "-c",
    "import sys; from ferryman.service.isolated import main; main(int(sys.argv[1]))",
)
"""What is started; the number of the connection's descriptor follows."""

LOOK_S: Final = 0.1
"""Between two looks whether to stop."""

JOB: Final = frozenset(
    (
        *("id", "batch_id", "path", "locked", "priority", "space_needed", "retry_count"),
        *("configuration", "identifiers", "metadata", "inventory", "store"),
        *("set_space_needed", "set_identifiers", "set_inventory", "set_store"),
    )
)
"""What a child may ask of its job."""

LOCKS: Final = frozenset(("check", "lock", "unlock"))
"""And of the queue's locks."""


class Isolation:
    """Does the work of stages in child processes, one child a call.

    Args:
        stop: set it, and the child is ended with ``Stopping``.
        command: what is started; default: ``COMMAND``.
    """

    def __init__(self, queue: Queue, serving: Serving, stop: threading.Event, command: tuple[str, ...] = ()) -> None:
        self._queue, self._serving, self._stop, self._command = queue, serving, stop, command or COMMAND

    def work(self, job: Job, state: JobState) -> Done:
        """What the stage of this state does with a job. Raises as the stage, and ``ChildDied``, ``Stopping``."""
        done: Done = self._run(
            StageTask(self._settings(), state), {"job": (job, JOB), "locks": (self._queue.locks, LOCKS)}
        )
        return done

    def planned(self, batch: Batch) -> list[Planned]:
        """The jobs of a batch. Raises as ``payload.planned``, and ``ChildDied``, ``Stopping``."""
        found: list[Planned] = self._run(BatchTask(self._settings(), dict(batch.submission), batch.id), {})
        return found

    def _settings(self) -> Serving:
        return replace(self._serving, threads=1)

    def _run(self, task: Task, asked: Mapping[str, tuple[Any, frozenset[str]]]) -> Any:
        here, there = Pipe()
        with here:
            with there:
                command = [*self._command, str(there.fileno())]
                child = subprocess.Popen(
                    command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            try:
                here.send(task)
                return self._answering(here, child, asked)
            except (EOFError, ConnectionError):
                raise ChildDied(_how(child.wait())) from None
            finally:
                child.kill()
                child.wait()

    def _answering(self, here: Connection, child: Any, asked: Mapping[str, tuple[Any, frozenset[str]]]) -> Any:
        """Answer what the child asks, until it has a result."""
        while True:
            while not here.poll(LOOK_S):
                if self._stop.is_set():
                    raise Stopping
            match here.recv():
                case AskedValue(value):
                    return value
                case AskedError(error):
                    raise error
                case Question(whose, name, args):
                    of, names = asked[whose]
                    here.send(_answer(of, name, args) if name in names else AskedError(AttributeError(name)))


def _answer(of: Any, name: str, args: tuple[Any, ...] | None) -> AskedValue | AskedError:
    try:
        value: Any = getattr(of, name)
        return AskedValue(value if args is None else value(*args))
    except Exception as e:
        return AskedError(e)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
