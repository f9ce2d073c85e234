"""How far a plan has read its logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ferryman.plan import Plan, SourceNode, logs_read
from ferryman.sources.combined import CombinedLog
from ferryman.sources.log import Log, Positions
from ferryman.state.log_positions import LogPositions, stands_at
from ferryman.state.state import State


def log_counts(state: State | None, plan: Plan) -> dict[str, dict[str, Any]]:
    """Of each log: ``positions`` (partition -> the place that comes next), ``read`` (entries processed) and ``lag``
    (places that are not processed yet; None: the log cannot be asked, or is not where it was).

    Args:
        state: None: the plan has never run.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in logs_read(plan.nodes):
        assert isinstance(node.source, Log)
        found[node.name] = counts = _counts(None if state is None else LogPositions(state, node.name), node.source)
        if isinstance(node.source, CombinedLog):
            found |= dict(zip(node.after, _inputs(node.source, counts["positions"]), strict=True))
    return found


def combined_counts(plan: Plan, sources: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Of each join and alts, how many entries of its inputs came to it.

    Args:
        sources: as ``log_counts`` has them.
    """
    nodes = [n for n in plan.nodes if isinstance(n, SourceNode) and isinstance(n.source, CombinedLog)]
    return {n.name: sum(sources[name]["read"] for name in n.after) for n in nodes}


class _Found(NamedTuple):
    """What a log says of itself."""

    identities: Mapping[str, str]
    begin: Positions
    end: Positions
    nothing: str


def _inputs(log: CombinedLog, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name, each in log.inputs.items():
        found = _ask(each)
        if found is None:
            yield {"positions": {}, "read": 0, "lag": None}
            continue
        mine = log.positions_of(name, positions)
        read = sum(at - found.begin.get(partition, at) for partition, at in mine.items())
        missing = not mine or (read and found.nothing)
        yield {"positions": mine, "read": read, "lag": None if missing else each.lag(mine, found.end)}


def _counts(kept: LogPositions | None, log: Log) -> dict[str, Any]:
    read, found = 0 if kept is None else kept.read, _ask(log)
    if found is None or (read and found.nothing and not isinstance(log, CombinedLog)):
        return {"positions": {} if kept is None else kept.every(), "read": read, "lag": None}
    positions = stands_at(kept, log, found.identities, found.begin, found.end)
    return {"positions": positions, "read": read, "lag": log.lag(positions, found.end)}


def _ask(log: Log) -> _Found | None:
    """None: it does not say. Who counts need not reach what a run reads, and a run says what is wrong."""
    try:
        log.check()
        return _Found(log.identities(), log.begin(), log.end(), log.nothing())
    except Exception:
        return None
