"""One plan of a flow, while the flow runs: it has a state and a run of its own, and may stop without the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from ferryman.engine import migration
from ferryman.engine.driver import plain_errors, remember_plan
from ferryman.engine.summary import Summary
from ferryman.engine.wave import Run
from ferryman.errors import PlanChanged, StateLost
from ferryman.plan import Plan, changes, structure
from ferryman.state.state import State
from ferryman.storage.files import StatePath

Answer = TypeVar("Answer")

_IDLE_TURNS: Final = 2
"""Turns in a row that may move nothing though something is due (a pending document is not listed any more): then it
waits for something new."""


class FlowPlan:
    """A plan of a flow that runs.

    Attributes:
        name: the plan's, as the flow calls it.
        readers: those that read what it writes.
        error: why it stopped; None: it has not.
        summary: of its run, once that has ended.
        fed: there may be something that it has not listed.
        stops: how often in a row it has stopped.
    """

    def __init__(self, plan: Plan, name: str, root: StatePath, accept_changes: bool = False) -> None:
        self.plan = plan
        self.name = name
        self.readers: list[FlowPlan] = []
        self.error: Exception | None = None
        self.summary = Summary()
        self.fed = True
        self.stops = 0
        self._root = root
        self._accept_changes = accept_changes
        self._state: State | None = None
        self._run: Run | None = None
        self._idle = 0

    @property
    def state(self) -> State:
        """Its state, which was taken."""
        assert self._state is not None
        return self._state

    def take(self, *, take_over: bool = False) -> None:
        """Become the driver of its state; ``take_over``: see ``State.take``.

        Raises:
            PlanChanged: the plan is not what it was; nothing was changed.
            StateFolderError, UsageError, EngineError: see ``State.take``.
        """
        self._state = State.take(self._root, self.plan, take_over=take_over)
        with plain_errors(self._state):
            if self._accept_changes or migration.is_pending(self._state):
                return
            if differences := changes(self._state.remembered(), structure(self.plan)).structure:
                raise PlanChanged(self.plan.name, self.plan.version, differences)

    def release(self) -> None:
        """Stop being the driver of its state."""
        self._run = None
        if self._state is not None:
            self._state.release()
            self._state = None

    def begin(self, run: Callable[[State], Run]) -> None:
        """Recover what the last driver left. Its state is taken."""
        assert self._state is not None
        try:
            with plain_errors(self._state):
                remember_plan(self._state, self._accept_changes)
                self._run = run(self._state)
                self._run.recover()
            self.error = None
        except Exception as e:
            self.stop(e)

    @property
    def runs(self) -> bool:
        """Has it begun, and not stopped?"""
        return self._run is not None

    @property
    def may_restart(self) -> bool:
        """Not where another driver holds its state now, though this one had it: they would take it from each other."""
        return not self.runs and not isinstance(self.error, StateLost)

    def due_s(self) -> float | None:
        """Seconds until something can be done without a scan; None: nothing, or it has tried in vain."""
        return None if self._idle >= _IDLE_TURNS else self._do(lambda run: run.due_s())

    def turn(self, *, endless: bool) -> bool:
        """Do what can be done now, if there is anything. Has it committed a wave?"""
        state = self._state
        if state is None or not (self.fed or self.due_s() == 0):
            return False
        before, scan, self.fed = state.wave, self.fed, False
        if self._do(lambda run: run.turn(scan=scan, endless=endless)) is not None:
            self.stops = 0
        moved = state.wave > before
        self._idle = 0 if moved or self._do(lambda run: run.due_s()) != 0 else self._idle + 1
        for reader in self.readers if moved else ():
            reader.fed = True
        return moved

    def report(self) -> None:
        """See ``Run.report``."""
        self._do(lambda run: run.report())

    def finish(self) -> None:
        """Sum up what it did and left."""
        self.summary = self._do(lambda run: run.finish()) or self.summary

    def stop(self, error: Exception) -> None:
        """Let it be: the others go on. Its state is free for whoever repairs it."""
        self.error = error
        self.stops += 1
        if self._run is not None:
            with contextlib.suppress(Exception):  # its state may be what is wrong
                self.summary = self._run.finish()
        self.summary.exit = getattr(error, "exit_code", 1)
        self.release()

    def _do(self, act: Callable[[Run], Answer]) -> Answer | None:
        """Unless it has stopped; what is raised stops it."""
        if self._state is None or self._run is None:
            return None
        try:
            with plain_errors(self._state):
                return act(self._run)
        except Exception as e:
            self.stop(e)
            return None
