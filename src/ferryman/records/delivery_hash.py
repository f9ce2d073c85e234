"""A delivery's name: the hash that is equal on every attempt, forever."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from ferryman.document import Operation

DeliveryHash = Callable[[str, str, int], str]
"""(document id, version, revision) -> delivery hash."""


def hasher(
    plan: str, plan_version: int, source: str, destination: str, route: str, operation: Operation
) -> DeliveryHash:
    """A function (document id, version, revision) -> delivery hash, 32 hex digits of BLAKE2b-128.

    What all rows of a task share is hashed once. The parts are told apart by NUL, which no name, version or number
    has; the id comes last, so that it may hold anything.
    """
    shared = blake2b(
        "\0".join((plan, str(plan_version), source, destination, route, operation, "")).encode(), digest_size=16
    )

    def delivery_hash(document: str, version: str, revision: int) -> str:
        h = shared.copy()
        h.update(f"{version}\0{revision}\0{document}".encode("utf-8", "surrogatepass"))
        return h.hexdigest()

    return delivery_hash
