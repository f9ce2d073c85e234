"""A runner whose processes are checked: one that sees something else than the driver gives its task back."""

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
from typing import Any, Final, NamedTuple

import ferryman
from ferryman.engine.runner.base import Answer, Item, Runner
from ferryman.errors import EngineError, FerrymanError, UsageError, message_of
from ferryman.plan import DestinationNode, Node, Plan, SourceNode
from ferryman.storage import files
from ferryman.storage.files import StatePath

_MOST: Final = 1_000
"""Tasks that look, however many slots there are."""

_ROUNDS: Final = 3
"""Times that a difference between two folders must be seen if it may change at any moment."""

_GIVEN_BACK: Final = 4
"""Times that a task is given to executors before the run stops; Spark tries a failing task as often."""

_ANYWAY: Final = "If this is as it should be, run with --no-preflight."


@dataclass(frozen=True, slots=True)
class Checked:
    """Task: the same, unless this process sees something else than the driver."""

    task: Callable[..., Any]
    facts: DriverView

    def __call__(self, item: Any) -> Any:
        found = differences(self.facts)
        return Differs(found) if found else self.task(item)


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """A checked task that gets batches of a DataFrame."""

    task: Callable[..., Any]
    facts: DriverView

    def __call__(self, partition: int, batches: Iterator[Any]) -> Any:
        found = differences(self.facts)
        if not found:
            return self.task(partition, batches)
        for _ in batches:  # Spark wants its input read to the end
            pass
        return Differs(found)


@dataclass(frozen=True, slots=True)
class Look:
    """Task: what does this process see?"""

    facts: DriverView

    def __call__(self, _: int) -> ExecutorView:
        return look(self.facts)


class CheckedRunner(Runner):
    """Runs tasks in processes that see what the driver sees.

    Args:
        tell: told once of each process that does not.
    """

    def __init__(self, runner: Runner, facts: DriverView, tell: Callable[[str], None]) -> None:
        self._runner = runner
        self._facts = facts
        self._tell = tell
        self._told: set[str] = set()

    @property
    def slots(self) -> int:
        return self._runner.slots

    @property
    def on_one_machine(self) -> bool:
        return False

    @property
    def concurrent(self) -> bool:
        return self._runner.concurrent

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the checked task for each item, see ``Runner.run``.

        Raises:
            EngineError: also where no executor that sees the same takes a task.
        """
        return self.run_before(task, items, lambda: None)

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """Run the checked task and call ``then``, see ``Runner.run_before``."""
        answers: dict[int, Answer] = {}
        left = list(range(len(items)))
        for turn in range(_GIVEN_BACK):
            again = (lambda: None) if turn else then
            given: list[Any] = self._runner.run_before(Checked(task, self._facts), [items[n] for n in left], again)
            answers |= {n: answer for n, answer in zip(left, given, strict=True) if not isinstance(answer, Differs)}
            self._hear(given)
            left = [n for n in left if n not in answers]
            if not left:
                return [answers[n] for n in range(len(items))]
        raise self._stopped()

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the checked task for each partition of a frame, see ``Runner.run_frame``."""
        for _ in range(_GIVEN_BACK):
            answers: list[Any] = self._runner.run_frame(read, CheckedFrame(task, self._facts))
            if not any(isinstance(answer, Differs) for answer in answers):
                return answers
            self._hear(answers)
        raise self._stopped()

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run work ahead, see ``Runner.run_ahead``."""
        return self._runner.run_ahead(work)

    def _hear(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            for why in answer.why if isinstance(answer, Differs) else ():
                if why not in self._told:
                    self._told.add(why)
                    self._tell(f"{why} It was given no task.")

    def _stopped(self) -> EngineError:
        return EngineError(f"no executor that sees the same took a task: {' '.join(sorted(self._told)[:3])} {_ANYWAY}")


@contextlib.contextmanager
def checked(
    runner: Runner, states: Sequence[tuple[Plan, StatePath, str]], tell: Callable[[str], None]
) -> Iterator[CheckedRunner]:
    """A runner whose executors have been looked at; each that comes later is looked at, too.

    Args:
        states: plans with the folders and the ids of their states.
        tell: told of executors that come later and see something else.

    Raises:
        UsageError: an executor sees something else. Nothing was read or written but the proofs, which are gone.
    """
    with proved(states) as facts:
        _look_around(runner, facts, [plan for plan, _, _ in states])
        yield CheckedRunner(runner, facts.without_names(), tell)


def _look_around(runner: Runner, facts: DriverView, plans: Sequence[Plan]) -> None:
    missed: set[str] | None = None
    for _ in range(_ROUNDS):
        seen = runner.run(Look(facts), list(range(min(_MOST, max(2, runner.slots)))))
        proofs = [proof for each in seen for proof in each.proofs]
        wrong = [why for each in seen for why in each.differences]
        wrong += [f"{proof} was written by an executor, and is not there on {facts.host}." for proof in _lost(proofs)]
        if wrong:
            raise UsageError(f"{' '.join(dict.fromkeys(wrong))} Nothing was read. {_ANYWAY}")
        found = set(_other_names(facts, seen))
        missed = found if missed is None else missed & found
        if not missed:
            return
        facts = facts._replace(read=reads(plans))
    raise UsageError(f"{' '.join(sorted(missed or ()))} Nothing was read. {_ANYWAY}")


def _lost(proofs: Sequence[str]) -> Iterator[str]:
    """Yield the executors' files that the driver does not see, and remove all."""
    for proof in proofs:
        path = files.path_of(proof)
        if not files.exists(path):
            yield proof
        files.remove(path)


