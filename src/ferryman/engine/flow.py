"""Runs of a flow: its plans take turns on one session, each as the driver of its own state.

1. Take the states of all plans, and compare each plan with its last run; nothing runs if one is refused.
2. Recover each plan from whatever its last driver left unfinished.
3. Run a round: the plans take turns, in the order of the flow. A plan scans in its first turn, and whenever a plan that
   it reads from has committed a wave; in other turns it only does what is due.
4. Repeat rounds until one commits nothing. Then wait for whatever comes due next in any plan, or end if nothing does.
5. With ``every``, begin the next period: each plan scans again, and plans that had stopped are restarted.

If Spark is lost, all plans stop: none could do anything in this process.

A flow stores nothing besides its plans' own states: if it is killed and started again, it continues like these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from ferryman import limits
from ferryman.breaker import backoff_s
from ferryman.engine import migration
from ferryman.engine.driver import explain_errors, record_plan_changes
from ferryman.engine.results import Look
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner, RunnerLost
from ferryman.engine.settings import DEFAULT_CLOCK, DEFAULT_SETTINGS, Clock, RunSettings
from ferryman.engine.summary import FlowSummary, Summary
from ferryman.errors import PlanChanged, StateLost, message_of
from ferryman.observe import Observer
from ferryman.plan import Flow, Plan, changes, structure
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.watch import EventWatch


@contextlib.contextmanager
def take_plans(
    flow: Flow, state: str | StatePath | None, accept_changes: bool = False, *, take_over: bool = False
) -> Iterator[list[FlowPlan]]:
    """Take the states of all plans of a flow (1), and yield the plans in the order of their turns.

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
    """Run of a flow: drives the states of all its plans in one process.

    Args:
        flow: its name.
        plans: see ``take_plans``.
        settings: of each plan's ``Run``; all plans wait together.
    """

    def __init__(
        self,
        flow: str,
        plans: Sequence[FlowPlan],
        runner: Runner,
        observer: Observer,
        settings: RunSettings = DEFAULT_SETTINGS,
        clock: Clock = DEFAULT_CLOCK,
    ) -> None:
        self._flow = flow
        self._plans = plans
        self._runner = runner
        self._observer = observer
        self._settings = settings
        self._waited = 0.0
        self._clock = clock
        self._endless = False
        self._lost: RunnerLost | None = None
        """Why no plan can do anything any more."""
        self._restart_times: dict[str, float] = {}
        """Plan that has stopped -> time of the clock at which it is started again."""

    def run(self, every: float | None = None, watch: EventWatch | None = None) -> FlowSummary:
        """Run rounds until nothing more can be done; with ``every`` (seconds), repeat as long as a plan can run.

        Args:
            watch: between two periods, look at what has changed as soon as that is noticed.
        """
        self._endless = every is not None
        self._for_each_plan(lambda plan: plan.start(self._make_run))  # 2
        while True:
            started = self._clock.now()
            self._run_rounds(None if every is None else started + every)
            self._for_each_plan(FlowPlan.report)
            if self._lost is not None:
                self._stop_all(self._lost)
            if every is None or not any(plan.is_running for plan in self._plans):
                return self._finish()
            if watch is None:
                self._sleep(max(0.0, started + every - self._clock.now()))
            else:
                self._follow(watch, started + every)
            self._begin_period()

    def _follow(self, watch: EventWatch, until: float) -> None:
        """Process what changes, and what comes due, until it is time for the next period."""
        self._list_again(watch)
        while self._lost is None and (found := watch.wait(until, self._have_work)) is not None:
            for plan in self._plans:
                plan.to_list = found.get(plan.name, {})
            self._run_rounds(until)
            self._list_again(watch)
            self._for_each_plan(lambda plan: plan.notify())

    def _list_again(self, watch: EventWatch) -> None:
        self._for_each_plan(lambda plan: watch.list_again(plan.name, plan.take_contradicted()))

    def _have_work(self) -> bool:
        """Return whether a plan has work that needs no scan."""
        working: list[bool] = []
        self._for_each_plan(lambda plan: working.append(plan.has_work()))
        return any(working)

    def _make_run(self, state: State) -> Run:
        return Run(state, self._runner, self._observer, replace(self._settings, wait=0), self._clock)

    def _run_rounds(self, until: float | None) -> None:
        """Run rounds, and wait for what comes due between them (3 and 4)."""
        while True:
            if self._take_turns():
                continue
            pause = self._pause_s()
            if pause is None:
                return
            limit = limits.WAIT_S if self._settings.wait is None else self._settings.wait - self._waited
            if pause > limit or (until is not None and self._clock.now() + pause > until):
                return
            if pause > 0:
                self._waited += pause if self._settings.wait is not None else 0
                self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        self._observer.waits(seconds)
        self._clock.sleep(seconds)

    def _pause_s(self) -> float | None:
        """Return the seconds until any plan can do something; None: no plan can."""
        pauses: list[float] = []

        def add_pause(plan: FlowPlan) -> None:
            if (due := plan.due_s()) is not None:
                pauses.append(due)

        self._for_each_plan(add_pause)
        return min(pauses, default=None)

    def _take_turns(self) -> bool:
        """Give each plan a turn, and return whether any committed a wave."""
        committed = False

        def turn(plan: FlowPlan) -> None:
            nonlocal committed
            committed |= plan.turn(endless=self._endless)

        self._for_each_plan(turn)
        return committed

    def _begin_period(self) -> None:
        """Have each plan scan again, and restart those that stopped (5)."""
        for plan in self._plans:
            plan.has_new_input = True
            if plan.may_restart and self._clock.now() >= self._restart_times.get(plan.name, 0.0):
                self._run_for_plan(plan, self._restart)

    def _restart(self, plan: FlowPlan) -> None:
        try:
            plan.take()
        except Exception as e:
            plan.stop(e)
            return
        self._observer.message("it is started again")
        plan.start(self._make_run)

    def _for_each_plan(self, act: Callable[[FlowPlan], None]) -> None:
        """Call ``act`` for every plan that has not stopped; messages meanwhile are about that plan."""
        for plan in self._plans:
            if plan.error is None and self._lost is None:
                self._run_for_plan(plan, act)

    def _stop_all(self, error: RunnerLost) -> None:
        for plan in self._plans:
            if plan.error is None:
                plan.stop(error)

    def _run_for_plan(self, plan: FlowPlan, act: Callable[[FlowPlan], None]) -> None:
        """Call ``act`` for a plan, and report if an error in it stops the plan."""
        previous_error = plan.error
        self._observer.about(plan.name)
        act(plan)
        if plan.error is not None and plan.error is not previous_error:
            pause = backoff_s(plan.failures)
            self._restart_times[plan.name] = self._clock.now() + pause
            restart = f" It is started again after {pause:g} s." if self._endless and plan.may_restart else ""
            others = " The other plans go on." if any(m.error is None for m in self._plans) else ""
            if isinstance(plan.error, RunnerLost):
                self._lost = plan.error
                others, restart = others.replace("go on", "stop, too"), ""
            if previous_error is None or message_of(previous_error) != message_of(plan.error):
                self._observer.message(f"error: it stopped: {message_of(plan.error)}{others}{restart}")
        self._observer.about("")

    def _finish(self) -> FlowSummary:
        summary = FlowSummary(self._flow)
        self._for_each_plan(FlowPlan.finish)
        for plan in self._plans:
            summary.plans[plan.name] = plan.summary
            if plan.error is not None:
                summary.errors[plan.name] = plan.error
        return summary


