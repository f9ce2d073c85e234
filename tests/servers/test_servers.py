"""What tests may rely on when they ask for a server."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import OpenSearch, Solr
from tests.servers.cache import Missing, cached
from tests.servers.elasticsearch import Elasticsearch7, Elasticsearch8
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.servers.opensearch import OpenSearchServer
from tests.servers.registry import Running, known, require
from tests.servers.server import Server, ServerFailed
from tests.servers.solr import SolrServer


class Small(Server):
    """Python's own file server."""

    name = "small"
    start_s = 20.0
    program = "from http.server import test, SimpleHTTPRequestHandler as H; test(H, port={port}, bind='127.0.0.1')"

    @classmethod
    def install(cls) -> Path:
        return Path(sys.prefix)

    def layout(self) -> None:
        (self.folder / "data").write_text("one")

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program.format(port=self.port)]

    def ready(self) -> bool:
        return self.answers("/data")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Broken(Small):
    name = "broken"
    program = "raise SystemExit('no such option')"


class Absent(Small):
    name = "absent"

    @classmethod
    def install(cls) -> Path:
        raise Missing("install it")


def test_a_server_comes_back_with_its_data_at_its_port() -> None:
    """Stopped or killed, started again; with the context its temporary folder is gone."""
    with Small() as server:
        port = server.port
        (server.folder / "data").write_text("two")
        for end in (server.stop, server.kill):
            end()
            assert not server.running
            assert not server.answers("/data")
            server.start()
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/data")
            assert connection.getresponse().read() == b"two"
            connection.close()
    assert not server.running
    assert not server.folder.exists()


def test_one_that_a_person_starts_is_where_the_pages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the usual port, if it is free; else at another one."""
    free = Small().port
    monkeypatch.setattr(Small, "usual_port", free)
    server = Small()
    server.take_usual_port()
    assert server.port == free
    with socket.create_server(("127.0.0.1", free)):
        other = Small()
        other.take_usual_port()
        assert other.port != free
    for page in (Path(__file__).parents[2] / "docs" / "how-to").glob("index-into-*.md"):
        for name in re.findall(r"make servers ARGS=(\w+)", page.read_text("utf-8")):
            assert f"localhost:{known()[name].usual_port}" in page.read_text("utf-8"), page


def test_one_that_ends_by_itself_is_shown_with_its_log() -> None:
    """Nobody waits for a server that is dead already."""
    with pytest.raises(ServerFailed, match=r"(?s)broken ended by itself, exit 1\..*no such option"):
        Broken().__enter__()


def test_one_that_is_missing_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is asked for, with the reason."""
    with Running() as running:
        for _ in range(2):
            monkeypatch.delenv("CI", raising=False)
            with pytest.raises(pytest.skip.Exception, match="no absent server here: install it"):
                running.get("absent")
            monkeypatch.setenv("CI", "true")
            with pytest.raises(pytest.fail.Exception, match="no absent server here: install it"):
                running.get("absent")


def test_one_that_runs_is_given_again() -> None:
    """Started once; one that a test left stopped is told by name."""
    with Running() as running:
        server = running.get("small")
        assert running.get("small") is server
        server.stop()
        with pytest.raises(AssertionError, match="left small stopped"):
            running.get("small")


def test_it_outlives_the_thread_that_started_it() -> None:
    """A test may restart it in a thread of its own."""
    server = Small()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with contextlib.closing(server):
        for _ in range(20):
            assert server.answers("/data")


def test_a_killed_test_run_leaves_none_behind() -> None:
    """Who is killed has no chance to stop its servers: they go by themselves."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells a child that its parent died")
    program = """
        import os, signal
        from tests.servers.test_servers import Small
        print(Small().start().port, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    server = Small()
    server.port = int(done.stdout)
    assert not server.answers("/data")
    server.close()


def test_a_download_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails leaves nothing; the next one does it again, and then never more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fills = 0

    def fill(folder: Path) -> None:
        nonlocal fills
        fills += 1
        (folder / "file").write_text("whole")
        if fills == 1:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        cached("thing", fill)
    assert [p.name for p in (tmp_path / "ferryman" / "servers").iterdir()] == ["thing.lock"]
    for _ in range(2):
        assert (cached("thing", fill) / "file").read_text() == "whole"
    assert fills == 2


@pytest.mark.parametrize(
    ("destination", "server", "name"),
    [
        (OpenSearch, OpenSearchServer, "OpenSearch"),
        (OpenSearch, Elasticsearch7, "Elasticsearch"),
        (OpenSearch, Elasticsearch8, "Elasticsearch"),
        (Solr, SolrServer, "Solr"),
    ],
)
def test_the_reference_tells_the_versions_that_run_here(destination: Any, server: Any, name: str) -> None:
    """Of a server from Maven, the version is ours to choose."""
    version = ".".join(server.version.split(".")[:2])
    assert any(tested.startswith(f"{name} {version}") for tested in destination.facts.tested)


def test_servers_are_found_by_their_modules() -> None:
    """For `python -m tests.servers`, and for the fixture."""
    assert {"opensearch", "small", "yarn"} <= set(known())
    assert not {"spark-worker", "yarn-node"} & set(known()), "they are made for another server"
    with pytest.raises(pytest.skip.Exception if not os.environ.get("CI") else pytest.fail.Exception):
        require("why")


def test_an_upload_that_is_cut_off_makes_no_object() -> None:
    """A client that was killed between a request's head and the end of its body has changed nothing."""
    with FaultyS3() as store:
        host, _, port = store.url.removeprefix("http://").partition(":")
        key = f"/{BUCKET}/torn"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"PUT {key} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\nabc".encode())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
        connection = http.client.HTTPConnection(host, int(port))
        with contextlib.closing(connection):
            connection.request("GET", key)
            assert connection.getresponse().status == 404
