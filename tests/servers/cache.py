"""What servers are made of: downloaded once a machine, kept outside the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path


class Missing(Exception):
    """This server cannot be had on this machine; says why, and what to install."""


def cache_folder() -> Path:
    """Where downloads are kept: ``ferryman/servers`` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ferryman" / "servers"


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache, made by ``fill(empty folder)`` if it is not there.

    Other processes that want it wait. It is there whole or not at all: a ``fill`` that fails or is killed leaves
    nothing that is taken for it. A new recipe needs a new name.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = cache / name
        if not wanted.exists():
            made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
            made.chmod(0o755)  # a server that refuses root runs as another user, and has to come in here
            try:
                fill(made)
                made.rename(wanted)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return wanted


def installed_by_apt(package: str, program: str) -> None:
    """Install a package of Debian's, without starting its services, if its program is missing and that is allowed."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path(program).exists() or os.geteuid() != 0 or not shutil.which("apt-get"):
            return
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(["apt-get", "update"], check=False, **quiet)  # an old list may still do
        subprocess.run(install, check=False, env=environment, **quiet)
