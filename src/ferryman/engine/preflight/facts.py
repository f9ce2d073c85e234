"""What every machine must see as the driver sees it: folders that are written to, and what sources read.

A folder that is written to is proved by a hidden file with a random text in it, which lies there as long as the run
does. What a source reads is never written to: its names are compared.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import ferryman
from ferryman.errors import EngineError
from ferryman.plan import DestinationNode, Node, Plan, SourceNode
from ferryman.storage import files
from ferryman.storage.files import StatePath

PROOF: Final = ".ferryman-preflight-"
"""How the hidden files are called; then the id of the state, and a random text."""

NAMES: Final = 1_000
"""Names of a folder that are compared, the first ones in their order."""


class Written(NamedTuple):
    """A folder that is written to from every machine, or the URL of one in an object store."""

    path: str
    what: str
    """For messages: ``the state``."""
    proof: str
    """Name of the file that proves it, and what is in it."""


class Read(NamedTuple):
    """A folder, or a file, that a source reads on every machine."""

    path: str
    what: str
    names: tuple[str, ...] | None
    """The driver sees these in it, no more than ``NAMES``, sorted; None: it is a file."""


class DriverView(NamedTuple):
    """What the driver knows. It travels with every task."""

    host: str
    version: str
    """Of Ferryman."""
    written: tuple[Written, ...]
    read: tuple[Read, ...]

    def without_names(self) -> DriverView:
        """What processes need that come later: names change meanwhile, and only whether there is one counts."""
        return self._replace(read=tuple(each._replace(names=each.names and each.names[:1]) for each in self.read))


def names_in(path: str) -> tuple[str, ...] | None:
    """Names in a folder, see ``Read.names``.

    Raises:
        OSError: it is not there, or may not be read.
    """
    try:
        found = os.listdir(path)
    except NotADirectoryError:
        return None
    return tuple(sorted(name for name in found if not name.startswith(PROOF))[:NAMES])


def reads(plans: Iterable[Plan]) -> tuple[Read, ...]:
    """What the sources read on this machine's file system, as it is now. What is not there is for the run to say."""
    found: dict[str, Read] = {}
    for node in _nodes(plans):
        for path in node.source.local_paths() if isinstance(node, SourceNode) else ():
            with contextlib.suppress(OSError):
                found[path] = Read(path, f"source {node.name}", names_in(path))
    return tuple(found.values())


def _nodes(plans: Iterable[Plan]) -> Iterator[Node]:
    for plan in plans:
        yield from plan.nodes


@contextlib.contextmanager
def proved(states: Iterable[tuple[Plan, StatePath, str]]) -> Iterator[DriverView]:
    """The facts of plans with their states' folders and ids. Meanwhile the proofs lie in the folders.

    Raises:
        OSError: a folder cannot be written to.
    """
    states = list(states)
    written: dict[str, Written] = {}
    try:
        for plan, root, state in states:
            for path, what in _folders(plan, root):
                if path not in written and files.is_folder(files.path_of(path)):
                    written[path] = Written(path, what, _prove(files.path_of(path), state))
        plans = [plan for plan, _, _ in states]
        yield DriverView(socket.gethostname(), ferryman.__version__, tuple(written.values()), reads(plans))
    finally:
        for each in written.values():
            with contextlib.suppress(OSError, EngineError):
                files.remove(files.path_of(each.path) / each.proof)


def _folders(plan: Plan, root: StatePath) -> Iterator[tuple[str, str]]:
    yield str(root), "the state"
    for node in _nodes([plan]):
        if isinstance(node, DestinationNode):
            for path in node.destination.local_paths():
                yield path, f"destination {node.name}"


def _prove(folder: StatePath, state: str) -> str:
    """Put a proof there; those of earlier runs of this state, which were killed, go."""
    files.remove_all(folder / old for old in files.names(folder) if old.startswith(f"{PROOF}{state}-"))
    name = f"{PROOF}{state}-{secrets.token_hex(8)}"
    files.publish(folder / name, name.encode())
    return name
