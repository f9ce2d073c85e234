"""The model: every order of its steps keeps the promises, and every fault that is put into it breaks one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.crash import POINTS
from ferryman.records.rows import Status
from tests.docs.test_architecture import resolved
from tests.model import pages
from tests.model.actions import ACTIONS, NOT_MODELLED
from tests.model.configurations import CHANGES, CONFIGURATIONS, ONE
from tests.model.explore import Explorer
from tests.model.invariants import INVARIANTS
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.state import LEAST, ONCE, Budget, Config, Destination, State, Waiting
from tests.support.tiers import sampled

EVERY = 9
"""One configuration of so many is explored each time."""
ARCHITECTURE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")


@pytest.mark.parametrize(
    "config", sampled([(config,) for config in CONFIGURATIONS], EVERY), ids=lambda config: config.name
)
def test_nothing_is_broken_in_any_state(config: Config, record_property: Callable[[str, object], None]) -> None:
    """All states, whatever order things happen in, whatever is killed where."""
    report = pages.explored(config)
    record_property("states", report.states)
    record_property("transitions", report.transitions)
    print(f"{config.name}: {report.states} states, {report.transitions} transitions, {report.seconds:.1f} s")

    assert report.violation is None, str(report.violation)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_is_found(mutation: Mutation) -> None:
    """A protocol with this fault breaks the promise that is named, and the model finds the way there."""
    violation = pages.explored(mutation.config).violation
    print(mutation.name, violation, sep="\n")

    assert violation is not None
    assert violation.invariant == mutation.breaks


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_without_the_mutation_nothing_is_broken(mutation: Mutation) -> None:
    """It is the fault that is found, not the world that it is looked for in."""
    report = Explorer(mutation.world).explore()

    assert report.violation is None, str(report.violation)


LATE = Config("", ONE, (Destination(ONCE),), Budget(crashes=1, late=1))
RIVALS = Config("", ONE, (Destination(LEAST),), Budget(rivals=1), lock=False)
TIRED = Config("", ONE, (Destination(LEAST),), Budget(faults=2), ("transient",))
REFUSED = Config("", CHANGES, (Destination(LEAST, compares=True),), Budget(faults=2), ("refused", "hung"))


@pytest.mark.parametrize(
    ("config", "happens"),
    [
        (LATE, lambda a, b: a.ledger == (Status.INDEXING,) and b.ledger == (Status.INDEXED,)),
        (
            LATE,
            lambda a, b: b.ledger == (Status.INDEXING,) and b.outbox[0].parked and b.told[0].effects and not b.workers,
        ),
        (RIVALS, lambda a, b: len(a.drivers) == 2 and len(b.drivers) == 1 and b.wave > min(b.settled)),
        (TIRED, lambda a, b: b.ledger == (Status.DEAD,) and b.outbox == (Waiting(0, 2, parked=True),)),
        (REFUSED, lambda a, b: any(t.done and not t.effects for t in b.told)),
    ],
    ids=["a late answer ends a doubt", "a doubt stays", "a rival has to stop", "attempts end", "something is stale"],
)
def test_what_matters_happens(config: Config, happens: Callable[[State, State], bool]) -> None:
    """The worlds are not so small that the interesting things cannot happen in them."""
    explorer = Explorer(config)
    explorer.explore()

    assert any(before is not None and happens(before, after) for before, after in explorer.explored())


def test_every_invariant_is_broken_by_some_mutation() -> None:
    """No check that cannot fail."""
    assert {mutation.breaks for mutation in MUTATIONS} == {*INVARIANTS, "I9"}


def test_every_mutation_is_asked_for() -> None:
    """A name that no function asks for would change nothing."""
    here = Path(__file__).parent
    asking = [path for path in here.glob("*.py") if path.stem not in ("mutations", "test_model")]
    text = "".join(path.read_text("utf-8") for path in asking)

    for mutation in MUTATIONS:
        assert f'"{mutation.name}"' in text


def test_the_largest_worlds_are_explored() -> None:
    """Three documents and two destinations somewhere; one of each with two drivers, two kills and speculation."""
    sizes = {(len(config.histories), len(config.destinations)) for config in CONFIGURATIONS}
    assert (3, 2) in sizes

    small = [c for c in CONFIGURATIONS if (len(c.histories), len(c.destinations)) == (1, 1)]
    assert any(c.budget.rivals and c.budget.crashes >= 2 and c.budget.doubles for c in small)


@pytest.mark.slow
def test_every_action_is_taken() -> None:
    """No step of the model is only written down. Those that are explored each time are looked through first."""
    wanted = ACTIONS.keys() - {"crash.all"}  # which the explorer does in every state
    for n in sorted(range(len(CONFIGURATIONS)), key=lambda n: n % EVERY):
        wanted -= pages.explored(CONFIGURATIONS[n]).actions
        if not wanted:
            break

    assert not wanted


def test_every_crash_point_is_modelled_or_said_not_to_be() -> None:
    """Each name of ``testing.crash.POINTS`` belongs to an action, or there is a reason why not."""
    named = {point for action in ACTIONS.values() for point in action.points}

    assert named | NOT_MODELLED.keys() == POINTS.keys()
    assert not named & NOT_MODELLED.keys()


def test_the_code_that_actions_stand_for_exists() -> None:
    """Names of modules, classes and functions below ``ferryman``."""
    for action in ACTIONS.values():
        for name in action.code:
            resolved(name)


def test_the_invariants_are_those_of_the_architecture() -> None:
    """I1 to I9; each check begins with the sentence that it checks."""
    assert {*INVARIANTS, "I9"} == {*(f"I{n}" for n in range(1, 10)), "order"}
    page = " ".join(ARCHITECTURE.split())
    checks = [check for name, check in INVARIANTS.items() if name != "order"]
    for check in [*checks, Explorer.unrecoverable]:
        rule = re.split(r"\n\s*\n", check.__doc__ or "")[0]
        assert " ".join(rule.split()) in page, rule


@pytest.mark.parametrize("config", CONFIGURATIONS[::EVERY], ids=lambda config: config.name)
def test_the_page_has_the_line_of_what_is_explored_each_time(config: Config) -> None:
    """The same as ``test_the_page_says_what_was_explored``, which explores all."""
    assert pages.line(config) in pages.PAGE.read_text("utf-8").splitlines()


@pytest.mark.slow
def test_the_page_says_what_was_explored() -> None:
    """If this fails: ``python -m tests.model --write``, and look at what has changed."""
    text = pages.PAGE.read_text("utf-8")

    assert pages.made(text) == text
