"""Deliver, in the driver: which rows go to whom in this pass, and which destinations are left alone for now."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from ferryman.destinations.base import Destination
from ferryman.engine.breakers import Troubles
from ferryman.engine.deliver.sending import Lane, LaneReport, Pass, context_of
from ferryman.engine.deliver.turn import Hung, ThreadCaller
from ferryman.engine.keyed.phase import KeyUpdates
from ferryman.engine.order import KeyHeads, OutboxFile, SendOrder, group_by_lanes, send_orders
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.errors import EngineError, PermanentError, StateForeign, WorkerDied, message_of
from ferryman.plan import DestinationNode, KeyedNode, errors_node
from ferryman.state.outbox import first_sequence, has_exports, has_other_rows, pending_rows, split_family
from ferryman.state.state import State, sender_of
from ferryman.storage.delta import DataFile

_UNASKED: Final = "ferryman.unasked "
"""Application ids, with the name of a destination that did not say what it has of this state: the next free sequence
when it was asked first; 0: it has said so (on the outbox)."""


def _ask(node: DestinationNode, *questions: Callable[[], Any]) -> Any:
    """Ask a destination in the driver, one question after the other; the last answer. None: it does not answer."""
    sender = ThreadCaller(f"ask-{node.name}")
    try:
        return [sender.call(question, timeout_s=node.policy.send_timeout) for question in questions][-1]
    except Exception:  # whatever it is, `check` says it before something is delivered
        return None
    finally:
        sender.end()


def _nothing() -> None:
    """Do nothing: the callback where nobody waits."""


class Dispatcher:
    """Delivers passes; remembers over the passes of a run which destinations are in trouble."""

    def __init__(self, state: State, shipped: PickledPlan, runner: Runner, trouble: Troubles, *, pace_s: float) -> None:
        self._state = state
        self._shipped = shipped
        self._runner = runner
        self._pace_s = pace_s
        self._nodes = {n.name: n for n in state.plan.nodes if isinstance(n, DestinationNode)}
        self._updates = KeyUpdates(state, shipped, runner, trouble)
        self._heads = KeyHeads(state, ended_holds=errors_node(state.plan.nodes) is None)
        self._deadly: set[str] = set()
        """Destinations over which a worker died, or which hung, in their last pass."""
        self.trouble = trouble

    def deliver(self, number: int, now_us: int, live: str = "", then: Callable[[], None] = _nothing) -> list[str]:
        """One pass: what is due is sent, and the keys of keyed nodes are updated; what went wrong, a line each.

        Args:
            then: called once, when all that is sent is on its way: what it runs comes behind that.
        """
        if not self._runner.concurrent:
            then()
            then = _nothing
        failures = self._send(number, now_us, live, then)
        self._updates.run(number, now_us)
        return failures

    def _send(self, number: int, now_us: int, live: str, then: Callable[[], None]) -> list[str]:
        """Every destination that is well gets its due rows, side by side; what went wrong, a line each.
        ``live``: folder for what is reported meanwhile; see ``engine.live``.

        No destination may hold the last task slot while another has work: one that hangs delays only itself.
        """
        self._state.journal.begin(number)
        due = self._due(now_us)
        work = [
            (node, files)
            for name, files in due.items()
            if (node := self._nodes.get(name)) is not None and not isinstance(node, KeyedNode) and self._well(node)
        ]
        if not work:
            then()
            return []
        driver = (socket.gethostname(), os.getpid())
        task = Pass(
            self._shipped,
            str(self._state.root),
            number,
            now_us,
            driver,
            self._state.epoch,
            pace_s=self._pace_s,
            live=live,
        )
        lanes = [self._lanes(number, now_us, node, files, alone=len(work) == 1) for node, files in work]
        begun = _Last(len(lanes), then)
        if len(lanes) == 1:
            outcomes = [self._deliver_one(task, lanes[0], begun)]
        else:
            with ThreadPoolExecutor(len(lanes), thread_name_prefix="ferryman-deliver") as pool:
                outcomes = list(pool.map(lambda each: self._deliver_one(task, each, begun), lanes))
        failures = []
        for (node, _), (reports, failure) in zip(work, outcomes, strict=True):
            if failure:
                failures.append(f"destination {node.name}: {failure}")
            self._note_trouble(node.name, reports)
        return failures

    def messages(self) -> Iterator[str]:
        """At the end of a run: which destinations have not got everything, why, and what to do."""
        for name, trouble in self.trouble.items():
            remedy = "fix it and run again" if trouble.permanent else "run again when it is back"
            yield f"destination {name}: {trouble.why}. Its documents are kept: {remedy}."
        for name in self._nodes:
            if behind := self._heads.behind(name):
                yield (
                    f"destination {name}: {behind} exports wait for earlier ones of their keys, which failed, were "
                    "rejected, or are in doubt: `ferryman deliveries` names them; retry or resolve those."
                )
        unknown: Counter[str] = Counter()
        for file in self._state.outbox.files.values():
            if (name := file.partition["destination"]) not in self._nodes and pending_rows(file):
                unknown[name] += pending_rows(file)
        for name, rows in unknown.items():
            yield (
                f"destination {name} is not in the plan any more, {rows} rows wait for it: put it back under this name."
            )

    def wait_s(self, destination: str) -> float | None:
        """Seconds until a pass may ask this destination; None: never in this run."""
        return self.trouble.wait_s(destination) if destination in self._nodes else None

    def wait_of_file_s(self, file: DataFile, now_us: int) -> float | None:
        """Seconds until a row of an outbox file can be sent; None: all wait for others."""
        return self._heads.wait_s(file, now_us)

    def highest_sequence(self, destination: str) -> int | None:
        """The highest sequence that this destination holds; None: it cannot tell, or not now."""
        node = self._nodes.get(destination)
        if node is None or type(node.destination).highest_sequence is Destination.highest_sequence:
            return None
        held = _ask(node, node.destination.check, node.destination.highest_sequence)
        return held if isinstance(held, int) else None

    def refuse_old_copy(self, destination: str) -> bool:
        """Look whether a destination has more of this state than the state knew of when it was asked last; False: it
        does not say so now. Then it is noted, and nothing is sent to it before it has said so: by then the state may
        know of more.

        Raises:
            StateForeign: it has; nothing was sent.
        """
        if not self._tells(destination):
            return True
        outbox, note = self._state.outbox, f"{_UNASKED}{destination}"
        noted = outbox.transaction(note)
        known = noted or self._state.next_sequence
        held = self._sent_before(destination)
        if held is not None and held >= known:
            raise StateForeign(
                f"{self._state.root} is an old copy: destination {destination} has deliveries of this state up to "
                f"sequence {held}, and the copy knows those below {known}. What was sent after it was made would be "
                "sent again. Nothing was sent. Put the newest state back in its place. If it is lost: give another "
                "--state, which delivers every document again."
            )
        if (held is None) != bool(noted):
            outbox.commit("epoch", transactions={note: known if held is None else 0})
        return held is not None

    def _tells(self, destination: str) -> bool:
        """Can it say what it has of a state?"""
        return type(self._nodes[destination].destination).highest_of is not Destination.highest_of

    def _sent_before(self, destination: str) -> int | None:
        """The highest sequence that this destination has of this state, 0 if nothing; None: it does not answer."""
        node = self._nodes[destination]
        state = self._state
        context = context_of(state.plan, node, state.wave, sender_of(state.root))

        def highest() -> int:
            held = node.destination.highest_of(context)
            return held if isinstance(held, int) else 0

        answer: int | None = _ask(node, highest)
        return answer

    def _due(self, now_us: int) -> dict[str, list[DataFile]]:
        """Destination -> files with rows that are due, oldest first."""
        found: dict[str, list[DataFile]] = {}
        for file in sorted(self._state.outbox.files.values(), key=first_sequence):
            if pending_rows(file) or has_exports(file):  # what is held for review may hold others
                found.setdefault(file.partition["destination"], []).append(file)
        return {d: files for d, files in found.items() if any(self.wait_of_file_s(f, now_us) == 0 for f in files)}

    def _well(self, node: DestinationNode) -> bool:
        """Ask the destination, unless it is known to be in trouble."""
        if self.wait_s(node.name) != 0:
            return False
        sender = ThreadCaller(f"check-{node.name}")
        try:
            sender.call(node.destination.check, timeout_s=node.policy.send_timeout)
        except Hung as e:
            self.trouble.begin(node.name, f"check: {e}", permanent=False)
            return False
        except Exception as e:
            self.trouble.begin(node.name, message_of(e), permanent=isinstance(e, PermanentError))
            return False
        finally:
            sender.end()
        noted = self._tells(node.name) and self._state.outbox.transaction(f"{_UNASKED}{node.name}")
        if noted and not self.refuse_old_copy(node.name):
            self.trouble.begin(node.name, "it does not say what it has of this state", permanent=False)
            return False
        return True

    def _lanes(
        self, number: int, now_us: int, node: DestinationNode, files: list[DataFile], *, alone: bool
    ) -> list[Lane]:
        due, others = (
            {f.path for f in files if self.wait_of_file_s(f, now_us) == 0},
            list(filter(has_other_rows, files)),
        )
        fresh = all(int(f.partition["wave"]) == number for f in others)  # a wave has each document once, by each route
        order = {} if fresh else self._order(others)
        due |= {f.path for f in others if len(order.get(first_sequence(f), _NOTHING).first)}
        exports = group_by_lanes(list(filter(has_exports, files)))
        together = [each for each in exports if any(f.path in due for f in each)]
        together += _together([f for f in files if f.path in due and not has_exports(f)])
        width = self._width(node, alone=alone)
        dealt: list[list[OutboxFile]] = [[] for _ in range(min(width, len(together)))]
        for each in together:
            keys = [(file.path, first_sequence(file)) for file in each]
            min(dealt, key=len).extend(OutboxFile(path, key, order.get(key)) for path, key in keys)
        settled = min(map(first_sequence, self._files_of(node.name)))
        return [Lane(node.name, each, node.name in self._deadly, settled) for each in dealt]

    def _files_of(self, destination: str) -> list[DataFile]:
        """All of its files, also those of which every row is held for review."""
        return [f for f in self._state.outbox.files.values() if f.partition["destination"] == destination]

    def _width(self, node: DestinationNode, *, alone: bool) -> int:
        """How many lanes it gets at most."""
        if node.destination.single_writer:
            return 1
        free = max(1, self._runner.slots - (not alone))
        return free if node.policy.lanes is None else min(free, node.policy.lanes)

    def _order(self, files: list[DataFile]) -> dict[int, SendOrder]:
        paths = {first_sequence(f): self._state.outbox.path(f.path) for f in files}
        return send_orders(paths, sum(map(pending_rows, files)), self._state.local_scratch)

    def _deliver_one(self, task: Pass, lanes: list[Lane], begun: Callable[[], None]) -> tuple[list[LaneReport], str]:
        """A worker that dies ends only this destination's pass: what it noted counts, the rest stays pending."""
        name = lanes[0].destination
        try:
            reports = self._runner.run_before(task, lanes, begun)
            (self._deadly.add if any(r.hung for r in reports) else self._deadly.discard)(name)
            return reports, ""
        except WorkerDied as e:
            self._deadly.add(name)
            if (why := self._state.journal.given_up(task.number, name)) is not None:
                return [LaneReport(name, why, hung=True, others=len(lanes) > 1)], ""
            return [], f"{e}. The results it recorded count; the rest is sent from a child process."
        except EngineError as e:
            return [], str(e)

    def _note_trouble(self, destination: str, reports: list[LaneReport]) -> None:
        bad = next((r for r in reports if r.trouble), None)
        if bad is not None:
            # Other lanes of a stage that Spark has ended may be in a call: none outlasts the time that it has.
            outlast_s = self._nodes[destination].policy.send_timeout if bad.others else 0.0
            self.trouble.begin(destination, bad.trouble, permanent=bad.permanent, at_least_s=outlast_s)
        elif reports:
            self.trouble.end(destination)


