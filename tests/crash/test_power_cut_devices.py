"""Power cuts on real file systems: the process is killed between two system calls, its device is copied as it is then,
without what is in memory, and the same command is run again on the copy."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from ferryman import limits
from tests.crash.power_cuts import World
from tests.support.plan_world import place
from tests.support.power_cut import in_child

__all__ = ["place"]

MAKING: Final = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
SIZE: Final = 400 << 20
"""Bytes of a device: xfs takes no fewer than 300 MiB. Its file has holes."""

ROOT: Final = Path(__file__).parents[2]
TRIES: Final = 20
SEEDS: Final = 2

CALLS: Final = ("fsync", "link", "rename", "replace", "unlink")
"""Before or after one of them the power is cut: what was durable is another then."""


class Device:
    """A file system of a kind on a device that is a file in ``folder``, mounted at ``disk``."""

    def __init__(self, folder: Path, kind: str) -> None:
        if os.geteuid() != 0 or shutil.which(MAKING[kind][0]) is None:
            pytest.skip(f"making a file system needs root and {MAKING[kind][0]}")
        self.disk = folder / "disk"
        self._folder, self._kind, self._cuts = folder, kind, 0
        self._image = folder / "0.image"
        with open(self._image, "wb") as image:
            image.truncate(SIZE)
        done = subprocess.run([*MAKING[kind], self._image], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no {kind} here: {done.stderr.strip()}")
        self.disk.mkdir()
        self._mount()

    def cut(self) -> None:
        """Go on with the device as it is at one moment."""
        self._cuts += 1
        copy = self._folder / f"{self._cuts}.image"
        for _ in range(TRIES):
            subprocess.run(["cp", "--sparse=always", self._image, copy], check=True)
            if not subprocess.run(["cmp", "-s", self._image, copy], check=False).returncode:
                break  # else the file system has written while it was copied
        else:
            raise AssertionError(f"it is written to all the time: {self._image}")
        self.end()
        self._image.unlink()
        self._image = copy
        self._mount()

    def end(self) -> None:
        subprocess.run(["umount", self.disk], check=False)

    def _mount(self) -> None:
        mount = ["mount", "-t", self._kind, "-o", "loop", self._image, self.disk]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            assert not self._cuts, f"after a power cut: {done.stderr}"
            pytest.skip(f"a {self._kind} cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def device(place: Path, request: pytest.FixtureRequest) -> Iterator[Device]:
    made = Device(place, request.param)
    yield made
    made.end()


def killed(work: Callable[[], object], disk: Path, at: int, before: bool) -> bool:
    """Work in a child that is killed at one of its calls below ``disk``, the ``at``-th; False: it was through."""
    child = os.fork()
    if not child:
        try:
            kill_at(disk, at, before)
            work()
            os._exit(0)
        finally:
            os._exit(2)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), f"the work failed: exit code {ended}"
    return ended != 0


def kill_at(disk: Path, at: int, before: bool) -> None:
    """Kill this process at the ``at``-th call that concerns ``disk``: before it is made, or when it is done."""
    seen = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *args: Any, **options: Any) -> Any:
            nonlocal seen
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            mine = str(path).startswith(f"{disk}/")
            seen += mine
            if mine and seen == at and before:
                os.kill(os.getpid(), signal.SIGKILL)
            done = real(what, *args, **options)
            if mine and seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def cuts(device: Device, kind: str, seed: int) -> int:
    """Runs of which the power is cut, again and again, and what they have come to; how many cuts there were."""
    chance, done, words = random.Random(seed), 0, list[str]()
    (device.disk / f"{kind}{seed}").mkdir()
    world = World(device.disk / f"{kind}{seed}", kind)
    for stage in range(3):
        more = [chance.choice("abcd") for _ in range(chance.randint(1, 9))]
        words += more

        def work(stage: int = stage, more: list[str] = more) -> None:
            world.put(more, f"stage{stage}")
            world.run()

        for _ in range(chance.randint(1, 4)):
            at = chance.randint(1, chance.choice([60, 200, 500]))
            if not killed(work, device.disk, at, chance.random() < 0.5):
                break
            device.cut()
            world.folder.mkdir(exist_ok=True)  # nobody has synced its name, which the test has made
            done += 1
        in_child(work)
        in_child(partial(world.check, words))
    return done


@pytest.mark.slow
@pytest.mark.rule("state.power-cut")
@pytest.mark.parametrize("device", MAKING, indirect=True)
@pytest.mark.parametrize("kind", ["keyed", "once"])
def test_power_cuts_of_devices(device: Device, kind: str) -> None:
    """Wherever it is cut, the same command goes on: each document is counted, or carried on, as was promised."""
    command = [sys.executable, "-m", __name__]  # a process of its own: one that has used delta-rs must not fork
    done = subprocess.run(command, cwd=ROOT, input=pickle.dumps((device, kind)), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) > SEEDS


def main() -> None:
    """Print how many cuts there were. Logs are folded, files are merged and what is not used any more is removed soon:
    names and blocks are used again."""
    soon = {"CHECKPOINT_COMMITS": 4, "QUEUE_COMMITS": 4, "COMPACT_FILES": 2, "QUEUE_FILES": 2}
    for name, value in {**soon, "READERS_GRACE_S": -1.0, "TEMPORARY_S": -1.0}.items():
        setattr(limits, name, value)
    device, kind = pickle.load(sys.stdin.buffer)
    print(sum(cuts(device, kind, seed) for seed in range(SEEDS)))


if __name__ == "__main__":
    main()
