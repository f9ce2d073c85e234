"""The nodes of a scripted life of two batches, compared as a whole after each step with what the layout says.

The expected nodes are written down by hand, step by step: what a step removes, then what it makes or sets.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ferryman.intake import JobQueue
from tests.intake.conftest import NOW, Opening, layout


def status(state: str, message: str = "") -> str:
    """Of a batch or an access request."""
    return f'{{"status":"{state}","last_modified":"{NOW}","message":"{message}"}}'


def job_status(state: str, last: str | None, retries: int = 0, message: str = "") -> str:
    before = "null" if last is None else f'"{last}"'
    return (
        f'{{"status":"{state}","last_successful_status":{before},"last_modified":"{NOW}",'
        f'"retry_count":{retries},"message":"{message}"}}'
    )


class Expected:
    """The nodes as they should be now."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue
        self.nodes: dict[str, str] = {}

    def step(self, *gone: str, **made: Any) -> None:
        """``gone``: these nodes, each with all below. ``nodes=``: these are made, or set."""
        for path in gone:
            below = [one for one in self.nodes if one == path or one.startswith(f"{path}/")]
            assert below, f"{path} was not expected to be there"
            for one in below:
                del self.nodes[one]
        self.nodes |= made.get("nodes", {})
        assert layout(self.queue) == self.nodes


B0, B1 = "/batches/bid0000000000", "/batches/bid0000000001"
J1, J2, J3 = "/jobs/jid0000000001", "/jobs/jid0000000002", "/jobs/jid0000000003"
"""The first number below /jobs is 1: /jobs/states has taken 0."""


@pytest.mark.rule("intake.layout")
def test_the_life_of_two_batches(queue: JobQueue, opening: Opening) -> None:
    """A happy one; one with a failure that is recovered by a requeue; both removed in the end."""
    now = Expected(queue)
    now.step()

    first = queue.create_batch({"batchID": "uuid-1", "submitter": "me"})
    now.step(
        nodes={
            "/batch-uuids/uuid-1": "bid0000000000",
            B0: "",
            f"{B0}/submission": '{"batchID":"uuid-1","submitter":"me"}',
            f"{B0}/status": status("Pending"),
        }
    )
    second = queue.create_batch({"profile_name": "maps"})
    now.step(nodes={B1: "", f"{B1}/submission": '{"profile_name":"maps"}', f"{B1}/status": status("Pending")})

    acquired = queue.acquire_pending_batch()
    assert acquired is not None
    assert acquired.id == first.id
    now.step(nodes={f"{B0}/lock": "", f"{B0}/states": "", f"{B0}/status": status("Processing")})
    made = acquired.create_job(
        {"payload_url": "http://x/é"}, identifiers={"local_id": ["a"]}, metadata={"erc_what": "w"}
    )
    now.step(
        nodes={
            J1: "",
            f"{J1}/bid": "bid0000000000",
            f"{J1}/configuration": '{"payload_url":"http://x/é"}',
            f"{J1}/identifiers": '{"local_id":["a"]}',
            f"{J1}/metadata": '{"erc_what":"w"}',
            f"{J1}/priority": "5",
            f"{J1}/space_needed": "0",
            f"{J1}/status": job_status("Pending", None),
            "/jobs/states/pending/05-jid0000000001": "",
            f"{B0}/states/batch-processing": "",
            f"{B0}/states/batch-processing/jid0000000001": "",
        }
    )
    acquired.unlock()
    now.step(f"{B0}/lock")

    job = queue.acquire_job("Pending")
    assert job is not None
    assert job.id == made.id
    now.step(nodes={f"{J1}/lock": ""})
    job.set_status("Estimating")
    now.step(
        "/jobs/states/pending/05-jid0000000001",
        nodes={f"{J1}/status": job_status("Estimating", "Pending"), "/jobs/states/estimating/05-jid0000000001": ""},
    )
    job.set_status("Provisioning", message="unknown size", priority=15)
    now.step(
        "/jobs/states/estimating/05-jid0000000001",
        nodes={
            f"{J1}/status": job_status("Provisioning", "Estimating", message="unknown size"),
            f"{J1}/priority": "15",
            "/jobs/states/provisioning/15-jid0000000001": "",
        },
    )
    job.set_space_needed(4096)
    now.step(nodes={f"{J1}/space_needed": "4096"})
    steps = ["Provisioning", "Downloading", "Processing", "Storing", "Recording", "Notify"]
    for before, after in itertools.pairwise(steps):
        job.success()
        now.step(
            f"/jobs/states/{before.lower()}/15-jid0000000001",
            nodes={
                f"{J1}/status": job_status(after, before),
                f"/jobs/states/{after.lower()}/15-jid0000000001": "",
            },
        )
    job.set_inventory({"manifest_url": "http://m", "mode": "add"})
    job.set_store({"node": "n1"})
    now.step(nodes={f"{J1}/inventory": '{"manifest_url":"http://m","mode":"add"}', f"{J1}/store": '{"node":"n1"}'})
    job.success()
    now.step(
        "/jobs/states/notify/15-jid0000000001",
        f"{B0}/states/batch-processing/jid0000000001",
        nodes={
            f"{J1}/status": job_status("Completed", "Notify"),
            "/jobs/states/completed/15-jid0000000001": "",
            f"{B0}/states/batch-completed": "",
            f"{B0}/states/batch-completed/jid0000000001": "",
        },
    )
    job.unlock()
    now.step(f"{J1}/lock")

    batch = opening().acquire_batch_for_reporting()
    assert batch is not None
    now.step(
        nodes={
            f"{B0}/lock": "",
            f"{B0}/status": status("Reporting"),
            f"{B0}/status-report": f'{{"last_modified":"{NOW}","failed_jobs":[],"successful_jobs":["jid0000000001"]}}',
        }
    )
    batch.success()
    now.step(nodes={f"{B0}/status": status("Completed")})
    batch.unlock()
    now.step(f"{B0}/lock")

    failing(queue, now, second.id)
    removed(queue, now)


