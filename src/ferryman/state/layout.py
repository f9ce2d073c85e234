"""What lies in a state's folder, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ferryman.storage import disk, files
from ferryman.storage.files import StatePath

PLAN: Final = "plan.json"
"""What the plan was when it last ran."""

MIGRATED: Final = "migrated.json"
"""Which newer version of the plan continues from this state."""
MIGRATION: Final = "migration.json"
"""The state continues from an older version's, and its first wave is still to come; see ``engine.migration``."""

NOTIFIED: Final = "notified.json"
"""What each target of ``--notify`` was told."""

PASSED: Final = "passed.json"
"""What destinations have not had of logs; see ``state.passed``."""

COUNTED: Final = "counted.json"
"""What ``status`` says of a large state; see ``counted``."""

READERS: Final = "readers"
"""Locked by whoever reads just now; see ``storage.lock.Readers``."""

ONCE: Final = "once"
"""In a driver's scratch folder: where tasks begin that run once at most, a folder for each wave."""
OPEN: Final = "open"
"""A file of such a folder: as long as it is there, tasks may begin."""

FOLDERS: Final = ("outbox", "documents", "ledger", "journal", "journal/closed", "commands", "staging")
TABLES: Final = FOLDERS[:3]


def strange(root: StatePath) -> Iterator[str]:
    """What is here and is not a part of a state in the making, nor half written."""
    expected = {
        "lock",
        PLAN,
        READERS,
        *FOLDERS,
        *(f"{t}/_delta_log" for t in TABLES),
        *(f"{t}/_delta_log/{0:020d}.json" for t in TABLES),
    }
    for name in files.below(root):
        folder, _, last = name.rpartition("/")
        half = last.startswith(disk.TEMPORARY) or (folder.endswith("_delta_log") and "#" in last)
        if not half and name not in expected:
            yield last


def remove_scratch(folder: StatePath, part: str = "") -> None:
    """Remove a driver's scratch folder, or a part of it. First of all no task begins any more that may run once at
    most: what tells that it has begun goes, too."""
    once = folder / ONCE
    files.remove_all(once / wave / OPEN for wave in files.names(once))
    files.remove_folder(folder / part if part else folder)
