"""Folders and sessions that tests work in. Import the fixtures into a folder's ``conftest.py``."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trial import Trial

MEMORY = Path("/dev/shm")
"""fsync costs nothing there, and a kill -9 is the same."""


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def trial(place: Path) -> Trial:
    """A list of documents that goes to a recorder."""
    return Trial(place)


@pytest.fixture
def spark() -> Any:
    """A Spark session with two slots, shared by all tests of this process; started anew if one of them stopped it."""
    repository = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if repository not in known:  # workers import the modules of the tests
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [repository, *known]))
    from ferryman.engine.runner.sessions import start
    from ferryman.engine.runner.spark import SparkRunner

    session = start("local[2]", {"spark.sql.shuffle.partitions": "2"}, "tests")
    atexit.register(session.stop)
    return SparkRunner(session)
