"""The command as people run it: a process of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.support.fakes import Fake


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def ferryman(tmp_path: Path) -> Callable[..., Done]:
    """``ferryman("plan", "check", file)`` in a pipe, 80 columns wide, in ``tmp_path``."""

    def call(*args: object, cwd: Path = tmp_path, **environment: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "ferryman.cli", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, "COLUMNS": "80", **environment},
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """``write("plan.py", text)``: a file in ``tmp_path``, its text dedented."""

    def call(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    return call


@pytest.fixture
def plan_file(write: Callable[[str, str], Path]) -> Path:
    """A small plan that is in order."""
    return write(
        "plan.py",
        """
        from ferryman import Plan
        from ferryman.destinations import Sql
        from ferryman.sources import Files

        def words(doc):
            doc["words"] = len(doc.text().split())
            return doc

        plan = Plan("small", version=2)
        plan.source("files", Files("documents")).step("words", words).destination("index", Sql("sqlite:///index.db"))
        """,
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """``fake("ferryman.account", docs=…)``: this module, with these functions only."""

    def call(name: str, **functions: Any) -> None:
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        package, _, last = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(package), last, module, raising=False)

    return call


@pytest.fixture
def state(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a state that is there, with the plan's folder as the current one."""

    monkeypatch.chdir(plan_file.parent)
    root = plan_file.parent / ".ferryman" / "small-v2"
    root.mkdir(parents=True)
    (root / "state.json").touch()
    return root
