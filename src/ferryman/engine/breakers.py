"""Circuit breakers of a run: which steps, routers, sources and destinations are not called for now, and why.

``BreakerRegistry`` has them all. ``NodeBreakers`` opens and closes those of steps, routers and sources by the reports
of tasks and listings; the ``Dispatcher`` those of destinations by the reports of lanes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from ferryman import limits
from ferryman.breaker import Breaker, BreakerEvent, Breakers, BreakerState, backoff_s
from ferryman.engine.results import ErrorKind, Listing, NodeError, NodeReport, NodeStates, PendingRetries
from ferryman.engine.runner.base import Runner, run_isolating
from ferryman.limits import plural
from ferryman.notify import Stopped
from ferryman.observe import WARNING
from ferryman.plan import DestinationNode, JoinNode, Plan, StepNode
from ferryman.plan.calls import REMEDY, always_returns_none
from ferryman.plan.nodes import CAPABILITIES_VARIABLE, join_names, local_capabilities
from ferryman.records.families import decode_held
from ferryman.state.activity import Trouble


class ListCapabilities:
    """Task: return the capabilities (for ``needs=`` of steps) of the machine it runs on."""

    def __call__(self, _number: int) -> frozenset[str]:
        return local_capabilities()


def listing_key(source: str) -> str:
    """Return the key of the breaker of a source's listing, which is not that of reading its documents."""
    return f"{source} listing"


