"""Processes as Linux tells of them: a tree, what it has taken of the CPU, the most memory that each kind of it had."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from types import TracebackType

EVERY_S = 0.2
"""How often somebody looks; the highest peak that a process had so far is then known, but for one that ended since."""
_PR_SET_CHILD_SUBREAPER = 36


def processes(root: int = 0) -> dict[int, list[int]]:
    """This process (or the root) and all below it: pid -> its fields of /proc/<pid>/stat from the fourth on."""
    stats: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            stats[int(name)] = [int(field) for field in stat.rpartition(")")[2].split()[1:]]
    tree = {root or os.getpid()} & stats.keys()
    while more := {pid for pid, stat in stats.items() if stat[0] in tree} - tree:
        tree |= more
    return {pid: stats[pid] for pid in tree}


def cpu_of_tree() -> float:
    """CPU seconds of this process and all below it so far, ended ones included."""
    ticks = sum(sum(stat[10:14]) for stat in processes().values())
    return ticks / os.sysconf("SC_CLK_TCK")


def forget_peaks() -> None:
    """What processes that are still there have taken so far does not count for the next measurement."""
    for pid in processes():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def adopt_orphans() -> None:
    """Processes below this one whose parent has ended become its children, so that their CPU is known, too."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Watch:
    """The highest peak of each kind of process, in MB; looks every so often, for workers come and go.

    Attributes:
        peaks: MB by kind: ``driver`` (the root), ``jvm``, ``worker`` (any other); 0: there was none.
    """

    def __init__(self, root: int = 0) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.peaks = {"driver": 0, "worker": 0, "jvm": 0}
        self._root = root or os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Watch:
        self._first = {pid: sum(stat[10:12]) for pid, stat in processes(self._root).items()}
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _look_on(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of each process as long as it was seen. The kernel forgets those of a worker that ends while its
        parent does not ask for it; this forgets those since somebody looked last."""
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _look(self) -> None:
        for pid, stat in processes(self._root).items():
            self._last[pid] = sum(stat[10:12])
            try:
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            except OSError:
                continue
            if "VmHWM" not in status:
                continue  # it has ended
            name = status["Name"].strip()
            who = "driver" if pid == self._root else "jvm" if name == "java" else "worker"
            self.peaks[who] = max(self.peaks[who], int(status["VmHWM"].split()[0]) // 1024)
