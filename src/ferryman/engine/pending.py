"""Pending work of a state, and when it can be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np

from ferryman import limits
from ferryman.engine import step_retries
from ferryman.engine.breakers import Nodes
from ferryman.engine.deliver.dispatch import Dispatcher
from ferryman.engine.logs import Logs
from ferryman.engine.results import PendingRetries
from ferryman.engine.step_retries import Hashes
from ferryman.limits import GIB, KIB, MIB
from ferryman.plan import Plan, sources_of
from ferryman.records.rows import now_us, wait_s
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
        self._at_steps: list[PendingRetries] = []
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
        """Return the number of outbox rows still to be sent."""
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

    def at_steps(self) -> list[PendingRetries]:
        """Return the pending retries of steps, see ``step_retries.pending_retries``."""
        of = (frozenset(self._state.documents.files), self._unlisted.hashes)
        if of[0] != self._at_steps_of[0] or of[1] is not self._at_steps_of[1]:
            self._at_steps, self._at_steps_of = step_retries.pending_retries(self._state, of[1]), of
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


# How much is pending in the outbox: a scan stops reading documents while it is too much.


class Backlog:
    """Pending rows of a state, measured against their limit.

    Args:
        max_bytes: more than this, as it lies on the disk, is too much.
    """

    def __init__(self, state: State, max_bytes: int) -> None:
        self._state = state
        self._max_bytes = max_bytes

    @property
    def too_large(self) -> bool:
        return sum(self._pending().values()) > self._max_bytes

    def describe(self, over: bool) -> str:
        """Why no more documents are read, and what to do.

        Args:
            over: the run ends so; else it goes on once there is room.
        """
        pending = self._pending()
        each = ", ".join(f"{name}: {size_text(size)}" for name, size in pending.most_common())
        size, most = size_text(sum(pending.values())), size_text(self._max_bytes)
        why = f"{size} are pending ({each}), more than the limit of {most} (--max-pending)"
        if over:
            how = "run again when the destination is back"
            return f"the scan stopped early: {why}. What is pending is kept; the rest is read later: {how}."
        return f"the scan waits: {why}. What is pending is kept; the rest is read once there is room."

    def _pending(self) -> Counter[str]:
        """Destination -> bytes."""
        found: Counter[str] = Counter()
        for file in self._state.outbox.files.values():
            if pending := pending_rows(file):
                found[file.partition["destination"]] += file.size * pending // file.rows
        return found


def size_text(size: int) -> str:
    """Return a size for users: 4.2 GiB."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


_UNITS: Final = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


# Documents that are to be tried again and that no source lists: they are not looked for all the time.

_NONE: Final[Hashes] = np.empty(0, np.uint64)


class Unlisted:
    """Failed documents that no listing contained, by the hashes of ``retries``; forgotten after
    ``limits.UNLISTED_AGAIN_S``.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._sources = {n.name: n.source for n in sources_of(plan.nodes)}
        self._clock = clock
        self._hashes = _NONE
        self._until = 0.0

    @property
    def hashes(self) -> Hashes:
        """Return the hashes of documents that are not looked for now."""
        if len(self._hashes) and self._clock() >= self._until:
            self.forget()
        return self._hashes

    def add(self, hashes: Hashes) -> None:
        """These were looked for in vain just now."""
        self._hashes = np.union1d(self._hashes, hashes)
        self._until = self._clock() + limits.UNLISTED_RETRY_S

    def forget(self) -> None:
        """Look for all of it again."""
        self._hashes = _NONE

    def describe(self, documents: Mapping[str, Collection[str]]) -> list[str]:
        """Return a line for each source about pending documents that no listing contained.

        Args:
            documents: source -> ids.
        """
        return [self._line(source, ids) for source, ids in documents.items()]

    def _line(self, source: str, ids: Collection[str]) -> str:
        what = f"{len(ids)} documents are" if len(ids) > 1 else "1 document is"
        example = f"such as {min(ids)}" if len(ids) > 1 else min(ids)
        known = self._sources.get(source)
        why = "" if known is None or not known.comes_again else f"{known.comes_again} "
        again = f"It is looked for again every {limits.UNLISTED_RETRY_S:g} s."
        return f"source {source}: {what} to be tried again and not listed: {example}. {why}{again}"
