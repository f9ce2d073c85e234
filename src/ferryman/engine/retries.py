"""Judgement of a failed attempt: is it the last one, and when is the next? The same for deliveries, steps, keyed nodes.

An attempt that ended in an error for good is not judged here: it has no next one.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ferryman.engine.results import Attempts
from ferryman.plan.nodes import Policy, RetryLimits


class FailedAttempt(NamedTuple):
    """An attempt that failed.

    Attributes:
        attempts: all attempts so far, with this one.
        is_last: whether there is no further one.
        is_patient: whether it is repeated for a time, not for a number of attempts.
    """

    attempts: Attempts
    is_last: bool
    is_patient: bool

    def next_us(self, policy: Policy, now_us: int) -> int:
        """Return when the next attempt is due, µs since 1970."""
        return draw_due_us(policy.longest_wait_s(self.attempts.attempt, patient=self.is_patient), now_us)


def judge_failure(before: Attempts, limits: RetryLimits, now_us: int, *, transient: bool) -> FailedAttempt:
    """Return what a failed attempt means.

    Args:
        before: the attempts before it.
        transient: the error declared itself transient.
    """
    attempt, since, transients = before.attempt + 1, before.since, before.transient
    waited_s = None
    if transient:
        since, transients = since or now_us, (transients or 0) + 1
        waited_s = (now_us - since) / 1e6
    return FailedAttempt(
        Attempts(attempt, since, transients),
        limits.is_exhausted(attempt, transients or 0, waited_s),
        transient and limits.patience_s is not None,
    )


def draw_due_us(longest_s: float, now_us: int) -> int:
    """Return a random time within the longest wait, µs since 1970: what failed together does not come back together."""
    return now_us + int(random.uniform(0, longest_s) * 1e6)