def _other_names(facts: DriverView, seen: Sequence[ExecutorView]) -> Iterator[str]:
    """Folders of sources in which an executor does not see what the driver saw before and sees now."""
    for read in facts.read:
        if read.names is None:
            continue
        try:
            now = names_in(read.path) or ()
        except OSError as e:
            yield f"{read.path} ({read.what}) cannot be read any more: {message_of(e)}."
            continue
        for each in seen:
            for missing, where, but in _compared(read.names, now, each.names.get(read.path, ()), facts.host, each):
                yield (
                    f"{read.path} ({read.what}) is not the same on {facts.host} and on {each.process.split()[0]}: "
                    f"{missing} is on {where} and not on {but}. Is the share mounted?"
                )


def _compared(
    before: Sequence[str], now: Sequence[str], theirs: Sequence[str], host: str, seen: ExecutorView
) -> Iterator[tuple[str, str, str]]:
    """(name, machine that sees it, machine that does not): one that the driver saw and sees, one that it never did."""
    cut = [names[-1] for names in (before, now, theirs) if len(names) == NAMES]
    kept, ours, others = (
        {name for name in names if not cut or name <= min(cut)}
        for names in ({*before} & {*now}, {*before, *now}, theirs)
    )
    machine = seen.process.split()[0]
    if missing := kept - others:
        yield min(missing), host, machine
    if more := others - ours:
        yield min(more), machine, host


# What every machine must see as the driver sees it: folders that are written to, and what sources read.
#
# A folder that is written to is proved by a hidden file with a random text in it, which lies there as long as the run
# does. What a source reads is never written to: its names are compared.

PROOF: Final = ".ferryman-preflight-"
"""How the hidden files are called; then the id of the state, and a random text."""

NAMES: Final = 1_000
"""Names of a folder that are compared, the first ones in their order."""


class Written(NamedTuple):
    """A folder that is written to from every machine, or the URL of one in an object store."""

    path: str
    what: str
    """For messages: ``the state``."""
    proof: str
    """Name of the file that proves it, and what is in it."""


class Read(NamedTuple):
    """A folder, or a file, that a source reads on every machine."""

    path: str
    what: str
    names: tuple[str, ...] | None
    """The driver sees these in it, no more than ``NAMES``, sorted; None: it is a file."""


class DriverView(NamedTuple):
    """Facts that the driver knows; sent with every task."""

    host: str
    version: str
    """Version of Ferryman."""
    written: tuple[Written, ...]
    read: tuple[Read, ...]

    def without_names(self) -> DriverView:
        """Return the facts for processes that start later: names change meanwhile, so only whether there is one
        counts."""
        return self._replace(read=tuple(each._replace(names=each.names and each.names[:1]) for each in self.read))


def names_in(path: str) -> tuple[str, ...] | None:
    """Names in a folder, see ``Read.names``.

    Raises:
        OSError: it is not there, or may not be read.
    """
    try:
        found = os.listdir(path)
    except NotADirectoryError:
        return None
    return tuple(sorted(name for name in found if not name.startswith(PROOF))[:NAMES])


def reads(plans: Iterable[Plan]) -> tuple[Read, ...]:
    """Return what the sources read on this machine's file system now. What is missing is left for the run to report."""
    found: dict[str, Read] = {}
    for node in _nodes(plans):
        for path in node.source.local_paths() if isinstance(node, SourceNode) else ():
            with contextlib.suppress(OSError):
                found[path] = Read(path, f"source {node.name}", names_in(path))
    return tuple(found.values())


def _nodes(plans: Iterable[Plan]) -> Iterator[Node]:
    for plan in plans:
        yield from plan.nodes


