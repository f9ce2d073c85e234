"""Entries of a log as a task reads them, and the first entry that cannot be processed now.

An entry is finished when its wave commits. So if an entry has to wait and the log is read in order, the wave must end
before that entry; likewise if an entry failed permanently and the plan stops at such entries. The task still walks all
its entries, since only then the health of the nodes is known (``health``). It reports the entry to the driver, and
later entries are processed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import pyarrow as pa

from ferryman.engine.known_entries import KnownEntries
from ferryman.engine.results import Blocked, ErrorKind, NodeError, classify_error
from ferryman.engine.tasks import LogSplit
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.walk import MemberFailure
from ferryman.errors import unless_interrupt
from ferryman.plan import ExportsNode, Plan, errors_node, find_source
from ferryman.records.families import FailedMember, MissingDelivery
from ferryman.sources.log import Log
from ferryman.state.logs import number_of_text

_BLOCK: Final = 4096


class LogEntries:
    """Entries of one task.

    Attributes:
        once: whether no step may see an entry twice, so that errors are final.
        blocked: first entry that cannot be processed; None: there is none.
        read: number of entries read.
        reached: partition -> position of the log after these entries.
        held: key hashes with an entry that was not processed.
    """

    def __init__(self, plan: Plan, split: LogSplit, *, once: bool = False) -> None:
        node = find_source(plan.nodes, split.source)
        assert isinstance(node.source, Log)
        self._log = node.source
        self._split = split
        self.once = once
        self._keeps_provenance = plan.provenance
        self._stops = node.source.on_error == "stop" and errors_node(plan.nodes) is None
        self.by_key = isinstance(node, ExportsNode)
        """Whether an entry that cannot be processed holds back only later entries of its key."""
        self._known = None if split.known is None else KnownEntries(split.known, split.source)
        self._held = split.held
        self.held: set[int] = set()
        self.blocked: Blocked | None = None
        self.read = 0
        self.reached: dict[str, int] = {}

    def blocks(self, max_rows: int = _BLOCK, is_full: Callable[[], bool] = lambda: False) -> Iterator[Block]:
        """Yield the entries in blocks. An error of the log, or a call of ``stop``, ends the reading there, like an
        entry that cannot be processed.

        Args:
            max_rows: maximum number of entries per block.
            is_full: asked after each block; if it is, the next wave reads the others.
        """
        place = self._split.piece.start
        try:
            for rows in self._split.tables(self._log):
                for at in range(0, rows.num_rows, max_rows):
                    block = self.block_of(rows.slice(at, max_rows))
                    self.read += len(block)
                    yield block
                    if self.once and self.blocked is not None:
                        return
                    place = block.places[-1] + (not self._log.shares_places)
                    if is_full() and not self._log.shares_places:
                        self.reached = {self._split.piece.partition: place}
                        return
            self.reached = dict(self._log.reached(self._split.piece))
        except Exception as e:
            if place >= self._split.piece.end:  # it was read to its end
                self.reached = dict(self._log.reached(self._split.piece))
                return
            fault = classify_error(unless_interrupt(e), self._split.source, "reading it", reading=True)
            repair = fault.kind in (ErrorKind.MISCONFIGURED, ErrorKind.PERMANENT, ErrorKind.UNFORESEEN)
            self._note(Blocked(place, f"place {place}", fault.text, repair, (self._split.source,)))

    def block_of(self, table: pa.Table) -> Block:
        """Return these entries as a block."""
        block = Block(table, self._split.revision)
        if self._known is not None and (known := self._known.look_up(block.ids)) is not None:
            block.set_known(known)
        if not self._keeps_provenance:
            block.provenances = None
        return block

    @property
    def hashes(self) -> bytes:
        """Return ``Staged.hashes``."""
        return b"" if self._known is None else b"".join(each.tobytes() for each in self._known.hashes)

    def stop(self, block: Block, i: int, why: str, held: str) -> None:
        """Stop before the entry of row ``i``, because a node that it may reach is in trouble."""
        self.read -= len(block) - i
        self._note(Blocked(block.places[i], block.ids[i], why, stop=False, held=(held,)))

    def waits(self, block: Block, i: int) -> bool:
        """Return whether the entry of row ``i`` waits for an earlier entry of its key."""
        return self.by_key and ((key := block.key_hashes[i]) in self.held or key in self._held)

    def hold_key(self, block: Block, i: int, *, ended: bool) -> None:
        """Hold back later entries of row ``i``'s key, because its entry was not processed.

        Args:
            ended: whether it failed permanently, so that nothing of it is retried.
        """
        if self.by_key and (self._stops or not ended):
            self.held.add(block.key_hashes[i])

    def with_attempts(self, block: Block, i: int, owed: MissingDelivery) -> MissingDelivery:
        """Return a delivery of row ``i``'s entry, with the attempts from earlier waves."""
        head = self._split.head
        if head is None or (head.place, head.entry) != (block.places[i], number_of_text(block.ids[i])):
            return owed
        return MissingDelivery(*owed.end, head.attempt, owed.open, head.since or None, head.transient)

    def block_if_unfinished(
        self,
        block: Block,
        i: int,
        failures: Sequence[FailedMember],
        new_failures: Sequence[MemberFailure],
        held: Collection[str],
        due: int | None,
    ) -> bool:
        """Return whether the entry of row ``i`` cannot be processed now because of its failures; if so, record it as
        blocked."""
        if self.once or (self.by_key and not held):
            return False
        owed = [o for failure in failures for o in failure.owed]
        still = [o for o in owed if o.open]
        stops = self._stops and self._split.passed != (block.places[i], number_of_text(block.ids[i]))
        waits, ended = bool(still) and self._log.ordered, len(still) < len(owed) and stops
        if not (waits or ended):
            return False
        fault: NodeError = new_failures[0].fault
        tried = max((o if o.attempt else self.with_attempts(block, i, o) for o in owed), key=lambda o: o.attempt)
        self._note(
            Blocked(
                block.places[i],
                block.ids[i],
                fault.text,
                stop=not waits,
                held=tuple(held),
                due=due,
                attempt=tried.attempt,
                transient=tried.transient,
                since=tried.since,
                version=block.versions[i],
            )
        )
        return True

    def _note(self, blocked: Blocked) -> None:
        if self.blocked is None or blocked.place < self.blocked.place:
            self.blocked = blocked
