"""Ferryman: fault-tolerant document indexing on Spark.

A plan carries documents from sources, through steps, to destinations; every one is accounted for at every destination.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferryman.destinations.base import Effect, Guarantee
from ferryman.document import Document
from ferryman.errors import Dropped, Misconfigured, PermanentError, TransientError, Unavailable, UsageError
from ferryman.plan import Plan

if TYPE_CHECKING:
    from ferryman.destinations.sql.searching import Hit
    from ferryman.engine.preview import Preview
    from ferryman.engine.wave import Summary
    from ferryman.ledger.account import StateTables
    from ferryman.ledger.commands import Retried
    from ferryman.ledger.fsck import Finding

__all__ = [
    "Document",
    "Dropped",
    "Effect",
    "Guarantee",
    "Misconfigured",
    "PermanentError",
    "Plan",
    "TransientError",
    "Unavailable",
    "deliveries",
    "fsck",
    "history",
    "preview",
    "resolve",
    "retry",
    "run",
    "search",
    "status",
    "tables",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def run(
    plan: Plan,
    *,
    state: str | Path | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    wait: float | None = None,
    every: float | None = None,
    allow_deletes: bool | Collection[str] = False,
    accept_changes: bool = False,
    from_version: int | None = None,
    max_pending: int | None = None,
    notify: Sequence[str] = (),
) -> Summary:
    """Run a plan until all is delivered, or nothing more can be done now.

    Args:
        state: directory of states; this plan's is ``<state>/<plan>-v<version>``. Default ``.ferryman``.
        spark: a SparkSession to use; without one the program's active session, and else a new one with ``master``
            and ``conf``. Only a new one is stopped at the end.
        wait: seconds to wait for owed rows to come due; None: as long as the next is due within 60 s; 0: not at all.
        every: keep scanning, with this many seconds from start to start; None: one scan.
        allow_deletes: let a scan delete more than a source's ``max_deleted``: of everything, or of these first-level
            folders.
        accept_changes: go on under this version although the plan's structure has changed.
        from_version: carry on from the state of this older version of the plan, if that was not done before.
        max_pending: bytes on the disk, 4 GiB if None. While more is pending in the outbox, no more documents are read;
            what is pending is sent.
        notify: who is told what goes wrong, beside those that the plan names: see ``Plan.notify``.

    Raises:
        PlanError, UsageError: nothing was done.
        StateError: the state is held, damaged or foreign; nothing was touched.
        EngineError: Spark or the disk failed; start again and it goes on.
    """
    from ferryman.engine import wave
    from ferryman.plan import NotifyTarget

    targets = [NotifyTarget(to) for to in notify]
    if findings := [finding for target in targets for finding in target.findings()]:
        raise UsageError("\n".join(findings))
    return wave.run(
        plan,
        state=state,
        spark=spark,
        master=master,
        conf=conf,
        wait=wait,
        every=every,
        allow_deletes=allow_deletes,
        accept_changes=accept_changes,
        from_version=from_version,
        max_pending=max_pending,
        notify=targets,
    )


def preview(
    plan: Plan,
    *,
    state: str | Path | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    limit: int = 20,
    document: str | None = None,
) -> Preview:
    """What the next run would do with its first documents, or with one. Writes nothing, calls no destination.

    Args:
        state: directory of states, as for ``run``; it need not be there, and a run may hold it.
        spark, master, conf: as for ``run``.
        limit: how many documents are transformed, at most.
        document: id of the only one that is, also if the run would leave it alone.

    Raises:
        PlanError, UsageError: the plan cannot run; a limit below 1; no source has this document.
        StateError: the state is damaged or foreign.
        EngineError: Spark failed, or there is no room for scratch files: they go where TMPDIR says.
    """
    from ferryman.engine import preview

    return preview.preview(plan, state=state, spark=spark, master=master, conf=conf, limit=limit, document=document)


def status(plan: Plan, *, state: str | Path | None = None) -> dict[str, Any]:
    """What became of the plan's documents, as ``ferryman status --json`` shows it."""
    from ferryman.ledger import account
    from ferryman.ledger.state import state_root

    return account.status(state_root(plan, state), plan)


