"""A destination in OpenSearch, or in Elasticsearch by the same protocol."""

from ferryman.destinations.opensearch.destination import OpenSearch

__all__ = ["OpenSearch"]