class NodeBreakers:
    """Breakers of the steps, routers and sources of a plan, over the waves of a run.

    Remembers which nodes failed as a whole, and which have succeeded since.

    Attributes:
        lacked_capability: whether, in the last wave, all documents of some step were on machines without a capability
            that it needs.
        breakers: where they are kept.
    """

    def __init__(self, plan: Plan, breakers: BreakerRegistry, clock: Callable[[], float]) -> None:
        self._called = [n.name for n in plan.nodes if not isinstance(n, DestinationNode)]
        self._proven: set[str] = set()
        self._failing: dict[str, Counter[str]] = {}
        """Node -> batch -> number of failing documents, see ``NodeStates.failing``."""
        self._unreached: dict[str, frozenset[str]] = {}
        """Node -> documents that failed with transient errors, see ``NodeStates.unreached``."""
        self._open_scopes: set[str] = set()
        """Scopes (such as one host of a fetch) whose breaker is open, by their keys."""
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
        self.breakers = breakers

    def states(self) -> NodeStates:
        """Return the health of the nodes for the next wave's tasks."""
        blocked = frozenset(n for n in self._called if self.blocked(n))
        failing = {n: dict(f) for n, f in self._failing.items()}
        return NodeStates(blocked, frozenset(self._proven), failing, dict(self._unreached))

    def record_reports(self, reports: Iterable[NodeReport]) -> None:
        """Open and close breakers according to the reports of a wave's tasks.

        If a node was stopped by its brake in one task, or all its documents failed there with transient errors, but it
        worked in another one, its breaker stays closed.
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
            faults = [
                (r, f)
                for r in node_reports
                for f in r.faults
                if not f.scope and not (works and (r.by_brake or f.kind is ErrorKind.TRANSIENT))
            ]
            for key in {f.key for r in node_reports for f in r.faults if f.scope}:
                fault = next(f for r in node_reports for f in r.faults if f.key == key)
                self._failed_scopes.add(key)
                self._open_scopes.add(key)
                self.breakers.record_failure(key, self._cause(key, fault), permanent=False)
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
                self.breakers.record_failure(node, why, permanent=permanent, at_least_s=late_s)
                self._proven.discard(node)
            elif works:
                self._waves_lacking.pop(node, None)
                self.breakers.record_success(node)
                self._proven.add(node)

    def record_listings(self, listings: Iterable[Listing]) -> set[str]:
        """Open and close breakers according to the listings of a scan; return the keys of the sources that failed.

        Documents in an incomplete listing are processed anyway, since perhaps only one folder or file is unavailable.
        """
        failed = set()
        for listing in listings:
            key = listing_key(listing.source.name)
            if listing.outage is None:
                self.breakers.record_success(key)
            else:
                failed.add(key)
                if not self.blocked(key):  # a scan for pending documents may come in between, which does not count
                    why, permanent, wait_s = listing.outage
                    self.breakers.record_failure(key, why, permanent=permanent, at_least_s=wait_s)
        return failed

    def stop(self, node: str, why: str) -> None:
        """Open a node's breaker until an operator has fixed it."""
        self.breakers.record_failure(node, why, permanent=True)

    def pause(self, node: str, why: str) -> None:
        """Open a node's breaker for now: the node is unavailable."""
        self.breakers.record_failure(node, why, permanent=False)

    def resume(self, node: str) -> None:
        """Close a node's breaker."""
        self.breakers.record_success(node)

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
        waiting = {key for debt in debts for key in decode_held(debt.held)}
        for key in self._open_scopes - waiting - self._failed_scopes:
            self.breakers.record_success(key)
            self._open_scopes.discard(key)

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
                self.breakers.record_failure(node, why, permanent=True)
                self._unrunnable.add(node)
            elif node in self._unrunnable:
                self._unrunnable.discard(node)
                self.breakers.record_success(node)

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
        return self.breakers.wait_s(key)

    def blocked(self, node: str) -> bool:
        """Return whether the node must not be called now."""
        return self.node_wait_s(node) != 0

    def blocked_holds(self, debts: Iterable[PendingRetries]) -> frozenset[str]:
        """Return the values of ``held`` among the pending retries whose documents must not be tried now."""
        return frozenset(d.held for d in debts if d.held is not None and self.held_wait_s(d.held) != 0.0)

    # -- reports -----------------------------------------------------------------------------------

    def messages(self, debts: Iterable[PendingRetries]) -> list[str]:
        """Return a message for each of these nodes that is not called for now, for the end of a run."""
        pending: Counter[str] = Counter()
        for debt in debts:
            for key in decode_held(debt.held):
                pending[key] += debt.owed
        return [
            f"{self.breakers.label(key)} {'is stopped' if b.permanent else 'is not available'}: "
            f"{b.why}. {_pending_text(pending[key])}"
            f"{'fix it and run again' if b.permanent else 'run again when it is back'}."
            for key, b in self.breakers.items()
            if not self.breakers.is_destination(key)
        ]

    def hints(self) -> list[str]:
        """Return a hint for each step that returned None for all its documents: its author may have forgotten a return.

        A filter may correctly drop the few documents that are new today. So a hint requires ``_HINT_AFTER_NONES``
        documents, or code that always returns None.
        """
        return [
            f"{self.breakers.label(name)} returned None for "
            f"{'the only document' if count == 1 else f'all {count} documents'} that came to it, so it dropped "
            f"{'it' if count == 1 else 'them'}. {REMEDY}"
            for name, count in self._none_counts.items()
            if name not in self._productive
            and (count >= _HINT_AFTER_NONES or (count and always_returns_none(self._steps[name].fn)))
        ]

    def _cause(self, key: str, fault: NodeError) -> str:
        """Return the error's text without the node's name, which messages add."""
        label = self.breakers.label(key.partition(" ")[0])
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
    if not deliveries:
        return "What waits for it is pending: "
    return f"{plural(deliveries, 'delivery is', 'deliveries are')} pending: "


def _is_permanent(report: NodeReport, fault: NodeError) -> bool:
    return report.by_brake or fault.kind is ErrorKind.MISCONFIGURED


# The registry.


