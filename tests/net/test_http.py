"""Requests to any server: what is known after a failure, redirects, and how long an answer asks to wait."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Any

import pytest

from ferryman.net import http
from ferryman.net.allowed_addresses import NotAllowed, Reach
from ferryman.net.http import (
    Answer,
    Deadline,
    Deadlines,
    NotSent,
    TooManyRedirects,
    Unanswered,
    exchange,
    follow,
    pool,
)
from tests.intake.service.dribble import Dribble
from tests.support.receiver import Receiver, Reply, closed_port

OPEN = Reach(strict=False)
TIMEOUT_S = 20.0


def posted(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    with exchange(pool(OPEN), "POST", url, {}, timeout_s, b"{}") as answer:
        return answer.read()


def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    with closed_port() as port, pytest.raises(NotSent, match="Connection refused") as caught:
        posted(f"http://127.0.0.1:{port}/")
    assert (caught.value.permanent, caught.value.unknown_host) == (False, False)


def test_no_part_of_a_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although another one is its beginning."""
    monkeypatch.setenv("SHORT", "abc")
    monkeypatch.setenv("LONG", "abc-def")
    headers = {"x-first": "${SHORT}", "x-second": "${LONG}"}
    asked = http.Http("http://127.0.0.1:9/", shown="a server", headers=headers)
    assert asked.redact("neither abc-def\nnor abc") == "neither … nor …"


def test_a_name_that_no_host_can_have() -> None:
    with pytest.raises(NotSent, match="this is not a possible host name") as caught:
        posted(f"http://{'a' * 64}.example/")
    assert caught.value.permanent


@pytest.mark.parametrize(("number", "unknown"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_a_name_that_is_not_found(number: int, unknown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer says nothing about the name."""

    def resolve(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(number, "not found")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(NotSent, match="no host of this name is found") as caught:
        posted("http://nowhere.example/")
    assert (caught.value.permanent, caught.value.unknown_host) == (False, unknown)


@pytest.mark.parametrize("how", ["nothing", "reset", "half", "nonsense", "late"])
def test_what_breaks_off_may_have_taken_effect(how: str) -> None:
    """Also while the content is read, which is within the block."""
    with Receiver(lambda _: Reply(200, b"{}", how=how)) as receiver, pytest.raises(Unanswered) as caught:
        posted(receiver.url, 0.3 if how == "late" else TIMEOUT_S)
    assert len(receiver.requests) == 1, "it was sent again"
    assert caught.value.timed_out == (how == "late")


def test_one_thread_shuts_down_what_is_late() -> None:
    """The first deadline first, whichever was added first; not what was removed. It ends with the last one."""
    deadlines, before = Deadlines(), {*threading.enumerate()}
    now = time.monotonic()
    pairs = [socket.socketpair() for _ in range(4)]
    patient, removed, late, later = (
        Deadline(pair[0], now + after) for pair, after in zip(pairs, (3600, 3600, 0, 0.2), strict=True)
    )
    for each in (patient, removed, later, late):
        deadlines.add(each)
    [thread] = {*threading.enumerate()} - before
    for _, other in pairs[2:]:
        other.settimeout(TIMEOUT_S)
        assert other.recv(1) == b"", "its end was shut down"
    deadlines.remove(removed)
    assert [each.is_cut for each in (patient, removed, late, later)] == [False, False, True, True]
    assert thread.is_alive()
    deadlines.remove(patient)
    deadlines.add(Deadline(pairs[0][0], now))  # earlier than what it waits for: it wakes up
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    pairs[1][0].sendall(b"x")
    assert pairs[1][1].recv(1) == b"x"
    for pair in pairs:
        pair[0].close()
        pair[1].close()


def test_headers_that_never_end_are_cut_off_in_a_forked_process_too() -> None:
    """Its parent's thread is not in it."""
    with Dribble({"/headers/a": b"", "/a": b""}) as server:
        with pytest.raises(Unanswered, match=r"no answer within 0\.2 s"):
            posted(server.url("/headers/a"), 0.2)
        with exchange(pool(OPEN), "GET", server.url("/a"), {}, 3600.0):
            pass  # the thread waits for an hour
        child = os.fork()
        if child == 0:  # pragma: no cover - the child
            signal.alarm(60)
            try:
                posted(server.url("/headers/a"), 0.2)
            except Unanswered as e:
                os._exit(e.timed_out)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("path", ["/headers/a", "/a"])
def test_an_answer_byte_by_byte_has_no_more_time(path: str) -> None:
    """A source that waited for it would wait for ever: nobody ends its call."""
    with Dribble({path: b"x" * 200}) as server:
        asked = http.Http(server.url(path), shown="a server")
        with pytest.raises(Unanswered, match=r"no answer within 0\.2 s"):
            asked.request("GET", path, None, timeout_s=0.2)
        server.faster.set()
        assert asked.request("GET", path, None, timeout_s=TIMEOUT_S).body == b"x" * 200
        asked.close()


def test_the_deadline_is_that_of_all_hops() -> None:
    """As long as the time-out may be for a message."""
    servers = pool(OPEN)  # it takes some time to read the authorities
    with (
        Receiver(lambda _: Reply(how="late")) as receiver,
        pytest.raises(Unanswered, match="no answer within 20 s") as caught,
        exchange(servers, "POST", receiver.url, {}, TIMEOUT_S, b"{}", deadline=time.monotonic() + 0.5),
    ):
        pass
    assert caught.value.timed_out


def test_each_hop_is_checked() -> None:
    """A server that may be asked does not lead to one that may not."""
    with Receiver() as other:
        target = other.url.replace("127.0.0.1", "localhost")
        with Receiver(lambda _: Reply(302, headers={"location": target})) as receiver:
            servers = pool(Reach(hosts=(f"127.0.0.1:{receiver.port}",)))
            asked = follow(
                lambda url: exchange(servers, "POST", url, {}, TIMEOUT_S), receiver.url, lambda _, to: to, redirects=3
            )
            with pytest.raises(NotAllowed, match="localhost: its address"), asked:
                pass
            assert len(receiver.requests) == 1
        assert other.requests == []


@pytest.mark.parametrize("redirects", [0, 1, 3])
def test_redirects_are_counted(redirects: int) -> None:
    with Receiver(lambda _: Reply(307, headers={"location": "/again"})) as receiver:
        servers = pool(OPEN)
        asked = follow(
            lambda url: exchange(servers, "POST", url, {}, TIMEOUT_S),
            receiver.url,
            lambda url, to: url.replace("/hook", to),
            redirects,
        )
        with pytest.raises(TooManyRedirects) as caught, asked:
            pass
        assert caught.value.url.endswith("/again")
        assert len(receiver.requests) == redirects + 1


@pytest.mark.parametrize(
    ("status", "asks", "left_s", "waits_s"),
    [
        (503, "2", 10, 2.0),
        (429, "2", 1, None),
        (503, "0", 10, 1.0),
        (503, None, 10, None),
        (500, "2", 10, None),
        (200, "2", 10, None),
    ],
)
def test_how_long_is_waited(
    status: int, asks: str | None, left_s: float, waits_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the request was not handled, and there is time to send it again; never without any pause."""
    waited: list[float] = []
    monkeypatch.setattr(http.time, "sleep", waited.append)
    answer = Answer(status, "", {} if asks is None else {"retry-after": asks}, b"")
    assert answer.wait(time.monotonic() + left_s) == (waits_s is not None)
    assert waited == ([] if waits_s is None else [waits_s])
