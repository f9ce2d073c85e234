"""What is to be done, as frozen data."""

from ferryman.plan.graph import End, destinations_of_sources, ends, rivals, successors, target_of
from ferryman.plan.nodes import DestinationNode, Node, Policy, RouterNode, SourceNode, StepNode
from ferryman.plan.notice import NotifyTarget
from ferryman.plan.plan import Handle, Plan
from ferryman.plan.structure import Changes, NodeRecord, changed_sources, changes, structure

__all__ = [
    "Changes",
    "DestinationNode",
    "End",
    "Handle",
    "Node",
    "NodeRecord",
    "NotifyTarget",
    "Plan",
    "Policy",
    "RouterNode",
    "SourceNode",
    "StepNode",
    "changed_sources",
    "changes",
    "destinations_of_sources",
    "ends",
    "rivals",
    "structure",
    "successors",
    "target_of",
]
