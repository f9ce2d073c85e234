"""What is to be done, as frozen data."""

from ferryman.plan.flow import Flow, Joint
from ferryman.plan.keyed_nodes import ExportsNode, KeyedNode, keyed_nodes, source_named, sources_of
from ferryman.plan.nodes import (
    AltsNode,
    CalledNode,
    DestinationNode,
    JoinNode,
    Limits,
    Node,
    Policy,
    RouterNode,
    SourceNode,
    StepNode,
)
from ferryman.plan.notice import NotifyTarget
from ferryman.plan.paths import (
    End,
    conflicting_sources,
    destinations_of_sources,
    ends,
    errors_node,
    logs_read,
    sources_read,
    successors,
    target_of,
)
from ferryman.plan.plan import Handle, Plan
from ferryman.plan.structure import Differences, NodeRecord, changed_sources, changes, structure

__all__ = [
    "AltsNode",
    "CalledNode",
    "DestinationNode",
    "Differences",
    "End",
    "ExportsNode",
    "Flow",
    "Handle",
    "JoinNode",
    "Joint",
    "KeyedNode",
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
    "errors_node",
    "keyed_nodes",
    "logs_read",
    "source_named",
    "sources_of",
    "sources_read",
    "structure",
    "successors",
    "target_of",
]
