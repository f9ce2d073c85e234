"""What only a queue on ZooKeeper has: logins, a chroot, servers that go away and come back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import kazoo.exceptions
import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue, QueueLost, QueueRefused
from ferryman.intake.store.base import Commit, Conflict, ConflictReason, Create, Delete, Op, parse_address
from ferryman.intake.store.zookeeper import ZooKeeperStore
from tests.intake.conftest import layout, started, zookeeper_url
from tests.servers.zookeeper import Quorum, ZooKeeperServer
from tests.support.waiting import wait_until

SESSION_S = 30.0
"""Longer than a busy machine needs to start a server again."""


@pytest.fixture
def zookeeper(server: Callable[[str], ZooKeeperServer]) -> ZooKeeperServer:
    return server("zookeeper")


@pytest.mark.parametrize(
    ("url", "shown", "local"),
    [
        ("zookeeper://127.0.0.1:2181", "zookeeper://127.0.0.1:2181", True),
        ("zookeeper://localhost/a/b/", "zookeeper://localhost/a/b", True),
        ("zookeeper://[::1]:2181,127.0.0.1:1/q", "zookeeper://[::1]:2181,127.0.0.1:1/q", True),
        ("zookeeper://me:s%40cret@h1:2181,h2:2181/q", "zookeeper://h1:2181,h2:2181/q", False),
    ],
)
def test_what_a_url_says(url: str, shown: str, local: bool) -> None:
    """Passwords are nowhere to be seen."""
    at = parse_address(url)
    assert (at.display_url, at.is_local) == (shown, local)
    if "@" in url:
        assert (at.user, at.password) == ("me", "s@cret")
    with pytest.raises(QueueRefused):
        parse_address("zookeeper:///q")


def test_a_login_keeps_others_out(zookeeper: ZooKeeperServer) -> None:
    """Who has another password, or none, may neither read nor change; the password is told to nobody."""
    path = f"{zookeeper.url.removeprefix('zookeeper://')}/{uuid4().hex}"
    with JobQueue.open(f"zookeeper://me:s%40cret@{path}") as queue:
        started(queue)
        assert "cret" not in repr(queue) + queue.url + repr(queue.tree.store)
        for login in ("", "me:wrong@"):
            with pytest.raises(QueueRefused, match="refuse access") as caught:
                JobQueue.open(f"zookeeper://{login}{path}")
            assert "wrong" not in str(caught.value)
        with JobQueue.open(f"zookeeper://me:s%40cret@{path}") as other:
            assert other.list_jobs() == queue.list_jobs()


def test_without_a_login_elsewhere_there_is_a_warning(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """On the loopback there is none."""
    local = zookeeper.url.replace("127.0.0.1", "127.0.0.1")
    with JobQueue.open(f"{local}/{uuid4().hex}"):
        assert "may change this queue" not in caplog.text
    elsewhere = zookeeper.url.replace("127.0.0.1", "127.1")  # the same server, by a name that we do not know
    with caplog.at_level(logging.WARNING), JobQueue.open(f"{elsewhere}/{uuid4().hex}"):
        assert "anyone who reaches these servers may change this queue" in caplog.text


def test_a_chroot_is_a_queue_of_its_own(zookeeper: ZooKeeperServer) -> None:
    """Several queues share servers."""
    name = uuid4().hex
    with JobQueue.open(f"{zookeeper.url}/{name}/a") as one, JobQueue.open(f"{zookeeper.url}/{name}/b") as two:
        started(one)
        assert layout(two) == {}
        assert two.create_batch({}).id == "bid0000000000"


def test_nobody_there(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so, and gives up."""
    monkeypatch.setattr("ferryman.intake.store.zookeeper.CONNECT_S", 1.0)
    with pytest.raises(QueueLost, match="Is ZooKeeper running there"):
        JobQueue.open(f"zookeeper://127.0.0.1:{zookeeper.another_port()}/q")


def test_without_kazoo_it_is_said_what_to_install() -> None:
    """In a process that does not have it."""
    program = (
        "import sys; sys.modules['kazoo'] = None\n"
        "from ferryman.intake import JobQueue\n"
        "try: JobQueue.open('zookeeper://127.0.0.1:1/q')\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("QueueRefused")
    assert "pip install 'ferryman[intake]'" in done.stdout


def test_nothing_near_a_megabyte_is_written(server: Callable[[str], ZooKeeperServer]) -> None:
    """It is refused with a word on what to do, before a server sees it."""
    with JobQueue.open(zookeeper_url(server)) as queue:  # type: ignore[arg-type]
        batch_id = started(queue)
        before = layout(queue)
        for make in (
            queue.create_batch,
            queue.load_batch(batch_id).create_job,
            queue.load_job("jid0000000001").set_store,
        ):
            with pytest.raises(UsageError, match="Keep them in a file"):
                make({"list": ["x" * 1000] * 600})
        assert layout(queue) == before


def test_a_server_that_restarts(server: Callable[[str], ZooKeeperServer], zookeeper: ZooKeeperServer) -> None:
    """What was asked while it was away is done once, when it is back; locks of a session that lives are kept."""
    with JobQueue.open(zookeeper_url(server), session_timeout_s=SESSION_S) as queue:  # type: ignore[arg-type]
        started(queue, jobs=30)
        held = queue.acquire_job("Pending")
        assert held is not None
        stop = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while not stop.is_set():
                    for job in queue.list_jobs()[1:]:
                        one = queue.load_job(job)
                        one.set_status("Failed" if one.status != "Failed" else "Pending")
            except BaseException as e:
                errors.append(e)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(2):
                time.sleep(0.3)  # work goes on for a while
                zookeeper.kill()
                zookeeper.start()
        finally:
            stop.set()
            worker.join()
        assert not errors
        assert queue.audit() == []
        held.set_status("Estimating")
        assert held.locked


class LateReads(ZooKeeperStore):
    """Sends the reads after its next change only when the server has ended the session."""

    server: ZooKeeperServer | None = None

    def _send_reads(self, paths: Sequence[str], new_locks: Mapping[str, Any]) -> list[Any]:
        if not paths or self.server is None:
            return super()._send_reads(paths, new_locks)
        pid, self.server = self.server.pid, None
        session = self.session()
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not self.is_alive(session))
            sent = super()._send_reads(paths, new_locks)
            time.sleep(2 * SHORT_SESSION_S)  # nobody is there who could say that the session has ended
        finally:
            os.kill(pid, signal.SIGCONT)
        return sent


