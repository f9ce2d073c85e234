"""fsck: read every file of a state and verify it. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ferryman.errors import StateDamaged, StateError, UsageError
from ferryman.ledger.state import State
from ferryman.storage import files, parquet


class Finding(NamedTuple):
    """A damaged or missing file."""

    path: str
    what: str
    remedy: str


_COPY = "restore this file from a copy of the state directory"


def fsck(root: Path) -> list[Finding]:
    """Everything that is wrong with a state, all of it and not the first only; [] if all is well.

    Raises:
        UsageError: there is no state here.
    """
    if not (root / "state.json").exists():
        raise UsageError(f"{root}: there is no state here. Give the --state that the plan ran with.")
    found: list[Finding] = []
    try:
        state = State(root, State.plan_of(root))
        state.verify()
    except StateDamaged as e:
        found.append(Finding(e.path, e.what, _COPY))
    except StateError as e:
        return [Finding(str(root), str(e), "use the Ferryman and the plan that wrote it")]
    if found and found[0].path == str(root / "state.json"):
        return found
    for table in state.tables:
        try:
            table.log.verify()
            table.load()
        except StateDamaged as e:
            if not any(f.path == e.path for f in found):
                found.append(Finding(e.path, e.what, _COPY))
            continue
        for file in table.files.values():
            path = table.folder / file.path
            if (what := parquet.verify(path)) is not None:
                found.append(Finding(str(path), what, _COPY))
    for folder in (state.commands, *(state.journal.folder / str(p) for p in state.journal.passes())):
        found += _sealed(folder)
    return found


def _sealed(folder: Path) -> list[Finding]:
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(files.TEMPORARY):
            try:
                files.unseal(path)
            except StateDamaged as e:
                found.append(Finding(e.path, e.what, _COPY))
    return found
