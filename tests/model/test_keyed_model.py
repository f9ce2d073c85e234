"""The model of state by key: every order of its steps keeps the promises, and every fault breaks one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.crash import KEYED, POINTS
from ferryman.records.rows import Status
from tests.docs.test_architecture import resolved
from tests.model import pages
from tests.model.keyed.actions import KEYED_ACTIONS
from tests.model.keyed.explored import KEYED_CONFIGURATIONS, KEYED_MUTATIONS
from tests.model.keyed.invariants import KEYED_INVARIANTS
from tests.model.keyed.world import KeyedConfig, State
from tests.model.queues.mutations import QueueMutation
from tests.model.state import Budget
from tests.support.tiers import sampled

EVERY = 4
"""One configuration of so many is explored each time."""


@pytest.mark.parametrize(
    "config", sampled([(config,) for config in KEYED_CONFIGURATIONS], EVERY), ids=lambda config: config.name
)
def test_nothing_is_broken_in_any_state(config: KeyedConfig) -> None:
    """All states, whatever order things happen in, whatever is killed where."""
    report = pages.explored(config)

    assert report.violation is None, str(report.violation)
    assert pages.line(config) in pages.PAGE.read_text("utf-8").splitlines()


@pytest.mark.parametrize("mutation", KEYED_MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_is_found(mutation: QueueMutation) -> None:
    """A protocol with this fault breaks the promise that is named; without it, in the same world, nothing is broken."""
    violation = pages.explored(mutation.config).violation

    assert violation is not None
    assert violation.invariant == mutation.breaks, str(violation)
    assert pages.explored(mutation.world).violation is None


def test_every_invariant_is_broken_by_some_mutation() -> None:
    """No check that cannot fail."""
    assert {mutation.breaks for mutation in KEYED_MUTATIONS} == {*KEYED_INVARIANTS, "I9"}


def test_every_mutation_is_asked_for() -> None:
    """A name that no function asks for would change nothing."""
    here = Path(__file__).parent / "keyed"
    text = "".join(path.read_text("utf-8") for path in here.glob("*.py") if path.stem != "explored")

    for mutation in KEYED_MUTATIONS:
        assert f'"{mutation.name}"' in text


RAISES = KeyedConfig("", (0, 0), Budget(faults=1), ("raises", "rejects"))
DOUBLES = KeyedConfig("", (0,), Budget(doubles=1, late=1))


@pytest.mark.parametrize(
    ("config", "happens"),
    [
        (RAISES, lambda a, b: [count.entry for count in b.tables.states[0]] == [0] and b.tables.due == (1,)),
        (RAISES, lambda a, b: b.tables.ended == (Status.DEAD, Status.INDEXED)),
        (RAISES, lambda a, b: len(b.tables.exports[0]) == 2),
        (DOUBLES, lambda a, b: sum(task.at == "publish" for task in a.tasks) > 1 and len(b.updates) > len(a.updates)),
        (DOUBLES, lambda a, b: any(task.orphan and task.at == "publish" for task in b.tasks) and b.closed > 0),
        (DOUBLES, lambda a, b: any(count.attempt for value in b.tables.states for count in value)),
    ],
    ids=[
        "a document waits, the one before it is counted",
        "a document fails for good, and the next is counted",
        "a key exports twice",
        "two attempts race",
        "a task is late",
        "the second attempt counts",
    ],
)
def test_what_matters_happens(config: KeyedConfig, happens: Callable[[State, State], bool]) -> None:
    """The worlds are not so small that the interesting things cannot happen in them."""
    explorer = pages.explorer(config)
    explorer.explore()

    assert any(before is not None and happens(before, after) for before, after in explorer.explored())


@pytest.mark.slow
def test_every_action_is_taken() -> None:
    """No step of the model is only written down."""
    taken = frozenset().union(*(pages.explored(config).actions for config in KEYED_CONFIGURATIONS))

    assert taken == KEYED_ACTIONS.keys() - {"crash.all"}  # which the explorer does in every state


def test_the_code_that_actions_stand_for_exists() -> None:
    """Names of modules, classes and functions below ``ferryman``, and of crash points; all of those of keyed nodes."""
    named = {point for action in KEYED_ACTIONS.values() for point in action.points}
    for action in KEYED_ACTIONS.values():
        for name in action.code:
            resolved(name)

    assert named <= POINTS.keys() | KEYED.keys()
    assert KEYED.keys() - {"create.keyed"} <= named
