"""The page on ZooKeeper is true: its commands are run against a real server, and what they show is what comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.servers.zookeeper import ZooKeeperServer
from tests.support.page import HOW_TO, QuickShell


def test_run_on_zookeeper(place: Path, server: Callable[[str], ZooKeeperServer]) -> None:
    """At the port that the server has; all else is as the page says."""
    with QuickShell(place, {"127.0.0.1:2181": f"127.0.0.1:{server('zookeeper').port}"}) as shell:
        shell.follow(HOW_TO / "run-on-zookeeper.md")
