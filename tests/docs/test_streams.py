"""docs/how-to/read-a-spark-stream.md is true, on Spark."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from tests.support.page import HOW_TO, Shell
from tests.support.plan_world import spark as spark  # a fixture


class OwnProcess(Shell):
    """Its ``ferryman`` is called in this process, which has a session of Spark already."""

    capture: pytest.CaptureFixture[str]

    def run(self, line: str) -> list[str]:
        program, *arguments = shlex.split(line)
        if program != "ferryman":
            return super().run(line)
        self.capture.readouterr()
        code = start(arguments)
        said = self.capture.readouterr()
        assert code == 0, said.err
        return [*said.out.splitlines(), *said.err.splitlines()]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    # Spark was started elsewhere, and takes relative paths for those there.
    with OwnProcess(tmp_path, {'.json("orders")': f'.json("{tmp_path}/orders")'}) as shell:
        shell.capture = capfd
        yield shell


@pytest.mark.spark
def test_the_page_is_true(spark: Any, typed: Shell) -> None:
    typed.follow(HOW_TO / "read-a-spark-stream.md")
