"""Resolve: record what an operator found out about deliveries in doubt."""

from __future__ import annotations

from typing import Final

from ferryman.errors import UsageError
from ferryman.operations.retry import Retried, give
from ferryman.plan import Plan
from ferryman.state.commands import VERBS, Command, user
from ferryman.storage.files import StatePath
from ferryman.storage.folder import told_of_state

_RESOLVE: Final = "resolve --as "

RESOLUTIONS: Final = tuple(verb.removeprefix(_RESOLVE) for verb in VERBS if verb.startswith(_RESOLVE))
"""What may be recorded of a delivery in doubt."""


@told_of_state
def resolve(
    plan: Plan,
    word: str,
    *,
    state: str | StatePath | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    why: str = "",
) -> Retried:
    """Record what became of deliveries in doubt (at-most-once, killed in flight), or give up what failed.

    Args:
        word: "delivered": they took effect. "failed": they did not, and must not be sent again.
            "pending": they did not, send them. "dropped": they are given up; also those that failed or were rejected.

    Raises:
        UsageError: there is no state yet, or no such word.
    """
    if word.lower() not in RESOLUTIONS:
        raise UsageError(f"resolve as {word!r}: choose one of {', '.join(RESOLUTIONS)}.")
    return give(plan, state, Command(_RESOLVE + word.lower(), user(), why, None, document, destination, source))
