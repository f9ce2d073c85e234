"""Twin of a plan: the same nodes, with a sample in place of its sources and twins in place of its destinations."""

from __future__ import annotations

import copy
import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ferryman.destinations import Destination
from ferryman.destinations import Queue as QueueDestination
from ferryman.plan import (
    AltsNode,
    DestinationNode,
    ExportsNode,
    JoinNode,
    KeyedNode,
    Node,
    Plan,
    Policy,
    SourceNode,
    StepNode,
)
from ferryman.proof.faults import Effects, PlannedFault, node_effects
from ferryman.proof.sample import DrawnSource, Sample, SampleLog, SampleSource
from ferryman.proof.steps import observe
from ferryman.proof.twins import Misbehaviour, make_twin, wrap
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue, Source
from ferryman.sources.log import Alternating, Entry, Joined, Log

MISBEHAVIOURS: Final[Mapping[str, Misbehaviour]] = {
    **{name: name for name in ("refuses", "away", "hangs", "half", "drops")},
    "tail": "forgets",
    "holes": "forgets",
}
"""Kind of fault -> how the twin misbehaves."""

_TIMES: Final = {"refuses": 2, "away": 10_000, "step": 3, "source": 2}
"""Calls for which a fault lasts, if it is more than one."""

_CHUNKS: Final = 4
"""Chunks that a destination's documents are sent in, about."""

_SEND_TIMEOUT_S: Final = 1.0
"""Seconds that a call may take in a round in which one hangs."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Plan, sample and permissions, which all rounds of a proof share.

    Attributes:
        plan: the user's plan.
        sample: what was drawn of its sources.
        allowed: steps that may open connections.
        scratch: part of the names of scratch tables; "": none may be made.
    """

    plan: Plan
    sample: Sample
    allowed: tuple[str, ...] = ()
    scratch: str = ""


class TwinPlan:
    """Twin of a plan in the folder of a round.

    Args:
        version: of the sample.
        fault: of the round, if it hits a node in this run.

    Attributes:
        plan: the twin.
        twins: name of a destination's node -> its twin.
        kinds: name of a destination's node -> what its twin is: embedded, scratch or recorder.
    """

    def __init__(self, setup: Setup, folder: Path, version: int, fault: PlannedFault | None = None) -> None:
        self._setup = setup
        self._folder = folder
        self._version = version
        self._fault = fault
        self._documents = max(len(each) for each in setup.sample.values())
        self._logs: dict[int, Log] = {}
        """Identity of one of the user's logs -> its twin."""
        self.twins: dict[str, Destination] = {}
        self.kinds: dict[str, str] = {}
        nodes = [self._twin_of(node) for node in setup.plan.nodes]
        self.plan = copy.copy(setup.plan)
        vars(self.plan).update(_nodes=nodes, _notified=[], _mirrors=[], _frozen=False)

    def _twin_of(self, node: Node) -> Node:
        match node:
            case KeyedNode() | ExportsNode():
                return node
            case JoinNode() | AltsNode():
                return dataclasses.replace(node, source=self._combine(node.source))
            case SourceNode():
                return dataclasses.replace(node, source=self._source(node))
            case StepNode():
                effects = self._effects("step", node.name)
                return dataclasses.replace(node, fn=observe(node, self._folder, effects))
            case DestinationNode():
                return dataclasses.replace(node, destination=self._destination(node), policy=self._policy(node))
        return node

    def _effects(self, kind: str, node: str) -> Effects:
        return node_effects(self._fault, kind, node, self._version, self._folder, _TIMES.get(kind, 1))

    def _source(self, node: SourceNode) -> Source:
        drawn, source = self._setup.sample[node.name], node.source
        if isinstance(source, Log):
            log = self._queue(source, drawn) if isinstance(source, Queue) else SampleLog(drawn, self._version, source)
            self._logs[id(source)] = log
            return log
        return SampleSource(drawn.version(self._version), drawn.reads, source, self._effects("source", node.name))

    def _queue(self, source: Queue, drawn: DrawnSource) -> Queue:
        """Return a queue in the round's folder with the messages of this version."""
        root = self._folder / "sources"
        bodies: list[dict[str, Any]] = [
            dict((each.document if isinstance(each, Entry) else each).fields) for each in drawn.entries
        ]
        first = len(SampleLog(drawn, 0, source))
        queue = DurableQueue(source.name, root)
        queue.append(bodies[:first], key="first")
        if self._version:
            queue.append(bodies[first:], key="rest")
        twin = copy.copy(source)
        twin.root = root
        return twin

    def _combine(self, source: Source) -> Source:
        """Return the same join of the twins of the logs."""
        assert isinstance(source, Joined | Alternating)
        return type(source)({name: self._logs[id(log)] for name, log in source.inputs.items()})

    def _destination(self, node: DestinationNode) -> Destination:
        inner, kind = make_twin(node, self._folder / "twins", self._scratch_name())
        misbehaviour, effects = "", Effects.none()
        if self._fault is not None and self._fault.kind in MISBEHAVIOURS:
            effects = self._effects(self._fault.kind, node.name)
            misbehaviour = MISBEHAVIOURS[self._fault.kind]
        self.kinds[node.name] = kind
        self.twins[node.name] = twin = wrap(inner, node.name, self._folder, misbehaviour, effects)  # type: ignore[arg-type]
        return twin

    def _scratch_name(self) -> str:
        """Return the end of the names of this round's scratch tables, the same in all of its runs."""
        if not self._setup.scratch:
            return ""
        name = self._folder / "scratch"
        if not name.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            name.write_text(f"{self._setup.scratch}_{uuid.uuid4().hex[:8]}")
        return name.read_text()

    def _policy(self, node: DestinationNode) -> Policy:
        hangs = self._fault is not None and self._fault.kind == "hangs"
        batch = max(1, min(node.policy.batch, self._documents // _CHUNKS))
        if isinstance(node.destination, QueueDestination):
            batch = node.policy.batch if self._documents < _CHUNKS else max(batch, 2)
        return dataclasses.replace(
            node.policy,
            batch=batch,
            backoff=(0.01,),
            send_timeout=_SEND_TIMEOUT_S if hangs else node.policy.send_timeout,
        )
