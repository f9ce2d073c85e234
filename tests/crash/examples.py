"""The process that is killed in the tests of the worked examples, and of a tree of counts: it runs one in a folder."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec

from ferryman import crash, limits
from ferryman.engine import driver
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.net.relative_paths import relative_to
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support import invariants
from tests.support.plan_world import Watch
from tests.support.tree import tree

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


class Job(msgspec.Struct):
    """A run of an example, or of the ``tree``: killed at ``arm``."""

    root: str
    name: str
    arm: str = ""
    fork: bool = False


def load(name: str, root: Path) -> ModuleType:
    """The example, as if it lay in this folder."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.chdir(root), relative_to(root):
        spec.loader.exec_module(module)
    return module


def work(job: Job) -> None:
    """Do it; a run that is not all well raises."""
    limits.COMPACT_FILES = 4  # type: ignore[misc]
    root = Path(job.root)
    plan = tree(root) if job.name == "tree" else load(job.name, root).plan
    plan.freeze()
    if job.arm:
        crash.arm(job.arm, str(root / "killed"))
    where = state_root(plan, root / "state")
    with State.take(where, plan) as state, driver.explain_errors(state):
        summary = Run(state, InProcess(fork=job.fork), Watch(), RunSettings(wait=30)).run()
    assert summary.exit == 0, summary
    if not job.arm:
        invariants.check(where, plan, summary)
