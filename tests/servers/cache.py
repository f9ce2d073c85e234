"""What servers are made of: downloaded once a machine, kept outside the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
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
