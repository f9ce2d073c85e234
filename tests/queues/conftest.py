"""A folder of queues, in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.zygote import Zygote

MEMORY = Path("/dev/shm")
"""A kill -9 is the same in memory, and hundreds of fsyncs are not."""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture
def root(place: Path) -> Path:
    """Where queues are; nobody has made it."""
    return place / "queues"


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote"), "tests.queues.child") as made:
        yield made
