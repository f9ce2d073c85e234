"""Checks of the inputs of joins, alts and strategies: logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

from ferryman.plan.calls import concurrent_step_findings
from ferryman.plan.nodes import AltsNode, JoinNode, KeyedNode, Node, SourceNode
from ferryman.sources.base import Source
from ferryman.sources.log import CombinedLog, Log, feed_name

Strategy = Literal["at-most-once"]


def strategy_findings(strategy: object, checkpoint: object, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield the reasons why a plan with these nodes cannot have this strategy."""
    if not isinstance(checkpoint, int) or checkpoint < 1:
        yield f"checkpoint={checkpoint!r}: give how many entries may be in doubt after a kill, from 1."
    if strategy is None:
        if checkpoint != 1:
            yield f"checkpoint={checkpoint!r}: it goes with strategy='at-most-once'."
        return
    if strategy not in get_args(Strategy):
        yield f"strategy={strategy!r}: give {' or '.join(map(repr, get_args(Strategy)))}, or leave it out."
        return
    yield from concurrent_step_findings(nodes, strategy)
    for node in nodes:
        if isinstance(node, KeyedNode):
            yield (
                f"{node.name}: a keyed node calls `update` again where a kill came between, so a plan with "
                f"strategy={strategy!r} cannot have one: let it write to a queue, and keep the state in another plan."
            )
        elif isinstance(node, JoinNode) and _has_filters(node.source):
            yield (
                f"{node.name}: an input has a filter, so which messages it joins shows only when they are read, and "
                f"strategy={strategy!r} has to know it before: filter in a plan of its own that writes to a queue."
            )
        elif isinstance(node, SourceNode) and not isinstance(node.source, Log):
            yield (
                f"{node.name}: strategy={strategy!r} takes only sources that are read by position, such as "
                f"sources.Queue, and {type(node.source).__name__} is not. Leave the strategy out: at most once is then "
                'a destination\'s guarantee="at-most-once".'
            )
        elif isinstance(node, SourceNode) and isinstance(node.source, Log) and node.source.repeats_ids:
            yield (
                f"{node.name}: a change that was lost would leave the key as it was: read "
                f"{type(node.source).__name__} in a plan without strategy={strategy!r}."
            )


def feed_findings(key: str, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield a finding for each source of a plan (``name-vVERSION``) that reads the changes of the plan's own states."""
    for node in nodes:
        if (
            isinstance(node, SourceNode)
            and isinstance(node.source, Source)
            and node.source.reads() in _own_feeds(key, nodes)
        ):
            yield (
                f"{node.name}: reads the changes of a state that this plan keeps. Put what is to follow them after "
                "the keyed node, which exports them, or into a plan of its own."
            )


def _own_feeds(key: str, nodes: Iterable[Node]) -> set[str]:
    return {feed_name(key, node.name) for node in nodes if isinstance(node, KeyedNode)}


def input_findings(node: JoinNode | AltsNode, nodes_by_name: Mapping[str, Node]) -> list[str]:
    """Return the faults of a node's inputs."""
    findings = []
    names_by_log: dict[tuple[str, str], str] = {}
    if len(node.after) < 2:
        findings.append(f"{node.name}: has {len(node.after)} inputs: give two or more.")
    for name in node.after:
        source = nodes_by_name.get(name)
        if not isinstance(source, SourceNode) or not isinstance(source.source, Log) or source.after:
            findings.append(f"{node.name}: its input {name} is not a log: give sources such as sources.Queue.")
        elif source.source.repeats_ids:
            findings.append(
                f"{node.name}: its input {name} has deletions in it, which cannot be joined with anything: read "
                f"{type(source.source).__name__} in a plan of its own that writes to a queue."
            )
        elif (place := source.source.place()) is not None:
            other = names_by_log.setdefault((place, source.source.prefix), name)
            if other != name:
                findings.append(
                    f"{node.name}: its inputs {other} and {name} read the same log, so their entries have the same "
                    "ids: give one of them another prefix=."
                )
    return findings


def _has_filters(joined: Source) -> bool:
    inputs = joined.inputs.values() if isinstance(joined, CombinedLog) else ()
    return any(log.filters for log in inputs if isinstance(log, Log))  # other inputs are refused by input_findings
