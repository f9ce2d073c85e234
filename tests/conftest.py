"""Servers for the tests that need a real one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.servers.registry import Running
from tests.servers.server import Server

# Spark starts in half the time: what the second compiler makes faster, no test does long enough.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No test may depend on the machine's speed. In CI the same examples are drawn each time.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], Server]]:
    """``server("opensearch")``: a running server of this worker's own. See the docstring of tests/servers."""
    with Running() as running:
        yield running.get


PROTOCOL = ("crash", "engine", "ledger", "model", "state")
"""Folders of tests that run whole waves: the longest but for those with Spark or a server."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what talks to a server; with ``--sample N`` leave out all but every Nth test of ``PROTOCOL``."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
    every = config.getoption("--sample")
    if every > 1:
        left_out = [i for i in items if _is_of_protocol(i) and zlib.crc32(i.nodeid.encode()) % every]
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [i for i in items if id(i) not in gone]


def _is_of_protocol(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] in PROTOCOL


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample", type=int, default=1, metavar="N", help="run one in N of the tests that run whole waves"
    )
    parser.addoption(
        "--run-quorum", action="store_true", help="also test three ZooKeeper servers that lose their leader"
    )
