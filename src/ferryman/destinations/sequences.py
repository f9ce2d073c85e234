"""Which of several deliveries of one id counts: the rule of destinations that keep one row an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ferryman.destinations.base import Delivery, Outcome


class LastDelivery(NamedTuple):
    """The last delivery of an id that took effect, as the destination remembers it (a tombstone too)."""

    sequence: int
    hash: str


def compare(chunk: Sequence[Delivery], known: dict[str, LastDelivery]) -> tuple[list[Outcome], dict[str, Delivery]]:
    """Outcomes in the chunk's order, and for each id the delivery that must be in force after the chunk, if it is new.

    ``known`` holds what the destination has of these ids; it is not changed. The result is the same as if the
    deliveries had come one at a time in the order of their sequences: an equal hash is a no-op (ok), a lower sequence
    than the one in force is stale, anything else wins.
    """
    outcomes = [Outcome.ok()] * len(chunk)
    winners: dict[str, Delivery] = {}
    in_force = dict(known)
    for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
        delivery = chunk[position]
        last = in_force.get(delivery.id)
        if last is not None and last.hash == delivery.hash:
            continue
        if last is not None and last.sequence > delivery.sequence:
            outcomes[position] = Outcome.stale()
            continue
        in_force[delivery.id] = LastDelivery(delivery.sequence, delivery.hash)
        winners[delivery.id] = delivery
    return outcomes, winners
