"""fsck: read every file of a state and verify it; count again what was kept as counted. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ferryman.account.questions import last_entries, miscounted
from ferryman.errors import StateDamaged, StateForeign, UsageError
from ferryman.plan import Plan
from ferryman.state.identity import plan_of
from ferryman.state.layout import COUNTED, READERS, TABLES
from ferryman.state.state import SETTLED, WAVE, State, state_root
from ferryman.storage import files, parquet
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


def fsck(plan: Plan, *, state: str | Path | None = None) -> list[Finding]:
    """Verify every file of the plan's state: what is damaged or missing, and what can be done; [] if all is well."""
    return check(state_root(plan, state))


def check(root: Path) -> list[Finding]:
    """Everything that is wrong with a state, all of it and not the first only; [] if all is well.

    Raises:
        UsageError: there is no state here.
    """
    if not any((root / name).exists() for name in ("state.json", *TABLES)):
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


def _look(root: Path) -> list[Finding]:
    found: dict[str, Finding] = {}
    for problem in _problems(root):
        found.setdefault(problem.path, Finding(problem.path, problem.what, _COPY))
    path = root / COUNTED
    try:
        if path.exists():
            files.unseal(path)
        if not found and miscounted(root, plan_of(root)):
            found[str(path)] = Finding(str(path), "it does not match the tables, counted again", _REMOVE)
    except StateDamaged as e:
        found[e.path] = Finding(e.path, e.what, _REMOVE if e.path == str(path) else _COPY)
    return list(found.values())


def _problems(root: Path) -> Iterator[StateDamaged]:
    try:
        plan = plan_of(root)
    except StateDamaged:
        plan = Plan(root.name)  # enough to look at the files
    state = State(root, plan)
    yield from state.problems()
    for table in state.tables:
        yield from _problems_of_data(state, table)
    for path in state.notes_on_disk():
        try:
            files.unseal(path)
        except StateDamaged as e:
            yield e


def _problems_of_data(state: State, table: Table) -> Iterator[StateDamaged]:
    """Live files and those that are named for the table; where no log says which these are, all there are."""
    try:
        table.log.verify()
        table.load([WAVE, SETTLED])
        paths = [table.folder / f.path for f in (*table.files.values(), *state.staged(table))]
    except (StateDamaged, KeyError) as e:  # KeyError: the outbox, which names files for the others, was not loaded
        if isinstance(e, StateDamaged):
            yield e
        paths = [p for p in table.folder.rglob("*.parquet") if not p.relative_to(table.folder).parts[0].startswith("_")]
    for path in paths:
        if (what := parquet.verify(path)) is not None:
            yield StateDamaged(str(path), what)
