"""Slow hosts share a few threads, and everything else goes on."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from ferryman.errors import PermanentError, TransientError
from ferryman.intake.service.errors import SlowHost
from ferryman.intake.service.fetch import Fetcher, SlowHosts, Tries
from ferryman.net import http
from ferryman.net.allowed_addresses import Reach
from tests.intake.service.dribble import Dribble
from tests.intake.service.place import Place, until
from tests.intake.service.receiver import Receiver

SLOW = 6
"""Jobs of the slow host: more than all threads of a state."""

LOCAL = Reach(hosts=("127.0.0.1",))
CONTENT = b"x" * 50_000
"""A byte at a time this lasts longer than any test."""


def served(place: Place) -> AbstractContextManager[None]:
    """While it is served by a server to which a host is slow soon."""
    return place.served(prompt_s=0.3, lowest_rate=0.0)


def completed(place: Place) -> int:
    return len(place.queue.list_jobs("Completed"))


@pytest.mark.rule("intake.slow")
@pytest.mark.parametrize("path", ["/headers/", pytest.param("/content/", marks=pytest.mark.slow)])
def test_slow_payloads(intake: Place, path: str) -> None:
    """More of them than threads, and first: other jobs are completed while these wait; then these too."""
    with Dribble({f"{path}{n}": CONTENT for n in range(SLOW)}) as slow, served(intake):
        for n in range(SLOW):
            intake.submit(payload_url=slow.url(f"{path}{n}"), local_id=f"slow {n}", priority=1)
        until(lambda: any(method == "GET" for method, _ in slow.came))
        for n in range(4):
            intake.submit(payload_url=intake.put(f"{n}.txt", "good").as_uri(), local_id=f"good {n}")
        until(lambda: completed(intake) == 4)
        assert {intake.queue.load_job(job).configuration["local_id"][:4] for job in done(intake)} == {"good"}
        slow.faster.set()
        until(lambda: completed(intake) == 4 + SLOW)


def done(place: Place) -> list[str]:
    return place.queue.list_jobs("Completed")


@pytest.mark.parametrize("kind", ["", pytest.param("object-manifest", marks=pytest.mark.slow)])
def test_slow_manifests(intake: Place, kind: str) -> None:
    """Of batches, and of jobs."""
    lines = b"url,local_id\nfile:///nowhere.txt,x\n" + b"\n" * 50_000
    with Dribble({f"/m{n}.csv": lines for n in range(SLOW)}) as slow, served(intake):
        for n in range(SLOW):
            intake.submit(manifest_url=slow.url(f"/m{n}.csv"), local_id=f"slow {n}", payload_type=kind)
        until(lambda: bool(slow.came))
        good = intake.manifest([intake.row("a.txt", local_id="a")])
        intake.submit(manifest_url=good)
        until(lambda: completed(intake) == 1)
        slow.faster.set()
        until(lambda: len(intake.queue.list_batches("Failed")) == SLOW)  # a server's manifest may name no file


@pytest.mark.rule("intake.slow")
def test_slow_receivers(intake: Place) -> None:
    """Of jobs, and of reports: more of them than threads. The jobs and the report of others are not delayed by them."""
    with Dribble({"/headers/told": CONTENT}) as slow, served(intake):
        for n in range(SLOW):
            intake.submit(
                payload_url=intake.put(f"slow {n}.txt", "a").as_uri(),
                local_id=f"slow {n}",
                response_url=slow.url("/headers/told"),
                priority=1,
            )
        until(lambda: bool(slow.came))
        with Receiver() as prompt:
            for n in range(4):
                good = intake.put(f"{n}.txt", "good").as_uri()
                intake.submit(payload_url=good, local_id=f"good {n}", response_url=prompt.url)
            until(lambda: len(intake.queue.list_batches("Completed")) == 4)
            assert completed(intake) == 4
            assert not intake.queue.list_jobs("Failed"), "nobody's tries had come to their end"
            assert len(prompt.told) == 8  # each job and each batch, once
        slow.faster.set()
        until(lambda: len(intake.queue.list_batches("Completed")) == 4 + SLOW)


@pytest.mark.parametrize("path", ["/headers/a", "/content/a"])
def test_a_slow_host_is_met_once(path: str) -> None:
    """Then it is known: nothing else that leads there is asked for, not even its size."""
    hosts = SlowHosts(0.2)
    fetcher = Fetcher(reach=LOCAL, slow=hosts)
    with Dribble({path: CONTENT, "/b": b"b"}) as slow:
        with pytest.raises(SlowHost):
            fetcher.fetch_content(slow.url(path), 100_000)
        asked = len(slow.came)
        with pytest.raises(SlowHost):
            fetcher.fetch_content(slow.url("/b"), 100)
        assert fetcher.ask_size(slow.url("/b")) is None
        assert len(slow.came) == asked


@pytest.mark.rule("intake.slow")
def test_the_whole_time_of_a_job(intake: Place) -> None:
    """However the bytes come: it fails with the reason."""
    with Dribble({"/a": CONTENT}) as slow:
        intake.submit(payload_url=slow.url("/a"), local_id="a")
        intake.serving = replace(intake.serving, job_time_s=0.5, prompt_s=0.1, lowest_rate=0.0)
        intake.serve()
    (job,) = intake.queue.list_jobs("Failed")
    assert "--job-time" in intake.queue.load_job(job).message


def test_headers_end_in_time() -> None:
    """Also where the lane for slow hosts waits: a server that never ends its headers is a failed request."""
    with Dribble({"/headers/a": CONTENT}) as slow:
        fetcher = Fetcher(reach=LOCAL, timeout_s=0.3, tries=Tries(1))
        with pytest.raises(TransientError, match="no whole answer"):
            fetcher.fetch_content(slow.url("/headers/a"), 100_000)
        with pytest.raises(PermanentError, match="--job-time"):
            fetcher.with_deadline(1e-9).fetch_content(slow.url("/headers/a"), 100_000)


@pytest.mark.parametrize("answers", [True, False])
def test_a_name_that_is_resolved_slowly_is_a_slow_host(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Its server may keep us waiting too, and every name below a domain is another host: none is tried four times."""
    asked: list[str] = []
    inner = socket.getaddrinfo
    clock = [0.0]

    def resolve(host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        clock[0] += 6.0
        if not answers:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return inner("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(http.time, "monotonic", lambda: clock[0])
    fetcher = Fetcher(reach=LOCAL, slow=SlowHosts(5.0))
    for _ in range(2):
        with pytest.raises(SlowHost, match=r"a\.evil\.example is slow"):
            fetcher.fetch_content("http://a.evil.example/a", 100)
    assert asked == ["a.evil.example"]
    with pytest.raises(SlowHost):
        fetcher.fetch_content("http://b.evil.example/a", 100)
    patient = Fetcher(reach=LOCAL, tries=Tries(2, 0.001), timeout_s=1.0)
    with pytest.raises(TransientError, match="tried 2 times"):
        patient.fetch_content("http://a.evil.example/a", 100)
