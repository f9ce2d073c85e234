"""The model of a plan between queues: every order of its steps keeps the promises, and every fault breaks one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.crash import ONCE, POINTS, QUEUES
from ferryman.records.rows import Status
from tests.docs.test_architecture import resolved
from tests.model import pages
from tests.model.queues.actions import QUEUE_ACTIONS
from tests.model.queues.configurations import QUEUE_CONFIGURATIONS
from tests.model.queues.invariants import INVARIANTS
from tests.model.queues.mutations import QUEUE_MUTATIONS, QueueMutation
from tests.model.queues.once import ONCE_ACTIONS, OnceConfig
from tests.model.queues.once_explored import ONCE_CONFIGURATIONS, ONCE_INVARIANTS, ONCE_MUTATIONS
from tests.model.queues.world import ERRORS, OUT, Head, QueueConfig, State
from tests.model.state import Budget
from tests.support.tiers import sampled

EVERY = 7
"""One configuration of so many is explored each time."""


@pytest.mark.parametrize(
    "config",
    [
        *sampled([(config,) for config in QUEUE_CONFIGURATIONS], EVERY),
        *(pytest.param(config, id=f"at-most-once: {config.name}") for config in ONCE_CONFIGURATIONS),
    ],
    ids=lambda config: config.name,
)
def test_nothing_is_broken_in_any_state(config: QueueConfig | OnceConfig) -> None:
    """All states, whatever order things happen in, whatever is killed where."""
    report = pages.explored(config)

    assert report.violation is None, str(report.violation)
    assert pages.line(config) in pages.PAGE.read_text("utf-8").splitlines()


@pytest.mark.parametrize("mutation", [*QUEUE_MUTATIONS, *ONCE_MUTATIONS], ids=lambda mutation: mutation.name)
def test_every_mutation_is_found(mutation: QueueMutation) -> None:
    """A protocol with this fault breaks the promise that is named; without it, in the same world, nothing is broken."""
    violation = pages.explored(mutation.config).violation

    assert violation is not None
    assert violation.invariant == mutation.breaks, str(violation)
    assert str(violation.trace[-1]) in str(violation)
    assert pages.explored(mutation.world).violation is None


def test_every_invariant_is_broken_by_some_mutation() -> None:
    """No check that cannot fail."""
    assert {mutation.breaks for mutation in QUEUE_MUTATIONS} == INVARIANTS.keys()
    assert {mutation.breaks for mutation in ONCE_MUTATIONS} == {*ONCE_INVARIANTS, "I9"}


def test_every_mutation_is_asked_for() -> None:
    """A name that no function asks for would change nothing."""
    here = Path(__file__).parent / "queues"
    text = "".join(
        path.read_text("utf-8") for path in here.glob("*.py") if path.stem not in ("mutations", "once_explored")
    )

    for mutation in (*QUEUE_MUTATIONS, *ONCE_MUTATIONS):
        assert f'"{mutation.name}"' in text


WAITS = QueueConfig("", 2, Budget(crashes=1, faults=2), ("transient",))
REFUSED = QueueConfig("", 2, Budget(crashes=1, late=1), refused=frozenset({0}))
RIVALS = QueueConfig("", 1, Budget(rivals=1, late=1), lock=False)


def _beaten(before: State, after: State) -> bool:
    """Two workers had the same chunk in hand, and one of them was faster."""
    return sum(worker.at == "append" and bool(worker.new) for worker in before.workers) > 1 and after != before


@pytest.mark.parametrize(
    ("config", "happens"),
    [
        (WAITS, lambda a, b: a.head == Head(1, 1) and b.head == Head()),
        (WAITS, lambda a, b: b.rows != a.rows and b.rows[-1].into == ERRORS and b.failures[b.rows[-1].entry] == 1),
        (REFUSED, lambda a, b: b.ledger[:1] == (Status.DEAD,) and len(b.queues[ERRORS].messages) == 1),
        (REFUSED, lambda a, b: any(w.orphan and w.at == "append" for w in b.workers) and b.closed > 0),
        (RIVALS, _beaten),
        (RIVALS, lambda a, b: len(a.drivers) == 2 and len(b.drivers) == 1 and len(b.queues[OUT].messages) == 1),
    ],
    ids=[
        "an entry waits, and goes through",
        "attempts end",
        "a refusal is told",
        "a worker is late",
        "two workers race",
        "a rival has to stop",
    ],
)
def test_what_matters_happens(config: QueueConfig, happens: Callable[[State, State], bool]) -> None:
    """The worlds are not so small that the interesting things cannot happen in them."""
    explorer = pages.explorer(config)
    explorer.explore()

    assert any(before is not None and happens(before, after) for before, after in explorer.explored())


@pytest.mark.slow
def test_every_action_is_taken() -> None:
    """No step of the model is only written down."""
    wanted = QUEUE_ACTIONS.keys() - {"crash.all"}  # which the explorer does in every state
    for config in (*(m.config for m in QUEUE_MUTATIONS), *QUEUE_CONFIGURATIONS[::EVERY], *QUEUE_CONFIGURATIONS):
        if not wanted:
            break
        wanted -= pages.explored(config).actions

    taken = frozenset().union(*(pages.explored(config).actions for config in ONCE_CONFIGURATIONS))
    assert not wanted
    assert taken == ONCE_ACTIONS.keys() - {"crash.all"}


def test_the_code_that_actions_stand_for_exists() -> None:
    """Names of modules, classes and functions below ``ferryman``, and of crash points."""
    for action in (*QUEUE_ACTIONS.values(), *ONCE_ACTIONS.values()):
        for name in action.code:
            resolved(name)
        assert set(action.points) <= POINTS.keys() | QUEUES.keys() | ONCE.keys()


def test_every_crash_point_of_an_append_is_modelled() -> None:
    """What lies between an append and whoever reads it."""
    named = {point for action in QUEUE_ACTIONS.values() for point in action.points}

    assert {point for point in QUEUES if point.startswith(("append.", "tailer."))} <= named
    assert ONCE.keys() <= {point for action in ONCE_ACTIONS.values() for point in action.points}
