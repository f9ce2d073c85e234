"""nginx from Debian's packages, with the sites that a test gives it."""

from __future__ import annotations

from pathlib import Path

from tests.servers.debian import debian_program
from tests.servers.server import Server

CONFIGURATION = """\
daemon off;
worker_processes 1;
error_log stderr;
pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location = /ready {{ return 200 "ready"; }} }}
    {site}
}}
"""


class Nginx(Server):
    """nginx; ``/ready`` answers at its own port, and what else it serves is in ``site``."""

    name = "nginx"

    def __init__(self, folder: Path | None = None, site: str = "") -> None:
        super().__init__(folder)
        self.site = site
        self.site_port = self.another_port()

    @classmethod
    def install(cls) -> Path:
        return Path(debian_program("nginx", "nginx-light"))

    def layout(self) -> None:
        text = CONFIGURATION.format(folder=self.folder, port=self.port, site=self.site)
        (self.folder / "nginx.conf").write_text(text)

    def command(self) -> list[str]:
        return [str(self.home), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def ready(self) -> bool:
        return self.answers("/ready")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
