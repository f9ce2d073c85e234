"""Commands that an operator gives from a page: the commands of ``retry``, ``resolve`` and ``intake``.

1. a page says what will be done, and to how many deliveries
2. its form, with the CSRF token of the session, queues the command under the operator's name; the command is in the
   form's URL, since browsers change line breaks in fields
3. a page shows what becomes of each delivery, and refreshes itself
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.responses import Response

from ferryman import account
from ferryman.dashboard.cells import clean, command_of
from ferryman.dashboard.plans import ask, find_place
from ferryman.dashboard.queues import ACTIONS, find_intake, open_intake
from ferryman.dashboard.web import Forbidden, WebPage
from ferryman.engine.commands import count_concerned
from ferryman.errors import FerrymanError, UsageError
from ferryman.intake import Assembly, Batch, Job, JobQueue, StateError
from ferryman.intake.items import Item
from ferryman.limits import plural
from ferryman.operations import submit_command
from ferryman.plan import keyed_nodes
from ferryman.records.rows import display_status, parse_status, reason_of
from ferryman.state.commands import VERBS, Command

_COMMANDS: Final = {
    "retry": "make due now, with attempts from zero",
    "retry --force": "read again and send again, changed or not",
    "resolve --as dropped": "give up: they are not tried again",
    "resolve --as delivered": "record as delivered: the destination has them",
    "resolve --as failed": "record as failed: they are not there, and must not be sent again",
    "resolve --as pending": "send again: the destination does not have them",
}
"""Verb -> what it does, in words."""

_FIELDS: Final = ("status", "document", "destination", "source", "reason")
_SHOWN: Final = 200
_NAMED_ERRORS: Final = 3
_WHY_CHARACTERS: Final = 500


def _command(page: WebPage, values: Any, why: str) -> Command:
    """Return the command that a URL asks for.

    Raises:
        UsageError: there is no such verb or status.
    """
    verb = values.get("verb", "")
    if verb not in _COMMANDS or verb not in VERBS:
        raise UsageError(f"{clean(verb, 80)}: this page offers {', '.join(_COMMANDS)}.")
    statuses = None
    if status := values.get("status"):
        try:
            statuses = frozenset(parse_status(status)[0])
        except ValueError as e:
            raise UsageError(f"status {clean(status, 80)}: {e}.") from None
    names = ("document", "destination", "source", "reason")
    filters = {name: values[name] for name in names if values.get(name)}
    if verb == "retry --force" and "document" not in filters:
        raise UsageError("retry --force: from here for one document at a time.")
    return Command(verb, page.person.name, why, statuses, **filters)


def _typed(place: Any, command: Command, values: Any) -> str:
    """Return what one would type for a command."""
    options = {"status": values.get("status"), "doc": command.document, "destination": command.destination}
    options |= {"source": command.source, "reason": command.reason}
    given = [part for name, value in options.items() if value for part in (f"--{name}", value)]
    verb, *own = command.verb.split()
    return str(place.command(verb, *own, *given))


def confirm(page: WebPage) -> Response:
    """Show what a command will do, and to how many deliveries; nothing is done yet."""
    place, values = find_place(page), page.request.query_params
    command = _command(page, values, "")
    key = (command.verb, values.get("status", ""), command.document, command.destination, command.source)
    number = ask(
        page,
        place,
        ("concerned", *key, command.reason),
        lambda plan: count_concerned(place.root, plan, command),
    )
    return page.render(
        "confirm.html",
        title=command.verb,
        place=place,
        tab="failures",
        is_keyed=bool(keyed_nodes(place.plan().nodes)),
        verb=command.verb,
        does=_COMMANDS[command.verb],
        number=number,
        fields={name: values[name] for name in _FIELDS if values.get(name)},
        command=_typed(place, command, values),
    )


def submit(page: WebPage) -> Response:
    """Queue a command, and apply it unless a run holds the state; then show its outcome."""
    place = find_place(page)
    page.check_may_act()
    page.check_form()
    mark = secrets.token_hex(4)
    why = clean(page.form.get("why", ""), _WHY_CHARACTERS)
    command = _command(page, page.request.query_params, f"{why} [{mark}]".lstrip())
    done = submit_command(place.plan(), place.root.parent, command)
    count = "" if done.count is None else done.count
    return page.redirect(f"/plans/{place.key}/outcome", message=command.message, count=count)


def outcome(page: WebPage) -> Response:
    """Show what has become of the deliveries that a command concerned."""
    place, message = find_place(page), page.query("message")
    counts, rows = ask(
        page, place, ("outcome", message), lambda plan: account.outcomes(place.root, message, plan, limit=_SHOWN)
    )
    shown = [
        {**row, "shown": display_status(row["status"], row["operation"]), "why": reason_of(row["message"] or "")}
        for row in rows
    ]
    asked = page.query("count")
    return page.render(
        "outcome.html",
        title="Outcome",
        place=place,
        tab="failures",
        is_keyed=bool(keyed_nodes(place.plan().nodes)),
        message=message,
        counts=counts,
        number=sum(counts.values()),
        is_queued=not counts and asked != "0",
        rows=shown,
        most=_SHOWN,
        command=place.command("run") if counts.get("pending") else place.command("status"),
        refresh_s=3,
    )


# --- intake ---


def act_on_items(page: WebPage) -> Response:
    """Do an action to batches, jobs or access requests; show what became of each."""
    place = find_intake(page)
    page.check_may_act()
    page.check_form()
    action = page.form.get("action", "")
    if action in ("pause", "resume"):
        with open_intake(place) as opened:
            results = [("the queue", _pause(opened, action), "")]
    elif action in ACTIONS:
        ids = [name for name in page.form.get("ids", "").replace(",", " ").split() if name][:1_000]
        if not ids:
            raise UsageError("Choose at least one batch or job.")
        message = f"{clean(page.form.get('message', ''), _WHY_CHARACTERS)} (by {page.person.name})".strip()
        with open_intake(place) as opened:
            results = [_result(opened, action, id, message, page.form.get("priority", "")) for id in ids]
    else:
        raise Forbidden(f"{clean(action, 80)}: this page does not offer that.")
    return page.render(
        "intake_done.html",
        title=action,
        place=place,
        action=action,
        results=results,
        command=command_of("intake", action, *(id for id, _, _ in results[:3]), "--queue", place.label),
    )


def _pause(opened: JobQueue, action: str) -> str:
    if action == "pause":
        return "paused" if opened.locks.lock("ingest") else "is paused already"
    was_paused = opened.locks.check("ingest")
    opened.locks.unlock("ingest")
    return "resumed" if was_paused else "was not paused"


def _result(opened: JobQueue, action: str, id: str, message: str, priority: str) -> tuple[str, str, str]:
    """Return (id, what was done, error)."""
    try:
        return id, _DO[action](opened, _load(opened, id), message, priority), ""
    except FerrymanError as e:
        return id, "", str(e)


def _load(opened: JobQueue, id: str) -> Item:
    if id.startswith("bid"):
        return opened.load_batch(id)
    if id.startswith("jid"):
        return opened.load_job(id)
    size, _, name = id.partition("/")
    if size in ("small", "large") and name:
        return opened.load_assembly(size, name)
    raise UsageError(f"{clean(id, 80)}: give a batch (bid…), a job (jid…) or an access request (small/qid…).")


def _hold(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    item.set_status("Held", message)
    return item.status


def _release(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    if item.status != "Held":
        raise StateError(item.status, "Pending")
    item.set_status("Pending", message)
    return item.status


def _requeue(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    number = _number(priority)
    if isinstance(item, Batch):
        return _each(opened, item.failed_jobs, lambda job: job.requeue(message, None, number), "requeued")
    if not isinstance(item, Job):
        raise UsageError("requeue is for failed jobs, and for batches with failed jobs.")
    item.requeue(message, None, number)
    return item.status


def _fail(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    item.fail(message, revoke=True)
    return item.status


def _prioritize(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    number = _number(priority)
    if number is None:
        raise UsageError("Give a priority: a number from 0, which is most urgent.")
    if isinstance(item, Batch):
        return _each(opened, item.processing_jobs, lambda job: job.set_priority(number), f"with priority {number}")
    if not isinstance(item, Job):
        raise UsageError("prioritize is for jobs and batches.")
    item.set_priority(number)
    return f"priority {number}"


def _each(opened: JobQueue, ids: Sequence[str], act: Callable[[Job], None], done: str) -> str:
    """Do something with each of a batch's jobs, whatever becomes of the others; return how many it was done with, and
    why not with the others."""
    errors = []
    for id in ids:
        try:
            act(opened.load_job(id))
        except FerrymanError as e:
            errors.append(f"{id}: {e}")
    counted = f"{plural(len(ids) - len(errors), 'job', 'jobs')} {done}"
    if not errors:
        return counted
    more = f"; and {len(errors) - _NAMED_ERRORS} more" if len(errors) > _NAMED_ERRORS else ""
    return f"{counted}, {len(errors)} not: {'; '.join(errors[:_NAMED_ERRORS])}{more}"


def _report(opened: JobQueue, item: Item, message: str, priority: str) -> str:
    if isinstance(item, Job | Assembly):
        raise UsageError("report is for failed batches.")
    item.set_status("UpdateReporting", message)
    return item.status


def _number(text: str) -> int | None:
    text = text.strip()
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"priority {clean(text, 40)}: give a number from 0.")
    return int(text) if text else None


_DO: Final[dict[str, Callable[[JobQueue, Item, str, str], str]]] = {
    "hold": _hold,
    "release": _release,
    "requeue": _requeue,
    "fail": _fail,
    "prioritize": _prioritize,
    "report": _report,
}
