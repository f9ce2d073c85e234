"""``OpenSearch``: a destination in OpenSearch or Elasticsearch.

``destination`` is the class itself, ``documents`` how deliveries are written as documents and read back.
"""

from ferryman.destinations.opensearch.destination import OpenSearch

__all__ = ["OpenSearch"]
