"""Who reads the changes of a state, and how far: one sealed file for each reader, in ``changes/<node>/`` of the state.

Deletions that a reader has not had are kept when the state's files are merged. Readers are other plans with other
drivers: their files are outside the fence, and only say what has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from ferryman.errors import StateDamaged
from ferryman.storage import files, seals
from ferryman.storage.files import StatePath

FOLDER: Final = "changes"
FORGOTTEN: Final = "ferryman.forgotten"
"""Application id: the last wave of which deletions have been dropped from the state's files."""


def feed_of(root: StatePath, node: str) -> str:
    """By which name a reader knows the changes of a node's state: no other state's has it, but that of a newer version
    which goes on with it.

    Args:
        root: of the state, which is there.

    Raises:
        StateDamaged: its name cannot be read.
    """
    found: Any = seals.unseal(root / "state.json")
    carried: dict[str, str] = found.get("feeds", {})
    return carried.get(node, f"{found.get('id', found['first_sequence'])}/{node}")


def note(root: StatePath, node: str, reader: str, positions: Mapping[str, int], dropped: int | None = None) -> None:
    """This reader has had what lies before these places.

    Args:
        root: of the state.
        dropped: it begins, and this is the last wave of which deletions were dropped before; None: it has said so.
    """
    path = _path(root, node, reader)
    files.make_folder(path.parent)
    before = dropped_before(root, node, reader) if dropped is None else dropped
    files.replace(path, seals.sealed({"reader": reader, "positions": dict(positions), "dropped": before}))


def dropped_before(root: StatePath, node: str, reader: str) -> int:
    """The last wave of which deletions had been dropped when this reader began; 0: none, or nothing is known of it."""
    try:
        found: Any = seals.unseal(_path(root, node, reader))
    except (StateDamaged, OSError):
        return 0
    return int(found.get("dropped", 0))


def is_known(root: StatePath, node: str, reader: str) -> bool:
    """Has this reader said where it stands?"""
    return files.exists(_path(root, node, reader))


def forget(root: StatePath, node: str, reader: str) -> None:
    """Keep nothing for this reader any more."""
    files.remove(_path(root, node, reader))


def needed_from(root: StatePath, node: str) -> int | None:
    """The first wave whose deletions a reader may still need; None: nobody needs any.

    A file that cannot be read keeps all.
    """
    folder = root / FOLDER / node
    paths = [folder / name for name in files.names(folder) if name.endswith(".json")]
    places = [place for path in paths for place in _places(path)]
    return min(places, default=None)


def _places(path: StatePath) -> list[int]:
    try:
        found: Any = seals.unseal(path)
        return [max(1, place) for place in found["positions"].values()]
    except (StateDamaged, OSError):
        return [1] if files.exists(path) else []


def _path(root: StatePath, node: str, reader: str) -> StatePath:
    return root / FOLDER / node / f"{quote(reader, safe='')}.json"
