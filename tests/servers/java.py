"""Java, and what Maven Central has for it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, cache_folder

PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

DOWNLOAD_S: Final = 280
"""A download that takes longer is given up: pytest stops a test, and the fixtures it waits for, after 300 s."""


def java(least: int = 17, most: int = 23) -> str:
    """The command of a Java whose version is in this range."""
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    try:
        asked = subprocess.run(
            [command, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as e:
        raise Missing(f"Java does not start ({e}): install Java {least}") from None
    found = re.search(r'version "(\d+)', asked.stderr)
    if not found or not least <= int(found[1]) <= most:
        is_ = asked.stderr.partition("\n")[0] or "silent"
        raise Missing(f"Java {least} to {most} is needed, {command} is {is_}: install one and set JAVA_HOME")
    return command


def maven() -> str:
    """The command ``mvn``; installed by apt-get where it is missing and that is allowed, as `make setup` does."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "maven.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which("mvn") and os.geteuid() == 0 and shutil.which("apt-get"):
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            install = ["apt-get", "install", "--yes", "--no-install-recommends", "maven"]
            subprocess.run(["apt-get", "update"], check=False, **quiet)  # an old list may still do
            subprocess.run(install, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, **quiet)
    found = shutil.which("mvn")
    if not found:
        raise Missing("Maven's command mvn is missing: install it (Debian, Ubuntu: apt-get install maven)")
    return found


def run_maven(*arguments: str, folder: Path) -> None:
    """``mvn -B -q arguments`` in a folder; ``Missing`` with Maven's words where it fails."""
    call = [maven(), "-B", "-q", *arguments]
    try:
        done = subprocess.run(
            call, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(call)} was not done after {DOWNLOAD_S} s") from None
    if done.returncode:
        raise Missing(f"{' '.join(call)} failed: {(done.stdout + done.stderr).strip()[-500:]}")


def fetch_jars(folder: Path, pom: str) -> None:
    """Put a project's jars, with all that they need, into ``folder/lib``."""
    (folder / "pom.xml").write_text(pom)
    options = ("-DincludeScope=runtime", f"-DoutputDirectory={folder}/lib")
    run_maven(f"{PLUGIN}:copy-dependencies", *options, folder=folder)


def copy_artifact(coordinates: str, folder: Path) -> None:
    """Put one artifact (``group:name:version:zip``) into a folder."""
    run_maven(f"{PLUGIN}:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}", folder=folder)


def unzip_artifact(coordinates: str, folder: Path) -> None:
    """Unpack one artifact into a folder; of a zip with one folder in it, what is in there."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        copy_artifact(coordinates, Path(scratch))
        (archive,) = Path(scratch).iterdir()
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    inner = list(folder.iterdir())
    if len(inner) == 1 and inner[0].is_dir():
        for path in inner[0].iterdir():
            path.rename(folder / path.name)
        inner[0].rmdir()
