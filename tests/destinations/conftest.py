"""What tests of destinations share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.servers.server import Server
from tests.support.gate import Gate


@pytest.fixture
def gate(server: Callable[[str], Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """TLS and passwords before the OpenSearch server."""
    with Gate(tmp_path_factory.mktemp("gate"), "127.0.0.1", server("opensearch").port) as made:
        yield made
