"""The models: every order of their steps keeps the promises, and every fault that is put into them breaks one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ferryman import crash
from ferryman.crash import KEYED, POINTS, QUEUES
from ferryman.records.rows import Status
from tests.docs.test_architecture import resolved
from tests.model import pages
from tests.model.actions import ACTIONS, NOT_MODELLED, Action
from tests.model.configurations import CHANGES, CONFIGURATIONS, ONE
from tests.model.doubts import DOUBT_ACTIONS
from tests.model.doubts_explored import DOUBT_CONFIGURATIONS, DOUBT_INVARIANTS, DOUBT_MUTATIONS
from tests.model.explore import Explorer
from tests.model.invariants import INVARIANTS
from tests.model.keyed.actions import KEYED_ACTIONS
from tests.model.keyed.explored import KEYED_CONFIGURATIONS, KEYED_MUTATIONS
from tests.model.keyed.invariants import KEYED_INVARIANTS
from tests.model.keyed.world import KeyedConfig
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.queues.actions import QUEUE_ACTIONS
from tests.model.queues.configurations import QUEUE_CONFIGURATIONS
from tests.model.queues.invariants import INVARIANTS as QUEUE_INVARIANTS
from tests.model.queues.mutations import QUEUE_MUTATIONS, QueueMutation
from tests.model.queues.once import ONCE_ACTIONS
from tests.model.queues.once_explored import ONCE_CONFIGURATIONS, ONCE_INVARIANTS, ONCE_MUTATIONS
from tests.model.queues.world import ERRORS, OUT, Head, QueueConfig
from tests.model.state import LEAST, ONCE, Budget, Config, Destination, Waiting
from tests.support.tiers import sampled

ARCHITECTURE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")


class Model(NamedTuple):
    """A protocol, what is explored of it, and the faults that are put into it."""

    name: str
    configurations: Sequence[pages.AnyConfig]
    every: int
    """One configuration of so many is explored each time."""
    mutations: Sequence[Mutation | QueueMutation]
    promises: set[str]
    actions: Mapping[str, Action]
    points: set[str]
    """Crash points that actions may stand for."""
    folder: str
    mutated: tuple[str, ...]
    """Modules of the folder that name mutations, and do not ask for them."""
    small: Sequence[pages.AnyConfig] = ()
    """Configurations that are explored quickly, and in which most actions are taken."""


MODELS = (
    Model("documents", CONFIGURATIONS, 9, MUTATIONS, {*INVARIANTS, "I9"}, ACTIONS, {*POINTS}, ".", ("mutations",)),
    Model(
        *("queues", QUEUE_CONFIGURATIONS, 7, QUEUE_MUTATIONS, {*QUEUE_INVARIANTS}, QUEUE_ACTIONS),
        *({*POINTS, *QUEUES, *crash.STOPS}, "queues", ("mutations", "once_explored")),
        small=[mutation.config for mutation in QUEUE_MUTATIONS],
    ),
    Model(
        *("at-most-once", ONCE_CONFIGURATIONS, 1, ONCE_MUTATIONS, {*ONCE_INVARIANTS, "I9"}, ONCE_ACTIONS),
        *({*POINTS, *QUEUES, *crash.ONCE}, "queues", ("mutations", "once_explored")),
    ),
    Model(
        *("keyed", KEYED_CONFIGURATIONS, 4, KEYED_MUTATIONS, {*KEYED_INVARIANTS, "I9"}, KEYED_ACTIONS),
        *({*POINTS, *KEYED}, "keyed", ("explored",)),
    ),
    Model(
        *("doubts", DOUBT_CONFIGURATIONS, 1, DOUBT_MUTATIONS, {*DOUBT_INVARIANTS, "I9"}, DOUBT_ACTIONS),
        *({*POINTS}, ".", ("mutations", "doubts_explored")),
    ),
)
EACH_TIME = [case for model in MODELS for case in sampled([(model, c) for c in model.configurations], model.every)]
FAULTS = [(model, mutation) for model in MODELS for mutation in model.mutations]


def _name(value: Any) -> str:
    return str(value.name)


each_model = pytest.mark.parametrize("model", MODELS, ids=_name)


@pytest.mark.parametrize(("model", "config"), EACH_TIME, ids=_name)
def test_nothing_is_broken_in_any_state(
    model: Model, config: pages.AnyConfig, record_property: Callable[[str, object], None]
) -> None:
    """All states, whatever order things happen in, whatever is killed where; the page has its line."""
    report = pages.explored(config)
    record_property("states", report.states)
    record_property("transitions", report.transitions)
    print(f"{config.name}: {report.states} states, {report.transitions} transitions, {report.seconds:.1f} s")

    assert report.violation is None, str(report.violation)
    assert report.actions <= model.actions.keys()
    assert pages.line(config) in pages.PAGE.read_text("utf-8").splitlines()


@pytest.mark.parametrize(("model", "mutation"), FAULTS, ids=_name)
def test_every_mutation_is_found(model: Model, mutation: Mutation | QueueMutation) -> None:
    """A protocol with this fault breaks the promise that is named, and the model finds the way there; without it, in
    the same world, nothing is broken."""
    violation = pages.explored(mutation.config).violation
    print(mutation.name, violation, sep="\n")

    assert violation is not None
    assert violation.invariant == mutation.breaks, str(violation)
    assert str(violation.trace[-1]) in str(violation)
    without = pages.explored(mutation.world).violation
    assert without is None, str(without)


@each_model
def test_every_invariant_is_broken_by_some_mutation(model: Model) -> None:
    """No check that cannot fail."""
    assert {mutation.breaks for mutation in model.mutations} == model.promises


@each_model
def test_every_mutation_is_asked_for(model: Model) -> None:
    """A name that no function asks for would change nothing."""
    here = Path(__file__).parent / model.folder
    asking = [path for path in here.glob("*.py") if path.stem not in (*model.mutated, "test_model")]
    text = "".join(path.read_text("utf-8") for path in asking)

    for mutation in model.mutations:
        assert f'"{mutation.name}"' in text


@pytest.mark.slow
@each_model
def test_every_action_is_taken(model: Model) -> None:
    """No step of a model is only written down. Those that are explored each time are looked through first."""
    wanted = model.actions.keys() - {"crash.all"}  # which the explorer does in every state
    numbers = sorted(range(len(model.configurations)), key=lambda n: n % model.every)
    for config in (*model.small, *(model.configurations[n] for n in numbers)):
        wanted -= pages.explored(config).actions
        if not wanted:
            break

    assert not wanted


@each_model
def test_the_code_that_actions_stand_for_exists(model: Model) -> None:
    """Names of modules, classes and functions below ``ferryman``, and of crash points."""
    for action in model.actions.values():
        for name in action.code:
            resolved(name)
        assert set(action.points) <= model.points


LATE = Config("", ONE, (Destination(ONCE),), Budget(crashes=1, late=1))
RIVALS = Config("", ONE, (Destination(LEAST),), Budget(rivals=1), lock=False)
TIRED = Config("", ONE, (Destination(LEAST),), Budget(faults=2), ("transient",))
STALE = Config("", CHANGES, (Destination(LEAST, compares=True),), Budget(faults=2), ("refused", "hung"))
WAITS = QueueConfig("", 2, Budget(crashes=1, faults=2), ("transient",))
REFUSED = QueueConfig("", 2, Budget(crashes=1, late=1), refused=frozenset({0}))
STOPS = QueueConfig("", 2, Budget(crashes=1, faults=2), ("permanent",), on_error="stop", commands=("skip",))
TWO = QueueConfig("", 1, Budget(rivals=1, late=1), lock=False)
RAISES = KeyedConfig("", (0, 0), Budget(faults=1), ("raises", "rejects"))
DOUBLES = KeyedConfig("", (0,), Budget(doubles=1, late=1))


def _beaten(before: Any, after: Any) -> bool:
    """Two workers had the same chunk in hand, and one of them was faster."""
    return sum(worker.at == "append" and bool(worker.new) for worker in before.workers) > 1 and after != before


HAPPENS: Mapping[str, tuple[pages.AnyConfig, Callable[[Any, Any], bool]]] = {
    "a late answer ends a doubt": (
        LATE,
        lambda a, b: a.ledger == (Status.INDEXING,) and b.ledger == (Status.INDEXED,),
    ),
    "a doubt stays": (
        LATE,
        lambda a, b: b.ledger == (Status.INDEXING,) and b.outbox[0].parked and b.told[0].effects and not b.workers,
    ),
    "a rival has to stop": (
        RIVALS,
        lambda a, b: len(a.drivers) == 2 and len(b.drivers) == 1 and b.wave > min(b.settled),
    ),
    "attempts end": (
        TIRED,
        lambda a, b: b.ledger == (Status.DEAD,) and b.outbox == (Waiting(0, 2, parked=True),),
    ),
    "something is stale": (STALE, lambda a, b: any(t.done and not t.effects for t in b.told)),
    "an entry waits, and goes through": (WAITS, lambda a, b: a.head == Head(1, 1) and b.head == Head()),
    "attempts of an entry end": (
        WAITS,
        lambda a, b: b.rows != a.rows and b.rows[-1].into == ERRORS and b.failures[b.rows[-1].entry] == 1,
    ),
    "an entry stops the plan, and is passed": (
        STOPS,
        lambda a, b: a.stop.passed and b.failed == (a.stop.entry,) and b.position > a.stop.entry,
    ),
    "an entry that stopped the plan goes through": (STOPS, lambda a, b: a.stop.entry == 0 and b.rows > a.rows),
    "a command is applied again after a kill": (
        STOPS,
        lambda a, b: a.stop.passed and b.stop.passed and b.wave == a.wave + 1 and b.commands == a.commands != (),
    ),
    "a command comes too late": (STOPS, lambda a, b: b.commands and b.stop.entry < 0 and b.unsynced is None),
    "a refusal is told": (
        REFUSED,
        lambda a, b: b.ledger[:1] == (Status.DEAD,) and len(b.queues[ERRORS].messages) == 1,
    ),
    "a worker is late": (
        REFUSED,
        lambda a, b: any(w.orphan and w.at == "append" for w in b.workers) and b.closed > 0,
    ),
    "two workers race": (TWO, _beaten),
    "a rival at a queue has to stop": (
        TWO,
        lambda a, b: len(a.drivers) == 2 and len(b.drivers) == 1 and len(b.queues[OUT].messages) == 1,
    ),
    "a document waits, the one before it is counted": (
        RAISES,
        lambda a, b: [count.entry for count in b.tables.states[0]] == [0] and b.tables.due == (1,),
    ),
    "a document fails for good, and the next is counted": (
        RAISES,
        lambda a, b: b.tables.ended == (Status.DEAD, Status.INDEXED),
    ),
    "a key exports twice": (RAISES, lambda a, b: len(b.tables.exports[0]) == 2),
    "two attempts race": (
        DOUBLES,
        lambda a, b: sum(task.at == "publish" for task in a.tasks) > 1 and len(b.updates) > len(a.updates),
    ),
    "a task is late": (
        DOUBLES,
        lambda a, b: any(task.orphan and task.at == "publish" for task in b.tasks) and b.closed > 0,
    ),
    "the second attempt counts": (
        DOUBLES,
        lambda a, b: any(count.attempt for value in b.tables.states for count in value),
    ),
}


@pytest.mark.parametrize(("config", "happens"), HAPPENS.values(), ids=[*HAPPENS])
def test_what_matters_happens(config: pages.AnyConfig, happens: Callable[[Any, Any], bool]) -> None:
    """The worlds are not so small that the interesting things cannot happen in them."""
    explorer = pages.explorer(config)
    explorer.explore()

    assert any(before is not None and happens(before, after) for before, after in explorer.explored())


def test_the_largest_worlds_are_explored() -> None:
    """Three documents and two destinations somewhere; one of each with two drivers, two kills and speculation."""
    sizes = {(len(config.histories), len(config.destinations)) for config in CONFIGURATIONS}
    assert (3, 2) in sizes

    small = [c for c in CONFIGURATIONS if (len(c.histories), len(c.destinations)) == (1, 1)]
    assert any(c.budget.rivals and c.budget.crashes >= 2 and c.budget.doubles for c in small)


def points_of(actions: Mapping[str, Action]) -> set[str]:
    return {point for action in actions.values() for point in action.points}


def test_every_crash_point_is_modelled_or_said_not_to_be() -> None:
    """Each name of ``testing.crash.POINTS`` belongs to an action, or there is a reason why not."""
    named = points_of(ACTIONS)

    assert named | NOT_MODELLED.keys() == POINTS.keys()
    assert not named & NOT_MODELLED.keys()


def test_every_crash_point_of_an_append_is_modelled() -> None:
    """What lies between an append and whoever reads it."""
    assert {point for point in QUEUES if point.startswith(("append.", "tailer."))} <= points_of(QUEUE_ACTIONS)
    assert crash.ONCE.keys() <= points_of(ONCE_ACTIONS)
    commands = {point for point in POINTS if point.startswith("command.")}
    assert crash.STOPS.keys() | commands <= points_of(QUEUE_ACTIONS)


def test_every_crash_point_of_a_keyed_node_is_modelled() -> None:
    assert KEYED.keys() - {"create.keyed"} <= points_of(KEYED_ACTIONS)


def test_the_invariants_are_those_of_the_architecture() -> None:
    """I1 to I9; each check begins with the sentence that it checks."""
    assert {*INVARIANTS, "I9"} == {*(f"I{n}" for n in range(1, 10)), "order", "families"}
    page = " ".join(ARCHITECTURE.split())
    checks = [check for name, check in INVARIANTS.items() if name not in ("order", "families")]
    for check in [*checks, Explorer.unrecoverable]:
        rule = re.split(r"\n\s*\n", check.__doc__ or "")[0]
        assert " ".join(rule.split()) in page, rule


@pytest.mark.slow
def test_the_page_says_what_was_explored() -> None:
    """If this fails: ``python -m tests.model --write``, and look at what has changed."""
    text = pages.PAGE.read_text("utf-8")

    assert pages.made(text) == text
