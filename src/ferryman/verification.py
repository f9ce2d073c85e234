"""Verification: whether everything that was delivered is at its destinations, and its repair.

``engine.target_look`` compares one target with the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ferryman import crash, limits
from ferryman.account.comparison import Difference
from ferryman.destinations.base import Destination, DestinationContext, slices
from ferryman.engine.deliver.sending import context_of
from ferryman.engine.target_look import TargetLook, Verified, known_targets, look_at_target, record_results
from ferryman.errors import DeliveryError, UsageError
from ferryman.operations import Retried, existing_state, submit_command
from ferryman.plan import DestinationNode, Plan, keyed_nodes, nodes_by_target, read_once_sources, target_of
from ferryman.state.commands import ADOPT, REPAIR, Command, current_user
from ferryman.state.state import State, sender_of
from ferryman.state.targets import settle_targets
from ferryman.storage.files import StatePath, explain_errors_of_state


@dataclass(slots=True)
class Verification:
    """Result of ``verify``.

    Attributes:
        targets: one result for each target.
        repaired: deliveries, deletes among them, that a repair has made due.
        queued: whether a repair is queued, because a run holds the state: the next wave applies it.
        unrepairable: (difference, why it cannot be repaired).
    """

    targets: list[Verified]
    repaired: int = 0
    queued: bool = False
    unrepairable: list[tuple[Difference, str]] = field(default_factory=list)

    def add(self, done: Retried) -> None:
        """Add the result of a command."""
        self.queued |= done.queued
        self.repaired += done.count or 0

    @property
    def exit(self) -> int:
        """Return the exit code: 0 all that can be read is there, 3 something differs, 4 something could not be read, or
        nothing can."""
        if any(each.differing for each in self.targets):
            return 3
        if any(each.is_away for each in self.targets) or not any(each.is_clean for each in self.targets):
            return 4
        return 0


@explain_errors_of_state
def verify(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    destination: str | None = None,
    sample: int | None = None,
    since: int = 0,
    repair: bool = False,
    delete_extra: bool = False,
    allow_deletes: bool = False,
    why: str = "",
) -> Verification:
    """Compare what the destinations hold with what was delivered to them.

    Args:
        destination: only the place that this node writes to.
        sample: compare so many documents, drawn at random, instead of all. Does not find what is extra.
        since: compare only documents that were delivered in this wave or later. Does not find what is extra.
        repair: make the deliveries that are missing or changed due again; the next run sends them.
        delete_extra: delete what should not be there; the next run sends the deletes, after everything that is missing.
        allow_deletes: also if that is more than half of what a destination holds.
        why: stored in the ledger with the repair.

    Raises:
        UsageError: there is no state yet, no such destination, or a number below 1; too much would be deleted.
    """
    plan.freeze()
    root = existing_state(plan, state, "verify")
    if sample is not None and sample < 1:
        raise UsageError(f"sample={sample}: give 1 or more.")
    known = known_targets(root)  # what is noticed later is not settled
    results = [look_at_target(root, plan, nodes, sample, since) for nodes in _targets(plan, destination)]
    record_results(root, results, known)
    done = Verification(results)
    if repair:
        _repair(root, plan, done, why)
    if delete_extra:
        _delete_extra(root, plan, done, why, allow_deletes=allow_deletes)
    return done


@explain_errors_of_state
def adopt(plan: Plan, *, state: str | StatePath | None = None, why: str = "") -> Verification:
    """Go on from a state that was put back from an older copy, or with targets that were.

    1. targets that tell repeated deliveries by their sequences are told that the copy may send some again
    2. everything that is sent from now on, also what is pending, gets higher sequences than what the targets have
    3. all targets are compared with the ledger, and what differs is made due again, see ``verify``
    4. the targets that were compared count as settled: what differed is pending

    It may be repeated.

    Args:
        why: stored in the ledger with the repair.

    Raises:
        UsageError: there is no state yet.
        DeliveryError: a target does not say what it has. Nothing was changed, or only step 1.
    """
    plan.freeze()
    root = existing_state(plan, state, "adopt")
    nodes = [node for node in plan.nodes if isinstance(node, DestinationNode)]
    unsent, sender, above = _lowest_unsent(root, plan), sender_of(root), 0
    by_target = nodes_by_target(plan.nodes)
    for node in nodes:
        context = context_of(plan, node, 0, sender)
        highest = _highest_sent(node.destination, context)
        if highest >= unsent[node.name]:
            look = TargetLook(root, plan, by_target[target_of(node)])
            node.destination.adopt(context, unsent[node.name], look.undelivered)  # 1
            crash.point("adopt.accepted")
        above = max(above, highest)
    done = submit_command(plan, root.parent, Command(ADOPT, current_user(), why, above=above))  # 2
    reason = f"{ADOPT}: {why}" if why else ADOPT
    verification = verify(plan, state=state, repair=True, why=reason)  # 3
    verification.queued |= done.queued
    compared = {name for each in verification.targets if each.counts is not None for name in each.destinations}
    settle_targets(root, dict.fromkeys(compared | _unreadable(nodes)))  # 4
    return verification


def _lowest_unsent(root: StatePath, plan: Plan) -> dict[str, int]:
    """Return destination -> the lowest sequence that a state has not sent, as far as it knows."""
    state = State(root, plan)
    with state.readers.reading():
        state.open_for_reading()
        found = {node.name: state.next_sequence for node in plan.nodes}
        for file in state.outbox.files.values():
            name, first = file.partition["destination"], int(file.partition["first_sequence"])
            found[name] = min(first, found.get(name, first))
    return found


def _highest_sent(destination: Destination, context: DestinationContext) -> int:
    """Return the highest sequence that a target has of a state, or else of anybody; 0 if it cannot tell.

    Raises:
        DeliveryError: it does not answer.
    """
    try:
        found = [destination.highest_of(context), destination.highest_sequence()]
    except (DeliveryError, UsageError):
        if destination.identity() == "":
            return 0  # there is no target
        raise
    return max((each for each in found if isinstance(each, int)), default=0)


def _unreadable(nodes: Sequence[DestinationNode]) -> set[str]:
    """Return the destinations that cannot be compared at all."""
    return {node.name for node in nodes if type(node.destination).inventory is Destination.inventory}


def _targets(plan: Plan, destination: str | None) -> list[list[DestinationNode]]:
    """Return the nodes that write to each place."""
    by_target = nodes_by_target(plan.nodes)
    if destination is None:
        return list(by_target.values())
    found = [nodes for nodes in by_target.values() if destination in {node.name for node in nodes}]
    if not found:
        names = ", ".join(sorted(node.name for nodes in by_target.values() for node in nodes))
        raise UsageError(f"destination {destination!r}: plan {plan.name} has {names}; name one of these.")
    return found


# Repair: what is missing or was changed becomes due again, as if a step had failed for it.


def _repair(root: StatePath, plan: Plan, verification: Verification, why: str) -> None:
    exports, once = {node.name for node in keyed_nodes(plan.nodes)}, read_once_sources(plan.nodes)
    for result in verification.targets:
        hashes = []
        for difference in result.differences:
            if difference.kind == "extra" or (difference.kind == "missing" and result.forgets):
                continue
            if difference.source in exports | once:
                reason = "a keyed node has counted what it was made from, and reads it only once"
                verification.unrepairable.append((difference, reason))
            elif difference.kind == "changed" and not _destination(plan, result).keyed_by_id:
                reason = "nothing is replaced there: remove the record, then verify again"
                verification.unrepairable.append((difference, reason))
            else:
                hashes.append(difference.hash)
        above = _highest_sequence(_destination(plan, result)) if hashes else 0
        for some in slices(hashes, limits.COMMAND_DELIVERIES):
            command = Command(REPAIR, current_user(), why, deliveries=frozenset(some), above=above)
            verification.add(submit_command(plan, root.parent, command))


def _delete_extra(root: StatePath, plan: Plan, verification: Verification, why: str, *, allow_deletes: bool) -> None:
    kept = [result for result in verification.targets if not _destination(plan, result).keyed_by_id]
    reason = "nothing is removed there by a delete: remove the record yourself"
    extra = (each for result in kept for each in result.differences if each.kind == "extra")
    verification.unrepairable += [(each, reason) for each in extra]
    targets = [result for result in verification.targets if result not in kept]
    for result in targets:
        if result.extra and result.counts is not None and not allow_deletes:
            counts = result.counts
            if counts.extra > limits.MAX_DELETED * (counts.expected + counts.extra):
                raise UsageError(
                    f"{result.target}: {counts.extra} of what it holds would be deleted, more than half of it. Nothing "
                    "was deleted. Look at what they are; --allow-deletes does it."
                )
    for result in targets:
        above = _highest_sequence(_destination(plan, result)) if result.extra else 0
        for start in range(0, len(result.extra), limits.COMMAND_DELIVERIES):
            some = tuple(result.extra[start : start + limits.COMMAND_DELIVERIES])
            command = Command("verify --delete-extra", current_user(), why, extra=some, above=above)
            verification.add(submit_command(plan, root.parent, command))


def _destination(plan: Plan, result: Verified) -> Destination:
    [node] = (n for n in plan.nodes if n.name == result.destinations[0])
    assert isinstance(node, DestinationNode)
    return node.destination


def _highest_sequence(destination: Destination) -> int:
    """Return the highest sequence that a destination has; 0: none, or there is no target, or somebody made it text."""
    try:
        highest = destination.highest_sequence()
    except (DeliveryError, UsageError):
        return 0
    return highest if isinstance(highest, int) else 0
