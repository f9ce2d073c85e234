"""Look at one target: compares what it holds with what the ledger has as delivered to it.

A difference counts only if a second look, at a newer ledger, finds it again: beside a running driver something is
always on its way.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from ferryman import limits
from ferryman.account.comparison import STORED, Comparison, ComparisonCounts, Difference, inventory_batches
from ferryman.account.queries import explain_query_errors, query_view
from ferryman.account.relations import View
from ferryman.destinations.base import Destination, Stored, slices
from ferryman.document import Operation
from ferryman.engine.deliver.sending import context_of
from ferryman.errors import DeliveryError, StateDamaged, Unavailable, message_of
from ferryman.plan import DestinationNode, Plan
from ferryman.plan.paths import nodes_by_target, target_of
from ferryman.records.rows import hasher
from ferryman.state.commands import ExtraRecord
from ferryman.state.state import State, sender_of
from ferryman.state.targets import (
    PastVerification,
    Target,
    VerifiedDestination,
    load_targets,
    load_verified,
    save_verified,
)
from ferryman.storage.files import StatePath
from ferryman.storage.query import spool

_BY_ID: Final = 50_000
"""Differences up to which the second look asks for their documents only."""

_REVISIONS: Final = 100
"""Revisions for which the hash of an unknown record is computed: those of a keyed node's exports go into millions."""

_IDS: Final = 10_000
"""Ids that a destination is asked for at once."""

_T = TypeVar("_T")


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


def look_at_target(
    root: StatePath, plan: Plan, nodes: Sequence[DestinationNode], sample: int | None = None, since: int = 0
) -> Verified:
    """Compare what one target holds with what was delivered to it, see ``verification.verify``.

    Args:
        nodes: the plan's nodes that write there.
    """
    names, target = tuple(node.name for node in nodes), target_of(nodes[0])
    destination = nodes[0].destination
    if type(destination).inventory is Destination.inventory:
        return Verified(names, target, why=f"{type(destination).__name__} cannot read back what it has sent")
    try:
        return TargetLook(root, plan, nodes).verify(sample, since)
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
        keyed = self._destination.keyed_by_id
        self._expected: dict[str, Any] = {"keyed": keyed, "after": 0 if keyed else _emptied_after(root, self._names)}
        self.unknown: dict[str, ExtraRecord] = {}
        """Hash -> record that the ledger does not have, although the plan wrote it."""

    def verify(self, sample: int | None, since: int) -> Verified:
        """Compare, and confirm what differs by a second look."""
        partly = sample is not None or since > 0
        identity = self._identity()  # before the look: one that is recreated meanwhile is not verified
        ids = self._choose(sample, since) if partly else None
        differences: list[Difference] = []
        with tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as scratch:
            earlier = os.path.join(scratch, "found.parquet")

            def first(comparison: Comparison, wave: int) -> tuple[ComparisonCounts, int, list[str] | None]:
                if not comparison.differs:
                    return comparison.counts(), wave, []
                comparison.save(earlier)
                return comparison.counts(), wave, comparison.differing_ids(_BY_ID)

            def second(comparison: Comparison, _wave: int) -> tuple[ComparisonCounts, list[Difference]]:
                if not comparison.differs:
                    return comparison.counts(), []
                comparison.keep_repeated(earlier)
                return comparison.counts(), comparison.differences(limits.DIFFERENCES)

            counts, wave, differing = self._compare(ids, first, extra=not partly)
            if counts.missing or counts.changed or counts.extra:
                again, differences = self._compare(ids if differing is None else differing, second, extra=not partly)
                counts = counts._replace(missing=again.missing, changed=again.changed, extra=again.extra)
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

    def _choose(self, sample: int | None, since: int) -> list[str]:
        """Return the ids of the documents to compare, see ``verification.verify``."""
        seed = int.from_bytes(os.urandom(4))

        def choose(view: View) -> list[str]:
            comparison = Comparison(view, self._names, **self._expected)
            comparison.expect(since)
            return comparison.expected_ids() if sample is None else comparison.draw_sample(sample, seed)

        return query_view(self._root, self._plan, choose)

    def _compare(
        self, ids: Collection[str] | None, result: Callable[[Comparison, int], _T], *, extra: bool = True
    ) -> _T:
        """Compare, and return a result of the comparison and the last wave that was committed.

        1. the inventory is read and stored: that may take longer than a driver keeps the files that it replaces
        2. only then the ledger is read, again if a driver has replaced its files meanwhile: whatever the inventory has
           of this state is in it, perhaps as in flight, and what was delivered since is missing in this look only
        """
        with self._stored({node.name: self._inventory(node, ids) for node in self._judges()}) as stored:  # 1

            def compare(view: View) -> _T:
                comparison = Comparison(view, self._names, ids=ids, **self._expected)
                comparison.expect()
                first, *others = stored
                comparison.load(stored[first])
                for name in others:
                    comparison.judge(name, stored[name])
                comparison.pair()
                if comparison.differs:
                    highest = comparison.highest_revision()
                    self.unknown = self._written_by_plan(comparison.unknown_records(), highest)
                    of_plan = {digest: record.destination for digest, record in self.unknown.items()}
                    comparison.differ(of_plan, extra=extra)
                return result(comparison, view.wave)

            return query_view(self._root, self._plan, compare)  # 2

    def _judges(self) -> Iterator[DestinationNode]:
        """Yield the first node, and the others that know something else of what they wrote: other columns, say."""
        yield self._nodes[0]
        settings = _settings(self._destination)
        yield from (node for node in self._nodes[1:] if _settings(node.destination) != settings)

    @contextmanager
    def _stored(self, parts: Mapping[str, Iterable[Iterable[Stored]]]) -> Iterator[dict[str, Path | pa.Table]]:
        """Read and store inventories, each given by its parts, for queries."""
        with tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch)
            with explain_query_errors(State(self._root, self._plan), folder):
                stored = {
                    name: spool(folder / f"{n}.parquet", STORED, self._batches(inventory))
                    for n, (name, inventory) in enumerate(parts.items())
                }
            yield stored

    def _batches(self, parts: Iterable[Iterable[Stored]]) -> Iterator[pa.RecordBatch]:
        with self._foreign_errors():
            for part in parts:
                yield from inventory_batches(part)

    def _identity(self) -> str | None:
        with self._foreign_errors():
            return self._destination.identity()

    def _inventory(self, node: DestinationNode, ids: Collection[str] | None) -> Iterator[Iterable[Stored]]:
        context = context_of(self._plan, node, 0, self._sender)
        for some in (None,) if ids is None else slices(ids, _IDS):
            yield node.destination.inventory(context, some)

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

    def undelivered(self) -> frozenset[str]:
        """Return the hashes of what the target holds and the ledger does not have as delivered."""
        [node] = self._nodes[:1]
        with self._stored({node.name: self._inventory(node, None)}) as stored:

            def undelivered(view: View) -> frozenset[str]:
                comparison = Comparison(view, self._names, **self._expected)
                comparison.load(stored[node.name])
                return frozenset(comparison.undelivered_hashes())

            return query_view(self._root, self._plan, undelivered)

    def is_older(self, ids: Collection[str]) -> bool:
        """Return whether the target lacks one of the documents with these ids, has an earlier delivery of it, or has
        one that was deleted."""
        return self._compare(ids, lambda comparison, _wave: comparison.differs and comparison.count_older() > 0)

    def has_unknown(self, records: Iterable[Stored]) -> bool:
        """Return whether this plan wrote one of these records, and the ledger does not have it."""
        with self._stored({"": [records]}) as stored:

            def has_unknown(view: View) -> bool:
                comparison = Comparison(view, self._names, **self._expected)
                comparison.load(stored[""])
                return bool(self._written_by_plan(comparison.unknown_records("stored"), _REVISIONS))

            return query_view(self._root, self._plan, has_unknown)

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


