"""Git repositories, and a real server for them: git's own ``http-backend`` behind HTTP."""

from __future__ import annotations

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.local_server import LocalServer

_WHO = {
    "GIT_AUTHOR_NAME": "Ann Miller",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann Miller",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "GIT_AUTHOR_DATE": "2024-05-01T10:00:00Z",
    "GIT_COMMITTER_DATE": "2024-05-01T10:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


class GitRepository:
    """A repository with a work tree, made by the command."""

    def __init__(self, path: Path, branch: str = "main") -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", f"--initial-branch={branch}")
        for setting in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            self.git("config", setting, "true")

    def git(self, *arguments: str, input: bytes | None = None, **environment: str) -> str:  # noqa: A002
        environment = {**os.environ, **_WHO, **environment}
        done = subprocess.run(
            ["git", "-C", str(self.path), *arguments], input=input, capture_output=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def put(self, name: str | bytes, text: str | bytes) -> None:
        path = Path(os.fsdecode(os.fsencode(self.path) + b"/" + os.fsencode(name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def commit(self, *options: str, **environment: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change", *options, **environment)
        return self.git("rev-parse", "HEAD")


class GitServer(LocalServer):
    """Serves the repositories below a folder by HTTP.

    Attributes:
        token: password that each request must have; "": none.
        redirect: where each request is redirected to; "": nowhere.
        requests: path and headers of each request.
        held: while it is not set, requests for objects wait.
        waiting: number of requests for objects.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = self.redirect = ""
        self.waiting = 0
        self.held = threading.Event()
        self.held.set()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._start(_Handler, server_of=self)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        return f"http://{self.host}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server_of: GitServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        from base64 import b64encode

        server = self.server_of
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.requests.append((self.path, headers))
        body = self.rfile.read(int(headers.get("content-length", 0)))
        if b"command=fetch" in body:
            server.waiting += 1
            server.held.wait(60)
        if server.redirect:
            self.send_response(302)
            self.send_header("location", server.redirect + self.path)
            self.end_headers()
            return
        if server.token:
            wanted = "Basic " + b64encode(f"git:{server.token}".encode()).decode()
            if headers.get("authorization") != wanted:
                self.send_response(401)
                self.send_header("www-authenticate", 'Basic realm="git"')
                self.end_headers()
                return
        parts = urlsplit(self.path)
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.decode().split(": ", 1) for line in head.split(b"\r\n") if line]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        self.send_response(status)
        for name, value in lines:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET
