"""Servers for the tests that need a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.servers.registry import Running
from tests.servers.server import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], Server]]:
    """``server("opensearch")``: a running server of this worker's own. See the docstring of tests/servers."""
    with Running() as running:
        yield running.get


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-quorum", action="store_true", help="also test three ZooKeeper servers that lose their leader"
    )
