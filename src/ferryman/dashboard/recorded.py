"""A plan as its state has recorded it: enough to ask about deliveries, draw the plan and give commands.

No file of a user is run for that. Sources, steps and destinations are stand-ins with the names of the real classes;
none of them can be called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import ferryman.destinations
import ferryman.sources
from ferryman.destinations.base import Effect, Guarantee
from ferryman.document import Document
from ferryman.errors import Misconfigured, StateDamaged
from ferryman.plan import NodeRecord, Plan
from ferryman.plan.nodes import (
    AltsNode,
    DestinationNode,
    JoinNode,
    KeyedNode,
    KeyedState,
    Node,
    Policy,
    RouterNode,
    SourceNode,
    StepNode,
    exports_node,
)
from ferryman.plan.structure import Structure
from ferryman.sources.base import Listed, Source
from ferryman.sources.log import CombinedLog, Log
from ferryman.state.state import PLAN, READ, State, plan_of
from ferryman.storage import files
from ferryman.storage.files import StatePath

_WHY = "only the plan file can say: name it beside the folders"


class RecordedPlan(Plan):
    """A plan made from a state's record of it."""

    def __init__(self, name: str, version: int, nodes: Sequence[Node]) -> None:
        super().__init__(name, version)
        self._nodes += nodes


class RecordedSource(Source):
    def read(self, listed: Listed) -> Document:
        raise Misconfigured(_WHY)


class RecordedLog(Log):
    """Log of a recorded plan: how far it goes is not known."""

    def check(self) -> None:
        raise Misconfigured(_WHY)


class RecordedCombination(CombinedLog):
    """Join or alts of a recorded plan."""


class RecordedRouter:
    """Router of a recorded plan. It is no ``Router``: pictures tell options of those, which are not recorded."""


class RecordedDestination:
    """Destination of a recorded plan, as ``RecordedRouter``."""

    effect = Effect.IDEMPOTENT
    keyed_by_id = False
    recorded_target: str | None = None

    def target(self) -> str | None:
        return self.recorded_target


def recorded_plan(root: StatePath) -> Plan:
    """Return the plan of a state, as of its last run.

    Raises:
        StateDamaged: its identity or its structure cannot be read.
    """
    empty = plan_of(root)
    if not files.exists(root / PLAN):
        return empty
    state = State(root, empty)
    structure = state.recorded_structure()
    return RecordedPlan(
        empty.name, empty.version, [_node(name, each, structure, state) for name, each in structure.items()]
    )


def _node(name: str, record: NodeRecord, structure: Structure, state: State) -> Node:
    after, kind = tuple(record.after), record.kind
    if kind == "source":
        base = RecordedLog if _is_log(name, record, state) else RecordedSource
        source = _stand_in(base, record.type)
        source.may_not_see_deletes = getattr(_known_class(ferryman.sources, record.type), "may_not_see_deletes", True)
        return SourceNode(name, after, source=source)
    if kind in ("join", "alts"):
        combined = RecordedCombination({each: RecordedLog() for each in after})
        if kind == "alts":
            return AltsNode(name, after, source=combined)
        return JoinNode(name, after, source=combined, fn=_function(name))
    if kind == "step":
        return StepNode(name, after, fn=_function(name))
    if kind == "router":
        return RouterNode(name, after, router=_stand_in(RecordedRouter, record.type))
    if kind == "keyed":
        return KeyedNode(
            name,
            after,
            destination=KeyedState(),
            policy=Policy(Guarantee.EXACTLY_ONCE),
            update=_function(name),
            key="key",
            exports=exports_node(name),
        )
    if kind not in ("destination", "tee"):
        raise StateDamaged(str(state.root / PLAN), f"{name} is a {kind}, which this version of Ferryman does not know")
    destination = _stand_in(RecordedDestination, record.type)
    destination.recorded_target = record.target
    known = _known_class(ferryman.destinations, record.type)
    if isinstance(effect := getattr(known, "effect", None), Effect):
        destination.effect = effect
    policy = Policy(Guarantee.AT_LEAST_ONCE)
    is_errors = kind == "destination" and not after
    return DestinationNode(name, after, destination=destination, policy=policy, tee=kind == "tee", errors=is_errors)


def _is_log(name: str, record: NodeRecord, state: State) -> bool:
    """Return whether a source is a log: by its class, or, if that is a user's own, because the plan has positions in
    it."""
    if (known := _known_class(ferryman.sources, record.type)) is not None:
        return issubclass(known, Log)
    return state.outbox.transaction(f"{READ}{name}") > 0


def _known_class(module: ModuleType, name: str) -> type | None:
    """Return the class that a module makes public by this name; None if there is none, or its packages are missing."""
    try:
        found = getattr(module, name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) else None


def _stand_in(base: type[Any], name: str) -> Any:
    """Return an object of a class with the name of the real one."""
    return type(name or base.__name__, (base,), {})()


def _function(name: str) -> Callable[..., Any]:
    def stand_in(*_: Any) -> Any:
        raise Misconfigured(_WHY)

    stand_in.__name__ = name
    return stand_in
