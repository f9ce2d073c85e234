"""A full disk stops a run in words; with room again, the next start goes on, and everything arrives exactly once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import EngineError
from tests.support.recorder import Store
from tests.support.trial import Trial, Watch

KIB = 1024
DOCUMENTS = 60
SIZE = 4 * KIB
"""Bytes a document: together they take some hundred KiB of listing, staged files and outbox."""


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "none")

    def limit(self, *, free_kib: int | None = None, free_files: int | None = None) -> None:
        """Leave only so much room; None: more than enough."""
        used = os.statvfs(self.folder)
        kib = (used.f_blocks - used.f_bfree) * used.f_frsize // KIB
        size = kib + free_kib if free_kib is not None else 64 * KIB
        files = used.f_files - used.f_ffree + free_files if free_files is not None else 100_000
        self._mount("-o", f"remount,size={max(size, 4)}k,nr_inodes={max(files, 1)}", "none")

    def end(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def _mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(self.folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(place: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    made = Disk(place / "disk")
    yield made
    made.end()


def size(doc: Document) -> Document:
    doc["size"] = len(doc.raw or b"")
    return doc


def make(place: Path, disk: Disk) -> Trial:
    """State on the small disk, destination elsewhere."""
    trial = Trial(place).build(size, out=Store(place / "out.jsonl"), batch=10)
    trial.state = disk.folder / "state"
    trial.put(*(f"d{i:03}" for i in range(DOCUMENTS)), text="")
    for i, document in enumerate(trial.documents):
        document["raw"] = os.urandom(SIZE // 2).hex().encode() + b"%d" % i
    return trial


def fills(trial: Trial, disk: Disk, runner: Any = None, **room: int) -> str | None:
    """Run with this much room: the phase that met the end of it; None: it was enough."""
    disk.limit(**room)
    watch = Watch()
    try:
        trial.run(checked=False, observer=watch, runner=runner, wait=0)
    except EngineError as e:
        said = str(e)
    else:
        return None
    assert "the disk is full. Nothing is lost: make room and run again." in said
    return watch.phases[-1][1] if watch.phases else "start"


def recovers(trial: Trial, disk: Disk, runner: Any = None) -> None:
    """With room again, the next run delivers everything, once, and all is well."""
    disk.limit()
    trial.run(runner=runner, wait=5)
    assert trial.out.counted() == {d["id"]: 1 for d in trial.documents}
    assert trial.counts() == {"delivered": len(trial.documents)}


ROOM_KIB = [0, 4, 16, 60, 150, 300, 420, 560, 700, 850]
ROOM_FILES = [0, 1, 6, 14, 20, 26, 28, 30, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 44, 46]


def test_whatever_is_the_last_kilobyte(place: Path, disk: Disk) -> None:
    """The disk fills at many sizes of room: in a listing, in staged files, in the outbox, in a commit."""
    met = {}
    for kib in ROOM_KIB:
        folder = place / f"room-{kib}"
        folder.mkdir()
        trial = make(folder, disk)
        trial.state = disk.folder / f"state-{kib}"
        met[kib] = fills(trial, disk, free_kib=kib)
        recovers(trial, disk)
    assert met[0] == "start"
    assert len(set(met.values()) - {None}) >= 3, met


def test_whatever_is_the_last_file(place: Path, disk: Disk) -> None:
    """No inode left, at many counts of files: the small files of commits, marks and journal are met too."""
    met = {}
    for files in ROOM_FILES:
        folder = place / f"files-{files}"
        folder.mkdir()
        trial = make(folder, disk)
        trial.state = disk.folder / f"state-{files}"
        met[files] = fills(trial, disk, free_files=files)
        recovers(trial, disk)
    assert {"start", "scan", "transform", "deliver", "settle"} <= set(met.values()), met


@pytest.mark.slow
def test_every_last_file(place: Path, disk: Disk) -> None:
    """Every single creation of a file, from the first to the last, in a first run and in a second one."""
    for second in (False, True):
        for files in range(200):
            folder = place / f"files-{second}-{files}"
            folder.mkdir()
            trial = make(folder, disk)
            trial.state = disk.folder / f"state-{second}-{files}"
            if second:
                trial.run()
                trial.put("d001", "new", text="two")
                trial.drop("d002")
                trial.out.forget()
                disk.limit(free_files=files)
                met = fills(trial, disk, free_files=files)
                disk.limit()
                trial.run()
                assert trial.out.counted() == {"d001": 1, "new": 1, "-d002": 1}
            else:
                met = fills(trial, disk, free_files=files)
                recovers(trial, disk)
            if met is None:
                break
        assert files >= 15


def test_a_full_disk_again_and_again(place: Path, disk: Disk) -> None:
    """A disk that gets a little more room each time: no start makes it worse, the last one finishes."""
    trial = make(place, disk)
    ends = [fills(trial, disk, free_kib=kib) for kib in (0, 8, 40, 120, 200, 300, 400, 500)]
    assert ends[0] == "start"
    recovers(trial, disk)


def test_a_full_disk_in_a_second_run_keeps_the_first(place: Path, disk: Disk) -> None:
    """What was delivered and accounted for stays so, and can be asked for on the full disk."""
    trial = make(place, disk)
    trial.run()
    trial.put("new", text="x" * SIZE)
    before = trial.counts()
    assert fills(trial, disk, free_kib=0) is not None
    assert trial.counts() == before
    recovers(trial, disk)


@pytest.mark.spark
def test_spark_meets_a_full_disk(place: Path, disk: Disk, spark: Any) -> None:
    """The same where the writes fail in Spark's workers."""
    met = {}
    for kib in (120, 450):
        folder = place / f"room-{kib}"
        folder.mkdir()
        trial = make(folder, disk)
        trial.state = disk.folder / f"state-{kib}"
        met[kib] = fills(trial, disk, runner=spark, free_kib=kib)
        recovers(trial, disk, runner=spark)
    assert set(met.values()) - {None, "start"}, met
