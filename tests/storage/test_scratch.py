"""Scratch folders that go with their process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from ferryman.storage.disk import scratch_folder

kept = [scratch_folder() for _ in range(2)]
print(*(each.name for each in kept), flush=True)
if sys.argv[1] == "lives":
    sys.stdin.readline()
    assert all(os.path.isdir(each.name) for each in kept)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path)}


def start(how: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_nothing_is_left(tmp_path: Path, environment: dict[str, str]) -> None:
    """Of a process that ends by itself."""
    with start("ends", environment) as process:
        assert process.stdout is not None
        assert len(process.stdout.readline().split()) == 2
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_one_has_left_is_removed_by_the_next(tmp_path: Path, environment: dict[str, str]) -> None:
    """What a living one has is not."""
    with start("lives", environment) as living:
        assert living.stdout is not None
        theirs = living.stdout.readline().split()
        with start("killed", environment) as killed:
            assert killed.stdout is not None
            left = killed.stdout.readline().split()
        assert killed.returncode == -signal.SIGKILL
        assert all(Path(each).is_dir() for each in left)
        with start("ends", environment):
            pass
        assert [Path(each).exists() for each in (*left, *theirs)] == [False, False, True, True]
        living.communicate("\n")
    assert living.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path, environment: dict[str, str]) -> None:
    """The temporary folder is for all users."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter").touch()
    (tmp_path / "ferryman-log-link").symlink_to(tmp_path / "theirs")
    with start("ends", environment):
        pass
    assert (tmp_path / "theirs" / "letter").exists()
