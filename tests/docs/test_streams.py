"""docs/how-to/read-a-spark-stream.md is true, on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page import HOW_TO, Shell


@pytest.mark.slow
@pytest.mark.spark
def test_the_page_is_true(tmp_path: Path) -> None:
    with Shell(tmp_path, {"starting Spark\n": ""}) as shell:
        shell.follow(HOW_TO / "read-a-spark-stream.md")
