"""A delivery as JSON: what goes into files of lines, and what is posted."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from ferryman.destinations.base import Delivery, Outcome
from ferryman.errors import BadDocument

_encode = msgspec.json.Encoder().encode


def payload(delivery: Delivery) -> bytes:
    """An object with ``hash``, ``sequence``, ``operation``, ``id``, ``parent_id``, ``origin_id``, ``source``,
    ``version``, ``route``, ``fields`` and ``text``; raw bytes that are not UTF-8 as ``raw_base64``. Equal on every
    attempt.

    Raises:
        BadDocument, ValueError, TypeError: it holds what JSON cannot hold.
    """
    told: dict[str, Any] = {
        "hash": delivery.hash,
        "sequence": delivery.sequence,
        "operation": delivery.operation,
        "id": delivery.id,
        "parent_id": delivery.parent_id,
        "origin_id": delivery.origin_id,
        "source": delivery.source,
        "version": delivery.version,
        "route": delivery.route,
        "fields": msgspec.Raw(delivery._fields_json),
        "text": None,
    }
    if delivery.raw is not None:
        try:
            told["text"] = delivery.raw.decode()
        except UnicodeDecodeError:
            told["raw_base64"] = base64.b64encode(delivery.raw).decode("ascii")
    return _encode(told)


def payloads(chunk: list[Delivery], outcomes: list[Outcome | None]) -> list[tuple[int, bytes]]:
    """(position, payload) of those that JSON can hold; the others get a permanent outcome."""
    made = []
    for position, delivery in enumerate(chunk):
        try:
            made.append((position, payload(delivery)))
        except (BadDocument, ValueError, TypeError) as e:
            outcomes[position] = Outcome.permanent(f"{shown_id(delivery)}: {e}")
    return made


def shown_id(delivery: Delivery) -> str:
    """The id in a message, which must be text, also if the id is not."""
    return delivery.id.encode(errors="replace").decode()
