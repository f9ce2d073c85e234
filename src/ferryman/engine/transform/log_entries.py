"""Entries of a log as a task reads them, and the first of them that cannot be processed now.

An entry ends with the commit of its wave. So an entry that has to wait ends the wave before it, if the log is read in
order; so does an entry that failed for good, where the plan says so. The task walks all its entries nevertheless: only
then is it known what is wrong with a node (``health``). It reports its position to the driver, and entries behind that
position are processed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

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
    """The entries of one task.

    Attributes:
        once: no step may see them a second time, so errors are final.
        blocked: the first that cannot be processed.
        read: number of entries read.
        reached: positions of the log behind them, by partition.
        held: keys of which an entry was not processed.
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
        """Whether an entry that cannot be processed holds only the later entries of its key."""
        self._held = split.held
        self.held: set[int] = set()
        self.blocked: Blocked | None = None
        self.read = 0
        self.reached: dict[str, int] = {}

    def blocks(self, max_rows: int = _BLOCK) -> Iterator[Block]:
        """Yield the entries in blocks. An error of the log ends the reading like an entry that cannot be processed; so
        does
        ``stop``.

        Args:
            max_rows: entries a block.
        """
        place = self._split.piece.start
        try:
            for rows in self._split.tables(self._log):
                for at in range(0, rows.num_rows, max_rows):
                    block = Block(rows.slice(at, max_rows), self._split.revision)
                    if not self._keeps_provenance:
                        block.provenances = None
                    self.read += len(block)
                    yield block
                    if self.once and self.blocked is not None:
                        return
                    place = block.places[-1] + (not self._log.shares_places)
            self.reached = dict(self._log.reached(self._split.piece))
        except Exception as e:
            if place >= self._split.piece.end:  # it was read to its end
                self.reached = dict(self._log.reached(self._split.piece))
                return
            fault = classify_error(unless_interrupt(e), self._split.source, "reading it", reading=True)
            repair = fault.kind in (ErrorKind.MISCONFIGURED, ErrorKind.PERMANENT, ErrorKind.UNFORESEEN)
            self._note(Blocked(place, f"place {place}", fault.text, repair, (self._split.source,)))

    def stop(self, block: Block, i: int, why: str, held: str) -> None:
        """Leave the entry of row ``i`` and those behind it for later: a node that they may reach is in trouble."""
        self.read -= len(block) - i
        self._note(Blocked(block.places[i], block.ids[i], why, stop=False, held=(held,)))

    def waits(self, block: Block, i: int) -> bool:
        """Return whether the entry of row ``i`` waits for an earlier one of its key."""
        return self.by_key and ((key := block.key_hashes[i]) in self.held or key in self._held)

    def hold_key(self, block: Block, i: int, *, ended: bool) -> None:
        """Hold later entries of the key of row ``i``, whose entry was not processed.

        Args:
            ended: it failed for good, and nothing of it is tried again.
        """
        if self.by_key and (self._stops or not ended):
            self.held.add(block.key_hashes[i])

    def with_attempts(self, block: Block, i: int, owed: MissingDelivery) -> MissingDelivery:
        """Return a delivery of the entry of row ``i`` with the attempts made before this wave."""
        head = self._split.head
        if head is None or (head.place, head.entry) != (block.places[i], number_of_text(block.ids[i])):
            return owed
        return MissingDelivery(*owed.end, head.attempt, owed.open, head.since or None, head.transient)

    def hold_entry(
        self,
        block: Block,
        i: int,
        failures: Sequence[FailedMember],
        new_failures: Sequence[MemberFailure],
        held: Collection[str],
        due: int | None,
    ) -> bool:
        """Return whether the entry of row ``i`` cannot be processed now, for its failures; note it as blocked if so."""
        if self.once or (self.by_key and not held):
            return False
        owed = [o for failure in failures for o in failure.owed]
        still = [o for o in owed if o.open]
        waits, ended = bool(still) and self._log.ordered, len(still) < len(owed) and self._stops
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
            )
        )
        return True

    def _note(self, blocked: Blocked) -> None:
        if self.blocked is None or blocked.place < self.blocked.place:
            self.blocked = blocked
