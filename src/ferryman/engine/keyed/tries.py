"""What a failed call means for its document: tried again, failed or rejected."""

from __future__ import annotations

import random

from ferryman.engine.deliver.outcomes import Tries
from ferryman.engine.transform.node_errors import TRANSIENT, ErrorKind, NodeError
from ferryman.plan import Policy
from ferryman.records.reasons import with_traceback
from ferryman.records.row_results import RowResult
from ferryman.records.statuses import Status


def result_of(sequence: int, before: Tries, fault: NodeError, policy: Policy, now_us: int) -> RowResult:
    """What is noted of a document whose attempt failed."""
    attempt, since, transient = before.attempt + 1, before.since, before.transient
    why = with_traceback(fault.text, fault.trace)
    if fault.kind is ErrorKind.PERMANENT:
        return RowResult(sequence, Status.ERROR_DOC, why, attempt, None)
    waited_s = None
    if fault.kind in TRANSIENT:
        since, transient = since or now_us, (transient or 0) + 1
        waited_s = (now_us - since) / 1e6
    if policy.limits.passed(attempt, transient or 0, waited_s):
        why = with_traceback(f"{fault.text} (attempt {attempt}, the last)", fault.trace)
        return RowResult(sequence, Status.DEAD, why, attempt, None)
    patient = waited_s is not None and policy.patience_s is not None
    wait = random.uniform(0, policy.longest_wait_s(attempt, patient=patient))
    return RowResult(sequence, Status.ERROR, why, attempt, now_us + int(wait * 1e6), since, transient)
