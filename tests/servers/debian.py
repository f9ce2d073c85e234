"""Programs of Debian's packages: unpacked, which needs no rights and starts no service, or installed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, cache_folder, cached

APT_S: Final = 280
"""As for Maven's downloads: pytest stops a test, and the fixtures it waits for, after 300 s."""


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """The folder of the cache with these packages, and with those that they depend on and the machine lacks."""
    return cached(name, lambda folder: _unpack(packages, folder))


def library_path(folder: Path) -> str:
    """``LD_LIBRARY_PATH`` for programs in a folder of ``unpacked``."""
    found = {str(path.parent) for path in folder.glob("usr/lib/**/*.so*")}
    return os.pathsep.join(sorted(found, key=len))


def _unpack(packages: Sequence[str], folder: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Missing(f"it comes from Debian's packages ({', '.join(packages)}), and there is no apt-get here")
    wanted = [*packages, *_missing_dependencies(packages)]
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        done = _run("apt-get", "download", *wanted, cwd=Path(scratch))
        if done.returncode and os.geteuid() == 0:  # the list of packages may be old
            _run("apt-get", "update", cwd=Path(scratch))
            wanted = [*packages, *_missing_dependencies(packages)]
            done = _run("apt-get", "download", *wanted, cwd=Path(scratch))
        if done.returncode:
            raise Missing(f"apt-get download {' '.join(wanted)} failed: {done.stderr.strip()[-300:]}")
        for archive in sorted(Path(scratch).glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, folder], check=True, stdin=subprocess.DEVNULL)


def _missing_dependencies(packages: Sequence[str]) -> list[str]:
    listed = _run("apt-cache", "depends", "--important", *packages, cwd=Path("/")).stdout
    names = set(re.findall(r"^ *\|?(?:Pre)?Depends: ([a-z0-9][a-z0-9+.-]*)$", listed, re.MULTILINE)) - set(packages)
    libraries = {name for name in names if name.startswith("lib")}  # the rest serves an installation
    return sorted(name for name in libraries if not _is_installed(name))


def _is_installed(package: str) -> bool:
    return "ok installed" in _run("dpkg-query", "-W", "-f", "${Status}", package, cwd=Path("/")).stdout


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=APT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command)} was not done after {APT_S} s") from None


def debian_program(command: str, package: str) -> str:
    """The path of a program; installed by apt-get where it is missing and that is allowed, as `make setup` does."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found := _find(command)) and os.geteuid() == 0 and shutil.which("apt-get"):
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
            subprocess.run(["apt-get", "update"], check=False, **quiet)  # an old list may still do
            subprocess.run(install, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, **quiet)
            found = _find(command)
    if not found:
        raise Missing(f"{command} is missing: install it (Debian, Ubuntu: apt-get install {package})")
    return found


def _find(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
