"""A full disk stops a run in words; with room again, the next start goes on, and everything arrives exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.full_disk import SIZE, Disk, disk, fills, make, recovers

__all__ = ["disk"]


ROOM_KIB = [0, 4, 16, 60, 150, 300, 420, 560, 700, 850]
ROOM_FILES = [0, 1, 6, 14, 20, 26, 28, 30, 32, 34, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48]


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
                trial.out().forget()
                disk.limit(free_files=files)
                met = fills(trial, disk, free_files=files)
                disk.limit()
                trial.run()
                assert trial.out().counted() == {"d001": 1, "new": 1, "-d002": 1}
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
