"""The model of jobs: every order of its steps keeps the promises, and every fault that is put into it breaks one."""

from __future__ import annotations

import pytest

from tests.model import jobs_pages
from tests.model.jobs import Budget, Config
from tests.model.jobs_explored import PROMISES, explored
from tests.model.jobs_faults import CONFIGURATIONS, FAULTS, Fault
from tests.support.tiers import sampled


@pytest.mark.parametrize("config", sampled([(config,) for config in CONFIGURATIONS], 4), ids=lambda config: config.name)
def test_nothing_is_broken_in_any_world(config: Config) -> None:
    """Whatever order things happen in, whatever is killed, lost, or taken away."""
    found = explored(config).found
    assert found is None, str(found)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_found(fault: Fault) -> None:
    """It breaks the promise that is named, and without it this world keeps all."""
    found = explored(fault.config).found
    print(found)
    assert found is not None
    assert found.promise == fault.breaks
    assert explored(fault.world).found is None


def test_there_are_ten_faults_and_every_promise_is_broken_by_one() -> None:
    """Or a promise would prove nothing."""
    assert len({fault.name for fault in FAULTS}) >= 10
    assert {fault.breaks for fault in FAULTS} == PROMISES.keys()


def test_every_trouble_is_explored() -> None:
    """On both stores: no field of the budget is only written down."""
    for atomic in (False, True):
        budgets = [config.budget for config in CONFIGURATIONS if config.atomic is atomic]
        assert all(any(values) for values in zip(*budgets, strict=True)), Budget._fields


def test_every_step_is_taken() -> None:
    """Those of threads, of the store, and of whoever disturbs them."""
    taken = {step for config in CONFIGURATIONS for step in explored(config).steps}
    for word in ("makes the lock", "looks whose", "sends its move", "takes up a move", "requeues", "unlocks once more"):
        assert any(word in step for step in taken), word


def test_the_page_says_what_was_explored() -> None:
    """If this fails: ``python -m tests.model.jobs_pages --write``, and look at what has changed."""
    text = jobs_pages.PAGE.read_text("utf-8")
    assert jobs_pages.made(text) == text