# One plan of a running flow: it has its own state and run, and may stop while the others continue.

Result = TypeVar("Result")

_IDLE_TURNS: Final = 2
"""Consecutive turns without a commit although something is due (a pending document may no longer be listed), after
which the plan waits for new input."""


class FlowPlan:
    """One plan of a running flow, with its state and its run.

    Attributes:
        name: the plan's name in the flow.
        readers: names of the plans that read what this one writes.
        error: why it stopped; None: it has not.
        summary: summary of the run, once that has ended.
        has_new_input: whether its sources may have something that it has not listed yet.
        failures: number of consecutive times that it has stopped.
    """

    def __init__(self, plan: Plan, name: str, root: StatePath, accept_changes: bool = False) -> None:
        self.plan = plan
        self.name = name
        self.readers: list[FlowPlan] = []
        self.error: Exception | None = None
        self.summary = Summary()
        self.has_new_input = True
        self.failures = 0
        self._root = root
        self._accept_changes = accept_changes
        self._state: State | None = None
        self._run: Run | None = None
        self.to_list: Look = {}
        """Files that its next turn lists, if there is no other new input."""
        self._idle_turns = 0

    @property
    def state(self) -> State:
        """Return the plan's state, after ``take``."""
        assert self._state is not None
        return self._state

    def take(self, *, take_over: bool = False) -> None:
        """Become the driver of its state; ``take_over``: see ``State.take``.

        Raises:
            PlanChanged: the plan's structure has changed since its last run; nothing was changed.
            StateFolderError, UsageError, EngineError: see ``State.take``.
        """
        self._state = State.take(self._root, self.plan, take_over=take_over)
        with explain_errors(self._state):
            if self._accept_changes or migration.is_pending(self._state):
                return
            if differences := changes(self._state.recorded_structure(), structure(self.plan)).structure:
                raise PlanChanged(self.plan.name, self.plan.version, differences)

    def release(self) -> None:
        """Stop being the driver of its state."""
        if self._run is not None:
            self._run.close()
        self._run = None
        if self._state is not None:
            self._state.release()
            self._state = None

    def start(self, run: Callable[[State], Run]) -> None:
        """Start the plan's run, and recover from whatever the last driver left unfinished. Call ``take`` before."""
        assert self._state is not None
        try:
            with explain_errors(self._state):
                record_plan_changes(self._state, self._accept_changes)
                self._run = run(self._state)
                self._run.recover()
            self.error = None
        except Exception as e:
            self.stop(e)

    @property
    def is_running(self) -> bool:
        """Return whether it has started, and not stopped."""
        return self._run is not None

    @property
    def may_restart(self) -> bool:
        """Return whether it has stopped and may start again.

        It may not if another driver took over its state, since the two would keep taking it from each other.
        """
        return not self.is_running and not isinstance(self.error, StateLost)

    def due_s(self) -> float | None:
        """Return the seconds until there is work that needs no scan; None: there is none, or too many turns committed
        nothing."""
        return None if self._idle_turns >= _IDLE_TURNS else self._call_run(lambda run: run.due_s())

    def turn(self, *, endless: bool) -> bool:
        """Do what can be done now, if anything, and return whether a wave was committed."""
        state = self._state
        if state is None or not (self.has_new_input or self.to_list or self.due_s() == 0 or self._logs_have_grown):
            return False
        before, scan = state.wave, True if self.has_new_input else self.to_list
        self.has_new_input, self.to_list = False, {}
        if self._call_run(lambda run: run.turn(scan=scan, endless=endless)) is not None:
            self.failures = 0
        committed = state.wave > before
        self._idle_turns = 0 if committed or self._call_run(lambda run: run.due_s()) != 0 else self._idle_turns + 1
        for reader in self.readers if committed else ():
            reader.has_new_input = True
        return committed

    def has_work(self) -> bool:
        """Return whether there is work that needs no scan."""
        return bool(self._call_run(lambda run: run.ask_logs())) or self.due_s() == 0

    @property
    def _logs_have_grown(self) -> bool:
        return self._run is not None and self._run.logs_have_grown

    def take_contradicted(self) -> set[str]:
        """Return the sources of which a listing missed what is there, see ``Run.take_contradicted``."""
        return self._call_run(lambda run: run.take_contradicted()) or set()

    def notify(self) -> None:
        """Send notifications, see ``Run.notify``."""
        self._call_run(lambda run: run.notify(limits.NOTIFY_EVERY_S))

    def report(self) -> None:
        """Send notifications and refresh cached counts, see ``Run.report``."""
        self._call_run(lambda run: run.report())

    def finish(self) -> None:
        """Set the summary of what the run did and left undone."""
        self.summary = self._call_run(lambda run: run.finish()) or self.summary

    def stop(self, error: Exception) -> None:
        """Stop this plan only. Its state is released, so that an operator can fix it."""
        self.error = error
        self.failures += 1
        if self._run is not None:
            with contextlib.suppress(Exception):  # its state may be what is wrong
                self.summary = self._run.finish()
        self.summary.exit = getattr(error, "exit_code", 1)
        self.release()

    def _call_run(self, act: Callable[[Run], Result]) -> Result | None:
        """Call ``act`` for the run unless the plan has stopped; if it raises, stop the plan."""
        if self._state is None or self._run is None:
            return None
        try:
            with explain_errors(self._state):
                return act(self._run)
        except Exception as e:
            self.stop(e)
            return None
