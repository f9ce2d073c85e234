"""Where the registered readers of a queue stand: one small file each, replaced durably."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ferryman import crash
from ferryman.errors import StateDamaged
from ferryman.storage.files import fsync_folder, replace, sealed, unseal
from ferryman.storage.lock import turn


class Positions:
    """The files in ``folder``; a name is that of a tailer, or of a plan's source."""

    def __init__(self, folder: Path, queue: str) -> None:
        self._folder = folder
        self._queue = queue

    def names(self) -> list[str]:
        """All readers, sorted."""
        return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))

    def all(self) -> dict[str, int]:
        """Reader -> index of the message that comes next.

        Raises:
            StateDamaged: the file of one is not what was written.
        """
        found = {}
        for name in self.names():
            if (position := self.of(name)) is not None:
                found[name] = position
        return found

    def of(self, name: str) -> int | None:
        """Where one stands; None: it is not registered."""
        path = self._folder / name
        if not path.exists():
            return None
        said: Any = unseal(path)
        return int(said["position"])

    def note(self, name: str, position: int, moved: str = "") -> None:
        """From now on it stands there, durably.

        Args:
            moved: tells this move from all others, if somebody else than the reader moves it.
        """
        said = {"reader": name, "queue": self._queue, "position": position}
        replace(self._folder / name, sealed({**said, "moved": moved} if moved else said))
        crash.point("tailer.noted")

    def moved(self, name: str) -> tuple[int, str] | None:
        """Where it was moved, and what tells this move from all others; None: it went where it stands by itself.

        Both are read at once: who may only read the queue cannot hold the reader.
        """
        path = self._folder / name
        try:
            said: Any = unseal(path)
        except StateDamaged:
            if path.exists():
                raise
            return None  # it is not registered
        return (int(said["position"]), str(token)) if (token := said.get("moved")) else None

    def forget(self, name: str) -> bool:
        """It is not a reader any more; False: it was none."""
        with self.held(name):
            there = (self._folder / name).exists()
            (self._folder / name).unlink(missing_ok=True)
            fsync_folder(self._folder)
        return there  # the lock's file stays: another process may wait at it

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Meanwhile nobody else moves this reader."""
        with turn(self._folder / f".lock-{name}"):
            yield

    @contextlib.contextmanager
    def all_held(self, wait_s: float) -> Iterator[str | None]:
        """Meanwhile nobody moves any reader that is registered now; or the one that could not be had for so long."""
        with contextlib.ExitStack() as held:
            for name in self.names():
                if not held.enter_context(turn(self._folder / f".lock-{name}", wait_s)):
                    yield name
                    return
            yield None
