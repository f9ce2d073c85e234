"""Run: carry a plan's documents to their destinations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ferryman.engine.driver import drive
from ferryman.engine.summary import Summary
from ferryman.engine.wave import Run
from ferryman.errors import UsageError
from ferryman.observe.progress import Observer, Silent
from ferryman.operations.migrate import migrate
from ferryman.plan import NotifyTarget, Plan
from ferryman.state.state import state_root


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
    observer: Observer | None = None,
) -> Summary:
    """Run a plan until all is delivered, or nothing more can be done now.

    Args:
        state: directory of states; this plan's is ``<state>/<plan>-v<version>``. Default ``.ferryman``.
        spark: a SparkSession to use; without one the program's active session, and else a new one with ``master`` and
            ``conf``. Only a new one is stopped at the end.
        wait: seconds to wait for pending deliveries to come due; None: as long as the next is due within 60 s; 0: not
            at all.
        every: keep scanning, with this many seconds from start to start; None: one scan.
        allow_deletes: let a scan delete more than a source's ``max_deleted``: of everything, or of these first-level
            folders.
        accept_changes: go on under this version although the plan's structure has changed.
        from_version: continue from the state of this older version of the plan, if that was not done before.
        max_pending: bytes on the disk, 4 GiB if None. While more is pending in the outbox, no more documents are read;
            what is pending is sent.
        notify: who is notified of what goes wrong, beside those that the plan names: see ``Plan.notify``.
        observer: hears of the progress; nobody by default.

    Raises:
        PlanError, UsageError: nothing was done.
        StateError: the state is held, damaged or foreign; nothing was touched.
        EngineError: Spark or the disk failed; start again and it goes on.
    """
    targets = [NotifyTarget(to) for to in notify]
    if findings := [finding for target in targets for finding in target.findings()]:
        raise UsageError("\n".join(findings))
    if from_version is not None:
        plan.freeze()
        migrate(state_root(plan, state), plan, from_version)
    observer = observer or Silent()
    with drive(plan, state, spark, master, conf or {}, accept_changes, observer=observer) as (taken, runner):
        return Run(
            taken,
            runner,
            observer,
            wait=wait,
            allow_deletes=allow_deletes,
            notify=targets,
            max_pending=max_pending,
        ).go(every)
