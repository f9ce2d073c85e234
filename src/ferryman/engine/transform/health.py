"""Health of the nodes that a task calls: whether a node may be called, and whether it or its documents are to blame for
errors.

==============================  ===========================================================================
an error                        what it means for the node
==============================  ===========================================================================
it says so (``Unavailable``)    it is away: what comes to it from now on is held back, and spends no attempt
it says so (``Misconfigured``)  the same, until somebody fixes it
of the connection               after ``brake`` documents in a row, or if all failed so, as if it had said Unavailable
transient                       if all failed so, or of the connection: as if it had said Unavailable
unforeseen                      after ``brake`` in a row a second look: as many more, spread over the rest of the task;
                                if none succeeds, and no other task's did, as if it had said Misconfigured
permanent, dropped              nothing: the code said on purpose what becomes of its document
==============================  ===========================================================================

If documents come in batches (jobs of the intake queue), unforeseen errors in fewer than ``limits.BRAKE_BATCHES``
batches are blamed on the documents, however many there are. The second look begins when that many batches have failed
and none has succeeded, also over several waves. Transient errors of one batch count like those of one document.

If any call of the node has succeeded in this run, connection errors lead to a second look, too; so do transient errors
as long as no call of the task has succeeded. If all documents of a task then fail with such errors, the documents are
to blame, unless at least ``limits.OUTAGE_DOCUMENTS`` documents at their first attempt have failed like this since the
last success, in this wave and earlier ones: a few may be broken for good, and only their patience ends that.

During a second look the node's breaker (``ferryman.breaker``) is half open. A success closes it: the documents are to
blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ferryman import limits
from ferryman.breaker import Breaker, BreakerEvent, BreakerState
from ferryman.engine.results import OF_NODE, TRANSIENT, ErrorKind, NodeError, NodeReport, NodeStates
from ferryman.plan import CalledNode, Plan, StepNode
from ferryman.plan.nodes import join_names, local_capabilities

_COUNTED = (*TRANSIENT, ErrorKind.UNFORESEEN)


class NodeHealth:
    """Health of one node, as seen by one task.

    Attributes:
        closed: whether calls are restricted; ask ``allows`` for each document.
        steady: whether the last call succeeded and nothing is suspected.
    """

    def __init__(
        self, node: str, brake: int | None, now: NodeStates, rows: int, missing_needs: Collection[str] = frozenset()
    ) -> None:
        self.node = node
        self._breaker = Breaker()
        self.closed = node in now.blocked or bool(missing_needs)
        if self.closed:
            self._breaker.note(BreakerEvent.UNAVAILABLE)
        self._missing_needs = frozenset() if node in now.blocked else frozenset(missing_needs)
        self._turned_away = False
        """Whether a document needed the node while it must not be called."""
        self.steady = False
        self._brake = brake
        self._proven = node in now.proven
        self._rows = rows
        self._fault: NodeError | None = None
        self._scopes: dict[str, NodeError] = {}
        self._stopped = False
        self._any_success = False
        self._returned_any = False
        """Whether a call returned a document."""
        self._nones = 0
        """Number of calls that returned None."""
        self._documents_at_fault = False
        """Whether the second look found that the documents are to blame for the errors."""
        self._kinds: set[ErrorKind] = set()
        self._last_fault: NodeError | None = None
        """Last fault of a kind that is counted."""
        self._counted = dict.fromkeys(_COUNTED, 0)
        """Kind of error -> number of origins that failed with it since the last success."""
        self._failing: Counter[str] = Counter()
        """Batch -> number of documents that failed with unforeseen errors."""
        self._failed_before = now.failing.get(node, {})
        """Batch -> number of documents that failed in earlier waves."""
        self._unreached: set[str] = set()
        """Some of the documents, or batches, that failed with transient errors at their first attempt."""
        self._unreached_before = now.unreached.get(node, frozenset())
        """Documents or batches of earlier waves that failed so."""
        self._last_origin: str | None = None
        """Origin that failed last."""
        self._suspected: NodeError | None = None
        """Fault that started a second look."""
        self._second_look_failures = 0
        self._next_row = 0
        """Row of the task from which the second look may call the node next."""
        self._stride = 1

    @property
    def away(self) -> bool:
        """Return whether the node will not be called again in this task."""
        return self._breaker.state in (BreakerState.OPEN, BreakerState.STOPPED)

    @property
    def why(self) -> str:
        """Return why the node is closed, for the messages of documents that wait for it."""
        return f"needs {join_names(self._missing_needs)}" if self._missing_needs else "is in trouble"

    def turn_away(self) -> None:
        """Record that a document waits for the node."""
        self._turned_away = True

    def allows(self, origin: str, row: int) -> bool:
        """Return whether a closed node may be called for a document of this family, which is at this row of the
        task."""
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
        """Record that a call returned, or dropped its document."""
        self.steady = self._any_success = True
        self._counted = dict.fromkeys(_COUNTED, 0)
        self._failing.clear()
        self._unreached.clear()
        self._failed_before, self._unreached_before = {}, frozenset()
        if self._breaker.state is BreakerState.HALF_OPEN:
            self._suspected, self._documents_at_fault = None, True
            self._note(BreakerEvent.SUCCEEDED)

    def note_return(self) -> None:
        """Record that a step returned one or more documents."""
        self._returned_any = True
        self.note_success()

    def note_drop(self, *, silently: bool = False) -> None:
        """Record that a step dropped its document; ``silently``: by returning None."""
        self.note_success()
        self.steady = self._returned_any  # so that the first document that it returns is recorded
        self._nones += silently

    def note_failure(self, fault: NodeError, origin: str, row: int, batch: str = "", *, again: bool = False) -> None:
        """Record that a call failed for a document of this family, row and batch; ``again``: in a retry."""
        self.steady = False
        if fault.kind in (ErrorKind.UNAVAILABLE, ErrorKind.MISCONFIGURED):
            if fault.scope:
                self._scopes.setdefault(fault.scope, fault)
            else:
                self._close(fault)
        elif fault.kind in _COUNTED:
            self._kinds.add(fault.kind)
            self._last_fault = fault
            if fault.kind in TRANSIENT and not again and len(self._unreached) < limits.OUTAGE_DOCUMENTS:
                self._unreached.add(batch if batch and fault.kind is ErrorKind.TRANSIENT else origin)
            if origin != self._last_origin:
                self._last_origin = origin
                self._count(fault, row, batch)

    def finish(self) -> None:
        """Decide about faults that are still suspected, at the end of the task."""
        if self._fault is not None:
            return
        if self._suspected is not None:
            self._give_up(self._suspected)
        elif self._last_fault is not None and self._all_unreachable():
            self._close(self._last_fault)

    def spends_no_attempt(self, fault: NodeError) -> bool:
        """Return whether a call that ended in this fault does not count as an attempt of its document."""
        if fault.kind in OF_NODE:
            return True
        away = self._fault is not None and self._fault.kind is not ErrorKind.MISCONFIGURED and not self._stopped
        return away and fault.kind in TRANSIENT

    def holds(self, fault: NodeError) -> bool:
        """Return whether a document with this fault waits until the node may be called again."""
        return self._fault is not None and fault.kind in _COUNTED

    def report(self) -> NodeReport | None:
        """Return a report for the driver; None: there is nothing to report."""
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
            self._suspected = fault
            self._note(BreakerEvent.SUSPECTED)
            self._next_row, self._stride = row + 1, max(1, (self._rows - row - 1) // self._brake)

    def _suspects_node(self, kind: ErrorKind, brake: int, *, in_batches: bool) -> bool:
        """Return whether so many documents in a row have failed that the node may be to blame."""
        if kind is ErrorKind.TRANSIENT and (self._any_success or not self._is_outage_plausible()):
            return False
        if kind is not ErrorKind.UNFORESEEN or not in_batches:
            return self._counted[kind] >= brake
        failed = self._failing | Counter(self._failed_before)  # a batch that failed before may be retried now
        return len(failed) >= limits.BRAKE_BATCHES and failed.total() >= brake

    def _all_unreachable(self) -> bool:
        """Return whether all documents failed with transient errors, and enough of them that the node is to blame."""
        if self._brake is None or self._any_success or not self._kinds <= {*TRANSIENT}:
            return False
        never_reached = not self._proven and self._kinds == {ErrorKind.CONNECTION}
        return never_reached or self._is_outage_plausible()

    def _is_outage_plausible(self) -> bool:
        """Return whether enough documents that are tried for the first time failed with transient errors."""
        return len(self._unreached | self._unreached_before) >= limits.OUTAGE_DOCUMENTS

    def _give_up(self, fault: NodeError) -> None:
        """Close the node, because the second look found no success."""
        assert self._suspected is not None
        self._stopped = self._suspected.kind is ErrorKind.UNFORESEEN
        self._close(fault)

    def _close(self, fault: NodeError) -> None:
        self._fault = fault
        permanent = self._stopped or fault.kind is ErrorKind.MISCONFIGURED
        self._note(BreakerEvent.MISCONFIGURED if permanent else BreakerEvent.UNAVAILABLE)

    def _note(self, event: BreakerEvent) -> None:
        self._breaker.note(event)
        self.closed = self._breaker.state is not BreakerState.CLOSED


def health_of_nodes(plan: Plan, now: NodeStates, rows: int) -> dict[str, NodeHealth]:
    """Return node -> its health at the beginning of a task with ``rows`` rows."""
    has = local_capabilities()
    return {
        n.name: NodeHealth(n.name, n.brake, now, rows, n.needs - has if isinstance(n, StepNode) else ())
        for n in plan.nodes
        if isinstance(n, CalledNode)
    }