@contextlib.contextmanager
def proved(states: Iterable[tuple[Plan, StatePath, str]]) -> Iterator[DriverView]:
    """The facts of plans with their states' folders and ids. Meanwhile the proofs lie in the folders.

    Raises:
        OSError: a folder cannot be written to.
    """
    states = list(states)
    written: dict[str, Written] = {}
    try:
        for plan, root, state in states:
            for path, what in _folders(plan, root):
                if path not in written and files.is_folder(files.path_of(path)):
                    written[path] = Written(path, what, _prove(files.path_of(path), state))
        plans = [plan for plan, _, _ in states]
        yield DriverView(socket.gethostname(), ferryman.__version__, tuple(written.values()), reads(plans))
    finally:
        for each in written.values():
            with contextlib.suppress(OSError, EngineError):
                files.remove(files.path_of(each.path) / each.proof)


def _folders(plan: Plan, root: StatePath) -> Iterator[tuple[str, str]]:
    yield str(root), "the state"
    for node in _nodes([plan]):
        if isinstance(node, DestinationNode):
            for path in node.destination.local_paths():
                yield path, f"destination {node.name}"


def _prove(folder: StatePath, state: str) -> str:
    """Put a proof there; those of earlier runs of this state, which were killed, go."""
    files.remove_all(folder / old for old in files.list_names(folder) if old.startswith(f"{PROOF}{state}-"))
    name = f"{PROOF}{state}-{secrets.token_hex(8)}"
    files.publish(folder / name, name.encode())
    return name


# What a process on an executor sees, and what of it differs from what the driver knows.

_OTHER: Final = "it is another folder: is the share mounted?"


class ExecutorView(NamedTuple):
    """One process, and what it sees.

    Attributes:
        names: of the folders that sources read, path -> names.
        proofs: files that it has made for the driver to find, and to remove.
        differences: what is not as the driver knows it, a sentence each.
    """

    process: str
    names: dict[str, tuple[str, ...]]
    proofs: tuple[str, ...]
    differences: tuple[str, ...]


class Differs(NamedTuple):
    """Instead of an answer: the task was not run, for this process sees something else than the driver."""

    why: tuple[str, ...]


def look(facts: DriverView) -> ExecutorView:
    """Return what this process sees. It leaves a file in each folder that is written to, for the driver to find."""
    names = {}
    for each in facts.read:
        with contextlib.suppress(OSError):
            names[each.path] = names_in(each.path) or ()
    found = differences(facts)
    return ExecutorView(process(), names, () if found else tuple(_proofs(facts)), found)


@functools.lru_cache(maxsize=16)
def differences(facts: DriverView) -> tuple[str, ...]:
    """Return the differences to the driver's facts. A process compares once."""
    return tuple(_differences(facts))


def process() -> str:
    """This process, for messages: machine, number, user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.geteuid())
    return f"{socket.gethostname()} (process {os.getpid()}, user {user})"


def _differences(facts: DriverView) -> Iterator[str]:
    if ferryman.__version__ != facts.version:
        yield (
            f"{process()} has Ferryman {ferryman.__version__}, and the driver on {facts.host} {facts.version}. "
            "Install the same on both."
        )
    for written in facts.written:
        if (why := _unlike(written)) is not None:
            yield _differs(written.path, written.what, facts.host, why)
    for read in facts.read:
        if (why := _missing(read)) is not None:
            yield _differs(read.path, read.what, facts.host, why)


def _differs(path: str, what: str, host: str, why: str) -> str:
    return f"{path} ({what}) is there on {host}, and on {process()} {why}. Every machine must see the same there."


def _unlike(folder: Written) -> str | None:
    """Why this is not the driver's folder; None: it is."""
    place = files.path_of(folder.path)
    try:
        return None if files.read(place / folder.proof) == folder.proof.encode() else _OTHER
    except FileNotFoundError:
        return _OTHER if files.is_folder(place) else "there is no such folder"
    except (OSError, FerrymanError) as e:
        return f"it cannot be read: {message_of(e)}"


def _missing(read: Read) -> str | None:
    """Why this cannot be what the driver reads; None: it may be. What comes and goes meanwhile is nothing."""
    try:
        names = names_in(read.path)
    except FileNotFoundError:
        return "there is no such folder or file"
    except OSError as e:
        return f"it cannot be read: {message_of(e)}"
    if read.names and not names:
        return "it is empty: is the share mounted?"
    return None


def _proofs(facts: DriverView) -> Iterator[str]:
    for folder in facts.written:
        name = f"{PROOF}{secrets.token_hex(16)}"
        files.publish(files.path_of(folder.path) / name, b"")
        yield f"{folder.path}/{name}"
