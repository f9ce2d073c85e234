"""A job leaves Processing when its documents are settled, not before; on ZooKeeper as on SQLite."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from ferryman import Effect, Plan, Unavailable
from ferryman.cli.app import start
from ferryman.destinations import Delivery, Destination, Outcome
from ferryman.engine.run import Run
from ferryman.engine.settings import Clock, RunSettings
from ferryman.intake import JobQueue
from ferryman.intake.service.processing import GATHER_MAX_S, GATHER_S, ProcessingConsumer, gather
from ferryman.sources import Jobs
from ferryman.state.commands import queue_retry
from tests.intake.service.place import Place, until
from tests.servers.server import Server
from tests.support.recorder import Recorder


class Door(Destination):
    """Writes ids into a file, unless the door is shut; refuses what is called so."""

    effect = Effect.IDEMPOTENT

    def __init__(self, folder: Path) -> None:
        self.shut, self.out = folder / "shut", folder / "out"

    def check(self) -> None:
        if self.shut.exists():
            raise Unavailable("the door is shut")

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        self.check()
        with self.out.open("a") as out:
            out.writelines(json.dumps(one.id) + "\n" for one in chunk if "refuse" not in one.id)
        return [Outcome.permanent("not here") if "refuse" in one.id else Outcome.ok() for one in chunk]


def through_a_door(place: Place) -> Plan:
    plan = Plan("door", version=1)
    plan.source("jobs", Jobs()).destination("door", Door(place.folder))
    return plan


def states(place: Place) -> dict[str, str]:
    jobs = map(place.queue.load_job, place.jobs())
    return {job.identifiers["local_id"][0]: job.status for job in jobs}


@pytest.mark.rule("intake.serve")
def test_while_a_destination_is_down(intake: Place) -> None:
    """Jobs stay in Processing while their documents are owed, also when the consumer ends and another begins; then they
    go on, and one that is refused fails with the words of the destination."""
    intake.plan = through_a_door(intake)
    (intake.folder / "shut").touch()
    for name in ("one", "refused"):
        intake.submit(payload_url=intake.put(f"{name}.txt", name).as_uri(), local_id=name)
    stop = threading.Event()
    served = threading.Thread(target=intake.serve, args=(stop,), kwargs={"once": False})
    served.start()
    until(lambda: states(intake) == {"one": "Processing", "refused": "Processing"})
    until(lambda: (intake.root / "outbox").exists() and any((intake.root / "outbox").rglob("*.parquet")))
    stop.set()
    served.join()
    assert states(intake) == {"one": "Processing", "refused": "Processing"}

    (intake.folder / "shut").unlink()
    intake.serve()

    assert states(intake) == {"one": "Completed", "refused": "Failed"}
    assert (intake.folder / "out").read_text() == '"one/one.txt"\n'
    (failed,) = intake.queue.list_jobs("Failed")
    assert intake.queue.load_job(failed).message == "refused/refused.txt: door: not here"


@pytest.mark.rule("intake.unlisted")
def test_a_retry_of_a_document_whose_job_is_done(intake: Place) -> None:
    """No job lists it: it is looked for, told once, and looked for again when another word is given."""
    intake.submit(manifest_url=intake.manifest([intake.row("bad.txt", b"\0", local_id="o")]))
    intake.serve()
    (job,) = map(intake.queue.load_job, intake.jobs())
    seconds = [0.0]

    def scans() -> int:
        """Of turns until there is nothing to do."""
        before = intake.said.scans
        while processing.turn():
            pass
        return intake.said.scans - before

    with intake.driving() as (state, runner):
        run = Run(state, runner, intake.said, RunSettings(wait=0), Clock(now=lambda: seconds[0]))
        processing = ProcessingConsumer(intake.queue, run, state, intake.said.message, threading.Event())
        for _ in range(2):
            queue_retry(state, "jobs", ["o/bad.txt"], "mended")
            assert 0 < scans() <= 3
            assert (scans(), run.due_s()) == (0, None)
        seconds[0] += 60
        assert 0 < scans() <= 3
        (line,) = [line for line in intake.said.lines if "not listed" in line]
        assert line == (
            "source jobs: 1 document is to be tried again and not listed: o/bad.txt. Only jobs in Processing are "
            "listed: requeue the job if it failed (`ferryman intake requeue JID`), or submit its files again "
            "(`ferryman intake submit PAYLOAD`). It is looked for again every 60 s."
        )
        job.requeue()
        assert scans() == 1
    assert (job.status, job.message) == ("Failed", "o/bad.txt: holds a zero byte"), "tried, and as bad as before"


@pytest.mark.rule("intake.unlisted")
def test_what_waits_for_its_job_is_said(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command that asks for it, by ``status`` and by ``deliveries``; no more when the files have come again."""
    rows = [intake.row(name, local_id="o") for name in ("a.txt", "b.txt")]
    intake.submit(manifest_url=intake.manifest(rows))
    intake.serve()
    plan = intake.folder / "plan.py"
    plan.write_text(
        "from pathlib import Path\n"
        "from tests.intake.service.place import plan_into\n"
        f"plan = plan_into(Path({str(intake.folder / 'index.db')!r}))\n"
    )

    def said(verb: str, *options: str) -> str:
        assert start([verb, str(plan), *options, "--state", str(intake.folder / "state")]) == 0
        return "\n".join(line for line in capsys.readouterr().out.splitlines() if "source jobs: " in line)

    assert [said(verb) for verb in ("status", "deliveries")] == ["", ""]
    advice = (
        "Only jobs in Processing are listed: requeue the job if it failed (`ferryman intake requeue JID`), or submit "
        "its files again (`ferryman intake submit PAYLOAD`)."
    )
    one = f"source jobs: 1 document waits until it is listed again: o/a.txt. {advice}"
    assert said("retry", "--force", "--doc", "o/a.txt") == one
    assert [said(verb) for verb in ("status", "deliveries")] == [one, one]
    assert said("retry", "--force") == (
        f"source jobs: 2 documents wait until they are listed again, such as o/a.txt. {advice}"
    )
    with intake.driving():
        assert said("retry", "--force") == f"source jobs: what has to be read again waits until it is listed. {advice}"

    intake.submit(manifest_url=intake.manifest(rows))
    intake.serve()
    assert [said(verb) for verb in ("status", "deliveries")] == ["", ""]


