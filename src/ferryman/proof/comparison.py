"""Comparison of a round with a run in which nothing went wrong: sources, ledger, and twins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ferryman.destinations.base import Guarantee
from ferryman.plan import DestinationNode, KeyedNode, Plan
from ferryman.proof.child import Observation
from ferryman.proof.rounds import Played
from ferryman.proof.steps import Call, read_calls
from ferryman.proof.twins import Arrival, read_arrivals


class Key(NamedTuple):
    """Identity of a delivery, the same in every run."""

    operation: str
    id: str
    version: str
    route: str
    source: str

    def __str__(self) -> str:
        return f"{self.id}" + (" (delete)" if self.operation == "delete" else "")


@dataclass
class Delivered:
    """Deliveries that the destinations of one run were given and hold.

    Attributes:
        held: destination -> deliveries that it holds, and how often.
        given: destination -> deliveries that it was given, and how often.
        contents: destination -> delivery -> hash of its content.
        arrivals: all of them, in order.
        calls: of steps.
    """

    held: dict[str, Counter[Key]] = field(default_factory=lambda: defaultdict(Counter))
    given: dict[str, Counter[Key]] = field(default_factory=lambda: defaultdict(Counter))
    contents: dict[str, dict[Key, str]] = field(default_factory=lambda: defaultdict(dict))
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, played: Played) -> Delivered:
        """Return what a round has left."""
        assert played.seen is not None
        this = cls(arrivals=read_arrivals(played.folder), calls=read_calls(played.folder))
        by_hash: dict[tuple[str, str], Arrival] = {}
        senders: dict[str, set[str]] = defaultdict(set)
        for each in this.arrivals:
            by_hash[each.node, each.hash] = each
            senders[each.hash].add(each.node)
            if not each.refused:
                this.given[each.node][key_of(each)] += 1
                this.contents[each.node][key_of(each)] = each.digest
        for node, holdings in played.seen.held.items():
            for id, digest, intact in holdings:
                arrival = by_hash.get((node, digest))
                if arrival is not None:
                    this.held[node][key_of(arrival)] += 1
                    if intact is False:
                        this.changed.append(f"{node}: {id} is not what was written")
                elif digest not in senders:
                    this.unknown.append(f"{node}: {id} was never delivered to it")
        return this


def key_of(arrival: Arrival) -> Key:
    return Key(arrival.operation, arrival.id, arrival.version, arrival.route, arrival.source)


@dataclass
class Findings:
    """Result of comparing a round.

    Attributes:
        broken: what was broken, as sentences.
        lost: deliveries that are missing, and that nobody has reported.
        doubled: deliveries that are there twice where they may not.
        repeated: sends that were repeated, as at-least-once may.
        in_doubt: deliveries whose fate an at-most-once destination has not said.
        calls: calls of steps beyond those of the run without faults.
    """

    broken: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    repeated: int = 0
    in_doubt: int = 0
    calls: int = 0


class RoundComparison:
    """Compares rounds with the run in which nothing went wrong.

    Args:
        plan: the user's plan.
        reference: that run.
        merged: destinations among which the plan spreads documents as it likes, taken together.
        determined: equal documents have equal contents in every run.
    """

    def __init__(self, plan: Plan, reference: Played, *, merged: Collection[str] = (), determined: bool = True) -> None:
        assert reference.seen is not None
        self._nodes = {
            node.name: node
            for node in plan.nodes
            if isinstance(node, DestinationNode) and not isinstance(node, KeyedNode)
        }
        self._once = plan.once
        self._reference = Delivered.of(reference)
        self._seen = reference.seen
        self._merged = frozenset(merged)
        self._determined = determined

    def compare(self, played: Played) -> Findings:
        """Return what differs."""
        found = Findings()
        seen = played.seen
        assert seen is not None
        this = Delivered.of(played)
        found.broken += [*this.unknown[:3], *this.changed[:3], *seen.damage[:3]]
        if not seen.balanced:
            found.broken.append("the ledger is not balanced")
        for name, node in self._nodes.items():
            if name not in self._merged:
                self._compare_destination(name, node.policy.guarantee, this, seen, found, [name])
        if self._merged:
            names = sorted(self._merged)
            guarantees = {self._nodes[name].policy.guarantee for name in names}
            weakest = max(guarantees, key=list(Guarantee).index)
            self._compare_destination(", ".join(names), weakest, this, seen, found, names)
        self._check_bytes(this, found)
        if played.fault is None or played.fault.kind not in ("late", "overtaken", "tail", "holes"):
            self._check_order(this, found)
        self._check_calls(this, found)
        return found

    def _compare_destination(
        self,
        name: str,
        guarantee: Guarantee,
        this: Delivered,
        seen: Observation,
        found: Findings,
        nodes: list[str],
    ) -> None:
        expected, given_before = self._sum(self._reference.held, nodes), self._sum(self._reference.given, nodes)
        held, given = self._sum(this.held, nodes), self._sum(this.given, nodes)
        readable = any(name in seen.held for name in nodes)
        if not readable:  # what it was given is all there is
            expected, held = given_before, given
        hashes = {digest for node, digest in (*seen.in_doubt, *seen.failed) if node in nodes}
        excused = {
            _merge_key(key_of(each), nodes) for each in this.arrivals if each.node in nodes and each.hash in hashes
        }
        doubtful = sum(node in nodes for node, _ in seen.in_doubt)
        found.in_doubt += doubtful
        missing = {key for key in expected if not held[key] and key not in excused}
        extra = {key for key in held if not expected[key] and key not in excused}
        doubled = {key for key, count in held.items() if count > max(1, expected[key])}
        if guarantee is Guarantee.AT_LEAST_ONCE:
            found.repeated += sum(held[key] - 1 for key in doubled)
            doubled = set()
        found.repeated += sum(max(0, given[key] - max(1, given_before[key])) for key in given)
        if len(missing) > (doubtful if guarantee is Guarantee.AT_MOST_ONCE else 0):
            found.lost += len(missing)
            found.broken.append(f"{name}: {len(missing)} lost, such as {min(missing)}")
        if extra:
            found.broken.append(f"{name}: {len(extra)} too many, such as {min(extra)}")
        if doubled:
            found.doubled += len(doubled)
            found.broken.append(f"{name}: {len(doubled)} doubled under {guarantee.value}, such as {min(doubled)}")
        self._check_counts(name, guarantee, seen, found, nodes)
        if self._determined:
            self._check_contents(name, this, found, nodes, held)

    def _check_counts(
        self, name: str, guarantee: Guarantee, seen: Observation, found: Findings, nodes: list[str]
    ) -> None:
        """Compare what the ledger says with what it says of the run without faults."""
        before, now = (_counts(each.status, nodes) for each in (self._seen, seen))
        if now["pending"]:
            found.broken.append(f"{name}: {now['pending']} are still pending")
        ended = ("delivered", "deleted", "in_doubt", "failed", "rejected")
        if sum(before[each] for each in ended) != sum(now[each] for each in ended) or (
            guarantee is not Guarantee.AT_MOST_ONCE and before != now
        ):
            found.broken.append(f"{name}: the ledger counts {dict(now)}, without faults {dict(before)}")

    def _check_contents(
        self, name: str, this: Delivered, found: Findings, nodes: list[str], held: Counter[Key]
    ) -> None:
        before, now = (
            {_merge_key(key, nodes): digest for node in nodes for key, digest in each.contents[node].items()}
            for each in (self._reference, this)
        )
        other = [key for key in held if key in before and key in now and before[key] != now[key]]
        if other:
            found.broken.append(f"{name}: {len(other)} have other contents, such as {min(other)}")

    def _check_bytes(self, this: Delivered, found: Findings) -> None:
        """Check that each delivery was the same on every attempt."""
        first: dict[tuple[str, str], str] = {}
        for each in this.arrivals:
            if first.setdefault((each.node, each.hash), each.digest) != each.digest:
                found.broken.append(f"{each.node}: {each.id} was sent with other bytes under the same hash")
                return

    def _check_order(self, this: Delivered, found: Findings) -> None:
        """Check that no older version of a document was sent after a newer one."""
        highest: dict[tuple[str, str, str, str], int] = {}
        for each in this.arrivals:
            place = each.node, each.source, each.id, each.route
            if each.sequence < highest.get(place, 0):
                found.broken.append(f"{each.node}: an older version of {each.id} was sent after a newer one")
                return
            highest[place] = each.sequence

    def _check_calls(self, this: Delivered, found: Findings) -> None:
        """Count calls of steps; an at-most-once plan must not call one twice for a document."""
        before = Counter((each.step, each.document, each.given) for each in self._reference.calls)
        now = Counter((each.step, each.document, each.given) for each in this.calls)
        found.calls += sum((now - before).values())
        if self._once:
            twice = sorted((step, document) for step, document, _ in now - before)
            found.broken += [f"step {step} was called twice for {document}" for step, document in twice[:1]]

    @staticmethod
    def _sum(counters: Mapping[str, Counter[Key]], nodes: list[str]) -> Counter[Key]:
        total: Counter[Key] = Counter()
        for node in nodes:
            for key, count in counters.get(node, {}).items():
                total[_merge_key(key, nodes)] += count
        return total


def _merge_key(key: Key, nodes: list[str]) -> Key:
    """Return the key of a delivery to one of several destinations, whichever of them it was."""
    return key if len(nodes) == 1 else key._replace(route="")


def _counts(status: Mapping[str, Mapping[str, int]], nodes: list[str]) -> Counter[str]:
    return sum((Counter(status.get(node, {})) for node in nodes), Counter())
