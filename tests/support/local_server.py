"""A server of HTTP on this machine, as a base of those whose answers a test chooses."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LocalServer:
    """Serves requests in threads, from ``_start`` to the end of its block."""

    def _start(
        self,
        handler: type[BaseHTTPRequestHandler],
        *,
        port: int = 0,
        context: ssl.SSLContext | None = None,
        **attributes: Any,
    ) -> None:
        """Begin to serve.

        Args:
            handler: of one request; it gets these attributes, such as the server's state.
            port: 0: any free one.
            context: speaks TLS by it; None: plain HTTP.
        """
        self._http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (handler,), attributes))
        self._http.daemon_threads = True
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()

    @property
    def port(self) -> int:
        return self._http.server_port

    def stop(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
