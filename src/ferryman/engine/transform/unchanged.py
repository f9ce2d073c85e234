"""Children that need not be sent again: a destination has them as they are, from the version before."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.block import Block
from ferryman.plan import DestinationNode, Plan, ends, target_of
from ferryman.records.family import Published, decode_published

_COMPARED: Final = (Reason.LOOK, Reason.CHANGED)
"""Why a document is processed whose version before counts: its content differs, and nothing but that. Where a step's
error is pending, or an operator has all sent again, all is sent."""


class Unchanged:
    """Knows what the version before gave, of one document after the other.

    What waits in the outbox is not known to be there: ``scan.unconfirmed_of`` has forgotten its content.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        targets = {node.name: target_of(node) for node in plan.nodes if isinstance(node, DestinationNode)}
        ways = [(end.destination, targets[end.destination]) for end in ends(plan.nodes)[source]]
        places = Counter(place for _, place in ways)
        self._shared = frozenset(name for name, place in ways if places[place] > 1)
        """Destinations to whose place several ways lead: what is there may have come by another one."""
        self._block: Block
        self._i = 0
        self._had: frozenset[int] | None = None
        """Hashes of what the version before gave with a content, once that is asked for."""

    def begin(self, block: Block, i: int) -> None:
        """What is asked from now on is about this row's family."""
        self._block, self._i, self._had = block, i, None

    def has(self, given: Published) -> bool:
        """Was just this given, with this content?"""
        if self._had is None:
            known = self._block.known(self._i)
            compared = known is not None and self._block.reasons[self._i] in _COMPARED
            had = decode_published(known.given) if known is not None and compared else ()
            self._had = frozenset(hash(each) for each in had if each.content)
        return hash(given) in self._had and given.destination not in self._shared
