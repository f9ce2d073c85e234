"""A destination that takes everything and keeps nothing."""

from __future__ import annotations

from typing import ClassVar

from ferryman.destinations.base import Delivery, Destination, Effect, Facts, Outcome


class Null(Destination):
    """Says ok to all and does nothing: to measure a plan without its destinations, or to end a path on purpose.

    It keeps any guarantee: where nothing happens, nothing happens twice.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    facts: ClassVar[Facts] = Facts(stored="nothing")

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.ok()] * len(chunk)
