"""Deliver, in the workers: lanes, each with its turn at a destination. ``sending`` has what is done with the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ferryman import settings
from ferryman.destinations.base import DestinationContext
from ferryman.engine.deliver.sending import FileDelivery, OutboxFile, Stop, Turn
from ferryman.engine.runner import Shipped
from ferryman.errors import PermanentError, named
from ferryman.plan import DestinationNode


class Lane(NamedTuple):
    """What one delivery task takes: files of one destination, oldest first."""

    destination: str
    files: list[OutboxFile]
    careful: bool = False
    """A worker died over this destination: it is called in a child process."""


class LaneReport(NamedTuple):
    """What a lane met that concerns its whole destination."""

    destination: str
    trouble: str = ""
    """Why it stopped: the destination is down, or wrong."""
    permanent: bool = False
    """A person must mend it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Task: deliver a lane in this pass."""

    shipped: Shipped
    root: str
    number: int
    now_us: int
    pace_s: float = settings.PACE_S
    send_timeout_s: float = settings.SEND_TIMEOUT_S

    def __call__(self, lane: Lane) -> LaneReport:
        plan = self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == lane.destination)
        assert isinstance(node, DestinationNode)
        turn = Turn(
            Path(self.root),
            node,
            self.number,
            now_us=self.now_us,
            pace_s=self.pace_s,
            send_timeout_s=self.send_timeout_s,
            careful=lane.careful,
        )
        context = DestinationContext(plan.name, plan.version, node.name, self.number, node.policy.guarantee)
        stopped = Stop()
        try:
            _speak(turn, node.destination.open, context)
            for file in lane.files:
                FileDelivery(turn, file).deliver()
            _speak(turn, node.destination.close)
        except Stop as stop:
            stopped = stop
        turn.end()
        return LaneReport(node.name, stopped.why, stopped.permanent)


def _speak(turn: Turn, function: Any, *args: Any) -> None:
    """``open`` and ``close`` speak for the whole destination."""
    try:
        turn.call(function, *args)
    except Exception as e:
        raise Stop(named(e), isinstance(e, PermanentError)) from e
