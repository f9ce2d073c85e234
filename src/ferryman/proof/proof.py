"""A whole proof: sample, runs without faults, one round after the other, and the result."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from ferryman.destinations.base import Destination
from ferryman.errors import UsageError
from ferryman.limits import MIB
from ferryman.plan import (
    DestinationNode,
    KeyedNode,
    Plan,
    SourceNode,
    StepNode,
    destinations_of_sources,
    read_once_sources,
)
from ferryman.plan.calls import dumps
from ferryman.proof import broken as rules
from ferryman.proof.builtin import make_plan
from ferryman.proof.comparison import Delivered, Findings, RoundComparison
from ferryman.proof.faults import COMMIT_POINTS, KINDS, SENDING_POINTS, PlannedFault, parse_fault, read_points
from ferryman.proof.rounds import Inconclusive, Played, Processes, Round, Violation
from ferryman.proof.sample import VERSIONS, draw_sample
from ferryman.proof.steps import outside_steps, read_calls, refused_connections, undetermined
from ferryman.proof.twin_plan import Setup, TwinPlan
from ferryman.proof.twins import Twin, can_be_read, can_forget
from ferryman.sources.log import Log

DOCUMENTS: Final = 200
"""Documents that are drawn of each source, unless told otherwise."""

LEAST: Final = 1
"""Faults that must take effect at each place of each kind."""

_MEMORY: Final = Path("/dev/shm")
"""Folder in memory: a killed process does not need a disk."""

_ROOM: Final = 512 * MIB

_DISK_STEPS: Final = (3, 20, 60, 120)
"""Changes of the disk at which it is full."""

_TRIES: Final = 3
"""Rounds of a fault that does not take effect."""


@dataclass
class Tally:
    """Rounds of one kind of fault at one place.

    Attributes:
        rounds: rounds that were played.
        effects: those in which the fault took effect.
        findings: added up over these.
    """

    rounds: int = 0
    effects: int = 0
    inconclusive: int = 0
    violations: int = 0
    lost: int = 0
    doubled: int = 0
    repeated: int = 0
    in_doubt: int = 0
    calls: int = 0
    spent_s: float = 0.0

    def add(self, played: Played, found: Findings) -> None:
        """Add a round that could be compared."""
        self.effects += played.effect
        self.violations += bool(found.broken)
        for name in ("lost", "doubled", "repeated", "in_doubt", "calls"):
            setattr(self, name, getattr(self, name) + getattr(found, name))


@dataclass
class ProofResult:
    """Result of a proof.

    Attributes:
        plan: name of the plan.
        seed: by which rounds are drawn.
        documents: source -> documents of the sample.
        tallies: (kind of fault, place) -> what came of its rounds.
        violations: (fault, what was broken).
        unproved: what these rounds do not prove, as sentences.
        short: (kind, place) with too few faults that took effect.
        undetermined: step -> a document for which it makes something else each time.
        calls: step -> calls in all rounds.
        twins: destination -> what its twin was.
        broken: rule of the protocol that was broken on purpose; "": none.
        runs: runs of the command.
        spent_s: time of all of it.
    """

    plan: str
    seed: int
    documents: dict[str, int] = field(default_factory=dict)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    violations: list[tuple[str, str]] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    short: list[tuple[str, str]] = field(default_factory=list)
    inconclusive: list[tuple[str, str]] = field(default_factory=list)
    undetermined: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    guarantees: dict[str, str] = field(default_factory=dict)
    broken: str = ""
    rounds: int = 0
    runs: int = 0
    spent_s: float = 0.0

    @property
    def is_proved(self) -> bool:
        """Return whether no rule was broken, and each kind of fault took effect at each place."""
        return not self.violations and not self.short and not self.inconclusive

    @property
    def exit(self) -> int:
        """Return the exit code: 0 proved, 1 a rule was broken, or not enough was tried."""
        return 0 if self.is_proved else 1


def prove(
    plan: Plan | None = None,
    *,
    documents: int = DOCUMENTS,
    rounds: int | None = None,
    seed: int = 0,
    broken: str = "",
    scratch: bool = False,
    allow_steps: Collection[str] = (),
    spark: bool = True,
    kinds: Collection[str] = (),
    fault: str = "",
    observer: Callable[[str], None] | None = None,
) -> ProofResult:
    """Prove that a plan keeps its guarantees, whatever fails: break something in each round, and compare the ends.

    Args:
        plan: the plan; None: a built-in one with branches, children, deletes, a queue, state by key, all guarantees.
        documents: documents that are drawn of each source.
        rounds: rounds to play at most. None: as many as it takes for each kind of fault at each durable write. With
            more, the further ones are drawn at random.
        seed: by which documents and rounds are drawn: with the same one, the same happens.
        broken: a rule of the protocol to break on purpose, see ``proof.broken``: the proof must find it.
        scratch: make scratch tables beside the user's own in databases on servers; they are dropped after each round.
        allow_steps: steps that may open connections, and change something outside.
        spark: also break Spark, which takes longer.
        kinds: only these kinds of faults; (): all.
        fault: play only this round, as a violation names it.
        observer: called with each line of progress; None: nobody is told.

    Raises:
        UsageError: there is no such rule or fault, a source cannot be sampled, or a step wants to call a service.
    """
    rules.check_rule(broken)
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise UsageError(f"--only {unknown[0]}: there is no such kind of fault; there are {', '.join(KINDS)}.")
    began = time.monotonic()
    only = _parse(fault) if fault else None
    with _work_folder() as folder:
        if plan is None:
            plan = make_plan(folder, documents)
        plan.freeze()
        result = ProofResult(plan.name, seed, broken=broken)
        proving = _Proving(plan, folder, result, observer or _ignore, scratch=scratch, allow_steps=allow_steps)
        proving.run(documents, rounds, only, [kind for kind in KINDS if not kinds or kind in kinds], spark=spark)
    result.spent_s = time.monotonic() - began
    return result


@contextmanager
def _work_folder() -> Iterator[Path]:
    """Yield a folder for all states and twins, in memory if there is room; it is removed at the end."""
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(
        prefix="ferryman-proof-", dir=_MEMORY if in_memory else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _ignore(text: str) -> None:
    pass


class _Proving:
    """A proof in progress: its plan, folder, faults and the rounds so far."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        result: ProofResult,
        observer: Callable[[str], None],
        *,
        scratch: bool,
        allow_steps: Collection[str],
    ) -> None:
        names = {node.name for node in plan.nodes if isinstance(node, StepNode)}
        if unknown := sorted(set(allow_steps) - names):
            raise UsageError(f"--allow-steps {unknown[0]}: the plan has {', '.join(sorted(names)) or 'no steps'}.")
        if outside := outside_steps(plan, allow_steps):
            raise UsageError(
                f"step {', '.join(outside)} changes something outside, or calls a service: a proof would call it over "
                f"and over. Allow it with --allow-steps {outside[0]}, or give the plan another step in its place."
            )
        self._plan = plan
        self._folder = folder
        self._result = result
        self._observer = observer
        self._scratch = "ferryman_proof" if scratch else ""
        self._allowed = tuple(allow_steps)
        self._calls: Counter[str] = Counter()
        self._keyed = {n.name: n.destination.keyed_by_id for n in plan.nodes if isinstance(n, DestinationNode)}
        """Destination -> whether it stores one document per id."""

    def run(
        self, documents: int, rounds: int | None, only: PlannedFault | None, kinds: Collection[str], *, spark: bool
    ) -> None:
        """Draw the sample, run without faults, and play the rounds."""
        result = self._result
        sample = draw_sample(self._plan, documents, result.seed)
        result.documents = {name: len(drawn) for name, drawn in sample.items()}
        setup = Setup(self._plan, sample, self._allowed, self._scratch)
        setup_file = self._folder / "setup.pickle"
        setup_file.write_bytes(dumps(setup))
        self._note_guarantees()
        with Processes(setup_file) as processes:
            self._observer("running without faults")
            reference = self._reference(processes, setup_file)
            comparison = self._compare_references(reference)
            if only is not None:
                self._play_all(processes, comparison, [only], {})
                return
            schedule = self._schedule(reference.folder, setup, kinds, spark=spark)
            places = {(fault.kind, fault.place): LEAST for fault in schedule}
            self._play_all(processes, comparison, self._drawn(schedule, rounds), places)

    # -- without faults ----------------------------------------------------------------------------

    def _reference(self, processes: Processes, setup_file: Path) -> Played:
        """Run twice without faults; returns the first."""
        try:
            first = Round(processes, self._folder / "reference", None).play(records=True)
            with Processes(setup_file, hash_seed=1) as others:
                self._second = Round(others, self._folder / "second", None).play()
            if not self._scratch:  # a scratch table cannot be copied
                Round(processes, self._folder / "round", None).prepare()
                shutil.copytree(self._folder / "round", self._folder / "base", symlinks=True)
        except (Violation, Inconclusive) as e:
            self._refuse_connections(self._folder / "reference")
            raise UsageError(f"without any fault the plan does not come to its end: {e}") from e
        self._refuse_connections(first.folder)
        return first

    def _refuse_connections(self, folder: Path) -> None:
        if refused := refused_connections(folder):
            step, what = refused[0]
            raise UsageError(
                f"step {step} calls {what}. A proof calls each step thousands of times: if that costs nothing and "
                f"changes nothing, allow it with --allow-steps {step}; else give the plan another step in its place."
            )

    def _compare_references(self, first: Played) -> RoundComparison:
        """Compare the two runs without faults: what differs between them, no fault has done."""
        result, second = self._result, self._second
        assert first.seen is not None
        result.twins = first.seen.kinds
        for name, kind in first.seen.kinds.items():
            if kind == "recorder":
                self._note_recorder(name)
        result.undetermined = undetermined([*read_calls(first.folder), *read_calls(second.folder)])
        merged = self._spread(first, second)
        comparison = RoundComparison(self._plan, first, merged=merged, determined=not result.undetermined)
        for step, document in result.undetermined.items():
            result.unproved.append(
                f"step {step} makes something else of the same document each time (such as {document}): contents were "
                "compared only between the attempts of one delivery"
            )
        if broken := comparison.compare(second).broken:
            where = f" (step {', '.join(result.undetermined)})" if result.undetermined else ""
            raise UsageError(
                f"two runs without any fault do not deliver the same{where}, so nothing can be compared: {broken[0]}"
            )
        return comparison

    def _spread(self, first: Played, second: Played) -> list[str]:
        """Return the destinations among which documents are spread otherwise in each run."""
        one, two = Delivered.of(first), Delivered.of(second)
        names = {node.name for node in self._plan.nodes if isinstance(node, DestinationNode)}
        differing = [name for name in names if set(one.given[name]) != set(two.given[name])]
        return differing if len(differing) > 1 else []

    # -- what is to be tried -----------------------------------------------------------------------

    def _schedule(self, reference: Path, setup: Setup, kinds: Collection[str], *, spark: bool) -> list[PlannedFault]:
        """Return one fault for each kind at each place."""
        points = read_points(reference / "points")
        chance = Random(self._result.seed)
        twin = TwinPlan(setup, self._folder / "look", 0)
        nodes = self._places(twin)
        schedule: list[PlannedFault] = []

        def at_point(kind: str, name: str, who: str) -> PlannedFault:
            count = points[name, who]
            return PlannedFault(kind, name, 1 + chance.randrange(max(1, count // VERSIONS)), chance.randrange(VERSIONS))

        for kind in kinds:
            what = KINDS[kind]
            match what.hits:
                case "driver" | "worker":
                    schedule += [at_point(kind, name, who) for name, who in points if who == what.hits]
                case "commit":
                    schedule += [at_point(kind, n, "driver") for n in COMMIT_POINTS if (n, "driver") in points]
                case "sending":
                    schedule += [at_point(kind, n, "worker") for n in SENDING_POINTS if (n, "worker") in points]
                case "disk":
                    schedule += [PlannedFault(kind, "", nth, chance.randrange(VERSIONS)) for nth in _DISK_STEPS]
                case "jvm" if spark:
                    schedule += [PlannedFault(kind, "commit.ready", 1, 0), PlannedFault(kind, "deliver.done", 1, 1)]
                case "spark" if spark:
                    schedule += [PlannedFault(kind, "transform.staged", 1, 0), PlannedFault(kind, "deliver.sent", 1, 1)]
                case "jvm" | "spark":
                    pass
                case _:
                    first = kind == "away" or what.hits == "readable"
                    for name in nodes[what.hits]:
                        nth = 1 if first else 1 + chance.randrange(2)
                        schedule.append(PlannedFault(kind, name, nth, self._version(kind, name, chance)))
        if once := [name for name in self._read_once() if can_forget(_inner(twin, name))]:
            self._result.unproved.append(
                f"{', '.join(once)}: what it loses after it has acknowledged it, `verify` finds but cannot "
                "send again, because a keyed node reads only once what it is made of"
            )
        if left_out := [what.title for kind, what in KINDS.items() if kind not in kinds]:
            self._result.unproved.append(f"not tried at all: {'; '.join(left_out)}")
        if not spark:
            self._result.unproved.append("nothing was tried on Spark: its Java process and workers were not killed")
        return schedule

    def _version(self, kind: str, node: str, chance: Random) -> int:
        """Return a version in which the fault can happen."""
        if kind in ("tail", "holes") and not self._keyed[node]:
            return VERSIONS - 1  # an older delivery than the last of its document cannot be sent again
        return 0 if kind == "away" else chance.randrange(VERSIONS)

    def _places(self, twin: TwinPlan) -> dict[str, list[str]]:
        """Return the nodes at which faults can be tried."""
        sending = {name: found for name, found in twin.twins.items() if isinstance(found, Twin)}
        given = Delivered.of(self._second).given
        busy = [name for name in sending if given[name]]
        return {
            "destination": busy,
            "readable": [n for n in busy if can_forget(sending[n].inner) and n not in self._read_once()],
            "step": [n.name for n in self._plan.nodes if isinstance(n, StepNode)],
            "source": [
                n.name
                for n in self._plan.nodes
                if isinstance(n, SourceNode) and not isinstance(n, KeyedNode) and not isinstance(n.source, Log)
            ],
        }

    def _read_once(self) -> list[str]:
        """Return the destinations to which nothing can be sent again, because their documents are read only once."""
        nodes = self._plan.nodes
        once = read_once_sources(nodes)
        found = {name for source, names in destinations_of_sources(nodes).items() if source in once for name in names}
        return sorted(found & set(self._result.twins))

    def _drawn(self, schedule: list[PlannedFault], rounds: int | None) -> list[PlannedFault]:
        """Return the rounds to play, in a random order; further ones are drawn from the others."""
        chance = Random(f"{self._result.seed} rounds")
        preferred = rules.preferred_kinds(self._result.broken)
        order = sorted(schedule, key=lambda fault: (fault.kind not in preferred, fault.kind in ("jvm", "spark")))
        if rounds is None:
            return order
        more = [fault for fault in schedule if not KINDS[fault.kind].spark]
        while len(order) < rounds and more:
            fault = chance.choice(more)
            order.append(
                PlannedFault(fault.kind, fault.at, 1 + chance.randrange(4), self._version(fault.kind, fault.at, chance))
                if fault.kind != "disk"
                else PlannedFault(fault.kind, fault.at, 1 + chance.randrange(200), chance.randrange(VERSIONS))
            )
        return order[:rounds]

    # -- rounds ------------------------------------------------------------------------------------

    def _play_all(
        self,
        processes: Processes,
        comparison: RoundComparison,
        schedule: list[PlannedFault],
        places: dict[tuple[str, str], int],
    ) -> None:
        result = self._result
        for number, fault in enumerate(schedule, 1):
            self._play(processes, comparison, fault)
            tally = result.tallies[fault.kind, fault.place]
            ending = "broken" if tally.violations else "held" if tally.effects else "no effect"
            self._observer(f"{number} of {len(schedule)}: {KINDS[fault.kind].title}, {fault.place}: {ending}")
            if result.violations and result.broken:
                break  # it is found
        result.calls = dict(self._calls)
        if not result.violations:
            result.short = [place for place, least in places.items() if result.tallies[place].effects < least]
        if not result.rounds:
            result.short.append(("any", "any"))

    def _play(self, processes: Processes, comparison: RoundComparison, fault: PlannedFault) -> None:
        """Play a round; one whose fault hits nothing is tried earlier in the run, or in the other version."""
        result = self._result
        tally = result.tallies[fault.kind, fault.place]
        for attempt in range(1 if rules.disarms(result.broken) else _TRIES):
            now = fault
            if attempt:
                other = (fault.version + attempt) % VERSIONS
                version = other if KINDS[fault.kind].hits != "readable" and fault.kind != "away" else fault.version
                now = PlannedFault(fault.kind, fault.at, 1, version)
            base = None if self._scratch else self._folder / "base"
            round_ = Round(processes, self._folder / "round", now, result.broken, base)
            result.rounds += 1
            tally.rounds += 1
            try:
                played = round_.play()
                found = comparison.compare(played)
            except Violation as e:
                round_.played.effect = True
                played, found = round_.played, Findings([str(e)])
            except Inconclusive as e:
                tally.inconclusive += 1
                result.inconclusive.append((str(now), str(e)))
                played, found = round_.played, Findings()
            tally.spent_s += round_.played.spent_s
            result.runs += round_.played.runs
            self._calls.update(call.step for call in read_calls(round_.played.folder))
            tally.add(played, found)
            result.violations += [(str(now), each) for each in found.broken]
            if played.effect or found.broken:
                break

    # -- what is not proved ------------------------------------------------------------------------

    def _note_guarantees(self) -> None:
        for node in self._plan.nodes:
            if isinstance(node, DestinationNode) and not isinstance(node, KeyedNode):
                self._result.guarantees[node.name] = node.policy.guarantee.value

    def _note_recorder(self, name: str) -> None:
        node = next(node for node in self._plan.nodes if node.name == name)
        assert isinstance(node, DestinationNode)
        kind = type(node.destination).__name__
        unproved = f"{name}: a twin stood in the place of {kind}. What was sent is proved, not what {kind} does with it"
        if not can_be_read(node.destination):
            unproved += "; nor can anybody find what it loses after it has acknowledged it, for it cannot be read back"
        self._result.unproved.append(unproved)


def _inner(twin: TwinPlan, name: str) -> Destination:
    found = twin.twins[name]
    return found.inner if isinstance(found, Twin) else found


def _parse(text: str) -> PlannedFault:
    try:
        return parse_fault(text)
    except ValueError as e:
        raise UsageError(f"--fault {e}") from None


def as_json(result: ProofResult) -> dict[str, Any]:
    """Return the object of ``prove --json``."""
    return {
        "exit": result.exit,
        "proved": result.is_proved,
        "plan": result.plan,
        "seed": result.seed,
        "documents": result.documents,
        "rounds": result.rounds,
        "runs": result.runs,
        "seconds": round(result.spent_s, 1),
        "broken": result.broken or None,
        "faults": [
            {
                "kind": kind,
                "title": KINDS[kind].title if kind in KINDS else kind,
                "place": place,
                **{name: value for name, value in vars(tally).items() if name != "spent_s"},
            }
            for (kind, place), tally in result.tallies.items()
        ],
        "violations": [{"fault": fault, "what": what} for fault, what in result.violations],
        "short": [{"kind": kind, "place": place} for kind, place in result.short],
        "inconclusive": [{"fault": fault, "why": why} for fault, why in result.inconclusive],
        "not_proved": result.unproved,
        "not_deterministic": result.undetermined,
        "calls": result.calls,
        "destinations": {
            name: {"twin": kind, "guarantee": result.guarantees.get(name, "")} for name, kind in result.twins.items()
        },
    }
