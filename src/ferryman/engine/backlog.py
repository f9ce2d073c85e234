"""How much is pending in the outbox: a scan stops reading documents while it is too much."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ferryman.limits import GIB, KIB, MIB
from ferryman.state.outbox import pending_rows
from ferryman.state.state import State


class Backlog:
    """Of a state.

    Args:
        max_bytes: more than this, as it lies on the disk, is too much.
    """

    def __init__(self, state: State, max_bytes: int) -> None:
        self._state = state
        self._max_bytes = max_bytes

    @property
    def too_large(self) -> bool:
        return sum(self._pending().values()) > self._max_bytes

    def describe(self, over: bool) -> str:
        """Why no more documents are read, and what to do.

        Args:
            over: the run ends so; else it goes on once there is room.
        """
        pending = self._pending()
        each = ", ".join(f"{name}: {size_text(size)}" for name, size in pending.most_common())
        size, most = size_text(sum(pending.values())), size_text(self._max_bytes)
        why = f"{size} are pending ({each}), more than the limit of {most} (--max-pending)"
        if over:
            how = "run again when the destination is back"
            return f"the scan stopped early: {why}. What is pending is kept; the rest is read later: {how}."
        return f"the scan waits: {why}. What is pending is kept; the rest is read once there is room."

    def _pending(self) -> Counter[str]:
        """Destination -> bytes."""
        found: Counter[str] = Counter()
        for file in self._state.outbox.files.values():
            if pending := pending_rows(file):
                found[file.partition["destination"]] += file.size * pending // file.rows
        return found


def size_text(size: int) -> str:
    """As a user reads it: 4.2 GiB."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


_UNITS: Final = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
