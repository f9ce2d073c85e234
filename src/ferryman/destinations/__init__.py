"""Where documents end, or pass by with an effect."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome, Stored
from ferryman.destinations.memory import Memory, Null

if TYPE_CHECKING:
    from ferryman.destinations.cassandra import Cassandra
    from ferryman.destinations.files import Directory, JsonLines
    from ferryman.destinations.kafka import Kafka
    from ferryman.destinations.lancedb import LanceDB
    from ferryman.destinations.milvus import Milvus
    from ferryman.destinations.opensearch import Elasticsearch, OpenSearch
    from ferryman.destinations.qdrant import Qdrant
    from ferryman.destinations.queue import Queue
    from ferryman.destinations.redis import Redis
    from ferryman.destinations.solr import Solr
    from ferryman.destinations.sql import Sql
    from ferryman.destinations.vectors import VectorField
    from ferryman.destinations.webhook import Webhook
    from ferryman.intake.destination import JobIdentifiers

__all__ = [
    "Cassandra",
    "Delivery",
    "Destination",
    "DestinationContext",
    "Directory",
    "Effect",
    "Elasticsearch",
    "Guarantee",
    "JobIdentifiers",
    "JsonLines",
    "Kafka",
    "LanceDB",
    "Memory",
    "Milvus",
    "Null",
    "OpenSearch",
    "Outcome",
    "Qdrant",
    "Queue",
    "Redis",
    "Solr",
    "Sql",
    "Stored",
    "VectorField",
    "Webhook",
]

_HEAVY: Final = {
    "Cassandra": "destinations.cassandra",
    "Directory": "destinations.files",
    "Elasticsearch": "destinations.opensearch",
    "JobIdentifiers": "intake.destination",
    "JsonLines": "destinations.files",
    "Kafka": "destinations.kafka",
    "LanceDB": "destinations.lancedb",
    "Milvus": "destinations.milvus",
    "OpenSearch": "destinations.opensearch",
    "Qdrant": "destinations.qdrant",
    "Queue": "destinations.queue",
    "Redis": "destinations.redis",
    "Solr": "destinations.solr",
    "Sql": "destinations.sql",
    "VectorField": "destinations.vectors",
    "Webhook": "destinations.webhook",
}
"""Names loaded on demand, and their modules: SQLAlchemy, pyarrow and urllib3 take longer to load than all of
Ferryman."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(f"ferryman.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
