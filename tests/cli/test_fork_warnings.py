"""No process with threads is forked in a run: Python 3.12 and newer would warn people of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLAN = """
    import os, signal, threading
    from ferryman import Plan
    from ferryman.destinations import Null
    from ferryman.sources import Memory

    def step(doc):
        if doc.id == "hangs":
            threading.Event().wait()
        if doc.id == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        return doc

    plan = Plan("warned", version=1)
    docs = plan.source("docs", Memory([{{"id": each}} for each in ("a", {bad!r}, "z")]))
    docs.step("step", step, timeout=1, attempts=1).destination("out", Null(), send_timeout=30)
"""


@pytest.mark.parametrize(
    ("bad", "ended"),
    [
        ("hangs", "1 failed"),
        pytest.param("kills", "1 rejected", marks=[pytest.mark.spark, pytest.mark.slow]),  # helper processes leave it
    ],
)
def test_a_run_shows_no_warning_of_fork(
    bad: str, ended: str, ferryman: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    """Whatever its processes do, each of which shows the warning each time."""
    plan = write("plan.py", PLAN.format(bad=bad))
    done = ferryman("run", plan, "--wait", "0", PYTHONWARNINGS="always:This process:DeprecationWarning")
    assert done.code == 3, done.err
    assert ended in done.out
    assert "2 delivered" in done.out
    assert "fork()" not in done.out + done.err
