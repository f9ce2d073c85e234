"""Process trees on Linux: their CPU time, and the peak memory of each kind of process, from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from types import TracebackType

EVERY_S = 0.2
"""Seconds between two samples. The kernel keeps the peak of a process until it ends."""
_PR_SET_CHILD_SUBREAPER = 36


def processes(root: int = 0) -> dict[int, list[int]]:
    """Return this process (or the root) and all below it: pid -> fields of /proc/<pid>/stat from the fourth on."""
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
    """Return the CPU seconds of this process and all below it so far, ended ones included."""
    ticks = sum(sum(stat[10:14]) for stat in processes().values())
    return ticks / os.sysconf("SC_CLK_TCK")


def forget_peaks() -> None:
    """Reset the peak memory of running processes for the next measurement."""
    for pid in processes():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose parent has ended, so that their CPU time is known."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Watch:
    """Samples the peak memory of each kind of process, in MB, every ``EVERY_S`` seconds, as workers come and go.

    Attributes:
        peaks: MB by kind: ``driver`` (the root), ``jvm``, ``worker`` (any other); 0 if there was none.
    """

    def __init__(self, root: int = 0) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.peaks = {"driver": 0, "worker": 0, "jvm": 0}
        self._root = root or os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_end, daemon=True)

    def __enter__(self) -> Watch:
        self._first = {pid: sum(stat[10:12]) for pid, stat in processes(self._root).items()}
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def _sample_until_end(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._sample()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all sampled processes. The kernel drops those of a worker whose parent does not wait for it;
        this keeps them up to the last sample."""
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _sample(self) -> None:
        for pid, stat in processes(self._root).items():
            self._last[pid] = sum(stat[10:12])
            try:
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            except OSError:
                continue
            if "VmHWM" not in status:
                continue  # it has ended
            name = status["Name"].strip()
            kind = "driver" if pid == self._root else "jvm" if name == "java" else "worker"
            self.peaks[kind] = max(self.peaks[kind], int(status["VmHWM"].split()[0]) // 1024)
