"""Is this a plan that can run? Every rule of a plan's shape, found in one go; and the paths through it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple, cast

from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.plan.nodes import DestinationNode, Node, RouterNode, SourceNode, StepNode
from ferryman.routers.base import Router

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


class End(NamedTuple):
    """A destination that can be reached from a node, and the duplicating branches on the way there."""

    destination: str
    route: tuple[str, ...]


def successors(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Name -> the nodes that follow it, in the order of their making."""
    following: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.after:
            following[name].append(node)
    return following


def ends(nodes: Sequence[Node]) -> dict[str, tuple[End, ...]]:
    """Name -> every end of a document that comes to this node, for a checked plan.

    One destination has several ends where a router above it makes copies: each route is a delivery of its own.
    """
    following = successors(nodes)
    found: dict[str, tuple[End, ...]] = {}
    for node in reversed(_in_order(nodes)):
        here: dict[End, None] = {End(node.name, ()): None} if isinstance(node, DestinationNode) else {}
        for child in following[node.name]:
            copies = isinstance(node, RouterNode) and node.router.copies
            branch = (child.name,) if copies else ()
            here |= {End(end.destination, branch + end.route): None for end in found[child.name]}
        found[node.name] = tuple(here)
    return found


def destinations_of_sources(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Source -> the destinations, taps too, that its documents may come to; in plan order, for a checked plan."""
    reached = ends(nodes)
    return {
        n.name: list(dict.fromkeys(e.destination for e in reached[n.name])) for n in nodes if isinstance(n, SourceNode)
    }


def rivals(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Source -> the other sources, in plan order, of which documents may reach the same target, keyed by id, under the
    same ids."""
    found: dict[str, list[str]] = {}
    for sources in _sources_of_targets(nodes).values():
        for one in sources:
            others = [other.name for other in sources if other is not one and _may_clash(one, other)]
            found[one.name] = list(dict.fromkeys([*found.get(one.name, ()), *others]))
    return found


def _may_clash(one: SourceNode, other: SourceNode) -> bool:
    shorter, longer = sorted((one.source.prefix, other.source.prefix), key=len)
    return longer.startswith(shorter)


def _sources_of_targets(nodes: Sequence[Node]) -> dict[str, list[SourceNode]]:
    """Targets keyed by id -> the sources whose documents come there, for a checked plan."""
    by_name = {n.name: n for n in nodes}
    reached: dict[str, list[SourceNode]] = {}
    for source, names in destinations_of_sources(nodes).items():
        ends_here = [cast(DestinationNode, by_name[name]) for name in names]
        for target in dict.fromkeys(target_of(n) for n in ends_here if n.destination.keyed_by_id):
            reached.setdefault(target, []).append(cast(SourceNode, by_name[source]))
    return reached


def target_of(node: Node) -> str:
    """The physical place that a destination writes to; its own name if it is nobody else's."""
    assert isinstance(node, DestinationNode)
    return node.destination.target() or node.name


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Nodes so that each comes after those it follows (Kahn); without those that are in a cycle, or behind one."""
    waiting = {n.name: set(n.after) for n in nodes}
    by_name = {n.name: n for n in nodes}
    ordered: list[Node] = []
    while ready := [name for name, after in waiting.items() if not after]:
        for name in ready:
            del waiting[name]
            ordered.append(by_name[name])
        for after in waiting.values():
            after.difference_update(ready)
    return ordered


def check(name: str, version: object, nodes: Sequence[Node]) -> tuple[list[str], list[str]]:
    """(findings that refuse the plan, warnings), each naming the node and the remedy."""
    findings = [*_bad_names(name, version, nodes), *_bad_edges(nodes), *_bad_nodes(nodes), *_cycles(nodes)]
    if not findings:
        findings = [f"{text} on_unequal='error' refuses this." for strict, text in _unequal_branches(nodes) if strict]
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
            elif isinstance(before := kinds[name], DestinationNode) and not before.tap:
                found.append(
                    f"{node.name}: follows {name}, but a destination is the end of a path: follow the node before it, "
                    f"or make {name} a tap: .tap(name, …)."
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
        forks = isinstance(node, RouterNode) or (isinstance(node, DestinationNode) and not node.tap)
        if len(after) > 1 and not forks:
            found.append(
                f"{node.name}: has {len(after)} successors ({', '.join(n.name for n in after)}) "
                "without a router between: put one there, .route(name, Duplicate()) for a copy to each."
            )
    return found


def _bad_nodes(nodes: Sequence[Node]) -> list[str]:
    found = []
    following = successors(nodes)
    for node in nodes:
        if isinstance(node, RouterNode):
            found += _bad_router(node, [n.name for n in following[node.name]])
        if isinstance(node, StepNode):
            if not callable(node.fn):
                found.append(f"{node.name}: {node.fn!r} is not a function of a document.")
            if node.effect is Effect.POTENT:
                apart = " Where it also changes the document, take the two apart." if node.mutates else ""
                found.append(
                    f"{node.name}: a step runs before the commit and may run again, "
                    f"so it cannot be POTENT: make it a tap or a destination.{apart}"
                )
            if node.timeout is not None and node.timeout <= 0:
                found.append(f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out.")
        if isinstance(node, DestinationNode):
            found += _bad_destination(node)
    return found


def _bad_router(node: RouterNode, branches: list[str]) -> list[str]:
    if not isinstance(node.router, Router):
        return [f"{node.name}: {node.router!r} is no Router: subclass ferryman.routers.Router."]
    return [
        f"{node.name}: routes to {branch!r}, which is no branch of it: branches are called by their first node, here "
        f"{', '.join(branches) or 'none'}. Add the branch, or correct the router."
        for branch in dict.fromkeys(node.router.named_branches())
        if branch not in branches
    ]


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
    """Rings of nodes that wait for each other; each is told once, from its first node on."""
    ordered = {n.name for n in _in_order(nodes)}
    after = {n.name: [a for a in n.after if a not in ordered] for n in nodes if n.name not in ordered}
    found: dict[frozenset[str], str] = {}
    for start in after:
        way = [start]
        while (back := next((a for a in after[way[-1]] if a in after), None)) is not None and back not in way:
            way.append(back)
        if back is not None:
            ring = way[way.index(back) :][::-1]
            at = min(range(len(ring)), key=lambda i: list(after).index(ring[i]))
            ring = ring[at:] + ring[:at]
            found[frozenset(ring)] = " → ".join([*ring, ring[0]])
    return [
        f"{ring}: a cycle: these nodes follow each other, take one of the edges (after=) away."
        for ring in found.values()
    ]


def _unequal_branches(nodes: Sequence[Node]) -> list[tuple[bool, str]]:
    """(refused, text) for each router that is not deterministic and of which the branches lead to different places."""
    following, reached = successors(nodes), ends(nodes)
    found = []
    for node in nodes:
        if isinstance(node, RouterNode) and not node.router.deterministic:
            places = {n.name: {e.destination for e in reached[n.name]} for n in following[node.name]}
            if len(set(map(frozenset, places.values()))) > 1:
                ways = "; ".join(f"{name} → {', '.join(sorted(where))}" for name, where in places.items())
                strict = node.router.on_unequal == "error"
                found.append(
                    (
                        strict,
                        f"{node.name}: is not deterministic, and its branches lead to different destinations ({ways}).",
                    )
                )
    return found


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
    found += [f"{text} The commit of a wave fixes what was chosen." for _, text in _unequal_branches(nodes)]
    found += _shared_targets(nodes)
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


def _shared_targets(nodes: Sequence[Node]) -> list[str]:
    """Targets keyed by id where copies of one document meet: they overwrite each other."""
    by_name = {n.name: n for n in nodes}
    found = {}
    for pair in _met_together(nodes):
        one, other = (cast(DestinationNode, by_name[name]) for name in pair)
        if target_of(one) == target_of(other) and one.destination.keyed_by_id:
            ways = one.name if one is other else f"{one.name} and {other.name}"
            found[target_of(one)] = (
                f"{target_of(one)}: one document comes here by several routes ({ways}) under one id, the last stays: "
                "give each route a target of its own, or give the copies children's ids."
            )
    return list(found.values())


def _met_together(nodes: Sequence[Node]) -> set[tuple[str, str]]:
    """Pairs of destinations that one document reaches both, as a tap and what lies below it, or as copies."""
    following, reached = successors(nodes), ends(nodes)
    found: set[tuple[str, str]] = set()
    for node in nodes:
        below = [list(dict.fromkeys(e.destination for e in reached[n.name])) for n in following[node.name]]
        if isinstance(node, RouterNode) and node.router.copies:
            pairs = list(combinations(below, 2))
        elif isinstance(node, DestinationNode):
            pairs = [([node.name], each) for each in below]
        else:
            continue
        for left, right in pairs:
            found |= {(min(a, b), max(a, b)) for a in left for b in right}
    return found
