"""What an outcome of a destination means for its row: delivered, pending again, failed, or in doubt."""

from __future__ import annotations

import random
from typing import NamedTuple

from ferryman.destinations.base import Guarantee, Outcome
from ferryman.errors import plain_text
from ferryman.plan import Policy
from ferryman.records.row_results import UNTOUCHED, RowResult
from ferryman.records.statuses import Status


class Tries(NamedTuple):
    """What a row has had before: attempts; its first transient error, µs since 1970; how many attempts ended so."""

    attempt: int
    since: int | None
    transient: int | None


def row_result(row: int, before: Tries, outcome: Outcome, policy: Policy, now_us: int) -> RowResult:
    """What is noted of a row whose outcome was not ok."""
    attempt, since, transient = before.attempt + 1, before.since, before.transient
    kind, why = outcome.kind, plain_text(outcome.why)
    if kind == "stale":
        return RowResult(row, Status.INDEXED, "stale: the destination has something newer", attempt, None)
    if outcome.universal or kind == "held":
        return RowResult(row, UNTOUCHED, why, before.attempt, None)  # no attempt is spent
    if kind == "killed":
        return RowResult(row, Status.ERROR_DOC, why, attempt, None)
    if kind == "permanent":
        return RowResult(row, Status.DEAD, why, attempt, None)
    if kind == "unknown" and policy.guarantee is Guarantee.AT_MOST_ONCE:
        return RowResult(row, Status.INDEXING, f"unknown: {why}", attempt, None)
    waited_s = None
    if kind == "transient":
        since, transient = since or now_us, (transient or 0) + 1
        waited_s = (now_us - since) / 1e6
    if policy.limits.passed(attempt, transient or 0, waited_s):
        return RowResult(row, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt, None)
    patient = waited_s is not None and policy.patience_s is not None
    wait = random.uniform(0, policy.longest_wait_s(attempt, patient=patient))
    return RowResult(row, Status.ERROR, why, attempt, now_us + int(wait * 1e6), since, transient)
