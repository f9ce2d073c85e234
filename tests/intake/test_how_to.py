"""The page on ZooKeeper is true: its commands are run against a real server, and what they show is what comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs.test_how_to import Shell, commands_of, is_shown, parts, shell
from tests.servers.zookeeper import ZooKeeperServer

__all__ = ["shell"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-on-zookeeper.md"


def test_run_on_zookeeper(shell: Shell, server: Callable[[str], ZooKeeperServer]) -> None:
    """At the port that the server has; all else is as the page says."""
    port = f"127.0.0.1:{server('zookeeper').port}"
    ran = 0
    for _, text in parts(PAGE):
        for line, shown in commands_of(text.replace("127.0.0.1:2181", port)):
            came = shell.run(line)
            ran += 1
            for wanted in shown:
                assert is_shown(wanted, came), f"{line}: no line {wanted!r} in:\n" + "\n".join(came)
    assert ran > 8
