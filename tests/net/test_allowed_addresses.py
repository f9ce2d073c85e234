"""What a stranger's URL may lead to."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.net.allowed_addresses import (
    OWN_PLAN,
    REACH_VARIABLE,
    HostPattern,
    NotAllowed,
    Reach,
    process_reach,
    to_environment,
)
from ferryman.net.http import NotSent, exchange, pool
from ferryman.steps import fetch_url
from tests.intake.service.receiver import FileServer

PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "192.168.0.1",
    "172.16.9.9",
    "169.254.169.254",
    "0.0.0.0",
    "100.64.0.1",
    "224.0.0.1",
]
PRIVATE += [
    "::1",
    "fe80::1",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "::",
    "ff02::1",
    "192.0.0.192",
    "64:ff9b:1::7f00:1",
    "64:ff9b:1:7f00:1::",
    "fec0::1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "3fff::1",
    "5f00::1",
]
PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"]
METADATA = ["169.254.169.254", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254", "100.100.100.200"]
METADATA += ["168.63.129.16", "192.0.0.192", "fd20:ce::254", "fd00:ec2::23", "::169.254.169.254"]
METADATA += ["64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::", "fd00:c1::a9fe:a9fe"]


@pytest.mark.rule("reach.public")
@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text: str) -> None:
    """However the address is written."""
    assert not Reach().allows("x", ipaddress.ip_address(text), 80)
    assert Reach(hosts=("x",)).allows("x", ipaddress.ip_address(text), 80)


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_is_allowed(text: str) -> None:
    """Without a word."""
    assert Reach().allows("x", ipaddress.ip_address(text), 80)


@pytest.mark.parametrize("text", METADATA)
def test_a_step_of_ones_own_plan_reaches_no_metadata(text: str) -> None:
    """It may ask servers of its own network, and not the cloud's service of secrets."""
    assert not OWN_PLAN.allows("x", ipaddress.ip_address(text), 80)
    assert not Reach().allows("x", ipaddress.ip_address(text), 80)
    assert OWN_PLAN.allows("x", ipaddress.ip_address("10.0.0.1"), 80)
    assert OWN_PLAN.allows("x", ipaddress.ip_address("127.0.0.1"), 80)


@pytest.mark.parametrize(
    ("pattern", "host", "address", "port", "allowed"),
    [
        ("maps.local", "maps.local", "10.0.0.1", 80, True),
        ("maps.local", "MAPS.local.", "10.0.0.1", 80, True),
        ("maps.local", "evil-maps.local", "10.0.0.1", 80, False),
        ("*.maps.local", "a.maps.local", "10.0.0.1", 80, True),
        ("*.maps.local:8080", "a.maps.local", "10.0.0.1", 80, False),
        ("*.maps.local:8080", "a.maps.local", "10.0.0.1", 8080, True),
        ("10.0.0.0/8", "whatever", "10.9.9.9", 80, True),
        ("10.0.0.0/8", "whatever", "11.9.9.9", 80, False),
        ("10.0.0.0/8:8080", "whatever", "10.9.9.9", 80, False),
        ("10.0.0.1", "whatever", "10.0.0.1", 443, True),
        ("fd00::/8", "whatever", "fd12::1", 80, True),
        ("[fd00::/8]:443", "whatever", "fd12::1", 80, False),
        ("[fd12::1]:443", "whatever", "fd12::1", 443, True),
        ("fd12::1", "whatever", "10.0.0.1", 443, False),
    ],
)
def test_a_pattern(pattern: str, host: str, address: str, port: int, allowed: bool) -> None:
    """A name, an address, a network; with a port, only there."""
    assert HostPattern.parse(pattern).allows(host, ipaddress.ip_address(address), port) is allowed


@pytest.mark.parametrize("text", ["", "http://x", "a b", "10.0.0.0/99", "[::1", "x:port", "x:999999"])
def test_what_is_not_a_pattern(text: str) -> None:
    """Is an error of who typed it."""
    with pytest.raises(UsageError, match="Give one"):
        Reach(hosts=(text,)).check()


