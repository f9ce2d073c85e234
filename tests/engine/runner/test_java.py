"""No Java, a wrong JAVA_HOME, an old Java: said before Spark starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.engine.runner.launch import check_java
from ferryman.errors import UsageError

PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("start", version=1)
plan.source("docs", Memory([])).destination("out", Null())
"""


def java(folder: Path, says: str) -> Path:
    """A home whose java says this of itself."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


def test_none_at_all(tmp_path: Path) -> None:
    """With how to install it."""
    with pytest.raises(UsageError, match=r"There is no Java: .*needs Java 17 or newer.*apt install openjdk-17"):
        check_java({"PATH": str(tmp_path)})


def test_a_home_that_is_none(tmp_path: Path) -> None:
    """It wins over the PATH, as for Spark."""
    with pytest.raises(UsageError, match=f"JAVA_HOME is {tmp_path}, and there is no bin/java in it"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(("says", "number"), [('openjdk version "1.8.0_402"', 8), ('openjdk version "11.0.22"', 11)])
def test_an_old_one(tmp_path: Path, says: str, number: int) -> None:
    """By its own word, from JAVA_HOME or from the PATH."""
    home = java(tmp_path / "jdk", says)
    with pytest.raises(UsageError, match=f"JAVA_HOME is {home}, which is Java {number}\\. Spark needs Java 17"):
        check_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    with pytest.raises(UsageError, match=f"bin/java is Java {number}\\. Spark needs"):
        check_java({"PATH": f"{home}/bin:{os.environ['PATH']}"})


@pytest.mark.parametrize("says", ['openjdk version "17.0.13" 2024-10-15', 'java version "25" 2025-09-16', "hello"])
def test_a_new_one(tmp_path: Path, says: str) -> None:
    """Also one that says nothing that we know: Spark may try it."""
    check_java({"JAVA_HOME": str(java(tmp_path / "jdk", says)), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(("says", "fine"), [('JAVA_VERSION="1.8.0_402"', False), ('JAVA_VERSION="17.0.13"', True)])
def test_one_that_says_it_in_a_file_is_not_started(tmp_path: Path, says: str, fine: bool) -> None:
    """Each run would wait for it."""
    home = java(tmp_path / "jdk", "")
    started = tmp_path / "started"
    (home / "bin" / "java").write_text(f"#!/bin/sh\ntouch {started}\n")
    (home / "release").write_text(f'GRAALVM_VERSION="22.3"\n{says}\n')
    with contextlib.nullcontext() if fine else pytest.raises(UsageError, match="which is Java 8"):
        check_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    assert not started.exists()


def test_run_says_it(tmp_path: Path) -> None:
    """In place of a stack trace of the JVM's gateway; exit 2."""
    (tmp_path / "plan.py").write_text(PLAN)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ferryman.cli", "run", str(tmp_path / "plan.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no bin/java in it" in done.stderr
    assert "Traceback" not in done.stderr
