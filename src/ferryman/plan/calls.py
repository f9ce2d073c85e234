"""How a step is called: with one document or several, one call after the other or many at once, and how often."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ferryman import durations, limits
from ferryman.plan.nodes import Node, StepNode


def bad_calls(node: StepNode) -> Iterator[str]:
    """Why it cannot be called so."""
    if node.batch is not None and not _is_whole(node.batch):
        yield f"{node.name}: batch={node.batch!r}: give a whole number of documents, 1 or more, or leave it out."
    most = limits.CONCURRENCY_MOST
    if not _is_whole(node.concurrency) or node.concurrency > most:
        yield f"{node.name}: concurrency={node.concurrency!r}: give a whole number from 1 to {most}."
    if node.rate is not None:
        try:
            durations.per_second(node.rate)
        except ValueError as e:
            yield f"{node.name}: rate={e}."
    if _is_made_by(node.fn, inspect.isasyncgenfunction):
        yield f"{node.name}: its function is an async generator: return a list of documents."
    elif node.concurrency != 1 and not node.in_batches and _is_made_by(node.fn, inspect.isgeneratorfunction):
        yield (
            f"{node.name}: its function is a generator, of which the code runs as its documents are taken, one call "
            f"after the other: return a list of documents, or leave out concurrency={node.concurrency!r}."
        )


def called_twice(nodes: Iterable[Node], strategy: object) -> Iterator[str]:
    """Steps that a plan of this strategy cannot have: what was under way when a call failed would be called again."""
    for node in nodes:
        if isinstance(node, StepNode) and node.side_by_side:
            yield (
                f"{node.name}: strategy={strategy!r} calls a step for one entry after the other, so that an error or a "
                "kill costs no more than that entry: leave out batch=, arrow= and concurrency=."
            )


def is_async(fn: Callable[..., Any]) -> bool:
    """Is it an ``async def``, or an object that is called like one?"""
    return _is_made_by(fn, inspect.iscoroutinefunction)


def _is_made_by(fn: Any, kind: Callable[[Any], bool]) -> bool:
    fn = getattr(fn, "func", fn)  # functools.partial
    return kind(fn) or kind(vars(type(fn)).get("__call__"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
