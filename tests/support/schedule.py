"""Which process runs which test files, and when: the longest first, so that no process waits for another at the end.

pytest-xdist by itself begins with the files that have the most tests. The longest files have few: a Spark test takes
as long as a hundred others.
"""

from __future__ import annotations

from fnmatch import fnmatch

import pytest
from xdist.scheduler import LoadFileScheduling

ALONE = (
    "tests/engine/test_yarn_spark.py",
    "tests/engine/test_twins_spark.py",
    "tests/engine/test_preflight_spark.py",
    "tests/engine/transform/test_memory_spark.py",
    "tests/engine/transform/test_killers_spark.py",
    "tests/engine/runner/test_imports_spark.py",
)
"""Files that start a Spark of their own for each test."""

TOGETHER = {
    "spark": ("tests/engine/*spark.py", "tests/engine/runner/test_spark_runner.py", "tests/docs/test_streams.py"),
    "search": (
        "tests/crash/test_servers.py",
        "tests/crash/test_sources_killed.py",
        "tests/destinations/test_*opensearch*.py",
        "tests/destinations/test_*elasticsearch*.py",
        "tests/destinations/test_front_servers.py",
        "tests/destinations/test_solr.py",
        "tests/destinations/test_vectors_search.py",
        "tests/destinations/test_verify_servers.py",
        "tests/docs/test_connectors.py",
        "tests/docs/test_examples.py",
        "tests/docs/test_move_an_index.py",
        "tests/sources/test_indexes.py",
    ),
    "code": (
        "tests/cli/test_commands_in_messages.py",
        "tests/test_docstrings.py",
        "tests/test_messages.py",
        "tests/test_names.py",
        "tests/test_structure.py",
    ),
    "kafka": ("tests/kafka/*.py",),
    "cassandra": (
        "tests/mirror/*.py",
        "tests/cli/test_ledger.py",
        "tests/crash/test_servers_cassandra.py",
        "tests/destinations/test_cassandra.py",
        "tests/docs/test_cassandra.py",
    ),
    "mysql": (
        "tests/crash/test_servers_mysql.py",
        "tests/destinations/test_*mysql.py",
        "tests/engine/deliver/test_databases.py",
    ),
}
"""Files for one process: each process that needs a session of Spark, OpenSearch, Solr, Kafka or Cassandra starts its
own, which takes a core up to 20 s; and each that looks at the package's code parses it, which takes 5 s."""

LONGEST = (
    *ALONE,
    *(pattern for patterns in TOGETHER.values() for pattern in patterns),
    *("tests/*spark*.py", "tests/crash/*.py", "tests/docs/test_how_to.py", "tests/engine/*.py"),
)
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
        return _group(file) or file


def _group(file: str) -> str | None:
    """The name of the files that it runs with, if there are any."""
    if file in ALONE:
        return None
    return next((name for name, those in TOGETHER.items() if any(fnmatch(file, pattern) for pattern in those)), None)


def _turn(file: str) -> int:
    return next((n for n, pattern in enumerate(LONGEST) if fnmatch(file, pattern)), len(LONGEST))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
