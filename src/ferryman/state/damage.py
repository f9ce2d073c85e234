"""What of a state is looked at for damage beside the logs of its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ferryman.errors import StateDamaged
from ferryman.state.identity import IDENTITY
from ferryman.state.layout import MIGRATED, MIGRATION, PASSED
from ferryman.storage import files
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import verify
from ferryman.storage.tables import Table

if TYPE_CHECKING:
    from ferryman.state.state import State


def sealed_files(state: State) -> list[StatePath]:
    """Commands that wait, the journal, and notes of what happened to the state."""
    if not state.exists:
        return []
    there = files.sizes(state.root)
    folders = [state.commands, *(state.journal.folder / str(number) for number in state.journal.passes())]
    found = [state.root / name for name in (MIGRATED, MIGRATION, PASSED) if name in there]
    found += [folder / name for folder in folders for name in files.sizes(folder)]
    return sorted((path for path in found if not path.name.startswith(TEMPORARY)), key=str)


def damaged_data(state: State) -> StateDamaged | None:
    """The first data file that is not what was written, all of them read: for a query that failed over one."""
    for table in state.tables:
        for file in (*table.files.values(), *state.staged(table)):
            try:
                what = verify(table.path(file.path))
            except StateDamaged as e:
                return e
            if what is not None:
                return StateDamaged(str(table.folder / file.path), what)
    return None


def refuse_headless(root: StatePath, tables: Iterable[Table]) -> None:
    """
    Raises:
        StateDamaged: there is no state.json, but tables with something in them, or what a run with --from-version has
            begun, and may go on with.
    """
    begun = files.exists(root / MIGRATION)
    if begun or any(any(table.log.versions()) for table in tables):  # more than the making of an empty table
        what = "this state was only begun: run --from-version again" if begun else "the tables are not empty"
        raise StateDamaged(str(root / IDENTITY), f"the file is missing, and {what}")
