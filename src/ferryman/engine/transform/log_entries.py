"""Entries of a log in a worker's hands: read piece by piece; which is the first that cannot be processed now?

An entry ends with the commit of its wave. So one that has to wait ends the wave before it, if the log is read in order,
and one that failed for good does where the plan says so. The task walks all its entries nevertheless: what is wrong
with a node shows only then (``health``). It tells the driver where it came to, and what lies behind is done again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ferryman.engine.batches import LogSplit
from ferryman.engine.results import Blocked, ErrorKind, NodeError, classify_error
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.walk import Met
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
        read: how many there were.
        reached: where the log stands behind them, by partition.
        held: keys of which an entry did not go through.
    """

    def __init__(self, plan: Plan, cut: LogSplit, *, once: bool = False) -> None:
        node = find_source(plan.nodes, cut.source)
        assert isinstance(node.source, Log)
        self._log = node.source
        self._cut = cut
        self.once = once
        self._keeps_provenance = plan.provenance
        self._stops = node.source.on_error == "stop" and errors_node(plan.nodes) is None
        self.by_key = isinstance(node, ExportsNode)
        """Whether an entry that cannot be processed holds only the later entries of its key."""
        self._held = cut.held
        self.held: set[int] = set()
        self.blocked: Blocked | None = None
        self.read = 0
        self.reached: dict[str, int] = {}

    def blocks(self, most: int = _BLOCK) -> Iterator[Block]:
        """Read entries in blocks. An error ends the reading like an entry that cannot be processed, and so does
        ``stop``.

        Args:
            most: entries a block.
        """
        place = self._cut.piece.start
        try:
            for rows in self._cut.tables(self._log):
                for at in range(0, rows.num_rows, most):
                    block = Block(rows.slice(at, most), self._cut.revision)
                    if not self._keeps_provenance:
                        block.provenances = None
                    self.read += len(block)
                    yield block
                    if self.once and self.blocked is not None:
                        return
                    place = block.places[-1] + (not self._log.shares_places)
            self.reached = dict(self._log.reached(self._cut.piece))
        except Exception as e:
            if place >= self._cut.piece.end:  # it was read to its end
                self.reached = dict(self._log.reached(self._cut.piece))
                return
            fault = classify_error(unless_interrupt(e), self._cut.source, "reading it", reading=True)
            repair = fault.kind in (ErrorKind.MISCONFIGURED, ErrorKind.PERMANENT, ErrorKind.UNFORESEEN)
            self._note(Blocked(place, f"place {place}", fault.text, repair, (self._cut.source,)))

    def stop(self, block: Block, i: int, why: str, held: str) -> None:
        """The entry of row ``i`` and those behind it are left for later: a node on their way is in trouble."""
        self.read -= len(block) - i
        self._note(Blocked(block.places[i], block.ids[i], why, stop=False, held=(held,)))

    def waits(self, block: Block, i: int) -> bool:
        """Does the entry of row ``i`` wait for an earlier one of its key?"""
        return self.by_key and ((key := block.key_hashes[i]) in self.held or key in self._held)

    def hold(self, block: Block, i: int, *, ended: bool) -> None:
        """The entry of row ``i`` does not go through: later ones of its key wait.

        Args:
            ended: it did not for good, and nothing of it is tried again.
        """
        if self.by_key and (self._stops or not ended):
            self.held.add(block.key_hashes[i])

    def had(self, block: Block, i: int, owed: MissingDelivery) -> MissingDelivery:
        """Return a delivery of the entry of row ``i`` with the attempts made before this wave."""
        head = self._cut.head
        if head is None or (head.place, head.entry) != (block.places[i], number_of_text(block.ids[i])):
            return owed
        return MissingDelivery(*owed.end, head.attempt, owed.open, head.since or None, head.transient)

    def holds(
        self,
        block: Block,
        i: int,
        failures: Sequence[FailedMember],
        met: Sequence[Met],
        held: Collection[str],
        due: int | None,
    ) -> bool:
        """Can the entry of row ``i`` not be processed now, for what went wrong with it?"""
        if self.once or (self.by_key and not held):
            return False
        owed = [o for failure in failures for o in failure.owed]
        still = [o for o in owed if o.open]
        waits, ended = bool(still) and self._log.ordered, len(still) < len(owed) and self._stops
        if not (waits or ended):
            return False
        fault: NodeError = met[0].fault
        most = max((o if o.attempt else self.had(block, i, o) for o in owed), key=lambda o: o.attempt)
        self._note(
            Blocked(
                block.places[i],
                block.ids[i],
                fault.text,
                stop=not waits,
                held=tuple(held),
                due=due,
                attempt=most.attempt,
                transient=most.transient,
                since=most.since,
            )
        )
        return True

    def _note(self, found: Blocked) -> None:
        if self.blocked is None or found.place < self.blocked.place:
            self.blocked = found
