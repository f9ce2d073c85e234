"""The whole tree that `serve` writes is the one that the layout promises, key by key, on both stores.

The expected trees were written by hand, from the layout; PLACE, NOW and the like stand for what differs between runs.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from ferryman.cli.app import start
from ferryman.intake import JobQueue
from ferryman.intake.nodes import layout_folders
from ferryman.intake.service.access import request_bundle
from tests.intake.conftest import NOW, NOW_S, layout
from tests.intake.service.place import Place
from tests.servers.server import Server
from tests.support.plan_world import place

__all__ = ["place"]

TREES: Final = Path(__file__).parents[1] / "trees"
BATCHES: Final = ("happy", "failed", "requeued", "deleted")


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.server)])
def served(request: pytest.FixtureRequest, place: Path) -> Any:
    """A place with a queue on each store, whose clock stands still."""
    found = Place(place)
    url = found.queue.url
    found.queue.close()
    if request.param == "zookeeper":
        server: Callable[[str], Server] = request.getfixturevalue("server")
        url = f"{server('zookeeper').url}/{uuid4().hex}"
    found.queue = JobQueue.open(url, clock=lambda: NOW_S)
    yield found
    found.queue.close()


def happy(place: Place) -> None:
    """Two files of one object; then somebody asks for its originals."""
    rows = [
        place.row("a.txt", "one", local_id="map-1", primary_id="ark:/1/m1", erc_who="Anna", priority=3),
        place.row("b.txt", "two", local_id="map-1", primary_id="ark:/1/m1"),
    ]
    place.submit(
        manifest_url=place.manifest(rows), payload_type="manifest", batchID="b-happy", profile_name="maps",
        submissionDate=NOW, response_type="json", erc_what="Maps",
    )  # fmt: skip
    place.serve()
    request_bundle(place.queue, ["map-1"], NOW_S)
    place.serve()


def failed(place: Place) -> None:
    """A file that the plan refuses."""
    bad = place.put("bad.txt", "x\0").as_uri()
    place.submit(payload_url=bad, payload_type="file", payload_file_name="bad.txt", batchID="b-failed")
    place.serve()


def requeued(place: Place) -> None:
    """A file that comes late: its job is requeued, and its submitter told what has changed."""
    url = (place.files / "late.txt").as_uri()
    place.submit(payload_url=url, payload_type="file", local_id=["late", "l-2"], mode="update", delete="no")
    place.serve()
    place.put("late.txt", "late")
    assert start(["intake", "requeue", "bid0000000002", "--queue", place.queue.url]) == 0
    place.serve()
    batch = place.queue.load_batch("bid0000000002")
    batch.set_status("UpdateReporting")
    place.serve()


def deleted(place: Place) -> None:
    """A file that is not there: job and batch are given up."""
    place.submit(payload_url=(place.files / "nowhere.txt").as_uri(), payload_type="file")
    place.serve()
    place.queue.load_job("jid0000000004").set_status("Deleted", "given up")
    place.queue.load_batch("bid0000000003").set_status("Deleted", "given up")


def as_written(place: Place) -> dict[str, Any]:
    """Path -> text, or what a JSON node holds; what differs from run to run is named."""
    text = {path: data.replace(place.folder.as_uri(), "PLACE") for path, data in layout(place.queue).items()}
    tree: dict[str, Any] = {path: json.loads(data) if data.startswith("{") else data for path, data in text.items()}
    for values in tree.values():
        if isinstance(values, dict) and values.get("last_modified") == NOW:
            values["last_modified"] = "NOW"
    token = tree["/access/small/qid0000000000/token"]
    assert (place.folder / "work" / "bundles" / "qid0000000000.zip").stat().st_size == token["bytes"]
    assert len(bytes.fromhex(token["token"])) == 16
    assert token["delivery-node"] == socket.gethostname()
    assert token["anticipated-availability-time"] > NOW
    assert token["expires"] > NOW
    said = tree["/access/small/qid0000000000/status"]
    said["message"] = said["message"].replace(str(token["bytes"]), "ZIP_SIZE")
    tree["/access/small/qid0000000000/token"] = token | {
        "token": "TOKEN", "delivery-node": "HOST", "bytes": "ZIP_SIZE",
        "anticipated-availability-time": "TIME", "expires": "TIME",
    }  # fmt: skip
    return tree


@pytest.mark.rule("intake.page")
def test_the_whole_tree_is_the_one_of_the_layout(served: Place) -> None:
    """A happy, a failed, a requeued and a deleted batch; no node more, no node less, no lock left."""
    for make in (happy, failed, requeued, deleted):
        make(served)
    expected: dict[str, Any] = {}
    for name in BATCHES:
        expected |= json.loads((TREES / f"{name}.json").read_text("utf-8"))
    written = as_written(served)
    assert written.keys() == expected.keys()
    assert written == expected
    there = {path for path, _ in served.queue.tree.store.walk("/")} - {"/"}
    assert there == {*layout_folders(), *expected}
    assert served.queue.audit() == []
