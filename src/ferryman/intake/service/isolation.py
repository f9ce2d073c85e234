"""Isolation: work that may have killed its process is done again in a child process, so that ``serve`` survives it.

1. The child (``engine.runner.child``) runs one task, and calls its parent for anything it needs from the queue.
2. ``CurrentWork``: files that record what is being done, in case the process dies.
3. ``Isolation``: the parent's side; starts a child for each task.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from ferryman import crash
from ferryman.engine.runner.child import Child, Died, RequestStopped, call_parent
from ferryman.errors import NoChild, PermanentError
from ferryman.intake import Batch, Job, JobQueue, JobState
from ferryman.intake.service.errors import ChildDied, StopRequested, TryLater
from ferryman.intake.service.finisher import finish
from ferryman.intake.service.payload import PlannedJob, plan_jobs
from ferryman.intake.service.stages import Serving, StageResult
from ferryman.intake.service.workspace import Workspace
from ferryman.storage import files

_METHODS: Final = ("set_space_needed", "set_identifiers", "set_inventory", "set_store", "check", "lock", "unlock")


class ParentCall(NamedTuple):
    """Call from the child: the value of an attribute of one of the parent's objects, or with ``args`` the result of a
    method."""

    target: str
    name: str
    args: tuple[Any, ...] | None


class Task(Protocol):
    """Work for a child process."""

    def run(self) -> Any:
        """Do the work."""
        ...


@dataclass(frozen=True)
class StageTask:
    """Task: the work of a stage for one job."""

    serving: Serving
    state: JobState

    def run(self) -> Any:
        queue = cast("JobQueue", _ParentQueue())
        stop, work = threading.Event(), Workspace(self.serving.work)
        fetcher, callback = self.serving.fetcher(stop), self.serving.callback(stop)
        stages = self.serving.stages(queue, work, fetcher, callback, stop, lambda text: None)
        (stage,) = (one for one in stages if one.state is self.state)
        result = stage.work(cast("Job", _ParentObject("job")))
        finish(result.steps)
        return result._replace(steps=())


@dataclass(frozen=True)
class BatchTask:
    """Task: planning the jobs of one batch."""

    serving: Serving
    submission: dict[str, Any]
    batch_id: str

    def run(self) -> Any:
        fetcher = self.serving.fetcher(threading.Event())
        return list(plan_jobs(self.submission, self.batch_id, Workspace(self.serving.work), fetcher))


class _ParentObject:
    """Proxy for an object in the parent process."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args: call_parent(ParentCall(self._target, name, args))
        return call_parent(ParentCall(self._target, name, None))


class _ParentQueue:
    """Proxy for the parent's queue, with the methods that stages need."""

    def __init__(self) -> None:
        self.locks = _ParentObject("locks")


def run_task(task: Task) -> Any:
    """Run a task in a child process."""
    return task.run()


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

_MARK_TRIES: Final = 3
"""Attempts to link to a mark that another process may sweep at any moment."""

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

    A file is created by the holder of the item's lock. A process that lost the lock unnoticed recognizes that the file
    is no longer its own: that of work in this process is a link to the process's mark, beside FOLDER, and one of
    isolated work contains a random token. A link costs a tenth of what a new file does. Only files of isolated work and
    the counts are synced, since the work is not to blame for a power cut.

    Args:
        folder: folder that every process serving the queue can see.
        print_line: called with a message about each death.
    """

    def __init__(self, folder: Path, print_line: Callable[[str], None]) -> None:
        self._folder, self._print_line = folder, print_line
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        self._mark = folder.with_name(f".{folder.name}-{self._name}")
        self._begun: dict[str, tuple[str, int]] = {}
        """Item -> token and number of the file of the last work on it in this process."""
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
        files.replace(self._folder / id, token.encode())  # not written in place: it may be a link to a mark
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
        """Remove the files of finished jobs and batches, and marks that no file is a link to: whoever still needs one
        creates it again."""
        for path in self._folder.iterdir():
            if is_done(path.name.removesuffix(_DEATHS)):
                path.unlink(missing_ok=True)
        for mark in self._mark.parent.glob(f"{self._mark.name.removesuffix(self._name)}*"):
            with suppress(FileNotFoundError):
                if mark.stat().st_nlink == 1:
                    mark.unlink()

    def close(self) -> None:
        """Remove this process's mark, at its end."""
        self._mark.unlink(missing_ok=True)

    def _deaths_file(self, id: str) -> Path:
        return self._folder / f"{id}{_DEATHS}"

    def _begin(self, id: str, token: str) -> bool:
        """Create the item's file. Returns False if it exists: work on the item had begun before, without an outcome."""
        path = f"{self._folder}/{id}"
        try:
            self._link_mark(path)
        except FileExistsError:
            return False
        self._begun[id] = token, os.stat(path).st_ino
        crash.point("work.begun")
        return True

    def _link_mark(self, path: str) -> None:
        """Create a file of work in this process.

        Raises:
            FileExistsError.
        """
        for _ in range(_MARK_TRIES):
            try:
                os.link(self._mark, path)
            except FileNotFoundError:  # it is the first one, or another process has swept the mark
                self._mark.write_text(self._name)
            except FileExistsError:
                raise
            except OSError:  # a file system without links, perhaps
                break
            else:
                return
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _end(self, id: str, token: str) -> None:
        """Remove the item's file, unless somebody else has begun to work on the item."""
        path = self._folder / id
        begun = self._begun.get(id)
        with suppress(FileNotFoundError):
            if begun is not None and begun[0] == token:
                del self._begun[id]
                is_ours = os.stat(path).st_ino == begun[1]
            else:
                is_ours = path.read_bytes() == token.encode()
            if is_ours:
                os.unlink(path)
        crash.point("work.ended")


# Work in a child process: if the work kills its process, only the child dies, and ``serve`` sees how.
#
# The child does the work of a stage; whatever it needs of the job and the queue it requests from its parent, which
# holds the lock. So it needs no access to the queue.

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
    """

    def __init__(self, queue: JobQueue, serving: Serving, stop: threading.Event) -> None:
        self._queue, self._serving, self._stop = queue, serving, stop

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
        def answer_call(call: ParentCall) -> Any:
            target, allowed = targets[call.target]
            if call.name not in allowed:
                raise AttributeError(call.name)
            value: Any = getattr(target, call.name)
            return value if call.args is None else value(*call.args)

        child = Child(run_task)
        try:
            return child.ask(task, answer_call=answer_call, is_stopped=self._stop.is_set)
        except Died as e:
            raise ChildDied(e.how) from None
        except RequestStopped:
            raise StopRequested from None
        except NoChild as e:  # the work is not to blame
            raise TryLater(str(e), DEATH_RETRY_S) from None
        finally:
            child.end()