@pytest.mark.rule("reach.public")
def test_the_connection_goes_to_the_address_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name's server that answers otherwise the second time does not matter: it is asked once."""
    asked: list[str] = []

    def resolve(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        asked.append(host)
        address = "93.184.216.34" if host == "rebinding.example" and len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connected: list[str] = []

    def connect(address: tuple[str, int], *args: Any, **options: Any) -> socket.socket:
        connected.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("urllib3.util.connection.create_connection", connect)
    with pytest.raises(NotSent), exchange(pool(Reach()), "GET", "http://rebinding.example/", {}, 5):
        pass
    assert (asked, connected) == (["rebinding.example"], ["93.184.216.34"])
    with (
        pytest.raises(NotAllowed, match=r"127\.0\.0\.1"),
        exchange(pool(Reach()), "GET", "http://x.example/", {}, 5),
    ):
        pass
    assert connected == ["93.184.216.34"]


def test_a_host_that_is_allowed_answers() -> None:
    """By its name or its address; the others do not."""
    with FileServer({"/a": b"content"}) as server:
        url = server.url("/a")
        for hosts in (("127.0.0.1",), ("127.0.0.0/8",), (url.split("/")[2],)):
            with exchange(pool(Reach(hosts=hosts)), "GET", url, {}, 5) as got:
                assert got.read() == b"content"
        for hosts in ((), ("10.0.0.0/8",), ("127.0.0.1:1",)):
            with pytest.raises(NotAllowed), exchange(pool(Reach(hosts=hosts)), "GET", url, {}, 5):
                pass


@pytest.mark.rule("reach.files")
def test_files_below_the_folders_that_were_named(tmp_path: Path) -> None:
    """Wherever links and dots lead; none without a word."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.txt").write_text("a")
    (inside / "link.txt").symlink_to(outside / "a.txt")
    (tmp_path / "also").symlink_to(inside)
    may = Reach((str(inside),))
    for url in ((inside / "a.txt").as_uri(), f"{tmp_path.as_uri()}/also/a.txt"):
        with may.file(url) as content:
            assert content.read() == b"a"
    refused = [(outside / "a.txt").as_uri(), (inside / "link.txt").as_uri(), f"{inside.as_uri()}/../out/a.txt"]
    refused += [f"{inside.as_uri()}/%2e%2e/out/a.txt", "file:///proc/self/environ", f"{inside.as_uri()}more/a.txt"]
    for url in refused:
        with pytest.raises(NotAllowed, match="--allow-files"):
            may.file(url)
    with pytest.raises(NotAllowed):
        Reach().file((inside / "a.txt").as_uri())


def test_workers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their environment; without a word a step follows the rules of its own plan."""
    monkeypatch.delenv(REACH_VARIABLE, raising=False)
    assert process_reach() is OWN_PLAN
    told = Reach(("/a",), ("10.0.0.0/8:80",))
    monkeypatch.setitem(os.environ, REACH_VARIABLE, to_environment(told))
    assert process_reach() == told


@pytest.mark.rule("reach.step")
def test_fetch_url_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In somebody's own plan it asks their own servers; in a plan of a queue, only what serve may reach."""
    from ferryman.steps import fetch

    with FileServer({"/a": b"content"}) as server:
        doc = Document("a")
        doc["link"] = server.url("/a")
        fetch._pool.cache_clear()
        monkeypatch.delenv(REACH_VARIABLE, raising=False)
        assert fetch_url("link")(doc).raw == b"content"
        fetch._pool.cache_clear()
        monkeypatch.setitem(os.environ, REACH_VARIABLE, to_environment(Reach()))
        with pytest.raises(NotAllowed, match=r"127\.0\.0\.1"):
            fetch_url("link")(doc)
        fetch._pool.cache_clear()


@pytest.mark.parametrize("swapped", ["the file", "its folder"])
def test_a_link_that_comes_after_the_look_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """Whoever may write below an allowed folder can put a link there between two calls of ours."""
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    for folder in (allowed / "a", secret):
        folder.mkdir(parents=True)
        (folder / "file").write_text(folder.name)
    reach, inner = Reach((str(allowed),)), os.open
    url = (allowed / "a" / "file").as_uri()
    with reach.file(url) as content:
        assert content.read() == b"a"

    def swap(path: Any, flags: int, *mode: int) -> int:
        found = inner(path, flags, *mode)
        if str(path).endswith("/file") and flags & os.O_PATH:  # the look
            place = allowed / "a" / "file" if swapped == "the file" else allowed / "a"
            place.rename(tmp_path / "away")
            place.symlink_to(secret / "file" if swapped == "the file" else secret)
        return found

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(NotAllowed, match="not read from there"):
        reach.file(url)
    assert (tmp_path / "away").exists()


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """And nobody waits for what is written into it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAllowed, match="is not a file"):
        Reach((str(tmp_path),)).file((tmp_path / "pipe").as_uri())
