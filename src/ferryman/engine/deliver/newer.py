"""Deliver, in the driver: what destinations hold that is newer than what we send, and how we get above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from ferryman.engine.deliver.dispatch import Dispatcher
from ferryman.plan import DestinationNode
from ferryman.state.state import State

_ABOVE: Final = (
    "destination {name} holds deliveries newer than this state: an earlier state, now lost, was written under another "
    "clock, or another plan writes there. What is delivered from now on counts as newer."
)
_STALE: Final = (
    "destination {name}: {count} deliveries were stale: it has something newer under their ids and kept it. After a "
    "kill this is expected. Otherwise another plan writes there, or this state was created again while the clock "
    "was behind: `ferryman retry --force --destination {name}` sends everything once more."
)


class Newer:
    """Counts stale deliveries, and sees to it that sequences are above those that a destination holds.

    Else a state created again under a clock that is behind would deliver nothing, and every delivery would seem done.
    """

    def __init__(self, state: State, dispatcher: Dispatcher, tell: Callable[[str], None]) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._tell = tell
        self._counted: Counter[str] = Counter()
        """Destination -> stale deliveries since the last report."""
        self._ask: set[str] = set()
        """Destinations to be asked before the next commit."""

    def note(self, stale: Mapping[str, int]) -> None:
        """What a wave has met: destination -> stale deliveries."""
        self._counted.update(stale)
        self._ask |= stale.keys()

    def refuse_old_copy(self) -> None:
        """Ask all destinations, when a run begins: see ``Dispatcher.refuse_old_copy``.

        Raises:
            StateForeign: the state is an old copy; nothing was sent.
        """
        for node in self._state.plan.nodes:
            if isinstance(node, DestinationNode) and self._state.wave:
                self._dispatcher.refuse_old_copy(node.name)

    def before_commit(self) -> None:
        """Ask all destinations when the state is new, else those at which something was stale."""
        if not self._state.wave:
            self._ask |= {n.name for n in self._state.plan.nodes if isinstance(n, DestinationNode)}
        self._go_above()

    def report(self) -> bool:
        """Say how many were stale since the last time. Have sequences jumped, so that a commit must keep that?"""
        for name, count in self._counted.items():
            self._tell(_STALE.format(name=name, count=count))
        self._counted.clear()
        return self._go_above()

    def _go_above(self) -> bool:
        jumped = False
        for name in sorted(self._ask):
            held = self._dispatcher.highest_sequence(name)
            if held is not None and self._state.skip_sequences(held):
                self._tell(_ABOVE.format(name=name))
                jumped = True
        self._ask.clear()
        return jumped
