"""File systems that lack what a state needs are found out before anything is sent."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import UsageError
from ferryman.records.rows import RowSpan
from ferryman.state.journal import Journal
from ferryman.storage import files
from tests.support.plan_world import PlanWorld


def refuse(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.rule("state.file-system")
@pytest.mark.parametrize(
    ("module", "name", "number", "what"),
    [
        (os, "link", errno.EPERM, "hard links"),
        (os, "link", errno.ENOTSUP, "hard links"),
        (fcntl, "flock", errno.ENOLCK, "locks"),
        (files, "fsync_folder", errno.EINVAL, "sync of folders"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_sent(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int, what: str
) -> None:
    trial.put("a")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, refuse(number))
        with pytest.raises(UsageError, match=f"this file system has no .*{what}.*--state"):
            trial.run(checked=False)
    assert not trial.root.exists() or not list(trial.root.glob(".tmp-*"))
    trial.run()
    assert trial.counts() == {"delivered": 1}


@pytest.mark.rule("state.file-system")
def test_locks_that_do_not_lock_are_found_out(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount with `nolock` says yes to everybody."""
    trial.put("a")
    monkeypatch.setattr(fcntl, "flock", lambda fd, kind: None)
    with pytest.raises(UsageError, match="two processes may have the same lock"):
        files.probe(trial.folder)


def test_another_error_is_told_as_it_is(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        files.probe(trial.folder)


def test_a_folder_that_cannot_be_removed_does_not_hold_up_a_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that nobody sees keeps it in use, as on NFS: its content goes, and the run goes on."""
    journal = Journal(place / "journal")
    journal.create()
    journal.begin(1)
    journal.claim(1, RowSpan(1, 0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", refuse(errno.ENOTEMPTY))
        journal.trim(1, set())
    assert journal.passes() == [1]
    assert journal.claims(1) == []
    journal.trim(1, set())
    assert journal.passes() == []
