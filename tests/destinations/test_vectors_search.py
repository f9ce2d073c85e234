"""Vectors in OpenSearch with k-NN, and in Elasticsearch: the promises of the port, and what is checked before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.destinations import OpenSearch
from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.testing.vectors import VectorSuite
from tests.servers.server import Server

MAPPINGS = {"properties": {"n": {"type": "double"}}}
"""Without it a field is an integer if its first value is."""


class Suite(VectorSuite):
    name: str

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.url = f"http://127.0.0.1:{server(self.name).port}"

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        index = f"{folder.parent.name}-{folder.name}".lower()
        return OpenSearch(self.url, index, MAPPINGS, refresh=True, vectors=vectors, settings={"number_of_replicas": 0})


class TestOpenSearch(Suite):
    name = "opensearch-knn"


class TestElasticsearch(Suite):
    name = "elasticsearch8"
