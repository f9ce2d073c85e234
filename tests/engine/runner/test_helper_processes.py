"""Processes beside the driver, which read sources while Spark has not started."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.engine.runner import fork_server
from ferryman.engine.runner.helper_processes import HelperProcesses
from ferryman.testing.inprocess import InProcess
from tests.support import forked_servers
from tests.support.processes import is_alive
from tests.support.waiting import LATE_S, wait_until


@pytest.fixture
def beside() -> Iterator[HelperProcesses]:
    processes = HelperProcesses(2, os.environ, InProcess())
    yield processes
    processes.end()


def test_answers_come_in_the_order_of_the_items(beside: HelperProcesses) -> None:
    """From several processes, none of which is the driver."""

    def task(item: int) -> tuple[int, int]:
        return item, os.getpid()

    answers = beside.run(task, range(40))
    assert answers is not None
    assert [item for item, _ in answers] == list(range(40))
    assert os.getpid() not in {pid for _, pid in answers}


def test_nothing_to_do(beside: HelperProcesses) -> None:
    assert beside.run(abs, []) == []


def test_both_work_at_a_time(beside: HelperProcesses, tmp_path: Path) -> None:
    """Each waits for the other one."""

    def task(item: int) -> bool:
        (tmp_path / str(item)).touch()
        until = time.monotonic() + LATE_S
        while not (tmp_path / str(1 - item)).exists() and time.monotonic() < until:
            time.sleep(0.01)
        return (tmp_path / str(1 - item)).exists()

    assert beside.run(task, [0, 1]) == [True, True]


def test_who_has_worked_works_again(beside: HelperProcesses) -> None:
    """It has loaded what tasks need; another would load it again."""
    assert beside.run(lambda _: os.getpid(), [0]) == beside.run(lambda _: os.getpid(), [0])


def test_the_next_run_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its helper processes are forked anew, from where those of the run before were: none has anything of that run.
    What has failed is killed with the process that it was forked from."""
    started: list[int] = []
    start = fork_server.start_process

    def counted(*args: Any) -> Any:
        started.append(1)
        return start(*args)

    def state(item: int) -> tuple[int, str | None, bool]:
        seen, math.seen = getattr(math, "seen", False), True  # type: ignore[attr-defined]
        return os.getpid() if item else 1 // item, os.environ.get("FERRYMAN_MACHINE_HAS"), seen

    monkeypatch.setattr(fork_server, "start_process", counted)
    fork_server.end_idle()
    pids = set()
    for has in ("ocr", "gpu"):
        processes = HelperProcesses(1, {**os.environ, "FERRYMAN_MACHINE_HAS": has}, InProcess())
        [(pid, environment, seen)] = processes.run(state, [1]) or []
        assert (environment, seen) == (has, False)
        pids.add(pid)
        processes.end()
        wait_until(lambda pid=pid: not is_alive(pid))
    assert (len(pids), len(started)) == (2, 1)
    failing = HelperProcesses(1, os.environ, InProcess())
    assert failing.run(state, [0]) is None
    failing.end()
    processes = HelperProcesses(1, os.environ, InProcess())
    assert processes.run(abs, [-1]) == [1]
    assert len(started) == 2
    processes.end()
    fork_server.end_idle()


@pytest.mark.parametrize(
    "bad",
    [
        lambda item: 1 // item,
        lambda item: item or os.kill(os.getpid(), signal.SIGKILL),
        lambda item: item or os._exit(0),
        lambda item: item or Unpicklable(),
    ],
)
def test_what_fails_is_left_to_spark(beside: HelperProcesses, bad: Callable[[Any], Any]) -> None:
    """A task that raises, kills its process, ends it, or answers what cannot be sent."""
    assert beside.run(bad, [1, 0, 1]) is None
    assert beside.run(abs, [1]) is None, "they have ended"


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("it stays here")


