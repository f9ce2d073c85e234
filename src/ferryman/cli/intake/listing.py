"""``ferryman intake batches``, ``jobs``, ``show``: what is in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from ferryman.cli.intake.options import QueueUrl, load_batch, load_item, open_queue
from ferryman.cli.options import Json, Verbose, argument, option
from ferryman.cli.terminal import print_json, print_line, print_note, print_table
from ferryman.errors import FerrymanError

if TYPE_CHECKING:
    from ferryman.intake import Batch

StateFilter = Annotated[str | None, option("--state", "STATE", "Only items in this state: Pending, ….")]


def batches(state: StateFilter = None, queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """List batches, oldest first.

    With the numbers of jobs that are unfinished (also pending and held ones), completed, failed and deleted.
    """
    from ferryman.intake import overview

    with open_queue(queue) as job_queue:
        rows = list(overview.batch_rows(job_queue.tree, job_queue.list_batches(state)))
    print_rows(rows, ("id", "status", "processing", "completed", "failed", "deleted", "last_modified", "message"), json)


def jobs(
    state: StateFilter = None,
    batch: Annotated[str | None, option("--batch", "ID", "Only jobs of this batch.")] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List jobs, in the order in which they would be acquired."""
    from ferryman.intake import overview

    with open_queue(queue) as job_queue:
        only = None if batch is None else set(_job_ids(load_batch(job_queue, batch)))
        ids = [name for name in job_queue.list_jobs(state) if only is None or name in only]
        known = overview.priorities(job_queue.tree, state) if state is not None else {}
        rows = list(overview.job_rows(job_queue.tree, ids, known))
    print_rows(rows, ("id", "batch", "status", "priority", "retry_count", "last_modified", "message"), json)


def count(queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """Count jobs and batches per state."""
    from ferryman.intake import overview
    from ferryman.intake.states import BatchState

    with open_queue(queue) as job_queue:
        jobs, batches = overview.count_jobs(job_queue.tree), overview.count_batches(job_queue.tree)
    names = [*dict.fromkeys([*jobs, *(state.value for state in BatchState)])]
    rows = [{"state": name, "jobs": jobs.get(name, 0), "batches": batches.get(name, 0)} for name in names]
    print_rows([row for row in rows if json or row["jobs"] or row["batches"]], ("state", "jobs", "batches"), json)


def show(
    name: Annotated[str, argument("ID", "A job (jid…), batch (bid…) or request (small/qid…).")],
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show everything about a batch, a job or an access request."""
    from ferryman.intake import Batch, Job, overview
    from ferryman.intake.audit import without_secrets

    with open_queue(queue) as job_queue:
        item = load_item(job_queue, name)
        if isinstance(item, Job):
            row = {
                **next(overview.job_rows(job_queue.tree, [name])),
                "last_successful_status": item.last_successful_status,
            }
            row |= {"space_needed": item.space_needed, "configuration": item.configuration}
            row |= {key: getattr(item, key) for key in ("identifiers", "metadata", "inventory", "store")}
        elif isinstance(item, Batch):
            row = {
                **next(overview.batch_rows(job_queue.tree, [name])),
                "submission": item.submission,
                "report": item.kept_report,
                "jobs": _job_ids(item),
            }
        else:
            row = {"id": name, "status": item.status, "last_modified": item.last_modified, "message": item.message}
            row["token"] = item.token
    row = without_secrets(row)
    if json:
        print_json(row)
        return
    for key, value in row.items():
        if value not in ("", {}, [], None):
            print_line(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _job_ids(batch: Batch) -> list[str]:
    return sorted([*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs])


def load_or_error(load: Any) -> Any:
    """Return the result, or the reason why it cannot be loaded: one damaged node hides no other row."""
    try:
        return load()
    except FerrymanError as e:
        return str(e)


def print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], json: bool) -> None:
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
