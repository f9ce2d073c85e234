"""Circuit breakers of a run: which steps, routers, sources and destinations are not called for now, and why.

``NodeBreakers`` opens and closes them by the reports of tasks and listings; ``BreakerRegistry`` stores the open ones
and when each node may be called again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ferryman import limits
from ferryman.engine.results import ErrorKind, Listing, NodeError, NodeReport, NodeStates, PendingRetries
from ferryman.engine.runner.base import Runner, run_isolating
from ferryman.notify import Stopped
from ferryman.plan import JoinNode, Plan, StepNode
from ferryman.plan.calls import REMEDY, always_returns_none
from ferryman.plan.nodes import CAPABILITIES_VARIABLE, join_names, local_capabilities
from ferryman.records.families import decode_held


class ListCapabilities:
    """Task: return the capabilities (for ``needs=`` of steps) of the machine it runs on."""

    def __call__(self, _number: int) -> frozenset[str]:
        return local_capabilities()


class NodeBreakers:
    """Breakers of the steps, routers and sources of a plan, over the waves of a run.

    Remembers which nodes failed as a whole, and which have succeeded since.

    Attributes:
        lacked_capability: whether, in the last wave, all documents of some step were on machines without a capability
            that it needs.
        breakers: open breakers, by kind and name: ``step fetch``, or ``step fetch (host:80)`` for a single scope.
    """

    def __init__(self, plan: Plan, report: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._proven: set[str] = set()
        self._failing: dict[str, Counter[str]] = {}
        """Node -> batch -> number of failing documents, see ``NodeStates.failing``."""
        self._unreached: dict[str, frozenset[str]] = {}
        """Node -> documents that failed with connection errors, see ``NodeStates.unreached``."""
        self._open_scopes: set[str] = set()
        """Scopes (such as one host of a fetch) whose breaker is open, by their names in ``breakers``."""
        self._failed_scopes: set[str] = set()
        """Scopes that failed in the last wave."""
        self._needs = {n.name: n.needs for n in plan.nodes if isinstance(n, StepNode) and n.needs}
        self._unrunnable: set[str] = set()
        """Steps that no executor can run, for lack of a capability."""
        self._waves_lacking: Counter[str] = Counter()
        """Step -> consecutive waves whose tasks all ran on machines without a capability that it needs."""
        self._steps = {n.name: n for n in plan.nodes if isinstance(n, (StepNode, JoinNode))}
        self._none_counts: Counter[str] = Counter()
        """Step -> calls that returned None."""
        self._productive: set[str] = set()
        """Steps that have returned a document in this run."""
        self._clock = clock
        self._next_check = clock()
        """Time of ``clock`` from which the executors are asked for their capabilities again."""
        self.lacked_capability = False
        self.breakers = BreakerRegistry("", report, clock)

    def states(self) -> NodeStates:
        """Return the health of the nodes for the next wave's tasks."""
        blocked = frozenset(n for n in self._kinds if self.blocked(n))
        failing = {n: dict(f) for n, f in self._failing.items()}
        return NodeStates(blocked, frozenset(self._proven), failing, dict(self._unreached))

    def record_reports(self, reports: Iterable[NodeReport]) -> None:
        """Open and close breakers according to the reports of a wave's tasks.

        If a node was stopped by its brake in one task but worked in another one, its breaker stays closed.
        """
        self._failed_scopes = set()
        self.lacked_capability = False
        by_node: dict[str, list[NodeReport]] = {}
        for report in reports:
            by_node.setdefault(report.node, []).append(report)
        for node, node_reports in by_node.items():
            self._none_counts[node] += sum(r.returned_none for r in node_reports)
            self._productive |= {node} if any(r.returned_document for r in node_reports) else set()
            self._count_failing(node, node_reports)
            self._count_unreached(node, node_reports)
            # Faults of a scope (such as one host of a fetch) leave the node itself healthy.
            works = any(r.succeeded and not any(not f.scope for f in r.faults) for r in node_reports)
            faults = [(r, f) for r in node_reports for f in r.faults if not f.scope and not (r.by_brake and works)]
            for key in {f.key for r in node_reports for f in r.faults if f.scope}:
                fault = next(f for r in node_reports for f in r.faults if f.key == key)
                self._failed_scopes.add(label := self._label(key))
                self._open_scopes.add(label)
                self.breakers.record_failure(label, self._cause(key, fault), permanent=False)
            if (
                faults
                and all(r.lacks_needs for r, _ in faults)
                and (works or self._waves_lacking[node] < _MAX_WAVES_LACKING)
            ):
                self._waves_lacking[node] += 1
                self.lacked_capability = True
                faults = []  # other machines have the capability, and the next wave may run on one of them
            if faults:
                # If any task reports that an operator has to fix the node, it is stopped; otherwise it is unavailable.
                report, fault = max(faults, key=lambda each: _is_permanent(*each))
                late_s = limits.BACKOFF_MAX_S if report.by_brake else 0.0  # each try costs attempts
                why, permanent = self._cause(node, fault), _is_permanent(report, fault)
                self.breakers.record_failure(self._label(node), why, permanent=permanent, at_least_s=late_s)
                self._proven.discard(node)
            elif works:
                self._waves_lacking.pop(node, None)
                self.breakers.record_success(self._label(node))
                self._proven.add(node)

    def record_listings(self, listings: Iterable[Listing]) -> set[str]:
        """Open and close breakers according to the listings of a scan; return the keys of the sources that failed.

        Documents in an incomplete listing are processed anyway, since perhaps only one folder or file is unavailable.
        """
        failed = set()
        for listing in listings:
            key = f"{listing.source.name} listing"
            if listing.outage is None:
                self.breakers.record_success(self._label(key))
            else:
                failed.add(key)
                if not self.blocked(key):  # a scan for pending documents may come in between, which does not count
                    self.breakers.record_failure(
                        self._label(key), listing.outage.why, permanent=listing.outage.permanent
                    )
        return failed

    def stop(self, node: str, why: str) -> None:
        """Open a node's breaker until an operator has fixed it."""
        self.breakers.record_failure(self._label(node), why, permanent=True)

    def pause(self, node: str, why: str) -> None:
        """Open a node's breaker for now: the node is unavailable."""
        self.breakers.record_failure(self._label(node), why, permanent=False)

    def resume(self, node: str) -> None:
        """Close a node's breaker."""
        self.breakers.record_success(self._label(node))

    def _count_failing(self, node: str, reports: Iterable[NodeReport]) -> None:
        """Count failing documents by batch. The maximum over the waves counts, not the sum, since a wave may retry a
        batch."""
        if any(r.succeeded for r in reports):
            self._failing.pop(node, None)
            return
        now: Counter[str] = Counter()
        for batch, documents in (each for r in reports for each in r.failing):
            now[batch] += documents
        if now:
            self._failing[node] = self._failing.get(node, Counter()) | now

    def _count_unreached(self, node: str, reports: Sequence[NodeReport]) -> None:
        if any(r.succeeded for r in reports):
            self._unreached.pop(node, None)
        elif unreached := self._unreached.get(node, frozenset()).union(*(r.unreached for r in reports)):
            self._unreached[node] = frozenset(islice(unreached, limits.OUTAGE_DOCUMENTS))

    def forget_scopes(self, debts: Iterable[PendingRetries]) -> None:
        """Close breakers of scopes that no document waits for any more, since no successful call would ever close
        them."""
        waiting = {self._label(key) for debt in debts for key in decode_held(debt.held)}
        for label in self._open_scopes - waiting - self._failed_scopes:
            self.breakers.record_success(label)
            self._open_scopes.discard(label)

    def check_capabilities(self, runner: Runner) -> None:
        """Ask the executors for their capabilities if any step needs one; open the breakers of steps that none can
        run."""
        due = any(self.node_wait_s(node) == 0 for node in self._unrunnable)
        if not self._needs or (self._clock() < self._next_check and not due):
            return
        self._next_check = self._clock() + _CHECK_EVERY_S
        capabilities = run_isolating(runner, ListCapabilities(), range(_PROBES_PER_SLOT * runner.slots))
        for node, needs in self._needs.items():
            if not any(needs <= has for has in capabilities):
                why = (
                    f"needs {join_names(needs)}, which no executor has. On one machine: --has "
                    f"{','.join(sorted(needs))}; on a cluster, {CAPABILITIES_VARIABLE} in the environment of the "
                    "executors that have it"
                )
                self.breakers.record_failure(self._label(node), why, permanent=True)
                self._unrunnable.add(node)
            elif node in self._unrunnable:
                self._unrunnable.discard(node)
                self.breakers.record_success(self._label(node))

    # -- waits -------------------------------------------------------------------------------------

    def held_wait_s(self, held: str | None) -> float | None:
        """Return the seconds until documents that are held by these nodes may be tried; None: not in this run.

        Args:
            held: nodes as encoded by ``encode_held``; None: no node holds the documents.
        """
        if held is None:
            return 0.0
        waits = [wait for key in decode_held(held) if (wait := self.node_wait_s(key)) is not None]
        return min(waits, default=None)

    def node_wait_s(self, key: str) -> float | None:
        """Return the seconds until a node or scope may be called; None: not in this run."""
        return self.breakers.wait_s(self._label(key))

    def blocked(self, node: str) -> bool:
        """Return whether the node must not be called now."""
        return self.node_wait_s(node) != 0

    def blocked_holds(self, debts: Iterable[PendingRetries]) -> frozenset[str]:
        """Return the values of ``held`` among the pending retries whose documents must not be tried now."""
        return frozenset(d.held for d in debts if d.held is not None and self.held_wait_s(d.held) != 0.0)

    # -- reports -----------------------------------------------------------------------------------

    def messages(self, debts: Iterable[PendingRetries]) -> list[str]:
        """Return a message for each open breaker, for the end of a run."""
        pending: Counter[str] = Counter()
        for debt in debts:
            for key in decode_held(debt.held):
                pending[self._label(key)] += debt.owed
        return [
            f"{label} {'is stopped' if t.permanent else 'is not available'}: {t.why.removesuffix('.')}. "
            f"{_pending_text(pending[label])}{'fix it and run again' if t.permanent else 'run again when it is back'}."
            for label, t in self.breakers.items()
        ]

    def hints(self) -> list[str]:
        """Return a hint for each step that returned None for all its documents: its author may have forgotten a return.

        A filter may correctly drop the few documents that are new today. So a hint requires ``_HINT_AFTER_NONES``
        documents, or code that always returns None.
        """
        return [
            f"{self._label(name)} returned None for {'the only document' if count == 1 else f'all {count} documents'} "
            f"that came to it, so it dropped {'it' if count == 1 else 'them'}. {REMEDY}"
            for name, count in self._none_counts.items()
            if name not in self._productive
            and (count >= _HINT_AFTER_NONES or (count and always_returns_none(self._steps[name].fn)))
        ]

    def stopped(self) -> list[Stopped]:
        """Return the nodes with open breakers, for notifications."""
        return [
            Stopped(label.partition(" ")[2], label.partition(" ")[0], t.why, t.permanent)
            for label, t in self.breakers.items()
        ]

    def _label(self, key: str) -> str:
        node, _, scope = key.partition(" ")
        return f"{self._kinds.get(node, 'node')} {node}" + (f" ({scope})" if scope else "")

    def _cause(self, key: str, fault: NodeError) -> str:
        """Return the error's text without the node's name, which messages add."""
        label = self._label(key.partition(" ")[0])
        return fault.text.removeprefix(f"{label}: ").removeprefix("reading it: ")


