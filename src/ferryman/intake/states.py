"""The states of batches, jobs and access requests, and their legal moves, as data.

The pictures and tables in the docs are generated from this data. Setting the state that an item already has is not a
move: it is not in the tables, and `set_status` treats it as a change of message and priority.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ferryman.intake.errors import StateError

S = TypeVar("S", bound=enum.StrEnum)


class JobState(enum.StrEnum):
    """States of a job. The value is stored in the status node."""

    PENDING = "Pending"
    HELD = "Held"
    ESTIMATING = "Estimating"
    PROVISIONING = "Provisioning"
    DOWNLOADING = "Downloading"
    PROCESSING = "Processing"
    STORING = "Storing"
    RECORDING = "Recording"
    NOTIFY = "Notify"
    COMPLETED = "Completed"
    FAILED = "Failed"
    DELETED = "Deleted"


class BatchState(enum.StrEnum):
    """States of a batch."""

    PENDING = "Pending"
    HELD = "Held"
    PROCESSING = "Processing"
    REPORTING = "Reporting"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UPDATE_REPORTING = "UpdateReporting"
    DELETED = "Deleted"


class AccessState(enum.StrEnum):
    """States of a request for a bundle of delivered originals."""

    PENDING = "Pending"
    PROCESSING = "Processing"
    COMPLETED = "Completed"
    FAILED = "Failed"
    DELETED = "Deleted"


@dataclass(frozen=True)
class Transitions(Generic[S]):
    """State machine: which moves are legal, and which states success and failure lead to."""

    states: type[S]
    moves: Mapping[S, frozenset[S]]
    success: Mapping[S, S]
    fail: Mapping[S, S]
    final: frozenset[S]
    """Final states; an item in one of them can only be removed."""
    meaning: Mapping[S, str]

    def move(self, before: S, after: S) -> S:
        """Return the state after a move, if the move is legal.

        Raises:
            StateError: the move is not legal; nothing changes.
        """
        if after not in self.moves[before]:
            raise StateError(before, after)
        return after

    def after_success(self, before: S) -> S:
        """Return the state to move to when the work of this one is done.

        Raises:
            StateError: no work is done in this state.
        """
        if before not in self.success:
            raise StateError(before, "success")
        return self.success[before]

    def after_failure(self, before: S) -> S:
        """Return the state to move to when the work of this one has failed.

        Raises:
            StateError: nothing can fail in this state.
        """
        if before not in self.fail:
            raise StateError(before, "fail")
        return self.fail[before]


_J = JobState
_SEQUENCE = (
    _J.ESTIMATING,
    _J.PROVISIONING,
    _J.DOWNLOADING,
    _J.PROCESSING,
    _J.STORING,
    _J.RECORDING,
    _J.NOTIFY,
    _J.COMPLETED,
)

JOB: Final[Transitions[JobState]] = Transitions(
    states=JobState,
    moves={
        _J.PENDING: frozenset({_J.HELD, _J.ESTIMATING, _J.FAILED}),
        _J.HELD: frozenset({_J.PENDING, _J.DELETED}),
        _J.ESTIMATING: frozenset({_J.PROVISIONING, _J.FAILED}),
        _J.PROVISIONING: frozenset({_J.DOWNLOADING, _J.FAILED}),
        _J.DOWNLOADING: frozenset({_J.PROCESSING, _J.FAILED}),
        _J.PROCESSING: frozenset({_J.STORING, _J.FAILED}),
        _J.STORING: frozenset({_J.RECORDING, _J.FAILED}),
        _J.RECORDING: frozenset({_J.NOTIFY, _J.FAILED}),
        _J.NOTIFY: frozenset({_J.COMPLETED, _J.FAILED}),
        _J.FAILED: frozenset({_J.PENDING, *_SEQUENCE[:-1], _J.DELETED}),
        _J.COMPLETED: frozenset(),
        _J.DELETED: frozenset(),
    },
    success=dict(itertools.pairwise(_SEQUENCE)),
    fail=dict.fromkeys((_J.PENDING, *_SEQUENCE[:-1]), _J.FAILED),
    final=frozenset({_J.COMPLETED, _J.DELETED}),
    meaning={
        _J.PENDING: "created, and waiting for its turn",
        _J.HELD: "held by an operator, or because its collection is on hold; released one by one",
        _J.ESTIMATING: "its size is asked for; a job of unknown size continues later than the others",
        _J.PROVISIONING: "waits for working space",
        _J.DOWNLOADING: "its files are fetched, their digests checked",
        _J.PROCESSING: "its documents run through the plan",
        _J.STORING: "waits until the wave that holds its documents is settled",
        _J.RECORDING: "settled: what was delivered is noted",
        _J.NOTIFY: "its submitter is notified",
        _J.COMPLETED: "delivered, and its submitter notified",
        _J.FAILED: "an operator decides: try again after the last state that succeeded, or delete",
        _J.DELETED: "deleted by an operator",
    },
)

_B = BatchState
BATCH: Final[Transitions[BatchState]] = Transitions(
    states=BatchState,
    moves={
        _B.PENDING: frozenset({_B.HELD, _B.PROCESSING}),
        _B.HELD: frozenset({_B.PENDING, _B.DELETED}),
        _B.PROCESSING: frozenset({_B.REPORTING, _B.FAILED}),
        _B.REPORTING: frozenset({_B.COMPLETED, _B.FAILED}),
        _B.FAILED: frozenset({_B.UPDATE_REPORTING, _B.DELETED}),
        _B.UPDATE_REPORTING: frozenset({_B.COMPLETED, _B.FAILED}),
        _B.COMPLETED: frozenset(),
        _B.DELETED: frozenset(),
    },
    success={
        _B.PROCESSING: _B.REPORTING,
        _B.REPORTING: _B.COMPLETED,
        _B.UPDATE_REPORTING: _B.COMPLETED,
    },
    fail={_B.PROCESSING: _B.REPORTING, _B.REPORTING: _B.FAILED, _B.UPDATE_REPORTING: _B.FAILED},
    final=frozenset({_B.COMPLETED, _B.DELETED}),
    meaning={
        _B.PENDING: "submitted, and waiting for its turn",
        _B.HELD: "held by an operator",
        _B.PROCESSING: "its jobs are created, and being processed",
        _B.REPORTING: "every job is Completed or Failed: its submitter is notified which",
        _B.COMPLETED: "reported, and every job is done",
        _B.FAILED: "reported, and some jobs have failed; or no jobs could be made of it",
        _B.UPDATE_REPORTING: "an operator asked to notify the submitter of what has changed since",
        _B.DELETED: "deleted by an operator",
    },
)

_A = AccessState
ACCESS: Final[Transitions[AccessState]] = Transitions(
    states=AccessState,
    moves={
        _A.PENDING: frozenset({_A.PROCESSING}),
        _A.PROCESSING: frozenset({_A.COMPLETED, _A.FAILED}),
        _A.FAILED: frozenset({_A.PROCESSING, _A.DELETED}),
        _A.COMPLETED: frozenset(),
        _A.DELETED: frozenset(),
    },
    success={_A.PROCESSING: _A.COMPLETED},
    fail={_A.PROCESSING: _A.FAILED},
    final=frozenset({_A.COMPLETED, _A.DELETED}),
    meaning={
        _A.PENDING: "asked for, and waiting for its turn",
        _A.PROCESSING: "its bundle is being built",
        _A.COMPLETED: "its bundle is ready",
        _A.FAILED: "its bundle could not be made; an operator decides",
        _A.DELETED: "deleted by an operator",
    },
)

RESUME_STATES: Final[Mapping[JobState, JobState]] = {
    _J.PENDING: _J.ESTIMATING,
    _J.ESTIMATING: _J.PROVISIONING,
    _J.PROVISIONING: _J.DOWNLOADING,
    _J.DOWNLOADING: _J.PROCESSING,
    _J.PROCESSING: _J.STORING,
    _J.STORING: _J.RECORDING,
    _J.RECORDING: _J.NOTIFY,
}
"""Where a requeued job continues, by its last successful state."""


def resume_state(last_successful: str | None) -> JobState:
    """Return the state in which a failed job is retried: the one after its last successful state, or else
    Estimating."""
    states_after = {state.value: after for state, after in RESUME_STATES.items()}
    return states_after.get(last_successful or "", _J.ESTIMATING)


class JobList(enum.StrEnum):
    """Lists of a batch; each of its jobs is in exactly one of them."""

    PROCESSING = "batch-processing"
    COMPLETED = "batch-completed"
    FAILED = "batch-failed"
    DELETED = "batch-deleted"


def job_list_of(state: JobState) -> JobList:
    """Return the list, in its batch, of a job in this state."""
    return {
        _J.COMPLETED: JobList.COMPLETED,
        _J.FAILED: JobList.FAILED,
        _J.DELETED: JobList.DELETED,
    }.get(state, JobList.PROCESSING)