def deliveries(
    plan: Plan,
    *,
    state: str | Path | None = None,
    status: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    family: str | None = None,
    incomplete: bool = False,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Deliveries of current documents, each by its latest event, newest first, with the ledger's columns.

    Args:
        status: as shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case.
        family: only of this origin and what was made of it; or of the rows of this file.
        incomplete: not deliveries but families of which some are pending or in doubt: ``source``, ``family``, and how
            many ``deliveries`` it has, ``ended``, ``pending``, ``in_doubt``, ``failed``, ``rejected``. Goes with
            ``source`` and ``family`` only.
    """
    from ferryman.ledger import account, wholeness
    from ferryman.ledger.state import state_root

    root = state_root(plan, state)
    if incomplete:
        if status is not None or destination is not None:
            raise UsageError("incomplete: it goes with source and family only.")
        return [each._asdict() for each in wholeness.incomplete(root, plan, source, family)[:limit]]
    return account.deliveries(
        root, status=status, destination=destination, source=source, family=family, limit=limit, plan=plan
    )


def history(plan: Plan, document: str, *, state: str | Path | None = None) -> list[dict[str, Any]]:
    """Every event of a document and its family, oldest first, with the ledger's columns."""
    from ferryman.ledger import account
    from ferryman.ledger.state import state_root

    return account.history(state_root(plan, state), document, plan)


def retry(
    plan: Plan,
    *,
    state: str | Path | None = None,
    status: str | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    force: bool = False,
    dirty: bool = False,
    why: str = "",
) -> Retried:
    """Try again what failed; with ``force`` read documents again as new revisions; with ``dirty`` have the next scan
    read them, whatever their fingerprints say, and feed them if they changed. See ``ferryman retry --help``."""
    from ferryman.ledger import commands

    return commands.retry(
        plan,
        state=state,
        status=status,
        document=document,
        destination=destination,
        source=source,
        force=force,
        dirty=dirty,
        why=why,
    )


def resolve(
    plan: Plan,
    word: str,
    *,
    state: str | Path | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    why: str = "",
) -> Retried:
    """Record what became of deliveries in doubt: ``"delivered"``, ``"failed"`` or ``"pending"``."""
    from ferryman.ledger import commands

    return commands.resolve(plan, word, state=state, document=document, destination=destination, source=source, why=why)


def fsck(plan: Plan, *, state: str | Path | None = None) -> list[Finding]:
    """Verify every file of the plan's state: what is damaged or missing, and what can be done; [] if all is well."""
    from ferryman.ledger import fsck
    from ferryman.ledger.state import state_root

    return fsck.fsck(state_root(plan, state))


def tables(plan: Plan, *, state: str | Path | None = None) -> StateTables:
    """The plan's ``ledger`` and ``documents`` as Arrow tables, for pandas, Polars, DuckDB or Spark.

    Everything is read into memory, some 200 bytes a row. A larger state is better asked where it lies: its tables are
    open Delta tables.
    """
    from ferryman.ledger import account
    from ferryman.ledger.state import state_root

    return account.tables(state_root(plan, state), plan)


def search(index: str, text: str, *, table: str = "documents", limit: int = 10) -> list[Hit]:
    """Full-text search in what the ``Sql`` destination wrote: hits with ``id``, ``title``, ``snippet`` and ``rank``,
    best first.

    Args:
        index: path or URL of the database, as the plan gives it to ``Sql``.
        text: words that a document must have, all of them; ``"in quotes"`` they must follow each other, and ``kill*``
            means all words that begin so.

    Raises:
        UsageError: there is no such file or table, it has no full-text index, or the server does not answer.
    """
    from ferryman.destinations.sql.search import search

    return search(index, text, table, limit)
