"""Run: carry a plan's documents to their destinations, or those of all plans of a flow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, overload

from ferryman.engine import driver
from ferryman.engine.flow import FlowRun, take_plans
from ferryman.engine.summary import FlowSummary, Summary
from ferryman.engine.wave import Run
from ferryman.errors import UsageError
from ferryman.observe.progress import Observer, Silent
from ferryman.operations.migrate import migrate
from ferryman.plan import Flow, NotifyTarget, Plan
from ferryman.state.state import state_root
from ferryman.storage.files import StatePath
from ferryman.storage.folder import told_of_state


@overload
def run(
    plan: Plan,
    *,
    state: str | StatePath | None = ...,
    spark: Any = ...,
    master: str = ...,
    conf: Mapping[str, str] | None = ...,
    wait: float | None = ...,
    every: float | None = ...,
    allow_deletes: bool | Collection[str] = ...,
    accept_changes: bool = ...,
    from_version: int | None = ...,
    reset_state: Collection[str] = ...,
    max_pending: int | None = ...,
    notify: Sequence[str] = ...,
    preflight: bool = ...,
    take_over: bool = ...,
    observer: Observer | None = ...,
) -> Summary: ...


@overload
def run(
    plan: Flow,
    *,
    state: str | StatePath | None = ...,
    spark: Any = ...,
    master: str = ...,
    conf: Mapping[str, str] | None = ...,
    wait: float | None = ...,
    every: float | None = ...,
    allow_deletes: bool | Collection[str] = ...,
    accept_changes: bool = ...,
    from_version: int | None = ...,
    reset_state: Collection[str] = ...,
    max_pending: int | None = ...,
    notify: Sequence[str] = ...,
    preflight: bool = ...,
    take_over: bool = ...,
    observer: Observer | None = ...,
) -> FlowSummary: ...


@told_of_state
def run(
    plan: Plan | Flow,
    *,
    state: str | StatePath | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    wait: float | None = None,
    every: float | None = None,
    allow_deletes: bool | Collection[str] = False,
    accept_changes: bool = False,
    from_version: int | None = None,
    reset_state: Collection[str] = (),
    max_pending: int | None = None,
    notify: Sequence[str] = (),
    preflight: bool = True,
    take_over: bool = False,
    observer: Observer | None = None,
) -> Summary | FlowSummary:
    """Run a plan until all is delivered, or nothing more can be done now; a flow until that is so of all its plans.

    The plans of a flow take turns, first those that others read from. One that stops with an error does not stop the
    others: its ``exit`` and the flow's say so, and ``FlowSummary.errors`` has the error. What is said below of a plan
    holds for each plan of a flow.

    Args:
        state: folder of states, or the URL of one in an object store, such as s3://bucket/states; this plan's is
            ``<state>/<plan>-v<version>``. Default ``.ferryman``.
        spark: a SparkSession to use; without one the program's own, of whatever thread, and else a new one with
            ``master`` and ``conf``. Only a new one is stopped at the end: runs in other threads share it, the last ends
            it, and it stays if the program has asked for a session meanwhile.
        wait: seconds to wait for pending deliveries to come due; None: as long as the next is due within 60 s; 0: not
            at all.
        every: keep scanning, with this many seconds from start to start; None: one scan.
        allow_deletes: let a scan delete more than a source's ``max_deleted``: of everything, or of these first-level
            folders.
        accept_changes: go on under this version although the plan's structure has changed.
        from_version: continue from the state of this older version of the plan, if that was not done before. Not for a
            flow.
        reset_state: before anything is read, empty the states of these keyed nodes and of those below them, and read
            the logs that feed them again: from where they were moved, else from their beginning. Not for a flow.
        max_pending: bytes on the disk, 4 GiB if None. While more is pending in the outbox, no more documents are read;
            what is pending is sent.
        notify: who is notified of what goes wrong, beside those that the plan names: see ``Plan.notify``.
        preflight: before anything is read, see whether each executor on another machine sees the folders that the
            driver sees: the state, what sources read, what destinations write to. One that comes later and does not is
            given no task.
        take_over: be the driver of a state in an object store at once, although another one seems to hold it, which you
            know to be dead.
        observer: hears of the progress; nobody by default.

    Raises:
        PlanError, UsageError: nothing was done.
        StateError: the state is held, damaged or foreign; nothing was touched.
        EngineError: Spark or the disk failed; start again and it goes on.
    """
    targets = [NotifyTarget(to) for to in notify]
    if findings := [finding for target in targets for finding in target.findings()]:
        raise UsageError("\n".join(findings))
    observer = observer or Silent()
    options: dict[str, Any] = {
        "wait": wait,
        "allow_deletes": allow_deletes,
        "notify": targets,
        "max_pending": max_pending,
    }
    if isinstance(plan, Flow):
        if from_version is not None:
            raise UsageError(
                f"flow {plan.name}: from_version={from_version} is for one plan: run that plan alone with it first, "
                "then the flow."
            )
        if reset_state:
            raise UsageError(f"flow {plan.name}: reset_state is for one plan: run that plan alone with it first.")
        with (
            take_plans(plan, state, accept_changes, take_over=take_over) as plans,
            driver.session_for(
                plan.name,
                plan.plans,
                spark,
                master,
                conf or {},
                observer,
                soon=any(driver.needs_executors(each.state) for each in plans),
            ) as runner,
            driver.looked_around(runner, [each.state for each in plans], preflight, observer) as trusted,
        ):
            return FlowRun(plan.name, plans, trusted, observer, **options).go(every)
    if from_version is not None:
        plan.freeze()
        migrate(state_root(plan, state), plan, from_version)
    with driver.drive(
        plan,
        state,
        spark,
        master,
        conf or {},
        accept_changes,
        preflight=preflight,
        take_over=take_over,
        observer=observer,
    ) as (taken, runner):
        return Run(taken, runner, observer, reset=reset_state, **options).go(every)