def failing(queue: JobQueue, now: Expected, batch_id: str) -> None:
    """The second batch: a job that fails twice and is taken up again, one that is held and deleted."""
    batch = queue.acquire_pending_batch()
    assert batch is not None
    batch.unlock()
    now.step(nodes={f"{B1}/states": "", f"{B1}/status": status("Processing")})
    batch = queue.load_batch(batch.id)
    failed, held = batch.create_job({}), batch.create_job({}, priority=120)
    now.step(
        nodes={
            **{f"{j}/bid": batch_id for j in (J2, J3)},
            **dict.fromkeys((J2, J3), ""),
            f"{J2}/priority": "5",
            f"{J3}/priority": "120",
            **{f"{j}/space_needed": "0" for j in (J2, J3)},
            **{f"{j}/status": job_status("Pending", None) for j in (J2, J3)},
            "/jobs/states/pending/05-jid0000000002": "",
            "/jobs/states/pending/99-jid0000000003": "",
            f"{B1}/states/batch-processing": "",
            f"{B1}/states/batch-processing/jid0000000002": "",
            f"{B1}/states/batch-processing/jid0000000003": "",
        }
    )
    failed.set_status("Estimating")
    failed.success()
    failed.fail("no space")
    now.step(
        "/jobs/states/pending/05-jid0000000002",
        f"{B1}/states/batch-processing/jid0000000002",
        nodes={
            f"{J2}/status": job_status("Failed", "Estimating", message="no space"),
            "/jobs/states/failed/05-jid0000000002": "",
            f"{B1}/states/batch-failed": "",
            f"{B1}/states/batch-failed/jid0000000002": "",
        },
    )
    failed.requeue()
    now.step(
        "/jobs/states/failed/05-jid0000000002",
        f"{B1}/states/batch-failed/jid0000000002",
        nodes={
            f"{J2}/status": job_status("Provisioning", "Estimating", retries=1),
            "/jobs/states/provisioning/05-jid0000000002": "",
            f"{B1}/states/batch-processing/jid0000000002": "",
        },
    )
    failed.fail("no space")
    failed.set_status("Deleted")
    held.set_status("Held")
    now.step(
        "/jobs/states/provisioning/05-jid0000000002",
        "/jobs/states/pending/99-jid0000000003",
        f"{B1}/states/batch-processing/jid0000000002",
        nodes={
            f"{J2}/status": job_status("Deleted", "Estimating", retries=1),
            f"{J3}/status": job_status("Held", "Pending"),
            "/jobs/states/deleted/05-jid0000000002": "",
            "/jobs/states/held/99-jid0000000003": "",
            f"{B1}/states/batch-deleted": "",
            f"{B1}/states/batch-deleted/jid0000000002": "",
        },
    )
    held.set_status("Deleted")
    now.step(
        "/jobs/states/held/99-jid0000000003",
        f"{B1}/states/batch-processing/jid0000000003",
        nodes={
            f"{J3}/status": job_status("Deleted", "Pending"),
            "/jobs/states/deleted/99-jid0000000003": "",
            f"{B1}/states/batch-deleted/jid0000000003": "",
        },
    )


