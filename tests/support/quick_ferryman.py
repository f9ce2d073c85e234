"""A quick ``ferryman``: a process with everything loaded forks for each command; tasks run in forked processes, not on
Spark. ``serve`` is that process; this file, run as a script, is the command, which passes on what it was given.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

LOADED = (
    "ferryman.cli.app",
    "ferryman.destinations.sql.sqlite",
    "ferryman.destinations.webhook",
    "ferryman.engine.commands",
    "ferryman.engine.preview",
    "ferryman.operations",
    "ferryman.plan.load",
    "ferryman.sources",
    "pyarrow.dataset",
    "rich.progress",
    "sqlalchemy.dialects.sqlite",
    "typer.core",
)

LOADED_IF_THERE = ("typer._adapters",)
"""What some versions of a library load when a command is parsed: a quarter of a command's CPU."""


def command(path: str, args: list[str]) -> int:
    """Have it done by the server: our arguments, folder, environment and streams. If we are killed, so is it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        told = json.dumps([args, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(connection, [len(told).to_bytes(4, "big") + told], [0, 1, 2])
        return connection.recv(1)[0]


def serve(path: str) -> None:
    """Answer commands until we are killed."""
    for name in LOADED:  # before the first fork
        importlib.import_module(name)
    for name in LOADED_IF_THERE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    from ferryman.cli.app import root_command
    from ferryman.engine import driver
    from ferryman.engine.runner import fork_server
    from ferryman.testing.inprocess import InProcess
    from tests.support import forked_servers

    @contextlib.contextmanager
    def in_process(*_: Any, **__: Any) -> Iterator[InProcess]:
        # Like local[*], where a task whose worker dies is not tried again. A library that has threads in the driver, as
        # LanceDB has, does not survive a fork: its pages ask for none.
        yield InProcess(fork=os.environ.get("QUICK_FERRYMAN_FORKS") != "no", failures=1)

    root_command()
    driver.open_runner = in_process  # type: ignore[assignment]
    fork_server.start_ahead = lambda: None  # nobody takes it
    forked_servers.install()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection)
            os._exit(0)
        connection.close()


def _answer(connection: socket.socket) -> None:
    told, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while len(told) < 4 + int.from_bytes(told[:4], "big"):
        told += connection.recv(1 << 16)
    pid = os.fork()
    if pid == 0:
        connection.close()
        os._exit(_work(streams, *json.loads(told[4:])))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # whoever asked is gone
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(BrokenPipeError):
        connection.send(bytes([code if code >= 0 else 128 - code]))


def _work(streams: list[int], args: list[str], folder: str, environment: dict[str, str]) -> int:
    from ferryman import crash
    from ferryman.cli.app import start

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - they are of the server's streams, and are pipes now
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()  # the server has that of the test that started it
    os.environ.update(environment)
    if crash.ENVIRONMENT in environment:
        spec, _, seen = environment[crash.ENVIRONMENT].partition("@")
        crash.arm(spec, seen or None)
    sys.argv = ["ferryman", *args]
    code = start(args)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(command(sys.argv[1], sys.argv[2:]))
