"""Access requests: a zip of what was delivered."""

from __future__ import annotations

import socket
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ferryman.cli.app import start
from ferryman.errors import UsageError
from ferryman.intake.service import access
from ferryman.intake.service.access import KEPT_S, BundleConsumer, request_bundle
from ferryman.intake.service.workspace import Workspace
from ferryman.intake.store.base import Set
from tests.intake.service.child import CHILD
from tests.intake.service.place import Place
from tests.support.zygote import Zygote


def served(place: Place) -> None:
    rows = [place.row(f"{o}/{f}.txt", local_id=f"object {o}") for o in range(2) for f in range(2)]
    place.submit(manifest_url=place.manifest(rows))
    place.serve()


def contents(url: str) -> dict[str, bytes]:
    with zipfile.ZipFile(urlsplit(url).path) as bundle:
        assert bundle.testzip() is None
        return {name: bundle.read(name) for name in bundle.namelist()}


@pytest.mark.rule("intake.access")
def test_a_bundle(intake: Place) -> None:
    """Asked for by local id or by job; the token says how large, when, where and until when."""
    served(intake)
    first, second = sorted(intake.jobs())
    request = request_bundle(intake.queue, ["object 0", second], time.time())
    assert request.token["cloud-content-byte"] == 4 * len("content of 0/0.txt")
    assert request.token["anticipated-availability-time"].endswith("+0000")

    intake.serve()

    assert request.status == "Completed"
    token = request.token
    assert len(token["token"]) == 32
    assert (token["delivery-node"], token["status"]) == (socket.gethostname(), "Completed")
    assert token["expires"] > token["anticipated-availability-time"]
    assert contents(token["url"]) == {
        f"{job}/{f}.txt": f"content of {o}/{f}.txt".encode() for o, job in enumerate((first, second)) for f in range(2)
    }


