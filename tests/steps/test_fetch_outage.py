"""``fetch_url`` in a plan: a host that is away holds its own documents, and no others."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import Unavailable
from ferryman.steps import fetch_url
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld, Watch


class Pages(BaseHTTPRequestHandler):
    """Says 429 while it is told to, else the path."""

    busy = False

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(429 if self.busy else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def served(port: int = 0) -> Iterator[int]:
    """A site; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def closed_port() -> int:
    """Where nobody answers, for now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(autouse=True)
def asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a test follow each other within the second for which a worker leaves a host alone."""
    monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 0.0)


def get(doc: Document) -> Document:
    return fetch_url("link", timeout_s=5)(doc)


def put(trial: PlanWorld, name: str, port: int) -> None:
    """More documents than the brake."""
    for n in range(25):
        trial.documents.append({"id": f"{name}{n:02}", "link": f"http://127.0.0.1:{port}/{name}{n}"})


@pytest.mark.rule("outage.scope")
def test_a_host_that_is_away_holds_only_its_own_documents(trial: PlanWorld, closed_port: int) -> None:
    """Nothing is spent, the run ends with 4 and names the host; when it is back, all goes on."""
    trial.build(get)
    host = f"127.0.0.1:{closed_port}"
    with served() as port:
        put(trial, "far", closed_port)
        put(trial, "near", port)
        for _ in range(2):
            summary = trial.run(wait=0)
            assert (summary.exit, trial.counts()) == (4, {"delivered": 25, "pending": 25})
            assert summary.messages[-1].startswith(f"step get ({host}) is not available: Unavailable: http://{host}/")
            assert summary.messages[-1].endswith("25 deliveries are pending: run again when it is back.")
        assert {d["attempt"] for d in trial.deliveries(status="error")} == {0}
        with served(closed_port):
            summary = trial.run()
    assert (summary.exit, summary.messages) == (0, [])
    assert trial.out().counted() == dict.fromkeys((d["id"] for d in trial.documents), 1)


@pytest.mark.rule("outage.scope")
def test_a_host_that_wants_to_be_left_alone(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says 429; of a run that goes on people hear when that begins, and when it ends."""
    monkeypatch.setattr(Pages, "busy", True)
    trial.build(get)
    with served() as port, trial.take() as state:
        put(trial, "page", port)
        watch = Watch()
        run = Run(state, InProcess(), watch, RunSettings(wait=0))
        run.turn()
        assert trial.counts() == {"pending": 25}
        Pages.busy = False
        run.turn()
    assert trial.counts() == {"delivered": 25}
    begins, ends = watch.messages
    assert begins.startswith(f"step get (127.0.0.1:{port}): Unavailable: http://127.0.0.1:{port}/page")
    assert ends.startswith(f"step get (127.0.0.1:{port}): works again, after ")


@pytest.mark.rule("outage.scope")
def test_a_host_that_did_not_answer_is_not_waited_for_again_at_once(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it was waited for, at least a while; then it is asked again."""
    monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 3600.0)
    host = f"127.0.0.1:{closed_port}"
    step, doc = fetch_url("link"), Document("a", link=f"http://{host}/")
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            step(doc)
        assert (caught.value.why, caught.value.scope) == (f"http://{host}/: Connection refused", host)
        other = pickle.loads(pickle.dumps(step))
        with served(closed_port):  # it is back: this step has not noticed, one in another process asks
            with pytest.raises(Unavailable):
                step(doc)
            assert other(Document("a", link=f"http://{host}/")).raw == b"/"


def test_a_host_is_asked_again_when_the_wait_is_over(closed_port: int) -> None:
    step, doc = fetch_url("link"), Document("a", link=f"http://127.0.0.1:{closed_port}/")
    with pytest.raises(Unavailable):
        step(doc)
    before = step._unavailable.get(f"127.0.0.1:{closed_port}")
    while time.monotonic() < before.until:  # as long as the refused attempt took
        time.sleep(0.001)
    with served(closed_port):
        assert step(doc).raw == b"/"
    assert step._unavailable.wait_s(f"127.0.0.1:{closed_port}") == 0


def test_an_error_travels_with_its_scope() -> None:
    """From a worker to the driver."""
    error = pickle.loads(pickle.dumps(Unavailable("no answer", scope="a:80")))
    assert (error.why, error.scope, str(error)) == ("no answer", "a:80", "no answer")
