"""tests/README.md names every folder of tests and every helper, and no file of tests is long."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from tests.support import schedule

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text("utf-8")


def test_every_folder_and_helper_is_named() -> None:
    """By its name, in code."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    helpers = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert {name for name in folders | helpers if f"`{name}`" not in PAGE and f"`tests/{name}`" not in PAGE} == set()


def test_the_schedule_names_files_that_exist() -> None:
    """A pattern without files would be that of a file that was renamed."""
    files = [path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")]
    assert [pattern for pattern in schedule.LONGEST if not fnmatch.filter(files, pattern)] == []


def test_no_file_is_long() -> None:
    """At most 900 lines; split by subject, never to fit a number."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    assert {path: n for path, n in lines.items() if n > 900} == {}
