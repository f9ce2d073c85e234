"""``ferryman.preview`` without Spark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.engine import driver
from ferryman.engine.preview import Preview
from ferryman.engine.runner.base import Runner
from ferryman.plan import Plan
from ferryman.testing.inprocess import InProcess


def previewed(plan: Plan, state: Path, *, runner: Runner | None = None, **options: Any) -> Preview:
    """A preview on this runner. Its scratch folder must be gone afterwards.

    It is on a disk: of a state in the same file system a preview holds the files by links, which ``snapshot`` sees.
    """

    @contextlib.contextmanager
    def open_runner(*_: Any, **__: Any) -> Iterator[Runner]:
        yield runner or InProcess()

    with (
        tempfile.TemporaryDirectory(prefix="ferryman-test-scratch-", dir="/tmp") as scratch,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(driver, "open_runner", open_runner)
        patch.setattr(tempfile, "tempdir", scratch)
        try:
            return ferryman.preview(plan, state=state, **options)
        finally:
            assert list(Path(scratch).iterdir()) == []
