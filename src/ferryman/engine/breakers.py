"""The nodes of a run that are in trouble: steps, routers, sources. What tasks report of them decides what waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ferryman import limits
from ferryman.engine.results import ErrorKind, Listing, NodeError, NodeReport, NodeStates, StepDebt
from ferryman.engine.runner.base import Runner
from ferryman.notify import Stopped
from ferryman.plan import JoinNode, Plan, StepNode
from ferryman.plan.calls import REMEDY, always_returns_none
from ferryman.plan.nodes import CAPABILITIES_VARIABLE, join_names, local_capabilities
from ferryman.records.families import decode_held


class Machine:
    """Task: what the machine has on which it runs."""

    def __call__(self, _number: int) -> frozenset[str]:
        return local_capabilities()


class Nodes:
    """Remembers over the waves of a run which nodes are in trouble, and which have shown that they are not."""

    def __init__(self, plan: Plan, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._proven: set[str] = set()
        self._failing: dict[str, Counter[str]] = {}
        """Failing documents by node and batch, see ``NodeStates.failing``."""
        self._unreached: dict[str, frozenset[str]] = {}
        """Documents that could not reach a node, see ``NodeStates.unreached``."""
        self._scoped: set[str] = set()
        """Scopes of single nodes that are in trouble, by their names in ``troubles``."""
        self._just_met: set[str] = set()
        """Troubles that the last wave met."""
        self._needs = {n.name: n.needs for n in plan.nodes if isinstance(n, StepNode) and n.needs}
        self._lacking: set[str] = set()
        """Nodes that no executor could run."""
        self._missed: Counter[str] = Counter()
        """Waves in a row of which no task came to a machine that has what a step needs."""
        self._steps = {n.name: n for n in plan.nodes if isinstance(n, (StepNode, JoinNode))}
        self._nones: Counter[str] = Counter()
        """Calls that returned None, of steps that have returned nothing else in this run."""
        self._made: set[str] = set()
        """Steps that have returned a document in this run."""
        self._clock = clock
        self._looks_again = clock()
        """When executors are asked again what they have, by the clock."""
        self.missed = False
        """In the last wave, documents came only to machines that do not have what their step needs."""
        self.troubles = Troubles("", tell, clock)
        """By kind and name."""

    def now(self) -> NodeStates:
        """Return the health of the nodes for the next wave's tasks."""
        blocked = frozenset(n for n in self._kinds if self.blocked(n))
        failing = {n: dict(f) for n, f in self._failing.items()}
        return NodeStates(blocked, frozenset(self._proven), failing, dict(self._unreached))

    def hear(self, reports: Iterable[NodeReport]) -> None:
        """Take in what the tasks of a wave have seen: a node that only its brake has stopped, and that was well in
        another task, is not in trouble."""
        self._just_met = set()
        self.missed = False
        by_node: dict[str, list[NodeReport]] = {}
        for report in reports:
            by_node.setdefault(report.node, []).append(report)
        for node, told in by_node.items():
            self._nones[node] += sum(r.nones for r in told)
            self._made |= {node} if any(r.made for r in told) else set()
            self._count_batches(node, told)
            self._count_unreached(node, told)
            well = any(r.well and not any(not f.scope for f in r.faults) for r in told)
            whole = [(r, f) for r in told for f in r.faults if not f.scope and not (r.stopped and well)]
            for key in {f.key for r in told for f in r.faults if f.scope}:
                fault = next(f for r in told for f in r.faults if f.key == key)
                self._just_met.add(about := self._about(key))
                self._scoped.add(about)
                self.troubles.begin(about, self._why(key, fault), permanent=False)
            if whole and all(r.lacking for r, _ in whole) and (well or self._missed[node] < _MISSES):
                self._missed[node] += 1
                self.missed = True
                whole = []  # other machines have what it needs: the next wave may come to one of them
            if whole:
                # Somebody has to fix it if any task says so; else it is away.
                report, fault = max(whole, key=lambda each: _permanent(*each))
                late_s = limits.BACKOFF_MAX_S if report.stopped else 0.0  # each try costs attempts
                why, permanent = self._why(node, fault), _permanent(report, fault)
                self.troubles.begin(self._about(node), why, permanent=permanent, at_least_s=late_s)
                self._proven.discard(node)
            elif well:
                self._missed.pop(node, None)
                self.troubles.end(self._about(node))
                self._proven.add(node)

    def hear_listings(self, listings: Iterable[Listing]) -> set[str]:
        """Take in how a scan went; of which sources the listing waits, as keys. What was listed is read all the same: a
        single folder or file may be away."""
        waiting = set()
        for listing in listings:
            key = f"{listing.source.name} listing"
            if listing.outage is None:
                self.troubles.end(self._about(key))
            else:
                waiting.add(key)
                if not self.blocked(key):  # a scan for what is pending may come in between: it is not a try that counts
                    self.troubles.begin(self._about(key), listing.outage.why, permanent=listing.outage.permanent)
        return waiting

    def stop(self, node: str, why: str) -> None:
        """Somebody has to say how it goes on."""
        self.troubles.begin(self._about(node), why, permanent=True)

    def pause(self, node: str, why: str) -> None:
        """It is away for now."""
        self.troubles.begin(self._about(node), why, permanent=False)

    def go_on(self, node: str) -> None:
        """Nothing is wrong with it any more."""
        self.troubles.end(self._about(node))

    def _count_batches(self, node: str, told: Iterable[NodeReport]) -> None:
        """A wave may try again what an earlier one has tried: the documents of a batch are not added up."""
        if any(r.well for r in told):
            self._failing.pop(node, None)
            return
        now: Counter[str] = Counter()
        for batch, documents in (each for r in told for each in r.failing):
            now[batch] += documents
        if now:
            self._failing[node] = self._failing.get(node, Counter()) | now

    def _count_unreached(self, node: str, told: Sequence[NodeReport]) -> None:
        if any(r.well for r in told):
            self._unreached.pop(node, None)
        elif found := self._unreached.get(node, frozenset()).union(*(r.unreached for r in told)):
            self._unreached[node] = frozenset(islice(found, limits.OUTAGE_DOCUMENTS))

    def forget(self, debts: Iterable[StepDebt]) -> None:
        """End the trouble of what single nodes have to do with, where nothing waits for it any more: no call that
        succeeds names it."""
        waiting = {self._about(key) for debt in debts for key in decode_held(debt.held)}
        for about in self._scoped - waiting - self._just_met:
            self.troubles.end(about)
            self._scoped.discard(about)

    def look_around(self, runner: Runner) -> None:
        """Ask the executors what they have, if a step needs something: one that no machine can run is in trouble."""
        due = any(self.wait_of(node) == 0 for node in self._lacking)
        if not self._needs or (self._clock() < self._looks_again and not due):
            return
        self._looks_again = self._clock() + _LOOK_EVERY_S
        found = runner.run(Machine(), range(_MACHINES * runner.slots))
        for node, needs in self._needs.items():
            if not any(needs <= has for has in found):
                why = (
                    f"needs {join_names(needs)}, which no executor has. On one machine: --has "
                    f"{','.join(sorted(needs))}; on a cluster, {CAPABILITIES_VARIABLE} in the environment of the "
                    "executors that have it"
                )
                self.troubles.begin(self._about(node), why, permanent=True)
                self._lacking.add(node)
            elif node in self._lacking:
                self._lacking.discard(node)
                self.troubles.end(self._about(node))

    # -- what waits for them -----------------------------------------------------------------------

    def wait_s(self, held: str | None) -> float | None:
        """Seconds until something that is held so may be tried; None: not in this run."""
        if held is None:
            return 0.0
        waits = [wait for key in decode_held(held) if (wait := self.wait_of(key)) is not None]
        return min(waits, default=None)

    def wait_of(self, key: str) -> float | None:
        """Return how long a single node or scope is left alone, in seconds."""
        return self.troubles.wait_s(self._about(key))

    def blocked(self, node: str) -> bool:
        """Return whether the node must not be called now."""
        return self.wait_of(node) != 0

    def waiting(self, debts: Iterable[StepDebt]) -> frozenset[str]:
        """Return the names that documents are held by and that must not be tried now."""
        return frozenset(d.held for d in debts if d.held is not None and self.wait_s(d.held) != 0.0)

    # -- what is told of them ----------------------------------------------------------------------

    def messages(self, debts: Iterable[StepDebt]) -> list[str]:
        """At the end of a run, a line a node in trouble."""
        pending: Counter[str] = Counter()
        for debt in debts:
            for key in decode_held(debt.held):
                pending[self._about(key)] += debt.owed
        return [
            f"{about} {'is stopped' if t.permanent else 'is not available'}: {t.why.removesuffix('.')}. "
            f"{_pending(pending[about])}{'fix it and run again' if t.permanent else 'run again when it is back'}."
            for about, t in self.troubles.items()
        ]

    def hints(self) -> list[str]:
        """A line for each step that has returned None for all its documents: most often somebody forgot to return them.

        A filter may drop the two documents that are new today: it takes more, or code that cannot return anything else.
        """
        return [
            f"{self._about(name)} returned None for {'the only document' if count == 1 else f'all {count} documents'} "
            f"that came to it, so it dropped {'it' if count == 1 else 'them'}. {REMEDY}"
            for name, count in self._nones.items()
            if name not in self._made and (count >= _SILENT or (count and always_returns_none(self._steps[name].fn)))
        ]

    def stopped(self) -> list[Stopped]:
        """For those who want to be told."""
        return [
            Stopped(about.partition(" ")[2], about.partition(" ")[0], t.why, t.permanent)
            for about, t in self.troubles.items()
        ]

    def _about(self, key: str) -> str:
        node, _, scope = key.partition(" ")
        return f"{self._kinds.get(node, 'node')} {node}" + (f" ({scope})" if scope else "")

    def _why(self, key: str, fault: NodeError) -> str:
        """Without what the message says anyway."""
        about = self._about(key.partition(" ")[0])
        return fault.text.removeprefix(f"{about}: ").removeprefix("reading it: ")


