"""``OpenSearch`` and ``Elasticsearch``: destinations in search engines of one protocol.

``destination`` has the classes themselves, ``documents`` how deliveries are written as documents and read back.
"""

from ferryman.destinations.opensearch.destination import Elasticsearch, OpenSearch

__all__ = ["Elasticsearch", "OpenSearch"]
