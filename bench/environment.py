"""The Python environments of packages that only benchmarks need: other programs, a profiler, a plotter.

Created on first use from the pins in ``requirements/bench.txt``, or ``bench-text.txt`` with the readers of text, in the
user's cache folder; separate from ``.venv``, so that Ferryman and its tests do not see their packages.
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

from tests.servers.java import PLUGIN, run_maven

from bench.harness import ROOT, empty_folder, print_progress

PINS: Final = ROOT / "requirements" / "bench.txt"
TEXT_PINS: Final = ROOT / "requirements" / "bench-text.txt"
PEERS_PINS: Final = ROOT / "requirements" / "bench-peers.txt"
"""Programs that load tables, and those that make indexes of vectors."""
_MB: Final = {TEXT_PINS: 900, PEERS_PINS: 1000}
PLACE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferryman"


_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
    {dependencies}
  </dependencies>
</project>
"""


@cache
def python(pins: Path = PINS) -> Path:
    """Return the interpreter with these packages, which has the version of this one."""
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = PLACE / pins.stem / digest
    command, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        print_progress(f"    making {folder}: some {_MB.get(pins, 150)} MB …")
        for old in folder.parent.glob("*"):
            shutil.rmtree(old)
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        _run(uv, "venv", "--quiet", "--python", sys.executable, folder)
        _run(uv, "pip", "install", "--quiet", "--python", command, "--compile-bytecode", "--require-hashes",
             "--requirements", pins)  # fmt: skip
        done.touch()
    return command


def packages(pins: Path = PINS) -> Path:
    """Return the folder of its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python(pins).parents[1] / "lib" / version / "site-packages"


def jars(name: str, dependencies: str) -> list[Path]:
    """Return the jars of dependencies, elements of a pom, and of all that they need, from Maven; kept by the name."""
    place = PLACE / name
    if not (place / "done").exists():
        print_progress(f"    getting {name} from Maven …")
        (empty_folder(place) / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        run_maven(f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars", folder=place)
        (place / "done").touch()
    return sorted((place / "jars").glob("*.jar"))


def artifact(coordinates: str) -> str:
    """Return the dependency on ``group:name:version``."""
    parts = zip(("groupId", "artifactId", "version"), coordinates.split(":"), strict=True)
    return f"<dependency>{''.join(f'<{name}>{value}</{name}>' for name, value in parts)}</dependency>"


def _run(*command: str | Path) -> None:
    # uv reads neither pip's settings nor, by itself, an answer slower than 30 s: as scripts/setup.
    environment = {"UV_HTTP_TIMEOUT": "180", "UV_PYTHON_DOWNLOADS": "never", **os.environ}
    for pip, uv in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if os.environ.get(pip):
            environment.setdefault(uv, os.environ[pip])
    subprocess.run(command, check=True, env=environment)
