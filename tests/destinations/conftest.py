"""Places to work in, certificates of the tests' own, and what stands before servers."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests.servers.server import Server
from tests.support.gate import Gate
from tests.support.plan_world import place, spark, trial

__all__ = ["gate", "place", "spark", "tls_server", "trial"]


class TlsServer(NamedTuple):
    """What a server of 127.0.0.1 needs to speak TLS, and what its clients need to trust it (a PEM file)."""

    context: ssl.SSLContext
    ca: Path


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> TlsServer:
    """With an authority that no machine trusts by itself."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return TlsServer(context, path)


@pytest.fixture
def gate(server: Callable[[str], Server], tls_server: TlsServer) -> Iterator[Gate]:
    """TLS and passwords before the OpenSearch server."""
    with Gate(tls_server.context, tls_server.ca, "127.0.0.1", server("opensearch").port) as made:
        yield made
