"""Preflight on a standalone cluster, with a worker that sees other folders than the driver, or has another Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.plan.load import load_plan
from tests.servers.spark_cluster import SparkMaster, SparkWorker, executor_options
from tests.support.plan_world import run_plan
from tests.support.tiers import sampled

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def may_mount() -> None:
    """Machines are told apart by what is mounted: only root may, and not in every container."""
    command = ["unshare", "--mount", "sh", "-ec", "mount -t tmpfs none /mnt"]
    if not shutil.which("unshare") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")


PLAN = """
from ferryman import Plan
from ferryman.destinations import JsonLines
from ferryman.sources import Files

plan = Plan("notes", version=1)
plan.source("files", Files("notes")).destination("out", JsonLines("out"))
"""

NOTES = 20


@pytest.fixture(scope="module")
def master() -> Iterator[SparkMaster]:
    with SparkMaster() as started:
        yield started


@pytest.fixture
def delivered(tmp_path: Path) -> Path:
    """A folder in which the plan has delivered some notes."""
    (tmp_path / "notes").mkdir()
    for n in range(NOTES):
        (tmp_path / "notes" / f"{n}.txt").write_text(str(n))
    (tmp_path / "plan.py").write_text(PLAN)
    assert run_plan(load_plan(str(tmp_path / "plan.py")), tmp_path / ".ferryman").delivered == NOTES
    return tmp_path


def ferryman(master: str, place: Path, *options: str) -> tuple[int, str]:
    """Run the plan there: (exit code, what it said)."""
    command = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--master", master, *options]
    conf = ["--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2"]
    conf += ["--conf", f"spark.executor.extraJavaOptions={executor_options()}"]
    done = subprocess.run([*command, *conf], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow  # test_preflight has the answers of such workers
@pytest.mark.usefixtures("may_mount")
@pytest.mark.parametrize(
    ("folder", "what", "why"),
    [
        ("notes", "source files", "it is empty: is the share mounted?"),
        ("out", "destination out", "it is another folder: is the share mounted?"),
        (".ferryman", "the state", "there is no such folder"),
    ],
)
def test_a_worker_that_sees_another_folder_is_found_before_anything_is_read(
    master: SparkMaster, delivered: Path, folder: str, what: str, why: str
) -> None:
    """Exit 2, naming the folder and the remedy. No document is deleted, nothing is left."""
    before = sorted(path for path in delivered.rglob("*") if path.is_file())
    with SparkWorker(master, [f"mount -t tmpfs none {delivered / folder}"]):
        code, said = ferryman(master.url, delivered)

    assert code == 2, said
    assert f"({what}) is there on " in said
    assert why in said
    assert "Traceback" not in said
    left = {path for path in delivered.rglob("*") if path.is_file()} - set(before)
    assert not [path for path in left if folder in path.parts and ".ferryman" not in path.parts]
    assert not [path for path in left if path.name.startswith(".ferryman-preflight")]


@pytest.mark.parametrize("workers", sampled(["local-cluster[2,1,1024]", "a standalone cluster's"], 2))
def test_workers_that_see_the_same_run_the_plan(delivered: Path, workers: str, request: pytest.FixtureRequest) -> None:
    """A new document is delivered, a removed one deleted."""
    (delivered / "notes" / "0.txt").unlink()
    (delivered / "notes" / "new.txt").write_text("new")
    if workers.startswith("local-cluster"):  # executors are processes of their own
        code, said = ferryman(workers, delivered)
    else:
        master: SparkMaster = request.getfixturevalue("master")
        with SparkWorker(master), SparkWorker(master):
            code, said = ferryman(master.url, delivered)

    assert (code, "1 delivered, 1 deleted" in said) == (0, True), said


@pytest.mark.slow
def test_a_worker_without_ferryman_says_so(master: SparkMaster, delivered: Path, tmp_path: Path) -> None:
    """And what to do."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with SparkWorker(master):
        command = [sys.executable, "-m", "ferryman.cli", "run", str(delivered / "plan.py"), "--master", master.url]
        environment = {**os.environ, "PYSPARK_PYTHON": str(bare / "bin" / "python")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 1, done.stderr
    assert "PYSPARK_PYTHON" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_master_that_is_away_says_so(delivered: Path) -> None:
    """The cause, not the call that met it."""
    code, said = ferryman("spark://127.0.0.1:1", delivered)

    assert code == 2, said
    assert "Spark did not start with --master spark://127.0.0.1:1" in said
    assert "calling None" not in said
