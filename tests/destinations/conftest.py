"""Places to work in, and certificates of the tests' own."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests.support.places import place, trial

__all__ = ["place", "tls_server", "trial"]


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