class BreakerRegistry(Breakers):
    """Breakers of a run's nodes, by key: the name of a node, or the name and a scope of it (``fetch host:80``).

    After its first failure a node is not called for 1 s, then for 4 s, 16 s … up to an hour; after a permanent failure,
    not again in this run. An endless run is never restarted, so it calls such nodes again like any others, and reports
    each breaker that opens or closes.

    Args:
        report: takes a line of text.
        clock: monotonic time in seconds.
    """

    def __init__(self, plan: Plan, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.endless = False
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._destinations = {n.name for n in plan.nodes if isinstance(n, DestinationNode)}
        self._report = report

    def record_failure(self, key: str, why: str, *, permanent: bool, at_least_s: float = 0.0) -> None:
        """Open a node's breaker because the node failed as a whole; if it is open, extend the wait.

        Args:
            at_least_s: least wait in seconds.
        """
        before = self.get(key).state
        event = BreakerEvent.MISCONFIGURED if permanent else BreakerEvent.UNAVAILABLE
        self.fail(key, event, why, max(backoff_s(self.get(key).failures + 1), at_least_s))
        is_news = before in _WORKING or (permanent and before is not BreakerState.STOPPED)
        if self.endless and is_news:
            remedy = "repair it" if permanent else "no action is needed"
            self._report(
                f"{WARNING}{self.label(key)}: {self.get(key).why}. What waits for it stays pending, and it is checked "
                f"again automatically, at least once an hour: {remedy}."
            )

    def record_suspicion(self, key: str, why: str) -> None:
        """Doubt whether a node that works fails as a whole: it may be called at once, and the next call decides."""
        self.fail(key, BreakerEvent.SUSPECTED, why, 0.0)

    def record_success(self, key: str) -> None:
        """Close a node's breaker: the node worked."""
        before = self.succeed(key)
        if before is not None and before.state not in _WORKING and self.endless:
            self._report(f"{self.label(key)}: works again, after {self._clock() - before.since:.0f} s.")

    def blocked(self, key: str) -> bool:
        """Return whether the node must not be called now."""
        return self.blocking(key) is not None

    def is_destination(self, key: str) -> bool:
        """Return whether this is a destination, a tee or a keyed node, which are called after the commit."""
        return key in self._destinations

    def label(self, key: str) -> str:
        """Return the words for a node in messages: ``step fetch (host:80)``."""
        if self.is_destination(key):
            return f"destination {key}"
        node, _, scope = key.partition(" ")
        return f"{self._kinds.get(node, 'node')} {node}" + (f" ({scope})" if scope else "")

    def stopped(self) -> list[Stopped]:
        """Return the nodes that are not called for now, for notifications."""
        nodes = sorted(self.items(), key=lambda item: not self.is_destination(item[0]))
        return [self._stopped(key, breaker) for key, breaker in nodes]

    def troubles(self) -> list[Trouble]:
        """Return the nodes that are not called for now, for ``status``."""
        return [self._trouble(key, breaker) for key, breaker in self.items() if breaker.state not in _WORKING]

    def _trouble(self, key: str, breaker: Breaker) -> Trouble:
        wait_s, now = self.wait_s(key), time.time()
        return Trouble(
            key.partition(" ")[0],
            self.label(key),
            self.is_destination(key),
            breaker.why[:_WHY_SHOWN],
            now - (self._clock() - breaker.since),
            None if wait_s is None else now + wait_s,
        )

    def call_again(self, keys: Collection[str] | None) -> None:
        """Let nodes be called at once, whatever they are waiting for.

        Args:
            keys: names of nodes; None: all.
        """
        for key, breaker in self.items():
            if keys is None or key.partition(" ")[0] in keys:
                breaker.until = self._clock()

    def _stopped(self, key: str, breaker: Breaker) -> Stopped:
        kind = self._kinds.get(key.partition(" ")[0], "node")
        return Stopped(self.label(key).partition(" ")[2], kind, breaker.why, breaker.permanent)


_WHY_SHOWN: Final = 500
"""Characters of a node's error that are noted for ``status``."""

_WORKING: Final = (BreakerState.CLOSED, BreakerState.HALF_OPEN)
"""States in which nothing is known to be wrong with the node."""
