"""`ferryman intake` as a person types it: fixtures for tests of its verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.intake import JobQueue

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("batches", "--json")``: (exit code, stdout, stderr), in an empty folder."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("FERRYMAN_QUEUE", raising=False)

    def one(*args: str) -> tuple[int, str, str]:
        code = start(["intake", *args])
        told = capsys.readouterr()
        return code, told.out, told.err

    return one


@pytest.fixture
def queue(place: Path) -> Iterator[JobQueue]:
    """The default queue of that folder."""
    (place / ".ferryman").mkdir()
    with JobQueue.open(f"sqlite:///{place}/.ferryman/queue.db") as opened:
        yield opened


def rows(told: tuple[int, str, str]) -> Any:
    """What came with --json."""
    assert told[0] == 0, told
    return json.loads(told[1])
