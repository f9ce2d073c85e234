"""``Elasticsearch`` keeps every promise of the port, on releases 7 and 8."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations import Destination, Elasticsearch
from tests.destinations.test_conformance_opensearch import MAPPINGS, Suite


class OnElasticsearch(Suite):
    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Elasticsearch(f"http://{host}:{port}", folder.name, MAPPINGS)


@pytest.mark.slow
class TestElasticsearch7(OnElasticsearch):
    name = "elasticsearch7"


@pytest.mark.slow
class TestElasticsearch8(OnElasticsearch):
    name = "elasticsearch8"
