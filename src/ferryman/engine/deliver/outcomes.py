"""What an outcome of a destination means for its row: done, owed again, dead, or unknown."""

from __future__ import annotations

import random

from ferryman.destinations.base import Guarantee, Outcome
from ferryman.errors import words
from ferryman.ledger.journal import UNTOUCHED, RowResult
from ferryman.ledger.statuses import Status
from ferryman.plan import Policy


def row_result(row: int, attempt: int, outcome: Outcome, policy: Policy, now_us: int) -> RowResult:
    """What is noted of a row whose outcome was not ok.

    Args:
        attempt: this one, from 1.
    """
    kind, why = outcome.kind, words(outcome.why)
    if kind == "stale":
        return RowResult(row, Status.INDEXED, "stale: the destination has something newer", attempt, None)
    if outcome.universal:
        return RowResult(row, UNTOUCHED, why, attempt - 1, None)  # no attempt is spent
    if kind == "killed":
        return RowResult(row, Status.ERROR_DOC, why, attempt, None)
    if kind == "permanent":
        return RowResult(row, Status.DEAD, why, attempt, None)
    if kind == "unknown" and policy.guarantee is Guarantee.AT_MOST_ONCE:
        return RowResult(row, Status.INDEXING, f"unknown: {why}", attempt, None)
    if attempt >= policy.attempts:
        return RowResult(row, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt, None)
    wait = random.uniform(0, policy.longest_wait_s(attempt))
    return RowResult(row, Status.ERROR, why, attempt, now_us + int(wait * 1e6))
