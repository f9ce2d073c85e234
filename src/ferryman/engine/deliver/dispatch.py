"""The deliver phase in the driver: which rows are sent in a pass, by which lanes, and which destinations are not called
for now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np

from ferryman.destinations.base import Destination, Effect
from ferryman.engine.breakers import BreakerRegistry
from ferryman.engine.deliver.doubts import Doubts
from ferryman.engine.deliver.sending import Lane, LaneReport, Pass, context_of
from ferryman.engine.deliver.turn import Hung, ThreadCaller
from ferryman.engine.keyed.phase import KeyUpdates
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.engine.send_order import (
    KeyHeads,
    OutboxFile,
    SendOrder,
    UndeliveredUpsert,
    group_by_lanes,
    send_orders,
    waits_elsewhere,
)
from ferryman.errors import (
    EngineError,
    Misconfigured,
    PermanentError,
    StateForeign,
    WorkerDied,
    describe,
    message_of,
    unless_interrupt,
)
from ferryman.limits import plural
from ferryman.observe import Chunk
from ferryman.plan import (
    DestinationNode,
    KeyedNode,
    destinations_of_many_versions,
    errors_node,
)
from ferryman.state.outbox import first_sequence, has_exports, has_other_rows, pending_rows, split_family
from ferryman.state.state import State, sender_of
from ferryman.storage.delta import DataFile
from ferryman.storage.processes import Process

_UNASKED: Final = "ferryman.unasked "
"""Prefix of application ids (on the outbox), followed by the name of a destination that did not answer when asked what
it has of this state. The number is the next free sequence at the first attempt; 0: it has answered since."""

_RETAINED: Final = "ferryman.retained "
"""Prefix of application ids (on the outbox), followed by the name of a destination that has kept something in other
systems, see ``Destination.retained``. The number is 1."""

_LOST: Final = "what it kept about {rows} that an earlier run may have sent is gone. Nothing was sent. "

_TAKES: Final = "ferryman.takes "
"""Prefix of application ids (on the outbox), followed by the name of a destination that has refused a chunk for its
size. The number is the largest chunk that it has accepted instead, in bytes."""


def _ask_destination(node: DestinationNode, *questions: Callable[[], Any]) -> Any:
    """Call a destination's functions in the driver, one after the other; return the last result, or None if one of them
    failed."""
    caller = ThreadCaller(f"ask-{node.name}")
    try:
        return [caller.call(question, timeout_s=node.policy.send_timeout) for question in questions][-1]
    except Exception:  # whatever it is, `check` reports it before anything is delivered
        return None
    finally:
        caller.end()


def _do_nothing() -> None:
    """Serve as the default of ``on_sent``."""


class Dispatcher:
    """Runs the deliver phase of each wave; remembers which destinations fail as a whole, and which must be isolated."""

    def __init__(
        self, state: State, pickled_plan: PickledPlan, runner: Runner, breakers: BreakerRegistry, *, pace_s: float
    ) -> None:
        self._state = state
        self._pickled_plan = pickled_plan
        self._runner = runner
        self._pace_s = pace_s
        self._nodes = {n.name: n for n in state.plan.nodes if isinstance(n, DestinationNode)}
        self._many_versions = destinations_of_many_versions(state.plan.nodes)
        self._updates = KeyUpdates(state, pickled_plan, runner, breakers)
        self._heads = KeyHeads(state, ended_holds=errors_node(state.plan.nodes) is None)
        self._isolated: set[str] = set()
        """Destinations that killed a worker or hung in their last pass, and are therefore called in a child process."""
        self._doubts = Doubts()
        self._first_new_sequence = state.next_sequence
        """Rows below it were committed by earlier runs, which may have sent them."""
        self._retaining: set[str] = set()
        """Destinations that had in this run what they keep in other systems."""
        self.breakers = breakers
        self.on_checked: Callable[[str], None] = lambda name: None
        """Called with the name of each destination whose check has succeeded."""
        self.on_sent: Callable[[Sequence[Chunk]], None] | None = None
        """Called with the chunks of each destination in a pass; None: they are not noted."""

    def deliver(
        self, number: int, now_us: int, progress_folder: str = "", on_sent: Callable[[], None] = _do_nothing
    ) -> list[str]:
        """Run one pass: send what is due, and update the keys of keyed nodes; returns a line for each failure.

        Args:
            progress_folder: for live progress of the tasks, see ``engine.live``.
            on_sent: called once, after all lanes have been submitted; tasks that it submits are queued after them.
        """
        failures = self._send(number, now_us, progress_folder, on_sent)
        self._updates.run(number, now_us)
        return failures

    def _send(self, number: int, now_us: int, progress_folder: str, on_sent: Callable[[], None]) -> list[str]:
        """Send due rows to all healthy destinations at the same time; returns a line for each failure.

        No destination may hold the last task slot while another has work, so that one that hangs delays only itself.
        """
        self._state.journal.begin(number)
        due = self._due(now_us)
        work = [
            (node, files)
            for name, files in due.items()
            if (node := self._nodes.get(name)) is not None
            and not isinstance(node, KeyedNode)
            and self._check(node)
            and self._begin_pass(node, number, files)
        ]
        if not work:
            on_sent()
            return []
        task = Pass(
            self._pickled_plan,
            str(self._state.root),
            number,
            now_us,
            Process.current(),
            self._state.epoch,
            pace_s=self._pace_s,
            progress_folder=progress_folder,
            notes_chunks=self.on_sent is not None,
        )
        lanes = [self._make_lanes(number, now_us, node, files, alone=len(work) == 1) for node, files in work]
        submitted = [self._runner.submit(task, each) for each in lanes]
        on_sent()
        outcomes = [self._wait(number, each, reports) for each, reports in zip(lanes, submitted, strict=True)]
        failures = []
        for (node, _), (reports, failure) in zip(work, outcomes, strict=True):
            if failure:
                failures.append(f"destination {node.name}: {failure}")
            self._update_breaker(node, reports)
            if self.on_sent is not None:
                self.on_sent([chunk for report in reports for chunk in report.chunks])
        return failures

    def messages(self) -> Iterator[str]:
        """Yield a line for each destination that has not received everything, with the reason and what to do."""
        for name, breaker in self.breakers.items():
            if not self.breakers.is_destination(name):
                continue
            remedy = "fix it and run again" if breaker.permanent else "run again when it is back"
            yield f"{self.breakers.label(name)}: {breaker.why}. Its documents are kept: {remedy}."
        for name in self._nodes:
            if behind := self._heads.behind(name):
                waiting = plural(behind, "export waits", "exports wait")
                yield (
                    f"destination {name}: {waiting} for earlier ones of the same key, which failed, were "
                    "rejected, or are in doubt: `ferryman deliveries PLAN` names them; retry or resolve those."
                )
        unknown: Counter[str] = Counter()
        for file in self._state.outbox.files.values():
            if (name := file.partition["destination"]) not in self._nodes and pending_rows(file):
                unknown[name] += pending_rows(file)
        for name, rows in unknown.items():
            waiting = plural(rows, "row waits", "rows wait")
            yield f"destination {name} is not in the plan any more, {waiting} for it: put it back under this name."

    def maintain(self) -> Iterator[str]:
        """Have the destinations do what is better done once than with each chunk; yield a line about each thing that
        was done, or could not be. A destination that is in trouble is left alone."""
        for name, node in self._nodes.items():
            if type(node.destination).maintain is Destination.maintain or self.breakers.blocked(name):
                continue
            try:
                lines = node.destination.maintain()
            except BaseException as e:
                lines = [f"not maintained, which the next run tries again: {describe(unless_interrupt(e))}"]
            yield from (f"{self.breakers.label(name)}: {line}" for line in lines)

    def wait_s(self, destination: str) -> float | None:
        """Return the seconds until a pass may call this destination; None: not in this run."""
        return self.breakers.wait_s(destination) if destination in self._nodes else None

    def wait_of_file_s(self, file: DataFile, now_us: int) -> float | None:
        """Return the seconds until a row of an outbox file can be sent; None: all rows wait for others."""
        return self._heads.wait_s(file, now_us)

    def highest_sequence(self, destination: str) -> int | None:
        """Return the highest sequence that this destination holds; None: it cannot report it, or is unavailable."""
        node = self._nodes.get(destination)
        if node is None or type(node.destination).highest_sequence is Destination.highest_sequence:
            return None
        held = _ask_destination(node, node.destination.check, node.destination.highest_sequence)
        return held if isinstance(held, int) else None

    def refuse_old_copy(self, destination: str) -> bool:
        """Refuse the state if a destination has received deliveries that the state does not know, since it is an old
        copy then.

        Returns False if the destination does not answer. That is recorded, and nothing is sent to it until it does. Its
        answer is then compared with the state's next sequence at the first attempt, not with the current one.

        Raises:
            StateForeign: the state is an old copy; nothing was sent.
        """
        if not self._reports_sequences(destination):
            return True
        outbox, note = self._state.outbox, f"{_UNASKED}{destination}"
        unasked = outbox.transaction(note)
        next_sequence = unasked or self._state.next_sequence
        highest = self._highest_sent(destination)
        if highest is not None and highest >= next_sequence:
            raise StateForeign(
                f"{self._state.root} is an old copy: destination {destination} has deliveries of this state up to "
                f"sequence {highest}, and the copy knows those below {next_sequence}. What was sent after it was made "
                "would be sent again. Nothing was sent. Put the newest state back in its place. If it is lost: "
                "`ferryman adopt PLAN` goes on from this copy."
            )
        if (highest is None) != bool(unasked):
            outbox.commit("epoch", transactions={note: next_sequence if highest is None else 0})
        return highest is not None

    def _reports_sequences(self, destination: str) -> bool:
        """Return whether a destination reports the highest sequence that it has of a state, and would take a repeated
        delivery for a new one."""
        found = self._nodes[destination].destination
        return found.effect is Effect.POTENT and type(found).highest_of is not Destination.highest_of

    def _highest_sent(self, destination: str) -> int | None:
        """Return the highest sequence that this destination has of this state, 0 if none; None: it does not answer."""
        node = self._nodes[destination]
        state = self._state
        context = context_of(state.plan, node, state.wave, sender_of(state.root))

        def highest() -> int:
            held = node.destination.highest_of(context)
            return held if isinstance(held, int) else 0

        answer: int | None = _ask_destination(node, highest)
        return answer

    def _due(self, now_us: int) -> dict[str, list[DataFile]]:
        """Return destination -> its outbox files, oldest first, for each destination with a row that is due."""
        by_destination: dict[str, list[DataFile]] = {}
        for file in sorted(self._state.outbox.files.values(), key=first_sequence):
            if pending_rows(file) or has_exports(file):  # exports held for review may hold back others
                by_destination.setdefault(file.partition["destination"], []).append(file)
        return {
            d: files for d, files in by_destination.items() if any(self.wait_of_file_s(f, now_us) == 0 for f in files)
        }

    def _check(self, node: DestinationNode) -> bool:
        """Return whether rows may be sent to a destination: its breaker is closed, and its ``check`` succeeds."""
        if self.wait_s(node.name) != 0 or not self._succeeds(node, "check", node.destination.check):
            return False
        unasked = self._reports_sequences(node.name) and self._state.outbox.transaction(f"{_UNASKED}{node.name}")
        if unasked and not self.refuse_old_copy(node.name):
            self.breakers.record_failure(node.name, "it does not say what it has of this state", permanent=False)
            return False
        self.on_checked(node.name)
        return True

    def _begin_pass(self, node: DestinationNode, number: int, files: Sequence[DataFile]) -> bool:
        """Return whether rows may be sent to a destination: its ``begin_pass`` succeeds, and what it keeps in other
        systems about rows that may have been sent is still there."""
        if type(node.destination).begin_pass is Destination.begin_pass:
            return True
        context = context_of(self._state.plan, node, number, sender_of(self._state.root))
        context = context._replace(lanes=self._max_lanes(node, alone=True))
        if type(node.destination).retained is Destination.retained or node.name in self._retaining:
            return self._succeeds(node, "begin_pass", partial(node.destination.begin_pass, context))
        outbox, note = self._state.outbox, f"{_RETAINED}{node.name}"
        is_noted = bool(outbox.transaction(note))
        older = sum(pending_rows(file) for file in files if first_sequence(file) < self._first_new_sequence)
        is_kept = False

        def begin() -> None:
            nonlocal is_kept
            if is_noted and older and not node.destination.retained(context):
                raise Misconfigured(
                    _LOST.format(rows=plural(older, "row", "rows")) + node.destination.after_loss(context)
                )
            node.destination.begin_pass(context)
            is_kept = bool(node.destination.retained(context))

        if not self._succeeds(node, "begin_pass", begin):
            return False
        if is_kept and not is_noted:
            outbox.commit("epoch", transactions={note: 1})
        self._retaining.add(node.name)
        return True

    def _succeeds(self, node: DestinationNode, name: str, method: Callable[[], None]) -> bool:
        """Call a method of a destination; return whether it succeeds. Its breaker learns of a failure."""
        caller = ThreadCaller(f"{name}-{node.name}")
        try:
            caller.call(method, timeout_s=node.policy.send_timeout)
        except Hung as e:
            self.breakers.record_failure(node.name, f"{name}: {e}", permanent=False)
            return False
        except Exception as e:
            self.breakers.record_failure(node.name, message_of(e), permanent=isinstance(e, PermanentError))
            return False
        finally:
            caller.end()
        return True

    def _make_lanes(
        self, number: int, now_us: int, node: DestinationNode, files: list[DataFile], *, alone: bool
    ) -> list[Lane]:
        """Distribute a destination's due files over lanes.

        Args:
            alone: no other destination has work in this pass.
        """
        due = {f.path for f in files if self.wait_of_file_s(f, now_us) == 0}
        others = list(filter(has_other_rows, files))
        # Versions of a document are sent in order. A wave has each document once by each route, so this wave's files
        # need no order among each other.
        new_only = all(int(f.partition["wave"]) == number for f in others)
        order = {} if new_only else self._order(others)
        elsewhere = {} if node.policy.stale == "delete" else self._waits_elsewhere(number, node.name, others)
        # Rows that hold back others are sent now, even if not due: so their files are included.
        due |= {f.path for f in others if len(order.get(first_sequence(f), _NO_ORDER).first)}
        # Files of one group must be sent in order by one lane: files with exports of the same keys, or with one
        # family's rows.
        exports = group_by_lanes(list(filter(has_exports, files)))
        batches = [each for each in exports if any(f.path in due for f in each)]
        rest = [f for f in files if f.path in due and not has_exports(f)]
        batches += [rest] if rest and node.name in self._many_versions else _group_families(rest)
        max_lanes = self._max_lanes(node, alone=alone)
        lanes: list[list[OutboxFile]] = [[] for _ in range(min(max_lanes, len(batches)))]
        for each in batches:
            keys = [(file.path, first_sequence(file)) for file in each]
            min(lanes, key=len).extend(
                OutboxFile(path, key, order.get(key), elsewhere.get(path, {})) for path, key in keys
            )
        settled = min(map(first_sequence, self._files_of(node.name)))
        doubt = self._doubts.doubt(
            node.name,
            most_bytes=self._state.outbox.transaction(f"{_TAKES}{node.name}"),
        )
        most_lanes = self._max_lanes(node, alone=True)
        isolated = node.name in self._isolated
        return [Lane(node.name, each, isolated, settled, doubt, i, most_lanes) for i, each in enumerate(lanes)]

    def _files_of(self, destination: str) -> list[DataFile]:
        """Return all outbox files of a destination, even if all their rows are held for review."""
        return [f for f in self._state.outbox.files.values() if f.partition["destination"] == destination]

    def _max_lanes(self, node: DestinationNode, *, alone: bool) -> int:
        """Return the maximum number of lanes for a destination.

        Args:
            alone: no other destination has work in this pass.
        """
        if node.destination.single_writer:
            return 1
        free = max(1, self._runner.slots - (not alone))
        return free if node.policy.lanes is None else min(free, node.policy.lanes)

    def _order(self, files: list[DataFile]) -> dict[int, SendOrder]:
        paths = {first_sequence(f): self._state.outbox.path(f.path) for f in files}
        return send_orders(paths, sum(map(pending_rows, files)), self._state.local_scratch)

    def _waits_elsewhere(
        self, number: int, destination: str, files: list[DataFile]
    ) -> Mapping[str, Mapping[int, UndeliveredUpsert]]:
        """Return which deletes in these files wait for upserts in others, see ``send_order.waits_elsewhere``."""
        every = self._files_of(destination)
        if all(int(file.partition["wave"]) == number for file in every):
            return {}  # a lane sends a family's files in their order
        return waits_elsewhere(self._state.outbox, files, every)

    def _wait(
        self, number: int, lanes: list[Lane], submitted: Future[list[LaneReport]]
    ) -> tuple[list[LaneReport], str]:
        """Wait for the lanes of one destination; return their reports, and an error message or "".

        A worker that dies ends only this destination's pass: the results it recorded count, the rest stays pending.
        """
        name = lanes[0].destination
        try:
            reports = submitted.result()
            (self._isolated.add if any(r.hung for r in reports) else self._isolated.discard)(name)
            return reports, ""
        except WorkerDied as e:
            self._isolated.add(name)
            if (why := self._state.journal.given_up(number, name)) is not None:
                return [LaneReport(name, why, hung=True, others=len(lanes) > 1)], ""
            return [], f"{e}. The results it recorded count; the rest is sent from a child process."
        except EngineError as e:
            return [], str(e)

    def _update_breaker(self, node: DestinationNode, reports: list[LaneReport]) -> None:
        """Close or open a destination's breaker by the reports of its lanes, or doubt it: see ``deliver.doubts``."""
        name = node.name
        for report in reports:
            self._doubts.note_alone(name, report.alone)
        self._note_taken_size(name, [report.takes_bytes for report in reports if report.takes_bytes])
        stopped = [*chain.from_iterable(report.stopped_at for report in reports)]
        if any(report.accepted for report in reports):
            self._doubts.note_suspects(name, stopped)
        failed = next((r for r in reports if r.trouble), None)
        if failed is None:
            if reports:
                self._doubts.note_success(name)
                self.breakers.record_success(name)
        elif self._is_doubtful(node, failed, stopped) and self._check(node):
            self.breakers.record_suspicion(name, failed.trouble)
        elif not self.breakers.blocked(name):  # or else ``check`` has failed
            # If Spark has ended the stage, its other lanes may still be inside a call, at most until the call's time
            # limit.
            outlast_s = node.policy.send_timeout if failed.others else 0.0
            self._doubts.note_suspects(name, ())  # what was accepted before an outage says nothing about what follows
            self.breakers.record_failure(name, failed.trouble, permanent=failed.permanent, at_least_s=outlast_s)

    def _is_doubtful(self, node: DestinationNode, report: LaneReport, stopped: Sequence[int]) -> bool:
        """Return whether another pass may show that rows are to blame for what stopped this lane.

        Args:
            stopped: sequences of the rows at which lanes of this destination stopped.
        """
        if not report.stopped_at or node.destination.in_order:
            return False
        if report.hung:
            return self._doubts.note_hung(node.name, report.stopped_at)
        return self._doubts.note_stopped(node.name, stopped)

    def _note_taken_size(self, destination: str, sizes: list[int]) -> None:
        """Record, for this run and later ones, the largest chunk that a destination takes."""
        note, outbox = f"{_TAKES}{destination}", self._state.outbox
        if sizes and min(sizes) != outbox.transaction(note):
            outbox.commit("epoch", transactions={note: min(sizes)})


