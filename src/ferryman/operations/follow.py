"""What became of a document on its way through the plans of a flow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ferryman import account
from ferryman.plan import Flow, JoinNode, Plan, SourceNode
from ferryman.plan.flow import Joint
from ferryman.records.statuses import Status
from ferryman.sources.log import Log
from ferryman.state.identity import IDENTITY
from ferryman.storage.files import StatePath, exists


def follow(flow: Flow, roots: Mapping[str, StatePath], document: str) -> list[dict[str, Any]]:
    """Every event of a document in the plans that know it, and of the messages that were made of it, in the plans
    behind those. Rows as of ``account.history``, with ``plan``; plan by plan, oldest first.

    Args:
        roots: label of a plan -> its state; it need not exist.
    """
    plans = {flow.label(plan): plan for plan in flow.order}
    waiting = [(label, document) for label in plans]
    seen: set[tuple[str, str]] = set()
    events: list[dict[str, Any]] = []
    for label, id in waiting:  # which grows meanwhile
        if (label, id) in seen or not exists(roots[label] / IDENTITY):
            continue
        seen.add((label, id))
        found = account.history(roots[label], id, plans[label])
        events += [{"plan": label, **event} for event in found]
        for joint in flow.joints:
            if joint.writer == label and (hashes := _arrived(found, joint.destination)):
                reader = plans[joint.reader]
                waiting += [(joint.reader, made) for made in _made(reader, roots[joint.reader], joint, hashes)]
    return events


def _arrived(events: list[dict[str, Any]], destination: str) -> set[str]:
    """Hashes of the deliveries that came to it."""
    return {e["delivery_hash"] for e in events if e["destination"] == destination and e["status"] == Status.INDEXED}


def _made(reader: Plan, root: StatePath, joint: Joint, hashes: Collection[str]) -> Iterator[str]:
    """Ids by which a plan knows what these deliveries have made."""
    [source] = (n.source for n in reader.nodes if isinstance(n, SourceNode) and n.name == joint.source)
    if not isinstance(source, Log):
        return
    join = next((n for n in reader.nodes if isinstance(n, JoinNode) and joint.source in n.after), None)
    for id in source.entries_of(hashes):
        if join is None:
            yield id
        elif exists(root / IDENTITY):
            yield from account.joined_of(root, join.name, id, reader)
