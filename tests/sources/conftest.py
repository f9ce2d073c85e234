"""Folders full of files, and another user to look at them."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own may be entered by its owner alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path, folders, _ in os.walk(folder):
        for name in folders:
            Path(path, name).chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture
def as_nobody() -> Callable[[Callable[[], Any]], Any]:
    """Calls a function as a user whom rights bind: in a forked process if we are root. Returns or raises as it does."""

    def call(fn: Callable[[], Any]) -> Any:
        if os.geteuid() != 0:
            return fn()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                result: tuple[str, Any] = ("returned", fn())
            except BaseException as e:
                result = ("raised", e)
            with os.fdopen(writer, "wb") as out:
                pickle.dump(result, out)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            ended, value = pickle.load(answer)
        os.waitpid(child, 0)
        if ended == "raised":
            raise value
        return value

    return call