_NO_ORDER: Final = SendOrder(np.array([]), np.array([]))


def _group_families(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files that one lane must send in order, since a family's deletes must follow its upserts."""
    groups: list[list[DataFile]] = []
    for file in files:
        if groups and split_family(groups[-1][-1], file):
            groups[-1].append(file)
        else:
            groups.append([file])
    return groups


# The deliver phase in the driver: destinations that hold newer rows than those this state sends.

_RAISED_TEXT: Final = (
    "destination {name} holds deliveries newer than this state: an earlier state, now lost, was written under another "
    "clock, or another plan writes there. What is delivered from now on counts as newer."
)
_STALE_TEXT: Final = (
    "destination {name}: {deliveries} stale: it has something newer under their ids and kept it. After a "
    "kill this is expected. Otherwise another plan writes there, or this state was created again while the clock "
    "was behind: `ferryman retry PLAN --force --destination {name}` sends everything once more."
)


class SequenceGuard:
    """Counts stale deliveries, and keeps this state's sequences above those that its destinations hold.

    Otherwise a state recreated with a clock that is behind would deliver nothing: every delivery would be stale, and
    count as done.
    """

    def __init__(self, state: State, dispatcher: Dispatcher, report: Callable[[str], None]) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._report = report
        self._stale: Counter[str] = Counter()
        """Destination -> stale deliveries since the last report."""
        self._to_ask: set[str] = set()
        """Destinations to be asked before the next commit."""

    def record_stale(self, stale: Mapping[str, int]) -> None:
        """Count the stale deliveries of a wave, by destination."""
        self._stale.update(stale)
        self._to_ask |= stale.keys()

    def refuse_old_copy(self) -> None:
        """Ask all destinations, when a run begins: see ``Dispatcher.refuse_old_copy``.

        Raises:
            StateForeign: the state is an old copy; nothing was sent.
        """
        for node in self._state.plan.nodes:
            if isinstance(node, DestinationNode) and self._state.wave:
                self._dispatcher.refuse_old_copy(node.name)

    def before_commit(self) -> None:
        """Ask all destinations when the state is new, else those at which something was stale."""
        if not self._state.wave:
            self._to_ask |= {n.name for n in self._state.plan.nodes if isinstance(n, DestinationNode)}
        self._raise_sequences()

    def report(self) -> bool:
        """Report stale deliveries since the last report; return whether the next sequence was raised, which a commit
        must record."""
        for name, count in self._stale.items():
            self._report(_STALE_TEXT.format(name=name, deliveries=plural(count, "delivery was", "deliveries were")))
        self._stale.clear()
        return self._raise_sequences()

    def _raise_sequences(self) -> bool:
        raised = False
        for name in sorted(self._to_ask):
            held = self._dispatcher.highest_sequence(name)
            if held is not None and self._state.skip_sequences(held):
                self._report(_RAISED_TEXT.format(name=name))
                raised = True
        self._to_ask.clear()
        return raised
