"""A failed attempt is judged in one place, whatever failed."""

from __future__ import annotations

import pytest

from ferryman import limits
from ferryman.destinations import Guarantee
from ferryman.engine.results import Attempts
from ferryman.engine.retries import draw_due_us, judge_failure
from ferryman.plan.nodes import Policy, RetryLimits

NOW_US = 1_700_000_000_000_000
HOUR_S = 3600.0


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize(("made", "is_last"), [(0, False), (1, False), (2, True), (5, True)])
def test_attempts_are_limited_in_number(made: int, is_last: bool, transient: bool) -> None:
    """Without patience each error counts, transient or not."""
    failed = judge_failure(Attempts(made, None, None), RetryLimits(3, None), NOW_US, transient=transient)
    assert (failed.attempts.attempt, failed.is_last, failed.is_patient) == (made + 1, is_last, False)


def test_the_first_transient_error_is_remembered() -> None:
    """Since when, and how many there were: other errors leave both as they are."""
    first = judge_failure(Attempts(1, None, None), RetryLimits(9, None), NOW_US, transient=True).attempts
    assert first == Attempts(2, NOW_US, 1)
    second = judge_failure(first, RetryLimits(9, None), NOW_US + 5, transient=True).attempts
    assert second == Attempts(3, NOW_US, 2)
    assert judge_failure(second, RetryLimits(9, None), NOW_US + 9, transient=False).attempts == Attempts(4, NOW_US, 2)


def test_patience_is_a_time_and_some_tries() -> None:
    """Transient errors are repeated until both are used up; others count as attempts of their own."""
    patience = RetryLimits(2, HOUR_S)
    since = NOW_US - int(HOUR_S * 1e6)
    enough = limits.PATIENCE_TRIES - 1
    for tries, begun, is_last in ((enough, since, True), (enough, since + 1, False), (enough - 1, since, False)):
        failed = judge_failure(Attempts(tries, begun, tries), patience, NOW_US, transient=True)
        assert (failed.is_last, failed.is_patient) == (is_last, True)
    for others, is_last in ((0, False), (1, True)):
        failed = judge_failure(Attempts(7 + others, since, 7), patience, NOW_US, transient=False)
        assert (failed.is_last, failed.is_patient) == (is_last, False)


def test_the_next_attempt_is_due_within_the_longest_wait() -> None:
    policy = Policy(Guarantee.AT_LEAST_ONCE, backoff=(8.0,))
    failed = judge_failure(Attempts(0, None, None), policy.limits, NOW_US, transient=True)
    drawn = {failed.next_us(policy, NOW_US) for _ in range(100)}
    assert all(NOW_US <= each <= NOW_US + 8_000_000 for each in drawn)
    assert len(drawn) > 1, "what failed together does not come back together"
    assert draw_due_us(0, NOW_US) == NOW_US
