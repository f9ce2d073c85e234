"""One sync for many jobs: what is durable when, and what becomes of a job that cannot go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake import JobState
from ferryman.intake.service.finisher import SYNC_SINGLY_MAX, Finisher, FinishRequest, UnsyncedFiles, sync
from ferryman.storage import disk, files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in its order; ``*`` is a whole file system."""
    found: list[str] = []
    monkeypatch.setattr(files, "fsync_file", lambda path: found.append(path.name))
    monkeypatch.setattr(files, "fsync_folder", lambda path: found.append(f"{path.name}/"))
    monkeypatch.setattr(disk, "fsync_tree", lambda path: found.append("*"))
    return found


def unsynced(folder: Path, name: str, then: Callable[[], None] = lambda: None) -> UnsyncedFiles:
    return UnsyncedFiles((folder / name,), (folder,), then)


def test_a_folder_is_synced_once_and_after_the_files_of_all(tmp_path: Path, synced: list[str]) -> None:
    assert sync([unsynced(tmp_path, "a"), unsynced(tmp_path, "b")]) == [None, None]
    assert synced == ["a", "b", f"{tmp_path.name}/"]


def test_many_are_synced_at_once(tmp_path: Path, synced: list[str]) -> None:
    sync([unsynced(tmp_path, f"{n}") for n in range(SYNC_SINGLY_MAX + 1)])
    assert synced == ["*"]


class Held:
    """A job, as far as a finisher needs one."""

    def __init__(self) -> None:
        self.given_back = False

    def unlock(self) -> None:
        self.given_back = True


def finish_request(
    told: list[str], name: str, *steps: UnsyncedFiles, fails: list[BaseException] | None = None
) -> FinishRequest:
    def attempt(do: Callable[[], None]) -> bool:
        try:
            do()
        except OSError as e:
            if fails is None:
                raise
            fails.append(e)
            return False
        return True

    job: Any = Held()
    return FinishRequest(job, steps, attempt, JobState.DOWNLOADING, (told, f"{name} moves"))


def finish(finisher: Finisher) -> None:
    """Finish all jobs that wait."""

    def advance(requests: Sequence[FinishRequest]) -> None:
        for told, text in (request.result for request in requests):
            told.append(text)

    finisher.advance = advance
    requests = finisher.take()
    assert requests
    finisher.finish(requests)


def test_a_step_is_done_when_what_it_needs_is_durable(tmp_path: Path, synced: list[str]) -> None:
    """All jobs' first steps come before any second one: each round is one sync."""
    finisher, told = Finisher(), synced

    def step(name: str) -> UnsyncedFiles:
        return unsynced(tmp_path, name, lambda: told.append(f"{name} done"))

    finisher.submit(finish_request(told, "one", step("a"), step("b")))
    finisher.submit(finish_request(told, "two", step("c")))
    finish(finisher)
    assert [each for each in told if "/" not in each] == [
        *("a", "c", "a done", "c done"),
        *("two moves", "b", "b done", "one moves"),
    ]
    assert finisher.take() is None


def test_a_file_that_cannot_be_synced_ends_its_own_job_only(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a")
    told: list[str] = []
    fails: list[BaseException] = []
    finisher = Finisher()
    finisher.submit(finish_request(told, "gone", unsynced(tmp_path, "gone", lambda: told.append("never")), fails=fails))
    finisher.submit(finish_request(told, "there", unsynced(tmp_path, "there"), fails=fails))
    finish(finisher)
    assert told == ["there moves"]
    assert [e.errno for e in fails if isinstance(e, OSError)] == [errno.ENOENT]


def test_a_failed_sync_of_all_ends_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them says that its files are there."""

    def broken(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "fsync_tree", broken)
    told: list[str] = []
    fails: list[BaseException] = []
    finisher = Finisher()
    for n in range(SYNC_SINGLY_MAX + 1):
        finisher.submit(finish_request(told, f"{n}", unsynced(tmp_path, f"{n}"), fails=fails))
    finish(finisher)
    assert told == []
    assert len(fails) == SYNC_SINGLY_MAX + 1


def test_what_waits_is_given_back_at_the_end(tmp_path: Path) -> None:
    """And what comes after it."""
    finisher = Finisher()
    before, after = (finish_request([], name, unsynced(tmp_path, name)) for name in ("before", "after"))
    finisher.submit(before)
    finisher.release()
    finisher.submit(after)
    jobs: list[Any] = [before.job, after.job]
    assert [job.given_back for job in jobs] == [True, True]
    assert finisher.take() is None


def test_a_lost_queue_gives_all_of_them_back(tmp_path: Path) -> None:
    """The loop says so, and goes on with the next."""
    finisher = Finisher()
    some = [finish_request([], f"{n}", unsynced(tmp_path, f"{n}")) for n in range(3)]
    for each in some:
        finisher.submit(each)
    with pytest.raises(FileNotFoundError):  # which ``attempt`` lets pass here, as it does ``QueueLost``
        finish(finisher)
    jobs: list[Any] = [each.job for each in some]
    assert all(job.given_back for job in jobs)