@pytest.mark.rule("intake.access")
def test_the_token_follows_the_request(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is that of the request, from Pending on; its node is that of who puts the bundle together."""
    served(intake)
    good, bad = (request_bundle(intake.queue, [f"object {n}"], time.time()) for n in range(2))
    assert (good.token["status"], good.status) == ("Pending", "Pending")
    assert "delivery-node" not in good.token
    (job,) = bad.token["jobs"]
    (intake.serving.work / "originals" / job / "files" / "0.txt").write_bytes(b"other")
    seen: list[tuple[str, str, str]] = []
    add = access._add

    def adds(*args: Any) -> None:
        (id,) = intake.queue.list_assemblies("small", "Processing")
        at_work = intake.queue.load_assembly("small", id)
        seen.append((at_work.token["status"], at_work.status, at_work.token["delivery-node"]))
        add(*args)

    monkeypatch.setattr(access, "_add", adds)
    intake.serve()
    assert set(seen) == {("Processing", "Processing", socket.gethostname())}
    assert [(each.token["status"], each.status) for each in (good, bad)] == [
        ("Completed", "Completed"),
        ("Failed", "Failed"),
    ]
    assert bad.token["delivery-node"] == socket.gethostname()
    assert "url" not in bad.token

    monkeypatch.undo()
    (intake.serving.work / "originals" / job / "files" / "0.txt").write_bytes(b"content of 1/0.txt")
    bad.set_status("Processing")
    intake.serve()
    assert (bad.token["status"], bad.status) == ("Completed", "Completed")


@pytest.mark.rule("intake.access")
def test_an_object_by_all_its_names_is_in_the_bundle_once(intake: Place) -> None:
    """Its size counts once, too; also if another tool listed its job twice."""
    rows = [intake.row("a.txt", "abc", local_id="map-1", primary_id="ark:/1/2")]
    intake.submit(manifest_url=intake.manifest(rows))
    intake.serve()
    (job,) = intake.jobs()
    request = request_bundle(intake.queue, [job, "map-1", "ark:/1/2"], time.time())
    assert (request.token["jobs"], request.token["cloud-content-byte"]) == ([job], 3)
    other = intake.queue.create_assembly("small", {**request.token, "jobs": [job, job]})
    intake.serve()
    for each in (request, other):
        with zipfile.ZipFile(urlsplit(each.token["url"]).path) as bundle:
            assert bundle.namelist() == [f"{job}/a.txt"]


@pytest.mark.rule("intake.access")
def test_a_request_for_what_was_removed_since_fails(intake: Place) -> None:
    """With the reason, and `serve` ends; so does one whose token is damaged."""
    served(intake)
    gone = request_bundle(intake.queue, ["object 0"], 0)
    damaged = request_bundle(intake.queue, ["object 1"], 0)
    intake.queue.tree.store.commit([Set(f"{damaged.path}/token", b"{")])
    intake.queue.cleanup()
    intake.serve()
    assert (gone.status, damaged.status) == ("Failed", "Failed")
    assert gone.token["jobs"][0] in gone.message
    assert "token" in damaged.message


def test_small_and_large(intake: Place) -> None:
    """By size; each has a queue of its own, and its own pause."""
    served(intake)
    small = request_bundle(intake.queue, ["object 0"], 0)
    large = request_bundle(intake.queue, ["object 0"], 0, small_bytes=1)
    assert (small.size, large.size) == ("small", "large")
    intake.queue.locks.lock("access-large")
    intake.serve()
    assert (small.status, large.status) == ("Completed", "Pending")
    intake.queue.locks.unlock("access-large")
    intake.serve()
    assert large.status == "Completed"


def test_what_cannot_be_had(intake: Place) -> None:
    """An unknown object, one whose originals were dropped, and an original that was damaged since."""
    served(intake)
    with pytest.raises(UsageError, match="nothing: no job of this id"):
        request_bundle(intake.queue, ["nothing"], 0)
    damaged = request_bundle(intake.queue, ["object 1"], 0)
    (job,) = damaged.token["jobs"]
    (intake.serving.work / "originals" / job / "files" / "0.txt").write_bytes(b"other")
    intake.serve()
    assert damaged.status == "Failed"
    assert "is not what was delivered" in damaged.message
    assert not list((intake.serving.work / "bundles").iterdir()), "what was written of it takes space"

    intake.submit(payload_url=intake.put("d.txt", "d").as_uri(), local_id="dropped")
    intake.serve(keep_originals=False)
    with pytest.raises(UsageError, match="were not kept"):
        request_bundle(intake.queue, ["dropped"], 0)


def test_a_bundle_expires(intake: Place) -> None:
    """After a week it is removed."""
    served(intake)
    request = request_bundle(intake.queue, ["object 0"], 0)
    intake.serve()
    path = Path(urlsplit(request.token["url"]).path)
    found = BundleConsumer(intake.queue, Workspace(intake.serving.work), "small", lambda: None, lambda _: None)
    left = path.with_name(".tmp-left-by-a-kill")
    left.write_bytes(b"PK")
    found.expire(time.time())
    assert path.exists()
    assert left.exists()
    found.expire(time.time() + KEPT_S)
    assert not path.exists()
    assert not left.exists()


def test_an_abandoned_request_that_is_damaged_holds_up_no_other(intake: Place) -> None:
    """It fails, and the next one is made."""
    served(intake)
    requests = [request_bundle(intake.queue, [f"object {n}"], time.time()) for n in range(2)]
    for each in requests:
        each.set_status("Processing")  # by consumers that were killed
    intake.queue.tree.store.commit([Set(f"{requests[0].path}/token", b"{")])
    intake.serve()
    assert [each.status for each in requests] == ["Failed", "Completed"]


def test_killed_over_it(place: Path) -> None:
    """Kill -9 when the zip lies ready: the next consumer finds the request, and makes it whole."""
    intake = Place(place, session_timeout_s=1.5)
    served(intake)
    request = request_bundle(intake.queue, ["object 0"], 0)
    with Zygote(place, CHILD) as zygote:
        code, said = zygote.run(folder=str(place), arm="access.bundled")
        assert code == -9, said
        assert request.status == "Processing"
        code, said = zygote.run(folder=str(place))
        assert code == 0, said
    assert request.status == "Completed"
    assert len(contents(request.token["url"])) == 2
    intake.queue.close()


def test_a_large_and_a_small_bundle_of_one_number(intake: Place) -> None:
    """Each queue numbers its own requests: neither bundle takes the other's place."""
    served(intake)
    small = request_bundle(intake.queue, ["object 0"], time.time())
    large = request_bundle(intake.queue, ["object 1"], time.time(), small_bytes=1)
    assert (small.size, large.size, small.id) == ("small", "large", large.id)
    intake.serve()
    first, second = (set(contents(request.token["url"]).values()) for request in (small, large))
    assert first == {b"content of 0/0.txt", b"content of 0/1.txt"}
    assert second == {b"content of 1/0.txt", b"content of 1/1.txt"}


def test_what_is_small_is_an_option(intake: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """In MiB; 256 without a word."""
    served(intake)
    assert start(["intake", "access", "object 0", "--queue", intake.queue.url]) == 0
    assert start(["intake", "access", "object 0", "--small", "0", "--queue", intake.queue.url]) == 0
    assert "small/qid0000000000: Pending\n" in (out := capsys.readouterr().out)
    assert "large/qid0000000000: Pending\n" in out
