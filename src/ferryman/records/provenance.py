"""Where a delivery came from: the queues on its way, with its index and time on each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

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


class _EncodedProvenance(msgspec.Struct):
    """A provenance of which the queues' entries stay encoded."""

    queues: dict[str, msgspec.Raw] = {}
    tx: int | None = None


_decode: Final = msgspec.json.Decoder(_EncodedProvenance).decode
_encode: Final = msgspec.json.Encoder().encode


def merge_provenances(texts: Iterable[str | None]) -> str | None:
    """Return the provenance of what was made from documents with these, as JSON: all their queues, and the first
    ``tx``. None: no queue is known. One of another form gives nothing, as in ``Provenance.of``."""
    merged = _EncodedProvenance({})
    for text in texts:
        if text is None:
            continue
        try:
            each = _decode(text)
        except msgspec.DecodeError:
            continue
        merged.queues |= each.queues
        merged.tx = each.tx if merged.tx is None else merged.tx
    return _encode(merged).decode() if merged.queues else None
