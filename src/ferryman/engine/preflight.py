"""Preflight: checks that executors on other machines see the same folders as the driver; a process that does not
refuses its tasks."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import ferryman
from ferryman.engine.runner.base import Answer, Deferred, Item, Runner, set_outcome
from ferryman.errors import EngineError, FerrymanError, UsageError, message_of
from ferryman.plan import DestinationNode, Node, Plan, SourceNode
from ferryman.storage import files
from ferryman.storage.files import StatePath

_MAX_PROBES: Final = 1_000
"""Maximum number of tasks that inspect executors, however many slots there are."""

_ROUNDS: Final = 3
"""Times that a difference in a source's folder must be seen in order to count, since names may change at any moment."""

_MAX_ATTEMPTS: Final = 4
"""Times that a refused task is tried before the run stops, as often as Spark tries a failing task."""

_OVERRIDE_HINT: Final = "If this is as it should be, run with --no-preflight."


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """Task: run another task, unless this process sees something else than the driver."""

    task: Callable[..., Any]
    facts: DriverView

    def __call__(self, item: Any) -> Any:
        differing = differences(self.facts)
        return TaskRefused(differing) if differing else self.task(item)


@dataclass(frozen=True, slots=True)
class CheckedFrameTask:
    """A checked task that gets batches of a DataFrame."""

    task: Callable[..., Any]
    facts: DriverView

    def __call__(self, partition: int, batches: Iterator[Any]) -> Any:
        differing = differences(self.facts)
        if not differing:
            return self.task(partition, batches)
        for _ in batches:  # Spark requires that its input is read to the end
            pass
        return TaskRefused(differing)


@dataclass(frozen=True, slots=True)
class InspectTask:
    """Task: return what this process sees."""

    facts: DriverView

    def __call__(self, _: int) -> ExecutorView:
        return inspect_process(self.facts)


