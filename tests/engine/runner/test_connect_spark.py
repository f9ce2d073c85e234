"""A plan on a Spark Connect server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.engine.runner import sessions
from ferryman.errors import UsageError
from tests.servers.spark_connect import SparkConnect

PLAN = """
import ferryman
from ferryman import Plan
from ferryman.destinations import JsonLines
from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.sources import Memory

plan = Plan("notes", version=1)
plan.source("items", Memory([{"id": str(n)} for n in range(20)])).destination("out", JsonLines("out"))

if __name__ == "__main__":
    session = start("URL", {}, "test")
    print(SparkRunner(session).slots, ferryman.run(plan, state="state", spark=session).delivered)
    session.stop()
"""


@pytest.mark.spark
def test_a_plan_runs_through_connect(place: Path) -> None:
    """The server says how many tasks it runs at once; of its settings none is set, and none is warned of."""
    with SparkConnect() as server:
        (place / "plan.py").write_text(PLAN.replace("URL", server.url))
        done = subprocess.run([sys.executable, "plan.py"], capture_output=True, text=True, check=False, cwd=place)

    assert (done.returncode, done.stdout, done.stderr) == (0, "3 20\n", ""), done.stderr


def test_what_connect_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"sc://host:15002.*pip install 'ferryman\[connect\]'"):
        sessions.start("sc://host:15002", {}, "test")