@pytest.mark.rule("intake.again")
def test_the_same_files_submitted_anew(intake: Place) -> None:
    """What failed is tried again, as in a job that is requeued; what is delivered is not delivered twice."""
    flag = intake.folder / "refuses"
    flag.touch()

    def answer(delivery: Delivery) -> Outcome:
        refused = "odd" in delivery.id and flag.exists()
        return Outcome.permanent("not here") if refused else Outcome.ok()

    out = Recorder(intake.folder / "out.jsonl", answer)
    intake.plan = Plan("again", version=1)
    intake.plan.source("jobs", Jobs()).destination("out", out)
    rows = [intake.row(name, local_id="o") for name in ("good.txt", "odd.txt")]
    for tries in (1, 2, 3):
        if tries == 3:
            flag.unlink()
        intake.submit(manifest_url=intake.manifest(rows))
        intake.serve()
        assert Counter(line["id"] for line in out.lines()) == {"o/good.txt": 1, "o/odd.txt": tries}
    assert sorted(intake.jobs().values()) == ["Completed", "Failed", "Failed"]


def test_a_job_whose_files_are_not_here(intake: Place) -> None:
    """One that was moved to Processing by hand has nothing to process, and says so."""
    batch = intake.queue.create_batch({})
    batch.set_status("Processing")
    job = batch.create_job({}, identifiers={"local_id": ["x"]})
    for state in ("Estimating", "Provisioning", "Downloading", "Processing"):
        job.set_status(state)
    intake.serve()
    assert job.status == "Failed"
    assert "does not name a list of files" in job.message
    assert batch.status == "Failed"


def test_on_zookeeper(intake: Place, server: Callable[[str], Server]) -> None:
    """The same consumers, on a queue that a server keeps."""
    intake.queue.close()
    intake.queue = JobQueue.open(f"{server('zookeeper').url}/{uuid4().hex}")
    rows = [intake.row(f"{o}/{f}.txt", local_id=f"object {o}") for o in range(5) for f in range(2)]
    rows.append({**intake.row("bad.txt", b"\0"), "local_id": "bad"})
    batch = intake.queue.load_batch(intake.submit(manifest_url=intake.manifest(rows)))

    intake.serve()

    assert (batch.status, batch.message) == ("Failed", "1 of 6 jobs failed")
    assert len(intake.rows()) == 10
    assert intake.queue.audit() == []


@pytest.mark.parametrize(
    ("arrivals", "turn_s", "begins_at"),
    [
        ([], 0.5, 0.0),
        ([-1.0], 0.5, 0.0),
        ([0.0], 0.5, GATHER_S),
        ([0.0], 0.0, GATHER_S),
        ([n / 10 for n in range(4)], 5.0, 0.3 + GATHER_S),
        ([n / 10 for n in range(100)], 0.5, 0.5),
        ([n / 10 for n in range(100)], 5.0, GATHER_MAX_S),
    ],
    ids=["none", "long ago", "one", "one, first turn was quick", "some", "many", "many, turns take long"],
)
def test_a_turn_waits_for_jobs_that_follow(arrivals: list[float], turn_s: float, begins_at: float) -> None:
    """While one comes after the other, for as long as a turn takes, and no longer than a second; a job that comes alone
    waits no longer for it."""
    now = 0.0

    def arrived_at() -> float:
        return max((at for at in arrivals if at <= now), default=-GATHER_S)

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    gather(arrived_at, turn_s, lambda: now, wait)
    assert now == pytest.approx(begins_at)
    now = 0.0
    gather(arrived_at, turn_s, lambda: now, lambda seconds: True)
    assert now == 0.0
