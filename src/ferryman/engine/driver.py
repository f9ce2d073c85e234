"""Being the driver of a plan's state: alone, with a Spark session, and with errors in plain words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ferryman.engine import migration
from ferryman.engine.preflight.checked import checked
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.class_sharing import make_later
from ferryman.errors import EngineError, FerrymanError
from ferryman.observe import Observer
from ferryman.plan import Plan, SourceNode
from ferryman.sources import DataFrame
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath, disk_full


@contextlib.contextmanager
def drive(
    plan: Plan,
    state: str | StatePath | None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] = MappingProxyType({}),
    accept_changes: bool = False,
    *,
    preflight: bool = True,
    take_over: bool = False,
    observer: Observer,
) -> Iterator[tuple[State, Runner]]:
    """Be the driver of a plan's state, with a Spark session, for a while. Arguments and errors as for ``run``."""
    root = state_root(plan, state)
    plan.freeze()
    with (
        State.take(root, plan, take_over=take_over) as taken,
        plain_errors(taken),
        check_plan_changes(taken, accept_changes),
        session_for(plan.key, [plan], spark, master, conf, observer) as runner,
        looked_around(runner, [taken], preflight, observer) as trusted,
    ):
        yield taken, trusted


@contextlib.contextmanager
def looked_around(runner: Runner, states: Iterable[State], preflight: bool, observer: Observer) -> Iterator[Runner]:
    """The runner, once its executors have been looked at, if they are other machines; see ``engine.preflight``.

    Raises:
        UsageError: one of them sees something else than the driver. Nothing was done.
    """
    if runner.on_one_machine or not preflight:
        yield runner
        return
    known = [(state.plan, state.root, str(state.identity()["id"])) for state in states]
    with checked(runner, known, observer.message) as trusted:
        yield trusted


@contextlib.contextmanager
def check_plan_changes(state: State, accept_changes: bool) -> Iterator[None]:
    """See ``remember_plan``."""
    remember_plan(state, accept_changes)
    yield


def remember_plan(state: State, accept_changes: bool) -> None:
    """The state remembers the plan; its changes are reported when the run begins.

    Raises:
        PlanChanged: see ``State.follow``.
    """
    if not migration.is_pending(state):
        found = state.follow(accept_changes=accept_changes)
        again = "to reprocess all, run `ferryman retry --force`"
        state.notes += [f"{change}: existing documents are not reprocessed; {again}" for change in found.structure]
        if found.code:
            state.notes.append(
                f"{', '.join(found.code)} changed: the change applies to documents processed from now on; {again}"
            )
        state.notes += [f"{change}: what was already delivered stays where it is; {again}" for change in found.targets]


@contextlib.contextmanager
def session_for(
    name: str, plans: Iterable[Plan], spark: Any, master: str, conf: Mapping[str, str], observer: Observer
) -> Iterator[Runner]:
    """A runner on the given session, on the program's own, or on a new one, which is stopped at the end."""
    from ferryman.engine.runner.spark import SparkRunner, running, start, stop, unlike  # loaded once the state is sound

    theirs = spark if spark is not None else running()
    if theirs is not None:
        for unheard in unlike(theirs, master, conf):
            observer.message(unheard)
        yield SparkRunner(theirs)
        return
    observer.message("starting Spark")  # which takes seconds, and says nothing meanwhile
    nodes = [node for plan in plans for node in plan.nodes]
    queries = any(isinstance(node, SourceNode) and isinstance(node.source, DataFrame) for node in nodes)
    started = start(master, conf, f"ferryman {name}", queries=queries)
    try:
        yield SparkRunner(started)
    finally:
        stop(started)
    if master.startswith("local"):
        make_later()


@contextlib.contextmanager
def plain_errors(state: State) -> Iterator[None]:
    """A full disk says so, whoever met it."""
    try:
        yield
    except Exception as e:
        if disk_full(e):
            raise EngineError(
                f"{state.root}: the disk is full. Nothing is lost: make room and run again. "
                f"(Waiting rows take {sum(file.size for file in state.outbox.files.values())} bytes.)"
            ) from e
        if isinstance(e, OSError) and not isinstance(e, FerrymanError):
            raise EngineError(f"{state.root}: {e}. Nothing is lost: fix it and run again.") from e
        raise