_PROBES_PER_SLOT: Final = 4
"""Tasks per slot that ask for capabilities: Spark decides where they run, and a slow machine may get fewer."""

_CHECK_EVERY_S: Final = 60.0
"""Seconds between two such checks: executors come and go, but a check takes a Spark job."""

_MAX_WAVES_LACKING: Final = 10
"""Waves that are retried at once because Spark cannot be told where to run a task; after them the step counts as
unavailable."""

_HINT_AFTER_NONES: Final = 3
"""Number of documents for which a step must have returned None, and never anything else, before a hint is given."""


def _pending_text(deliveries: int) -> str:
    """Return words for the number of pending deliveries, which is unknown for a source that cannot be listed."""
    return f"{deliveries} deliveries are pending: " if deliveries else "What waits for it is pending: "


def _is_permanent(report: NodeReport, fault: NodeError) -> bool:
    return report.by_brake or fault.kind is ErrorKind.MISCONFIGURED


# Open breakers: nodes that fail as a whole, and when each may be called again.


class OpenBreaker(NamedTuple):
    """A node that is not called for now."""

    why: str
    permanent: bool
    """It does not recover by itself: an operator has to fix it."""
    since: float
    """Monotonic time of its first failure, in seconds."""
    until: float
    """Monotonic time from which the node may be called again, in seconds."""
    failures: int
    """Number of consecutive failures."""


