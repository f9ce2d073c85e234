"""Pages of plans: all of them, one with its picture, its failures, documents, runs, states and verifications."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from starlette.responses import Response

from ferryman import account
from ferryman.account import families
from ferryman.account.queries import deliveries_with_reasons, last_entries, running, status_with_waves
from ferryman.counted_picture import svg_with_counts
from ferryman.dashboard.answers import KnownAnswer, StillCounting
from ferryman.dashboard.cells import command_of
from ferryman.dashboard.places import PlanPlace, describe_error
from ferryman.dashboard.web import FRESH_S, PAGE_ROWS, NotFound, WebPage
from ferryman.errors import FerrymanError
from ferryman.plan import Plan, keyed_nodes, target_of
from ferryman.plan.picture import svg
from ferryman.plan.picture.textual import type_name
from ferryman.records.keys import KeyStates
from ferryman.records.rows import display_status, reason_of, traceback_of
from ferryman.state.runs import PastRuns, load_runs
from ferryman.state.state import MIGRATED, RUNS, id_of
from ferryman.storage import files

T = TypeVar("T")

COUNTS: Final = ("delivered", "deleted", "dropped", "pending", "failed", "rejected", "in_doubt")
RED: Final = ("failed", "rejected", "in_doubt")
"""Counts that need an operator."""
STATUSES: Final = ("failed", "rejected", "in_doubt", "pending", "dropped", "held", "stopped")
_WAVES: Final = 20
_RUNS: Final = 20
_EVENTS: Final = 50
_TREE: Final = 200
_REASONS: Final = 100
_REASONS_SHOWN: Final = 3
"""Reasons that are asked for; and shown on the first page of a plan."""
_PLANS: Final = 100
_OLD_S: Final = 15.0
"""Seconds from which on the list says how old it is."""


class PlanLine(NamedTuple):
    """A plan in the list of all.

    Attributes:
        level: for its order and colour: ``bad``, ``busy``, ``waits``, ``good`` or ``none``.
        success: when the last run ended that left nothing pending.
        last: when its last wave began.
        pace: number and seconds, of the phase that is running, else of the last run.
    """

    place: PlanPlace
    level: str
    verdict: str
    counts: Mapping[str, int]
    success: Any
    last: Any
    pace: tuple[int, float]
    next_run: Any
    problem: str


class PlanFacts(NamedTuple):
    """Facts about a plan for the list of all, but for what is running.

    Attributes:
        last: when its last wave began.
        runs: its last runs.
    """

    status: Mapping[str, Any]
    last: Any
    stopped: list[dict[str, Any]]
    runs: PastRuns


class KnownFacts(NamedTuple):
    """Facts about a plan as they were last counted, for the list of all.

    Attributes:
        version: of the state when it was read; None: it is to be read again.
        facts: None: the state could not be read, because of the error.
    """

    version: Hashable
    facts: PlanFacts | None
    error: Exception | None = None


_NO_PACE: Final = (0, 0.0)
_COUNTING: Final = "is being counted"
"""State of a plan in the list that was not counted yet."""
_LINES_S: Final = 1.4
"""Seconds that the list of plans has for itself, of those that a page waits for the first answer."""
_ORDER: Final = ("bad", "waits", "busy", "good", "none")


def ask(page: WebPage, place: PlanPlace, question: Hashable, find: Callable[[Plan], T]) -> T:
    """Return the answer to a question about a plan, kept until its state changes.

    Raises:
        NotFound: there is no state.
    """
    _check_exists(place)
    return page.answer((place.root, question), version_of(place), lambda: find(place.plan()))


def _check_exists(place: PlanPlace) -> None:
    if not place.exists:
        raise NotFound(
            f"{place.root}: there is no state here yet: nothing has run, or it was removed. "
            f"Next: {place.command('run')}"
        )


def begin(page: WebPage, place: PlanPlace, question: Hashable, find: Callable[[Plan], Any]) -> None:
    """Begin to work on a question that this page is going to ask.

    Raises:
        NotFound: there is no state.
    """
    _check_exists(place)
    page.dashboard.answers.begin((place.root, question), version_of(place), lambda: find(place.plan()))


def ask_for_part(page: WebPage, place: PlanPlace, question: Hashable, find: Callable[[Plan], T], nothing: T) -> T:
    """Return the answer to a question, or nothing if it is not there yet: the page is shown without that part, and
    refreshes itself."""
    try:
        return ask(page, place, question, find)
    except StillCounting:
        page.is_counting = True
        return nothing


def version_of(place: PlanPlace) -> Hashable:
    """Return what differs whenever a state has changed, or another one is in its place.

    Raises:
        StateDamaged: its identity cannot be read.
    """
    return (id_of(place.root), last_entries(place.root), id(place.given))


def find_place(page: WebPage) -> PlanPlace:
    """Return the plan that a page is about.

    Raises:
        NotFound: there is none of this name.
    """
    key = page.path("plan")
    if (place := page.found.plans.get(key)) is None:
        raise NotFound(f"{key}: there is no such plan here, or its state was removed.")
    return place


def status_of(page: WebPage, place: PlanPlace) -> dict[str, Any]:
    """Return what ``status --json`` says, but for what is running."""
    return ask(page, place, "status", lambda plan: account.status(place.root, plan))


def totals(status: Mapping[str, Any]) -> dict[str, int]:
    """Add the counts of all destinations."""
    return {name: sum(each[name] for each in status["destinations"].values()) for name in COUNTS}


# --- all plans ---


def plans(page: WebPage) -> Response:
    """Show all plans, those in trouble first."""
    now = time.time()
    ask, places = page.dashboard.answers.ask, list(page.found.plans.values())
    answers: list[KnownAnswer[Any]] = []
    with contextlib.suppress(StillCounting):  # what is counted by now is shown
        answers.append(ask("facts", now // FRESH_S, lambda: _count_facts(page, places), page.waited_s + _LINES_S))
    answers.append(ask("plans", now // FRESH_S, lambda: _lines(page, places), is_quick=True))
    for answer in answers:
        if answer.as_of is not None and now - answer.as_of > _OLD_S:
            page.current(answer)
    lines: list[PlanLine] = answers[-1].value
    page.is_counting = any(line.verdict == _COUNTING for line in lines)
    number = page.number("page")
    shown = lines[(number - 1) * _PLANS : number * _PLANS]
    return page.render(
        "plans.html",
        title="Plans",
        lines=shown,
        all=len(lines),
        number=number,
        more=len(lines) > number * _PLANS,
        named=page.dashboard.places.named,
        command=lines[0].place.command("status") if len(lines) == 1 else "",
        refresh_s=5,
    )


def _lines(page: WebPage, places: Sequence[PlanPlace]) -> list[PlanLine]:
    page.dashboard.may_count.clear()
    try:
        lines = [_line(page, place) for place in places]
    finally:
        page.dashboard.may_count.set()
    return sorted(lines, key=lambda line: (_ORDER.index(line.level), line.place.key))


def _line(page: WebPage, place: PlanPlace) -> PlanLine:
    """Return a plan's line; whatever is wrong with its state is in it."""
    nothing = dict.fromkeys(COUNTS, 0)
    known: KnownFacts | None = page.dashboard.facts.get(place.root)
    try:
        if not place.exists:
            return PlanLine(place, "none", "never ran", nothing, None, None, _NO_PACE, None, "")
        active = running(place.root)
        facts, error = (None, None) if known is None else (known.facts, known.error)
    except Exception as e:
        error = e
    if error is not None:
        verdict = type(error).__name__ if isinstance(error, FerrymanError) else "error"
        names = {"StateDamaged": "damaged", "UsageError": "no state"}
        return PlanLine(
            place, "bad", names.get(verdict, verdict), nothing, None, None, _NO_PACE, None, describe_error(error)
        )
    if facts is None:
        return PlanLine(place, "none", _COUNTING, nothing, None, None, _NO_PACE, None, "")
    counts = totals(facts.status)
    level, verdict = verdict_of(place, facts.status, counts, active, facts.stopped)
    until = None if active is None else active["until"]
    pace = (past[-1].done, past[-1].duration_s) if (past := facts.runs.last) else _NO_PACE
    if active is not None and active["phase"] and active["done"] and (since := active["phase_since"]):
        seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(since)).total_seconds()
        pace = (active["done"], seconds)
    success = None if facts.runs.success is None else facts.runs.success.ended
    return PlanLine(place, level, verdict, counts, success, facts.last, pace, until, "")


