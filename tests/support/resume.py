"""``--resume FILE``: a run of tests that was cut off goes on, and leaves out those that have passed."""

from __future__ import annotations

from pathlib import Path

import pytest

KNOWN_BYTES = "resume_known_bytes"
"""Key of what a worker of xdist is told: how much of the file was there at the start. A worker that comes later, in
place of one that crashed, has to collect the same tests."""


def begin(config: pytest.Config) -> None:
    """Begin to write the tests that pass into the file that ``--resume`` names, if it does."""
    file: Path | None = config.getoption("--resume")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(file))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that passed before."""
    file: Path | None = config.getoption("--resume")
    if file is None:
        return
    known_bytes = getattr(config, "workerinput", {}).get(KNOWN_BYTES, -1)
    with open(file, "rb") as lines:
        passed = set(lines.read(known_bytes).decode().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if _line(item.nodeid) in passed])
    items[:] = [item for item in items if _line(item.nodeid) not in passed]


class Passed:
    """Writes a line for each test that passes, teardown included."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self._file = file
        self._known_bytes = file.stat().st_size
        self._called: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: pytest.Session) -> None:
        node.workerinput[KNOWN_BYTES] = self._known_bytes  # type: ignore[attr-defined]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._called.add(report.nodeid)
        elif report.when == "teardown" and report.passed and report.nodeid in self._called:
            with self._file.open("a", encoding="utf-8") as lines:
                print(_line(report.nodeid), file=lines)


def _line(test: str) -> str:
    return " ".join(test.split())
