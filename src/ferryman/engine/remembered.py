"""Upkeep of what the steps of a plan remember, by its driver: between waves, with the counts at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from ferryman.errors import EngineError, StateFolderError, plain_text
from ferryman.plan import StepNode, remembering_steps
from ferryman.plan.structure import is_version, structure
from ferryman.remembered.log import LogName
from ferryman.remembered.upkeep import FORGET, StoreKeeper, store_of
from ferryman.state.state import State
from ferryman.storage import files

_T = TypeVar("_T")

_NOTHING: Final[Counter[str]] = Counter()

_CODE: Final = "code"
"""Folder of a store: the hash of the code of the step that gave the answers of a version."""


class _Store(NamedTuple):
    """A step that remembers, with its store."""

    step: StepNode
    keeper: StoreKeeper


class AnswerUpkeep:
    """Maintains what the steps of a state's plan remember.

    Args:
        report: called with each message for the user.
    """

    def __init__(self, state: State, report: Callable[[str], None]) -> None:
        self._state = state
        self._report = report
        self._stores = [
            _Store(step, store_of(step.name, step.remember, state.root.parent))
            for step in remembering_steps(state.plan.nodes)
        ]
        self._counts: dict[str, Counter[str]] = {}

    def begin(self) -> None:
        """Report steps whose code has changed while the version of their answers has not; begin to count."""
        if not self._stores:
            return
        records = structure(self._state.plan)
        for step, keeper in self._stores:
            record = records[step.name]
            facts = {name: fact for name, fact in (record.reaches or {}).items() if not is_version(name)}
            self._compare_code(step, keeper, f"{record.code} {sorted(facts.items())}")
            before = self._try(partial(keeper.counts_of_logs, self._is_own), _NOTHING)
            self._counts[step.name] = Counter({name: -number for name, number in before.items()})

    def run(self, *, at_end: bool = False) -> None:
        """Move the logs of settled waves into the tables, if they are many; at the end of a run in any case."""
        for step, keeper in self._stores:
            assert step.remember is not None
            fold = partial(
                keeper.fold, self._is_settled, own=self._is_own, max_bytes=step.remember.max_bytes, at_once=at_end
            )
            self._counts.setdefault(step.name, Counter()).update(self._try(fold, _NOTHING))

    def finish(self) -> dict[str, dict[str, float]]:
        """Return step -> what became of its inputs in this run, after the last wave."""
        self.run(at_end=True)
        found = {}
        for step, keeper in self._stores:
            counts = Counter(self._counts.get(step.name, Counter()))
            counts.update(self._try(partial(keeper.counts_of_logs, self._is_own), _NOTHING))
            size = self._try(keeper.size, 0)
            found[step.name] = {
                "calls": counts["calls"],
                "hits": counts["hits"],
                "in_doubt": counts["in_doubt"],
                "spent": counts["spent"] / 1e6,
                "saved": counts["saved"] / 1e6,
                "bytes": size,
            }
        return found

    def _is_own(self, name: LogName) -> bool:
        return name.plan == self._state.root.name

    def _is_settled(self, name: LogName) -> bool:
        """Return whether nobody needs a log in its place: its wave is settled, or its state is gone."""
        if self._is_own(name):
            return name.wave <= self._state.settled
        return name.plan == FORGET or not files.is_folder(self._state.root.parent / name.plan)

    def _compare_code(self, step: StepNode, keeper: StoreKeeper, code: str) -> None:
        assert step.remember is not None
        digest = blake2b(code.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        version = blake2b(step.remember.version.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        path = keeper.folder / _CODE / version
        found = self._try(lambda: files.read_version(path), None)
        if found is not None and found[0].decode("ascii", "replace") == digest:
            return
        if found is not None:
            self._report(
                f"step {step.name}: its code has changed, but not the version of its remembered answers "
                f"({step.remember.version!r}): it is not called again for inputs that have an answer. If the new code "
                "answers differently, change the version."
            )

        def record() -> None:
            files.make_folder(path.parent)
            files.replace(path, digest.encode())

        self._try(record, None)

    def _try(self, action: Callable[[], _T], default: _T) -> _T:
        """Return what an action on a store returns; report its error: the run can go on without."""
        try:
            return action()
        except (OSError, EngineError, StateFolderError) as e:
            self._report(f"what steps remember could not be maintained: {plain_text(e)}")
            return default
