"""Pages of queues, of flows, and of intake queues."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from starlette.responses import Response

from ferryman import account
from ferryman.counted_picture import svg_with_counts
from ferryman.dashboard.answers import StillCounting
from ferryman.dashboard.cells import command_of
from ferryman.dashboard.places import FlowPlace, IntakePlace, PlanPlace, QueuePlace, describe_error
from ferryman.dashboard.plans import COUNTS, svg_response, totals, version_of
from ferryman.dashboard.web import PAGE_ROWS, NotFound, WebPage
from ferryman.errors import FerrymanError, UsageError
from ferryman.intake import AccessState, Batch, BatchState, Job, JobQueue, JobState, overview
from ferryman.intake.audit import without_secrets
from ferryman.plan.picture import svg
from ferryman.queues import Queue

T = TypeVar("T")

_MESSAGES: Final = 20
_BATCHES: Final = 1_000
"""Batches whose states are counted on the page of an intake queue: one reads a node of each."""

ACTIONS: Final = ("hold", "release", "requeue", "fail", "prioritize", "report")
"""Actions on batches and jobs."""


# --- queues ---


def queues(page: WebPage) -> Response:
    """Show all queues, with their readers and how far they are behind."""
    rows = [_queue_row(place) for place in page.found.queues.values()]
    return page.render("queues.html", title="Queues", rows=rows, command=_queues_command(page, "list"), refresh_s=5)


def _queues_command(page: WebPage, verb: str, *rest: str) -> str:
    folder = next((str(place.folder.parent) for place in page.found.queues.values()), "queues")
    return command_of("queue", verb, *rest, "--queues", folder)


def _queue_row(place: QueuePlace) -> dict[str, Any]:
    """Return the facts about a queue, or what is wrong with it."""
    row: dict[str, Any] = {"place": place, "problem": "", "readers": [], "kept": 0, "first": 0, "last": 0}
    try:
        queue = Queue(place.name, place.folder.parent)
        first, last = queue.first_index, queue.last_index
        readers = queue.readers()
    except Exception as e:
        return {**row, "problem": describe_error(e)}
    behind = [(name, at, last + 1 - max(at, first)) for name, at in sorted(readers.items())]
    return {**row, "first": first, "last": last, "kept": last - first + 1, "readers": behind}


def queue(page: WebPage) -> Response:
    """Show one queue, and some of its messages."""
    place = page.found.queues.get(page.path("queue"))
    if place is None:
        raise NotFound(f"{page.path('queue')}: there is no such queue here, or it was deleted.")
    row = _queue_row(place)
    start = page.number("start", 0, 1 << 60) or max(row["first"], row["last"] - _MESSAGES + 1)
    messages = []
    if not row["problem"]:
        messages = Queue(place.name, place.folder.parent).read(start, _MESSAGES)
    return page.render(
        "queue.html",
        title=f"Queue {place.name}",
        row=row,
        place=place,
        messages=messages,
        start=start,
        step=_MESSAGES,
        ends=_ends(place, row),
        command=command_of("queue", "show", place.name, "--queues", str(place.folder.parent)),
        refresh_s=5,
    )


def _ends(place: QueuePlace, row: dict[str, Any]) -> list[Any]:
    """Return when the first and the last message that are kept were appended."""
    if row["problem"] or not row["kept"]:
        return []
    queue = Queue(place.name, place.folder.parent)
    return [message.created for at in (row["first"], row["last"]) for message in queue.read(at, 1)]


# --- flows ---


def flows(page: WebPage) -> Response:
    """Show the flows whose files were named."""
    return page.render(
        "flows.html", title="Flows", flows=list(page.found.flows.values()), command="ferryman dashboard flow.py"
    )


def _find_flow(page: WebPage) -> FlowPlace:
    if (place := page.found.flows.get(page.path("flow"))) is None:
        raise NotFound(f"{page.path('flow')}: there is no such flow here.")
    return place


def flow(page: WebPage) -> Response:
    """Show one flow: its picture, and the counts of its plans."""
    place = _find_flow(page)
    rows = []
    for label, each in place.plans.items():
        try:
            rows.append((label, each, totals(_plan_status(page, place)[label]), ""))
        except FerrymanError as e:
            rows.append((label, each, {}, str(e)))
    return page.render(
        "flow.html",
        title=f"Flow {place.flow.name}",
        place=place,
        rows=rows,
        joints=place.flow.joints,
        command=command_of("status", place.spec),
        version=abs(hash(tuple(version_of(each) for each in place.plans.values()))),
        refresh_s=5,
    )


def _plan_status(page: WebPage, place: FlowPlace) -> dict[str, Any]:
    """Return the status of each plan of a flow; zeros of one that never ran."""

    def find() -> dict[str, Any]:
        return {
            label: account.status(each.root, each.plan()) if each.exists else _nothing_yet(each)
            for label, each in place.plans.items()
        }

    return _ask_of_flow(page, place, "status", find)


def _ask_of_flow(page: WebPage, place: FlowPlace, question: str, find: Callable[[], T]) -> T:
    """Return the answer to a question about a flow, kept until the state of one of its plans changes."""
    version = tuple(version_of(each) for each in place.plans.values())
    return page.answer(("flow", question, place.key), version, find)


def _nothing_yet(place: PlanPlace) -> dict[str, Any]:
    """Return the status of a plan that never ran."""
    names = [node.name for node in place.plan().nodes if node.kind in ("destination", "tee")]
    destinations = {name: dict.fromkeys(COUNTS, 0) for name in names}
    return {"waves": 0, "balanced": True, "sources": {}, "destinations": destinations}


def flow_picture(page: WebPage) -> Response:
    """Draw a flow with the counts of its plans; without them, as long as they are being counted."""
    place = _find_flow(page)
    states = {label: (each.plan(), each.root) for label, each in place.plans.items()}
    try:
        statuses = _plan_status(page, place)
        drawn = _ask_of_flow(page, place, "picture", lambda: svg_with_counts(place.flow, states, statuses))
    except StillCounting:
        drawn = svg(place.flow)
    return svg_response(drawn)


# --- intake ---


@contextlib.contextmanager
def open_intake(place: IntakePlace) -> Iterator[JobQueue]:
    with JobQueue.open(place.url) as opened:
        yield opened


def find_intake(page: WebPage) -> IntakePlace:
    """Return the intake queue that a page is about.

    Raises:
        NotFound: there is none of this name.
    """
    if (place := page.found.intakes.get(page.path("intake"))) is None:
        raise NotFound(f"{page.path('intake')}: there is no such intake queue here.")
    return place


def intakes(page: WebPage) -> Response:
    """Show the intake queues."""
    rows = []
    for place in page.found.intakes.values():
        try:
            with open_intake(place) as opened:
                rows.append((place, overview.count_jobs(opened.tree), ""))
        except Exception as e:
            rows.append((place, {}, describe_error(e)))
    return page.render(
        "intakes.html", title="Intake", rows=rows, states=list(JobState), command="ferryman intake count", refresh_s=5
    )


def intake(page: WebPage) -> Response:
    """Show one intake queue: batches, jobs and access requests by state."""
    place = find_intake(page)
    kind = page.query("kind") or "batches"
    state, number = page.query("state"), page.number("page")
    with open_intake(place) as opened:
        jobs = overview.count_jobs(opened.tree)
        ids, rows = _intake_rows(opened, kind, state or None, page.query("batch") or None, number)
        all_batches = opened.tree.store.children("/batches")
        batches = overview.count_batches(opened.tree) if len(all_batches) <= _BATCHES else {}
        is_paused = opened.locks.check("ingest")
        collections = opened.locks.held("collection")
    states = {"batches": BatchState, "jobs": JobState, "access": AccessState}.get(kind, BatchState)
    verb = {"batches": "batches", "jobs": "jobs", "access": "access"}[kind]
    options = ["--state", state] if state else []
    return page.render(
        "intake.html",
        title=f"Intake {place.label}",
        place=place,
        kind=kind,
        state=state,
        batch=page.query("batch"),
        states=[each.value for each in states],
        jobs=jobs,
        batches=batches,
        rows=without_secrets(rows),
        number=number,
        more=len(ids) > number * PAGE_ROWS,
        all=len(ids),
        is_paused=is_paused,
        collections=collections,
        command=command_of("intake", verb, *options, "--queue", place.label),
        refresh_s=5,
    )


def _intake_rows(
    opened: JobQueue, kind: str, state: str | None, batch: str | None, number: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return all ids of a kind, and the rows of one page."""
    first = (number - 1) * PAGE_ROWS
    if kind == "jobs":
        if batch is not None:
            item = Batch(opened.tree, opened.load_batch(batch).id)
            ids = sorted([*item.processing_jobs, *item.completed_jobs, *item.failed_jobs, *item.deleted_jobs])
        else:
            ids = opened.list_jobs(state)
        return ids, list(overview.job_rows(opened.tree, ids[first : first + PAGE_ROWS]))
    if kind == "access":
        ids = [f"{size}/{name}" for size in ("small", "large") for name in opened.list_assemblies(size, state)]
        return ids, [_access_row(opened, id) for id in ids[first : first + PAGE_ROWS]]
    if kind != "batches":
        raise NotFound(f"{kind}: there are batches, jobs and access requests.")
    ids = opened.list_batches(state)
    return ids, list(overview.batch_rows(opened.tree, ids[first : first + PAGE_ROWS]))


