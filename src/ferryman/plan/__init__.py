"""What is to be done, as frozen data."""

from ferryman.plan.graph import End, destinations_of_sources, ends, rivals, successors, target_of
from ferryman.plan.nodes import DestinationNode, Node, Policy, RouterNode, SourceNode, StepNode
from ferryman.plan.plan import Handle, Plan

__all__ = [
    "DestinationNode",
    "End",
    "Handle",
    "Node",
    "Plan",
    "Policy",
    "RouterNode",
    "SourceNode",
    "StepNode",
    "destinations_of_sources",
    "ends",
    "rivals",
    "successors",
    "target_of",
]
