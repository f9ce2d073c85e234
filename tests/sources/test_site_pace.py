"""How fast a site is asked: by a clock that goes on only while the crawl sleeps."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.site_scans import Scans
from tests.support.site_server import Served, SiteServer

from ferryman.sources.site import client


class FakeTime:
    """Stands in for the module ``time``: only sleeping takes time."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedServer(SiteServer):
    """Notes when each path was asked for."""

    def __init__(self, clock: FakeTime) -> None:
        self.asked_at: list[tuple[str, float]] = []
        self._clock = clock
        super().__init__()

    def answer(self, path: str, headers: Mapping[str, str]) -> Served:
        self.asked_at.append((path, self._clock.now))
        return super().answer(path, headers)

    def pauses(self) -> list[float]:
        """Return the seconds between two requests."""
        return [after - before for (_, before), (_, after) in pairwise(self.asked_at)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTime:
    found = FakeTime()
    monkeypatch.setattr(client, "time", found)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return found


@pytest.fixture
def server(clock: FakeTime) -> Iterator[TimedServer]:
    with TimedServer(clock) as site:
        site.page("/", "Home of a site about ferries and rivers", "/a", "/b")
        site.page("/a", "All about ferries on a chain")
        site.page("/b", "All about ferries on a rope")
        yield site


@pytest.mark.rule("site.pace")
@pytest.mark.parametrize(("rate", "least_s"), [(2, 0.5), (0.1, 10.0)])
def test_a_host_is_asked_at_its_rate(server: TimedServer, rate: float, least_s: float) -> None:
    scans = Scans(server, rate=rate)
    assert scans.scan() == ["/", "/a", "/b"]
    assert len(server.asked_at) >= 4
    assert min(server.pauses()) >= least_s - 1e-6


@pytest.mark.rule("site.pace")
@pytest.mark.parametrize(
    ("robots", "least_s"),
    [
        ("User-agent: *\nCrawl-delay: 7", 7.0),
        ("User-agent: other\nCrawl-delay: 90\n\nUser-agent: ferryman\nCrawl-delay: 3", 3.0),
        ("User-agent: *\nRequest-rate: 1/20s", 20.0),
        ("User-agent: *\nCrawl-delay: 86400", client.MAX_DELAY_S),
    ],
)
def test_the_pause_that_robots_txt_asks_for(server: TimedServer, robots: str, least_s: float) -> None:
    server.put("/robots.txt", robots, mime="text/plain")
    assert Scans(server).scan() == ["/", "/a", "/b"]
    at = [path for path, _ in server.asked_at].index("/robots.txt")
    after = server.pauses()[at + 1 :]
    assert after
    assert min(after) >= least_s - 1e-6
    assert max(after) < least_s + 1


@pytest.mark.rule("site.pace")
@pytest.mark.parametrize(("status", "asked_s"), [(429, 30), (503, 5)])
def test_a_busy_server_says_when_to_come_again(server: TimedServer, status: int, asked_s: int) -> None:
    """A server that has too many requests is asked more slowly from then on."""
    answers = iter([Served("busy", status, headers={"retry-after": str(asked_s)})])
    page = server.pages["/a"]
    server.pages["/a"] = lambda _: next(answers, page)
    scans = Scans(server)
    assert (scans.scan(), scans.error) == (["/", "/a", "/b"], None)
    times = [at for path, at in server.asked_at if path == "/a"]
    assert times[1] - times[0] >= asked_s
    later = [at for path, at in server.asked_at if at > times[1]]
    assert later
    if status == 429:
        assert later[0] - times[1] >= asked_s - 1e-6


@pytest.mark.rule("site.doubt")
def test_a_server_that_asks_for_too_long_is_in_doubt(server: TimedServer, clock: FakeTime) -> None:
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b"]
    server.put("/a", "busy", status=503, headers={"retry-after": "86400"})
    before = clock.now
    assert scans.scan() == ["/", "/a", "/b"]
    assert f"in doubt, and stay as they are: {server.url}/a (503)" in scans.notes[0]
    assert clock.now - before < 60


@pytest.mark.rule("site.pace")
def test_processes_share_one_pace(clock: FakeTime) -> None:
    """Each is given times of its own by the file that they share, whichever comes first."""
    pipes = []
    for _ in range(3):
        read, write = os.pipe()
        if not (pid := os.fork()):
            try:
                pace, slots = client.RequestClock("http://example.org", 0.5), []
                for _ in range(5):
                    before = clock.now
                    pace.wait()
                    slots.append(clock.now)
                    clock.now = before  # the others do not see how long this one has slept
                os.write(write, json.dumps(slots).encode())
            finally:
                os._exit(0)
        os.close(write)
        pipes.append((pid, read))
    found: list[Any] = []
    for pid, read in pipes:
        os.waitpid(pid, 0)
        found += json.loads(os.read(read, 4096))
        os.close(read)
    assert len(found) == 15
    assert min(after - before for before, after in pairwise(sorted(found))) >= 0.5 - 1e-6
