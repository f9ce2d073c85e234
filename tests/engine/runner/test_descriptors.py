"""A process whose step closes what it answers by ends; it is not waited for, and nothing is written elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ferryman.engine.runner.child import Child, Died
from ferryman.engine.runner.worker import Descriptors


def test_a_file_that_is_another_now(tmp_path: Path) -> None:
    """Its number is the same."""
    number = os.open(tmp_path, os.O_RDONLY)
    known = Descriptors([number])
    assert known.are_intact()
    other = os.open("/dev/zero", os.O_RDONLY)
    os.dup2(other, number)
    assert not known.are_intact()
    os.close(number)
    assert not known.are_intact()
    os.close(other)


@pytest.mark.parametrize("again", [False, True])
def test_a_child_that_closes_everything_dies(again: bool) -> None:
    """Also if it has opened other files meanwhile, from which it would read for ever."""

    def close(_: Any) -> int:
        os.closerange(3, 200)
        return len([os.open("/dev/zero", os.O_RDWR) for _ in range(100)]) if again else 0

    child = Child(close)
    with pytest.raises(Died) as died:
        child.ask("request")
    assert died.value.how == "exit code 9"
    child.end()
