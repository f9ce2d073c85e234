"""Where documents end, or pass by with an effect."""

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.destinations.sql import Sql

__all__ = ["Delivery", "Destination", "DestinationContext", "Effect", "Guarantee", "Outcome", "Sql"]
