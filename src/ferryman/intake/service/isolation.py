"""Isolation: work that may have killed its process is done again in a child process, so that ``serve`` survives it.

1. The child runs one task, and calls its parent for anything it needs from the queue.
2. ``CurrentWork``: files that record what is being done, in case the process dies.
3. ``Isolation``: the parent's side; starts a child for each task.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from signal import Signals
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from ferryman import crash
from ferryman.errors import PermanentError, describe
from ferryman.intake import Batch, Job, JobQueue, JobState
from ferryman.intake.service.errors import ChildDied, StopRequested, TryLater
from ferryman.intake.service.finisher import finish
from ferryman.intake.service.payload import PlannedJob, plan_jobs
from ferryman.intake.service.settings import Serving
from ferryman.intake.service.stages import StageResult
from ferryman.intake.service.workspace import Workspace
from ferryman.storage import files

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux
_KILL_FIRST: Final = "1000"
"""Value for Linux's ``oom_score_adj``: if memory runs out, the child is killed and not its parent."""

_METHODS: Final = ("set_space_needed", "set_identifiers", "set_inventory", "set_store", "check", "lock", "unlock")


class ParentCall(NamedTuple):
    """Request from the child: the value of an attribute, or with ``args`` the result of a method."""

    target: str
    name: str
    args: tuple[Any, ...] | None


class ReplyValue(NamedTuple):
    """Answer to a ``ParentCall``; from the child, the result of its task."""

    value: Any


class ReplyError(NamedTuple):
    """Answer to a ``ParentCall`` that raises this error; from the child, the error of its task."""

    error: BaseException


class Task(Protocol):
    """Work for a child process."""

    def run(self, call_parent: Callable[..., Any]) -> Any:
        """Do the work. ``call_parent(call)`` sends a ``ParentCall`` to the parent and returns its answer."""
        ...


@dataclass(frozen=True)
class StageTask:
    """Task: the work of a stage for one job."""

    serving: Serving
    state: JobState

    def run(self, call_parent: Callable[..., Any]) -> Any:
        queue = cast("JobQueue", _ParentQueue(call_parent))
        stop, work = threading.Event(), Workspace(self.serving.work)
        fetcher, callback = self.serving.fetcher(stop), self.serving.callback(stop)
        stages = self.serving.stages(queue, work, fetcher, callback, stop, lambda text: None)
        (stage,) = (one for one in stages if one.state is self.state)
        result = stage.work(cast("Job", _ParentObject(call_parent, "job")))
        finish(result.steps)
        return result._replace(steps=())


@dataclass(frozen=True)
class BatchTask:
    """Task: planning the jobs of one batch."""

    serving: Serving
    submission: dict[str, Any]
    batch_id: str

    def run(self, call_parent: Callable[..., Any]) -> Any:
        fetcher = self.serving.fetcher(threading.Event())
        return list(plan_jobs(self.submission, self.batch_id, Workspace(self.serving.work), fetcher))


class _ParentObject:
    """Proxy for an object in the parent process."""

    def __init__(self, call_parent: Callable[..., Any], target: str) -> None:
        self._call, self._target = call_parent, target

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args: self._call(ParentCall(self._target, name, args))
        return self._call(ParentCall(self._target, name, None))


class _ParentQueue:
    """Proxy for the parent's queue, with the methods that stages need."""

    def __init__(self, call_parent: Callable[..., Any]) -> None:
        self.locks = _ParentObject(call_parent, "locks")


def main(descriptor: int) -> None:
    """Run the task that is received over this connection, in a child process."""
    _die_with(os.getppid())
    with Connection(descriptor) as parent:
        try:
            task: Task = parent.recv()
            try:
                reply: ReplyValue | ReplyError = ReplyValue(task.run(partial(_call_parent, parent, threading.Lock())))
            except Exception as e:
                reply = ReplyError(_picklable(e))
            parent.send(reply)
        except (EOFError, ConnectionError):
            os._exit(1)  # the parent has gone


def _call_parent(parent: Connection, lock: threading.Lock, call: ParentCall) -> Any:
    with lock:  # several threads fetch files
        parent.send(call)
        reply: ReplyValue | ReplyError = parent.recv()
    if isinstance(reply, ReplyError):
        raise reply.error
    return reply.value


def _picklable(error: Exception) -> Exception:
    """Return the error, or one with the same text that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return PermanentError(describe(error))
    return error


def _die_with(parent: int) -> None:
    """Make this process end together with its parent, since another process may do the work then. Signals from a
    terminal are left to the parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as out:
            out.write(_KILL_FIRST)
    if os.getppid() != parent:
        os._exit(1)


