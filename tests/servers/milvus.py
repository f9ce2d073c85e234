"""Milvus Lite as a server: Milvus' protocol over an engine of its own."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.servers.cache import Missing
from tests.servers.server import Server


class Milvus(Server):
    """Keeps what it confirmed when it is killed; asks for no login."""

    name = "milvus"
    usual_port = 19530

    @classmethod
    def install(cls) -> Path:
        for needed in ("milvus_lite", "pymilvus"):
            if find_spec(needed) is None:
                raise Missing(f"{needed} is not installed: make setup")
        return Path(sys.prefix)

    def command(self) -> list[str]:
        place = ["--data-dir", str(self.folder / "data"), "--host", "127.0.0.1", "--port", str(self.port)]
        return [sys.executable, "-m", "milvus_lite", "server", *place]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
