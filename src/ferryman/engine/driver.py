"""Becoming the driver of a plan's state: takes the state, opens a runner on Spark, and explains errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ferryman.engine import migration
from ferryman.engine.preflight import check_runner
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.class_sharing import make_in_background
from ferryman.engine.runner.launch import Launch, check_java
from ferryman.engine.runner.on_demand import OnDemandRunner, cores_of, is_default
from ferryman.engine.settings import SparkSettings
from ferryman.errors import EngineError, FerrymanError, UsageError
from ferryman.observe import Observer
from ferryman.plan import Plan, SourceNode
from ferryman.plan.load import pickle_neighbours_by_value
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath, is_disk_full


def check_default_state(spark: Any = None) -> None:
    """Check that the default folder of states is kept after the run; in cluster mode it lies in a container.

    Raises:
        UsageError: it is not.
    """
    if spark is None and "pyspark" not in sys.modules and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    from ferryman.engine.runner.sessions import program_session, runs_in_cluster_mode

    if runs_in_cluster_mode(spark or program_session()):
        raise UsageError(
            "in Spark's cluster mode the default state would lie in a container that goes with this job, and the next "
            "job would deliver everything again. Give the state a place that stays, by run(plan, state=…) or --state: "
            "a folder that all machines share, or the URL of an object store, such as s3://bucket/states."
        )


@contextlib.contextmanager
def drive(
    plan: Plan,
    state: str | StatePath | None,
    spark: SparkSettings,
    *,
    accept_changes: bool = False,
    preflight: bool = True,
    take_over: bool = False,
    observer: Observer,
) -> Iterator[tuple[State, Runner]]:
    """Take a plan's state, and be its driver within the block; yields the state and a runner. Arguments and errors as
    for ``run``."""
    root = state_root(plan, state)
    plan.freeze()
    with (
        State.take(root, plan, take_over=take_over) as held_state,
        explain_errors(held_state),
        check_plan_changes(held_state, accept_changes),
        open_runner(plan.key, [plan], spark, observer, start_early=needs_executors(held_state)) as runner,
        check_executors(runner, [held_state], preflight, observer) as checked_runner,
    ):
        yield held_state, checked_runner


@contextlib.contextmanager
def check_executors(runner: Runner, states: Iterable[State], preflight: bool, observer: Observer) -> Iterator[Runner]:
    """Compare what executors on other machines see with what the driver sees, and yield the runner; see
    ``engine.preflight``.

    Raises:
        UsageError: an executor sees something else. Nothing was done.
    """
    if runner.on_one_machine or not preflight:
        yield runner
        return
    states_to_check = [(state.plan, state.root, str(state.identity()["id"])) for state in states]
    with check_runner(runner, states_to_check, observer.message) as checked_runner:
        yield checked_runner


@contextlib.contextmanager
def check_plan_changes(state: State, accept_changes: bool) -> Iterator[None]:
    """Record the plan in its state before the block runs, see ``record_plan_changes``."""
    record_plan_changes(state, accept_changes)
    yield


def record_plan_changes(state: State, accept_changes: bool) -> None:
    """Record the plan in its state, and add a note on each of its changes, for the run to report.

    Raises:
        PlanChanged: see ``State.record_plan``.
    """
    if not migration.is_pending(state):
        changes = state.record_plan(accept_changes=accept_changes)
        remedy = "to reprocess all, run `ferryman retry PLAN --force`"
        state.notes += [f"{change}: existing documents are not reprocessed; {remedy}" for change in changes.structure]
        if changes.code:
            state.notes.append(
                f"{', '.join(changes.code)} changed: the change applies to documents processed from now on; {remedy}"
            )
        state.notes += [
            f"{change}: what was already delivered stays where it is; {remedy}" for change in changes.targets
        ]


@contextlib.contextmanager
def open_runner(
    name: str,
    plans: Collection[Plan],
    spark: SparkSettings,
    observer: Observer,
    *,
    start_early: bool = False,
) -> Iterator[Runner]:
    """Yield a runner on the given session, on the program's own, or on one of ours; see ``engine.runner.sessions``.

    On this machine, one of ours starts when the first task needs it.

    Args:
        start_early: start it in the background as soon as it is likely that a task will need it.

    Raises:
        UsageError: Spark cannot be started like this, or the given session was stopped.
    """
    given, master, conf = spark
    if given is not None or "pyspark" in sys.modules:  # loading PySpark only to look for a session takes a second
        from ferryman.engine.runner.sessions import check_session, ignored_settings, program_session
        from ferryman.engine.runner.spark import SparkRunner

        if (existing := program_session() if given is None else check_session(given)) is not None:
            for note in ignored_settings(existing, master, conf):
                observer.message(note)
            runner = SparkRunner(existing)
            if not runner.on_one_machine:
                pickle_neighbours_by_value(plans)
            yield runner
            return
    with contextlib.ExitStack() as cleanup:
        nodes = [node for plan in plans for node in plan.nodes]
        queries = any(isinstance(node, SourceNode) and node.source.runs_queries for node in nodes)

        launch = Launch()

        def announce() -> None:
            observer.message("starting Spark")  # which takes seconds, and says nothing meanwhile

        def start() -> Runner:
            from ferryman.engine.runner.sessions import borrow
            from ferryman.engine.runner.spark import SparkRunner

            session, give_back = borrow(
                master, conf, f"ferryman {name}", queries=queries, report=observer.message, launch=launch
            )
            cleanup.callback(give_back)
            return SparkRunner(session)

        cores = cores_of(master)
        if cores is None:
            announce()
            pickle_neighbours_by_value(plans)
            yield start()
            return
        check_java()
        small_waves = is_default(master, conf, os.environ)
        with OnDemandRunner(start, cores, conf, announce, launch.abort, small_waves=small_waves) as on_demand:
            if start_early and not queries:  # a session is active only in the thread that made it
                on_demand.expect_work()
            yield on_demand
    if on_demand.early is None:
        make_in_background()


def needs_executors(state: State) -> bool:
    """Return whether there is work for executors whatever the sources list."""
    return state.wave == 0 or state.wave > state.settled or bool(state.outbox.files)


@contextlib.contextmanager
def explain_errors(state: State) -> Iterator[None]:
    """Convert errors of the operating system within the block to errors that say what to do."""
    try:
        yield
    except Exception as e:
        if is_disk_full(e):
            raise EngineError(
                f"{state.root}: the disk is full. Nothing is lost: make room and run again. "
                f"(Waiting rows take {sum(file.size for file in state.outbox.files.values())} bytes.)"
            ) from e
        if isinstance(e, OSError) and not isinstance(e, FerrymanError):
            raise EngineError(f"{state.root}: {e}. Nothing is lost: fix it and run again.") from e
        raise
