"""Child processes of a worker: what libraries of the worker have opened does not reach them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.destinations import Delivery, DestinationContext, Guarantee, Queue
from ferryman.engine.deliver.turn import ProcessCaller
from ferryman.engine.runner.child import Child, Died, RequestStopped, call_parent
from ferryman.engine.runner.fork_server import ForkedProcess, ForkServer, fork_server
from ferryman.errors import WorkerDied
from ferryman.queues import Queue as DurableQueue
from ferryman.queues import upkeep
from tests.support.forked_servers import started_servers
from tests.support.in_store import faulty, states

__all__ = ["faulty", "started_servers", "states"]

pytestmark = pytest.mark.usefixtures("started_servers")

CONTEXT = DestinationContext("tests", 1, "out", 1, Guarantee.EXACTLY_ONCE, "here")


@pytest.fixture(autouse=True)
def _folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)


def written_by_a_child(queues: Path | str) -> None:
    """This process folds a queue's log, so that delta-rs has threads here; then a child writes and folds."""
    used = DurableQueue("used", queues)
    for n in range(8):
        used.append([{"n": n}])
    out = Queue("out", queues)
    out.check()
    caller = ProcessCaller(out)
    try:
        caller.call(out.open, CONTEXT, timeout_s=300)
        for n in range(70):  # in the child, a log is folded after 64 commits
            caller.call(out.write, [Delivery(f"d{n}", f"{n:032x}", n + 1, fields={"n": n})], timeout_s=300)
    finally:
        caller.end()
    assert [m.body["n"] for m in DurableQueue("out", queues).read()] == list(range(70))


@pytest.mark.rule("engine.fresh-child")
def test_a_child_of_a_worker_that_has_folded_a_log(tmp_path: Path) -> None:
    written_by_a_child(tmp_path)
    log = tmp_path / "out" / "messages" / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet")), "the child has folded the log"


@pytest.mark.rule("engine.fresh-child")
def test_a_child_of_a_worker_that_uses_a_store(states: str) -> None:
    written_by_a_child(states)


@pytest.mark.rule("engine.fresh-child")
def test_the_process_that_forks_has_one_thread() -> None:
    """Whatever the libraries start that it has loaded: a fork would copy the locks of their threads."""
    child = Child(lambda _: [*sys.modules])
    assert {"numpy", "pyarrow", "duckdb"} <= set(child.ask(None))
    status = Path(f"/proc/{fork_server()._process.pid}/status").read_text()
    assert "Threads:\t1\n" in status
    child.end()


def test_a_child_calls_its_parent() -> None:
    """From any thread, as often as it likes; what is raised there is raised here."""

    def serve(numbers: list[int]) -> list[int]:
        with pytest.raises(KeyError, match="unknown"):
            call_parent("unknown")
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(call_parent, numbers))

    child = Child(serve)
    asked: list[int] = []

    def answer(number: int) -> int:
        if isinstance(number, str):
            raise KeyError(number)
        asked.append(number)
        return number + 1

    assert child.ask(list(range(40)), 300, answer) == list(range(1, 41))
    assert sorted(asked) == list(range(40))
    child.end()


def test_a_request_is_stopped() -> None:
    """The child is killed, and the next request is answered by another one."""

    def serve(wait: bool) -> int:
        if wait:
            signal.pause()
        return os.getpid()

    child, looks = Child(serve), iter([False, False, True])
    first = child.ask(False)
    with pytest.raises(RequestStopped):
        child.ask(True, is_stopped=lambda: next(looks))
    assert child.ask(False) != first
    child.end()


def test_a_child_that_dies() -> None:
    """The next request begins another one; what the worker has said of itself since reaches it."""

    def serve(request: str) -> int:
        if request == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        assert threading.active_count() == 1
        return os.getpid()

    child = Child(serve)
    try:
        first = child.ask("go")
        with pytest.raises(Died, match="SIGKILL"):
            child.ask("die")
        assert child.ask("go") not in (first, os.getpid())
    finally:
        child.end()


@pytest.mark.parametrize("how", ["a command of the shell", "a copy of the child"])
def test_a_child_that_leaves_a_process_behind(how: str, tmp_path: Path) -> None:
    """Its death is noticed at once, although that process keeps its pipes open."""
    fifo = tmp_path / "until"  # what is left behind ends when somebody writes to it
    os.mkfifo(fifo)

    def leave(dies: bool) -> int:
        if how == "a command of the shell":
            os.system(f"cat {fifo} >{tmp_path}/read &")
        elif os.fork() == 0:
            fifo.read_bytes()
            os._exit(0)
        if dies:
            os._exit(3)
        return os.getpid()

    child = Child(lambda request: leave(request) if isinstance(request, bool) else len(request))
    try:
        with pytest.raises(Died, match="exit code 3"):
            child.ask(True)
        fifo.write_bytes(b"")
        os.kill(child.ask(False), signal.SIGKILL)
        with pytest.raises(Died, match="SIGKILL"):
            child.ask(b"more than fits into a pipe" * 100_000)
    finally:
        fifo.write_bytes(b"")


