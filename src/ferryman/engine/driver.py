"""Being the driver of a plan's state: alone, with a Spark session, and with errors in plain words."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from ferryman.engine import migration
from ferryman.engine.preflight import checked
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.class_sharing import make_later
from ferryman.engine.runner.java import check_java
from ferryman.engine.runner.on_demand import OnDemand, cores_of
from ferryman.errors import EngineError, FerrymanError
from ferryman.observe import Observer
from ferryman.plan import Plan, SourceNode
from ferryman.plan.load import pickle_neighbours_by_value
from ferryman.sources import DataFrame
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath, is_disk_full

_READING: Final = ("ferryman.engine.scan.listing", "ferryman.engine.scan.phase")
"""Modules of the tasks that may run before Spark has started."""


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
        session_for(plan.key, [plan], spark, master, conf, observer, soon=needs_executors(taken)) as runner,
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
    """Yield the changes of the plan's code or structure, see ``remember_plan``."""
    remember_plan(state, accept_changes)
    yield


def remember_plan(state: State, accept_changes: bool) -> None:
    """The state remembers the plan; its changes are reported when the run begins.

    Raises:
        PlanChanged: see ``State.record_plan``.
    """
    if not migration.is_pending(state):
        found = state.record_plan(accept_changes=accept_changes)
        again = "to reprocess all, run `ferryman retry --force`"
        state.notes += [f"{change}: existing documents are not reprocessed; {again}" for change in found.structure]
        if found.code:
            state.notes.append(
                f"{', '.join(found.code)} changed: the change applies to documents processed from now on; {again}"
            )
        state.notes += [f"{change}: what was already delivered stays where it is; {again}" for change in found.targets]


@contextlib.contextmanager
def session_for(
    name: str,
    plans: Collection[Plan],
    spark: Any,
    master: str,
    conf: Mapping[str, str],
    observer: Observer,
    soon: bool = False,
) -> Iterator[Runner]:
    """A runner on the given session, on the program's own, or on one of ours; see ``engine.runner.sessions``.

    On this machine one of ours is started when there is something to run on it.

    Args:
        soon: there will be; it is started meanwhile.

    Raises:
        UsageError: Spark cannot be started like this, or the given session was stopped.
    """
    if spark is not None or "pyspark" in sys.modules:  # to load it takes a second
        from ferryman.engine.runner.sessions import checked as checked_session
        from ferryman.engine.runner.sessions import of_program, unlike
        from ferryman.engine.runner.spark import SparkRunner

        if (theirs := of_program() if spark is None else checked_session(spark)) is not None:
            for unheard in unlike(theirs, master, conf):
                observer.message(unheard)
            runner = SparkRunner(theirs)
            if not runner.on_one_machine:
                pickle_neighbours_by_value(plans)
            yield runner
            return
    with contextlib.ExitStack() as given_back_at_end:
        nodes = [node for plan in plans for node in plan.nodes]
        queries = any(isinstance(node, SourceNode) and isinstance(node.source, DataFrame) for node in nodes)

        def tell() -> None:
            observer.message("starting Spark")  # which takes seconds, and says nothing meanwhile

        def begin() -> Runner:
            from ferryman.engine.runner.sessions import borrow
            from ferryman.engine.runner.spark import SparkRunner

            session, give_back = borrow(master, conf, f"ferryman {name}", queries=queries, tell=observer.message)
            given_back_at_end.callback(give_back)
            return SparkRunner(session)

        cores = cores_of(master)
        if cores is None:
            tell()
            pickle_neighbours_by_value(plans)
            yield begin()
            return
        check_java()
        with OnDemand(begin, cores, conf, _READING, tell) as waiting:
            if soon and not queries:  # a session is the active one of the thread that has made it
                waiting.expect()
            yield waiting
    if waiting.started:
        make_later()


def needs_executors(state: State) -> bool:
    """Return whether there is work for executors whatever the sources list."""
    return state.wave == 0 or state.wave > state.settled or bool(state.outbox.files)


@contextlib.contextmanager
def plain_errors(state: State) -> Iterator[None]:
    """A full disk says so, whoever met it."""
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
