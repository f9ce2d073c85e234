"""Checks of a plan's shape; all findings are reported at once."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf
from typing import Final, cast

from ferryman import limits
from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.plan.calls import call_findings
from ferryman.plan.inputs import feed_findings, input_findings
from ferryman.plan.keyed import converging_copy_findings, keyed_findings
from ferryman.plan.nodes import (
    AltsNode,
    CalledNode,
    DestinationNode,
    JoinNode,
    Node,
    RouterNode,
    SourceNode,
    StepNode,
    is_capability_name,
)
from ferryman.plan.paths import cycles, ends, loop_findings, sources_of_targets, successors, target_of
from ferryman.remembered import Remember
from ferryman.routers import Router
from ferryman.sources.base import Source

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


def check(name: str, version: object, nodes: Sequence[Node], *, once: bool = False) -> tuple[list[str], list[str]]:
    """Return (findings that refuse the plan, warnings), each naming the node and the remedy."""
    findings = [
        *_name_findings(name, version, nodes),
        *_edge_findings(nodes),
        *_node_findings(nodes, once=once),
        *_cycle_findings(nodes),
    ]
    findings += [*loop_findings(nodes), *feed_findings(f"{name}-v{version}", nodes), *keyed_findings(nodes)]
    findings += [
        f"{text} on_unequal='error' refuses this: lead each branch to all of them, or allow it with 'warn'."
        for strict, text in _unequal_branch_findings(nodes)
        if strict
    ]
    findings += _shared_name_findings(nodes)
    findings += [] if findings else converging_copy_findings(nodes, ends(nodes))
    findings = list(dict.fromkeys(findings))  # nodes of one name have the same faults
    return findings, [] if findings else _warnings(nodes)


def _name_findings(name: str, version: object, nodes: Sequence[Node]) -> list[str]:
    rule = "use letters, digits, '_', '.', '-', beginning with a letter."
    findings = []
    if not isinstance(name, str) or not NAME.match(name):
        findings.append(f"plan {name!r}: bad name: {rule}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        findings.append(f"plan {name}: version {version!r}: give a whole number from 0.")
    for node in nodes:
        if not isinstance(node.name, str) or not NAME.match(node.name):
            findings.append(f"{node.name!r}: bad name: {rule}")
    errors = [n.name for n in nodes if isinstance(n, DestinationNode) and n.errors]
    if len(errors) > 1:
        findings.append(f"{', '.join(errors)}: a plan has one destination for errors: remove all but one.")
    for duplicate, count in Counter(n.name for n in nodes).items():
        if count > 1:
            findings.append(
                f"{duplicate}: {count} nodes have this name: names are unique in a plan, rename all but one."
            )
    return findings


def _edge_findings(nodes: Sequence[Node]) -> list[str]:
    findings = []
    nodes_by_name = {n.name: n for n in reversed(nodes)}  # the first of a name, where several have it
    following, name_counts = successors(nodes), Counter(n.name for n in nodes)
    if not any(isinstance(n, SourceNode) for n in nodes):
        findings.append("the plan has no source: add one with plan.source(name, source).")
    for node in nodes:
        for name in node.after:
            if name not in nodes_by_name:
                findings.append(
                    f"{node.name}: follows {name!r}, which is not in the plan: declare it or correct after=."
                )
            elif isinstance(before := nodes_by_name[name], DestinationNode) and not before.tee:
                findings.append(
                    f"{node.name}: follows {name}, but a destination is the end of a path: follow the node before it, "
                    f"or make {name} a tee: .tee(name, …)."
                )
        if isinstance(node, (JoinNode, AltsNode)):
            findings += input_findings(node, nodes_by_name)
        elif isinstance(node, SourceNode):
            if node.after:
                findings.append(f"{node.name}: a source follows nothing: remove its after=.")
        elif isinstance(node, DestinationNode) and node.errors:
            if node.after:
                findings.append(f"{node.name}: the destination of errors follows nothing: remove its after=.")
        elif not node.after:
            findings.append(
                f"{node.name}: follows no node and is not a source: give it after=[…], or make it from another node."
            )
        after = following[node.name]
        if not after and not isinstance(node, DestinationNode):
            findings.append(
                f"{node.name}: the path ends here without a destination, so nothing would happen to these documents: "
                f"add .destination(name, …) after it."
            )
        forks = isinstance(node, RouterNode) or (isinstance(node, DestinationNode) and not node.tee)
        if len(after) > 1 and not forks and name_counts[node.name] == 1:
            findings.append(
                f"{node.name}: has {len(after)} successors ({', '.join(n.name for n in after)}) "
                "without a router between: put one there, .route(name, Duplicate()) for a copy to each."
            )
    return findings


def _node_findings(nodes: Sequence[Node], *, once: bool) -> list[str]:
    findings = []
    following = successors(nodes)
    for node in nodes:
        if isinstance(node, SourceNode) and not isinstance(node.source, Source):
            findings.append(
                f"{node.name}: {node.source!r} is not a Source: take one of ferryman.sources, or subclass Source."
            )
        if isinstance(node, CalledNode):
            findings += _policy_findings(node)
        if isinstance(node, RouterNode):
            findings += _router_findings(node, [n.name for n in following[node.name]])
        if isinstance(node, StepNode):
            if not callable(node.fn):
                findings.append(
                    f"{node.name}: {node.fn!r} is not a function of a document: give the function itself, "
                    "without calling it."
                )
            if node.effect is Effect.POTENT and not once:
                advice = " If it also changes the document, split it in two." if node.mutates else ""
                findings.append(
                    f"{node.name}: a step runs before the commit and may run again, "
                    "so it cannot be POTENT: make it a tee or a destination, or, where all sources are logs, give "
                    f"the plan strategy='at-most-once'.{advice}"
                )
            if node.timeout is not None and not _is_number(node.timeout, above=0):
                findings.append(f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out.")
            if node.nan not in ("reject", "null"):
                findings.append(f'{node.name}: nan={node.nan!r}: give "reject" or "null".')
            findings += call_findings(node)
            findings += _remember_findings(node)
            for name in node.needs:
                if not is_capability_name(name):
                    findings.append(
                        f"{node.name}: needs={name!r}: give names of letters, digits and -_. such as 'gpu'."
                    )
        if isinstance(node, DestinationNode):
            findings += _destination_findings(node)
    return findings


def _policy_findings(node: CalledNode) -> list[str]:
    findings = []
    for option, value in (("brake", node.brake), ("attempts", node.attempts)):
        if value is not None and (not isinstance(value, int) or value < 1):
            findings.append(f"{node.name}: {option}={value!r}: give a whole number, 1 or more, or None.")
    return findings + _patience_findings(node.name, node.patience_s)


def _patience_findings(name: str, patience_s: object) -> list[str]:
    if _is_number(patience_s, least=0):
        return []
    return [f'{name}: patience={patience_s!r}: give seconds from 0, or a time as in "90s", "15m", "2h", "1d".']


def _router_findings(node: RouterNode, branches: list[str]) -> list[str]:
    if not isinstance(node.router, Router):
        return [f"{node.name}: {node.router!r} is not a Router: subclass ferryman.routers.Router."]
    return [
        f"{node.name}: routes to {branch!r}, which is not one of its branches: a branch is named after its first node, "
        f"here {', '.join(branches) or 'none'}. Add the branch, or correct the router."
        for branch in dict.fromkeys(node.router.named_branches())
        if branch not in branches
    ]


def _destination_findings(node: DestinationNode) -> list[str]:
    findings = []
    destination, policy = node.destination, node.policy
    kind = type(destination).__name__
    if not isinstance(destination, Destination):
        return [f"{node.name}: {destination!r} is not a Destination: subclass ferryman.destinations.Destination."]
    if getattr(destination, "effect", None) not in (Effect.IDEMPOTENT, Effect.POTENT):
        findings.append(
            f"{node.name}: {kind} does not say its effect: set effect = Effect.IDEMPOTENT or Effect.POTENT."
        )
    if policy.guarantee is Guarantee.EXACTLY_ONCE and not destination.transactional:
        findings.append(
            f"{node.name}: {kind} cannot keep exactly-once, for it does not store the delivery hash "
            "with the effect (transactional = True): ask for at-least-once or at-most-once."
        )
    if policy.stale not in ("hold", "delete"):
        findings.append(f"{node.name}: stale={policy.stale!r}: give 'hold' or 'delete'.")
    for option in ("attempts", "batch", "batch_bytes", "lanes"):
        value = getattr(policy, option)
        if (option, value) != ("lanes", None) and (not isinstance(value, int) or value < 1):
            findings.append(f"{node.name}: {option}={value!r}: give a whole number, 1 or more.")
    if policy.patience_s is not None:
        findings += _patience_findings(node.name, policy.patience_s)
    if policy.backoff is not None and not (policy.backoff and all(_is_number(s, least=0) for s in policy.backoff)):
        findings.append(f"{node.name}: backoff={policy.backoff!r}: give seconds from 0.")
    longest = limits.SEND_TIMEOUT_MAX_S
    if not _is_number(policy.send_timeout, above=0) or policy.send_timeout > longest:
        findings.append(
            f"{node.name}: send_timeout={policy.send_timeout!r}: give seconds above 0, {longest:g} at most."
        )
    return findings


def _is_number(value: object, *, above: float = -inf, least: float = -inf) -> bool:
    return isinstance(value, (int, float)) and above < value < inf and value >= least


def _cycle_findings(nodes: Sequence[Node]) -> list[str]:
    return [
        f"{' → '.join([*ring, ring[0]])}: a cycle: these nodes follow each other; remove one of the edges (after=)."
        for ring in cycles(nodes)
    ]


def _unequal_branch_findings(nodes: Sequence[Node]) -> list[tuple[bool, str]]:
    """Return (refused, text) for each non-deterministic router whose branches lead to different destinations.

    Any plan may be given, also one that is refused for other reasons.
    """
    following = successors(nodes)
    findings = []
    for node in nodes:
        if isinstance(node, RouterNode) and isinstance(node.router, Router) and not node.router.deterministic:
            destinations = {n.name: _destinations_from(n, following) for n in following[node.name]}
            if len(set(map(frozenset, destinations.values()))) > 1:
                branches = "; ".join(
                    f"{name} → {', '.join(sorted(reached)) or 'none'}" for name, reached in destinations.items()
                )
                text = (
                    f"{node.name}: is not deterministic, and its branches lead to different destinations ({branches})."
                )
                findings.append((node.router.on_unequal == "error", text))
    return findings


def _destinations_from(start: Node, following: dict[str, list[Node]]) -> set[str]:
    """Return the destinations and tees at this node or downstream of it."""
    reached: dict[str, Node] = {}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node.name not in reached:
            reached[node.name] = node
            waiting += following.get(node.name, [])
    return {name for name, node in reached.items() if isinstance(node, DestinationNode)}


def _warnings(nodes: Sequence[Node]) -> list[str]:
    warnings = []
    for target, sources in sources_of_targets(nodes).items():
        prefixes = Counter(s.source.prefix for s in sources)
        if max(prefixes.values()) > 1:
            names = ", ".join(s.name for s in sources)
            warnings.append(
                f"{target}: the sources {names} reach it without distinct prefixes, so their ids may conflict: "
                "give each a prefix=."
            )
    warnings += [
        f"{text} The commit of a wave fixes what was chosen; if all should get it, lead each branch to all of them."
        for _, text in _unequal_branch_findings(nodes)
    ]
    warnings += _shared_target_warnings(nodes)
    for node in nodes:
        if (
            isinstance(node, DestinationNode)
            and not node.destination.compares_sequences
            and not node.destination.transactional
        ):
            warnings.append(
                f"{node.name}: {type(node.destination).__name__} does not compare sequences: within a second after a "
                "kill, a late worker may write an older version of a document after a newer one. Readers can compare "
                "sequences; a destination of your own can refuse lower ones and set compares_sequences = True."
            )
    return warnings


def _shared_target_warnings(nodes: Sequence[Node]) -> list[str]:
    """Return a warning for each target keyed by id where copies of one document overwrite each other."""
    by_name = {n.name: n for n in nodes}
    shared: dict[str, set[str]] = {}
    for pair in _destinations_of_one_document(nodes):
        one, other = (cast(DestinationNode, by_name[name]) for name in pair)
        if target_of(one) == target_of(other) and one.destination.keyed_by_id:
            shared.setdefault(target_of(one), set()).update(pair)
    return [
        f"{target_of(node)}: one document comes here by several routes "
        f"({' and '.join(n.name for n in nodes if n.name in names)}) under one id, and the last one wins: "
        "give each route a target of its own, or give the copies children's ids."
        for node in nodes
        if isinstance(node, DestinationNode) and (names := shared.pop(target_of(node), None))
    ]


def _destinations_of_one_document(nodes: Sequence[Node]) -> set[tuple[str, str]]:
    """Return the pairs of destinations that one document reaches both: a tee and one downstream of it, or copies."""
    following, reached = successors(nodes), ends(nodes)
    reached_pairs: set[tuple[str, str]] = set()
    for node in nodes:
        below = [list(dict.fromkeys(e.destination for e in reached[n.name])) for n in following[node.name]]
        if isinstance(node, RouterNode) and node.router.copies:
            pairs = list(combinations(below, 2))
        elif isinstance(node, DestinationNode):
            pairs = [([node.name], each) for each in below]
        else:
            continue
        for left, right in pairs:
            reached_pairs |= {(min(a, b), max(a, b)) for a in left for b in right}
    return reached_pairs


# --- steps that remember: what they are must be something that can be remembered ---

_REFUSED: Final = {
    "extract_text": "changes the content of documents",
    "fetch_url": "changes the content of documents",
    "split_text": "makes children",
    "unpack": "makes children",
}
"""Ready-made step -> what it does that cannot be remembered."""


def _remember_findings(node: StepNode) -> Iterator[str]:
    """Yield the reasons why a step cannot remember."""
    remember = node.remember
    if remember is None:
        return
    if not isinstance(remember, Remember):
        yield f"{node.name}: remember={remember!r}: give a Remember(version, ...)."
        return
    for why in remember.findings():
        yield f"{node.name}: remember: {why}"
    made = node.fn if isinstance(node.fn, type) else type(node.fn)
    if made.__module__.startswith("ferryman.steps.") and (does := _REFUSED.get(made.__name__)):
        yield (
            f"{node.name}: {made.__name__} {does}, and only fields are remembered: leave out remember=, and let the "
            "step after it remember."
        )
    elif inspect.isgeneratorfunction(node.fn):
        yield (
            f"{node.name}: its function is a generator, which makes children, and only fields are remembered: make "
            "children in a step before it."
        )


def _shared_name_findings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a finding for each name under which two steps of a plan would share answers although they read or write
    other fields."""
    seen: dict[tuple[str, str], StepNode] = {}
    for node in nodes:
        if not isinstance(node, StepNode) or not isinstance(node.remember, Remember):
            continue
        remember = node.remember
        other = seen.setdefault((remember.name or node.name, remember.version), node)
        assert other.remember is not None
        if (other.remember.reads, other.remember.writes) != (remember.reads, remember.writes):
            yield (
                f"{node.name}: remembers under the name and version of {other.name}, but reads or writes other fields: "
                "give it another name= or version=."
            )
