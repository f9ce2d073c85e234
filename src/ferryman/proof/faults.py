"""Faults of a proof: which kinds there are, how one is armed in the process that it hits, and that it happened."""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from ferryman import crash

# --- effects: proof that a fault happened, in files, because the process may be gone a moment later ---
# A fault that hits nothing proves nothing, so a round counts only if its fault has left its mark here.


class Effects:
    """Marks of one fault, shared by all processes of a round.

    Args:
        folder: where the marks are.
        first: number of the call at which the fault begins, from 1; 0: it never does.
        times: number of calls for which it lasts.
    """

    def __init__(self, folder: Path, first: int = 0, times: int = 1) -> None:
        self._folder = folder
        self._first = first
        self._times = times

    @classmethod
    def none(cls) -> Self:
        """Return those of a fault that does not happen."""
        return cls(Path(), 0)

    def happens(self) -> bool:
        """Count a call, and return whether the fault happens in it; then its mark is there already."""
        if not self._first:
            return False
        number = self._count()
        if not self._first <= number < self._first + self._times:
            return False
        (self._folder / "effect").touch()
        return True

    def _count(self) -> int:
        """Return the number of this call over all processes, from 1."""
        last = self._first + self._times
        for number in range(1, last + 1):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._folder / f"call-{number}", os.O_CREAT | os.O_EXCL))
                return number
        return last + 1


def took_effect(folder: Path) -> bool:
    """Return whether the fault of the round in this folder has happened."""
    return (folder / "effect").exists()


# --- kinds of faults ---


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        title: for the table.
        hits: what it is tried at: each ``driver`` or ``worker`` write, each ``destination``, ``readable`` destination,
            ``step`` or ``source``, ``commit`` points, ``sending`` points; "": once.
        forks: tasks run in processes of their own.
        spark: it needs Spark.
    """

    title: str
    hits: str
    forks: bool = False
    spark: bool = False


KINDS: Final = {
    "driver": Kind("the driver is killed", "driver"),
    "machine": Kind("driver and workers are killed at once", "worker"),
    "worker": Kind("a worker is killed, and its task is run again", "worker", forks=True),
    "refuses": Kind("a destination refuses", "destination"),
    "away": Kind("a destination is away for a whole run", "destination"),
    "hangs": Kind("a destination does its work, and never answers", "destination", forks=True),
    "half": Kind("a destination does half of the work, and answers for half", "destination"),
    "drops": Kind("a destination drops the connection after the work", "destination"),
    "tail": Kind("a destination comes back without its last writes", "readable"),
    "holes": Kind("a destination comes back with holes", "readable"),
    "step": Kind("the service of a step is away", "step"),
    "source": Kind("a source is away", "source"),
    "disk": Kind("the disk of the state is full", "disk"),
    "clock": Kind("the clock jumps, forth and back", "commit"),
    "second": Kind("a second driver is started", "commit"),
    "overtaken": Kind("a driver is stopped, loses its lock, and is woken later", "commit"),
    "late": Kind("a worker is stopped, and woken when others have done its work", "sending", forks=True),
    "jvm": Kind("Spark's Java process is killed", "jvm", spark=True),
    "spark": Kind("Spark runs the task of a killed worker again", "spark", spark=True),
}
"""Kinds of faults by name, in the order of the report's table."""

COMMIT_POINTS: Final = ("commit.ready", "wave.logged", "deliver.done", "ledger.synced", "outbox.logged")
"""Points of the driver at which the faults of ``commit`` are tried."""

SENDING_POINTS: Final = ("transform.staged", "deliver.claimed", "deliver.sent", "deliver.noted")
"""Points of a worker at which it is stopped."""

JUMP_S: Final = 400 * 86_400
"""Seconds that the clock jumps."""


