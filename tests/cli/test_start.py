"""What a command does at its start, and a run that has little to do: counts, which must not creep up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import is_alive
from tests.support.waiting import wait_until

PLAN = """
import sys
from pathlib import Path
from ferryman import Plan, Remember, steps
from ferryman.destinations import Sql
from ferryman.sources import Files

class Noting(Files):
    def read(self, listed):
        Path({folder!r}, "..", "loaded").write_text("\\n".join(sys.modules))
        return super().read(listed)

class NotingSql(Sql):
    def close(self):
        Path({folder!r}, "..", "loaded-to-send").write_text("\\n".join(sys.modules))
        super().close()

def embed(doc):
    doc["vector"] = [0.6, 0.8]
    return doc

plan = Plan("start")
chunks = plan.source("files", Noting({folder!r})).step("split", steps.split_text())
embedded = chunks.step("embed", embed, remember=Remember("1"))
embedded.destination("index", NotingSql("sqlite:///index.db", vectors={{"vector": 2}}))
"""

HEAVY = ("pandas", "pyspark", "deltalake", "sqlalchemy", "ferryman.intake")

COUNTING = """
import json, os, subprocess, sys

counts = {"syncs": 0, "commits": 0, "processes": 0}

def counted(name, function):
    def call(*args, **options):
        counts[name] += 1
        return function(*args, **options)
    return call

os.fsync = counted("syncs", os.fsync)
subprocess.Popen.__init__ = counted("processes", subprocess.Popen.__init__)

from ferryman.cli import main
from ferryman.storage.delta import DeltaLog

DeltaLog.commit = counted("commits", DeltaLog.commit)
out = os.dup(1)
os.dup2(2, 1)
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
os.write(out, json.dumps({**counts, "modules": [*sys.modules]}).encode())
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for n in range(3):
        (tmp_path / "docs" / f"{n}.txt").write_text(f"document {n}")
    (tmp_path / "plan.py").write_text(PLAN.format(folder=str(tmp_path / "docs")))
    return tmp_path / "plan.py"


