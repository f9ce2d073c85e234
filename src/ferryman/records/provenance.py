"""Where a delivery came from: the queues on its way, with its index and time on each."""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Provenance(msgspec.Struct, frozen=True):
    """Origin of a message, stored as JSON.

    Attributes:
        queues: queue -> ``{"index", "time"}``.
        tx: index on the first of them.
    """

    queues: dict[str, Any] = {}
    tx: int | None = None

    @classmethod
    def of(cls, meta: str | None) -> Self:
        """Decode the provenance in a message's ``meta``; other content is ignored, and ``meta`` of another form
        gives nothing."""
        if meta is None:
            return cls()
        try:
            return msgspec.json.decode(meta, type=cls)
        except msgspec.DecodeError:
            return cls()


def encode(provenance: Provenance) -> str:
    """Encode as JSON."""
    return msgspec.json.encode(provenance).decode()
