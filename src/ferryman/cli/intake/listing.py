"""``ferryman intake batches``, ``jobs``, ``show``: what is in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.intake.options import QueueUrl, item, opened
from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import json_line, note, say, table
from ferryman.errors import FerrymanError

if TYPE_CHECKING:
    from ferryman.intake import Batch, Job, Queue

OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", show_default=False, help="Only items in this state: Pending, …."),
]


def batches(state: OfState = None, queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """List batches, oldest first.

    With the numbers of jobs that are at work (pending and held ones too), completed, failed and deleted.
    """
    with opened(queue) as found:
        rows = [_batch(found, name) for name in found.list_batches(state)]
    told_rows(rows, ("id", "status", "processing", "completed", "failed", "deleted", "last_modified", "message"), json)


def jobs(
    state: OfState = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="ID", show_default=False, help="Only jobs of this batch.")
    ] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List jobs, in the order in which they would be acquired."""
    with opened(queue) as found:
        only = None if batch is None else set(_jobs_of(found.load_batch(batch)))
        rows = [_job(found, name) for name in found.list_jobs(state) if only is None or name in only]
    told_rows(rows, ("id", "batch", "status", "priority", "retry_count", "last_modified", "message"), json)


def show(
    name: Annotated[
        str,
        typer.Argument(metavar="ID", show_default=False, help="A job (jid…), batch (bid…) or request (small/qid…)."),
    ],
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Tell all that is known of a batch, a job or an access request."""
    from ferryman.intake import Batch, Job

    with opened(queue) as found:
        one = item(found, name)
        if isinstance(one, Job):
            row = {**_job(found, name), "last_successful_status": one.last_successful_status}
            row |= {"space_needed": one.space_needed, "configuration": one.configuration}
            row |= {key: getattr(one, key) for key in ("identifiers", "metadata", "inventory", "store")}
        elif isinstance(one, Batch):
            row = {
                **_batch(found, name),
                "submission": one.submission,
                "report": one.kept_report,
                "jobs": _jobs_of(one),
            }
        else:
            row = {"id": name, "status": one.status, "last_modified": one.last_modified, "message": one.message}
            row["token"] = one.token
    if json:
        json_line(row)
        return
    for key, value in row.items():
        if value not in ("", {}, [], None):
            say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _jobs_of(batch: Batch) -> list[str]:
    return sorted([*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs])


def _batch(queue: Queue, name: str) -> dict[str, Any]:
    batch = or_error(lambda: queue.load_batch(name))
    if isinstance(batch, str):
        return {"id": name, "status": None, "message": batch}
    return {
        "id": name,
        "status": batch.status,
        "processing": len(batch.processing_jobs),
        "completed": len(batch.completed_jobs),
        "failed": len(batch.failed_jobs),
        "deleted": len(batch.deleted_jobs),
        "last_modified": batch.last_modified,
        "message": batch.message,
    }


def _job(queue: Queue, name: str) -> dict[str, Any]:
    job: Job | str = or_error(lambda: queue.load_job(name))
    if isinstance(job, str):
        return {"id": name, "status": None, "message": job}
    return {
        "id": name,
        "batch": job.batch_id,
        "status": job.status,
        "priority": job.priority,
        "retry_count": job.retry_count,
        "last_modified": job.last_modified,
        "message": job.message,
    }


def or_error(load: Any) -> Any:
    """What it loads, or in words why it cannot: one damaged node hides no other row."""
    try:
        return load()
    except FerrymanError as e:
        return str(e)


def told_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], json: bool) -> None:
    if json:
        json_line(rows)
    elif rows:
        table(columns, _cells(rows, columns))
    else:
        note("There are none.")


def _cells(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Iterator[list[object]]:
    for row in rows:
        yield [row.get(column) for column in columns]
