"""The nodes of a new job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferryman.intake import nodes
from ferryman.intake.nodes import encoded, job_path, state_path
from ferryman.intake.states import JobState
from ferryman.intake.store import Create, Op


def creation(
    job_id: str,
    batch_id: str,
    values: Mapping[str, Mapping[str, Any]],
    *,
    now: str,
    priority: int = nodes.PRIORITY,
    state: JobState = JobState.PENDING,
    message: str = "",
) -> list[Op]:
    """The nodes of a new job, but for its place in its batch's list. ``values``: its JSON nodes by name."""
    path = job_path(job_id)
    status = {
        "status": state.value,
        "last_successful_status": None,
        "last_modified": now,
        "retry_count": 0,
        "message": message,
    }
    return [
        Create(path, numbered=True),
        Create(f"{path}/bid", batch_id.encode()),
        *(Create(f"{path}/{name}", encoded(f"{path}/{name}", dict(d))) for name, d in values.items() if d),
        Create(f"{path}/priority", str(priority).encode()),
        Create(f"{path}/space_needed", b"0"),
        Create(f"{path}/status", encoded(f"{path}/status", status)),
        Create(state_path(state, nodes.entry(priority, job_id))),
    ]
