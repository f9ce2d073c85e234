"""What is to be done, as frozen data."""

from ferryman.plan.graph import End, destinations_of_sources, ends, rivals, successors, target_of
from ferryman.plan.nodes import CalledNode, DestinationNode, Limits, Node, Policy, RouterNode, SourceNode, StepNode
from ferryman.plan.notice import NotifyTarget
from ferryman.plan.plan import Handle, Plan
from ferryman.plan.structure import Changes, NodeRecord, changed_sources, changes, structure

__all__ = [
    "CalledNode",
    "Changes",
    "DestinationNode",
    "End",
    "Handle",
    "Limits",
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
