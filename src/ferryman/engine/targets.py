"""Whether the targets of a run are still those that its state has delivered to."""

from __future__ import annotations

import datetime as dt
from typing import Final

from ferryman.destinations.base import Destination
from ferryman.engine.deliver.turn import Hung, ThreadCaller
from ferryman.errors import StateDamaged, unless_interrupt
from ferryman.plan import DestinationNode
from ferryman.state.state import State
from ferryman.state.targets import Target, load_targets, save_targets

_WAIT_S: Final = 5.0
"""Time that a destination has for its answer: nothing of the run depends on it."""


class TargetWatch:
    """Compares the identities of targets with the recorded ones, and records those of targets that are used for the
    first time. For a state's driver.

    A target that was recreated or replaced lacks what was delivered to it before; ``ferryman verify`` repairs it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._nodes = {
            node.name: node
            for node in state.plan.nodes
            if isinstance(node, DestinationNode) and type(node.destination).identity is not Destination.identity
        }
        self._asked: set[str] = set()
        try:
            self._recorded = load_targets(state.root)
        except StateDamaged:  # ``fsck`` reports it; the identities are recorded again
            self._recorded = {}

    def look(self, name: str) -> None:
        """Ask a destination for the identity of its target, once a run. Call it after ``check``."""
        node = self._nodes.get(name)
        if node is None or name in self._asked:
            return
        self._asked.add(name)
        found = _identity(node)
        if found is None:
            return
        recorded = self._recorded.get(name)
        if recorded is None:
            if not found:
                return
            now = Target(found)
        elif found == recorded.id:
            now = Target(found)
        elif found == recorded.found:
            now = recorded
        else:
            now = Target(recorded.id, found, dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
        if now != recorded:
            self._recorded[name] = now
            save_targets(self._state.root, self._recorded)

    def messages(self) -> list[str]:
        """Return a message about each target that is not the recorded one, after asking those not asked in this run."""
        for name in sorted(self._recorded.keys() & self._nodes.keys()):
            self.look(name)
        return [
            _describe_replaced(self._nodes[name], target)
            for name, target in sorted(self._recorded.items())
            if target.found is not None and name in self._nodes
        ]


def _describe_replaced(node: DestinationNode, target: Target) -> str:
    """Return the message about a target that is not the recorded one."""
    place = node.destination.target() or node.name
    return (
        f"destination {node.name}: {place} {target.describe()}: what was delivered before may not be in it. "
        "`ferryman verify PLAN --repair` finds what is missing, and has it sent again."
    )


def _identity(node: DestinationNode) -> str | None:
    """Return the identity of a target; None: the destination does not answer, which says nothing about its target."""
    caller = ThreadCaller(f"identity-{node.name}")
    try:
        identity: str | None = caller.call(node.destination.identity, timeout_s=_WAIT_S)
    except Hung:
        return None
    except BaseException as e:
        unless_interrupt(e)
        return None
    finally:
        caller.end()
    return identity