SHORT_SESSION_S = 4.0
"""The shortest that a server takes."""


def test_a_session_that_ends_between_changes_and_their_reads(
    server: Callable[[str], ZooKeeperServer], zookeeper: ZooKeeperServer
) -> None:
    """What was committed together counts, but for what the session takes with it."""
    with JobQueue.open(zookeeper_url(server), session_timeout_s=SHORT_SESSION_S) as queue:  # type: ignore[arg-type]
        store = queue.tree.store
        store.commit([Create("/test")])
        session = store.session()
        store.__class__ = LateReads
        assert isinstance(store, LateReads)
        store.server = zookeeper
        commits = [Commit([Create(f"/test/{name}", b"x")], session, [f"/test/{name}"]) for name in "ab"]
        commits.append(Commit([Create("/test/lock", ephemeral=True)], session, ["/test/lock"]))
        first, second, lock = store.commit_all(commits)
        assert isinstance(first, list)
        assert isinstance(second, list)
        assert [node and node.data for node in (*first, *second)] == [b"x", b"x"]
        assert isinstance(lock, list)
        assert lock == [None] or store.is_alive(session)


def test_three_servers_lose_their_leader(request: pytest.FixtureRequest) -> None:
    """The two others go on: nothing that was done is lost, nothing is done twice, locks are kept."""
    if not request.config.getoption("--run-quorum"):
        pytest.skip("needs --run-quorum: three servers take a while")
    with Quorum() as quorum, contextlib.ExitStack() as stack:
        quorum.leader()
        queue = stack.enter_context(JobQueue.open(f"{quorum.url}/q", session_timeout_s=30.0))
        batch = queue.load_batch(started(queue, jobs=40))
        done: list[str] = []
        held = queue.acquire_job("Pending")
        assert held is not None
        for turn in range(39):
            if turn == 15:
                quorum.leader().kill()
            job = queue.acquire_job("Pending")
            assert job is not None
            job.set_status("Estimating")
            job.fail("x", unlock=True)
            done.append(job.id)
        assert sorted(done) == batch.failed_jobs
        assert len(set(done)) == 39
        assert held.locked
        held.set_status("Estimating")
        assert queue.audit() == []


class Answer:
    """What kazoo gives for a request: a result, or an error."""

    def __init__(self, result: object) -> None:
        self._result = result

    def wait(self) -> None:
        """It is there."""

    def get(self) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class LosingClient:
    """A client whose connection breaks again while it is found out what became of a change."""

    client_id, connected = (1, b""), True

    def __init__(self, results: list[object]) -> None:
        self._results, self._lost = results, {"sync", "delete"}

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def transaction(self) -> LosingClient:
        return self

    def commit_async(self) -> Answer:
        return Answer(self._results.pop(0))

    def get_async(self, path: str, **_: Any) -> Answer:
        return Answer(kazoo.exceptions.NoNodeError(path))

    def sync(self, path: str) -> None:
        self._lose_once("sync")

    def delete(self, path: str) -> None:
        self._lose_once("delete")
        raise kazoo.exceptions.NoNodeError(path)

    def _lose_once(self, request: str) -> None:
        if request in self._lost:
            self._lost.remove(request)
            raise kazoo.exceptions.ConnectionLoss


@pytest.mark.parametrize(
    ("result", "op", "conflict"),
    [
        (kazoo.exceptions.ConnectionLoss(), Delete("/a"), None),
        (["/n0000000008"], Create("/n0000000007", numbered=True), ConflictReason.CHANGED),
    ],
)
def test_a_connection_that_breaks_twice(
    result: object, op: Op, conflict: ConflictReason | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change took effect, or was undone: the second loss changes nothing of that."""
    client = LosingClient([result])
    monkeypatch.setattr("ferryman.intake.store.zookeeper.create_client", lambda *_: (client, None))
    store = ZooKeeperStore("zookeeper://127.0.0.1:1")
    if conflict is None:
        assert store.commit([op], read_after=["/a"]) == [None]
        return
    with pytest.raises(Conflict) as caught:
        store.commit([op])
    assert caught.value.reason is conflict
