"""What an operator does from a page is the command of the command line, under the operator's name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferryman import account
from ferryman.destinations.base import Delivery, Outcome
from ferryman.intake import JobQueue
from ferryman.limits import format_count
from ferryman.plan import Plan
from tests.dashboard.conftest import OPERATOR, READER, TOKENS, Opened, words
from tests.support.plan_world import PlanWorld

PLAN = "/plans/trial-v1"


def test_a_reason_is_retried_with_its_number_before_and_its_outcome_after(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, tokens=TOKENS, token=OPERATOR, allow_actions=True)
    [reason] = [r["reason"] for r in account.reasons(own_world.root, plan=own_world.plan) if "torn" in r["reason"]]
    fields = {"verb": "retry", "status": "rejected", "reason": reason}
    before = site.text(f"{PLAN}/confirm", **fields)
    assert "Retry: 2 deliveries" in before
    assert "ferryman retry PLAN" in before
    done = site.give(**fields, why="glued")
    text = words(done.text)
    assert "2 deliveries: 2 pending" in text
    assert own_world.counts()["pending"] == 3
    assert own_world.counts()["failed"] == 2  # other reasons are left alone
    events = own_world.history("bad1")
    assert re.fullmatch(r"retry by otto: glued \[[0-9a-f]{8}\]", events[-1]["message"])
    own_world.drop("bad1")
    own_world.put("bad22", text="x")
    again = site.get(str(done.url)).text
    assert "bad22" in again


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_of_many_has_its_outcome(number: int, place: Path, opened: Opened) -> None:
    """Of a retry of all that failed, some arrive and some fail again; the page says which, the bad ones first."""
    healed = {"on": False}

    def build(world: PlanWorld) -> Plan:
        plan = Plan("trial", version=1)
        plan.source("docs", _source(world)).destination("out", world.out(), attempts=1)
        return plan

    def answer(delivery: Delivery) -> Outcome:
        n = int(delivery.id)
        fits = n % 3 != 0 if healed["on"] else n % 10 == 0  # what refuses all of thousands would be in trouble itself
        return Outcome.ok() if fits else Outcome.permanent("no room")

    world = PlanWorld(place, build)
    world.out().answer = answer
    world.put(*(str(n) for n in range(number)))
    world.run()
    failed = [n for n in range(number) if n % 10]
    assert world.counts() == {"failed": len(failed), "delivered": number - len(failed)}
    site = opened(world.state, allow_actions=True)
    shown = format_count(len(failed))
    assert f"Retry: {shown} deliveries" in site.text(f"{PLAN}/confirm", verb="retry", status="failed")
    done = site.give("retry", status="failed")
    assert f"{shown} deliveries: {shown} pending" in words(done.text)
    healed["on"] = True
    world.run()
    text = site.text(str(done.url).partition("localhost")[2])
    again = sum(n % 3 == 0 for n in failed)
    assert f"{format_count(again)} failed" in text
    assert f"{format_count(len(failed) - again)} delivered" in text
    before, first, _ = text[text.index("When") :].partition("out failed no room")
    assert first
    assert "delivered" not in before


def _source(world: PlanWorld) -> object:
    from ferryman.sources import Memory

    return Memory(world.documents, max_deleted=1.0)


def test_a_command_is_queued_while_a_run_holds_the_state(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    state = own_world.take()
    try:
        done = site.give("retry", status="failed")
        assert "It is queued" in words(done.text)
    finally:
        state.release()
    own_world.run()
    assert "It is queued" not in site.text(str(done.url).partition("localhost")[2])


def test_a_document_is_sent_again(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    text = site.text(f"{PLAN}/confirm", verb="retry --force", document="a")
    assert "Retry --force: 1 delivery" in text
    site.give("retry --force", document="a")
    own_world.run()
    assert own_world.arrived()["a"] == 2
    assert own_world.arrived()["b"] == 1


def test_only_one_document_at_a_time_is_sent_again(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    done = site.give("retry --force")
    assert done.status_code == 400


def test_failures_are_given_up(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    verb = "resolve --as dropped"
    site.give(verb, document="refused")
    assert own_world.counts()["dropped"] == 1
    assert "dashboard of" in own_world.history("refused")[-1]["message"]


@pytest.mark.parametrize("verb", ["", "rm", "adopt", "verify --delete-extra", "retry --force\n", "queue skip"])
def test_no_other_verb_is_offered(verb: str, own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    assert site.give(verb).status_code == 400
    assert own_world.status()["waves"] == 1


def test_two_persons_act_under_their_own_names(own_world: PlanWorld, opened: Opened) -> None:
    tokens = (*TOKENS, "olga:operator:olgas-secret-0123456789")
    one = opened(own_world.state, tokens=tokens, token=OPERATOR, allow_actions=True)
    other = opened(own_world.state, tokens=tokens, token="olgas-secret-0123456789", allow_actions=True)
    reader = opened(own_world.state, tokens=tokens, token=READER, allow_actions=True)
    one.give("retry", document="bad1")
    other.give("retry", document="bad22")
    assert reader.give("retry", document="bug").status_code == 403
    assert own_world.history("bad1")[-1]["message"].startswith("retry by otto")
    assert own_world.history("bad22")[-1]["message"].startswith("retry by olga")
    assert own_world.statuses("bug")[-1] != "RESTART"


def test_a_filter_by_reason_is_one_of_the_command_line(own_world: PlanWorld) -> None:
    [reason] = [r["reason"] for r in account.reasons(own_world.root, plan=own_world.plan) if "torn" in r["reason"]]
    assert {row["document"] for row in own_world.deliveries(reason=reason)} == {"bad1", "bad22"}
    assert own_world.retry(reason=reason).count == 2
    assert own_world.retry(reason="no such reason").count == 0


@pytest.fixture
def intake(tmp_path: Path) -> JobQueue:
    queue = JobQueue.open(f"sqlite:///{tmp_path}/queue.db")
    batch = queue.create_batch({"submitter": "carla"})
    for n in range(2):
        batch.create_job({"jobID": f"job {n}"}, 3)
    return queue


def test_the_intake_is_shown_by_state(intake: JobQueue, tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path)
    assert "2 Pending" in site.text("/intake")
    [key] = re.findall(r'href="(/intake/[^"?]+)"', site.get("/intake").text)[:1]
    assert "Pending" in site.text(key)
    jobs = site.text(key, kind="jobs", state="Pending")
    [job, *_] = intake.list_jobs()
    assert job in jobs
    assert "carla" in site.text(f"{key}/item", id=intake.list_batches()[0])
    assert "job 0" in site.text(f"{key}/item", id=job)
    assert site.get(f"{key}/item", params={"id": "jid-none"}).status_code in (404, 500)


def test_jobs_are_held_released_failed_and_requeued(intake: JobQueue, tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, tokens=TOKENS, token=OPERATOR, allow_actions=True)
    [key] = re.findall(r'href="(/intake/[^"?]+)"', site.get("/intake").text)[:1]
    job, other = intake.list_jobs()
    steps = (("hold", "Held"), ("release", "Pending"), ("fail", "Failed"), ("requeue", "Estimating"))
    for action, state in steps:
        page = f"{key}/item?id={job}"
        text = words(site.fill_in(f"{key}/act", page, action=action, ids=job, message="because").text)
        assert f"{job} : {state}" in text
        assert intake.load_job(job).status == state
        assert intake.load_job(job).message == "because (by otto)"
    site.fill_in(f"{key}/act", f"{key}/item?id={job}", action="prioritize", ids=f"{job} {other}", priority="1")
    assert [intake.load_job(name).priority for name in (job, other)] == [1, 1]
    text = words(site.fill_in(f"{key}/act", f"{key}/item?id={job}", action="release", ids=f"{job} jid-none").text)
    assert "jid-none" in text  # the error of one does not hide the others
    assert site.fill_in(f"{key}/act", f"{key}/item?id={job}", action="delete", ids=job).status_code == 403


def test_one_job_of_a_batch_does_not_keep_the_others_from_it(intake: JobQueue, tmp_path: Path, opened: Opened) -> None:
    """Those in progress keep their priority, those that wait get the new one; the page says so."""
    site = opened(tmp_path, allow_actions=True)
    [key] = re.findall(r'href="(/intake/[^"?]+)"', site.get("/intake").text)[:1]
    [batch] = intake.list_batches()
    first, second = intake.list_jobs()
    busy = intake.load_job(first)
    assert busy.lock()
    page = f"{key}/item?id={batch}"
    text = words(site.fill_in(f"{key}/act", page, action="prioritize", ids=batch, priority="1").text)
    assert [intake.load_job(id).priority for id in (first, second)] == [3, 1]
    assert f"1 job with priority 1, 1 not: {first}: " in text
    busy.fail("no good")
    intake.load_job(second).fail("no good")
    text = words(site.fill_in(f"{key}/act", page, action="requeue", ids=batch).text)
    assert [intake.load_job(id).status for id in (first, second)] == ["Failed", "Estimating"]
    assert f"1 job requeued, 1 not: {first}: " in text


def test_several_jobs_are_ticked(intake: JobQueue, tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, allow_actions=True)
    [key] = re.findall(r'href="(/intake/[^"?]+)"', site.get("/intake").text)[:1]
    page = site.get(key, params={"kind": "jobs"}).text
    ids = re.findall(r'type="checkbox" name="ids" value="([^"]+)"', page)
    assert ids == intake.list_jobs()
    csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
    site.post(f"{key}/act", data={"csrf": csrf, "action": "hold", "ids": ids})
    assert {intake.load_job(id).status for id in ids} == {"Held"}


def test_the_intake_is_paused_and_resumed(intake: JobQueue, tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, allow_actions=True)
    [key] = re.findall(r'href="(/intake/[^"?]+)"', site.get("/intake").text)[:1]
    site.fill_in(f"{key}/act", key, action="pause")
    assert intake.locks.check("ingest")
    assert "paused" in site.text(key)
    site.fill_in(f"{key}/act", key, action="resume")
    assert not intake.locks.check("ingest")
