"""``ferryman intake batches``, ``jobs``, ``show``: what is in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.intake.options import QueueUrl, batch_of, item, opened
from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import print_json, print_line, print_note, print_table
from ferryman.errors import FerrymanError

if TYPE_CHECKING:
    from ferryman.intake import Batch

OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", show_default=False, help="Only items in this state: Pending, …."),
]


def batches(state: OfState = None, queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """List batches, oldest first.

    With the numbers of jobs that are at work (pending and held ones too), completed, failed and deleted.
    """
    from ferryman.intake import overview

    with opened(queue) as found:
        rows = list(overview.batch_rows(found.tree, found.list_batches(state)))
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
    from ferryman.intake import overview

    with opened(queue) as found:
        only = None if batch is None else set(_jobs_of(batch_of(found, batch)))
        ids = [name for name in found.list_jobs(state) if only is None or name in only]
        known = overview.priorities(found.tree, state) if state is not None else {}
        rows = list(overview.job_rows(found.tree, ids, known))
    told_rows(rows, ("id", "batch", "status", "priority", "retry_count", "last_modified", "message"), json)


def count(queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """Count jobs and batches per state."""
    from ferryman.intake import overview
    from ferryman.intake.states import BatchState

    with opened(queue) as found:
        jobs, batches = overview.count_jobs(found.tree), overview.count_batches(found.tree)
    names = [*dict.fromkeys([*jobs, *(state.value for state in BatchState)])]
    rows = [{"state": name, "jobs": jobs.get(name, 0), "batches": batches.get(name, 0)} for name in names]
    told_rows([row for row in rows if json or row["jobs"] or row["batches"]], ("state", "jobs", "batches"), json)


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
    from ferryman.intake import Batch, Job, overview
    from ferryman.intake.audit import without_secrets

    with opened(queue) as found:
        one = item(found, name)
        if isinstance(one, Job):
            row = {**next(overview.job_rows(found.tree, [name])), "last_successful_status": one.last_successful_status}
            row |= {"space_needed": one.space_needed, "configuration": one.configuration}
            row |= {key: getattr(one, key) for key in ("identifiers", "metadata", "inventory", "store")}
        elif isinstance(one, Batch):
            row = {
                **next(overview.batch_rows(found.tree, [name])),
                "submission": one.submission,
                "report": one.kept_report,
                "jobs": _jobs_of(one),
            }
        else:
            row = {"id": name, "status": one.status, "last_modified": one.last_modified, "message": one.message}
            row["token"] = one.token
    row = without_secrets(row)
    if json:
        print_json(row)
        return
    for key, value in row.items():
        if value not in ("", {}, [], None):
            print_line(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _jobs_of(batch: Batch) -> list[str]:
    return sorted([*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs])


def or_error(load: Any) -> Any:
    """Return the result, or the reason why it cannot be loaded: one damaged node hides no other row."""
    try:
        return load()
    except FerrymanError as e:
        return str(e)


def told_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], json: bool) -> None:
    from ferryman.intake.audit import without_secrets

    rows = without_secrets(rows)
    if json:
        print_json(rows)
    elif rows:
        print_table(columns, _cells(rows, columns))
    else:
        print_note("There are none.")


def _cells(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Iterator[list[object]]:
    for row in rows:
        yield [row.get(column) for column in columns]
