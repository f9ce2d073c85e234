"""A queue as one JSON value, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferryman.errors import UsageError
from ferryman.intake.locks import KINDS
from ferryman.intake.nodes import ACCESS, BATCH_UUIDS, BATCHES, JOBS, LOCKS, SIZES, skeleton
from ferryman.intake.store import Create, Delete, Op
from ferryman.intake.tree import NodeTree

FORMAT: Final = 1
"""Of a dump. A newer one is refused."""

TOPS: Final = (BATCH_UUIDS, BATCHES, JOBS, ACCESS, LOCKS)
NUMBERED: Final = (BATCHES, JOBS, *(f"{ACCESS}/{size}" for size in SIZES))
"""Folders whose children have numbers that are given once."""

COMMIT_NODES: Final = 500
COMMIT_BYTES: Final = 256 << 10
"""What one commit of a restore carries: far below the 1 MiB that ZooKeeper's servers refuse."""

PAUSE: Final = f"{KINDS['ingest'].folder}/{KINDS['ingest'].node}"


def dumped(tree: NodeTree) -> dict[str, Any]:
    """All nodes that stay, by path: their data as text, or ``{"base64": …}`` where it is not text."""
    nodes = {path: node for top in TOPS for path, node in tree.store.walk(top) if not node.owner}
    return {
        "format": FORMAT,
        "dumped": tree.now(),
        "numbers": {path: nodes[path].numbered for path in NUMBERED if path in nodes},
        "nodes": {path: _value(node.data) for path, node in nodes.items()},
    }


def restored(tree: NodeTree, data: Mapping[str, Any]) -> None:
    """Make the nodes of a dump. Killed in the middle, it leaves the queue paused, and can be done again.

    Raises:
        UsageError: this is not a dump, or the queue holds something else; nothing was changed.
    """
    nodes, numbers = _checked(data)
    _refuse_other(tree, nodes)
    pausing = PAUSE not in nodes
    if pausing and tree.find(PAUSE) is None:
        tree.commit([Create(PAUSE)])
    for ops in _commits(tree, nodes):
        tree.commit(ops)
    for path, number in numbers.items():
        tree.store.advance(path, number)
    if pausing:
        tree.commit([Delete(PAUSE)])


def _commits(tree: NodeTree, nodes: Mapping[str, bytes]) -> Iterator[list[Op]]:
    """What makes the nodes that are not there yet, parents first, in commits that a server takes."""
    paths = sorted(nodes, key=lambda path: path.split("/"))
    there = {path for top in TOPS for path, _ in tree.store.walk(top)}
    ops: list[Op] = []
    size = 0
    for path in paths:
        if path in there:
            continue
        if ops and (len(ops) >= COMMIT_NODES or size + len(nodes[path]) > COMMIT_BYTES):
            yield ops
            ops, size = [], 0
        ops.append(Create(path, nodes[path]))
        size += len(nodes[path])
    if ops:
        yield ops


def _refuse_other(tree: NodeTree, nodes: Mapping[str, bytes]) -> None:
    """A queue that holds anything but what a restore of this dump made."""
    expected = {*skeleton(), PAUSE}
    for top in TOPS:
        for path, node in tree.store.walk(top):
            if path not in expected and nodes.get(path) != node.data:
                raise UsageError(
                    f"{tree.store.url}: the queue is not empty: {path} is there. Nothing was changed. Restore into a "
                    "new one: another file, or another chroot."
                )


def _checked(data: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, int]]:
    """The nodes and numbers of a dump.

    Raises:
        UsageError: it is not one.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UsageError("this is not a queue dump that this Ferryman reads: `ferryman intake dump` makes one.")
    listed, numbers = data.get("nodes"), data.get("numbers")
    if not isinstance(listed, Mapping) or not isinstance(numbers, Mapping):
        raise UsageError("this dump is damaged: it has no nodes, or no numbers. Use another.")
    nodes = {str(path): _data(str(path), value) for path, value in listed.items()}
    for path in nodes:
        if not path.startswith(tuple(f"{top}/" for top in TOPS)) and path not in TOPS:
            raise UsageError(f"this dump is damaged: {path} is not a queue node. Use another.")
    if not all(path in NUMBERED and isinstance(number, int) for path, number in numbers.items()):
        raise UsageError("this dump is damaged: its numbers are not integers. Use another.")
    return nodes, {str(path): int(number) for path, number in numbers.items()}


def _value(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _data(path: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    elif isinstance(value, Mapping) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise UsageError(f"this dump is damaged: the data of {path} is neither text nor base64. Use another.")
