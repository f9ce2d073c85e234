"""Is what a plan's sources and destinations are made with installed? Asked before Spark is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferryman.destinations.base import Destination
from ferryman.plan.nodes import DestinationNode, Node, SourceNode
from ferryman.sources.base import Source


def missing_extras(nodes: Sequence[Node]) -> Iterator[str]:
    """A finding for each source and destination that needs what is not installed, with the command that installs it.

    Steps say it themselves when they are made.
    """
    for node in nodes:
        match node:
            case SourceNode(source=Source() as port):
                missing = port.not_installed()
            case DestinationNode(destination=Destination() as port):
                missing = port.not_installed()
            case _:
                continue
        if missing:
            yield f"{node.name}: {missing}."
