"""From a submission to a report that is true."""

from __future__ import annotations

from tests.consumers.place import Place


def test_a_manifest_is_delivered(intake: Place) -> None:
    """Lines with one local id are one job; each file is a document; batch and jobs are Completed."""
    rows = [
        intake.row(f"{job}/{file}.txt", local_id=f"object {job}", title="T") for job in range(3) for file in range(2)
    ]
    batch = intake.queue.load_batch(intake.submit(manifest_url=intake.manifest(rows)))

    intake.serve()

    assert set(intake.jobs().values()) == {"Completed"}
    assert len(intake.jobs()) == 3
    assert (batch.status, batch.message) == ("Completed", "3 jobs completed")
    assert intake.rows() == [
        (f"object {job}/{file}.txt", f"content of {job}/{file}.txt") for job in range(3) for file in range(2)
    ]
