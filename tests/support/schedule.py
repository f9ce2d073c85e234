"""Which process runs which test files, and when: the longest first, so that no process waits for another at the end.

pytest-xdist by itself begins with the files that have the most tests. The longest files have few: a Spark test takes
as long as a hundred others.
"""

from __future__ import annotations

from fnmatch import fnmatch

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = (
    "tests/crash/test_servers.py",
    "tests/destinations/test_*opensearch*.py",
    "tests/destinations/test_solr.py",
    "tests/docs/test_connectors.py",
    "tests/docs/test_examples.py",
    "tests/engine/*spark.py",
)
"""Files for one process: each process that needs OpenSearch, Solr or a session of Spark starts its own, which takes a
core up to 20 s."""

LONGEST = (*TOGETHER, "tests/*spark*.py", "tests/crash/*.py", "tests/docs/test_how_to.py", "tests/engine/*.py")
"""Files that run first, in this order; then the others, by their names. ``*`` stands for folders, too."""


def in_turn(items: list[pytest.Item]) -> None:
    """Sort the tests by file: see ``LONGEST``."""
    turns = {path: _turn(path) for path in {_file(item.nodeid) for item in items}}
    items.sort(key=lambda item: turns[_file(item.nodeid)])


class LongestFirst(LoadFileScheduling):
    """Hands out whole files in the order of the tests: see ``in_turn``."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return "together" if any(fnmatch(file, pattern) for pattern in TOGETHER) else file


def _turn(file: str) -> int:
    return next((n for n, pattern in enumerate(LONGEST) if fnmatch(file, pattern)), len(LONGEST))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
