"""Messages of an error queue: what failed, where and why, and what it failed for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ferryman import limits


def error_fields(
    *,
    kind: str,
    cause: str,
    where: str,
    plan: tuple[str, int],
    destinations: Sequence[str],
    messages: list[dict[str, Any]],
) -> dict[str, Any]:
    """The fields of a message.

    Args:
        kind: of the node that failed: ``source``, ``step``, ``router``, ``destination``.
        cause: as the ledger says it.
        where: the node's name.
        plan: name and version.
        destinations: that get nothing for it.
        messages: what it failed for, see ``failed_message``.
    """
    name, version = plan
    config = {"plan": name, "version": version, "destinations": list(dict.fromkeys(destinations))}
    return {"type": kind, "cause": cause, "where": where, "config": config, "messages": messages}


def failed_message(id: str, source: str, body: bytes | None) -> dict[str, Any]:
    """What a failure was for: ``id``, ``source``, and the fields where they are at hand, as ``body``.

    Fields that a message of a queue cannot hold one level down are there as text, ``json``, or not at all.
    """
    about: dict[str, Any] = {"id": id, "source": source}
    if body is None or len(body) > _MOST_BYTES:
        return about
    fields = msgspec.json.decode(body)
    return {**about, "body": fields} if _depth(fields) <= _DEEPEST else {**about, "json": body.decode()}


_DEEPEST: Final = limits.QUEUE_NESTED - 3
"""Levels of fields that go into an error message as they are: they lie in an object in a list in an object."""

_MOST_BYTES: Final = limits.QUEUE_MESSAGE_BYTES // 4
"""The rest of the message needs room too, and what is text is longer there."""


def _depth(value: object) -> int:
    """Levels of objects and lists."""
    deepest, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        deepest += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return deepest


def error_route(node: str, route: str, wave: int) -> str:
    """The route of an error message: which failure it is of. A failure that an operator has tried again is another."""
    return f"{route}/{node}@{wave}" if route else f"{node}@{wave}"
