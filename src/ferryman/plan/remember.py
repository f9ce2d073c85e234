"""Checks of steps that remember: what they are must be something that can be remembered."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Final

from ferryman.plan.nodes import Node, StepNode
from ferryman.remembered import Remember

_REFUSED: Final = {
    "extract_text": "changes the content of documents",
    "fetch_url": "changes the content of documents",
    "split_text": "makes children",
    "unpack": "makes children",
}
"""Ready-made step -> what it does that cannot be remembered."""


def remember_findings(node: StepNode) -> Iterator[str]:
    """Yield the reasons why a step cannot remember."""
    remember = node.remember
    if remember is None:
        return
    if not isinstance(remember, Remember):
        yield f"{node.name}: remember={remember!r}: give a Remember(version, ...)."
        return
    for why in remember.findings():
        yield f"{node.name}: remember: {why}"
    made = node.fn if isinstance(node.fn, type) else type(node.fn)
    if made.__module__.startswith("ferryman.steps.") and (does := _REFUSED.get(made.__name__)):
        yield (
            f"{node.name}: {made.__name__} {does}, and only fields are remembered: leave out remember=, and let the "
            "step after it remember."
        )
    elif inspect.isgeneratorfunction(node.fn):
        yield (
            f"{node.name}: its function is a generator, which makes children, and only fields are remembered: make "
            "children in a step before it."
        )


def shared_name_findings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a finding for each name under which two steps of a plan would share answers although they read or write
    other fields."""
    seen: dict[tuple[str, str], StepNode] = {}
    for node in nodes:
        if not isinstance(node, StepNode) or not isinstance(node.remember, Remember):
            continue
        remember = node.remember
        other = seen.setdefault((remember.name or node.name, remember.version), node)
        assert other.remember is not None
        if (other.remember.reads, other.remember.writes) != (remember.reads, remember.writes):
            yield (
                f"{node.name}: remembers under the name and version of {other.name}, but reads or writes other fields: "
                "give it another name= or version=."
            )
