"""A disk that refuses: from a certain system call on, whatever concerns a folder fails."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

_CHANGING: Final = ("fsync", "link", "mkdir", "rename", "replace", "unlink", "write")
_WRITING: Final = os.O_WRONLY | os.O_RDWR


class FaultyDisk:
    """While it is there, the calls below ``root`` from the ``first`` one on raise an ``OSError`` of this number.

    A full or read-only disk refuses what changes it, and so does one where one may not write; a failing one refuses
    everything.

    Attributes:
        refused: how many calls it has refused.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, number: int, first: int) -> None:
        self._root, self._number, self._left = str(root), number, first
        self.refused = 0
        for name in _CHANGING:
            patch.setattr(os, name, self._refusing(getattr(os, name)))
        patch.setattr(
            os, "open", self._refusing(os.open, changes=lambda flags: bool(flags & (os.O_WRONLY | os.O_RDWR)))
        )
        patch.setattr(os, "scandir", self._refusing(os.scandir, changes=lambda _: False))
        opening = self._refusing(builtins.open, changes=lambda mode: any(c in str(mode) for c in "wax+"))
        patch.setattr(builtins, "open", opening)
        patch.setattr(io, "open", opening)

    def _refusing(
        self, real: Callable[..., Any], changes: Callable[[Any], bool] = lambda _: True
    ) -> Callable[..., Any]:
        def call(what: Any = ".", *args: Any, **options: Any) -> Any:
            how = args[0] if args else options.get("mode", options.get("flags", 0))
            if self._concerns(what) and (self._number == errno.EIO or changes(how)):
                self._left -= 1
                if self._left < 0:
                    self.refused += 1
                    path = () if isinstance(what, int) else (os.fspath(what),)
                    raise OSError(self._number, os.strerror(self._number), *path)
            return real(what, *args, **options)

        return call

    def _concerns(self, what: Any) -> bool:
        if isinstance(what, int):
            try:
                what = os.readlink(f"/proc/self/fd/{what}")
            except OSError:
                return False
        return isinstance(what, str | os.PathLike) and os.fspath(what).startswith(self._root)
