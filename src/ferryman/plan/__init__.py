"""What is to be done, as frozen data."""

from ferryman.plan.graph import End, conflicting_sources, destinations_of_sources, ends, successors, target_of
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
    "conflicting_sources",
    "destinations_of_sources",
    "ends",
    "structure",
    "successors",
    "target_of",
]
