"""Generate the table of docs/reference/guarantees.md that counts injected faults: kills, stops, power cuts and others.

Rows are data, docs/reference/tried.toml: what is done, to what, and the test files that do it. The numbers of cases
come from pytest, which collects those files: they are what the three parts of `make test`, and `make prove`, run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "reference" / "tried.toml"


class Row(NamedTuple):
    """One row of the table."""

    what: str
    where: str
    tests: tuple[str, ...]
    """Test files, folders of them, or tests as pytest calls them, without parameters."""


def rows() -> list[Row]:
    """Return all rows, in the order of the file."""
    data = tomllib.loads(ROWS.read_text("utf-8"))["tried"]
    return [Row(row["what"], row["where"], tuple(row["tests"])) for row in data]


def table() -> str:
    """Return the table: what is done, where, by which tests, and how many cases all parts of `make test`, and
    `make prove`, run.

    Raises:
        ValueError: a row names a test that pytest does not find.
    """
    wanted = rows()
    all_cases, quick_cases = _cases(tuple(test for row in wanted for test in row.tests))
    lines = ["| what is done | where | `make test`, all parts | `make prove` | tests |", "|---|---|---|---|---|"]
    for row in wanted:
        if missing := [test for test in row.tests if not _count(all_cases, test)]:
            raise ValueError(f"{ROWS}: pytest finds no test {', '.join(missing)}: correct the row {row.what!r}")
        counts = " | ".join(f"{sum(_count(cases, test) for test in row.tests):,}" for cases in (quick_cases, all_cases))
        lines.append(f"| {row.what} | {row.where} | {counts} | {', '.join(f'`{test}`' for test in row.tests)} |")
    return "\n".join(lines)


def _count(cases: Counter[str], test: str) -> int:
    return sum(n for name, n in cases.items() if name == test or name.startswith((f"{test}::", f"{test}/")))


_COLLECT = """
import sys
import pytest

class Cases:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("slow" if item.get_closest_marker("slow") else "quick", item.nodeid.partition("[")[0])

sys.exit(pytest.main(["--collect-only", "--quiet", "-m", "", *sys.argv[1:]], plugins=[Cases()]))
"""
"""Program that prints, for each case of some files, whether it is slow, and its test without parameters."""


@cache
def _cases(tests: tuple[str, ...]) -> tuple[Counter[str], Counter[str]]:
    """Return test without parameters -> number of its cases: of all, and of those that are not slow."""
    files = sorted({test.partition("::")[0] for test in tests})
    # This may run inside pytest: do not pass the outer run's workers and options on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-c", _COLLECT, *files]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode not in (0, 5):  # 5: the markers leave none
        raise ValueError(f"pytest cannot collect the tests of {ROWS}:\n{answer.stdout}{answer.stderr}")
    found = [
        line.partition(" ") for line in answer.stdout.splitlines() if line.startswith(("slow tests/", "quick tests/"))
    ]
    return Counter(test for _, _, test in found), Counter(test for speed, _, test in found if speed == "quick")