def counts_of(*args: str | Path) -> dict[str, Any]:
    """Run a command in a process of its own, and return what its driver has done."""
    done = subprocess.run([sys.executable, "-c", COUNTING, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, Any] = json.loads(done.stdout)
    modules = counts["modules"]
    return {**counts, "heavy": [name for name in HEAVY if name in modules], "modules": len(modules)}


def test_a_run_counts(plan: Path) -> None:
    """Three new documents, then nothing new: one process beside the driver, from which the helpers are forked.
    SQLAlchemy makes the table; who finds it as it is, and who writes to it, does without."""
    new, unchanged = (counts_of("run", plan, "--state", plan.parent / "state") for _ in range(2))
    assert (new["heavy"], unchanged["heavy"]) == (["sqlalchemy"], [])
    for name in ("loaded", "loaded-to-send"):
        assert not {*HEAVY} & {*(plan.parent / name).read_text().split()}, "in the helper process"
    (plan.parent / "docs" / "0.txt").unlink()
    changed = counts_of("run", plan, "--state", plan.parent / "state")
    assert (changed["heavy"], changed["commits"]) == ([], 7)
    assert (new["processes"], unchanged["processes"]) == (1, 1)
    assert (new["commits"], unchanged["commits"]) == (8, 3), "what is remembered is a table, too"
    assert new["syncs"] <= 88
    assert unchanged["syncs"] <= 15, "two of them once: the last deliveries to the target are recorded"
    assert unchanged["modules"] <= 680
    preview = counts_of("preview", plan, "--state", plan.parent / "elsewhere")
    assert (preview["heavy"], preview["processes"], preview["syncs"]) == ([], 1, 0)
    status = counts_of("status", plan, "--state", plan.parent / "state")
    assert (status["heavy"], status["processes"], status["commits"], status["syncs"]) == ([], 0, 0, 0)
    assert status["modules"] <= 600


OWN_PROCESS = """
import atexit, os, sys
from pathlib import Path
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Files

def note(name):
    seeded = [each for each in os.environ if each.endswith(("HASHSEED", "SEEDED", "NUM_THREADS"))]
    main = sys.modules["__main__"].__spec__.name
    Path(__file__).with_name(name).write_text(f"{hash('text')} {sorted(seeded)} {main}")

note("driver")
left_open = open(Path(__file__).with_name("left-open"), "w")
left_open.write("all of it")
atexit.register(print, "at the end", file=sys.stderr)

def step(doc):
    note("step")
    print("from the step")

plan = Plan("own")
plan.source("files", Files("docs")).step("step", step).destination("null", Null())
"""


def test_the_command_forks_its_helpers(plan: Path) -> None:
    """They have the hashes and the environment of Spark's workers, and another main module; the driver has the
    environment that it was given. What a plan has left open, and to be done at the end, is closed and done."""
    folder = plan.parent
    (folder / "own.py").write_text(OWN_PROCESS)
    names = ("PYTHONHASHSEED", "FERRYMAN_SEEDED", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    hashed = subprocess.check_output([sys.executable, "-c", "print(hash('text'))"], env={"PYTHONHASHSEED": "0"})
    line = [sys.executable, "-m", "ferryman.cli", "run", "own.py"]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert "3 dropped" in done.stdout
    assert "from the step" in done.stderr
    assert done.stderr.endswith("at the end\n")
    seed = int(hashed)
    assert (folder / "driver").read_text() == f"{seed} [] ferryman.cli.__main__"
    own = "['OMP_NUM_THREADS', 'PYTHONHASHSEED'] ferryman.engine.runner.fork_server"
    assert (folder / "step").read_text() == f"{seed} {own}"
    assert (folder / "left-open").read_text() == "all of it"


WAITING = """
import os, time
from pathlib import Path
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Files

def step(doc):
    Path(__file__).with_name("waits").write_text(f"{os.getpid()} {os.getppid()}")
    Path(__file__).with_name("waits").rename(Path(__file__).with_name("pids"))
    time.sleep(1000)

plan = Plan("waiting")
plan.source("files", Files("docs")).step("step", step).destination("null", Null())
"""


def test_helpers_end_with_the_command(plan: Path) -> None:
    """SIGKILL of the driver leaves none of its processes behind."""
    folder = plan.parent
    (folder / "waiting.py").write_text(WAITING)
    line = [sys.executable, "-m", "ferryman.cli", "run", "waiting.py"]
    with subprocess.Popen(line, cwd=folder, stderr=subprocess.DEVNULL) as command:
        wait_until((folder / "pids").exists, "a step is called")
        command.kill()
    for pid in map(int, (folder / "pids").read_text().split()):
        wait_until(lambda pid=pid: not is_alive(pid), "it has ended")


PANDAS = """
import sys
from types import ModuleType
from ferryman.cli.lazy_pandas import defer_pandas

defer_pandas()
import pyarrow as pa
own = ModuleType("ferryman.own")
exec("import pyarrow as pa\\ndef array(values): return pa.array(values)", own.__dict__)
assert own.array([1, None]).null_count == 1
assert "pandas" not in sys.modules
{use}
assert not any(type(each).__module__ == "ferryman.cli.lazy_pandas" for each in sys.meta_path)
import pandas as pd
for array in (pa.array, own.array):
    assert array(pd.Series([1.0, float("nan")])).null_count == 1
assert pa.Table.from_pandas(pd.DataFrame({{"n": [1]}})).num_rows == 1
assert type(pd.__spec__.loader).__name__ == "SourceFileLoader"
"""


@pytest.mark.parametrize(
    "use", ["import pandas", "from pandas.api import types", "__import__('pandas')", "pa.array([1]).to_pandas()"]
)
def test_pandas_is_there_for_others(use: str) -> None:
    """Only Ferryman's own calls of pyarrow do without."""
    subprocess.run([sys.executable, "-c", PANDAS.format(use=use)], check=True)


LISTING = """
import sys
from pathlib import Path
from ferryman import Plan, Remember, steps
from ferryman.destinations import Null
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.scan.listing import list_sources
from ferryman.sources import Files
from ferryman.testing.inprocess import InProcess

plan = Plan("listed")
plan.source("files", Files(sys.argv[1])).destination("null", Null())
[listing] = list_sources(plan, PickledPlan.of(plan), Path(sys.argv[2]), InProcess())
assert [part.rows for part in listing.parts] == [1]
assert "pandas" not in sys.modules
"""


def test_a_listing_does_without_pandas(tmp_path: Path) -> None:
    """Helper processes list in every run; what they load is loaded in each of them."""
    folders = [tmp_path / name for name in ("corpus", "listings")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "a.txt").write_text("text")
    subprocess.run([sys.executable, "-c", LISTING, *map(str, folders)], check=True)
