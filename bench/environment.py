"""The environment of what only benchmarks need: the programs that they run beside Ferryman, a profiler, a plotter.

Made when it is first needed, of the pins in ``requirements/bench.txt``, in the user's cache folder; apart from
``.venv``, so that nothing of it is among the packages that Ferryman and its tests see.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from bench.harness import ROOT, say

PINS: Final = ROOT / "requirements" / "bench.txt"
PLACE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferryman" / "bench"


@cache
def python() -> Path:
    """Its interpreter, of the same version as this one."""
    digest = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = PLACE / digest
    command, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        say(f"    making {folder}: some 150 MB …")
        for old in PLACE.glob("*"):
            shutil.rmtree(old)
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        _run(uv, "venv", "--quiet", "--python", sys.executable, folder)
        _run(uv, "pip", "install", "--quiet", "--python", command, "--compile-bytecode", "--require-hashes",
             "--requirements", PINS)  # fmt: skip
        done.touch()
    return command


def packages() -> Path:
    """Where they are installed."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python().parents[1] / "lib" / version / "site-packages"


def _run(*command: str | Path) -> None:
    # uv reads neither pip's settings nor, by itself, an answer slower than 30 s: as scripts/setup.
    environment = {"UV_HTTP_TIMEOUT": "180", "UV_PYTHON_DOWNLOADS": "never", **os.environ}
    for pip, uv in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if os.environ.get(pip):
            environment.setdefault(uv, os.environ[pip])
    subprocess.run(command, check=True, env=environment)