# Files that record current work, so that it is known what was being done when a process died, and can be isolated.
#
# When ``serve`` dies, one of the jobs in progress may be to blame, or none. Each of them is done next in a child
# process, one at a time. If the child dies while ``serve`` survives, that is counted; a job that has killed as many
# children as it has attempts fails, with the reason.

ATTEMPTS: Final = 3
"""Deaths of a child after which its job fails; a single death may be the machine's fault."""

ISOLATION_RETRY_S: Final = 0.2
"""Seconds until a job to be isolated is tried again while another one is being isolated."""

DEATH_RETRY_S: Final = 0.5
"""Seconds between a death and the next attempt, so that a machine short of memory can recover."""

_DEATHS: Final = ".deaths"

T = TypeVar("T")


class CurrentWork:
    """Files that record what the threads of all processes of a queue are working on.

    ::

        FOLDER/ID           somebody is working on this job or batch, or died while working on it
        FOLDER/ID.deaths    number of children that died in it

    1. Create the file ID. If it existed, isolate the work.
    2. Do the work, in this process or in a child.
    3. If the child died, count its death; after ``ATTEMPTS`` deaths the job fails.
    4. Remove the files, since the work has an outcome; only the item's state still has to be changed.

    A file is created by the holder of the item's lock. It contains a random token, by which a process that lost the
    lock unnoticed recognizes that the file is no longer its own. Only the counts are synced, since the work is not to
    blame for a power cut.

    Args:
        folder: folder that every process serving the queue can see.
        print_line: called with a message about each death.
    """

    def __init__(self, folder: Path, print_line: Callable[[str], None]) -> None:
        self._folder, self._print_line = folder, print_line
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        self._slot = threading.Lock()
        """Held while a task is being isolated."""

    def run(self, id: str, in_process: Callable[[], T], in_child: Callable[[], T]) -> T:
        """Do the work in this process; or in a child, if it was being done when a process died.

        Args:
            in_child: does the work in a child process.

        Raises:
            TryLater: another task is being isolated, or the child died; the work is to be tried again.
            PermanentError: its process died in every attempt.
            StopRequested: raised by ``in_child``; the next process isolates the work, too.
        """
        word = f"{self._name}-{next(self._count)}"
        if self._begin(id, word):
            try:
                return in_process()
            finally:
                self._end(id, word)
        if not self._slot.acquire(blocking=False):
            raise TryLater("it waits until it is worked at in a child process", ISOLATION_RETRY_S)
        try:
            return self._run_isolated(id, word, in_child)
        finally:
            self._slot.release()

    def _run_isolated(self, id: str, token: str, in_child: Callable[[], T]) -> T:
        (self._folder / id).write_text(token)
        try:
            result = in_child()
        except ChildDied as e:
            self._count_death(id, token, e.how)
            raise TryLater(f"it ended its process: {e.how}", DEATH_RETRY_S) from None
        except (TryLater, StopRequested):
            raise
        except BaseException:
            self._forget(id, token)
            raise
        self._forget(id, token)
        return result

    def _count_death(self, id: str, token: str, how: str) -> None:
        """Count a death of the child. Raises ``PermanentError`` if it was the last one allowed."""
        crash.point("work.died")
        deaths = self.deaths(id) + 1
        files.replace(self._deaths_file(id), str(deaths).encode())
        crash.point("work.counted")
        self._print_line(f"{id}: ended the child process that worked at it ({deaths} of {ATTEMPTS}): {how}")
        if deaths >= ATTEMPTS:
            self._forget(id, token)
            raise PermanentError(
                f"it ended the process that worked at it, in each of {ATTEMPTS} attempts: {how}. Look for what is "
                "unusual in it: its size, its names, its container."
            )

    def _forget(self, id: str, token: str) -> None:
        """Remove the item's files, since it has an outcome and its deaths no longer count."""
        self._deaths_file(id).unlink(missing_ok=True)
        self._end(id, token)

    def deaths(self, id: str) -> int:
        """Return how many children have died while working on the item."""
        try:
            return int(self._deaths_file(id).read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def sweep(self, is_done: Callable[[str], bool]) -> None:
        """Remove the files of finished jobs and batches."""
        for path in self._folder.iterdir():
            if is_done(path.name.removesuffix(_DEATHS)):
                path.unlink(missing_ok=True)

    def _deaths_file(self, id: str) -> Path:
        return self._folder / f"{id}{_DEATHS}"

    def _begin(self, id: str, token: str) -> bool:
        """Create the item's file. Returns False if it exists: work on the item had begun before, without an outcome."""
        try:
            descriptor = os.open(f"{self._folder}/{id}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, token.encode())
        finally:
            os.close(descriptor)
        crash.point("work.begun")
        return True

    def _end(self, id: str, token: str) -> None:
        """Remove the item's file, unless another process has begun to work on the item."""
        path = f"{self._folder}/{id}"
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                is_ours = os.read(descriptor, 2 * len(token)) == token.encode()
            finally:
                os.close(descriptor)
            if is_ours:
                os.unlink(path)
        crash.point("work.ended")


# Work in a child process: if the work kills its process, only the child dies, and ``serve`` sees how.
#
# The child does the work of a stage; whatever it needs of the job and the queue it requests from its parent, which
# holds the lock. So it needs no access to the queue. It dies with its parent.

COMMAND: Final = (
    sys.executable,
    "-c",
    "import sys; from ferryman.intake.service.isolation import main; main(int(sys.argv[1]))",
)
"""Command that starts a child, without its last argument: the number of the connection's file descriptor."""

STOP_POLL_S: Final = 0.1
"""Seconds between two checks whether to stop."""

JOB_ATTRIBUTES: Final = frozenset(
    (
        *("id", "batch_id", "path", "locked", "priority", "space_needed", "retry_count"),
        *("configuration", "identifiers", "metadata", "inventory", "store"),
        *("set_space_needed", "set_identifiers", "set_inventory", "set_store"),
    )
)
"""Attributes of its job that a child may request."""

LOCK_METHODS: Final = frozenset(("check", "lock", "unlock"))
"""Methods of the queue's locks that a child may call."""


class Isolation:
    """Runs stages in child processes, one child for each call.

    Args:
        stop: when it is set, the child is killed and ``StopRequested`` raised.
        command: command to start; default: ``COMMAND``.
    """

    def __init__(self, queue: JobQueue, serving: Serving, stop: threading.Event, command: tuple[str, ...] = ()) -> None:
        self._queue, self._serving, self._stop, self._command = queue, serving, stop, command or COMMAND

    def run_stage(self, job: Job, state: JobState) -> StageResult:
        """Run the stage of this state for a job. Raises as the stage does, and ``ChildDied``, ``StopRequested``."""
        result: StageResult = self._run(
            StageTask(self._settings(), state),
            {"job": (job, JOB_ATTRIBUTES), "locks": (self._queue.locks, LOCK_METHODS)},
        )
        return result

    def plan_batch(self, batch: Batch) -> list[PlannedJob]:
        """Plan the jobs of a batch. Raises as ``payload.plan_jobs``, and ``ChildDied``, ``StopRequested``."""
        jobs: list[PlannedJob] = self._run(BatchTask(self._settings(), dict(batch.submission), batch.id), {})
        return jobs

    def _settings(self) -> Serving:
        return replace(self._serving, threads=1)

    def _run(self, task: Task, targets: Mapping[str, tuple[Any, frozenset[str]]]) -> Any:
        parent_end, child_end = Pipe()
        with parent_end:
            with child_end:
                command = [*self._command, str(child_end.fileno())]
                child = subprocess.Popen(
                    command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            try:
                parent_end.send(task)
                return self._answer_until_done(parent_end, child, targets)
            except (EOFError, ConnectionError):
                raise ChildDied(_describe_exit(child.wait())) from None
            finally:
                child.kill()
                child.wait()

    def _answer_until_done(
        self, in_process: Connection, child: Any, targets: Mapping[str, tuple[Any, frozenset[str]]]
    ) -> Any:
        """Answer the child's calls until it has a result."""
        while True:
            while not in_process.poll(STOP_POLL_S):
                if self._stop.is_set():
                    raise StopRequested
            match in_process.recv():
                case ReplyValue(value):
                    return value
                case ReplyError(error):
                    raise error
                case ParentCall(target_name, name, args):
                    target, allowed = targets[target_name]
                    in_process.send(_reply(target, name, args) if name in allowed else ReplyError(AttributeError(name)))


def _reply(target: Any, name: str, args: tuple[Any, ...] | None) -> ReplyValue | ReplyError:
    try:
        value: Any = getattr(target, name)
        return ReplyValue(value if args is None else value(*args))
    except Exception as e:
        return ReplyError(e)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
