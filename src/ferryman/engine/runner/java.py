"""Java for Spark: whether there is one that it can run on. Without one, Spark itself answers with a stack trace."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ferryman.errors import UsageError

OLDEST: Final = 17
"""Oldest Java that Spark 4 runs on."""

_VERSION: Final = re.compile(r'(?:version |\bJAVA_VERSION=)"(?:1\.)?(\d+)')
"""A version in the output of ``java -version``: ``openjdk version "17.0.13"``, once ``"1.8.0_402"``; or in the file
``release`` of a Java: ``JAVA_VERSION="17.0.13"``."""

_PATIENCE_S: Final = 60.0

_INSTALL: Final = (
    f"Spark needs Java {OLDEST} or newer. Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: "
    "dnf install java-17-openjdk-headless; macOS: brew install openjdk@17), or set JAVA_HOME to the folder of one"
)


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Check that there is a Java that Spark can run on.

    Raises:
        UsageError: there is no Java, JAVA_HOME is not the folder of one, or it is too old.
    """
    home = environment.get("JAVA_HOME", "")
    java = java_command(environment)
    if java is None and home:
        raise UsageError(f"JAVA_HOME is {home}, and there is no bin/java in it. {_INSTALL}.")
    if java is None:
        raise UsageError(f"There is no Java: no java on the PATH, and JAVA_HOME is not set. {_INSTALL}.")
    version = _version(java, environment)
    if version is not None and version < OLDEST:
        where = f"JAVA_HOME is {home}, which" if home else f"{java}"
        raise UsageError(f"{where} is Java {version}. {_INSTALL}.")


def java_command(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the Java that Spark starts: that of JAVA_HOME, otherwise the first on the PATH; None: there is none."""
    if home := environment.get("JAVA_HOME", ""):
        java = str(Path(home, "bin", "java"))
        return java if os.access(java, os.X_OK) else None
    return shutil.which("java", path=environment.get("PATH"))


def _version(java: str, environment: Mapping[str, str]) -> int | None:
    """Return 17 of ``17.0.13``; None if the version is unknown, and Spark may try.

    Nearly every Java has it in a file. Starting Java only to ask costs each run a tenth of a second or more.
    """
    with contextlib.suppress(OSError):
        release = Path(java).resolve().parents[1] / "release"
        if match := _VERSION.search(release.read_text("utf-8", errors="replace")):
            return int(match[1])
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", env=dict(environment),
            timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return None if match is None else int(match[1])
