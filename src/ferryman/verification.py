"""Verification: whether everything that was delivered is at its destinations, and its repair.

The ledger says what each destination was given; the destination's inventory says what is there. A difference counts
only if a second look, at a newer ledger, finds it again: beside a running driver something is always on its way.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.account.comparison import Comparison, ComparisonCounts, Difference
from ferryman.account.queries import open_view, retry_read
from ferryman.destinations.base import Destination
from ferryman.destinations.stored import Stored, slices
from ferryman.document import Operation
from ferryman.engine.deliver.sending import context_of
from ferryman.errors import DeliveryError, StateDamaged, Unavailable, UsageError, message_of
from ferryman.operations import Retried, existing_state, submit_command
from ferryman.plan import DestinationNode, Plan, keyed_nodes
from ferryman.plan.keyed import read_once_sources
from ferryman.plan.paths import target_of
from ferryman.records.rows import hasher
from ferryman.state.commands import REPAIR, Command, ExtraRecord, current_user
from ferryman.state.state import sender_of
from ferryman.state.targets import PastVerification, VerifiedDestination, load_verified, save_verified
from ferryman.storage.files import StatePath, explain_errors_of_state

_BY_ID: Final = 50_000
"""Differences up to which the second look asks for their documents only."""

_REVISIONS: Final = 100
"""Revisions for which the hash of an unknown record is computed: those of a keyed node's exports go into millions."""

