"""A fork server: a process that has loaded the modules of children, and opened nothing; each child is forked from it.

It ends with the process that needs it. It has one thread: a fork copies the locks that other threads hold, and nobody
would release them in the copy. So it is started, not forked, when a process needs its first child; only the command
forks it, at its own start, when it has one thread, too, and needs the same modules.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, TextIO

from ferryman.errors import NoChild

preloaded = [
    "ferryman.engine.deliver.turn",
    "ferryman.engine.keyed.update",
    "ferryman.engine.scan.phase",
    "ferryman.engine.transform.isolation",
]
"""Modules that children need. Others that are added here are loaded once, not in each child."""

ONE_THREAD: Final = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment variables for a fork server: without them numpy and Arrow start threads when they are loaded."""

_AS_SPARK: Final = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
"""Environment variables that Spark sets for its workers. A step whose result depends on the order of a set gives the
same one in each run, and what steps print is not lost with their process."""

_KILL_FIRST: Final = "1000"
"""Value for Linux's ``oom_score_adj``: if memory runs out, a child is killed and not its parent."""
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux
_REQUEST: Final = struct.Struct("<ci")
"""A request: the command, and a process id."""
_FORK, _POLL, _REAP = b"c", b"l", b"r"
_ALIVE: Final = -1
_ANSWER: Final = struct.Struct("<i")


