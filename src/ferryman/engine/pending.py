"""What is still to be done of a state, and when something of it can be done."""

from __future__ import annotations

from ferryman.engine import step_retries
from ferryman.engine.deliver.dispatch import Dispatcher
from ferryman.engine.logs import Logs
from ferryman.engine.nodes import Nodes
from ferryman.engine.step_retries import Hashes, StepDebt
from ferryman.engine.unlisted import Unlisted
from ferryman.records.due import now_us, wait_s
from ferryman.state.outbox import pending_rows
from ferryman.state.state import State


class PendingWork:
    """Rows of the outbox, documents that failed at steps, sources that are away.

    Attributes:
        unseen: sources that were away when they were to be listed, or known documents of theirs to be looked at, by
            the nodes' keys: all is to be scanned again.
    """

    def __init__(self, state: State, dispatcher: Dispatcher, nodes: Nodes, unlisted: Unlisted, logs: Logs) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._nodes = nodes
        self._unlisted = unlisted
        self._logs = logs
        self._longest_s = state.plan.longest_backoff_s
        self._at_steps: list[StepDebt] = []
        self._at_steps_of: tuple[frozenset[str], Hashes] = (frozenset(), unlisted.hashes)
        """Files of ``documents`` from which it was computed: that reads all of them. And what was unlisted."""
        self.unseen: set[str] = set()

    def wait_s(self) -> float | None:
        """Seconds until something can be done: 0 now, None never (in this run)."""
        now = now_us()
        waits = []
        for file in self._state.outbox.files.values():
            destination = file.partition["destination"]
            if not pending_rows(file):
                continue
            wait = self._dispatcher.wait_of_file_s(file, now)
            if wait is not None and (probe := self._dispatcher.wait_s(destination)) is not None:
                waits.append(max(probe, wait))
        for debt in self.at_steps():
            if not debt.unlisted and (held := self._nodes.wait_s(debt.held)) is not None:
                waits.append(max(held, wait_s(debt.due, now, self._longest_s)))
        sources = [self._nodes.wait_of(source) for source in self.unseen]
        waits += [until for until in (*sources, self._logs.wait_s()) if until is not None]
        return min(waits, default=None)

    def rows(self) -> int:
        """Of the outbox, that are still to be sent."""
        return sum(map(pending_rows, self._state.outbox.files.values()))

    def rows_due(self) -> bool:
        """Can rows of the outbox be sent now?"""
        now = now_us()
        return any(
            pending_rows(f)
            and self._dispatcher.wait_of_file_s(f, now) == 0
            and self._dispatcher.wait_s(f.partition["destination"]) == 0
            for f in self._state.outbox.files.values()
        )

    def at_steps(self) -> list[StepDebt]:
        """See ``step_retries.step_debt``."""
        of = (frozenset(self._state.documents.files), self._unlisted.hashes)
        if of[0] != self._at_steps_of[0] or of[1] is not self._at_steps_of[1]:
            self._at_steps, self._at_steps_of = step_retries.step_debt(self._state, of[1]), of
        return self._at_steps

    def steps_due(self) -> bool:
        """Can documents that failed at steps be retried now?"""
        now = now_us()
        return any(
            wait_s(debt.due, now, self._longest_s) == 0 and self._nodes.wait_s(debt.held) == 0
            for debt in self.at_steps()
            if not debt.unlisted
        )

    def sources_back(self) -> bool:
        """May a source be asked again of which known documents could not be looked at?"""
        return any(not self._nodes.blocked(source) for source in self.unseen)