def _emptied_after(root: StatePath, names: Sequence[str]) -> int:
    """Return the wave after which an operator has accepted that a log begins again; 0: it never did."""
    try:
        verified = load_verified(root)
    except StateDamaged:  # ``fsck`` names the file
        return 0
    return max((verified[name].begins_after for name in names if name in verified), default=0)


def _settings(destination: Destination) -> dict[str, Any]:
    """Return the attributes that a destination was made with."""
    return {name: value for name, value in vars(destination).items() if not name.startswith("_")}


# What was verified when, for ``status`` and for the next run.


def known_targets(root: StatePath) -> dict[str, Target]:
    """Return destination -> its target, as far as that can be read."""
    try:
        return load_targets(root)
    except StateDamaged:
        return {}  # ``fsck`` names the file


def record_results(root: StatePath, results: Sequence[Verified], known: Mapping[str, Target]) -> None:
    """Record the results. One of two verifications at the same time may be forgotten.

    Args:
        known: destination -> its target as the state knew it before it was compared.
    """
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
            kept, target = verified.setdefault(name, VerifiedDestination()), known.get(name, Target())
            if each.differing:
                kept.failed = this
                if not each.sampled:
                    kept.highest = target.highest or kept.highest
            elif not each.sampled and not each.counts.in_flight:
                kept.clean, kept.target, kept.settled = this, each.identity, target.noticed or kept.settled
            elif each.sampled:
                kept.sampled = this
    save_verified(root, verified)


# Samples that an endless run verifies by itself.


class SampleVerification:
    """Verifies a random sample of each target now and then, in the driver, between waves.

    It takes at most a hundredth of the time. Left out are targets that keep a record of each delivery: to find some of
    them, all would have to be read.

    Args:
        size: number of documents of each target; 0: none.
        report: called with a message for each target of which something is missing or was changed.
    """

    def __init__(
        self,
        root: StatePath,
        plan: Plan,
        size: int,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._plan = plan
        self._size = size
        self._report = report
        self._clock = clock
        self._next = clock() + limits.VERIFY_SAMPLE_S

    def run(self) -> None:
        """Verify samples, unless the last ones were verified too recently."""
        started = self._clock()
        if not self._size or started < self._next:
            return
        known = known_targets(self._root)
        groups = [nodes for nodes in nodes_by_target(self._plan.nodes).values() if nodes[0].destination.keyed_by_id]
        results = [look_at_target(self._root, self._plan, nodes, self._size) for nodes in groups]
        record_results(self._root, results, known)
        for each in results:
            if each.counts is not None and each.differing:
                found = f"{each.counts.missing} missing, {each.counts.changed} changed"
                self._report(
                    f"destination {', '.join(each.destinations)}: {each.target} differs from what was delivered: of a "
                    f"sample of {each.counts.expected} documents {found}. `ferryman verify PLAN` compares all of them."
                )
        ended = self._clock()
        self._next = ended + max(limits.VERIFY_SAMPLE_S, limits.VERIFY_SAMPLE_SHARE * (ended - started))
