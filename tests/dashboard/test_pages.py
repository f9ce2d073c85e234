"""What the pages say of a state is what the command line says of it."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.dashboard import actions, plans, web
from ferryman.dashboard.app import PAGES
from ferryman.dashboard.cells import rate
from ferryman.dashboard.recorded import recorded_plan
from ferryman.engine.commands import count_concerned
from ferryman.intake import JobQueue
from ferryman.plan import Plan
from ferryman.queues import Queue
from ferryman.remembered import Remember
from ferryman.sources import Memory
from ferryman.state.runs import load_runs
from ferryman.state.targets import PastVerification, VerifiedDestination, save_verified
from tests.cli.test_commands_in_messages import parse
from tests.dashboard.conftest import Opened, words
from tests.support.keyed import count_words
from tests.support.plan_world import PlanWorld

PLAN = "/plans/trial-v1"


@pytest.mark.parametrize("path", [path for path in PAGES if path.startswith("/plans/{plan}")])
def test_each_page_of_a_plan_answers(path: str, world: PlanWorld, opened: Opened) -> None:
    """Also those whose parameters are missing say so on a page, never with an error of the server."""
    response = opened(world.state).get(path.replace("{plan}", "trial-v1"))
    assert response.status_code in (200, 400, 404), response.text
    assert "Traceback" not in response.text


def test_the_list_says_what_status_says(world: PlanWorld, opened: Opened) -> None:
    counts = world.counts()
    text = opened(world.state).text("/")
    assert "trial-v1 has failures" in text
    assert f"has failures {counts['delivered']} {counts['pending']} {counts['failed']} {counts['rejected']} 0" in text


def test_plans_in_trouble_come_first(place: Path, opened: Opened) -> None:
    good = PlanWorld(place / "good")
    good.plan = Plan("aaa", version=1)
    good.source().destination("out", good.out())
    good.put("x")
    good.run()
    bad = PlanWorld(place / "bad")
    bad.plan = Plan("zzz", version=1)
    bad.source().step("fails", _fail, attempts=1).destination("out", bad.out())
    bad.put("y")
    bad.run()
    text = opened(place).text("/")
    assert text.index("zzz-v1 has failures") < text.index("aaa-v1 all arrived")


def test_the_list_is_there_before_all_plans_are_counted(
    world: PlanWorld, place: Path, opened: Opened, monkeypatch: Any
) -> None:
    """A thousand plans take a minute: those that were not counted yet say so, and are counted soon after."""
    gate = threading.Event()
    real = plans.status_with_waves

    def status(root: Path, plan: Plan, limit: int) -> Any:
        if plan.name == "zzz":
            gate.wait(60)
        return real(root, plan, limit)

    other = PlanWorld(place / "other")
    other.plan = Plan("zzz", version=1)
    other.source().destination("out", other.out())
    other.put("x")
    other.run()
    monkeypatch.setattr(plans, "status_with_waves", status)
    site = opened(world.state, place)
    site.answers.first_s = 1.5
    text = _until(site, lambda text: "trial-v1 has failures" in text, "/")
    assert "zzz-v1 is being counted" in text
    assert "Parts of this page are being counted" in text
    gate.set()
    assert "zzz-v1 all arrived" in _until(site, lambda text: "being counted" not in text, "/")


def _fail(doc: object) -> object:
    raise ValueError("no")


def test_a_plan_says_what_status_says(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    text = site.text(PLAN)
    for name, number in world.counts().items():
        assert f"{number} {name}" in text
    assert "1 reason" in text or "is torn" in text
    assert "503 Service Unavailable" in text  # what is pending waits for
    assert "The same in a terminal: ferryman status" in text
    picture = site.get(f"{PLAN}/picture.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert f"{world.counts()['delivered']} delivered" in picture.text


def test_a_plan_is_shown_while_parts_of_it_are_counted(world: PlanWorld, opened: Opened, monkeypatch: Any) -> None:
    """The page comes with its counts, says that the rest follows, and has it soon after."""
    gate = threading.Event()
    real = account.by_node_and_reasons

    def troubles(*args: Any) -> Any:
        gate.wait(60)
        return real(*args)

    monkeypatch.setattr(account, "by_node_and_reasons", troubles)
    site = opened(world.state)
    site.answers.first_s = 0.5
    text = _until(site, lambda text: "5 delivered" in text)
    assert "Parts of this page are being counted" in text
    gate.set()
    assert "is torn" in _until(site, lambda text: "being counted" not in text)


def test_a_page_that_has_to_count_first_loads_itself_again(world: PlanWorld, opened: Opened, monkeypatch: Any) -> None:
    """As a whole, by a header, so that a form that follows is there too."""
    gate = threading.Event()
    real = count_concerned

    def count(*args: Any) -> int:
        gate.wait(60)
        return real(*args)

    monkeypatch.setattr(actions, "count_concerned", count)
    site = opened(world.state)
    site.answers.first_s = 0.01
    response = site.get(f"{PLAN}/confirm", params={"verb": "retry", "status": "failed"})
    assert "nobody has asked this" in response.text
    assert response.headers["refresh"] == "2"
    gate.set()
    site.answers.first_s = 60
    assert "Retry: 2 deliveries" in site.text(f"{PLAN}/confirm", verb="retry", status="failed")


def _until(site: Any, holds: Callable[[str], bool], page: str = PLAN) -> str:
    """Load a page until it says something: as its own refresh does."""
    deadline = time.monotonic() + 60
    while not holds(text := site.text(page)):
        assert time.monotonic() < deadline, text
    return text


def test_failures_are_grouped_by_reason(world: PlanWorld, opened: Opened) -> None:
    """Two documents with one reason are one group, whatever they are called; a group leads to its deliveries."""
    site = opened(world.state)
    text = site.text(f"{PLAN}/failures")
    reasons = account.reasons(world.root, plan=world.plan)
    for each in reasons:
        assert f"{each['deliveries']} {each['status'].replace('_', ' ')} {each['reason']}" in text
    torn = next(each for each in reasons if "is torn" in each["reason"])
    assert torn["deliveries"] == 2
    listed = site.text(f"{PLAN}/failures", status="rejected", reason=torn["reason"])
    assert "bad1" in listed
    assert "bad22" in listed
    assert "bug" not in listed.split("Deliveries", 1)[1]


def test_filters_are_those_of_deliveries(world: PlanWorld, opened: Opened) -> None:
    text = opened(world.state).text(f"{PLAN}/failures", status="rejected", destination="out", source="docs")
    assert "bad22 docs out rejected" in text
    assert "ferryman deliveries PLAN" in text
    assert "--status rejected --destination out --source docs" in text


def test_a_document_tells_all_that_happened_to_it(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    text = site.text(f"{PLAN}/document", id="bug")
    assert "failed" in text
    assert "Traceback of the step" in text
    assert "raise KeyError(doc.id)" in text
    assert "ferryman history PLAN" in text
    family = site.text(f"{PLAN}/document", id="book")
    assert "Family book delivered book#p0 delivered book#p1 delivered" in family


def test_an_unknown_document_is_answered_with_the_nearest(world: PlanWorld, opened: Opened) -> None:
    text = opened(world.state).text(f"{PLAN}/document", 404, id="boook")
    assert "There is no such document" in text
    assert "book" in text.split("The nearest are:")[1]


def test_runs_are_shown_wave_by_wave(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    [wave] = [each for each in account.waves(world.root, plan=world.plan) if each["wave"] == 1]
    page = site.get(f"{PLAN}/runs", params={"wave": "1"}).text
    bad = sum(wave[name] for name in ("pending", "failed", "rejected", "in_doubt"))
    assert f"{wave['delivered']} delivered, {bad} not" in page
    for name in ("delivered", "pending", "failed", "rejected", "in_doubt"):
        assert f'data-label="{name.replace("_", " ").capitalize()}">{wave[name]}</td>' in page
    assert "What happened in wave 1" in page


def test_runs_have_bars_and_the_list_has_the_last_success(world: PlanWorld, opened: Opened) -> None:
    """As ``runs.json`` has them; this run left something pending, so there was no success yet."""
    [run] = load_runs(world.root).last
    site = opened(world.state)
    page = site.get(f"{PLAN}/runs").text
    assert f'aria-label="{run.done} delivered"' in page
    assert "incomplete: something is pending" in page
    assert "Last success Last wave Rate" in site.text("/")
    assert rate(run.done, run.duration_s) in site.text("/").partition("trial-v1")[2]


@pytest.mark.parametrize(
    ("number", "seconds", "shown"),
    [(18, 0.5, "36/s"), (120, 1.0, "120/s"), (4, 60.0, "4/min"), (1, 3600.0, "1/min"), (0, 5.0, ""), (18, 0.01, "")],
)
def test_a_rate_is_that_of_the_time_beside_it(number: int, seconds: float, shown: str) -> None:
    """Of what took no time that is shown there is none."""
    assert rate(number, seconds) == shown


def test_the_list_says_when_a_plan_was_last_done(place: Path, opened: Opened) -> None:
    done = PlanWorld(place).build()
    done.put("a")
    done.run()
    success = load_runs(done.root).success
    assert success is not None
    iso = dt.datetime.fromtimestamp(success.ended, dt.UTC).isoformat(timespec="seconds")
    assert f'<td data-label="Last success"><time datetime="{iso}"' in opened(place).get("/").text


def test_evidence_of_verifications_is_shown(own_world: PlanWorld, opened: Opened) -> None:
    at = "2026-01-31T12:00:00+00:00"
    found = VerifiedDestination(
        clean=PastVerification(1, at, 5), failed=PastVerification(1, at, 9, 2), sampled=PastVerification(1, at, 3)
    )
    save_verified(own_world.root, {"out": found})
    text = opened(own_world.state).text(f"{PLAN}/verify")
    assert "up to wave 1 of 1" in text
    assert "5 compared, all there" in text
    assert "2 of 9 differed" in text
    assert "a sample of 3 was all there" in text


def test_what_steps_remember_is_billed(place: Path, opened: Opened) -> None:
    def paid(world: PlanWorld) -> Plan:
        plan = Plan("trial", version=1)
        node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
        node.step("embed", lambda doc: doc, remember=Remember("v1", reads=["words"], cost=0.5)).destination(
            "out", world.out()
        )
        return plan

    world = PlanWorld(place, paid)
    world.put("a", "b", words="same")
    world.run()
    [totals] = account.status(world.root, world.plan)["remembered"].values()
    text = opened(world.state).text(f"{PLAN}/remembered")
    assert f"embed {totals['answers']} " in text
    assert f" {totals['calls']} {totals['hits']} 0 " in text
    assert (totals["calls"], totals["hits"]) == (1, 1)
    assert "$0.50 $0.50" in text


def test_the_original_of_a_document_is_linked(place: Path, opened: Opened) -> None:
    """Without the login of its URL; other documents say where they were read."""
    world = PlanWorld(place).build()
    world.put("https://example.org/report.pdf")
    world.run()
    page = opened(place).get(f"{PLAN}/document", params={"id": "https://example.org/report.pdf"}).text
    assert '<a href="https://example.org/report.pdf" rel="noreferrer noopener">Open the original</a>' in page


def test_all_that_pass_the_filters_are_retried_or_given_up(own_world: PlanWorld, opened: Opened) -> None:
    """Not the page's fifty: the link has the filters, and the next page the number."""
    site = opened(own_world.state, allow_actions=True)
    page = site.get(f"{PLAN}/failures", params={"status": "rejected", "destination": "out"}).text
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*/confirm[^"]*)"', page)]
    [give_up] = [link for link in links if "dropped" in link and "reason" not in link]
    number = account.count_deliveries(own_world.root, plan=own_world.plan, status="rejected", destination="out")
    text = words(site.get(give_up).text)
    assert f"{number} deliveries" in text
    assert "--status rejected --destination out" in text


def test_each_page_shows_a_command_that_can_be_typed(counted: PlanWorld, world: PlanWorld, opened: Opened) -> None:
    """Also with a status, an id or a filter in it that a shell would take for something else."""
    Queue("in", counted.folder).append([{"word": "rat"}])
    JobQueue.open(f"sqlite:///{counted.folder}/queue.db").create_batch({"submitter": "carla"})
    evil = "x; rm -rf ~ $(id) 'quoted'"
    site = opened(counted.folder, world.state)
    [intake] = re.findall(r'href="/intake/([^"?/]+)"', site.get("/intake").text)[:1]
    names = {"plan": "trial-v1", "queue": "in", "intake": intake, "flow": "none"}
    seen = 0
    for path in PAGES:
        for more in ({}, {"id": "a"}, {"status": "failed", "reason": evil}, {"id": evil, "state": evil}):
            query = {"verb": "retry", "message": "x", **more}
            page = site.get(path.format(**names), params=query).text
            found = re.search(
                r'<p class="says">The same in a terminal:</p>\s*<div class="command"><code>(.*?)</code>', page
            )
            if found is not None:
                _, *typed = shlex.split(html.unescape(found[1]))
                parse(typed)
                assert all(word == evil or ";" not in word for word in typed)
                seen += 1
    assert seen > 40


def test_verifications_and_what_is_remembered_have_pages(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    assert "out never" in site.text(f"{PLAN}/verify")
    assert "Nothing is remembered here" in site.text(f"{PLAN}/remembered")


@pytest.fixture
def counted(place: Path) -> PlanWorld:
    world = count_words(place)
    world.put("ship", "ship", "mate")
    world.run()
    return world


def test_a_key_is_looked_up(counted: PlanWorld, opened: Opened) -> None:
    site = opened(counted.folder)
    assert "counts : 2 keys" in site.text("/plans/words-v1/state")
    assert "mate 1" in site.text("/plans/words-v1/state", node="counts")
    assert "ship 2 Sequence" in site.text("/plans/words-v1/state", node="counts", key="ship")
    assert "has no state" in site.text("/plans/words-v1/state", node="counts", key="rat")
    assert "not a keyed node" in site.text("/plans/words-v1/state", 404, node="other")


def test_queues_are_shown_with_their_readers(counted: PlanWorld, opened: Opened) -> None:
    queue = Queue("in", counted.folder)
    queue.append([{"word": "rat"}])
    site = opened(counted.folder)
    text = site.text("/queues")
    assert "in 4 1 4" in text
    assert "1 behind" in text
    one = site.text("/queues/in")
    assert '{"word": "rat"}' in one
    assert "4 messages kept, 1 to 4" in one


def test_a_flow_is_shown_when_its_file_is_named(place: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "flow.py").write_text(
        "from ferryman import Plan, Flow\n"
        "from ferryman.sources import Queue, Files\n"
        "from ferryman.destinations import Queue as Into\n"
        "one = Plan('one'); one.source('files', Files('docs')).destination('to', Into('between', 'queues'))\n"
        "two = Plan('two'); two.source('of', Queue('between', 'queues')).destination('on', Into('last', 'queues'))\n"
        "both = Flow('both', [one, two])\n"
    )
    (place / "docs").mkdir()
    monkeypatch.chdir(place)
    site = opened(place, place / "flow.py")
    assert "both : 2 plans" in site.text("/flows")
    text = site.text("/flows/both")
    assert "one writes" in text
    assert "two reads it" in text
    assert "between" in site.get("/flows/both/picture.svg").text
    assert "one-v0 never ran" in site.text("/")


def test_an_empty_folder_says_what_to_type(tmp_path: Path, opened: Opened) -> None:
    text = opened(tmp_path).text("/")
    assert "There is nothing to show yet" in text
    assert "ferryman demo" in text


def test_a_state_that_appears_later_is_found(place: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FRESH_S", 1e-9)
    monkeypatch.setattr(plans, "FRESH_S", 1e-9)
    site = opened(place)
    assert "nothing to show" in site.text("/")
    world = PlanWorld(place).build()
    world.put("a")
    world.run()
    assert "trial-v1" in site.text("/")


def _keyed(place: Path) -> PlanWorld:
    world = count_words(place)
    world.put("ship", "mate")
    return world


def _plain(place: Path) -> PlanWorld:
    world = PlanWorld(place).build()
    world.put("a", "b")
    return world


@pytest.mark.parametrize("make", [_plain, _keyed])
def test_a_recorded_plan_is_counted_as_the_real_one(make: Callable[[Path], PlanWorld], place: Path) -> None:
    """A state is enough: no file of a user is run. Only how far a log goes on is not known without it."""
    world = make(place)
    world.run()
    recorded = recorded_plan(world.root)
    assert [(n.name, n.kind, n.after) for n in recorded.nodes] == [(n.name, n.kind, n.after) for n in world.plan.nodes]
    real, found = world.status(), account.status(world.root, recorded)
    for sources in (real["sources"], found["sources"]):
        for numbers in sources.values():
            numbers.pop("lag", None)
    assert json.dumps(found, sort_keys=True) == json.dumps(real, sort_keys=True)


def test_commands_name_the_plan_file_beside_the_state(place: Path, opened: Opened) -> None:
    world = PlanWorld(place / "work").build()
    world.put("a")
    world.run()
    (place / "work" / "plan.py").write_text('raise SystemExit("nobody runs this")\nplan = Plan("trial", version=1)\n')
    text = opened(place).text(PLAN)
    assert f"ferryman status {place}/work/plan.py --state {place}/work/state" in text
