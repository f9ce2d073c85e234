"""WebDAV, as WsgiDAV serves it."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing
from tests.servers.server import Server

USER: Final = "ann"
PASSWORD: Final = "w3b-of-fil3s"

CONFIG: Final = """\
host: 127.0.0.1
port: {port}
provider_mapping:
  "/": "{files}"
simple_dc:
  user_mapping:
    "*":
      {user}: {{password: {password}}}
lock_storage: true
property_manager: null
logging: {{enable: false}}
"""


class WebDav(Server):
    """Serves ``files`` as its root; asks for a login."""

    name = "webdav"
    usual_port = 8090

    @classmethod
    def install(cls) -> Path:
        for needed in ("wsgidav", "cheroot"):
            if find_spec(needed) is None:
                raise Missing(f"{needed} is not installed: make setup")
        return Path(sys.prefix)

    def layout(self) -> None:
        self.files.mkdir()
        values = {"port": self.port, "files": self.files, "user": USER, "password": PASSWORD}
        (self.folder / "wsgidav.yaml").write_text(CONFIG.format(**values))

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def command(self) -> list[str]:
        config = str(self.folder / "wsgidav.yaml")
        return [sys.executable, "-m", "wsgidav.server.server_cli", "--config", config, "--server", "cheroot"]

    def ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5)
        except urllib.error.HTTPError as e:
            return e.code == 401
        return False

    @property
    def url(self) -> str:
        return f"webdav://127.0.0.1:{self.port}"

    @property
    def login(self) -> dict[str, str]:
        """The environment of a client."""
        return {"WEBDAV_USER": USER, "WEBDAV_PASSWORD": PASSWORD}