def _count_facts(page: WebPage, places: Sequence[PlanPlace]) -> None:
    """Count what the list says of each plan whose state has changed. A thousand plans take a minute, so pages show what
    is counted by then."""
    facts = page.dashboard.facts
    for root in facts.keys() - {place.root for place in places if place.exists}:
        del facts[root]
    for place in places:
        page.dashboard.may_count.wait()
        if not place.exists:
            continue
        try:
            version = (version_of(place), files.stamp(place.root / RUNS))
            if place.root not in facts or facts[place.root].version != version:
                facts[place.root] = KnownFacts(version, _find_facts(place))
        except Exception as e:  # its line says so
            facts[place.root] = KnownFacts(None, None, e)


def _find_facts(place: PlanPlace) -> PlanFacts:
    plan = place.plan()
    status, waves = status_with_waves(place.root, plan, 1)
    last = waves[0]["created"] if waves else None
    return PlanFacts(status, last, account.stopped(place.root, plan), load_runs(place.root))


def verdict_of(
    place: PlanPlace,
    status: Mapping[str, Any],
    counts: Mapping[str, int],
    active: Mapping[str, Any] | None,
    stopped: list[dict[str, Any]],
) -> tuple[str, str]:
    """Return the level of a plan (see ``PlanLine``) and its state in words."""
    if files.exists(place.root / MIGRATED):
        return "none", "replaced by a newer version"
    if not status["balanced"]:
        return "bad", "not balanced"
    if stopped:
        return "bad", "stopped"
    if any(counts[name] for name in RED):
        return "bad", "running, with failures" if active else "has failures"
    if active is not None:
        return "busy", "running" if active["phase"] else "waits for its next run"
    if counts["pending"]:
        return "waits", "pending"
    return "good", "all arrived"


