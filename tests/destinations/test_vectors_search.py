"""Vectors in OpenSearch with k-NN, and in Elasticsearch: the promises of the port, and what is checked before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.destinations import OpenSearch
from ferryman.destinations.vectors import Declaration, VectorDestination, VectorField
from ferryman.errors import Misconfigured, UsageError
from ferryman.testing.vectors import DIMENSIONS, VectorSuite, vector_delivery
from tests.destinations.tales import TALES, assert_hybrid
from tests.servers.server import Server

MAPPINGS = {"properties": {"n": {"type": "double"}, "words": {"type": "text"}}}
"""Without it a field is an integer if its first value is."""


class Suite(VectorSuite):
    name: str

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.url = f"http://127.0.0.1:{server(self.name).port}"

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        index = f"{folder.parent.name}-{folder.name}".lower()
        return OpenSearch(self.url, index, MAPPINGS, refresh=True, vectors=vectors, settings={"number_of_replicas": 0})


class Both(Suite):
    def test_words_and_vectors_are_found_together(self, tmp_path: Path) -> None:
        """What has the words and is near stands first, and the filter holds for both."""
        self._write(tmp_path, TALES)
        assert_hybrid(self.destination(tmp_path, {"vector": DIMENSIONS}))

    def test_an_index_that_counts_otherwise_is_named(self, tmp_path: Path) -> None:
        """The server cannot change that: another index is the way on."""
        self._write(tmp_path, TALES)
        other = self.destination(tmp_path, {"vector": VectorField(DIMENSIONS, metric="l2")})
        with pytest.raises(Misconfigured, match=r"counts distances there as 'cosine'.*--from-version"):
            other.check()

    def test_another_model_is_refused(self, tmp_path: Path) -> None:
        """Though it has the same dimensions."""
        self._write(tmp_path, TALES, {"vector": VectorField(DIMENSIONS, model="small")})
        self.destination(tmp_path, {"vector": DIMENSIONS}).check()
        with pytest.raises(Misconfigured, match="of the model small there, the plan says vectors of the model large"):
            self.destination(tmp_path, {"vector": VectorField(DIMENSIONS, model="large")}).check()

    def test_an_index_without_vectors_is_refused(self, tmp_path: Path) -> None:
        """Its documents would be found by no question."""
        self._write_plain(tmp_path)
        with pytest.raises(Misconfigured, match=r"has .*'vector'.*--from-version"):
            self.destination(tmp_path, {"vector": DIMENSIONS}).check()

    def _write_plain(self, folder: Path) -> None:
        destination = self.destination(folder, {})
        destination.check()
        destination.open(self._context(destination))
        assert {o.kind for o in destination.write(TALES)} == {"ok"}
        destination.close()

    def test_words_in_a_filter_are_refused(self, tmp_path: Path) -> None:
        """A field that is cut into words cannot be compared: the mapping to write is named."""
        self._write(tmp_path, TALES)
        destination = self.destination(tmp_path, {"vector": DIMENSIONS})
        with pytest.raises(UsageError, match="Map it as a keyword"):
            destination.nearest("vector", [1, 0, 0, 0], 5, {"words": "whale"})

    def test_many_fitting_documents_are_all_found(self, tmp_path: Path) -> None:
        """Also more than a question looks at by itself."""
        chunk = [vector_delivery(f"doc-{i}", i + 1, [1, i / 100, 0, 0], team="ab"[i % 2]) for i in range(600)]
        self._write(tmp_path, chunk)
        assert len(self._nearest(tmp_path, [1, 0, 0, 0], 250, {"team": "a"})) == 250
        assert len(self._nearest(tmp_path, [1, 0, 0, 0], 1000, {"team": "a"})) == 300


class TestOpenSearch(Both):
    name = "opensearch-knn"


@pytest.mark.slow
class TestElasticsearch(Both):
    name = "elasticsearch8"
