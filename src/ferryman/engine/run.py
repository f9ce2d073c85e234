"""Runs: wave after wave until nothing is pending, or nothing more can be done now.

A wave, numbered as in the architecture:

1. **scan**: executors list the sources; the driver detects the changes of a whole listing at once and splits them into
   waves
2. **transform**: executors run the steps and stage the results in files that no table names yet
3. **commit**: one transaction on the outbox names all of these files
4. **deliver**: executors send committed rows and record each result in the journal
5. **settle**: the results become ledger events, and finished rows leave the outbox

While a wave of listed documents is delivered and settled, the next wave is already being transformed; it is committed
afterwards.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ferryman import crash, limits
from ferryman.account.queries import all_errors_queued, cache_counts, outstanding_for_driver
from ferryman.breaker import backoff_s
from ferryman.engine import commands, migration
from ferryman.engine.at_most_once import recover_once_wave
from ferryman.engine.breakers import BreakerRegistry, NodeBreakers
from ferryman.engine.commit import NO_POSITIONS, commit_staged
from ferryman.engine.deliver.dispatch import Dispatcher, SequenceGuard
from ferryman.engine.keyed.reset import reset_states
from ferryman.engine.live import ProgressReader
from ferryman.engine.logs import Logs
from ferryman.engine.pending_work import Backlog, PendingWork
from ferryman.engine.remembered import AnswerUpkeep
from ferryman.engine.results import Look, Staged
from ferryman.engine.runner.base import PickledPlan, Runner, run_isolating
from ferryman.engine.scan.phase import ChangeSet, ScanPhase
from ferryman.engine.settings import DEFAULT_CLOCK, DEFAULT_SETTINGS, Clock, RunSettings
from ferryman.engine.settle import RunTasks, SupersededRows, has_late_answers, settle
from ferryman.engine.summary import Summary as Summary
from ferryman.engine.summary import describe_staged
from ferryman.engine.target_look import SampleVerification
from ferryman.engine.targets import TargetWatch
from ferryman.engine.tasks import LogBatch, WaveBatch
from ferryman.engine.transform.phase import TransformPhase
from ferryman.limits import plural
from ferryman.notify import Reporter
from ferryman.observe import WARNING, Forwarding, Observer, Silent
from ferryman.records.rows import now_us
from ferryman.state.activity import Activity, Trouble
from ferryman.state.commands import ADOPT, Command, OutboxEffect, queued_commands
from ferryman.state.maintenance import maintain, sweep
from ferryman.state.runs import RunRecorder
from ferryman.state.state import State

if TYPE_CHECKING:
    from ferryman.engine.watch import EventWatch
    from ferryman.mirror.mirror import BackgroundMirrors


_IDLE_TURNS: Final = 3
"""Consecutive rounds without a commit after which a run ends although something is due: a worker may have died, or a
pending document is no longer listed."""
_PROGRESS_FOLDER: Final = "live"
"""Scratch folder for the progress that running tasks report."""
_KEPT_MESSAGES: Final = 100
"""Most recent messages that an endless run keeps, in order not to repeat them."""


class Run:
    """A driver's run on one state: recovery, scans, and waves."""

    def __init__(
        self,
        state: State,
        runner: Runner,
        observer: Observer,
        settings: RunSettings = DEFAULT_SETTINGS,
        clock: Clock = DEFAULT_CLOCK,
    ) -> None:
        self._state = state
        self._plan = state.plan
        self._runner = runner
        self._run_tasks: RunTasks = partial(run_isolating, runner, in_driver=True)
        self._settings = settings
        self._clock = clock
        self._summary = Summary()
        self._reporter = Reporter(state, [*state.plan.notified, *settings.notify], self._add_message)
        self._mirrors = background_mirrors(state)
        self._count_cache = CountCache(state)
        self._recorder = RunRecorder(state)
        self._backlog = Backlog(state, settings.max_pending)
        self._listing_incomplete = False
        self._scan_stopped = False
        """The last full scan, or one since, stopped early because too much is pending."""
        self._backlog_reported = self._endless = False
        self._reported_at = -math.inf
        self._waited = 0.0
        self.logs_have_grown = False
        """A log has entries that were not there when it was read."""
        self._idle_turns = 0
        """Turns of a run that watches that had work and committed nothing, in a row: their documents may be away."""
        self._due_ignored_until = 0.0
        self._breakers = BreakerRegistry(state.plan, self._add_message, clock.now)
        self._nodes = NodeBreakers(state.plan, self._breakers, clock.now)
        self._logs = Logs(state, self._nodes, self._add_message)
        self._logs.open(runner)
        pickled_plan = PickledPlan.of(state.plan)
        self._observer = observer = Forwarding(ActivityRecorder(state, self._breakers.troubles), observer)
        self._dispatcher = Dispatcher(state, pickled_plan, runner, self._breakers, pace_s=settings.pace_s)
        self._targets = TargetWatch(state)
        self._dispatcher.on_checked = self._targets.look
        self._dispatcher.on_sent = observer.sent if observer.wants_chunks else None
        self._samples = SampleVerification(state.root, state.plan, settings.verify_sample, self._add_message, clock.now)
        self._sequence_guard = SequenceGuard(state, self._dispatcher, self._add_message)
        self._progress = ProgressReader(state.local_scratch / _PROGRESS_FOLDER, observer)
        self._transform = TransformPhase(
            state, pickled_plan, runner, self._nodes, self._logs, self._progress, self._add_message
        )
        self._pending = PendingWork(state, self._dispatcher, self._nodes, self._logs, clock.now)
        self._scanning = ScanPhase(
            state, pickled_plan, runner, self._pending, self._progress, settings, self._add_message_once
        )
        self._superseded = SupersededRows(state)
        self._upkeep = Upkeep(state, self._add_message_once)
        self._answers = AnswerUpkeep(state, self._add_message_once)

    def run(self, every: float | None = None, watch: EventWatch | None = None) -> Summary:
        """Recover, then scan and deliver once; with ``every`` (seconds), repeat until the process is stopped.

        Args:
            watch: between two scans, look at what has changed as soon as that is noticed. Needs ``wait=0``.
        """
        with contextlib.closing(self):
            return self._run(every, watch)

    def close(self) -> None:
        """End what goes on beside the run: the queries of streams, and mirrors."""
        self._logs.close()
        if self._mirrors is not None:
            self._mirrors.end(0.0)

    def _run(self, every: float | None, watch: EventWatch | None) -> Summary:
        self.recover()
        while True:
            started = time.monotonic()
            self.turn(endless=every is not None, until=started + every if every is not None else None)
            self.report()
            if every is None:
                return self.finish()
            if watch is not None:
                self._follow(watch, started + every)
                continue
            pause = max(0.0, started + every - time.monotonic())
            self._observer.waits(pause)
            self._clock.sleep(pause)

    def _follow(self, watch: EventWatch, until: float) -> None:
        """Process what changes, and what comes due, until it is time for the next full scan."""
        watch.list_again("", self.take_contradicted())
        while (found := watch.wait(until, self.has_work)) is not None:
            before = self._state.wave
            self.turn(scan=found.get("", {}))
            watch.list_again("", self.take_contradicted())
            self._idle_turns = 0 if found or self._state.wave > before else self._idle_turns + 1
            self._due_ignored_until = self._clock.now() + (backoff_s(self._idle_turns) if self._idle_turns else 0.0)
            self.notify(limits.NOTIFY_EVERY_S)

    def take_contradicted(self) -> set[str]:
        """Return the sources of which a listing since the last call missed what is there."""
        found, self._scanning.contradicted = self._scanning.contradicted, set()
        return found

    def has_work(self) -> bool:
        """Return whether there is work that needs no scan; asked now and then by a run that watches."""
        return self.ask_logs() or (self._clock.now() >= self._due_ignored_until and self.due_s() == 0)

    def ask_logs(self) -> bool:
        """Return whether logs have new entries, which the next turn reads."""
        self._observer.waits()  # here a run ends whose interrupt was lost in a library's callback
        self.logs_have_grown |= self._logs.have_grown()
        return self.logs_have_grown

    def turn(self, *, scan: bool | Look = True, endless: bool = True, until: float | None = None) -> bool:
        """Scan once, if asked to, and deliver what is due; returns whether the listing was complete.

        For callers that drive a state over a long time: call ``recover`` once, then this whenever there is work. With
        ``wait=0`` it does not wait for anything to come due.

        Args:
            scan: True: list everything; or list only this, and read logs only if they have grown.
            endless: the run is never restarted, so nodes that failed permanently are tried again later.
            until: monotonic time; do not wait for work that comes due later.
        """
        self._endless = self._breakers.endless = endless
        if endless:
            del self._summary.messages[:-_KEPT_MESSAGES]
        if scan is True:
            self._listing_incomplete = not self._scan()
        elif scan:
            self._scan(look=scan)
        if self.logs_have_grown:
            self._read_logs()
        self._deliver_pending(until)
        while (self._scan_stopped or self._scanning.has_more) and not self._backlog.too_large:
            self._listing_incomplete = not self._scan()
            self._deliver_pending(until)
        if self._sequence_guard.report():
            self._run_delivery_wave()
        self._count_cache.refresh()
        if endless:
            self._samples.run()
            for message in self._targets.messages():
                self._add_message_once(message)
        self._observer.waits()
        return not (scan is True and self._listing_incomplete)

    def report(self, least_s: float = 0.0) -> None:
        """Have destinations maintain what they hold, record what targets have, report hints at mistakes in the plan,
        unless that was less than ``least_s`` seconds ago; and send notifications, see ``notify``."""
        if time.monotonic() < self._reported_at + least_s:
            self.notify(least_s)
            return
        self._reported_at = time.monotonic()
        for line in self._dispatcher.maintain():
            self._add_message_once(line)
        self._targets.remember()
        for hint in self._nodes.hints():
            self._add_message_once(hint)
        for message in self._mirrors.messages() if self._mirrors is not None else ():
            self._add_message_once(WARNING + message)
        self.notify(least_s)

    def notify(self, least_s: float = 0.0) -> None:
        """Notify the plan's targets of news since the last notification, unless that was less than ``least_s`` seconds
        ago. Record how far an endless run is."""
        self._reporter.report(self._breakers.stopped(), least_s)
        if self._endless:
            self._recorder.record_turn(self._counts_so_far)

    def _counts_so_far(self) -> dict[str, int]:
        """Return what an endless run has done, as ``state.runs.PastRun`` has it."""
        owed = self._count_pending()
        code = 4 if owed or self._listing_incomplete or self._scan_stopped else 0
        done = {name: getattr(self._summary, name) for name in ("waves", "delivered", "deleted", "dropped")}
        return {"exit": code, **done, "pending": owed}

    def due_s(self) -> float | None:
        """Return the seconds until there is work that needs no scan; None: nothing is pending."""
        return 0.0 if any(True for _ in self._commands_to_apply()) else self._pending.wait_s()

    def recover(self) -> None:
        """Finish or discard what the last driver left, and report it in one message."""
        state = self._state
        for note in state.notes:
            self._add_message(note)
        if not any(command.verb == ADOPT for command in queued_commands(state)):
            self._sequence_guard.refuse_old_copy()
        if self._mirrors is not None:
            self._mirrors.start()
        actions = []
        if state.wave > state.settled:
            self._expect_pending()
            settled = settle(state, state.wave, self._run_tasks)
            actions.append(
                f"settled wave {state.wave} ({plural(settled.delivered, 'delivery was', 'deliveries were')} recorded)"
            )
        actions += recover_once_wave(state, self._run_tasks, self._transform.rebuild)
        crash.point("recover.settled")
        if migration.is_pending(state):
            self._add_message(migration.finish(state))
        if self._settings.reset:
            self._add_message(reset_states(state, self._settings.reset))
        self._logs.refuse_replaced_logs()
        if orphans := sweep(state):
            actions.append(f"removed {plural(orphans, 'staged file', 'staged files')} that no wave had committed")
        self._answers.begin()
        self._upkeep.run()  # each start adds to the logs, even if no wave follows
        state.clear_staging()
        if actions:
            self._add_message(f"recovered: {'; '.join(actions)}")

    def _expect_pending(self) -> None:
        """Have the runner ready for the rows of the last driver's wave."""
        rows = self._pending.row_count()
        self._runner.note_work(rows)
        if _is_small(rows, self._backlog.bytes):
            self._runner.start(small=True)

    # -- a scan ----------------------------------------------------------------------------------

    def _scan(self, *, only_pending: bool = False, look: Look | None = None) -> bool:
        """Scan once and run a wave for each batch of changes; return False if a listing was incomplete, or too much is
        pending.

        Args:
            look: list only this; None: everything.
        """
        self._take_commands()
        full = not only_pending and look is None
        self._scan_stopped &= not full
        self._nodes.check_capabilities(self._runner)
        complete, min_waves = None, 1
        while complete is None and self._has_room():
            complete = self._run_waves(self._scanning.run(only_pending=only_pending, look=look), min_waves)
            min_waves *= 2  # so that the scan ends, however often operators send commands
        self._backlog_reported &= self._scan_stopped
        self._scanning.end()
        read = not full or not self._logs or self._read_logs()
        return bool(complete) and read

    def _read_logs(self) -> bool:
        """Run waves for the entries that logs have now; False: a log was unavailable, or too much is pending."""
        self.logs_have_grown = False
        complete = self._logs.refresh()
        idle = 0
        slots, wave_bytes = self._runner.slots, self._settings.wave_bytes
        while idle < _IDLE_TURNS and (batch := self._logs.next_batch(slots, wave_bytes)) is not None:
            if not self._has_room():
                return False
            before = self._state.wave
            self._run_wave(batch)
            idle = 0 if self._state.wave > before else idle + 1
            self._take_commands()
        if positions := self._logs.follow_moves():
            self._run_delivery_wave(positions)
            self._logs.after_commit()
        return complete

    def _run_waves(self, changes: ChangeSet, min_waves: int) -> bool | None:
        """Run a wave for each batch; return whether the listing was complete and has been processed to its end.

        None: the sources must be listed again, because an operator command was applied between two waves and changed
        what the listing was compared with. That happens after ``min_waves`` waves at the earliest.
        """
        waves = zip_longest(changes.batches, changes.batches[1:])
        for ordinal, (batch, next_batch) in enumerate(waves, 1):
            if not self._transform.runs_ahead:
                if ordinal > min_waves and self._take_commands():
                    return None
                if not self._has_room():
                    return False  # the rest is listed again later, as after a kill
            self._run_wave(
                batch,
                next_batch,
                defer_commands=ordinal < min_waves,
                begins_scan=ordinal == 1,
                ends_scan=next_batch is None,
            )
        if not changes.batches and (memories := self._scanning.commit_memories(self._state.wave + 1)):
            self._run_delivery_wave(memories)
            self._scanning.after_commit()
        return changes.complete and not self._scan_stopped

    def _has_room(self) -> bool:
        """Return whether more documents may be read. If too much is pending, first send rows that are due."""
        while self._backlog.too_large and self._pending.has_due_rows():
            if not self._run_delivery_wave():
                break
        full = self._backlog.too_large
        self._scan_stopped |= full
        if full and self._endless and not self._backlog_reported:
            self._backlog_reported = True  # reported once until a scan ends, even if the scan continues in between
            self._add_message(self._backlog.describe(ending=False))
        return not full

    def _run_wave(
        self,
        batch: WaveBatch | LogBatch,
        next_batch: WaveBatch | None = None,
        *,
        defer_commands: bool = False,
        begins_scan: bool = False,
        ends_scan: bool = False,
    ) -> None:
        """Run one wave: transform, commit, deliver, settle.

        Args:
            next_batch: the next wave's batch, if it is known. It is transformed while this wave is delivered, unless
                too much is pending, or an operator command is queued.
            defer_commands: start the next wave early even if an operator command is queued, which then has to wait.
            begins_scan, ends_scan: it is the first, or the last, wave of a scan: its commit includes what the sources
                remember while the scan lasts, or of all of it.
        """
        number = self._state.wave + 1
        self._runner.start(small=next_batch is None and _is_small(batch.rows, batch.bytes))
        self._observer.phase(number, "transform")
        self._observer.expects(batch.rows)
        staged, positions = self._transform.run(number, batch)
        if ends_scan:
            positions |= self._scanning.commit_memories(number, staged)
        elif begins_scan:
            positions |= self._scanning.begin_memories(number)
        self._pending.unlisted_sources |= self._transform.unseen
        self._observer.outcome(describe_staged(batch, staged))
        self._summary.documents += batch.rows
        crash.point("transform.done")
        if positions or any(s.outbox or s.documents or s.ledger for s in staged):
            self._observer.staged(sum(part.rows for s in staged for _, part in s.outbox))
            self._commit(number, staged, positions)
            self._superseded.add(batch, staged)
            self._logs.after_commit()
            self._scanning.after_commit()
            if next_batch and (defer_commands or not queued_commands(self._state)) and not self._backlog.too_large:
                self._deliver_and_settle(number, partial(self._transform.begin, number + 1, next_batch))
            else:
                self._deliver_and_settle(number)

    def _commit(self, number: int, staged: list[Staged], positions: Mapping[str, int] = NO_POSITIONS) -> None:
        self._observer.phase(number, "commit")
        self._targets.compare()
        self._sequence_guard.before_commit()
        commit_staged(self._state, number, staged, positions)

    def _deliver_and_settle(self, number: int, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Deliver and settle a wave (4 and 5); returns the number of rows sent.

        Args:
            meanwhile: called once, after all rows have been submitted to executors, to start other work in parallel.
        """
        self._observer.phase(number, "deliver")
        self._observer.expects(self._pending.row_count())
        with self._progress.follow() as progress_folder:
            failures = self._dispatcher.deliver(number, now_us(), progress_folder, meanwhile)
        for failure in failures:
            self._add_message(WARNING + failure)
        crash.point("deliver.done")
        self._observer.phase(number, "settle")
        settled = settle(self._state, number, self._run_tasks, superseded=self._superseded.files())
        if self._mirrors is not None:
            self._mirrors.wake()
        self._summary.waves += 1
        self._summary.delivered += settled.delivered - settled.deleted
        self._summary.deleted += settled.deleted
        self._summary.dropped += settled.dropped
        self._sequence_guard.record_stale(settled.stale)
        self._upkeep.run(staging=self._transform.runs_ahead, strays=self._transform.has_orphans)
        self._answers.run()
        self._transform.has_orphans = False
        self._nodes.forget_scopes(self._pending.step_debts())
        self._observer.settled(settled.delivered, self._count_pending(), settled.failed)
        return settled.sent

    def _count_pending(self) -> int:
        """Return the number of pending deliveries."""
        return sum(debt.owed for debt in self._pending.step_debts()) + self._pending.row_count()

    def _commands_to_apply(self) -> Iterator[Command]:
        """Yield the queued commands that need not wait; each is asked about once those before it were applied."""
        for command in queued_commands(self._state):
            if not commands.must_wait(self._state, command, self._pending.unlisted.hashes):
                yield command

    def _take_commands(self) -> bool:
        """Apply queued commands and return whether they changed anything."""
        before = self._state.wave
        for command in self._commands_to_apply():
            count = commands.apply(self._state, command)
            self._pending.unlisted.forget()
            self._logs.forget_attempts()
            if command.definition.outbox is OutboxEffect.DUE:
                self._breakers.call_again(None if command.destination is None else {command.destination})
            self._add_message(f"applied `{command.verb}` by {command.who}: {plural(count, 'delivery', 'deliveries')}")
        return self._state.wave > before

    # -- what is pending ----------------------------------------------------------------------------

    def _deliver_pending(self, until: float | None) -> None:
        """Run waves for pending work as it comes due, until there is none or the wait would be too long."""
        idle = 0
        while True:
            if has_late_answers(self._state.journal, self._state.settled):
                self._run_delivery_wave()
                continue
            self._take_commands()
            pause = self._pending.wait_s()
            if pause is None or idle >= _IDLE_TURNS:
                return
            if pause > 0:
                limit = limits.WAIT_S if self._settings.wait is None else self._settings.wait - self._waited
                if pause > limit or (until is not None and time.monotonic() + pause > until):
                    return
                self._waited += pause if self._settings.wait is not None else 0
                self._observer.waits(pause)
                self._clock.sleep(pause)
                idle = 0
                continue
            before = self._state.wave
            if self._logs.wait_s() == 0:
                self._read_logs()
            if self._pending.has_source_to_ask():
                self._listing_incomplete = not self._scan()  # a full scan: it reports what is missing now
            if self._pending.has_due_steps():
                self._scan(only_pending=True)
            progress = self._state.wave - before
            if self._pending.has_due_rows():
                progress += self._run_delivery_wave()
            idle = 0 if progress or self._nodes.lacked_capability else idle + 1

    def _run_delivery_wave(self, positions: Mapping[str, int] = NO_POSITIONS) -> int:
        """Run a wave without new documents, for rows that are due; returns the number of rows sent.

        Args:
            positions: new positions of logs.
        """
        number = self._state.wave + 1
        self._commit(number, [], positions)
        if rows := self._pending.row_count():
            self._runner.start(small=_is_small(rows, self._backlog.bytes))
        return self._deliver_and_settle(number)

    # -- the end ---------------------------------------------------------------------------------

    def end_mirrors(self) -> None:
        """Let mirrors finish what they do, for some seconds at most, and report those that are behind."""
        for message in self._mirrors.end() if self._mirrors is not None else ():
            self._add_message(WARNING + message)

    def finish(self) -> Summary:
        """Return the run's summary: what was done and what is left."""
        summary = self._summary
        self.end_mirrors()
        summary.remembered = self._answers.finish()
        for name, value in outstanding_for_driver(self._state).items():
            setattr(summary, name, value)
        if self._scan_stopped:
            self._add_message(self._backlog.describe(ending=True))
        nodes = self._nodes.messages(self._pending.step_debts())
        replaced = self._targets.messages()
        for message in (*self._dispatcher.messages(), *nodes, *self._logs.messages(), *replaced):
            self._add_message(WARNING + message)
        incomplete = self._listing_incomplete or bool(self._pending.unlisted_sources or self._logs.is_blocked)
        reported = bool(summary.failed or summary.rejected) and all_errors_queued(self._state.root, self._plan)
        summary.set_exit(held=self._scanning.held, incomplete=incomplete, reported=reported, replaced=bool(replaced))
        self._recorder.record(summary.counts())
        return summary

    def _add_message_once(self, text: str) -> None:
        if text.removeprefix(WARNING) not in self._summary.messages:
            self._add_message(text)

    def _add_message(self, text: str) -> None:
        """Report a line, which may begin with ``WARNING``, and keep it for the summary, without that."""
        self._summary.messages.append(text.removeprefix(WARNING))
        self._observer.message(text)


def _is_small(documents: int, size: int) -> bool:
    """Return whether a wave of so many documents and bytes may do without Spark."""
    return documents <= limits.SMALL_DOCUMENTS and size <= limits.SMALL_BYTES


def background_mirrors(state: State) -> BackgroundMirrors | None:
    """Return the mirrors of a state's plan; None: it has none, as most."""
    if not state.plan.mirrors:
        return None
    from ferryman.mirror.mirror import BackgroundMirrors

    return BackgroundMirrors(state.root, state.plan, state.plan.mirrors)


# Counts of a large state, kept for ``status``.


class CountCache:
    """Refreshes the counts that ``status`` shows of a large state, after waves.

    A long run spends only ``limits.COUNTING_SHARE`` of its time on it.
    """

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._counted_wave = state.wave
        """Wave that the cached counts describe; at first, the last wave before this run."""
        self._next_refresh = clock()

    def refresh(self) -> None:
        """Count again, unless the last count was too recent. Call it between waves."""
        started = self._clock()
        if started < self._next_refresh:
            return
        cache_counts(self._state, replace=self._state.wave != self._counted_wave)
        self._counted_wave, ended = self._state.wave, self._clock()
        self._next_refresh = ended + limits.COUNTING_SHARE * (ended - started)


# Maintenance between two waves.


class Upkeep:
    """Maintenance of a state during a run.

    Args:
        report: called after each wave with a message for every merge that failed.
    """

    def __init__(self, state: State, report: Callable[[str], None]) -> None:
        self._state = state
        self._report = report
        self._unswept = False
        """Files may exist that no table names and no running task will return."""

    def run(self, *, staging: bool = False, strays: bool = False) -> None:
        """Merge small files, fold long logs, and remove files that no table names.

        Args:
            staging: tasks are staging files of the next wave, which no table names yet, so no file may be removed now.
            strays: tasks that died have left unnamed files.
        """
        for note in maintain(self._state, sweeps=not staging):
            self._report(WARNING + note)
        self._unswept |= staging or strays
        if self._unswept and not staging:
            sweep(self._state)
            self._unswept = False


# Notes of what a run is doing, in the lock of its state, for ``ferryman status``.

_EVERY_S: Final = 1.0
"""Seconds between two notes of how far a phase is."""


class ActivityRecorder(Silent):
    """Observer that keeps the ``Activity`` of a run up to date.

    Args:
        troubles: returns the nodes that are not called for now.
        clock: seconds since 1970.
    """

    def __init__(
        self, state: State, troubles: Callable[[], Sequence[Trouble]], clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._troubles = troubles
        self._clock = clock
        self._activity = Activity()
        self._noted_at = 0.0

    def phase(self, wave: int, name: str) -> None:
        self._note(wave=wave, phase=name, since=self._clock(), done=0, expected=0, until=0.0)

    def expects(self, documents: int) -> None:
        self._note(expected=documents)

    def live(self, documents: int) -> None:
        now = self._clock()
        if not self._noted_at <= now < self._noted_at + _EVERY_S:  # before that, if the clock was put back
            self._noted_at = now
            self._note(done=documents)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        so_far = self._activity
        self._note(delivered=so_far.delivered + delivered, pending=pending, failed=so_far.failed + failed)

    def waits(self, seconds: float | None = None) -> None:
        now = self._clock()
        self._note(phase="", since=now, done=0, expected=0, until=0.0 if seconds is None else now + seconds)

    def _note(self, **changes: Any) -> None:
        self._activity = msgspec.structs.replace(self._activity, **changes, troubles=tuple(self._troubles()))
        self._state.note_activity(self._activity)
