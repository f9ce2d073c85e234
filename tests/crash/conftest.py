"""Counts the crash matrix for whoever reads the end of a test run."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many (point, guarantee, shape) cases ran, in process and on Spark."""
    for where, test in (("in process", "test_matrix.py::test_killed"), ("on Spark", "test_spark.py::test_killed")):
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
