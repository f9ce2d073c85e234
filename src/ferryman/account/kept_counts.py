"""What ``status`` says of a large state, kept in a file beside its tables: counting ten million takes a minute.

The file says of which wave it is. A kill, or a wave after it, leaves it behind: then everything is counted again. Only
questions depend on it, and ``fsck`` counts again and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ferryman import crash
from ferryman.state.layout import COUNTED
from ferryman.state.state import State
from ferryman.storage import files, seals

_FORMAT: Final = 1

WAVES: Final = 20
"""Of so many last waves it is kept what they did."""


class Counted(msgspec.Struct):
    """What everything has come to.

    Attributes:
        of: wave and number of events; see ``moment``.
        reached: source -> destinations, by which it was counted.
        status: see ``account.status``.
        waves: see ``account.waves``.
    """

    of: tuple[int, int, int]
    reached: dict[str, list[str]]
    status: dict[str, Any]
    waves: list[dict[str, Any]]


def moment(state: State) -> tuple[int, int, int]:
    """Tells the contents of a loaded state's tables from all earlier ones: (format of the file, wave, events)."""
    return _FORMAT, state.wave, sum(f.rows for f in state.ledger.files.values())


def kept(state: State, reached: Mapping[str, Any] | None = None) -> Counted | None:
    """What was kept, if it is of this very moment of a loaded state; None: it must be counted.

    Args:
        reached: only if it was counted by this; None: by whatever.

    Raises:
        StateDamaged: the file is not what was written.
    """
    path = state.root / COUNTED
    if not files.exists(path) or state.settled < state.wave:
        return None
    try:
        found = msgspec.convert(seals.unseal(path), Counted)
    except msgspec.ValidationError:  # of another version of Ferryman
        return None
    if found.of != moment(state) or (reached is not None and found.reached != _comparable(reached)):
        return None
    return found


def keep(state: State, reached: Mapping[str, Any], status: dict[str, Any], waves: list[dict[str, Any]]) -> None:
    """Keep what was counted, durably."""
    found = Counted(moment(state), _comparable(reached), status, waves)
    files.replace(state.root / COUNTED, seals.sealed(found))
    crash.point("counted.kept")


def _comparable(reached: Mapping[str, Any]) -> dict[str, list[str]]:
    """Source -> destinations, as it is kept."""
    return {source: sorted(names) for source, names in reached.items()}
