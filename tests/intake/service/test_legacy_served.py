"""Records of the older queue are imported, served and closed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ferryman.intake.legacy import import_legacy
from ferryman.intake.service.payload import check_configuration
from tests.intake.service.place import Place

INVENTORY = """<?xml version="1.0" encoding="UTF-8"?>
<java version="17.0.15" class="java.beans.XMLDecoder">
 <object class="java.util.Properties">
  <void method="put">
   <string>manifestURL</string>
   <string>{url}</string>
  </void>
 </object>
</java>
"""


def records_of(intake: Place) -> list[tuple[str, bytes]]:
    """A record in each state, of a batch for each state and of one for all; and one of inventory."""
    manifest = intake.put("m.checkm", f"#%checkm_0.7\n{intake.put('page.txt', 'a page').as_uri()}\n#%eof\n")
    payloads = [
        (status, f"batchID={batch}\njobID=j-{number}\nfilename=letter.txt\ntype=file\nlocalID={batch}-{number}\n")
        for number in range(6)
        for status, batch in ((number, "all"), (number, f"only {number}"))
    ]
    payloads.append((0, INVENTORY.format(url=manifest.as_uri())))
    return [
        (f"mrtQ-0501{number:010d}", struct.pack(">Bq", status, 1_700_000_000_000) + payload.encode())
        for number, (status, payload) in enumerate(payloads)
    ]


@pytest.mark.rule("intake.legacy")
def test_all_of_an_older_queue_is_served_and_closed(intake: Place, tmp_path: Path) -> None:
    """What has work left is delivered; every batch is reported, but for those with a held job, and can be removed."""
    records = records_of(intake)
    for number in range(6):
        for batch in ("all", f"only {number}"):
            intake.put(f"older/{batch}/j-{number}/letter.txt", f"letter {number}")
    done = import_legacy(intake.queue, records, files=intake.files / "older", check=check_configuration)
    assert (len(done.jobs), done.skipped, done.cannot_be_served) == (13, [], [])

    intake.serve()

    batches = {intake.queue.load_batch(id).submission["batchID"]: id for id in intake.queue.list_batches()}
    status = {uuid: intake.queue.load_batch(id).status for uuid, id in batches.items()}
    assert status == {
        **dict.fromkeys(["all", "only 5"], "Processing"),
        **dict.fromkeys(["only 0", "only 1", "only 2", "only 4", records[-1][0]], "Completed"),
        "only 3": "Failed",
    }
    delivered = dict(intake.rows())
    assert {id: text for id, text in delivered.items() if "letter" in id} == {
        f"{batch}-{number}/letter.txt": f"letter {number}" for number in (0, 1) for batch in ("all", f"only {number}")
    }
    assert [text for id, text in delivered.items() if id.endswith("/page.txt")] == ["a page"]
    for job in intake.queue.list_jobs("Held"):
        intake.queue.load_job(job).set_status("Deleted")
    intake.serve()
    for batch in intake.queue.list_batches("Failed"):
        intake.queue.load_batch(batch).set_status("Deleted")
    intake.queue.cleanup()
    assert (intake.queue.list_batches(), intake.queue.list_jobs()) == ([], [])
    assert intake.queue.audit() == []
