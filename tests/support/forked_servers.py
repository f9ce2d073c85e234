"""Fork servers of ``ferryman.engine.runner.fork_server`` that are forked, not started, which takes a second: from a
process that has loaded their modules. Each process of pytest has one, started when it is first needed; ``ready`` says
where it is to be, and ``install`` has a process use it. What a forked server does is the code of a started one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from ferryman import crash
from ferryman.engine.runner import fork_server

FOLDER: Final = "FERRYMAN_TEST_FORKED_SERVERS"
"""The environment variable with the folder of the process, which children of pytest inherit."""

LIMITS: Final = tuple(
    getattr(resource, f"RLIMIT_{name}")
    for name in ("AS", "CORE", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
)
"""What a started process inherits from whoever starts it."""

STARTED: Final = fork_server.start_process
"""The function that starts one."""

_LENGTH_BYTES: Final = 4
_started: Final[list[subprocess.Popen[bytes]]] = []


def ready() -> None:
    """Say where the process of this pytest is to be; it ends when pytest does."""
    folder = tempfile.mkdtemp(prefix=f"ferryman-forks-{os.getpid()}-")
    os.environ[FOLDER] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def install() -> None:
    """Have this process, and those that are forked from it, fork its servers, if its pytest is ready."""
    if FOLDER in os.environ:
        fork_server.start_process = start_process  # type: ignore[assignment]


@pytest.fixture(scope="module")
def started_servers() -> Iterator[None]:
    """This process starts its servers, as users' processes do."""
    fork_server.fork_server().end()  # the next one is another
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start_process", STARTED)
        yield


class ForkedProcess:
    """What a ``ForkServer`` needs of a ``Popen``."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

    def poll(self) -> int | None:
        return self._wait(0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> int | None:
        return self._wait(None)

    def _wait(self, timeout_ms: int | None) -> int | None:
        waiting = select.poll()  # the number of a handle may be too large for ``select.select``
        waiting.register(self._handle, select.POLLIN)
        return -signal.SIGKILL if waiting.poll(timeout_ms) else None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._handle)  # `os` may be gone by then: this process ends


def start_process(descriptor: int, environment: Mapping[str, str]) -> ForkedProcess:
    """In place of the function of this name."""
    told = {
        "environment": {**environment, **fork_server.ONE_THREAD},
        "folder": _working_folder(),
        "limits": [resource.getrlimit(limit) for limit in LIMITS],
        "modules": fork_server.preloaded,
        "path": [each for each in sys.path if isinstance(each, str)],
    }
    message = json.dumps(told).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address())
        socket.send_fds(connection, [len(message).to_bytes(_LENGTH_BYTES, "big")], [descriptor, 2])
        connection.sendall(message)
        answer, [handle], _, _ = socket.recv_fds(connection, 64, 1)
    return ForkedProcess(int(answer), handle)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def _address() -> str:
    """Where the process listens; it is started if it is not there. Two who need it at once start one."""
    folder = Path(os.environ[FOLDER])
    address = folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            _start(folder)
            while not address.exists():
                assert _started[-1].poll() is None, (folder / "log").read_text()
                time.sleep(0.01)
    return str(address)


def _start(folder: Path) -> None:
    pytest_id = folder.name.split("-")[2]
    with (folder / "log").open("wb") as log:
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), pytest_id, *fork_server.preloaded],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env={**{k: v for k, v in os.environ.items() if k != crash.ENVIRONMENT}, **fork_server.ONE_THREAD},
                start_new_session=True,  # who started it may be killed, with its group
            )
        )


def serve(folder: Path, pytest_id: int, modules: list[str]) -> None:
    """Fork a server for each who asks, until pytest ends."""
    ended = os.pidfd_open(pytest_id)
    for module in ["ferryman.engine.runner.fork_server", *modules]:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are forked
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "listening"))
        listener.listen(100)
        (folder / "listening").rename(folder / "socket")  # who finds it can connect
        while ended not in (found := select.select([listener, ended], [], [])[0]):
            assert found
            with listener.accept()[0] as connection:
                _answer(connection)


def _answer(connection: socket.socket) -> None:
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 2)
    message = b""
    while len(message) < int.from_bytes(length, "big"):
        received = connection.recv(1 << 20)
        if not received:
            return  # who asked was killed
        message += received
    pid = os.fork()
    if pid == 0:
        try:
            _be_server(json.loads(message), *descriptors)
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    handle = os.pidfd_open(pid)
    with contextlib.suppress(BrokenPipeError):
        socket.send_fds(connection, [str(pid).encode()], [handle])
    os.close(handle)


def _be_server(told: dict[str, Any], descriptor: int, errors: int) -> None:
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 256)
    for limit, values in zip(LIMITS, told["limits"], strict=True):
        resource.setrlimit(limit, values)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    sys.path[:] = told["path"]
    crash.arm_by_environment()
    fork_server.main(descriptor, told["modules"])
    os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