class _Process(Protocol):
    """Process with the methods of ``Popen`` that a fork server needs."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int | None: ...


class ForkServer:
    """Forks children, kills and reaps them. Threads may share it.

    Args:
        environment: environment variables of the children; None: those of this process when a child starts.
        start: starts its process; None: ``start_process``.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        start: Callable[[int, Mapping[str, str]], _Process] | None = None,
    ) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._socket, server_socket = socket.socketpair()
        with server_socket:
            self._process: _Process = (start or start_process)(server_socket.fileno(), self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a child that starts now."""
        return {**_AS_SPARK, **(os.environ if self._environment is None else self._environment)}

    def set_environment(self, environment: Mapping[str, str]) -> None:
        """Set the environment variables of children that start from now on."""
        self._environment = environment

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, requests: int, answers: int, place: int) -> int:
        """Fork a child with these descriptors, which runs ``child.serve_requests``, and return its process id.

        Raises:
            NoChild: the fork server was killed, with its children.
            OSError: there is no memory for another process, or there are too many.
        """
        pid = self._ask(_FORK, 0, [requests, answers, place])
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def poll(self, pid: int) -> int | None:
        """Return the ``waitpid`` status of a child that has ended by itself; None: it lives.

        Raises:
            NoChild: see ``reap``.
        """
        status = self._ask(_POLL, pid, [])
        return None if status == _ALIVE else status

    def reap(self, pid: int) -> int:
        """Kill a child if it lives, and return its ``waitpid`` status.

        Raises:
            NoChild: the fork server was killed, with its children; the child's work is not to blame.
        """
        return self._ask(_REAP, pid, [])

    def end(self) -> None:
        """Kill the fork server, and with it its children. Threads that wait for a child see its death."""
        self._process.kill()
        self._process.wait()

    def _ask(self, command: bytes, pid: int, descriptors: list[int]) -> int:
        with self._lock:
            try:
                socket.send_fds(self._socket, [_REQUEST.pack(command, pid)], descriptors)
                answer = self._socket.recv(_ANSWER.size, socket.MSG_WAITALL)
            except ConnectionError:
                answer = b""
        if len(answer) < _ANSWER.size:
            self._process.wait()
            raise NoChild("the process that its child processes are forked from was killed from outside")
        (number,) = _ANSWER.unpack(answer)
        return int(number)


def start_process(descriptor: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that answers requests at the socket with this descriptor; it ends when the other end is closed.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(descriptor), *preloaded],
        stdin=subprocess.DEVNULL,
        stdout=2,  # a command's output may be for a program
        env={
            **environment,
            **ONE_THREAD,
            "PYTHONPATH": os.pathsep.join(_import_path()),
            "PYTHONSAFEPATH": "1",
        },
        pass_fds=[descriptor],
    )


class ForkedProcess:
    """A child that was forked from this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def kill(self) -> None:
        with self._lock:
            if self._status is None:  # else the id may be another's
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        with self._lock:
            if self._status is None:
                try:
                    ended, status = os.waitpid(self.pid, options)
                except ChildProcessError:  # some code here has waited for all children
                    ended, status = self.pid, 0
                if ended:
                    self._status = status
            return self._status


def fork_process(descriptor: int, environment: Mapping[str, str]) -> ForkedProcess:
    """Fork a process that answers requests as one does that ``start_process`` starts, from this one, which has a single
    thread and loads the modules first.

    Raises:
        OSError: it cannot be forked.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    _load(preloaded)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    atexit.register(gc.unfreeze)  # some modules complain of what they have at the end
    pid = os.fork()
    if pid:
        return ForkedProcess(pid)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _forget_parent(descriptor)
        os.environ.update(environment)
        main(descriptor, ())
    finally:
        os._exit(1)


def _forget_parent(descriptor: int) -> None:  # pragma: no cover - another process
    """Make a forked process like a started one: it has this descriptor, nothing to read, and no buffers for what its
    children print."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # a command's output may be for a program
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdout, sys.stderr = _without_buffer(sys.stdout), _without_buffer(sys.stderr)
    sys.modules["__main__"] = sys.modules[__name__]  # who starts a process of Python in a step would run the command
    sys.argv[:] = [str(__file__), str(descriptor)]


def _without_buffer(stream: TextIO) -> TextIO:  # pragma: no cover - another process
    file = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(file, stream.encoding, stream.errors, write_through=True)


_servers: Final[dict[int, ForkServer]] = {}
_locks: Final[dict[int, threading.Lock]] = {}
"""By process id, so that a forked copy does not use its parent's."""


def fork_server() -> ForkServer:
    """Return the fork server of this process; it is started if there is none."""
    with _locks.setdefault(os.getpid(), threading.Lock()):
        server = _servers.get(os.getpid())
        if server is None or not server.alive:
            server = _servers[os.getpid()] = ForkServer()
        return server


_idle: Final[dict[int, ForkServer]] = {}
"""The fork server without children that the next ``take_server`` returns, by process id."""


def start_ahead() -> None:
    """Start a fork server that ``take_server`` will return; for a command that has loaded and opened nothing yet.

    It is forked if hashes here are those of children. Otherwise it loads its modules while this process loads its own.
    """
    if os.getpid() not in _idle:
        is_given = "PYTHONHASHSEED" in os.environ and not sys.flags.ignore_environment
        is_seeded = is_given or not sys.flags.hash_randomization
        with contextlib.suppress(OSError):  # who needs one reports it
            give_back(ForkServer(start=fork_process if is_seeded and _has_one_thread() else None))


def _has_one_thread() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def take_server(environment: Mapping[str, str]) -> ForkServer:
    """Return a fork server of the caller's own, with this environment for its children: one that nobody uses, or a new
    one.

    Raises:
        OSError: none can be started.
    """
    server = _idle.pop(os.getpid(), None)
    if server is None or not server.alive:
        return ForkServer(environment)
    server.set_environment(environment)
    return server


def give_back(server: ForkServer) -> None:
    """Keep a fork server, all of whose children have ended, for the next who takes one."""
    if _idle.setdefault(os.getpid(), server) is not server:
        server.end()


def end_idle() -> None:
    """End the fork server that nobody uses."""
    if (server := _idle.pop(os.getpid(), None)) is not None:
        server.end()


atexit.register(end_idle)


def _import_path() -> list[str]:
    """Return this process's import path. Code may put anything into ``sys.path``; like Python, this uses only text."""
    return [each for each in sys.path if isinstance(each, str)]


def _be_killed_first() -> None:  # pragma: no cover - the child
    """Have the system kill this process before others if memory runs out, where it can do that."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as out:
        out.write(_KILL_FIRST)


def _die_with_parent(parent: int) -> None:  # pragma: no cover - the child
    """Have the system kill this process when its parent ends, where it can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _load(modules: Iterable[str]) -> None:
    """Load modules without a look for garbage, of which they make none, and let nobody look through what they have
    made: that would copy it in each child."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


def main(descriptor: int, modules: Iterable[str]) -> None:  # pragma: no cover - another process
    """Run the fork server, with these modules loaded, until its connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it may be ignored, as inherited from a worker
    _load(modules)
    with socket.socket(fileno=descriptor) as connection:
        while True:
            request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST.size, 3)
            if len(request) < _REQUEST.size:
                os._exit(0)  # nothing is to be ended in order, and some modules complain of what others have
            command, pid = _REQUEST.unpack(request)
            if command == _FORK:
                answer = _fork(connection, descriptors)
            elif command == _POLL:
                waited_pid, status = os.waitpid(pid, os.WNOHANG)
                answer = status if waited_pid else _ALIVE
            else:
                os.kill(pid, signal.SIGKILL)  # the id is still that of our child, which was not waited for
                answer = os.waitpid(pid, 0)[1]
            connection.sendall(_ANSWER.pack(answer))


def _fork(connection: socket.socket, descriptors: list[int]) -> int:  # pragma: no cover - another process
    """Fork a child; returns its process id, or a negative error number."""
    me = os.getpid()
    try:
        pid = os.fork()
    except OSError as e:
        pid = -(e.errno or errno.EAGAIN)
    if pid:
        for each in descriptors:
            os.close(each)
        return pid
    try:
        connection.close()
        _die_with_parent(me)
        _be_killed_first()
        os.setpgid(0, 0)  # code that kills its process group then kills only itself
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from ferryman.engine.runner.child import serve_requests

        serve_requests(*descriptors)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