# --- one plan ---


def plan(page: WebPage) -> Response:
    """Show one plan: the picture, what runs, what is left, which nodes are in trouble."""
    place = find_place(page)
    nothing: list[dict[str, Any]] = []
    begin(page, place, "status", lambda plan: account.status(place.root, plan))
    begin(page, place, "troubles", lambda plan: _troubles(place, plan))
    status = status_of(page, place)
    plan = place.plan()
    active = running(place.root)
    stopped = ask_for_part(page, place, "stopped", lambda plan: account.stopped(place.root, plan), nothing)
    counts = totals(status)
    activity = {} if active is None else {name: active[name] for name in ("wave", "phase")}
    pending = []
    if counts["pending"]:
        question = ("pending", str(activity), str(active and active["until"]))
        pending = ask_for_part(page, place, question, lambda plan: account.pending_reasons(place.root, plan), nothing)
    no_troubles: Troubles = ({}, nothing)
    by_node, reasons = ask_for_part(page, place, "troubles", lambda plan: _troubles(place, plan), no_troubles)
    no_waves: list[account.WaveCounts] = []
    waves = ask_for_part(page, place, "waves", lambda plan: account.waves(place.root, 5, plan), no_waves)
    level, verdict = verdict_of(place, status, counts, active, stopped)
    return page.render(
        "plan.html",
        title=place.key,
        place=place,
        tab="plan",
        status=status,
        counts=counts,
        active=active,
        stopped=stopped,
        pending=pending,
        reasons=reasons[:_REASONS_SHOWN],
        all_reasons=len(reasons),
        level=level,
        verdict=verdict,
        nodes=_nodes(plan, status, by_node),
        waves=waves,
        is_keyed=bool(keyed_nodes(plan.nodes)),
        migrated=files.exists(place.root / MIGRATED),
        version=abs(hash((last_entries(place.root), str(activity), page.is_counting))),
        command=place.command("status"),
        refresh_s=3 if active else 10,
    )


Troubles = tuple[dict[str, dict[str, int]], list[dict[str, Any]]]
"""Node -> status -> deliveries that have not arrived; and the reasons of those that need an operator."""