def removed(queue: JobQueue, now: Expected) -> None:
    """One job alone; the happy batch by a cleanup; the other by its own delete."""
    queue.load_job("jid0000000003").delete()
    now.step(J3, "/jobs/states/deleted/99-jid0000000003", f"{B1}/states/batch-deleted/jid0000000003")
    assert queue.delete_completed_batches() == ["bid0000000000"]
    now.step(B0, "/batch-uuids/uuid-1", J1, "/jobs/states/completed/15-jid0000000001")
    batch = queue.load_batch("bid0000000001")
    batch.set_status("Failed", "nothing is left of it")
    batch.set_status("Deleted")
    now.step(nodes={f"{B1}/status": status("Deleted")})
    batch.delete()
    now.step(B1, J2, "/jobs/states/deleted/05-jid0000000002")
    assert now.nodes == {}


def test_the_life_of_an_access_request(queue: JobQueue) -> None:
    """Token, status, lock."""
    now = Expected(queue)
    path = "/access/large/qid0000000000"
    queue.create_assembly("large", {"token": "t", "delivery-node": 7})
    now.step(nodes={path: "", f"{path}/token": '{"token":"t","delivery-node":7}', f"{path}/status": status("Pending")})
    request = queue.acquire_pending_assembly("large")
    assert request is not None
    now.step(nodes={f"{path}/lock": ""})
    request.set_status("Processing")
    now.step(nodes={f"{path}/status": status("Processing")})
    request.fail("gone")
    now.step(nodes={f"{path}/status": status("Failed", "gone")})
    request.set_status("Deleted")
    request.delete()
    now.step(path)


def test_the_locks(queue: JobQueue) -> None:
    """Where each kind is, and what is in it."""
    now = Expected(queue)
    locks = queue.locks
    for kind in ("ingest", "access-small", "access-large"):
        assert locks.lock(kind)
    for kind, name in (
        ("collection", "my maps"),
        ("storage", "ark:/aaa/111"),
        ("inventory", "ark:/aaa/111"),
        ("localid", "a:b/c_owner"),
    ):
        assert locks.lock(kind, name)
    now.step(
        nodes={
            "/locks/queue/ingest": "",
            "/locks/queue/accessSmall": "",
            "/locks/queue/accessLarge": "",
            "/locks/collections/my maps": "my maps",
            "/locks/storage/ark_aaa_111": "ark:/aaa/111",
            "/locks/inventory/ark_aaa_111": "ark:/aaa/111",
            "/locks/localid/a:b_c_owner": "a:b/c_owner",
        }
    )
    ephemeral = {path for path, node in queue.tree.store.walk("/locks") if node.owner}
    assert ephemeral == {"/locks/inventory/ark_aaa_111", "/locks/localid/a:b_c_owner"}