class _Last:
    """Calls ``then`` when it is called itself for the last of so many times, by whatever threads."""

    def __init__(self, times: int, then: Callable[[], None]) -> None:
        self._left = times
        self._then = then
        self._counting = threading.Lock()

    def __call__(self) -> None:
        with self._counting:
            self._left -= 1
            last = not self._left
        if last:
            self._then()


_NOTHING: Final = SendOrder(np.array([]), np.array([]))


def _together(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files that one lane must send, in their order: a family's deletes go after its upserts."""
    found: list[list[DataFile]] = []
    for file in files:
        if found and split_family(found[-1][-1], file):
            found[-1].append(file)
        else:
            found.append([file])
    return found


# Deliver, in the driver: what destinations hold that is newer than what we send, and how we get above it.

_ABOVE: Final = (
    "destination {name} holds deliveries newer than this state: an earlier state, now lost, was written under another "
    "clock, or another plan writes there. What is delivered from now on counts as newer."
)
_STALE: Final = (
    "destination {name}: {count} deliveries were stale: it has something newer under their ids and kept it. After a "
    "kill this is expected. Otherwise another plan writes there, or this state was created again while the clock "
    "was behind: `ferryman retry --force --destination {name}` sends everything once more."
)


class Newer:
    """Counts stale deliveries, and sees to it that sequences are above those that a destination holds.

    Else a state created again under a clock that is behind would deliver nothing, and every delivery would seem done.
    """

    def __init__(self, state: State, dispatcher: Dispatcher, tell: Callable[[str], None]) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._tell = tell
        self._counted: Counter[str] = Counter()
        """Destination -> stale deliveries since the last report."""
        self._ask: set[str] = set()
        """Destinations to be asked before the next commit."""

    def note(self, stale: Mapping[str, int]) -> None:
        """Note the stale deliveries of a wave, by destination."""
        self._counted.update(stale)
        self._ask |= stale.keys()

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
            self._ask |= {n.name for n in self._state.plan.nodes if isinstance(n, DestinationNode)}
        self._go_above()

    def report(self) -> bool:
        """Say how many were stale since the last time. Have sequences jumped, so that a commit must keep that?"""
        for name, count in self._counted.items():
            self._tell(_STALE.format(name=name, count=count))
        self._counted.clear()
        return self._go_above()

    def _go_above(self) -> bool:
        jumped = False
        for name in sorted(self._ask):
            held = self._dispatcher.highest_sequence(name)
            if held is not None and self._state.skip_sequences(held):
                self._tell(_ABOVE.format(name=name))
                jumped = True
        self._ask.clear()
        return jumped