class PlannedFault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        kind: key of ``KINDS``.
        at: the crash point, or the node; "" if there is no choice.
        nth: the time that the point is reached, or the call, from 1.
        version: version of the sample during which it happens, from 0.
    """

    kind: str
    at: str = ""
    nth: int = 1
    version: int = 0

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}:{self.nth}@{self.version}"

    @property
    def place(self) -> str:
        """Return the name under which rounds are counted: of a durable write, or of a node."""
        return self.at or "any"


def parse_fault(text: str) -> PlannedFault:
    """Parse the text of a fault, as a violation prints it: ``driver@wave.logged:2@1``.

    Raises:
        ValueError: it is none; the message says how one looks.
    """
    try:
        kind, place, version = text.split("@")
        at, _, nth = place.rpartition(":")
        fault = PlannedFault(kind, at, int(nth), int(version))
    except ValueError:
        raise ValueError(f"{text!r}: give a fault as a violation prints it: driver@wave.logged:2@1") from None
    if kind not in KINDS:
        raise ValueError(f"{text!r}: there is no fault {kind}; there are {', '.join(KINDS)}")
    return fault


def node_effects(
    fault: PlannedFault | None, kind: str, node: str, version: int, folder: Path, times: int = 1
) -> Effects:
    """Return when a fault of this kind hits a node."""
    if fault is None or fault.kind != kind or fault.at != node or fault.version != version:
        return Effects.none()
    return Effects(folder, fault.nth, times)


# Arming, in the process of a run.


def arm(fault: PlannedFault, folder: Path) -> None:
    """Arm a fault that hits a process at a crash point, or its clock or disk."""
    mark = str(folder / "effect")
    match fault.kind:
        case "driver" | "machine" | "worker":
            arm_point(fault, mark, signal.SIGKILL)
        case "second" | "overtaken" | "late":
            arm_point(fault, mark, signal.SIGSTOP)
        case "clock":
            on_reaching(fault, functools.partial(_jump, folder))
        case "disk":
            FullDisk(folder / "state", fault.nth, folder)


def arm_point(fault: PlannedFault, mark: str, by: int) -> None:
    """Kill or stop whichever process reaches the point, once over all of them."""
    crash.arm(f"{fault.at}:{fault.nth}", mark, by)


def on_reaching(fault: PlannedFault, act: Callable[[], None]) -> None:
    """Call ``act`` when the point is reached for the n-th time in this process."""
    plain, left = crash.point, fault.nth

    def point(name: str) -> None:
        nonlocal left
        if name == fault.at:
            left -= 1
            if left == 0:
                act()
        plain(name)

    crash.point = point


def record_points(path: Path) -> None:
    """Write down each point that this process, and those forked from it, reach."""
    driver, plain = os.getpid(), crash.point

    def point(name: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{name} {'driver' if os.getpid() == driver else 'worker'}\n".encode())
        os.close(fd)
        plain(name)

    crash.point = point


def read_points(path: Path) -> dict[tuple[str, str], int]:
    """Return (point, driver or worker) -> how often it was reached."""
    found: dict[tuple[str, str], int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, who = line.partition(" ")
        found[name, who] = found.get((name, who), 0) + 1
    return found


class ShiftedClock:
    """Wall clock and monotonic clock of a run: time passes while it waits, without waiting.

    Attributes:
        shift_s: seconds that the wall clock is ahead.
    """

    def __init__(self) -> None:
        self.shift_s = self._waited_s = 0.0
        self._time, self._time_ns, self._monotonic = time.time, time.time_ns, time.monotonic
        time.time = lambda: self._time() + self.shift_s
        time.time_ns = lambda: self._time_ns() + int(self.shift_s * 1e9)

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._monotonic() + self._waited_s

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._waited_s += seconds
        self.shift_s += seconds


_clocks: Final[list[ShiftedClock]] = []
"""Clock of this process; []: it is not a run of a proof."""


def shift_clock() -> ShiftedClock:
    """Take the clock of this process over."""
    _clocks.append(ShiftedClock())
    return _clocks[-1]


def _jump(folder: Path) -> None:
    """Let the wall clock jump ahead; the next process has the right time again, so it jumps back."""
    for clock in _clocks:
        clock.shift_s += JUMP_S
        (folder / "effect").touch()


_CHANGING: Final = ("fsync", "link", "mkdir", "rename", "replace", "write")
_WRITING: Final = os.O_WRONLY | os.O_RDWR


class FullDisk:
    """From a certain change below a folder on, every change fails as on a full disk, in this process.

    Args:
        root: folder that has no room.
        first: number of the first change that fails.
        marks: folder for the mark that one has failed.
    """

    def __init__(self, root: Path, first: int, marks: Path) -> None:
        self._root, self._left, self._marks = str(root), first, marks
        for name in _CHANGING:
            setattr(os, name, self._refusing(getattr(os, name), lambda _: True))
        os.open = self._refusing(os.open, lambda flags: bool(isinstance(flags, int) and flags & _WRITING))
        opening = self._refusing(builtins.open, lambda mode: any(c in str(mode) for c in "wax+"))
        builtins.open = opening
        io.open = opening

    def _refusing(self, real: Callable[..., Any], changes: Callable[[Any], bool]) -> Callable[..., Any]:
        def call(what: Any = ".", *args: Any, **options: Any) -> Any:
            how = args[0] if args else options.get("mode", options.get("flags", 0))
            if changes(how) and self._concerns(what):
                self._left -= 1
                if self._left <= 0:
                    (self._marks / "effect").touch()
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(what, *args, **options)

        return call

    def _concerns(self, what: Any) -> bool:
        if isinstance(what, int):
            try:
                what = os.readlink(f"/proc/self/fd/{what}")
            except OSError:
                return False
        return isinstance(what, str | os.PathLike) and os.fspath(what).startswith(self._root)


# --- faults of Spark: its Java process or a Python worker is killed ---

SPARK_MASTER: Final = "local[2,4]"
"""Two tasks at once; a task whose worker dies is tried four times."""

SPARK_CONF: Final = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.python.worker.reuse": "true"}


def arm_spark(fault: PlannedFault, folder: Path) -> None:
    """Arm a fault of Spark, before it is started: its workers inherit the environment."""
    if fault.kind == "spark":
        os.environ[crash.ENVIRONMENT] = f"{fault.at}:{fault.nth}@{folder / 'effect'}"
    elif fault.kind == "jvm":
        on_reaching(fault, lambda: _kill_java(folder))


def _kill_java(folder: Path) -> None:
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if "java" in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, signal.SIGKILL)
                (folder / "effect").touch()


def _descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _descendants(child)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has forked, and that live."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(each) for each in (thread / "children").read_text().split()]
    return found
