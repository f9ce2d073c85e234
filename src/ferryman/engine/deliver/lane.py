"""Deliver, in the workers: lanes, each with its turn at a destination. ``sending`` has what is done with the rows."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, NamedTuple

from ferryman import crash, limits
from ferryman.destinations.base import DestinationContext
from ferryman.engine.deliver.callers import Hung
from ferryman.engine.deliver.sending import FileDelivery
from ferryman.engine.deliver.turn import LaneStop, OutboxFile, Turn
from ferryman.engine.runner.base import PickledPlan
from ferryman.errors import PermanentError, describe
from ferryman.memory import is_failed_allocation, why_no_memory
from ferryman.plan import DestinationNode, Plan, errors_node
from ferryman.state.identity import Sender, sender_of
from ferryman.state.journal import Journal
from ferryman.storage.files import path_of


class Lane(NamedTuple):
    """What one delivery task takes: files of one destination, oldest first."""

    destination: str
    files: list[OutboxFile]
    isolated: bool = False
    """A worker died over this destination, or it hung: it is called in a child process."""
    settled: int = 0
    """Deliveries of lower sequences do not come again."""


class LaneReport(NamedTuple):
    """What a lane met that concerns its whole destination."""

    destination: str
    trouble: str = ""
    """Why it stopped: the destination is down, or wrong."""
    permanent: bool = False
    """An operator must fix it."""
    hung: bool = False
    """A call of it was given up."""
    others: bool = False
    """Other lanes of it may still be in a call."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Task: deliver a lane in this pass.

    A call that was given up must not act later, when something newer may have been sent: after all is noted, its
    process ends. Spark tries the task again, or says that a worker died; both find the note of it.
    """

    shipped: PickledPlan
    root: str
    number: int
    now_us: int
    driver: tuple[str, int]
    """Host and process of the driver: that process is never ended, whatever runs in it."""
    epoch: int
    """Of the driver."""
    pace_s: float = limits.PACE_S
    live: str = ""
    """Folder for what is reported meanwhile; see ``engine.live``."""

    def __call__(self, lane: Lane) -> LaneReport:
        plan = self.shipped.unused() if lane.isolated else self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == lane.destination)
        assert isinstance(node, DestinationNode)
        journal = Journal(path_of(self.root) / "journal")
        if (why := journal.given_up(self.number, node.name)) is not None:
            return LaneReport(node.name, why, hung=True)
        turn = Turn(
            path_of(self.root),
            node,
            self.number,
            epoch=self.epoch,
            now_us=self.now_us,
            pace_s=self.pace_s,
            isolated=lane.isolated,
            live=self.live,
            ended_holds=errors_node(plan.nodes) is None,
        )
        context = context_of(plan, node, self.number, sender_of(path_of(self.root)), lane.settled)
        stopped = LaneStop()
        try:
            _speak(turn, node.destination.open, context)
            for file in lane.files:
                FileDelivery(turn, file).deliver()
            _speak(turn, node.destination.close)
        except LaneStop as stop:
            stopped = stop
        turn.end()
        if turn.left_behind and (socket.gethostname(), os.getpid()) != self.driver:
            journal.give_up(self.number, node.name, stopped.why)
            crash.point("deliver.hung")
            os._exit(1)
        return LaneReport(node.name, stopped.why, stopped.permanent, stopped.hung)


def context_of(plan: Plan, node: DestinationNode, number: int, sender: Sender, settled: int = 0) -> DestinationContext:
    """What a destination is told of whoever delivers.

    Args:
        number: of the pass.
    """
    guarantee = node.policy.guarantee
    return DestinationContext(
        plan.name, plan.version, node.name, number, guarantee, sender.state, settled, sender.version
    )


def _speak(turn: Turn, function: Any, *args: Any) -> None:
    """``open`` and ``close`` speak for the whole destination."""
    try:
        turn.call(function, *args)
    except Hung as e:
        raise LaneStop(f"{function.__name__}: {e}", hung=True) from e
    except Exception as e:
        why = f"{function.__name__}: {why_no_memory(e)}" if is_failed_allocation(e) else describe(e)
        raise LaneStop(why, isinstance(e, PermanentError)) from e
