"""tests/README.md names every folder of tests and every helper, and no file of tests is long."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text("utf-8")


def test_every_folder_and_helper_is_named() -> None:
    """By its name, in code."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    helpers = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert {name for name in folders | helpers if f"`{name}`" not in PAGE and f"`tests/{name}`" not in PAGE} == set()


def test_no_file_is_long() -> None:
    """At most 400 lines: a longer one is about two things."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    assert {path: n for path, n in lines.items() if n > 400} == {}
