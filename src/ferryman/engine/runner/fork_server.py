"""A fork server: a process that has loaded what children need, and opened nothing; each child is forked from it.

It is started, not forked, when the first child is wanted, and ends with the process that wanted it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import Final

from ferryman.errors import WorkerDied

_LOADED: Final = (
    "ferryman.engine.deliver.turn",
    "ferryman.engine.keyed.update",
    "ferryman.engine.transform.isolation",
)
"""Modules of what children do."""

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux
_ORDER: Final = struct.Struct("<ci")
"""A request: the command, and a process id."""
_CHILD, _LOOK, _REAP = b"c", b"l", b"r"
_ALIVE: Final = -1
_ANSWER: Final = struct.Struct("<i")


class ForkServer:
    """Forks children, kills and reaps them. Threads may share it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path()), "PYTHONSAFEPATH": "1"},
                pass_fds=[theirs.fileno()],
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def child(self, requests: int, answers: int, place: int) -> int:
        """A new child with these descriptors, which runs ``child.serve_requests``; its process id.

        Raises:
            WorkerDied: this process was killed, with its children.
            OSError: there is no memory for another process, or there may be no more of them.
        """
        pid = self._ask(_CHILD, 0, [requests, answers, place])
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def ended(self, pid: int) -> int | None:
        """Return the ``waitpid`` status of a child that has ended by itself; None: it lives.

        Raises:
            WorkerDied: see ``reap``.
        """
        status = self._ask(_LOOK, pid, [])
        return None if status == _ALIVE else status

    def reap(self, pid: int) -> int:
        """Kill a child if it lives; its status, as ``waitpid`` gives it.

        Raises:
            WorkerDied: this process was killed, with its children: it was not what the child did.
        """
        return self._ask(_REAP, pid, [])

    def _ask(self, what: bytes, pid: int, descriptors: list[int]) -> int:
        with self._turn:
            try:
                socket.send_fds(self._socket, [_ORDER.pack(what, pid)], descriptors)
                said = self._socket.recv(_ANSWER.size, socket.MSG_WAITALL)
            except ConnectionError:
                said = b""
        if len(said) < _ANSWER.size:
            self._process.wait()
            raise WorkerDied("the process that its child processes are forked from was killed from outside")
        (number,) = _ANSWER.unpack(said)
        return int(number)


_of_process: Final[dict[int, ForkServer]] = {}
_turns: Final[dict[int, threading.Lock]] = {}
"""By process id: a forked copy leaves alone what is its parent's."""


def fork_server() -> ForkServer:
    """The one of this process; it is started where there is none."""
    with _turns.setdefault(os.getpid(), threading.Lock()):
        found = _of_process.get(os.getpid())
        if found is None or not found.alive:
            found = _of_process[os.getpid()] = ForkServer()
        return found


def _import_path() -> list[str]:
    """Return this process's import path. Code may have put anything there; Python uses text only, and so does this."""
    return [each for each in sys.path if isinstance(each, str)]


def die_with(parent: int) -> None:  # pragma: no cover - the child
    """A child does not outlive its parent, where the system can see to that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main(descriptor: int) -> None:  # pragma: no cover - another process
    """Do what is asked for until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the driver decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a worker that ignores it has handed that down
    for module in _LOADED:
        importlib.import_module(module)
    with socket.socket(fileno=descriptor) as asked:
        while True:
            order, descriptors, _, _ = socket.recv_fds(asked, _ORDER.size, 3)
            if len(order) < _ORDER.size:
                return
            what, pid = _ORDER.unpack(order)
            if what == _CHILD:
                answer = _fork(asked, descriptors)
            elif what == _LOOK:
                ended, status = os.waitpid(pid, os.WNOHANG)
                answer = status if ended else _ALIVE
            else:
                os.kill(pid, signal.SIGKILL)  # it is ours, and was not waited for
                answer = os.waitpid(pid, 0)[1]
            asked.sendall(_ANSWER.pack(answer))


def _fork(asked: socket.socket, descriptors: list[int]) -> int:  # pragma: no cover - another process
    """The process id of a new child, or a negative error number."""
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
        asked.close()
        die_with(me)
        os.setpgid(0, 0)  # what kills its process group kills itself alone
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from ferryman.engine.runner.child import serve_requests

        serve_requests(*descriptors)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
