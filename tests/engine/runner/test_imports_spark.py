"""What a program defines, and modules beside it, in Spark's workers: wherever it is started, and however."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.support.tiers import sampled

STEPS = """
import threading

LOCK = threading.Lock()


def shout(doc):
    with LOCK:
        doc["loud"] = doc.text().upper()
    return doc
"""

PROGRAM = """
import functools, pathlib, sys
import ferryman
from ferryman import Plan
from ferryman.destinations import JsonLines
from ferryman.sources import Memory
IMPORT

@functools.cache
def model():
    return {"hello": 1}


def look_up(doc):
    doc["n"] = model().get(doc.text())
    return doc


here = pathlib.Path(sys.argv[1])
plan = Plan("cached")
plan.source("docs", Memory([{"id": "a", "raw": b"hello"}])).step("look-up", look_up).step("shout", shout).destination(
    "out", JsonLines(here / "out")
)

if __name__ == "__main__":
    print(ferryman.run(plan, state=here / "state", master="local[1]").delivered)
"""


@pytest.mark.spark
@pytest.mark.parametrize("way", sampled(["zip", "file", "stdin", "module"], 2))
def test_a_program_brings_its_modules(place: Path, way: str) -> None:
    """It is started from another folder, where a module of the same name lies; its helper has a cache."""
    folder, elsewhere = place / "program", place / "elsewhere"
    package = folder / "app" if way == "module" else folder
    package.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "steps.py").write_text("raise RuntimeError('another module of this name')")
    (package / "steps.py").write_text(STEPS)
    program = PROGRAM.replace("IMPORT", "from app.steps import shout" if way == "module" else "from steps import shout")
    (package / "__main__.py").write_text(program)
    environment, given, command = dict(os.environ), None, [str(folder / "__main__.py")]
    if way == "zip":
        zipapp.create_archive(folder, place / "app.pyz")
        command = [str(place / "app.pyz")]
    elif way == "module":
        environment["PYTHONPATH"] = str(folder)
        command = ["-m", "app"]
    elif way == "stdin":
        given, command, elsewhere = program, ["-"], folder
    done = subprocess.run(
        [sys.executable, *command, str(place)],
        capture_output=True, text=True, check=False, cwd=elsewhere, env=environment, input=given,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    [line] = [line for file in (place / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert '"n":1' in line
    assert '"loud":"HELLO"' in line
