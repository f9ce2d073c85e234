"""Programs from Debian's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess

from tests.servers.cache import Missing, cache_folder


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
