"""Effects of a fault: proof that it happened, in files, because the process may be gone a moment later.

A fault that hits nothing proves nothing. So a round counts only if its fault has left its mark here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Self


class Effects:
    """Marks of one fault, shared by all processes of a round.

    Args:
        folder: where the marks are.
        first: number of the call at which the fault begins, from 1; 0: it never does.
        times: number of calls for which it lasts.
    """

    def __init__(self, folder: Path, first: int = 0, times: int = 1) -> None:
        self._folder = folder
        self._first = first
        self._times = times

    @classmethod
    def none(cls) -> Self:
        """Return those of a fault that does not happen."""
        return cls(Path(), 0)

    def happens(self) -> bool:
        """Count a call, and return whether the fault happens in it; then its mark is there already."""
        if not self._first:
            return False
        number = self._count()
        if not self._first <= number < self._first + self._times:
            return False
        (self._folder / "effect").touch()
        return True

    def _count(self) -> int:
        """Return the number of this call over all processes, from 1."""
        last = self._first + self._times
        for number in range(1, last + 1):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._folder / f"call-{number}", os.O_CREAT | os.O_EXCL))
                return number
        return last + 1


def took_effect(folder: Path) -> bool:
    """Return whether the fault of the round in this folder has happened."""
    return (folder / "effect").exists()
