"""Nobody reads through a served queue: neither files of its machine nor servers of its network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ferryman.cli.app import start
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.payload import edit_configuration
from ferryman.intake.service.reports import Callback
from ferryman.intake.service.serve import limited_to
from ferryman.net.allowed_addresses import OWN_PLAN, REACH_VARIABLE, Reach, process_reach, to_environment
from tests.intake.service.place import Place
from tests.intake.service.receiver import FileServer, Receiver, Redirecting


def failures(place: Place) -> list[str]:
    """Why jobs and batches have failed."""
    batches = [place.queue.load_batch(one) for one in place.queue.list_batches("Failed")]
    return [place.queue.load_job(job).message for job in place.queue.list_jobs("Failed")] + [b.message for b in batches]


@pytest.mark.rule("reach.files")
@pytest.mark.parametrize(
    "url", ["file:///proc/self/environ", "{queue}", "{folder}/index.db", "{folder}/files/../queue.db"]
)
def test_files_that_nobody_allowed(intake: Place, url: str) -> None:
    """The environment, the queue's own database: by submission, and by a line of a manifest."""
    intake.serving = replace(intake.serving, reach=Reach((str(intake.files),)))
    folder = intake.folder.as_uri()
    named = url.format(queue=f"{folder}/queue.db", folder=folder)
    intake.submit(payload_url=named, local_id="direct")
    manifest = intake.put("m.csv", f"url,local_id\n{named},line\n").as_uri()
    intake.submit(manifest_url=manifest)
    intake.submit(manifest_url=manifest, payload_type="object-manifest", local_id="object")
    intake.submit(payload_url=intake.put("good.txt", "good").as_uri(), local_id="good")

    intake.serve()

    assert intake.rows() == [("good/good.txt", "good")]
    assert len([why for why in failures(intake) if "--allow-files" in why]) == 3


@pytest.mark.rule("reach.files")
def test_a_servers_manifest_names_no_files(intake: Place) -> None:
    """Not even below a folder that submitters may name."""
    inside = intake.put("a.txt", "secret").as_uri()
    with FileServer({"/m.csv": f"url,local_id\n{inside},x\n".encode()}) as server:
        intake.submit(manifest_url=server.url("/m.csv"))
        intake.submit(manifest_url=server.url("/m.csv"), payload_type="object-manifest", local_id="object")
        intake.serve()
    assert set(intake.jobs().values()) == {"Failed"}
    assert len([why for why in failures(intake) if "a server may not name one" in why]) == 2


@pytest.mark.rule("reach.public")
def test_servers_that_nobody_allowed(intake: Place) -> None:
    """A payload, a manifest and its lines."""
    hosts = ("127.0.0.1",)
    with FileServer({"/a.txt": b"secret"}) as inner:
        lines = f"url,local_id\n{inner.url('/a.txt')},line\n"
        intake.serving = replace(intake.serving, reach=Reach((str(intake.folder),)))
        intake.submit(payload_url=inner.url("/a.txt"), local_id="direct")
        intake.submit(manifest_url=inner.url("/m.csv"))
        intake.submit(manifest_url=intake.put("m.csv", lines).as_uri())
        intake.serve()
        assert inner.asked == []
        assert len([why for why in failures(intake) if "not a public one" in why]) == 3
        intake.serving = replace(intake.serving, reach=Reach((str(intake.folder),), hosts))
        intake.submit(payload_url=inner.url("/a.txt"), local_id="again")
        intake.serve()
    assert intake.rows() == [("again/a.txt", "secret")]


@pytest.mark.rule("reach.public")
def test_reports_go_nowhere_that_nobody_allowed(intake: Place) -> None:
    """The batch fails with the reason before any of its work is done; so does a job that was made through the API, or
    that an operator gave such a URL."""
    with Receiver() as receiver:
        intake.serving = replace(intake.serving, reach=Reach((str(intake.folder),)))
        url = intake.put("a.txt", "a").as_uri()
        refused = intake.queue.load_batch(intake.submit(payload_url=url, local_id="a", response_url=receiver.url))
        batch = intake.queue.create_batch({})
        job = batch.create_job({"payload_url": url, "payload_type": "file", "response_url": receiver.url})
        edited = batch.create_job({"payload_url": url, "payload_type": "file"})
        edited.fail("why")
        edited.requeue("", edit_configuration(edited, {"response_url": receiver.url}))
        intake.serve()
        assert receiver.requests == []
        assert refused.status == "Failed"
        assert refused.message.startswith(f"the response_url {receiver.url}: 127.0.0.1: its address 127.0.0.1 is not")
        assert "--hosts" in refused.message
        assert (refused.failed_jobs, refused.completed_jobs) == ([], [])
        assert sorted(batch.failed_jobs) == [job.id, edited.id]
        assert "not a public one" in job.message
        assert job.last_successful_status is None
        assert [list((intake.serving.work / name).iterdir()) for name in ("jobs", "batches")] == [[], []]
        intake.serving = replace(intake.serving, reach=Reach((str(intake.folder),), ("127.0.0.1",)))
        intake.submit(payload_url=url, local_id="a", response_url=receiver.url)
        intake.serve()
        assert len(receiver.requests) == 2


