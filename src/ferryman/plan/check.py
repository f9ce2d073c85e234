"""Checks of a plan's shape; all findings are reported at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import inf
from typing import cast

from ferryman import limits
from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.plan.calls import bad_calls
from ferryman.plan.inputs import bad_feeds, bad_inputs
from ferryman.plan.keyed import bad_keyed, copies_meet
from ferryman.plan.nodes import (
    AltsNode,
    CalledNode,
    DestinationNode,
    JoinNode,
    Node,
    RouterNode,
    SourceNode,
    StepNode,
    is_name,
)
from ferryman.plan.paths import cycles, endless, ends, sources_of_targets, successors, target_of
from ferryman.routers import Router
from ferryman.sources.base import Source

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


def check(name: str, version: object, nodes: Sequence[Node]) -> tuple[list[str], list[str]]:
    """(findings that refuse the plan, warnings), each naming the node and the remedy."""
    findings = [*_bad_names(name, version, nodes), *_bad_edges(nodes), *_bad_nodes(nodes), *_cycles(nodes)]
    findings += [*endless(nodes), *bad_feeds(f"{name}-v{version}", nodes), *bad_keyed(nodes)]
    findings += [
        f"{text} on_unequal='error' refuses this: lead each branch to all of them, or allow it with 'warn'."
        for strict, text in _unequal_branches(nodes)
        if strict
    ]
    findings += [] if findings else copies_meet(nodes, ends(nodes))
    findings = list(dict.fromkeys(findings))  # nodes of one name have the same faults
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
    errors = [n.name for n in nodes if isinstance(n, DestinationNode) and n.errors]
    if len(errors) > 1:
        found.append(f"{', '.join(errors)}: a plan has one destination for errors: remove all but one.")
    for twice, count in Counter(n.name for n in nodes).items():
        if count > 1:
            found.append(f"{twice}: {count} nodes have this name: names are unique in a plan, rename all but one.")
    return found


def _bad_edges(nodes: Sequence[Node]) -> list[str]:
    found = []
    kinds = {n.name: n for n in reversed(nodes)}  # the first of a name, where several have it
    following, named = successors(nodes), Counter(n.name for n in nodes)
    if not any(isinstance(n, SourceNode) for n in nodes):
        found.append("the plan has no source: add one with plan.source(name, source).")
    for node in nodes:
        for name in node.after:
            if name not in kinds:
                found.append(f"{node.name}: follows {name!r}, which is not in the plan: declare it or correct after=.")
            elif isinstance(before := kinds[name], DestinationNode) and not before.tee:
                found.append(
                    f"{node.name}: follows {name}, but a destination is the end of a path: follow the node before it, "
                    f"or make {name} a tee: .tee(name, …)."
                )
        if isinstance(node, (JoinNode, AltsNode)):
            found += bad_inputs(node, kinds)
        elif isinstance(node, SourceNode):
            if node.after:
                found.append(f"{node.name}: a source follows nothing: remove its after=.")
        elif isinstance(node, DestinationNode) and node.errors:
            if node.after:
                found.append(f"{node.name}: the destination of errors follows nothing: remove its after=.")
        elif not node.after:
            found.append(
                f"{node.name}: follows no node and is not a source: give it after=[…], or make it from another node."
            )
        after = following[node.name]
        if not after and not isinstance(node, DestinationNode):
            found.append(
                f"{node.name}: the path ends here without a destination, so nothing would happen to these documents: "
                f"add .destination(name, …) after it."
            )
        forks = isinstance(node, RouterNode) or (isinstance(node, DestinationNode) and not node.tee)
        if len(after) > 1 and not forks and named[node.name] == 1:
            found.append(
                f"{node.name}: has {len(after)} successors ({', '.join(n.name for n in after)}) "
                "without a router between: put one there, .route(name, Duplicate()) for a copy to each."
            )
    return found


def _bad_nodes(nodes: Sequence[Node]) -> list[str]:
    found = []
    following = successors(nodes)
    for node in nodes:
        if isinstance(node, SourceNode) and not isinstance(node.source, Source):
            found.append(
                f"{node.name}: {node.source!r} is not a Source: take one of ferryman.sources, or subclass Source."
            )
        if isinstance(node, CalledNode):
            found += _bad_policy(node)
        if isinstance(node, RouterNode):
            found += _bad_router(node, [n.name for n in following[node.name]])
        if isinstance(node, StepNode):
            if not callable(node.fn):
                found.append(
                    f"{node.name}: {node.fn!r} is not a function of a document: give the function itself, "
                    "without calling it."
                )
            if node.effect is Effect.POTENT:
                apart = " If it also changes the document, split it in two." if node.mutates else ""
                found.append(
                    f"{node.name}: a step runs before the commit and may run again, "
                    f"so it cannot be POTENT: make it a tee or a destination.{apart}"
                )
            if node.timeout is not None and not _is_number(node.timeout, above=0):
                found.append(f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out.")
            found += bad_calls(node)
            for name in node.needs:
                if not is_name(name):
                    found.append(f"{node.name}: needs={name!r}: give names of letters, digits and -_. such as 'gpu'.")
        if isinstance(node, DestinationNode):
            found += _bad_destination(node)
    return found


def _bad_policy(node: CalledNode) -> list[str]:
    found = []
    for option, value in (("brake", node.brake), ("attempts", node.attempts)):
        if value is not None and (not isinstance(value, int) or value < 1):
            found.append(f"{node.name}: {option}={value!r}: give a whole number, 1 or more, or None.")
    return found + _bad_patience(node.name, node.patience_s)


def _bad_patience(name: str, patience_s: object) -> list[str]:
    if _is_number(patience_s, least=0):
        return []
    return [f'{name}: patience={patience_s!r}: give seconds from 0, or a time as in "90s", "15m", "2h", "1d".']


def _bad_router(node: RouterNode, branches: list[str]) -> list[str]:
    if not isinstance(node.router, Router):
        return [f"{node.name}: {node.router!r} is not a Router: subclass ferryman.routers.Router."]
    return [
        f"{node.name}: routes to {branch!r}, which is not one of its branches: a branch is named after its first node, "
        f"here {', '.join(branches) or 'none'}. Add the branch, or correct the router."
        for branch in dict.fromkeys(node.router.named_branches())
        if branch not in branches
    ]


def _bad_destination(node: DestinationNode) -> list[str]:
    found = []
    destination, policy = node.destination, node.policy
    kind = type(destination).__name__
    if not isinstance(destination, Destination):
        return [f"{node.name}: {destination!r} is not a Destination: subclass ferryman.destinations.Destination."]
    if getattr(destination, "effect", None) not in (Effect.IDEMPOTENT, Effect.POTENT):
        found.append(f"{node.name}: {kind} does not say its effect: set effect = Effect.IDEMPOTENT or Effect.POTENT.")
    if policy.guarantee is Guarantee.EXACTLY_ONCE and not destination.transactional:
        found.append(
            f"{node.name}: {kind} cannot keep exactly-once, for it does not store the delivery hash "
            "with the effect (transactional = True): ask for at-least-once or at-most-once."
        )
    for option in ("attempts", "batch", "batch_bytes", "lanes"):
        value = getattr(policy, option)
        if (option, value) != ("lanes", None) and (not isinstance(value, int) or value < 1):
            found.append(f"{node.name}: {option}={value!r}: give a whole number, 1 or more.")
    if policy.patience_s is not None:
        found += _bad_patience(node.name, policy.patience_s)
    if policy.backoff is not None and not (policy.backoff and all(_is_number(s, least=0) for s in policy.backoff)):
        found.append(f"{node.name}: backoff={policy.backoff!r}: give seconds from 0.")
    longest = limits.SEND_TIMEOUT_MAX_S
    if not _is_number(policy.send_timeout, above=0) or policy.send_timeout > longest:
        found.append(f"{node.name}: send_timeout={policy.send_timeout!r}: give seconds above 0, {longest:g} at most.")
    return found


def _is_number(value: object, *, above: float = -inf, least: float = -inf) -> bool:
    return isinstance(value, (int, float)) and above < value < inf and value >= least


def _cycles(nodes: Sequence[Node]) -> list[str]:
    return [
        f"{' → '.join([*ring, ring[0]])}: a cycle: these nodes follow each other; remove one of the edges (after=)."
        for ring in cycles(nodes)
    ]


def _unequal_branches(nodes: Sequence[Node]) -> list[tuple[bool, str]]:
    """(refused, text) for each router that is not deterministic and of which the branches lead to different places.

    Of any plan, also of one that is refused for other reasons.
    """
    following = successors(nodes)
    found = []
    for node in nodes:
        if isinstance(node, RouterNode) and isinstance(node.router, Router) and not node.router.deterministic:
            places = {n.name: _destinations_from(n, following) for n in following[node.name]}
            if len(set(map(frozenset, places.values()))) > 1:
                ways = "; ".join(f"{name} → {', '.join(sorted(where)) or 'none'}" for name, where in places.items())
                text = f"{node.name}: is not deterministic, and its branches lead to different destinations ({ways})."
                found.append((node.router.on_unequal == "error", text))
    return found


def _destinations_from(start: Node, following: dict[str, list[Node]]) -> set[str]:
    """Destinations and tees at this node or below it."""
    reached: dict[str, Node] = {}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node.name not in reached:
            reached[node.name] = node
            waiting += following.get(node.name, [])
    return {name for name, node in reached.items() if isinstance(node, DestinationNode)}


def _warnings(nodes: Sequence[Node]) -> list[str]:
    found = []
    for target, sources in sources_of_targets(nodes).items():
        prefixes = Counter(s.source.prefix for s in sources)
        if max(prefixes.values()) > 1:
            names = ", ".join(s.name for s in sources)
            found.append(
                f"{target}: the sources {names} reach it without distinct prefixes, so their ids may conflict: "
                "give each a prefix=."
            )
    found += [
        f"{text} The commit of a wave fixes what was chosen; if all should get it, lead each branch to all of them."
        for _, text in _unequal_branches(nodes)
    ]
    found += _shared_targets(nodes)
    for node in nodes:
        if (
            isinstance(node, DestinationNode)
            and not node.destination.compares_sequences
            and not node.destination.transactional
        ):
            found.append(
                f"{node.name}: {type(node.destination).__name__} does not compare sequences: within a second after a "
                "kill, a late worker may write an older version of a document after a newer one. Readers can compare "
                "sequences; a destination of your own can refuse lower ones and set compares_sequences = True."
            )
    return found


def _shared_targets(nodes: Sequence[Node]) -> list[str]:
    """Targets keyed by id where copies of one document meet: they overwrite each other."""
    by_name = {n.name: n for n in nodes}
    meeting: dict[str, set[str]] = {}
    for pair in _met_together(nodes):
        one, other = (cast(DestinationNode, by_name[name]) for name in pair)
        if target_of(one) == target_of(other) and one.destination.keyed_by_id:
            meeting.setdefault(target_of(one), set()).update(pair)
    return [
        f"{target_of(node)}: one document comes here by several routes "
        f"({' and '.join(n.name for n in nodes if n.name in names)}) under one id, and the last one wins: "
        "give each route a target of its own, or give the copies children's ids."
        for node in nodes
        if isinstance(node, DestinationNode) and (names := meeting.pop(target_of(node), None))
    ]


def _met_together(nodes: Sequence[Node]) -> set[tuple[str, str]]:
    """Pairs of destinations that one document reaches both, as a tee and what lies below it, or as copies."""
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
