"""Servers for the tests that need a real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-quorum", action="store_true", help="also test three ZooKeeper servers that lose their leader"
    )
