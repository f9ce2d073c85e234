"""Between two waves: files are kept few, and those that nothing names are removed."""

from __future__ import annotations

from collections.abc import Callable

from ferryman.state.maintenance import maintain, sweep
from ferryman.state.state import State


class Upkeep:
    """Of a state, for the time of a run.

    Args:
        tell: told what could not be merged, after each wave again.
    """

    def __init__(self, state: State, tell: Callable[[str], None]) -> None:
        self._state = state
        self._tell = tell
        self._strays = False
        """Files may lie there that nothing names and no task is about to return."""

    def do(self, *, staging: bool = False, strays: bool = False) -> None:
        """Merge small files, fold long logs, remove what nothing names.

        Args:
            staging: tasks are staging files for the next wave, which nothing names yet: nothing is swept now.
            strays: tasks that died have left files.
        """
        for note in maintain(self._state, sweeps=not staging):
            self._tell(note)
        self._strays |= staging or strays
        if self._strays and not staging:
            sweep(self._state)
            self._strays = False
