"""WebDAV, as WsgiDAV serves it."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
import uuid
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
    etags = "own"

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
        return [sys.executable, "-m", "tests.servers.webdav", self.etags, "--config", config, "--server", "cheroot"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

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


class WeakWebDav(WebDav):
    """Its etags are weak."""

    name = "weak-webdav"
    usual_port = 0
    etags = "weak"


class RandomWebDav(WebDav):
    """Its etags are other ones in each answer."""

    name = "random-webdav"
    usual_port = 0
    etags = "random"


def main() -> None:
    from wsgidav import util
    from wsgidav.server import server_cli

    etags = sys.argv.pop(1)
    own = util.get_file_etag
    if etags == "weak":
        util.get_file_etag = lambda path: f'W/"{own(path)}"'
    elif etags == "random":
        util.get_file_etag = lambda path: uuid.uuid4().hex
    server_cli.run()


if __name__ == "__main__":
    main()
