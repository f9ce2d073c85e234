"""The how-to guides of files and tables are true, as they stand: their commands are run, with Spark. See
tests/docs/test_how_to.py for those that are run without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page import HOW_TO, Shell


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", ["index-a-folder", "index-a-table"])
def test_the_page_is_true(tmp_path: Path, name: str) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    with Shell(tmp_path) as shell:
        shell.follow(HOW_TO / f"{name}.md")
