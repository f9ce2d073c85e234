"""Being the driver of a plan's state: alone, with a Spark session, and with errors in plain words."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ferryman.engine.runner import Runner
from ferryman.errors import EngineError, FerrymanError
from ferryman.ledger import versions
from ferryman.ledger.state import State, state_root
from ferryman.plan import Plan


@contextlib.contextmanager
def driving(
    plan: Plan,
    state: str | Path | None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] = MappingProxyType({}),
    accept_changes: bool = False,
) -> Iterator[tuple[State, Runner]]:
    """Be the driver of a plan's state, with a Spark session, for a while. Arguments and errors as for ``run``."""
    plan.freeze()
    with (
        State.take(state_root(plan, state), plan) as taken,
        plain_errors(taken),
        followed(taken, accept_changes),
        session_for(plan, spark, master, conf) as runner,
    ):
        yield taken, runner


@contextlib.contextmanager
def followed(state: State, accept_changes: bool) -> Iterator[None]:
    """The state remembers the plan; what a person should know of its changes is told when the run begins."""
    if not versions.is_pending(state):
        found = state.follow(accept_changes=accept_changes)
        again = "`ferryman retry --force` has all done again"
        state.notes += [f"{change}: what is done is not done again; {again}" for change in found.structure]
        if found.code:
            state.notes.append(
                f"{', '.join(found.code)} changed: only documents that are taken up from now on see it; {again}"
            )
        state.notes += [f"{change}: what was delivered stays where it is; {again}" for change in found.targets]
    yield


@contextlib.contextmanager
def session_for(plan: Plan, spark: Any, master: str, conf: Mapping[str, str]) -> Iterator[Runner]:
    """A runner on the given session, on the program's own, or on a new one, which is stopped at the end."""
    from ferryman.engine import session  # Spark is started only once the state is known to be sound

    theirs = spark if spark is not None else session.running()
    if theirs is not None:
        yield session.SparkRunner(theirs)
        return
    started = session.start(master, conf, f"ferryman {plan.key}")
    try:
        yield session.SparkRunner(started)
    finally:
        started.stop()


@contextlib.contextmanager
def plain_errors(state: State) -> Iterator[None]:
    """A full disk says so, whoever met it."""
    try:
        yield
    except Exception as e:
        full = isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or (not isinstance(e, OSError) and "No space left on device" in str(e)):
            raise EngineError(
                f"{state.root}: the disk is full. Nothing is lost: make room and run again. "
                f"(Waiting rows take {state.bytes_owed()} bytes.)"
            ) from e
        if isinstance(e, OSError) and not isinstance(e, FerrymanError):
            raise EngineError(f"{state.root}: {e}. Nothing is lost: mend it and run again.") from e
        raise
