"""A job leaves Processing when its documents are settled, not before; on ZooKeeper as on SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from ferryman import Effect, Plan, Unavailable
from ferryman.destinations import Delivery, Destination, Outcome
from ferryman.intake import Queue
from ferryman.sources import Jobs
from tests.consumers.place import Place, until
from tests.servers.server import Server


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


def test_a_job_whose_files_are_not_here(intake: Place) -> None:
    """One that was moved to Processing by hand has nothing to process, and says so."""
    batch = intake.queue.create_batch({})
    batch.set_status("Processing")
    job = batch.create_job({}, identifiers={"local_id": ["x"]})
    for state in ("Estimating", "Provisioning", "Downloading", "Processing"):
        job.set_status(state)
    intake.serve()
    assert job.status == "Failed"
    assert "names no list of files" in job.message
    assert batch.status == "Failed"


def test_on_zookeeper(intake: Place, server: Callable[[str], Server]) -> None:
    """The same consumers, on a queue that a server keeps."""
    intake.queue.close()
    intake.queue = Queue.open(f"{server('zookeeper').url}/{uuid4().hex}")
    rows = [intake.row(f"{o}/{f}.txt", local_id=f"object {o}") for o in range(5) for f in range(2)]
    rows.append({**intake.row("bad.txt", b"\0"), "local_id": "bad"})
    batch = intake.queue.load_batch(intake.submit(manifest_url=intake.manifest(rows)))

    intake.serve()

    assert (batch.status, batch.message) == ("Failed", "1 of 6 jobs failed")
    assert len(intake.rows()) == 10
    assert intake.queue.audit() == []
