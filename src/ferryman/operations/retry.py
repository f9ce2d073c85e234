"""Retry: try again what failed, or read documents again; and how an operator's command reaches the state."""

from __future__ import annotations

from dataclasses import dataclass

from ferryman.account.filters import named_statuses
from ferryman.engine.commands import apply
from ferryman.engine.commit.intake import open_intake
from ferryman.errors import StateHeld, UsageError
from ferryman.plan import Plan
from ferryman.state.commands import Command, queue, user, waiting
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath, exists
from ferryman.storage.folder import told_of_state


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a command."""

    count: int | None
    """Deliveries (with ``force`` and ``dirty``: documents) that it concerns; None while it is queued."""
    queued: bool
    """A run holds the state, or was killed in the middle of a wave: the next wave applies it."""


@told_of_state
def retry(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    status: str | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    force: bool = False,
    dirty: bool = False,
    why: str = "",
) -> Retried:
    """Try again what failed: due now, attempts from zero (RESTART). With ``force`` documents are read again, changed or
    not, as a new revision (FORCE); with ``dirty`` the next scan reads them, whatever their fingerprints say, and they
    are processed if they have changed (DIRTY). The filters narrow it down.

    Raises:
        UsageError: there is no state yet, or no such status.
    """
    if force and dirty:
        raise UsageError("force and dirty: force reads again in any case, give one of them.")
    verb = "retry --force" if force else "dirty" if dirty else "retry"
    statuses = None if status is None else frozenset(named_statuses(status)[0])
    return give(plan, state, Command(verb, user(), why, statuses, document, destination, source))


def give(plan: Plan, state: str | StatePath | None, command: Command) -> Retried:
    """Queue a command, and apply all that are queued unless a run does.

    Raises:
        UsageError: there is no state yet.
    """
    root = state_root(plan, state)
    if not exists(root / "state.json"):
        raise UsageError(f"{root}: there is no state of this plan yet: nothing to {command.verb.split()[0]}.")
    name = queue(root / "commands", command)
    try:
        with State.take(root, plan) as taken:
            if taken.wave > taken.settled or open_intake(taken) is not None:
                return Retried(None, queued=True)  # the next run recovers first
            counts = {c.file: apply(taken, c) for c in waiting(taken)}
            return Retried(counts.get(name, 0), queued=False)
    except StateHeld:
        return Retried(None, queued=True)