class CheckedRunner(Runner):
    """Runs tasks only in processes that see what the driver sees.

    Args:
        report: takes a message about each process that sees something else, once.
    """

    def __init__(self, runner: Runner, facts: DriverView, report: Callable[[str], None]) -> None:
        self._runner = runner
        self._facts = facts
        self._report = report
        self._reported: set[str] = set()

    on_one_machine = False

    @property
    def slots(self) -> int:
        return self._runner.slots

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run the checked task for each item, see ``Runner.submit``.

        The future also raises EngineError if no executor that sees the same as the driver could run a task.
        """
        checked = CheckedTask(task, self._facts)
        submitted: Future[list[Any]] = self._runner.submit(checked, items, background=background)
        return Deferred(lambda done: set_outcome(done, partial(self._collect, checked, items, submitted)))

    def use_session(self, use: Callable[[Any], Answer]) -> Answer:
        return self._runner.use_session(use)

    def _collect(self, task: CheckedTask, items: Sequence[Any], submitted: Future[list[Any]]) -> list[Any]:
        """Wait for the answers, and submit tasks again that were refused."""
        answers: dict[int, Any] = {}
        remaining = list(range(len(items)))
        for _ in range(_MAX_ATTEMPTS):
            results = submitted.result()
            answers |= {
                n: answer for n, answer in zip(remaining, results, strict=True) if not isinstance(answer, TaskRefused)
            }
            self._report_differences(results)
            remaining = [n for n in remaining if n not in answers]
            if not remaining:
                return [answers[n] for n in range(len(items))]
            submitted = self._runner.submit(task, [items[n] for n in remaining])
        raise self._no_executor_error()

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the checked task for each partition of a frame, see ``Runner.run_frame``."""
        for _ in range(_MAX_ATTEMPTS):
            answers: list[Any] = self._runner.run_frame(read, CheckedFrameTask(task, self._facts))
            if not any(isinstance(answer, TaskRefused) for answer in answers):
                return answers
            self._report_differences(answers)
        raise self._no_executor_error()

    def _report_differences(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            for why in answer.why if isinstance(answer, TaskRefused) else ():
                if why not in self._reported:
                    self._reported.add(why)
                    self._report(f"{why} It was given no task.")

    def _no_executor_error(self) -> EngineError:
        return EngineError(
            f"no executor that sees the same took a task: {' '.join(sorted(self._reported)[:3])} {_OVERRIDE_HINT}"
        )


@contextlib.contextmanager
def check_runner(
    runner: Runner, states: Sequence[tuple[Plan, StatePath, str]], report: Callable[[str], None]
) -> Iterator[CheckedRunner]:
    """Check the executors, and yield a runner that also checks those that join later.

    Args:
        states: (plan, folder of its state, id of its state) for each plan.
        report: takes messages about executors that join later and see something else.

    Raises:
        UsageError: an executor sees something else. Only proofs were written, and they are removed.
    """
    with place_proofs(states) as facts:
        _check_executors(runner, facts, [plan for plan, _, _ in states])
        yield CheckedRunner(runner, facts.without_names(), report)


def _check_executors(runner: Runner, facts: DriverView, plans: Sequence[Plan]) -> None:
    persistent: set[str] | None = None
    for _ in range(_ROUNDS):
        views = runner.submit(InspectTask(facts), range(min(_MAX_PROBES, max(2, runner.slots)))).result()
        proofs = [proof for each in views for proof in each.proofs]
        problems = [why for each in views for why in each.differences]
        problems += [
            f"{proof} was written by an executor, and is not there on {facts.host}."
            for proof in _find_missing_proofs(proofs)
        ]
        if problems:
            raise UsageError(f"{' '.join(dict.fromkeys(problems))} Nothing was read. {_OVERRIDE_HINT}")
        differing = set(_compare_folders(facts, views))
        persistent = differing if persistent is None else persistent & differing
        if not persistent:
            return
        facts = facts._replace(read=read_paths(plans))
    raise UsageError(f"{' '.join(sorted(persistent or ()))} Nothing was read. {_OVERRIDE_HINT}")


def _find_missing_proofs(proofs: Sequence[str]) -> Iterator[str]:
    """Yield the executors' files that the driver does not see, and remove all of these files."""
    for proof in proofs:
        path = files.path_of(proof)
        if not files.exists(path):
            yield proof
        files.remove(path)


def _compare_folders(facts: DriverView, views: Sequence[ExecutorView]) -> Iterator[str]:
    """Yield a message for each source folder in which an executor sees something else than the driver."""
    for read in facts.read:
        if read.names is None:
            continue
        try:
            now = list_folder(read.path) or ()
        except OSError as e:
            yield f"{read.path} ({read.what}) cannot be read any more: {message_of(e)}."
            continue
        for each in views:
            for missing, where, but in _compare_names(read.names, now, each.names.get(read.path, ()), facts.host, each):
                yield (
                    f"{read.path} ({read.what}) is not the same on {facts.host} and on {each.process.split()[0]}: "
                    f"{missing} is on {where} and not on {but}. Is the share mounted?"
                )


def _compare_names(
    before: Sequence[str], now: Sequence[str], executor_names: Sequence[str], host: str, view: ExecutorView
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, machine that sees it, machine that does not), at most one for each direction.

    Names may appear and disappear meanwhile. So an executor counts as missing a name only if the driver saw it both
    before and after, and the driver only if it saw it neither time. If listings were cut off, only the part that all of
    them cover is compared.
    """
    cut = [names[-1] for names in (before, now, executor_names) if len(names) == MAX_NAMES]
    always, ever, executor = (
        {name for name in names if not cut or name <= min(cut)}
        for names in ({*before} & {*now}, {*before, *now}, executor_names)
    )
    machine = view.process.split()[0]
    if missing := always - executor:
        yield min(missing), host, machine
    if more := executor - ever:
        yield min(more), machine, host


# The driver's view: folders that are written to, and folders and files that sources read.
#
# A folder that is written to is checked by a hidden file with random text, the proof, which exists during the run.
# Nothing is written to folders of sources; their names are compared instead.

PROOF_PREFIX: Final = ".ferryman-preflight-"
"""Prefix of a proof's name, followed by the state's id and a random text."""

MAX_NAMES: Final = 1_000
"""Maximum number of names that are compared per folder, the first in sorted order."""


class WrittenFolder(NamedTuple):
    """A folder that every machine writes to, or its URL in an object store."""

    path: str
    what: str
    """Description for messages: ``the state``."""
    proof: str
    """Name of the proof, which is also its content."""


class ReadPath(NamedTuple):
    """A folder or file that a source reads on every machine."""

    path: str
    what: str
    names: tuple[str, ...] | None
    """Names that the driver sees in it, sorted, at most ``MAX_NAMES``; None: it is a file."""


class DriverView(NamedTuple):
    """View of the driver, sent along with every task."""

    host: str
    version: str
    """Version of Ferryman."""
    written: tuple[WrittenFolder, ...]
    read: tuple[ReadPath, ...]

    def without_names(self) -> DriverView:
        """Return the view for processes that start later: names may have changed by then, so only whether a folder is
        empty is compared."""
        return self._replace(read=tuple(each._replace(names=each.names and each.names[:1]) for each in self.read))


def list_folder(path: str) -> tuple[str, ...] | None:
    """Return the names in a folder, see ``ReadPath.names``.

    Raises:
        OSError: the folder does not exist or cannot be read.
    """
    try:
        names = os.listdir(path)
    except NotADirectoryError:
        return None
    return tuple(sorted(name for name in names if not name.startswith(PROOF_PREFIX))[:MAX_NAMES])


def read_paths(plans: Iterable[Plan]) -> tuple[ReadPath, ...]:
    """Return what the sources read from this machine's file system now. Missing folders and files are left for the run
    to report."""
    paths: dict[str, ReadPath] = {}
    for node in _nodes_of(plans):
        for path in node.source.local_paths() if isinstance(node, SourceNode) else ():
            with contextlib.suppress(OSError):
                paths[path] = ReadPath(path, f"source {node.name}", list_folder(path))
    return tuple(paths.values())


def _nodes_of(plans: Iterable[Plan]) -> Iterator[Node]:
    for plan in plans:
        yield from plan.nodes


@contextlib.contextmanager
def place_proofs(states: Iterable[tuple[Plan, StatePath, str]]) -> Iterator[DriverView]:
    """Put proofs into the folders of plans and states, and yield the driver's view; remove the proofs at the end.

    Args:
        states: plans with the folders and the ids of their states.

    Raises:
        OSError: a folder cannot be written to.
    """
    states = list(states)
    written: dict[str, WrittenFolder] = {}
    try:
        for plan, root, state in states:
            for path, what in _written_folders(plan, root):
                if path not in written and files.is_folder(files.path_of(path)):
                    written[path] = WrittenFolder(path, what, _write_proof(files.path_of(path), state))
        plans = [plan for plan, _, _ in states]
        yield DriverView(socket.gethostname(), ferryman.__version__, tuple(written.values()), read_paths(plans))
    finally:
        for each in written.values():
            with contextlib.suppress(OSError, EngineError):
                files.remove(files.path_of(each.path) / each.proof)


def _written_folders(plan: Plan, root: StatePath) -> Iterator[tuple[str, str]]:
    yield str(root), "the state"
    for node in _nodes_of([plan]):
        if isinstance(node, DestinationNode):
            for path in node.destination.local_paths():
                yield path, f"destination {node.name}"


def _write_proof(folder: StatePath, state: str) -> str:
    """Put a proof into a folder and return its name; remove proofs left by killed runs of this state."""
    files.remove_all(folder / old for old in files.list_names(folder) if old.startswith(f"{PROOF_PREFIX}{state}-"))
    name = f"{PROOF_PREFIX}{state}-{secrets.token_hex(8)}"
    files.publish(folder / name, name.encode())
    return name


# An executor's view, and its differences from the driver's.

_OTHER_FOLDER: Final = "it is another folder: is the share mounted?"


class ExecutorView(NamedTuple):
    """View of one process on an executor.

    Attributes:
        process: machine, process id and user, for messages.
        python: version of Python.
        names: path of each folder that a source reads -> names in it.
        proofs: files that it wrote for the driver to find and remove.
        differences: a sentence for each difference from the driver's view.
    """

    process: str
    names: dict[str, tuple[str, ...]]
    proofs: tuple[str, ...]
    differences: tuple[str, ...]


class TaskRefused(NamedTuple):
    """Answer of a task that was not run, because its process sees something else than the driver."""

    why: tuple[str, ...]


def inspect_process(facts: DriverView) -> ExecutorView:
    """Return what this process sees, and write a file into each folder that is written to, for the driver to find."""
    names = {}
    for each in facts.read:
        with contextlib.suppress(OSError):
            names[each.path] = list_folder(each.path) or ()
    differing = differences(facts)
    proofs = () if differing else tuple(_write_executor_proofs(facts))
    return ExecutorView(describe_process(), names, proofs, differing)


@functools.lru_cache(maxsize=16)
def differences(facts: DriverView) -> tuple[str, ...]:
    """Return a sentence for each difference from the driver's view. A process compares only once per view."""
    return tuple(_find_differences(facts))


def describe_process() -> str:
    """Return this process's machine, process id and user, for messages."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = str(os.geteuid())
    return f"{socket.gethostname()} (process {os.getpid()}, user {user})"


def _find_differences(facts: DriverView) -> Iterator[str]:
    if ferryman.__version__ != facts.version:
        yield (
            f"{describe_process()} has Ferryman {ferryman.__version__}, and the driver on {facts.host} "
            f"{facts.version}. Install the same on both."
        )
    for written in facts.written:
        if (why := _check_written(written)) is not None:
            yield _describe_difference(written.path, written.what, facts.host, why)
    for read in facts.read:
        if (why := _check_read(read)) is not None:
            yield _describe_difference(read.path, read.what, facts.host, why)


def _describe_difference(path: str, what: str, host: str, why: str) -> str:
    return (
        f"{path} ({what}) is there on {host}, and on {describe_process()} {why}. Every machine must see the same there."
    )


def _check_written(folder: WrittenFolder) -> str | None:
    """Return the reason why this is not the driver's folder; None: it is."""
    place = files.path_of(folder.path)
    try:
        return None if files.read(place / folder.proof) == folder.proof.encode() else _OTHER_FOLDER
    except FileNotFoundError:
        return _OTHER_FOLDER if files.is_folder(place) else "there is no such folder"
    except (OSError, FerrymanError) as e:
        return f"it cannot be read: {message_of(e)}"


def _check_read(read: ReadPath) -> str | None:
    """Return the reason why this cannot be what the driver reads; None: it may be. Single names may appear and
    disappear meanwhile."""
    try:
        names = list_folder(read.path)
    except FileNotFoundError:
        return "there is no such folder or file"
    except OSError as e:
        return f"it cannot be read: {message_of(e)}"
    if read.names and not names:
        return "it is empty: is the share mounted?"
    return None


def _write_executor_proofs(facts: DriverView) -> Iterator[str]:
    for folder in facts.written:
        name = f"{PROOF_PREFIX}{secrets.token_hex(16)}"
        files.publish(files.path_of(folder.path) / name, b"")
        yield f"{folder.path}/{name}"
