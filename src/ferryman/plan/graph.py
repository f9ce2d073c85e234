"""Is this a plan that can run? Every rule of a plan's shape, found in one go; and the paths through it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.plan.nodes import DestinationNode, Node, SourceNode, StepNode

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


class Path(NamedTuple):
    """What a source's documents go through: steps in their order, then a destination."""

    source: SourceNode
    steps: tuple[StepNode, ...]
    destination: DestinationNode


def successors(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Name -> the nodes that follow it, in the order of their making."""
    following: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.after:
            following[name].append(node)
    return following


def paths(nodes: Sequence[Node]) -> dict[str, Path]:
    """Source name -> its path, for a checked plan without routers: there is just one."""
    following = successors(nodes)
    found: dict[str, Path] = {}
    for source in nodes:
        if not isinstance(source, SourceNode):
            continue
        steps: list[StepNode] = []
        node = following[source.name][0]
        while isinstance(node, StepNode):
            steps.append(node)
            node = following[node.name][0]
        assert isinstance(node, DestinationNode)
        found[source.name] = Path(source, tuple(steps), node)
    return found


def rivals(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Source -> the other sources, in plan order, of which documents may reach the same target under the same ids."""
    return {
        one.name: [other.name for other in sources if other is not one and _may_clash(one, other)]
        for sources in _sources_of_targets(nodes).values()
        for one in sources
    }


def _may_clash(one: SourceNode, other: SourceNode) -> bool:
    shorter, longer = sorted((one.source.prefix, other.source.prefix), key=len)
    return longer.startswith(shorter)


def _sources_of_targets(nodes: Sequence[Node]) -> dict[str, list[SourceNode]]:
    """What destinations write to -> the sources whose documents come there, for a checked plan."""
    reached: dict[str, list[SourceNode]] = defaultdict(list)
    for path in paths(nodes).values():
        reached[path.destination.destination.target() or path.destination.name].append(path.source)
    return reached


def check(name: str, version: object, nodes: Sequence[Node]) -> tuple[list[str], list[str]]:
    """(findings that refuse the plan, warnings), each naming the node and the remedy."""
    findings = [*_bad_names(name, version, nodes), *_bad_edges(nodes), *_bad_nodes(nodes)]
    if not findings:
        findings = _cycles(nodes)
    return findings, [] if findings else _warnings(nodes)


def _bad_names(name: str, version: object, nodes: Sequence[Node]) -> list[str]:
    rule = "use letters, digits, '_', '.', '-', beginning with a letter."
    found = []
    if not isinstance(name, str) or not NAME.match(name):
        found.append(f"plan {name!r}: bad name: {rule}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        found.append(f"plan {name}: version {version!r}: give a whole number from 0.")
    for node in nodes:
        if not isinstance(node.name, str) or not NAME.match(node.name):
            found.append(f"{node.name!r}: bad name: {rule}")
    for twice, count in Counter(n.name for n in nodes).items():
        if count > 1:
            found.append(f"{twice}: {count} nodes have this name: names are unique in a plan, rename all but one.")
    return found


def _bad_edges(nodes: Sequence[Node]) -> list[str]:
    found = []
    kinds = {n.name: n for n in nodes}
    following = successors(nodes)
    if not any(isinstance(n, SourceNode) for n in nodes):
        found.append("the plan has no source: add one with plan.source(name, source).")
    for node in nodes:
        for name in node.after:
            if name not in kinds:
                found.append(f"{node.name}: follows {name!r}, which is not in the plan: declare it or correct after=.")
            elif isinstance(kinds[name], DestinationNode):
                found.append(
                    f"{node.name}: follows {name}, but a destination is the end of a path: follow the node before it."
                )
        if isinstance(node, SourceNode):
            if node.after:
                found.append(f"{node.name}: a source follows nothing: take its after= away.")
        elif not node.after:
            found.append(
                f"{node.name}: follows no node and is no source: give it after=[…], or make it from another node."
            )
        after = following[node.name]
        if not after and not isinstance(node, DestinationNode):
            found.append(
                f"{node.name}: the path ends here in no destination, nothing would happen to these documents: "
                f"add .destination(name, …) after it."
            )
        if len(after) > 1 and not isinstance(node, DestinationNode):
            found.append(
                f"{node.name}: has {len(after)} successors ({', '.join(n.name for n in after)}) "
                "without a router between: let one node follow it."
            )
    return found


def _bad_nodes(nodes: Sequence[Node]) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, StepNode):
            if not callable(node.fn):
                found.append(f"{node.name}: {node.fn!r} is not a function of a document.")
            if node.effect is Effect.POTENT:
                apart = " Where it also changes the document, take the two apart." if node.mutates else ""
                found.append(
                    f"{node.name}: a step runs before the commit and may run again, "
                    f"so it cannot be POTENT: make it a destination.{apart}"
                )
            if node.timeout is not None and node.timeout <= 0:
                found.append(f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out.")
        if isinstance(node, DestinationNode):
            found += _bad_destination(node)
    return found


def _bad_destination(node: DestinationNode) -> list[str]:
    found = []
    destination, policy = node.destination, node.policy
    kind = type(destination).__name__
    if not isinstance(destination, Destination):
        return [f"{node.name}: {destination!r} is no Destination: subclass ferryman.destinations.Destination."]
    if getattr(destination, "effect", None) not in (Effect.IDEMPOTENT, Effect.POTENT):
        found.append(f"{node.name}: {kind} does not say its effect: set effect = Effect.IDEMPOTENT or Effect.POTENT.")
    if policy.guarantee is Guarantee.EXACTLY_ONCE and not destination.transactional:
        found.append(
            f"{node.name}: {kind} cannot keep exactly-once, for it does not store the delivery hash "
            "with the effect (transactional = True): ask for at-least-once or at-most-once."
        )
    for option in ("attempts", "batch", "batch_bytes"):
        if getattr(policy, option) < 1:
            found.append(f"{node.name}: {option}={getattr(policy, option)!r}: give 1 or more.")
    if policy.backoff is not None and (not policy.backoff or min(policy.backoff) < 0):
        found.append(f"{node.name}: backoff={policy.backoff!r}: give seconds from 0.")
    return found


def _cycles(nodes: Sequence[Node]) -> list[str]:
    """Nodes that can never be reached because they wait for each other (Kahn's algorithm leaves them over)."""
    waiting = {n.name: set(n.after) for n in nodes}
    while ready := [name for name, after in waiting.items() if not after]:
        for name in ready:
            del waiting[name]
        for after in waiting.values():
            after.difference_update(ready)
    if not waiting:
        return []
    return [f"{' → '.join(waiting)}: a cycle: these nodes follow each other, take one of the edges (after=) away."]


def _warnings(nodes: Sequence[Node]) -> list[str]:
    found = []
    for target, sources in _sources_of_targets(nodes).items():
        prefixes = Counter(s.source.prefix for s in sources)
        if max(prefixes.values()) > 1:
            names = ", ".join(s.name for s in sources)
            found.append(
                f"{target}: the sources {names} reach it without distinct prefixes, their ids may clash: "
                "give each a prefix=."
            )
    for node in nodes:
        if (
            isinstance(node, DestinationNode)
            and not node.destination.compares_sequences
            and not node.destination.transactional
        ):
            found.append(
                f"{node.name}: {type(node.destination).__name__} does not compare sequences: within a second after a "
                "kill, a late worker may write an older version of a document after a newer one."
            )
    return found
