"""Options of nodes as they are given, made what a node holds."""

from __future__ import annotations

from typing import Any

from ferryman import durations
from ferryman.destinations.base import Destination, Effect, Guarantee


def name_of(given: object) -> str:
    """A name; what is not text in angle brackets, for ``check`` to refuse."""
    return given if isinstance(given, str) else f"<{given!r}>"


def called(brake: int | None, patience: float | str, attempts: int | None) -> dict[str, Any]:
    """Policy of a node that is called before the commit."""
    return {"brake": brake, "patience_s": patience_of(patience), "attempts": attempts}


def patience_of(given: float | str) -> float:
    """Seconds; what is not a duration as it is, for ``check`` to refuse."""
    if not isinstance(given, str):
        return given
    try:
        return durations.seconds(given)
    except ValueError:
        return given  # type: ignore[return-value]


def default_guarantee(destination: Destination) -> Guarantee:
    """The best it can keep: semantics of the three guarantees, by what the destination declares."""
    if getattr(destination, "transactional", False):
        return Guarantee.EXACTLY_ONCE
    effect = getattr(destination, "effect", None)
    return Guarantee.AT_LEAST_ONCE if effect is Effect.IDEMPOTENT else Guarantee.AT_MOST_ONCE
