"""Spark's Python daemon on this machine, which forks the workers: PySpark's own, from the installed package.

Spark puts the zip of PySpark inside the package before the package itself. Modules from a zip have no bytecode, so each
worker compiled all that it loads of PySpark, which took most of a second.

Nothing else is loaded here. A process that forks must have no threads, and Arrow starts some when it is imported.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_ZIPS: Final = ("pyspark.zip", "py4j-")


def without_zips(path: list[str]) -> list[str]:
    """Return the import path without PySpark's zips."""
    return [each for each in path if not (each.endswith(".zip") and Path(each).name.startswith(_ZIPS))]


def main() -> None:
    """Run the daemon until Spark ends it."""
    original = list(sys.path)
    sys.path[:] = without_zips(original)
    if find_spec("pyspark") is None or find_spec("py4j") is None:  # there are only the zips
        sys.path[:] = original

    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
