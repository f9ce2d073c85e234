"""Where a document goes on, at a fork of the plan."""

from ferryman.routers.base import Router
from ferryman.routers.by_field import ByField
from ferryman.routers.duplicate import Duplicate
from ferryman.routers.round_robin import RoundRobin

__all__ = ["ByField", "Duplicate", "RoundRobin", "Router"]