def test_they_have_the_environment_of_executors() -> None:
    processes = HelperProcesses(1, {**os.environ, "FERRYMAN_MACHINE_HAS": "ocr"}, InProcess())
    try:
        assert processes.run(os.getenv, ["FERRYMAN_MACHINE_HAS"]) == ["ocr"]
    finally:
        processes.end()


def test_hashes_are_those_of_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gives its workers one seed. Otherwise what a step makes of a set would differ from run to run."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(fork_server, "start_process", forked_servers.STARTED)  # a seed is chosen at a start
    fork_server.end_idle()
    program = [sys.executable, "-c", "print(hash('text'))"]
    expected = int(subprocess.check_output(program, env={**os.environ, "PYTHONHASHSEED": "0"}))
    for _ in range(2):
        processes = HelperProcesses(1, os.environ, InProcess())
        try:
            assert processes.run(hash, ["text"]) == [expected]
        finally:
            processes.end()


PRINTING = """
import os
from ferryman.engine.runner.helper_processes import HelperProcesses
from ferryman.testing.inprocess import InProcess

processes = HelperProcesses(1, os.environ, InProcess())
print(processes.run(print, ["by a step"]))
processes.end()
"""


def test_what_steps_print_is_seen() -> None:
    """On stderr, although their process is killed in the end, and nothing reads a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTING], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout, done.stderr) == ("[None]\n", "by a step\n")


def test_ctrl_c_is_for_the_driver(beside: HelperProcesses) -> None:
    """A terminal sends it to all processes of a command's group."""
    groups = beside.run(lambda _: os.getpgrp(), [0, 0])
    assert groups is not None
    assert os.getpgrp() not in groups


def test_what_fails_is_run_by_the_fallback() -> None:
    """Which is the driver here, where it does not fail."""
    driver = os.getpid()
    processes = HelperProcesses(1, os.environ, InProcess())

    def task(item: int) -> int:
        return item if os.getpid() == driver else 1 // 0

    assert processes.submit(task, [1, 2]).result() == [1, 2]


def test_they_end_with_the_driver(tmp_path: Path) -> None:
    """Also if that is killed while they are at work."""
    program = f"""
import os, time
from pathlib import Path
from ferryman.engine.runner.helper_processes import HelperProcesses
from ferryman.testing.inprocess import InProcess
from tests.support.waiting import LATE_S, wait_until

def task(item):
    Path({str(tmp_path)!r}, f"{{item}}.new").write_text(str(os.getpid()))
    os.rename({str(tmp_path)!r} + f"/{{item}}.new", {str(tmp_path)!r} + f"/{{item}}")
    time.sleep(3600)

HelperProcesses(2, os.environ, InProcess()).run(task, [0, 1])
"""
    with subprocess.Popen([sys.executable, "-c", program]) as driver:
        wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        driver.kill()
    for name in ("0", "1"):
        pid = int((tmp_path / name).read_text())
        wait_until(lambda pid=pid: not is_alive(pid))


def test_what_they_are_at_is_not_waited_for(tmp_path: Path) -> None:
    """When one of them fails."""
    processes = HelperProcesses(2, os.environ, InProcess())

    def task(item: int) -> None:
        if item:
            time.sleep(3600)
        raise ValueError

    try:
        assert processes.run(task, [0, 1]) is None
    finally:
        processes.end()


PROGRAM = """
import os, sys
from ferryman.engine.runner.helper_processes import HelperProcesses
from ferryman.testing.inprocess import InProcess
import neighbour

processes = HelperProcesses(1, os.environ, InProcess())
print(processes.run(neighbour.double, [1, 2]))
processes.end()
"""


def test_modules_beside_a_program_are_found(place: Path) -> None:
    """Although the processes are started in another folder, in which a module of the same name lies."""
    for folder, text in (("program", "def double(n):\n    return 2 * n\n"), ("elsewhere", "1 / 0\n")):
        (place / folder).mkdir()
        (place / folder / "neighbour.py").write_text(text)
    (place / "program" / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, place / "program" / "program.py"],
        capture_output=True, text=True, check=False, cwd=place / "elsewhere",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[2, 4]\n"), done.stderr
