"""fsck: read every file of a state and verify it; count again what was kept as counted. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ferryman.account.questions import last_entries, miscounted
from ferryman.errors import StateDamaged, StateForeign, UsageError
from ferryman.plan import Plan
from ferryman.state.damage import sealed_files
from ferryman.state.identity import plan_of
from ferryman.state.layout import COUNTED, READERS, TABLES
from ferryman.state.state import SETTLED, WAVE, State, state_root
from ferryman.storage import files, parquet, seals
from ferryman.storage.files import StatePath
from ferryman.storage.folder import told_of_state
from ferryman.storage.lock import Readers
from ferryman.storage.tables import Table


class Finding(NamedTuple):
    """A damaged or missing file."""

    path: str
    what: str
    remedy: str


_LOOKS: Final = 5
"""How often a file that looks damaged is read beside a driver that commits all the time."""

_REMOVE = "remove this file: everything is then counted again"
_COPY = "restore this file from a copy of the state directory"


@told_of_state
def fsck(plan: Plan, *, state: str | StatePath | None = None) -> list[Finding]:
    """Verify every file of the plan's state: what is damaged or missing, and what can be done; [] if all is well."""
    return check(state_root(plan, state))


def check(root: StatePath) -> list[Finding]:
    """Everything that is wrong with a state, all of it and not the first only; [] if all is well.

    Raises:
        UsageError: there is no state here.
    """
    if not any(files.exists(root / name) or files.is_folder(root / name) for name in ("state.json", *TABLES)):
        raise UsageError(f"{root}: there is no state here. Give the --state that the plan ran with.")
    try:
        with Readers(root / READERS).reading():
            found = _look(root)
            for _ in range(_LOOKS - 1):  # a run that goes on meanwhile may have changed what we looked at
                if not found:
                    break
                before = last_entries(root)
                again = _look(root)
                found = [f for f in found if f in again]
                if last_entries(root) == before:
                    break
    except StateForeign as e:
        return [Finding(str(root), str(e), "use the Ferryman and the plan that wrote it")]
    return found


def _look(root: StatePath) -> list[Finding]:
    found: dict[str, Finding] = {}
    for problem in _problems(root):
        found.setdefault(problem.path, Finding(problem.path, problem.what, _COPY))
    path = root / COUNTED
    try:
        if files.exists(path):
            seals.unseal(path)
        if not found and miscounted(root, plan_of(root)):
            found[str(path)] = Finding(str(path), "it does not match the tables, counted again", _REMOVE)
    except StateDamaged as e:
        found[e.path] = Finding(e.path, e.what, _REMOVE if e.path == str(path) else _COPY)
    return list(found.values())


def _problems(root: StatePath) -> Iterator[StateDamaged]:
    try:
        plan = plan_of(root)
    except StateDamaged:
        plan = Plan(root.name)  # enough to look at the files
    state = State(root, plan)
    yield from state.problems()
    for table in state.tables:
        yield from _problems_of_data(state, table)
    for path in sealed_files(state):
        try:
            seals.unseal(path)
        except StateDamaged as e:
            yield e


def _problems_of_data(state: State, table: Table) -> Iterator[StateDamaged]:
    """Live files and those that are named for the table; where no log says which these are, all there are."""
    try:
        table.log.verify()
        table.load([WAVE, SETTLED])
        names = [f.path for f in (*table.files.values(), *state.staged(table))]
    except (StateDamaged, KeyError) as e:  # KeyError: the outbox, which names files for the others, was not loaded
        if isinstance(e, StateDamaged):
            yield e
        names = [n for n in files.below(table.folder) if n.endswith(".parquet") and not n.startswith("_")]
    for name in names:
        try:
            what = parquet.verify(files.local(table.folder / name))
        except FileNotFoundError:
            what = "the file is missing"
        if what is not None:
            yield StateDamaged(str(table.folder / name), what)
