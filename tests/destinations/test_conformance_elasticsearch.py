"""Elasticsearch 7 and 8 keep every promise of the port too, by the same class."""

from __future__ import annotations

import pytest

from tests.destinations.test_conformance_opensearch import Suite


@pytest.mark.slow
class TestElasticsearch7(Suite):
    name = "elasticsearch7"


@pytest.mark.slow
class TestElasticsearch8(Suite):
    name = "elasticsearch8"
