"""Where documents end, or pass by with an effect."""

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.destinations.jsonlines import JsonLines
from ferryman.destinations.memory import Memory
from ferryman.destinations.null import Null
from ferryman.destinations.sql import Sql

__all__ = [
    "Delivery",
    "Destination",
    "DestinationContext",
    "Effect",
    "Guarantee",
    "JsonLines",
    "Memory",
    "Null",
    "Outcome",
    "Sql",
]
