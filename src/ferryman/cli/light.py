"""A quick start for verbs that only ask the ledger."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

ASKING = {
    **dict.fromkeys(("status", "deliveries", "history", "retry", "fsck"), "ferryman.account.questions"),
    "queue": "ferryman.queues",
}
"""Verbs that need no Spark -> what they need."""


class _NoPandas(MetaPathFinder):
    """Finds pandas nowhere."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is not needed here, and takes a second to load", name=name)


def load_ledger(args: list[str]) -> None:
    """If this is one of those verbs, import the ledger now, and pandas not.

    pyarrow imports pandas on its way wherever it is installed, which is half of all the time that `status` takes. What
    it once failed to import it never looks for again: so this is for a process that does nothing else. A plan file may
    import pandas itself, as ever.
    """
    if args[:1] and args[0] in ASKING and "--help" not in args:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module(ASKING[args[0]])
        finally:
            sys.meta_path.remove(finder)
