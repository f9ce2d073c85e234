"""A disk that is full, and a run that fills it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import EngineError
from tests.support.plan_world import PlanWorld, Watch
from tests.support.recorder import Store

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

    def refuse_changes(self) -> None:
        """Make it read-only."""
        self._mount("-o", "remount,ro", "none")

    def allow_changes(self) -> None:
        """Make it writable again."""
        self._mount("-o", "remount,rw", "none")

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


def make(place: Path, disk: Disk) -> PlanWorld:
    """State on the small disk, destination elsewhere."""
    trial = PlanWorld(place).build(size, out=Store(place / "out.jsonl"), batch=10)
    trial.state = disk.folder / "state"
    trial.put(*(f"d{i:03}" for i in range(DOCUMENTS)), text="")
    for i, document in enumerate(trial.documents):
        document["raw"] = os.urandom(SIZE // 2).hex().encode() + b"%d" % i
    return trial


def fills(trial: PlanWorld, disk: Disk, runner: Any = None, **room: int) -> str | None:
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


def recovers(trial: PlanWorld, disk: Disk, runner: Any = None) -> None:
    """With room again, the next run delivers everything, once, and all is well."""
    disk.limit()
    trial.run(runner=runner, wait=5)
    assert trial.out().counted() == {d["id"]: 1 for d in trial.documents}
    assert trial.counts() == {"delivered": len(trial.documents)}
