"""The intake of an at-most-once wave: a commit that says which entries it takes, before a step sees any of them.

The plan then stands behind them, whatever happens. The wave's own commit says what has become of each of them; if the
driver is killed before it, the next one makes that commit, of what the tasks have left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ferryman.engine.ranges import EntryRange
from ferryman.state.layout import ONCE, OPEN, remove_scratch
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.files import StatePath

TAKEN: Final = "ferryman.intake"
"""Application id: the last wave that had an intake (on the outbox)."""


class Intake(NamedTuple):
    """Of one wave.

    Attributes:
        ranges: what each of its tasks takes.
        folder: where its tasks begin; see ``run_once``.
    """

    wave: int
    ranges: list[EntryRange]
    folder: StatePath


def commit_intake(state: State, number: int, ranges: Sequence[EntryRange], positions: Mapping[str, int]) -> Intake:
    """Commit what wave ``number`` takes.

    Args:
        positions: transactions that say where the plan stands behind it.
    """
    intake = Intake(number, list(ranges), _folder(state, state.epoch, number))
    files.make_folder(intake.folder)
    files.publish(intake.folder / OPEN, b"")
    info = {"wave": number, "begun_by": state.epoch, "ranges": msgspec.to_builtins(intake.ranges)}
    state.outbox.commit("intake", transactions={TAKEN: number, **positions}, info=info)
    return intake


def end_intake(state: State) -> None:
    """Its wave is committed: what its tasks have left is not needed, and none can begin."""
    if not state.outbox.number(TAKEN):
        return
    remove_scratch(state.staging, ONCE)


def open_intake(state: State) -> Intake | None:
    """The intake whose wave was not committed; None: there is none."""
    number = state.outbox.number(TAKEN)
    if number <= state.wave:
        return None
    info = state.outbox.log.find("intake", number)
    ranges = msgspec.convert(info["ranges"], list[EntryRange])
    return Intake(number, ranges, _folder(state, info["begun_by"], number))


def _folder(state: State, epoch: int, number: int) -> StatePath:
    return state.root / "staging" / str(epoch) / ONCE / str(number)