def _troubles(place: PlanPlace, plan: Plan) -> Troubles:
    """Return the counts of what has not arrived by node, and the reasons of what needs an operator."""
    return account.by_node_and_reasons(place.root, plan, RED, _REASONS)


def _nodes(plan: Plan, status: Mapping[str, Any], by_node: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return what the table of nodes says: the picture in words."""
    rows = []
    for node in plan.nodes:
        numbers: Mapping[str, Any] = status["destinations"].get(node.name) or by_node.get(node.name) or {}
        target = ""
        if node.kind in ("destination", "tee"):
            with contextlib.suppress(Exception):  # the code of a user's destination
                target = target_of(node)
        rows.append(
            {
                "name": node.name,
                "kind": node.kind,
                "type": type_name(node),
                "after": node.after,
                "target": "" if target == node.name else target,
                "source": status["sources"].get(node.name),
                "unseen_deletes": status.get("unseen_deletes", {}).get(node.name, ""),
                "counts": {name: numbers[name] for name in COUNTS if numbers.get(name)},
                "is_destination": node.name in status["destinations"],
            }
        )
    return rows


def picture(page: WebPage) -> Response:
    """Draw the plan with its counts; without them, as long as they are being counted."""
    place = find_place(page)
    status = status_of(page, place)
    plan = place.plan()
    try:
        by_node, _ = ask(page, place, "troubles", lambda plan: _troubles(place, plan))
        return svg_response(svg_with_counts(plan, {plan.name: (plan, place.root)}, {plan.name: status}, by_node))
    except StillCounting:
        return svg_response(svg(place.plan()))


def svg_response(text: str) -> Response:
    """Return an SVG, whose own styles are allowed, and nothing else."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    return Response(text, media_type="image/svg+xml", headers={"content-security-policy": policy})


# --- failures ---

FILTERS: Final = ("status", "destination", "source", "family", "reason")


def filters_of(page: WebPage, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the filters that are set."""
    return {name: values[name] for name in FILTERS if values.get(name)}


def failures(page: WebPage) -> Response:
    """Show what has not arrived, by reason; and the deliveries that pass the filters."""
    place = find_place(page)
    filters = filters_of(page, page.request.query_params)
    plan = place.plan()
    number = page.number("page")
    last = number * PAGE_ROWS
    has_groups = "reason" not in filters and filters.get("status") not in ("held", "stopped", "delivered", "deleted")
    groups: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    question = (str(last), *sorted(filters.items()))
    if filters and has_groups:
        rows, groups = ask(
            page,
            place,
            ("deliveries and reasons", *question),
            lambda plan: deliveries_with_reasons(place.root, _REASONS, plan=plan, limit=last + 1, **filters),
        )
    elif filters:
        rows = ask(
            page,
            place,
            ("deliveries", *question),
            lambda plan: account.deliveries(place.root, plan=plan, limit=last + 1, **filters),
        )
    else:
        groups = ask(page, place, ("reasons",), lambda plan: account.reasons(place.root, plan=plan, limit=_REASONS))
    if "status" not in filters:
        groups = sorted(groups, key=lambda group: group["status"] not in RED)
    rows = rows[last - PAGE_ROWS :]
    options = [f for name in FILTERS if name in filters for f in (f"--{name}", filters[name])]
    return page.render(
        "failures.html",
        title=f"Failures of {place.key}",
        place=place,
        tab="failures",
        is_keyed=bool(keyed_nodes(plan.nodes)),
        groups=groups,
        filters=filters,
        statuses=STATUSES,
        rows=[{**row, "shown": display_status(row["status"], row["operation"]), "why": _why(row)} for row in rows],
        number=number,
        more=len(rows) > PAGE_ROWS,
        page_rows=PAGE_ROWS,
        destinations=[n.name for n in plan.nodes if n.kind in ("destination", "tee", "keyed")],
        sources=[n.name for n in plan.nodes if n.kind in ("source", "join", "alts")],
        command=place.command("deliveries", *(options or ["--by", "reason"])),
        refresh_s=10,
    )


def _why(row: Mapping[str, Any]) -> str:
    """Return the reason of an event, without the id that the page shows beside it."""
    reason = reason_of(row["message"] or "")
    return reason.removeprefix(f"{row['document']}: ")


# --- documents ---


def document(page: WebPage) -> Response:
    """Show all that happened to a document, its family, and what an operator can do."""
    place = find_place(page)
    id = page.query("id")
    if not id:
        raise NotFound("Give the id of a document: the field in the head of this page finds it.")
    number = page.number("page")
    needed = number * _EVENTS + 1
    found, statuses = ask(
        page,
        place,
        ("history", id, needed),
        lambda plan: families.history_with_statuses(place.root, id, plan, limit=needed),
    )
    plan = place.plan()
    if not found:
        nothing: list[str] = []
        nearest = ask_for_part(
            page, place, ("nearest", id), lambda plan: account.nearest_documents(place.root, id, plan), nothing
        )
        return page.render(
            "unknown_document.html",
            404,
            title="No such document",
            place=place,
            tab="document",
            is_keyed=bool(keyed_nodes(plan.nodes)),
            id=id,
            nearest=nearest,
            command=place.command("deliveries"),
        )
    end = len(found) - _EVENTS * (number - 1)
    events = found[max(0, end - _EVENTS) : end]
    last = found[-1]
    origin = last["origin"] if id in (last["document"], last["origin"]) else id
    return page.render(
        "document.html",
        title=f"Document {id[:80]}",
        place=place,
        tab="document",
        is_keyed=bool(keyed_nodes(plan.nodes)),
        id=id,
        origin=origin,
        last=last,
        events=[{**e, "shown": display_status(e["status"], e["operation"]), "why": _why(e)} for e in events],
        traces=list(dict.fromkeys(t for e in reversed(events) if (t := traceback_of(e["message"] or "")))),
        number=number,
        more=len(found) >= needed,
        places=_current(found),
        tree=_tree(found),
        families=statuses,
        original=_original(plan, last),
        command=place.command("history", id),
        refresh_s=10,
    )


def _current(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last event of each document at each destination."""
    last: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in events:
        if event["destination"]:
            last[event["document"], event["destination"], event["route"]] = event
    rows = [{**e, "shown": display_status(e["status"], e["operation"]), "why": _why(e)} for e in last.values()]
    return sorted(rows, key=lambda row: (row["shown"] not in RED, row["document"], row["destination"]))[:_TREE]


def _tree(events: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Return (depth, document, worst status) of a family, parents before their children; [] if there is one member."""
    parents: dict[str, str] = {}
    for event in events:
        parents.setdefault(event["document"], event["parent"] or "")
    worst: dict[str, str] = {}
    order = [*RED, "pending", "dropped", "delivered", "deleted"]
    for row in _current(events):
        known = worst.get(row["document"])
        if known is None or order.index(row["shown"]) < order.index(known):
            worst[row["document"]] = row["shown"]
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent if parent in parents and parent != name else "", []).append(name)
    lines: list[tuple[int, str, str]] = []
    waiting = [(0, name) for name in sorted(children.get("", []), reverse=True)]
    while waiting and len(lines) < _TREE:
        depth, name = waiting.pop()
        lines.append((depth, name, worst.get(name, "")))
        waiting += [(depth + 1, child) for child in sorted(children.get(name, []), reverse=True)]
    return lines if len(parents) > 1 else []


def _original(plan: Plan, event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the URL and the place of what a document was read from; "" for what is not known."""
    origin = str(event["origin"])
    if origin.startswith(("http://", "https://")):
        return origin, origin
    for node in plan.nodes:
        if node.name == event["source"]:
            with contextlib.suppress(Exception):  # the code of a user's source
                source = getattr(node, "source", None)
                if source is not None and (place := source.place()):
                    return "", f"{place}/{origin.removeprefix(source.prefix)}"
    return "", ""


# --- runs ---


_ENDS: Final = {
    0: "all delivered",
    1: "a fault of Ferryman or Spark",
    2: "deletes wait for --allow-deletes",
    3: "finished; some failed, were rejected or are in doubt",
    4: "incomplete: something is pending",
    130: "interrupted",
}
"""Exit code of a run -> what it says."""


def runs(page: WebPage) -> Response:
    """Show the last runs and waves as bars; and one wave's events."""
    place = find_place(page)
    begin(page, place, "times", lambda plan: account.wave_times(place.root, 2 * _WAVES, plan))
    waves = ask(page, place, ("waves", _WAVES), lambda plan: account.waves(place.root, _WAVES, plan))
    times = ask(page, place, "times", lambda plan: account.wave_times(place.root, 2 * _WAVES, plan))
    shown, most = [], 1
    for wave in waves:
        first, last = times.get(wave["wave"], (None, None))
        seconds = (last - first).total_seconds() if first is not None and last is not None else 0.0
        bad = wave["pending"] + wave["failed"] + wave["rejected"] + wave["in_doubt"]
        shown.append({**wave, "seconds": seconds, "bad": bad})
        most = max(most, wave["delivered"] + bad)
    number = page.number("wave", 0, 1 << 60)
    events = []
    if number:
        found = ask(
            page, place, ("wave", number), lambda plan: account.wave_events(place.root, number, plan, limit=_EVENTS)
        )
        events = [{**e, "shown": display_status(e["status"], e["operation"]), "why": _why(e)} for e in found]
    return page.render(
        "runs.html",
        title=f"Runs of {place.key}",
        place=place,
        tab="runs",
        is_keyed=bool(keyed_nodes(place.plan().nodes)),
        runs=(past := load_runs(place.root).last[: -_RUNS - 1 : -1]),
        most_done=max((run.done for run in past), default=0) or 1,
        ends=_ENDS,
        waves=shown,
        most=most,
        wave=number,
        events=events,
        most_events=_EVENTS,
        command=place.command("status"),
        refresh_s=10,
    )


# --- state by key, what is remembered, verifications ---


def states(page: WebPage) -> Response:
    """Show the keyed nodes of a plan, and look up a key."""
    place = find_place(page)
    plan = place.plan()
    names = [node.name for node in keyed_nodes(plan.nodes)]
    name, key = page.query("node"), page.query("key")
    if name and name not in names:
        raise NotFound(f"{name} is not a keyed node of this plan. It has: {', '.join(names) or 'none'}.")
    counts = ask(page, place, "key_counts", lambda plan: families.key_counts(place.root, plan))
    rows, entry = [], None
    if name and key:
        entry = KeyStates(place.root, name).entry(key)
    elif name:
        rows = ask(page, place, ("keys", name), lambda plan: families.key_states(place.root, plan, name, PAGE_ROWS))
    words = [name, key] if name and key else [name] if name else []
    return page.render(
        "states.html",
        title=f"State by key of {place.key}",
        place=place,
        tab="states",
        is_keyed=bool(names),
        counts=counts,
        node=name,
        key=key,
        rows=rows,
        entry=entry,
        command=place.command("state get" if key else "state show", *words),
    )


def remembered(page: WebPage) -> Response:
    """Show what steps of the plans beside this one remember, and what that saved."""
    from ferryman.remembered.bill import dollars
    from ferryman.remembered.upkeep import stores

    place = find_place(page)
    _check_exists(place)
    folder = place.root.parent
    found = [keeper.totals() for keeper in stores(folder)]
    own = {node.name for node in place.plan().nodes if node.kind == "step"}
    words = ["--state", place.state or str(folder)] if place.state or place.spec != "PLAN" else []
    return page.render(
        "remembered.html",
        title=f"Remembered by {place.key}",
        place=place,
        tab="remembered",
        is_keyed=bool(keyed_nodes(place.plan().nodes)),
        stores=[(each, each.name in own) for each in found],
        dollars=dollars,
        command=command_of("remembered", "list", *words),
        refresh_s=10,
    )


def verifications(page: WebPage) -> Response:
    """Show up to which wave each destination was verified, and which targets are not as they were left."""
    place = find_place(page)
    _check_exists(place)
    plan = place.plan()
    known = account.verifications(place.root, plan)
    destinations = [n for n in plan.nodes if n.kind in ("destination", "tee")]
    status = status_of(page, place)
    return page.render(
        "verify.html",
        title=f"Verifications of {place.key}",
        place=place,
        tab="verify",
        is_keyed=bool(keyed_nodes(plan.nodes)),
        rows=[(node, known.get(node.name)) for node in destinations],
        waves=status["waves"],
        balanced=status["balanced"],
        command=place.command("verify"),
    )
