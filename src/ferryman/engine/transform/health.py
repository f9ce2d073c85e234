"""Health of the nodes that a task calls: may a node be called, and are its errors its own or the documents'?

==============================  ===========================================================================
an error                        what it means for the node
==============================  ===========================================================================
it says so (``Unavailable``)    it is away: what comes to it from now on is held back, and spends no attempt
it says so (``Misconfigured``)  the same, until somebody fixes it
of the connection               after ``brake`` documents in a row, or if all failed so, as if it had said Unavailable
unforeseen                      after ``brake`` in a row a second look: as many more, spread over the rest of the task;
                                if none succeeds, and no other task's did, as if it had said Misconfigured
transient, permanent, dropped   nothing: the code said on purpose what becomes of its document
==============================  ===========================================================================

Where documents come in batches (a queue's jobs), the unforeseen errors of one batch or of two are the documents' own,
however many these are. The second look is taken when ``limits.BRAKE_BATCHES`` have failed and none has succeeded,
also one after the other in several waves.

A node of which some task had a success in this run gets the second look for errors of the connection, too; and if all
documents of a task fail so, they are the documents' own, unless ``limits.OUTAGE_DOCUMENTS`` of those that came for the
first time have failed so since the last success, in this wave and those before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ferryman import limits
from ferryman.engine.results import OF_NODE, ErrorKind, NodeError, NodeReport, NodeStates
from ferryman.plan import CalledNode, Plan, StepNode
from ferryman.plan.nodes import join_names, local_capabilities

_COUNTED = (ErrorKind.CONNECTION, ErrorKind.UNFORESEEN)


class NodeHealth:
    """Health of one node, as far as one task has seen.

    Attributes:
        closed: it may not be called for any document; ask ``allows``.
        steady: its last call succeeded, and nothing is suspected.
    """

    def __init__(
        self, node: str, brake: int | None, now: NodeStates, rows: int, missing_needs: Collection[str] = frozenset()
    ) -> None:
        self.node = node
        self.closed = node in now.blocked or bool(missing_needs)
        self._missing_needs = frozenset() if node in now.blocked else frozenset(missing_needs)
        self._turned_away = False
        """A document needed the node, and it was not called."""
        self.steady = False
        self._brake = brake
        self._proven = node in now.proven
        self._rows = rows
        self._fault: NodeError | None = None
        self._scopes: dict[str, NodeError] = {}
        self._stopped = False
        self._any_success = False
        self._returned_any = False
        """A call returned a document."""
        self._nones = 0
        """Calls that returned None."""
        self._documents_at_fault = False
        """The errors are known to be those of the documents."""
        self._kinds: set[ErrorKind] = set()
        self._last_fault: NodeError | None = None
        """The last fault that is counted."""
        self._counted = dict.fromkeys(_COUNTED, 0)
        """Origins that failed so, since the last success."""
        self._failing: Counter[str] = Counter()
        """Documents that failed with unforeseen errors, by batch."""
        self._failed_before = now.failing.get(node, {})
        """Failing documents of earlier waves, by batch."""
        self._unreached: set[str] = set()
        """Some of those that failed with errors of the connection at their first try."""
        self._unreached_before = now.unreached.get(node, frozenset())
        """Documents of earlier waves that could not reach the node."""
        self._last_origin: str | None = None
        """Origin that failed last."""
        self._suspected: NodeError | None = None
        """Fault for which a second look is taken."""
        self._second_look_failures = 0
        self._next_row = 0
        """Row of the task at which the second look calls the node next."""
        self._stride = 1

    @property
    def away(self) -> bool:
        """Return whether the node is not called any more in this task."""
        return self.closed and (self._suspected is None or self._fault is not None)

    @property
    def why(self) -> str:
        """Return why it is closed, for messages of waiting documents."""
        return f"needs {join_names(self._missing_needs)}" if self._missing_needs else "is in trouble"

    def turn_away(self) -> None:
        """Note that a document waits for the node."""
        self._turned_away = True

    def allows(self, origin: str, row: int) -> bool:
        """Return whether a closed node may be called for a document of this family, which has this row in the task."""
        if self.away:
            self.turn_away()
            return False
        if origin == self._last_origin:
            return True
        if row < self._next_row:
            return False
        self._next_row = row + self._stride
        return True

    def note_success(self) -> None:
        """Note that a call returned, or dropped its document."""
        self.steady = self._any_success = True
        self._counted = dict.fromkeys(_COUNTED, 0)
        self._failing.clear()
        self._unreached.clear()
        self._failed_before, self._unreached_before = {}, frozenset()
        if self._suspected is not None and self._fault is None:
            self._suspected, self._documents_at_fault, self.closed = None, True, False

    def note_return(self) -> None:
        """Note that a step returned one or more documents."""
        self._returned_any = True
        self.note_success()

    def note_drop(self, *, silently: bool = False) -> None:
        """Note that a step dropped its document; ``silently``: it returned None."""
        self.note_success()
        self.steady = self._returned_any  # so that the first document that it returns is noted
        self._nones += silently

    def note_failure(self, fault: NodeError, origin: str, row: int, batch: str = "", *, again: bool = False) -> None:
        """Note that a call ended in this fault, for a document of this family, row and batch; ``again``: in a retry."""
        self.steady = False
        if fault.kind in (ErrorKind.UNAVAILABLE, ErrorKind.MISCONFIGURED):
            if fault.scope:
                self._scopes.setdefault(fault.scope, fault)
            else:
                self._close(fault)
        elif fault.kind in _COUNTED:
            self._kinds.add(fault.kind)
            self._last_fault = fault
            if fault.kind is ErrorKind.CONNECTION and not again and len(self._unreached) < limits.OUTAGE_DOCUMENTS:
                self._unreached.add(origin)
            if origin != self._last_origin:
                self._last_origin = origin
                self._count(fault, row, batch)

    def finish(self) -> None:
        """Decide what is still suspected: the task has no more documents."""
        if self._fault is not None:
            return
        if self._suspected is not None:
            self._give_up(self._suspected)
        elif self._last_fault is not None and self._all_unreachable():
            self._close(self._last_fault)

    def spends_no_attempt(self, fault: NodeError) -> bool:
        """Return whether a call with this fault does not count as an attempt of its document."""
        if fault.kind in OF_NODE:
            return True
        away = self._fault is not None and self._fault.kind is not ErrorKind.MISCONFIGURED and not self._stopped
        return away and fault.kind is ErrorKind.CONNECTION

    def holds(self, fault: NodeError) -> bool:
        """Return whether a document with this error waits until the node is called again."""
        return self._fault is not None and fault.kind in _COUNTED

    def report(self) -> NodeReport | None:
        """Return what the driver should know about the node; None: nothing was called."""
        if self._missing_needs:
            why = f"needs {join_names(self._missing_needs)}, which the executors that were tried do not have"
            fault = NodeError(ErrorKind.UNAVAILABLE, self.node, why)
            return NodeReport(self.node, False, (fault,), False, lacks_needs=True) if self._turned_away else None
        faults = (*((self._fault,) if self._fault else ()), *self._scopes.values())
        if not faults and not self._any_success and not self._failing and not self._unreached:
            return None
        failing, unreached = tuple(self._failing.items()), tuple(self._unreached)
        nones = 0 if self._returned_any else self._nones
        return NodeReport(
            self.node,
            self._any_success,
            faults,
            self._stopped,
            failing=failing,
            unreached=unreached,
            returned_none=nones,
            returned_document=self._returned_any,
        )

    def _count(self, fault: NodeError, row: int, batch: str) -> None:
        if batch and fault.kind is ErrorKind.UNFORESEEN and self._brake is not None:
            self._failing[batch] += 1
        if self._suspected is not None:
            self._second_look_failures += 1
            if self._brake is not None and self._second_look_failures >= self._brake:
                self._give_up(fault)
            return
        self._counted[fault.kind] += 1
        if (
            self._brake is None
            or self._documents_at_fault
            or not self._suspects_node(fault.kind, self._brake, in_batches=bool(batch))
        ):
            return
        if fault.kind is ErrorKind.CONNECTION and not (self._proven or self._any_success):
            self._close(fault)
        elif not (self._proven and fault.kind is ErrorKind.UNFORESEEN):
            self._suspected, self.closed = fault, True
            self._next_row, self._stride = row + 1, max(1, (self._rows - row - 1) // self._brake)

    def _suspects_node(self, kind: ErrorKind, brake: int, *, in_batches: bool) -> bool:
        """Return whether so many have failed in a row that the node may be at fault."""
        if kind is not ErrorKind.UNFORESEEN or not in_batches:
            return self._counted[kind] >= brake
        failed = self._failing | Counter(self._failed_before)  # what was tried before may be tried again now
        return len(failed) >= limits.BRAKE_BATCHES and failed.total() >= brake

    def _all_unreachable(self) -> bool:
        """Return whether all documents failed to reach the node, and are too many to be at fault themselves."""
        if self._brake is None or self._any_success or self._kinds != {ErrorKind.CONNECTION}:
            return False
        return not self._proven or len(self._unreached | self._unreached_before) >= limits.OUTAGE_DOCUMENTS

    def _give_up(self, fault: NodeError) -> None:
        """Close the node: the second look found no success."""
        assert self._suspected is not None
        self._stopped = self._suspected.kind is ErrorKind.UNFORESEEN
        self._close(fault)

    def _close(self, fault: NodeError) -> None:
        self._fault, self.closed = fault, True


def health_of_nodes(plan: Plan, now: NodeStates, rows: int) -> dict[str, NodeHealth]:
    """Return node -> its health when a task of so many rows begins."""
    has = local_capabilities()
    return {
        n.name: NodeHealth(n.name, n.brake, now, rows, n.needs - has if isinstance(n, StepNode) else ())
        for n in plan.nodes
        if isinstance(n, CalledNode)
    }
