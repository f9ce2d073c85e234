"""What is to be done, as frozen data."""

from ferryman.plan.graph import Path, paths, rivals
from ferryman.plan.nodes import DestinationNode, Node, Policy, SourceNode, StepNode
from ferryman.plan.plan import Handle, Plan

__all__ = ["DestinationNode", "Handle", "Node", "Path", "Plan", "Policy", "SourceNode", "StepNode", "paths", "rivals"]
