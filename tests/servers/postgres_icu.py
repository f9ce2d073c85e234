"""PostgreSQL as Debian installs it, with ICU: the wheel's has no collations but those of bytes."""

from __future__ import annotations

from pathlib import Path

from tests.servers.cache import Missing
from tests.servers.postgres import DEBIAN, PostgresServer, version_of


class PostgresIcuServer(PostgresServer):
    name = "postgres-icu"

    @classmethod
    def install(cls) -> Path:
        if not (found := sorted(DEBIAN.glob("*/bin/postgres"), key=version_of)):
            raise Missing("install it: apt-get install postgresql")
        return found[-1].parents[1]