_IDS: Final = 10_000
"""Ids that a destination is asked for at once."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result for one target: a place that one or several nodes of the plan write to.

    Attributes:
        destinations: names of these nodes.
        target: the place, without secrets.
        counts: what was compared and found; None: nothing could be compared.
        why: why nothing could be compared; else "".
        is_away: nothing could be compared now, but perhaps later.
        wave: last wave that was committed before.
        identity: identity of the target.
        sampled: whether only a part was compared.
        forgets: the destination has removed old deliveries by itself, so that what is missing may be one of those.
        differences: the first ones, at most ``limits.DIFFERENCES``.
        extra: the extra records among them.
    """

    destinations: tuple[str, ...]
    target: str
    counts: ComparisonCounts | None = None
    why: str = ""
    is_away: bool = False
    wave: int = 0
    identity: str | None = None
    sampled: bool = False
    forgets: bool = False
    differences: list[Difference] = field(default_factory=list)
    extra: list[ExtraRecord] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Return whether it was compared, and everything is there."""
        return self.counts is not None and not self.differing

    @property
    def differing(self) -> int:
        """Return the number of differences that show a loss or a change."""
        if self.counts is None:
            return 0
        return (0 if self.forgets else self.counts.missing) + self.counts.changed + self.counts.extra


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
    results = [_verify_target(root, plan, nodes, sample, since) for nodes in _targets(plan, destination)]
    _record(root, results)
    done = Verification(results)
    if repair:
        _repair(root, plan, done, why)
    if delete_extra:
        _delete_extra(root, plan, done, why, allow_deletes=allow_deletes)
    return done


def _targets(plan: Plan, destination: str | None) -> list[list[DestinationNode]]:
    """Return the nodes that write to each place."""
    by_target: dict[str, list[DestinationNode]] = {}
    for node in plan.nodes:
        if isinstance(node, DestinationNode):
            by_target.setdefault(target_of(node), []).append(node)
    if destination is None:
        return list(by_target.values())
    found = [nodes for nodes in by_target.values() if destination in {node.name for node in nodes}]
    if not found:
        names = ", ".join(sorted(node.name for nodes in by_target.values() for node in nodes))
        raise UsageError(f"destination {destination!r}: plan {plan.name} has {names}; name one of these.")
    return found


def _verify_target(
    root: StatePath, plan: Plan, nodes: Sequence[DestinationNode], sample: int | None, since: int
) -> Verified:
    names, target = tuple(node.name for node in nodes), target_of(nodes[0])
    destination = nodes[0].destination
    if type(destination).inventory is Destination.inventory:
        return Verified(names, target, why=f"{type(destination).__name__} cannot read back what it has sent")
    look = TargetLook(root, plan, nodes)
    try:
        return retry_read(root, lambda: look.verify(sample, since))
    except NotImplementedError:
        return Verified(names, target, why="it cannot read back what it has sent")
    except DeliveryError as e:
        return Verified(names, target, why=str(e), is_away=True)


class TargetLook:
    """Compares the deliveries to one target with its inventory.

    Args:
        nodes: the plan's nodes that write there.
    """

    def __init__(self, root: StatePath, plan: Plan, nodes: Sequence[DestinationNode]) -> None:
        self._root = root
        self._plan = plan
        self._nodes = nodes
        self._destination = nodes[0].destination
        self._sender = sender_of(root)
        self._context = context_of(plan, nodes[0], 0, self._sender)
        self._names = [node.name for node in nodes]
        self.unknown: dict[str, ExtraRecord] = {}
        """Hash -> record that the ledger does not have, although the plan wrote it."""

    def verify(self, sample: int | None, since: int) -> Verified:
        """Compare, and confirm what differs by a second look."""
        partly = sample is not None or since > 0
        identity = self._identity()  # before the look: one that is recreated meanwhile is not verified
        seed = int.from_bytes(os.urandom(4))
        with open_view(self._root, self._plan) as view:
            comparison = Comparison(view, self._names, keyed=self._destination.keyed_by_id)
            comparison.expect(since)
            if sample is not None:
                ids: list[str] | None = comparison.draw_sample(sample, seed)
            else:
                ids = comparison.expected_ids() if since else None
            self._compare(comparison, ids, extra=not partly)
            counts, found, wave = comparison.counts(), comparison.differences(limits.DIFFERENCES), view.wave
        if found.num_rows:
            counts, found = self._look_again(counts, found, since, extra=not partly)
        differences = [Difference(**row) for row in found.to_pylist()]
        return Verified(
            tuple(self._names),
            target_of(self._nodes[0]),
            counts,
            wave=wave,
            identity=identity or None,
            sampled=partly,
            forgets=self._destination.forgets(self._context),
            differences=differences,
            extra=[
                self.unknown.get(each.hash) or ExtraRecord(each.document, each.destination)
                for each in differences
                if each.kind == "extra"
            ],
        )

    def _look_again(
        self, counts: ComparisonCounts, found: pa.Table, since: int, *, extra: bool
    ) -> tuple[ComparisonCounts, pa.Table]:
        """Return the counts and differences of a first look without those that a second one does not find."""
        ids = sorted(set(found["document"].to_pylist())) if found.num_rows <= _BY_ID else None
        with open_view(self._root, self._plan) as view:
            comparison = Comparison(view, self._names, keyed=self._destination.keyed_by_id)
            comparison.expect(since)
            if ids is not None:
                comparison.restrict(ids)
            self._compare(comparison, ids, extra=extra)
            comparison.keep_repeated(found)
            again = comparison.counts()
            repeated = comparison.differences(limits.DIFFERENCES)
        return counts._replace(missing=again.missing, changed=again.changed, extra=again.extra), repeated

    def _compare(self, comparison: Comparison, ids: list[str] | None, *, extra: bool) -> None:
        comparison.load(self._inventory(ids))
        highest = comparison.highest_revision()
        self.unknown = self._written_by_plan(comparison.unknown_records(), highest)
        of_plan = {digest: record.destination for digest, record in self.unknown.items()}
        comparison.differ(of_plan, extra=extra)

    def _identity(self) -> str | None:
        with self._foreign_errors():
            return self._destination.identity()

    def _inventory(self, ids: list[str] | None) -> Iterator[Stored]:
        with self._foreign_errors():
            for some in (None,) if ids is None else slices(ids, _IDS):
                yield from self._destination.inventory(self._context, some)

    @contextmanager
    def _foreign_errors(self) -> Iterator[None]:
        """Convert errors of the destination's code, which would be taken for errors of the state, or hide the other
        targets."""
        try:
            yield
        except (DeliveryError, NotImplementedError, MemoryError):
            raise
        except Exception as e:
            raise Unavailable(f"{target_of(self._nodes[0])}: {message_of(e)}") from e

    def _written_by_plan(self, records: Iterable[dict[str, Any]], highest_revision: int) -> dict[str, ExtraRecord]:
        """Return hash -> record, for those records that a state of this plan wrote: a delivery's hash is made of plan,
        destination and document, so it proves where it comes from."""
        found = {}
        for each in records:
            if each["source"] and (record := self._recognize(each, highest_revision)) is not None:
                found[each["hash"]] = record
        return found

    def _recognize(self, record: dict[str, Any], highest_revision: int) -> ExtraRecord | None:
        id, source, version, route = (record[name] for name in ("id", "source", "version", "route"))
        operations: tuple[Operation, ...] = ("upsert",) if self._destination.keyed_by_id else ("upsert", "delete")
        for plan_version, name, operation in product(
            {self._plan.version, self._sender.version}, self._names, operations
        ):
            hash_of = hasher(self._plan.name, plan_version, source, name, route, operation)
            for revision in range(1, min(highest_revision + 1, _REVISIONS) + 1):
                if hash_of(id, version, revision) == record["hash"]:
                    return ExtraRecord(id, name, source, version, revision, route)
        return None


# What was verified when, for ``status`` and for the next run.


def _record(root: StatePath, results: Sequence[Verified]) -> None:
    """Record the results. One of two verifications at the same time may be forgotten."""
    try:
        verified = load_verified(root)
    except StateDamaged:
        verified = {}  # the results are a convenience: the next verification makes them again
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    for each in results:
        if each.counts is None:
            continue
        this = PastVerification(each.wave, at, each.counts.expected, each.differing)
        for name in each.destinations:
            kept = verified.setdefault(name, VerifiedDestination())
            if each.differing:
                kept.failed = this
            elif not each.sampled and not each.counts.in_flight:
                kept.clean, kept.target = this, each.identity
    save_verified(root, verified)


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