def test_an_unknown_receiver_is_not_refused_early(intake: Place) -> None:
    """Its name may be known when there is something to report; what is not a URL is refused at once."""
    callback = Callback(reach=Reach())
    callback.check({"response_url": "https://no-such-host.invalid/report"})
    callback.check({"response_url": f"https://{'a' * 70}.example/report"})
    callback.check({})
    for odd in ("ftp://x/", "x", "http://", "http://user:s3cret@127.0.0.1/?token=s3cret"):
        with pytest.raises(CorruptSubmission, match="the response_url") as raised:
            callback.check({"response_url": odd})
        assert "s3cret" not in str(raised.value)


@pytest.mark.rule("reach.signed")
def test_reports_are_signed(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As webhooks are: a receiver checks them with the same library."""
    import base64
    import hmac
    from hashlib import sha256

    monkeypatch.setenv("REPORT_KEY", "top secret")
    with Receiver() as receiver:
        intake.serving = replace(intake.serving, report_secret="${REPORT_KEY}")
        url = intake.put("a.txt", "a").as_uri()
        intake.submit(payload_url=url, local_id="a", response_url=receiver.url)
        intake.serve()
        assert len(receiver.requests) == 2
        for headers, body in receiver.requests:
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            expected = base64.b64encode(hmac.digest(b"top secret", signed, sha256)).decode()
            assert headers["webhook-signature"] == f"v1,{expected}"
            assert headers["webhook-id"] == json.loads(body)["id"]


def test_the_options_of_serve(intake: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pattern that is none is an error of who typed it."""
    plan = tmp_path / "plan.py"
    plan.write_text(
        "from pathlib import Path\n"
        "from tests.intake.service.place import plan_into\n"
        "plan = plan_into(Path('index.db'))\n"
    )
    code = start(["intake", "serve", str(plan), "--hosts", "http://x", "--queue", intake.queue.url])
    assert code == 2
    assert "is not a host name" in capsys.readouterr().err


@pytest.mark.rule("reach.redirects")
@pytest.mark.parametrize("target", ["inner", "file", "metadata", "name"])
def test_each_hop_of_a_redirect_is_judged(intake: Place, target: str) -> None:
    """One port of one address is allowed: it leads to no other, not by a name, and to no file."""
    with FileServer({"/a.txt": b"secret"}) as inner, Redirecting() as outer:
        outer.target = {
            "inner": inner.url("/a.txt"),
            "file": (intake.files / "a.txt").as_uri(),
            "metadata": "http://169.254.169.254/latest/meta-data/",
            "name": inner.url("/a.txt").replace("127.0.0.1", "localhost"),
        }[target]
        intake.put("a.txt", "secret")
        may = Reach((str(intake.files),), (f"127.0.0.1:{outer.port}",))
        intake.serving = replace(intake.serving, reach=may)
        intake.submit(payload_url=outer.url("/x"), local_id="payload")
        intake.submit(manifest_url=outer.url("/m"))
        intake.serve()
        assert inner.asked == []
    why = "a server may not do" if target == "file" else "not a public one"
    assert len([text for text in failures(intake) if why in text]) == 2
    assert set(intake.jobs().values()) == {"Failed"}


@pytest.mark.parametrize("first_ends_first", [True, False])
@pytest.mark.parametrize("before", [None, Reach(("/before",))])
def test_services_of_one_process(before: Reach | None, first_ends_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever ends first: the other one keeps its limits, and at last they are as they were before."""
    monkeypatch.delenv(REACH_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(REACH_VARIABLE, to_environment(before))
    reaches = [Reach(("/first",)), Reach(("/second",))]
    services = [limited_to(reach) for reach in reaches]
    for service, reach in zip(services, reaches, strict=True):
        service.__enter__()
        assert process_reach() == reach
    ended, other = (0, 1) if first_ends_first else (1, 0)
    services[ended].__exit__(None, None, None)
    assert process_reach() == reaches[other]
    services[other].__exit__(None, None, None)
    assert process_reach() == (before or OWN_PLAN)


def test_no_proxy_is_asked(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says: behind one, addresses could not be judged."""
    with FileServer({"/a.txt": b"words"}) as server, Redirecting() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        intake.submit(payload_url=server.url("/a.txt"), local_id="a")
        intake.serve()
        assert proxy.asked == 0
    assert intake.rows() == [("a/a.txt", "words")]
