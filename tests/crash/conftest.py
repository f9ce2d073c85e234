"""Where the crash matrix works, and its count for whoever reads the end of a test run."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.zygote import Zygote

MEMORY = Path("/dev/shm")
"""A kill -9 is the same in memory, and 400 cases × 100 fsyncs are not."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def _zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all files of a process: it loads for more than a second."""
    with Zygote(tmp_path_factory.mktemp("zygote")) as made:
        yield made


@pytest.fixture(scope="module")
def zygote(_zygote: Zygote) -> Iterator[Zygote]:
    yield _zygote
    _zygote.kill_stopped()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many (point, guarantee, shape) cases ran, in process and on Spark."""
    for where, test in (
        ("in process", "test_matrix.py::test_killed"),
        ("in process, plans that branch", "test_branching.py::test_killed"),
        ("overtaken in its sleep", "test_overtaken.py::test_a_driver"),
        ("on Spark", "test_spark.py::test_killed"),
    ):
        ended = Counter(
            outcome
            for outcome in ("passed", "failed")
            for report in terminalreporter.stats.get(outcome, [])
            if test in getattr(report, "nodeid", "") and report.when == "call"
        )
        if ended:
            terminalreporter.write_line(
                f"crash matrix {where}: {ended.total()} cases (point, guarantee, shape), {ended['failed']} failed"
            )
