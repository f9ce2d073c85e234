"""A TLS and auth proxy of the tests' own: what stands before a server that has no security of its own."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

from tests.support.front_server import FrontHandler, FrontServer

USER, PASSWORD, API_KEY = "ferryman", "p@ss/wörd:1", "a2V5OnRlc3Rz"


class Gate(FrontServer):
    """``https://localhost:…`` before an HTTP server. Lets in who knows the password or the key; as the servers' own
    security does, it answers 401 to others and 403 to those who may not do this.

    Attributes:
        ca: the PEM file of the authority that has signed its certificate.
        forbidden: paths that contain this are 403.
        seen: the header ``Authorization`` of each request.
    """

    def __init__(self, context: ssl.SSLContext, ca: Path, host: str, port: int) -> None:
        self.ca = ca
        self.forbidden = ""
        self.seen: list[str] = []
        super().__init__(host, port, context)

    def lets_in(self, authorization: str) -> bool:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return authorization in (f"Basic {basic}", f"ApiKey {API_KEY}", f"Bearer {API_KEY}")

    def handle(self, request: FrontHandler, body: bytes) -> bool:
        authorization = request.headers.get("authorization", "")
        self.seen.append(authorization)
        if not self.lets_in(authorization):
            request.say(401, b"Unauthorized", "text/plain")
        elif self.forbidden and self.forbidden in request.path:
            error = {"type": "security_exception", "reason": f"no permissions for {request.command}"}
            request.say(403, json.dumps({"error": error, "status": 403}).encode(), "application/json")
        else:
            return False
        return True