def _access_row(opened: JobQueue, id: str) -> dict[str, Any]:
    size, _, name = id.partition("/")
    try:
        request = opened.load_assembly(size, name)
        fields = {"status": request.status, "last_modified": request.last_modified, "message": request.message}
        return {"id": id, **fields, "token": request.token}
    except FerrymanError as e:
        return {"id": id, "status": None, "last_modified": "", "message": str(e), "token": {}}


def item(page: WebPage) -> Response:
    """Show everything about a batch, a job or an access request."""
    place, id = find_intake(page), page.query("id")
    with open_intake(place) as opened:
        row, kind = _item_row(opened, id)
    row = without_secrets(row)
    return page.render(
        "intake_item.html",
        title=id[:80],
        place=place,
        id=id,
        kind=kind,
        row=row,
        fields=[(name, value) for name, value in row.items() if value not in ("", {}, [], None)],
        command=command_of("intake", "show", id, "--queue", place.label),
        refresh_s=5,
    )


def _item_row(opened: JobQueue, id: str) -> tuple[dict[str, Any], str]:
    """Return all that is known of an item, and its kind.

    Raises:
        NotFound: there is no such item.
    """
    try:
        if id.startswith("bid"):
            batch = opened.load_batch(id)
            jobs = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
            row = {**next(overview.batch_rows(opened.tree, [id])), "submission": batch.submission}
            return {**row, "report": batch.kept_report, "jobs": list(itertools.islice(sorted(jobs), 200))}, "batch"
        if id.startswith("jid"):
            job: Job = opened.load_job(id)
            parts = ("configuration", "identifiers", "metadata", "inventory", "store")
            row = {**next(overview.job_rows(opened.tree, [id])), **{name: getattr(job, name) for name in parts}}
            return row, "job"
        if id.partition("/")[0] in ("small", "large"):
            return _access_row(opened, id), "access"
    except UsageError as e:
        raise NotFound(str(e)) from None
    raise NotFound(f"{id}: give a batch (bid…), a job (jid…) or an access request (small/qid…).")