def test_a_child_that_is_killed_with_what_it_was_forked_from() -> None:
    """Somebody outside has done that: it is not held against what the child was at."""

    def serve(_: None) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    child = Child(serve)
    with pytest.raises(WorkerDied, match="killed from outside"):
        child.ask(None)
    child.end()
    assert fork_server().alive


@pytest.mark.parametrize("waits", [True, False], ids=["over a request", "between two"])
def test_the_next_request_after_the_fork_server_was_killed(waits: bool) -> None:
    """It is answered by a new child, of a new fork server; no file stays open."""

    def serve(request: str) -> str:
        if request == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        return request

    child = Child(serve)
    assert child.ask("first") == "first"
    open_files = set(os.listdir("/proc/self/fd"))
    if not waits:
        kill_fork_server()
    with pytest.raises(WorkerDied, match="killed from outside"):
        child.ask("kill" if waits else "go")
    assert child.ask("go") == "go"
    assert len(os.listdir("/proc/self/fd")) <= len(open_files) + 1, "of the server that is not there any more"
    kill_fork_server()
    child.end()


def kill_fork_server() -> None:
    server = fork_server()._process
    server.kill()
    server.wait()


def test_a_child_can_be_killed_with_its_process_group() -> None:
    """Code that kills its whole group, as a clean-up of subprocesses may, is that code's death alone."""

    def serve(_: None) -> None:
        assert os.getpgrp() == os.getpid(), "this test ends here, too"
        os.killpg(0, signal.SIGKILL)

    child = Child(serve)
    with pytest.raises(Died, match="SIGKILL"):
        child.ask(None)
    child.end()


def test_whatever_this_process_looks_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child begins, is asked with a limit of time, and its death is seen: where sys.path has what is no text, modules
    of the working folder are called as Python's own, or the folder is gone, where the ends of children are ignored, and
    where more files are open than ``select`` takes."""

    def serve(request: str) -> list[object]:
        if request == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return [*sys.path]

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (tmp_path / "queue.py").write_text("raise RuntimeError('of the user')")
    (tmp_path / "gone").mkdir()
    odd = [tmp_path / "modules", os.fsencode(tmp_path)]
    monkeypatch.setattr(sys, "path", [*map(str, map(Path.absolute, map(Path, sys.path))), *odd])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    child, files = Child(serve), ExitStack()
    try:
        for folder in (tmp_path, tmp_path / "gone"):
            kill_fork_server()
            monkeypatch.chdir(folder)
            if folder.name == "gone":
                folder.rmdir()
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
                for _ in range(1100):
                    files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            assert child.ask("path", 300)[-2:] == odd
            with pytest.raises(Died, match="SIGKILL"):
                child.ask("die", 300)
    finally:
        files.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.signal(signal.SIGCHLD, before)
        child.end()
        kill_fork_server()


def test_no_child_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is not held against what it was wanted for, and the next request finds one."""

    def fail(*_: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    child = Child(str)
    with monkeypatch.context() as patched:
        patched.setattr(ForkServer, "fork", fail)
        with pytest.raises(WorkerDied, match="no child process can be made: Resource temporarily unavailable"):
            child.ask(1)
    assert child.ask(1) == "1"
    child.end()


class Panic(BaseException):
    """What a Rust extension raises: no Exception."""


@pytest.mark.rule("queue.upkeep")
@pytest.mark.parametrize("error", [Panic("a panic"), RuntimeError("anything"), MemoryError()])
def test_upkeep_that_fails_does_not_fail_the_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The append has taken effect: it says so, and another one does what was left."""
    queue = DurableQueue("orders", tmp_path)

    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "maintain", fail)
        assert [queue.append([{"n": n}]) for n in range(8)] == [[n + 1] for n in range(8)]
    queue.append([{"n": 8}])
    assert list((tmp_path / "orders" / "messages" / "_delta_log").glob("*.checkpoint.parquet"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    queue = DurableQueue("orders", tmp_path)

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(upkeep, "maintain", fail)
    with pytest.raises(error):
        queue.append([{"n": 1}])
    assert queue.last_index == 1


def test_a_forked_process_is_waited_for_once() -> None:
    """Also if other code has waited for all children."""
    with subprocess.Popen(["sleep", "1000"]) as command:
        process = ForkedProcess(command.pid)
        assert process.poll() is None
        process.kill()
        assert process.wait() == process.poll() == signal.SIGKILL
        process.kill()
    with subprocess.Popen(["true"]) as command:
        command.wait()
    assert ForkedProcess(command.pid).wait() == 0
