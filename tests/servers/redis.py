"""Redis as Debian packages it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import redis

from tests.servers.debian import library_path, unpacked
from tests.servers.server import Server

PASSWORD: Final = "not-so-secret"


class RedisServer(Server):
    """A server that confirms a write once it is in its log on the disk."""

    name = "redis"
    usual_port = 6379

    @classmethod
    def install(cls) -> Path:
        return unpacked("redis-server", ["redis-server", "redis-tools"])

    def layout(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        return [
            str(self.home / "usr/bin/redis-server"), "--bind", "127.0.0.1", "--port", str(self.port),
            "--dir", str(self.folder / "data"), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
            "--requirepass", PASSWORD, "--daemonize", "no",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": library_path(self.home)}

    def ready(self) -> bool:
        with redis.Redis(port=self.port, password=PASSWORD) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, *, password: str = PASSWORD, port: int = 0) -> str:
        """Its URL, perhaps through another port (a proxy)."""
        return f"redis://:{password}@127.0.0.1:{port or self.port}/0"
