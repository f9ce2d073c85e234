"""The first how-to guide is true, as it stands: its commands are run, with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page import HOW_TO, Shell


@pytest.mark.spark
def test_index_a_folder(tmp_path: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    with Shell(tmp_path) as shell:
        shell.follow(HOW_TO / "index-a-folder.md")
