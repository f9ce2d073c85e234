"""What became of a plan's documents: ``status``, ``deliveries``, ``history``, ``tables``."""

from __future__ import annotations

from typing import Any, Literal

from ferryman import account
from ferryman.errors import UsageError
from ferryman.plan import Plan
from ferryman.state.state import state_root
from ferryman.storage.files import StatePath
from ferryman.storage.folder import told_of_state


@told_of_state
def status(plan: Plan, *, state: str | StatePath | None = None) -> dict[str, Any]:
    """What became of the plan's documents, as ``ferryman status --json`` shows it."""
    return account.status(state_root(plan, state), plan)


@told_of_state
def deliveries(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    status: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    family: str | None = None,
    incomplete: bool = False,
    by: Literal["reason"] | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Deliveries of current documents, each by its latest event, newest first, with the ledger's columns.

    Args:
        status: as shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case.
        family: only of this origin and what was made of it; or of the rows of this file.
        incomplete: not deliveries but families of which some are pending or in doubt: ``source``, ``family``, and how
            many ``deliveries`` it has, ``ended``, ``pending``, ``in_doubt``, ``failed``, ``rejected``. Goes with
            ``source`` and ``family`` only.
        by: ``"reason"``: not deliveries but why they have not arrived, the most frequent reason first: ``status`` (as
            shown), ``deliveries`` (how many), ``reason`` (of one of them) and ``example``, its document.

    Raises:
        UsageError: there is no such status or no state yet; these arguments do not go together.
    """
    root = state_root(plan, state)
    if incomplete:
        if status is not None or destination is not None or by is not None:
            raise UsageError("incomplete: it goes with source and family only.")
        return [each._asdict() for each in account.incomplete(root, plan, source, family)[:limit]]
    if by not in (None, "reason"):
        raise UsageError(f"by={by!r}: give 'reason'.")
    ask = account.deliveries if by is None else account.reasons
    return ask(root, status=status, destination=destination, source=source, family=family, limit=limit, plan=plan)


@told_of_state
def history(plan: Plan, document: str, *, state: str | StatePath | None = None) -> list[dict[str, Any]]:
    """Every event of a document and its family, oldest first, with the ledger's columns."""
    return account.history(state_root(plan, state), document, plan)


@told_of_state
def tables(plan: Plan, *, state: str | StatePath | None = None) -> account.StateTables:
    """The plan's ``ledger`` and ``documents`` as Arrow tables, for pandas, Polars, DuckDB or Spark.

    Everything is read into memory, some 200 bytes a row. A larger state is better asked where it lies: its tables are
    open Delta tables.
    """
    return account.tables(state_root(plan, state), plan)
