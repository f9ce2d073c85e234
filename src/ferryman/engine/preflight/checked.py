"""A runner whose processes are checked: one that sees something else than the driver gives its task back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from ferryman.engine.preflight.facts import NAMES, DriverView, names_in, proved, reads
from ferryman.engine.preflight.seen import Differs, ExecutorView, differences, look
from ferryman.engine.runner.base import Answer, Item, Runner
from ferryman.errors import EngineError, UsageError, message_of
from ferryman.plan import Plan
from ferryman.storage import files
from ferryman.storage.files import StatePath

_MOST: Final = 1_000
"""Tasks that look, however many slots there are."""

_ROUNDS: Final = 3
"""So often a difference between two folders must be seen that may change at any time."""

_GIVEN_BACK: Final = 4
"""So often a task is given to executors before the run stops, as often as Spark tries one that fails."""

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
    """The same of a task that gets batches of a DataFrame."""

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
        """See ``Runner.run``.

        Raises:
            EngineError: also where no executor that sees the same takes a task.
        """
        return self.run_before(task, items, lambda: None)

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """See ``Runner.run_before``."""
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
        """See ``Runner.run_frame``."""
        for _ in range(_GIVEN_BACK):
            answers: list[Any] = self._runner.run_frame(read, CheckedFrame(task, self._facts))
            if not any(isinstance(answer, Differs) for answer in answers):
                return answers
            self._hear(answers)
        raise self._stopped()

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """See ``Runner.run_ahead``."""
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
    """Those of the executors' files that are not there for the driver. All are removed."""
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
