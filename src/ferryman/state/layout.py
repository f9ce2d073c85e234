"""What lies in a state's folder, by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferryman.storage import files

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

FOLDERS: Final = ("outbox", "documents", "ledger", "journal", "journal/closed", "commands", "staging")
TABLES: Final = FOLDERS[:3]


def strange(root: Path) -> Iterator[str]:
    """What is here and is not a part of a state in the making, nor half written."""
    expected = {
        "lock",
        PLAN,
        READERS,
        *FOLDERS,
        *(f"{t}/_delta_log" for t in TABLES),
        *(f"{t}/_delta_log/{0:020d}.json" for t in TABLES),
    }
    for path in root.rglob("*") if root.is_dir() else [root]:
        half = path.name.startswith(files.TEMPORARY) or (path.parent.name == "_delta_log" and "#" in path.name)
        if not half and str(path.relative_to(root)) not in expected:
            yield path.name
