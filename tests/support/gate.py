"""A TLS and auth proxy of the tests' own: what stands before a server that has no security of its own."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

USER, PASSWORD, API_KEY = "ferryman", "p@ss/wörd:1", "a2V5OnRlc3Rz"


class Gate:
    """``https://localhost:…`` before an HTTP server. Lets in who knows the password or the key; as the servers' own
    security does, it answers 401 to others and 403 to those who may not do this.

    Attributes:
        ca: the PEM file of the authority that has signed its certificate.
        forbidden: paths that contain this are 403.
        seen: the header ``Authorization`` of each request.
    """

    def __init__(self, context: ssl.SSLContext, ca: Path, host: str, port: int) -> None:
        self.ca = ca
        self.server = (host, port)
        self.forbidden = ""
        self.seen: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gate": self}))
        self._http.daemon_threads = True
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._http.server_port}"

    def lets_in(self, authorization: str) -> bool:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return authorization in (f"Basic {basic}", f"ApiKey {API_KEY}", f"Bearer {API_KEY}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gate: Gate

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        authorization = self.headers.get("authorization", "")
        self.gate.seen.append(authorization)
        if not self.gate.lets_in(authorization):
            self._say(401, b"Unauthorized", "text/plain")
        elif self.gate.forbidden and self.gate.forbidden in self.path:
            error = {"type": "security_exception", "reason": f"no permissions for {self.command}"}
            self._say(403, json.dumps({"error": error, "status": 403}).encode(), "application/json")
        else:
            server = http.client.HTTPConnection(*self.gate.server, timeout=300)
            headers = {"content-type": self.headers.get("content-type", "application/json")}
            server.request(self.command, self.path, body or None, headers)
            answer = server.getresponse()
            self._say(answer.status, answer.read(), answer.headers.get("content-type", "text/plain"))
            server.close()

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass
