"""Runs: wave after wave until nothing is pending, or nothing more can be done now.

A wave, numbered as in the architecture:

1. **scan**: executors list, the driver detects changes, once for a whole listing, and cuts it into waves
2. **transform**: executors run the steps and stage files that nobody can see
3. **commit**: one transaction on the outbox names them all
4. **deliver**: executors send committed rows and journal what comes of it
5. **settle**: the journal becomes the ledger, what is done leaves the outbox

While a wave of listed documents is delivered and settled, the next one is transformed. It is committed after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final

from ferryman import crash, limits
from ferryman.account.questions import all_errors_queued, cache_counts, outstanding_for_driver
from ferryman.engine import commands, migration
from ferryman.engine.batches import LogBatch, WaveBatch
from ferryman.engine.breakers import Nodes, Troubles
from ferryman.engine.commit import NOWHERE, commit_staged
from ferryman.engine.deliver.dispatch import Dispatcher, Newer
from ferryman.engine.live import Follower
from ferryman.engine.logs import Logs
from ferryman.engine.once import recover_once_wave
from ferryman.engine.pending import Backlog, PendingWork, Unlisted
from ferryman.engine.reset import reset_states
from ferryman.engine.results import Staged
from ferryman.engine.runner.base import IsolatingRunner, PickledPlan, Runner
from ferryman.engine.scan.phase import Allowed, ChangeSet, ScanPhase
from ferryman.engine.settle import late_answers, settle
from ferryman.engine.summary import Summary as Summary
from ferryman.engine.summary import describe_staged
from ferryman.engine.transform.phase import TransformPhase
from ferryman.notify import Reporter, Stopped
from ferryman.observe import Observer
from ferryman.plan import NotifyTarget
from ferryman.records.rows import now_us
from ferryman.state.commands import queued_commands
from ferryman.state.maintenance import maintain, sweep
from ferryman.state.state import State

_IDLE_TURNS: Final = 3
"""Turns that may move nothing (a worker died, a pending document is not listed any more) before a run ends."""
_LIVE: Final = "live"
"""The scratch folder of what tasks report while they are at work."""
_KEPT_MESSAGES: Final = 100  # that a driver remembers that goes on for months: it does not say them again


class Run:
    """A driver's turn at a state."""

    def __init__(
        self,
        state: State,
        runner: Runner,
        observer: Observer,
        *,
        wait: float | None = None,
        allow_deletes: Allowed = False,
        notify: Sequence[NotifyTarget] = (),
        wave_bytes: int = limits.WAVE_BYTES,
        max_pending: int | None = None,
        reset: Collection[str] = (),
        pace_s: float = limits.PACE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._plan = state.plan
        self._runner = runner
        self._patient = IsolatingRunner(runner)
        self._observer = observer
        self._wait = wait
        self._reset = reset
        self._wave_bytes = wave_bytes
        self._sleep = sleep
        self._shipped = PickledPlan.of(state.plan)
        self._trouble = Troubles("destination", self._tell, clock)
        self._dispatcher = Dispatcher(state, self._shipped, runner, self._trouble, pace_s=pace_s)
        self._newer = Newer(state, self._dispatcher, self._tell)
        self._summary = Summary()
        self._reporter = Reporter(state, [*state.plan.notified, *notify], self._tell)
        self._counting = Counting(state)
        self._backlog = Backlog(state, limits.MAX_PENDING_BYTES if max_pending is None else max_pending)
        self._incomplete = False
        self._stopped_short = False
        """The last scan of everything, or one since, stopped reading, for too much is pending."""
        self._told_short = self._endless = False
        self._waited = 0.0
        self._live = Follower(state.local_scratch / _LIVE, observer)
        self._nodes = Nodes(state.plan, self._tell, clock)
        self._unlisted = Unlisted(state.plan, clock)
        self._logs = Logs(state, self._nodes, self._tell)
        self._transform = TransformPhase(state, self._shipped, runner, self._nodes, self._logs, self._live, self._tell)
        self._pending = PendingWork(state, self._dispatcher, self._nodes, self._unlisted, self._logs)
        self._scanning = ScanPhase(
            state,
            self._shipped,
            runner,
            self._patient,
            self._nodes,
            self._logs,
            self._pending,
            self._unlisted,
            self._live,
            observer,
            self._tell_once,
            allow_deletes=allow_deletes,
            wave_bytes=wave_bytes,
        )
        self._upkeep = Upkeep(state, self._tell_once)

    def go(self, every: float | None = None) -> Summary:
        """Recover, then scan and deliver; with ``every`` forever."""
        self.recover()
        while True:
            began = time.monotonic()
            self.turn(endless=every is not None, until=began + every if every is not None else None)
            self.report()
            if every is None:
                return self.finish()
            self._sleep(max(0.0, began + every - time.monotonic()))

    def turn(self, *, scan: bool = True, endless: bool = True, until: float | None = None) -> bool:
        """Scan once, if asked to, and deliver what is due. Was the listing complete?

        For who drives a state for long: call ``recover`` first, then this, as often as there is something to do. With
        ``wait=0`` nothing is waited for.

        Args:
            endless: nobody starts this run again: a node in permanent trouble is asked again later.
            until: monotonic time; what comes due after it is not waited for.
        """
        self._endless = self._trouble.endless = self._nodes.troubles.endless = endless
        if endless:
            del self._summary.messages[:-_KEPT_MESSAGES]
        if scan:
            self._incomplete = not self._scan()
        self._catch_up(until)
        while self._stopped_short and not self._backlog.too_large:
            self._incomplete = not self._scan()
            self._catch_up(until)
        if self._newer.report():
            self._redeliver()
        self._counting.keep()
        return not (scan and self._incomplete)

    def report(self) -> None:
        """Hints at what the plan may have wrong; and tell whoever wants to be told: see ``notify``."""
        for hint in self._nodes.hints():
            self._tell_once(hint)
        self.notify()

    def notify(self, least_s: float = 0.0) -> None:
        """Tell whoever wants to be told what is new since the last time, unless that is less than ``least_s`` ago."""
        kinds = {node.name: node.kind for node in self._plan.nodes}
        stopped = [Stopped(name, kinds.get(name, "node"), t.why, t.permanent) for name, t in self._trouble.items()]
        stopped += self._nodes.stopped()
        self._reporter.report(stopped, least_s)

    def due_s(self) -> float | None:
        """Seconds until something can be done without a scan; None: nothing is pending."""
        return 0.0 if queued_commands(self._state) else self._pending.wait_s()

    def recover(self) -> None:
        """Finish or discard what the last driver left, in one line."""
        state = self._state
        for note in state.notes:
            self._tell(note)
        self._newer.refuse_old_copy()
        done = []
        if state.wave > state.settled:
            info = settle(state, state.wave, self._patient.run)
            done.append(f"settled wave {state.wave} ({info['delivered']} deliveries were recorded)")
        done += recover_once_wave(state, self._patient.run)
        crash.point("recover.settled")
        if migration.is_pending(state):
            self._tell(migration.finish(state))
        if self._reset:
            self._tell(reset_states(state, self._reset))
        self._logs.refuse_others()
        if orphans := sweep(state):
            done.append(f"removed {orphans} staged files that no wave had committed")
        self._upkeep.do()  # each start adds to the logs, also where no wave follows
        state.clear_staging()
        if done:
            self._tell(f"recovered: {'; '.join(done)}")

    # -- a scan ----------------------------------------------------------------------------------

    def _scan(self, *, only_owed: bool = False) -> bool:
        """List, detect changes, and carry each batch through a wave; False if a listing was incomplete, or there was no
        room."""
        self._take_commands()
        self._stopped_short &= only_owed
        self._nodes.look_around(self._patient)
        complete, least = None, 1
        while complete is None and self._has_room():
            complete = self._carry(self._scanning.run(only_pending=only_owed), least)
            least *= 2  # so that it comes to an end however often somebody has something to say
        self._told_short &= self._stopped_short
        self._scanning.end()
        read = only_owed or not self._logs or self._read_logs()
        return bool(complete) and read

    def _read_logs(self) -> bool:
        """Take up what there is in logs now; False: one could not be asked, or there was no room."""
        complete = self._logs.look()
        idle = 0
        while idle < _IDLE_TURNS and (batch := self._logs.batch(self._runner.slots, self._wave_bytes)) is not None:
            if not self._has_room():
                return False
            before = self._state.wave
            self._wave(batch)
            idle = 0 if self._state.wave > before else idle + 1
            self._take_commands()
        return complete

    def _carry(self, changes: ChangeSet, least: int) -> bool | None:
        """Was the listing complete, and carried to its end? None: list again. After ``least`` waves operator commands
        are applied between two: it changes what the listing was compared with."""
        waves = zip_longest(changes.batches, changes.batches[1:])
        for done, (piece, following) in enumerate(waves, 1):
            if not self._transform.runs_ahead:
                if done > least and self._take_commands():
                    return None
                if not self._has_room():
                    return False  # what was listed is listed again later, as after a kill
            self._wave(piece, following, patient=done < least)
        return changes.complete and not self._stopped_short

    def _has_room(self) -> bool:
        """May more documents be read? If too much is pending, what can be sent is sent first."""
        while self._backlog.too_large and self._pending.rows_due():
            if not self._redeliver():
                break
        full = self._backlog.too_large
        self._stopped_short |= full
        if full and self._endless and not self._told_short:
            self._told_short = True  # once until a scan comes to its end, however often it goes on in between
            self._tell(self._backlog.describe(over=False))
        return not full

    def _wave(self, piece: WaveBatch | LogBatch, following: WaveBatch | None = None, *, patient: bool = False) -> None:
        """
        Args:
            following: what the next wave processes, if that is known. It is transformed meanwhile, unless there is no
                room for it, or an operator's command comes first.
            patient: operator's commands wait for it.
        """
        number = self._state.wave + 1
        self._runner.start()
        self._observer.phase(number, "transform")
        self._observer.expects(piece.rows)
        staged, positions = self._transform.run(number, piece)
        self._pending.unseen |= self._transform.unseen
        self._observer.outcome(describe_staged(piece.rows, staged))
        crash.point("transform.done")
        if positions or any(s.outbox or s.documents or s.ledger for s in staged):
            self._observer.staged(sum(part.rows for s in staged for _, part in s.outbox))
            self._summary.dropped += sum(s.counts["dropped"] for s in staged)
            self._commit(number, staged, positions)
            self._logs.committed()
            refused = sum(s.counts["dead"] + s.counts["error_doc"] for s in staged)
            if following and (patient or not queued_commands(self._state)) and not self._backlog.too_large:
                self._deliver_and_settle(number, refused, partial(self._transform.begin, number + 1, following))
            else:
                self._deliver_and_settle(number, refused)

    def _commit(self, number: int, staged: list[Staged], positions: Mapping[str, int] = NOWHERE) -> None:
        self._observer.phase(number, "commit")
        self._newer.before_commit()
        commit_staged(self._state, number, staged, positions)

    def _deliver_and_settle(self, number: int, refused: int = 0, meanwhile: Callable[[], None] = lambda: None) -> int:
        """4 and 5; how many rows were sent.

        Args:
            refused: documents of this wave that ended before the outbox.
            meanwhile: begins what is done beside it.
        """
        self._observer.phase(number, "deliver")
        self._observer.expects(self._pending.rows())
        with self._live.following() as live:
            failures = self._dispatcher.deliver(number, now_us(), live, meanwhile)
        for failure in failures:
            self._tell(failure)
        crash.point("deliver.done")
        self._observer.phase(number, "settle")
        info = settle(self._state, number, self._patient.run)
        self._summary.waves += 1
        self._summary.delivered += info["delivered"] - info["deleted"]
        self._summary.deleted += info["deleted"]
        self._newer.note(info["stale"])
        self._upkeep.do(staging=self._transform.runs_ahead, strays=self._transform.has_orphans)
        self._transform.has_orphans = False
        self._nodes.forget(self._pending.at_steps())
        owed = sum(debt.owed for debt in self._pending.at_steps()) + self._pending.rows()
        self._observer.settled(info["delivered"], owed, info["dead"] + refused)
        return int(info["sent"])

    def _take_commands(self) -> bool:
        """Apply queued commands and return whether they changed anything."""
        before = self._state.wave
        for command in queued_commands(self._state):
            count = commands.apply(self._state, command)
            self._unlisted.forget()
            self._tell(f"applied `{command.verb}` by {command.who}: {count} deliveries")
        return self._state.wave > before

    # -- what is pending ----------------------------------------------------------------------------

    def _catch_up(self, until: float | None) -> None:
        """Waves for what is pending, as it comes due, until nothing is or it would take too long."""
        idle = 0
        while True:
            if late_answers(self._state.journal, self._state.settled):
                self._redeliver()
                continue
            self._take_commands()
            pause = self._pending.wait_s()
            if pause is None or idle >= _IDLE_TURNS:
                return
            if pause > 0:
                limit = limits.WAIT_S if self._wait is None else self._wait - self._waited
                if pause > limit or (until is not None and time.monotonic() + pause > until):
                    return
                self._waited += pause if self._wait is not None else 0
                self._sleep(pause)
                idle = 0
                continue
            before = self._state.wave
            if self._logs.wait_s() == 0:
                self._read_logs()
            if self._pending.sources_back():
                self._incomplete = not self._scan()  # of everything: it says what is missing now
            if self._pending.steps_due():
                self._scan(only_owed=True)
            moved = self._state.wave - before
            if self._pending.rows_due():
                moved += self._redeliver()
            idle = 0 if moved or self._nodes.missed else idle + 1

    def _redeliver(self) -> int:
        """A wave without a scan, for rows that are due; how many were sent."""
        number = self._state.wave + 1
        self._commit(number, [])
        return self._deliver_and_settle(number)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> Summary:
        """Return the run's summary: what was done and what is left."""
        summary = self._summary
        for name, value in outstanding_for_driver(self._state).items():
            setattr(summary, name, value)
        if self._stopped_short:
            self._tell(self._backlog.describe(over=True))
        nodes = self._nodes.messages(self._pending.at_steps())
        for message in (*self._dispatcher.messages(), *nodes, *self._logs.messages()):
            self._tell(message)
        incomplete = self._incomplete or bool(self._pending.unseen or self._logs.waits)
        reported = bool(summary.failed or summary.rejected) and all_errors_queued(self._state.root, self._plan)
        summary.set_exit(held=self._scanning.held, incomplete=incomplete, reported=reported)
        return summary

    def _tell_once(self, text: str) -> None:
        if text not in self._summary.messages:
            self._tell(text)

    def _tell(self, text: str) -> None:
        self._summary.messages.append(text)
        self._observer.message(text)


# Counting after waves, for those who ask later.


class Counting:
    """Keeps what ``status`` says of a large state, after waves: in a run that goes on, a small part of the time."""

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._wave = state.wave
        """After which was counted; at first, before which we began."""
        self._not_before = clock()

    def keep(self) -> None:
        """Between waves."""
        began = self._clock()
        if began < self._not_before:
            return
        cache_counts(self._state, replace=self._state.wave != self._wave)
        self._wave, ended = self._state.wave, self._clock()
        self._not_before = ended + limits.COUNTING_SHARE * (ended - began)


# Between two waves: files are kept few, and those that nothing names are removed.


class Upkeep:
    """Maintenance of a state during a run.

    Args:
        tell: told what could not be merged, after each wave again.
    """

    def __init__(self, state: State, tell: Callable[[str], None]) -> None:
        self._state = state
        self._tell = tell
        self._strays = False
        """Files may lie there that nothing names and no task is about to return."""

    def do(self, *, staging: bool = False, strays: bool = False) -> None:
        """Merge small files, fold long logs, remove what nothing names.

        Args:
            staging: tasks are staging files for the next wave, which nothing names yet: nothing is swept now.
            strays: tasks that died have left files.
        """
        for note in maintain(self._state, sweeps=not staging):
            self._tell(note)
        self._strays |= staging or strays
        if self._strays and not staging:
            sweep(self._state)
            self._strays = False