_MACHINES: Final = 4
"""Tasks a slot that ask what its machine has: Spark deals them out, and a slow machine may get fewer."""


_LOOK_EVERY_S: Final = 60.0
"""Executors come and go; to ask them takes a job of Spark."""
_MISSES: Final = 10
"""Nobody can tell Spark where to run a task: so often it is tried at once, then as a step that is away."""


_SILENT: Final = 3
"""Documents for which a step returned None, and never anything else, from which on that is worth a hint."""


def _pending(deliveries: int) -> str:
    """Return the words for pending deliveries; for a source that cannot be listed their number is unknown."""
    return f"{deliveries} deliveries are pending: " if deliveries else "What waits for it is pending: "


def _permanent(report: NodeReport, fault: NodeError) -> bool:
    return report.stopped or fault.kind is ErrorKind.MISCONFIGURED


# Nodes that are left alone for now because the whole of each is in trouble, and when each is asked again.


class Trouble(NamedTuple):
    """Why a node is left alone."""

    why: str
    permanent: bool
    """It does not pass by itself: somebody has to repair something."""
    since: float
    """Monotonic time of its first failure, in seconds."""
    until: float
    """Monotonic time from which the node may be asked again, in seconds."""
    times: int
    """How often it has failed in a row."""


class Troubles:
    """The nodes of one kind (``destination``, ``step`` …) that are in trouble.

    A node is left alone for 1 s after its first failure, then 4, 16 … up to an hour. Permanent trouble ends a node's
    turn in this run; in an endless run, which nobody starts again, it is asked again like any other, and when trouble
    begins and ends is reported.

    Args:
        kind: the word before a node's name in reports; "": the names have it.
        tell: takes a report, a line of text.
        clock: monotonic time in seconds.
    """

    def __init__(self, kind: str, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.endless = False
        self._kind = kind
        self._tell = tell
        self._clock = clock
        self._found: dict[str, Trouble] = {}

    def begin(self, name: str, why: str, *, permanent: bool, at_least_s: float = 0.0) -> None:
        """A node failed as a whole; call it each time. It is left alone for so many seconds at least."""
        now = self._clock()
        before = self._found.get(name)
        times = 1 + (before.times if before else 0)
        until = now + max(backoff_s(times), at_least_s)
        self._found[name] = Trouble(why, permanent, before.since if before else now, until, times)
        if self.endless and (before is None or (permanent and not before.permanent)):
            remedy = "repair it" if permanent else "no action is needed"
            self._tell(
                f"{self._shown(name)}: {why}. What waits for it stays pending, and it is checked again automatically, "
                f"at least once an hour: {remedy}."
            )

    def end(self, name: str) -> None:
        """A node has worked."""
        before = self._found.pop(name, None)
        if before is not None and self.endless:
            self._tell(f"{self._shown(name)}: works again, after {self._clock() - before.since:.0f} s.")

    def wait_s(self, name: str) -> float | None:
        """Seconds until a node may be asked, 0 for one that is well; None: not in this run any more."""
        trouble = self._found.get(name)
        if trouble is None:
            return 0.0
        if trouble.permanent and not self.endless:
            return None
        return max(0.0, trouble.until - self._clock())

    def blocked(self, name: str) -> bool:
        """Return whether the node is left alone now."""
        return self.wait_s(name) != 0

    def _shown(self, name: str) -> str:
        return f"{self._kind} {name}" if self._kind else name

    def items(self) -> Iterator[tuple[str, Trouble]]:
        """Names and troubles, in the order in which they began."""
        return iter(self._found.items())


def backoff_s(times: int) -> float:
    """Seconds for which a node is left alone after it has failed so often in a row."""
    # 2 ** 6 failures are far beyond the cap already, and a power of a large number overflows.
    return min(limits.BACKOFF_MAX_S, limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** (min(times, 64) - 1))