class BreakerRegistry:
    """Open breakers of a run's nodes, by name.

    After its first failure a node is not called for 1 s, then for 4 s, 16 s … up to an hour; after a permanent failure,
    not again in this run. An endless run is never restarted, so it calls such nodes again like any others, and reports
    each breaker that opens or closes.

    Args:
        kind: the word before a node's name in reports (``destination``); "": the names contain it.
        report: takes a line of text.
        clock: monotonic time in seconds.
    """

    def __init__(self, kind: str, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.endless = False
        self._kind = kind
        self._report = report
        self._clock = clock
        self._open: dict[str, OpenBreaker] = {}

    def record_failure(self, name: str, why: str, *, permanent: bool, at_least_s: float = 0.0) -> None:
        """Open a node's breaker because the node failed as a whole; if it is open, extend the wait.

        Args:
            at_least_s: least wait in seconds.
        """
        now = self._clock()
        before = self._open.get(name)
        failures = 1 + (before.failures if before else 0)
        until = now + max(backoff_s(failures), at_least_s)
        self._open[name] = OpenBreaker(why, permanent, before.since if before else now, until, failures)
        if self.endless and (before is None or (permanent and not before.permanent)):
            remedy = "repair it" if permanent else "no action is needed"
            self._report(
                f"{self._label(name)}: {why}. What waits for it stays pending, and it is checked again automatically, "
                f"at least once an hour: {remedy}."
            )

    def record_success(self, name: str) -> None:
        """Close a node's breaker: the node worked."""
        before = self._open.pop(name, None)
        if before is not None and self.endless:
            self._report(f"{self._label(name)}: works again, after {self._clock() - before.since:.0f} s.")

    def wait_s(self, name: str) -> float | None:
        """Return the seconds until a node may be called, 0 if its breaker is closed; None: not in this run."""
        breaker = self._open.get(name)
        if breaker is None:
            return 0.0
        if breaker.permanent and not self.endless:
            return None
        return max(0.0, breaker.until - self._clock())

    def blocked(self, name: str) -> bool:
        """Return whether the node must not be called now."""
        return self.wait_s(name) != 0

    def _label(self, name: str) -> str:
        return f"{self._kind} {name}" if self._kind else name

    def items(self) -> Iterator[tuple[str, OpenBreaker]]:
        """Return the names and open breakers, in the order in which they opened."""
        return iter(self._open.items())


def backoff_s(failures: int) -> float:
    """Return the seconds for which a node is not called after so many failures in a row."""
    # 2 ** 6 failures are far beyond the cap already, and a power of a large number overflows.
    return min(limits.BACKOFF_MAX_S, limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** (min(failures, 64) - 1))
