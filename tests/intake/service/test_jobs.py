"""The source of jobs: what it lists, and what it refuses."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest

from ferryman.document import Document
from ferryman.errors import BadDocument, UsageError
from ferryman.intake import Job, JobQueue
from ferryman.intake import job as inventory
from ferryman.intake.job import StoredFile
from ferryman.sources import Jobs, Listed, Source
from ferryman.testing.sources import SourceSuite


def job_in_processing(queue: JobQueue, folder: Path, files: dict[str, bytes], **what: object) -> Job:
    """A job with these files in its working space."""
    batch = queue.create_batch({})
    batch.set_status("Processing")
    configuration = {"profile_name": what["collection"]} if "collection" in what else {}
    identifiers = {"local_id": [what["local_id"]]} if "local_id" in what else {}
    job = batch.create_job(configuration, identifiers=identifiers, metadata={"erc_what": "A title"})
    space = folder / job.id
    held = []
    for name, content in files.items():
        path = space / inventory.FILES_FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        held.append(StoredFile(name, len(content), hashlib.sha256(content).hexdigest(), fields={"page": 1}))
    job.set_inventory(inventory.inventory_values(inventory.write_inventory(space, held), held))
    for state in ("Estimating", "Provisioning", "Downloading", "Processing"):
        job.set_status(state)
    return job


class TestJobs(SourceSuite):
    def source(self, folder: Path) -> Jobs:
        queue = JobQueue.open(f"sqlite:///{folder}/queue.db")
        job_in_processing(queue, folder, {"a b#%.txt": b"one", "deep/ç.txt": b""}, local_id="ark:/1/2", collection="c")
        job_in_processing(queue, folder, {"a.txt": b"other"})
        queue.close()
        return Jobs(queue.url)


def entries(source: Source) -> list[Listed]:
    found = [entry for piece in source.partitions() for entry in source.listing(piece)]
    assert all(isinstance(entry, Listed) for entry in found)
    return found  # type: ignore[return-value]


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue.open(f"memory:{tmp_path}")


def test_ids_and_fields(queue: JobQueue, tmp_path: Path) -> None:
    """An id is collection, local id and place; neither job nor batch are in the fields."""
    job_in_processing(queue, tmp_path, {"a b#1.txt": b"x"}, local_id="ark:/1/2", collection="big maps")
    plain = job_in_processing(queue, tmp_path, {"deep/b.txt": b"y"})
    source = Jobs(queue)

    found = entries(source)

    assert [entry.id for entry in found] == ["big maps/ark:%2F1%2F2/a b%231.txt", f"{plain.id}/deep/b.txt"]
    doc = source.read(found[0])
    assert isinstance(doc, Document)
    assert (doc.raw, dict(doc)) == (
        b"x",
        {"local_id": "ark:/1/2", "collection": "big maps", "path": "a b#1.txt", "erc_what": "A title", "page": 1},
    )


def test_of_two_jobs_of_one_object_one_is_listed(queue: JobQueue, tmp_path: Path) -> None:
    """The other's turn comes when it is done."""
    first = job_in_processing(queue, tmp_path, {"a.txt": b"1"}, local_id="o")
    job_in_processing(queue, tmp_path, {"a.txt": b"2"}, local_id="o")
    assert [source_piece.job for source_piece in Jobs(queue).partitions()] == [first.id]


def test_only_in_processing(queue: JobQueue, tmp_path: Path) -> None:
    """What is done is not listed any more, and nothing of it counts as gone."""
    job = job_in_processing(queue, tmp_path, {"a.txt": b"1"}, local_id="o")
    job.set_status("Storing")
    assert entries(Jobs(queue)) == []
    assert not Jobs.lists_all


def test_the_fingerprint_is_of_bytes_and_fields(queue: JobQueue, tmp_path: Path) -> None:
    """The same object in another batch has the same ones."""
    job_in_processing(queue, tmp_path, {"a.txt": b"1"}, local_id="o")
    (before,) = entries(Jobs(queue))
    queue.load_job(queue.list_jobs()[0]).set_status("Storing")
    job_in_processing(queue, tmp_path, {"a.txt": b"1"}, local_id="o")
    (same,) = entries(Jobs(queue))
    assert same.fingerprint == before.fingerprint


def test_bad_objects(queue: JobQueue, tmp_path: Path) -> None:
    """A file that is missing, damaged or too large is refused when it is read; a damaged list as one document."""
    names = ("missing", "damaged", "large")
    job = job_in_processing(queue, tmp_path, {name: b"content" + name.encode() for name in names}, local_id="o")
    folder = tmp_path / job.id / inventory.FILES_FOLDER
    (folder / "missing").unlink()
    (folder / "damaged").write_bytes(b"x")
    for source, name, why in (
        (Jobs(queue), "missing", "No such file"),
        (Jobs(queue), "damaged", "its digest differs"),
        (Jobs(queue, max_bytes=5), "large", "more than the limit of 5"),
    ):
        (entry,) = (entry for entry in entries(source) if entry.id == f"o/{name}")
        with pytest.raises(BadDocument, match=why):
            source.read(entry)

    (tmp_path / job.id / inventory.INVENTORY_NAME).write_text("{")
    (refused,) = entries(Jobs(queue))
    assert refused.id == "o/"
    assert "the list of its files cannot be read" in refused.refused


def test_without_a_queue(queue: JobQueue) -> None:
    """`Jobs()` is for serve; a worker's copy has no queue."""
    with pytest.raises(UsageError, match="no queue is named"):
        Jobs().check()
    copy = pickle.loads(pickle.dumps(Jobs(queue)))
    assert copy.url == queue.url
    assert repr(copy) == "Jobs()"
    with pytest.raises(UsageError, match="max_bytes=0"):
        Jobs(max_bytes=0)
