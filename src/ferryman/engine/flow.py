"""Runs of a flow: its plans take turns on one session, each as the driver of its own state.

1. The states of all plans are taken, and each plan is compared with what it was: nothing runs if one is refused.
2. Each plan recovers what its last driver left.
3. A round: the plans take turns, in the order of the flow. A plan scans in its first turn, and again once a plan that
   it reads from has committed a wave; in other turns it does what is due.
4. Rounds follow until one commits nothing. Then what comes due next is waited for, of whatever plan; or all is done.
5. With ``every`` the next period begins with a scan of each plan, and with those that had stopped.

Nothing durable is added to that of the plans' own runs: a flow that is killed and started again goes on as they do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from ferryman import limits
from ferryman.engine import migration
from ferryman.engine.breakers import backoff_s
from ferryman.engine.driver import plain_errors, remember_plan
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner
from ferryman.engine.summary import FlowSummary, Summary
from ferryman.errors import PlanChanged, StateLost, message_of
from ferryman.observe import Observer
from ferryman.plan import Flow, Plan, changes, structure
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath


@contextlib.contextmanager
def take_plans(
    flow: Flow, state: str | StatePath | None, accept_changes: bool = False, *, take_over: bool = False
) -> Iterator[list[FlowPlan]]:
    """The flow's plans in the order of their turns, all of whose states are taken (1), for a while.

    Raises:
        PlanError, PlanChanged, StateFolderError, UsageError, EngineError: nothing was done.
    """
    flow.freeze()
    plans = {
        flow.label(each): FlowPlan(each, flow.label(each), state_root(each, state), accept_changes)
        for each in flow.order
    }
    for joint in flow.joints:
        plans[joint.writer].readers.append(plans[joint.reader])
    try:
        for plan in plans.values():
            plan.take(take_over=take_over)
        yield list(plans.values())
    finally:
        for plan in plans.values():
            plan.release()


class FlowRun:
    """The drivers of a flow's states, in one process.

    Args:
        flow: its name.
        plans: see ``take_plans``.
        wait: as for ``Run``; all plans wait together.
        options: of each plan's ``Run``.
    """

    def __init__(
        self,
        flow: str,
        plans: Sequence[FlowPlan],
        runner: Runner,
        observer: Observer,
        *,
        wait: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        self._flow = flow
        self._plans = plans
        self._runner = runner
        self._observer = observer
        self._wait = wait
        self._waited = 0.0
        self._sleep = sleep
        self._clock = clock
        self._options = options
        self._endless = False
        self._restarts: dict[str, float] = {}
        """Plans that have stopped -> when they are started again."""

    def go(self, every: float | None = None) -> FlowSummary:
        """Rounds until nothing can be done; with ``every`` permanently, as long as a plan runs."""
        self._endless = every is not None
        self._each(lambda plan: plan.begin(self._run_of))  # 2
        while True:
            began = self._clock()
            self._period(None if every is None else began + every)
            self._each(FlowPlan.report)
            if every is None or not any(plan.runs for plan in self._plans):
                return self._finish()
            self._sleep(max(0.0, began + every - self._clock()))
            self._renew()

    def _run_of(self, state: State) -> Run:
        return Run(state, self._runner, self._observer, wait=0, sleep=self._sleep, clock=self._clock, **self._options)

    def _period(self, until: float | None) -> None:
        """3 and 4."""
        while True:
            if self._round():
                continue
            pause = self._pause_s()
            if pause is None:
                return
            limit = limits.WAIT_S if self._wait is None else self._wait - self._waited
            if pause > limit or (until is not None and self._clock() + pause > until):
                return
            if pause > 0:
                self._waited += pause if self._wait is not None else 0
                self._sleep(pause)

    def _pause_s(self) -> float | None:
        """Until a plan can do something."""
        pauses: list[float] = []

        def ask(plan: FlowPlan) -> None:
            if (due := plan.due_s()) is not None:
                pauses.append(due)

        self._each(ask)
        return min(pauses, default=None)

    def _round(self) -> bool:
        """A turn of each plan; has any committed a wave?"""
        moved = False

        def turn(plan: FlowPlan) -> None:
            nonlocal moved
            moved |= plan.turn(endless=self._endless)

        self._each(turn)
        return moved

    def _renew(self) -> None:
        """5."""
        for plan in self._plans:
            plan.fed = True
            if plan.may_restart and self._clock() >= self._restarts.get(plan.name, 0.0):
                self._about(plan, self._restart)

    def _restart(self, plan: FlowPlan) -> None:
        try:
            plan.take()
        except Exception as e:
            plan.stop(e)
            return
        self._observer.message("it is started again")
        plan.begin(self._run_of)

    def _each(self, act: Callable[[FlowPlan], None]) -> None:
        """Call ``act`` for every plan that runs or has not begun; messages meanwhile are about that plan."""
        for plan in self._plans:
            if plan.error is None:
                self._about(plan, act)

    def _about(self, plan: FlowPlan, act: Callable[[FlowPlan], None]) -> None:
        """Do something with a plan; report it if that stops it."""
        before = plan.error
        self._observer.about(plan.name)
        act(plan)
        if plan.error is not None and plan.error is not before:
            pause = backoff_s(plan.stops)
            self._restarts[plan.name] = self._clock() + pause
            again = f" It is started again after {pause:g} s." if self._endless and plan.may_restart else ""
            others = " The other plans go on." if any(m.error is None for m in self._plans) else ""
            if before is None or message_of(before) != message_of(plan.error):
                self._observer.message(f"error: it stopped: {message_of(plan.error)}{others}{again}")
        self._observer.about("")

    def _finish(self) -> FlowSummary:
        summary = FlowSummary(self._flow)
        self._each(FlowPlan.finish)
        for plan in self._plans:
            summary.plans[plan.name] = plan.summary
            if plan.error is not None:
                summary.errors[plan.name] = plan.error
        return summary


# One plan of a flow, while the flow runs: it has a state and a run of its own, and may stop without the others.

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
        """Return the plan's state, after ``take``."""
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
            if differences := changes(self._state.recorded_structure(), structure(self.plan)).structure:
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
        """Send notifications and keep counts, see ``Run.report``."""
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
