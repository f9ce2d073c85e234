"""A flow: several plans joined by queues, which run together. Making one does no I/O and starts no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ferryman.destinations.base import Destination
from ferryman.errors import PlanError
from ferryman.net import relative_paths
from ferryman.plan.check import NAME
from ferryman.plan.nodes import DestinationNode, KeyedNode, SourceNode
from ferryman.plan.paths import Joint, cycles
from ferryman.plan.plan import Plan
from ferryman.sources.base import Source
from ferryman.sources.log import feed_name


class Flow:
    """Several plans, joined by queues: what a destination of one writes, a source of another reads.

    >>> flow = Flow("shop", [orders, invoices])

    A run of a flow processes each plan's documents, and then the messages that they produced for downstream plans,
    until nothing is left to do. Each plan keeps its own state, and may also be run alone. Several plans may write to
    the same queue, and several may read it. ``check()``, which every run calls first, reports all mistakes at once.

    Args:
        name: as a plan's.
        plans: one or more, no two of one name and version.
    """

    def __init__(self, name: str, plans: Iterable[Plan]) -> None:
        self.name = name
        self._given = tuple(plans) if isinstance(plans, Iterable) else (plans,)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the plans in the order given."""
        return tuple(plan for plan in self._given if isinstance(plan, Plan))

    def label(self, plan: Plan) -> str:
        """Return a plan's label in this flow: its name, or ``name-vVERSION`` where two versions of it are in the
        flow."""
        return plan.name if [p.name for p in self.plans].count(plan.name) == 1 else plan.key

    @property
    def joints(self) -> tuple[Joint, ...]:
        """Return which plan reads what another one writes, in the order of the readers' turns."""
        return self._joints(self.order)

    def _joints(self, plans: Sequence[Plan]) -> tuple[Joint, ...]:
        """Return the joints whose readers are these plans."""
        written = [
            (target, self.label(plan), node.name)
            for plan in self.plans
            for node in plan.nodes
            if isinstance(node, DestinationNode) and isinstance(node.destination, Destination)
            if (target := _written_place(plan, node)) is not None
        ]
        return tuple(
            Joint(target, writer, destination, self.label(plan), node.name)
            for plan in plans
            for node in plan.nodes
            if isinstance(node, SourceNode) and isinstance(node.source, Source)
            for target, writer, destination in written
            if relative_paths.resolve(target) == relative_paths.resolve(node.source.reads())
            and writer != self.label(plan)
        )

    @property
    def order(self) -> tuple[Plan, ...]:
        """Return the plans ordered so that each comes after those whose deliveries it reads; plans in a cycle come
        before what follows the cycle. Otherwise the given order is kept."""
        predecessors = self._predecessors()
        remaining = {self.label(plan): plan for plan in self.plans}
        ordered = []
        while remaining:
            ready = (
                label
                for label in remaining
                if all(label in predecessors[earlier] for earlier in predecessors[label] if earlier in remaining)
            )
            ordered.append(remaining.pop(next(ready)))
        return tuple(ordered)

    def check(self) -> list[str]:
        """Refuse a flow that cannot run; return warnings, each with its plan's name before it.

        Raises:
            PlanError: every reason found, in the flow and in each plan, naming the plan and what to do.
        """
        findings = self._findings()
        warnings: list[str] = []
        for plan in dict.fromkeys(self.plans):
            try:
                warnings += [f"{self.label(plan)}: {warning}" for warning in plan.check()]
            except PlanError as e:
                findings += [f"{self.label(plan)}: {finding}" for finding in e.findings]
        if findings:
            raise PlanError(findings)
        return [*self._cycles(), *warnings]

    def freeze(self) -> None:
        """Check the flow, and let nothing be added to its plans any more."""
        self.check()
        for plan in self.plans:
            plan.freeze()

    def _findings(self) -> list[str]:
        """Return the faults of the flow itself."""
        findings = []
        if not isinstance(self.name, str) or not NAME.match(self.name):
            findings.append(
                f"flow {self.name!r}: bad name: use letters, digits, '_', '.', '-', beginning with a letter."
            )
        if not self._given:
            findings.append(f"flow {self.name}: it has no plans: give one or more, Flow(name, [plan, plan]).")
        for index, plan in enumerate(self._given):
            if not isinstance(plan, Plan):
                findings.append(f"flow {self.name}: plans[{index}] is a {type(plan).__name__}: give Plans.")
        keys = Counter(plan.key for plan in self.plans)
        for key, count in keys.items():
            if count > 1:
                findings.append(
                    f"flow {self.name}: {count} plans are {key}, and would share a state: give each a name of its own."
                )
        return findings

    def _cycles(self) -> list[str]:
        """Return a warning for each cycle of plans."""
        after: dict[str, list[str]] = {self.label(plan): [] for plan in self.plans}
        for joint in self.joints:
            after[joint.reader].append(joint.writer)
        return [
            f"{' → '.join([*ring, ring[0]])}: a cycle of plans: what each writes comes back to it. A run ends only "
            "once nothing goes round any more: see to it that every document leaves the cycle."
            for ring in cycles([_FlowMember(label, tuple(writers)) for label, writers in after.items()])
        ]

    def _predecessors(self) -> dict[str, set[str]]:
        """Return plan -> all plans whose deliveries reach it, directly or through others; in a cycle also itself."""
        predecessors: dict[str, set[str]] = {self.label(plan): set() for plan in self.plans}
        for joint in self._joints(self.plans):
            predecessors[joint.reader].add(joint.writer)
        is_growing = True
        while is_growing:
            is_growing = False
            for known in predecessors.values():
                further = set().union(*(predecessors[each] for each in known)) - known
                known |= further
                is_growing = is_growing or bool(further)
        return predecessors

    def _repr_svg_(self) -> str:
        """Return the picture that a notebook shows: all plans in one."""
        from ferryman.plan.picture import svg  # it would make each start slower

        return svg(self)

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {[plan.key for plan in self.plans]})"


def _written_place(plan: Plan, node: DestinationNode) -> str | None:
    """Return the place written by a destination, or the feed of a keyed node, which another plan may read."""
    if isinstance(node, KeyedNode):
        return feed_name(plan.key, node.name)
    return node.destination.target()


class _FlowMember(NamedTuple):
    """A plan and the plans that it follows, for ``cycles``."""

    name: str
    after: tuple[str, ...]
