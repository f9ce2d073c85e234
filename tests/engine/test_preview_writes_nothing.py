"""A preview writes nothing, whatever state it finds."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.engine.preview import scratch_folder
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import EngineError, PlanError, StateDamaged, StateForeign, UsageError
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import State
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.previewed import previewed
from tests.support.previewing import filled, ids, killed_after_commit, look, settled, with_requests
from tests.support.snapshot import snapshot
from tests.support.tiers import sampled


def nothing(net: PlanWorld) -> None:
    """No state, not even a folder."""


def empty_folder(net: PlanWorld) -> None:
    net.root.mkdir(parents=True)


def fresh(net: PlanWorld) -> None:
    net.plan.freeze()
    State.take(net.root, net.plan).release()


def owed_failed_parked(net: PlanWorld) -> None:
    settled(net)
    net.put("d", "failing", text="three")
    net.run(wait=0)
    net.put("e")


def killed_after_delivery(net: PlanWorld) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "settle"), checked=False)


def killed_before_commit(net: PlanWorld) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "commit"), checked=False)


def read_only(net: PlanWorld) -> None:
    settled(net)
    for path in [net.state, *net.state.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


STATES = [nothing, empty_folder, fresh, settled, owed_failed_parked, with_requests, killed_after_commit,
          killed_after_delivery, killed_before_commit, read_only]  # fmt: skip


@pytest.mark.parametrize("document", sampled([None, "a", "failing"], 3), ids=["some", "one", "one-that-failed"])
@pytest.mark.parametrize("state", STATES, ids=lambda f: f.__name__)
def test_nothing_is_written(net: PlanWorld, state: Callable[[PlanWorld], None], document: str | None) -> None:
    """Not a byte, a name, a time or a mode in the state, nor beside it; the destination is not called."""
    filled(net)
    state(net)
    net.put("newest")
    before = snapshot(net.folder)
    found = look(net, document=document)
    assert document in ids(found) or "newest" in ids(found)
    assert snapshot(net.folder) == before


def test_a_state_that_is_held_is_read_all_the_same(net: PlanWorld) -> None:
    """By a driver in the middle of a wave, which notices nothing."""
    filled(net)
    settled(net)
    with State.take(net.root, net.plan) as held:
        before = snapshot(net.folder)
        assert look(net).documents
        assert snapshot(net.folder) == before
        Run(held, InProcess(), Silent(), RunSettings(wait=0)).run()
    assert net.arrived("out")["a"] == 2


AS_NOBODY = """
import os, sys
from pathlib import Path
import deltalake, pyarrow.dataset
from tests.engine import test_preview as tests

net = tests.PlanWorld.empty(Path(sys.argv[1]))
tests.filled(net)
net.put("newest")
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    (net.root / "mine").touch()
except OSError:
    print(*tests.ids(tests.look(net)))
"""


def test_who_may_only_read_may_preview(net: PlanWorld) -> None:
    """Another user, to whom every file of the state is read-only; where tests are run by root, by becoming one."""
    filled(net)
    read_only(net)
    net.folder.chmod(0o755)
    before = snapshot(net.folder)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(net.folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "newest" in done.stdout.split(), done.stdout
    assert snapshot(net.folder) == before


def test_a_driver_at_work_is_not_disturbed(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It merges files and folds logs all the time; previews beside it find no damage, and it finds its state whole."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 3)
    trial.put("a", "b")
    trial.run()
    done = threading.Event()

    def change(_pause: float) -> None:
        if done.is_set():
            raise Interrupted
        trial.put("a", text=str(random.random()))

    def drive() -> None:
        with pytest.raises(Interrupted):
            trial.run(every=0, sleep=change, observer=Silent(), checked=False)

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        seen = [previewed(trial.plan, trial.state, document="b") for _ in range(15)]
    finally:
        done.set()
        driver.join()
    assert {each["reason"] for found in seen for each in found.documents} == {"unchanged"}
    trial.run()
    assert trial.out().arrived().count("b") == 1


def no_identity(root: Path) -> Path:
    (root / "state.json").unlink()
    return root / "state.json"


def no_log_entry(root: Path) -> Path:
    path = min((root / "ledger" / "_delta_log").glob("*.json"))
    path.unlink()
    return path


def no_documents(root: Path) -> Path:
    path = next((root / "documents").glob("*.parquet"))
    path.unlink()
    return path


def other_documents(root: Path) -> Path:
    path = next((root / "documents").glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def no_outbox_file(root: Path) -> Path:
    path = next((root / "outbox").glob("*.parquet"))
    path.unlink()
    return path


def no_folder(root: Path) -> Path:
    shutil.rmtree(root / "journal")
    return root / "journal"


@pytest.mark.parametrize(
    "damage",
    [no_identity, no_log_entry, no_documents, other_documents, no_outbox_file, no_folder],
    ids=lambda f: f.__name__,
)
def test_a_damaged_state_is_refused_by_name(net: PlanWorld, damage: Callable[[Path], Path]) -> None:
    """And left as it is."""
    filled(net)
    owed_failed_parked(net)
    path = damage(net.root)
    before = snapshot(net.folder)
    with pytest.raises(StateDamaged, match=path.name):
        look(net)
    assert snapshot(net.folder) == before


def test_a_folder_of_something_else_is_refused(net: PlanWorld) -> None:
    """As a run would refuse it."""
    filled(net)
    net.root.mkdir(parents=True)
    (net.root / "thesis.tex").touch()
    before = snapshot(net.folder)
    with pytest.raises(StateForeign, match=r"thesis\.tex"):
        look(net)
    assert snapshot(net.folder) == before


def test_a_plan_that_cannot_run_is_refused(net: PlanWorld) -> None:
    net.source()
    with pytest.raises(PlanError):
        look(net)
    assert not net.state.exists()


def test_scratch_files_are_removed_after_an_error_too(net: PlanWorld) -> None:
    """``previewed`` looks; and the state is not made."""

    def away() -> list[Any]:
        raise UsageError("no list today")

    plan = Plan("network", version=1)
    plan.source("docs", Memory(away)).destination("out", net.out("out"))
    with pytest.raises(UsageError):
        previewed(plan, net.state)
    assert not net.state.exists()


def test_a_full_disk_is_told_by_its_folder() -> None:
    """Whose it is: the scratch folder's, which TMPDIR says."""
    with (
        pytest.raises(EngineError, match=r"ferryman-preview-.*: the disk is full\. .*set TMPDIR"),
        scratch_folder() as folder,
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not folder.exists()
    with pytest.raises(OSError, match="denied"), scratch_folder():
        raise OSError(errno.EACCES, "Permission denied")
