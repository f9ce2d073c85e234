"""Where a delivery came from: the queues on its way, with its index and time on each."""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Provenance(msgspec.Struct, frozen=True):
    """As it is kept, in JSON.

    Attributes:
        queues: queue -> ``{"index", "time"}``.
        tx: index on the first of them.
    """

    queues: dict[str, Any] = {}
    tx: int | None = None

    @classmethod
    def of(cls, meta: str | None) -> Self:
        """What a message's ``meta`` says, whatever else is in it; nothing, if somebody else wrote it in another way."""
        if meta is None:
            return cls()
        try:
            return msgspec.json.decode(meta, type=cls)
        except msgspec.DecodeError:
            return cls()


def encode(provenance: Provenance) -> str:
    """As JSON."""
    return msgspec.json.encode(provenance).decode()
