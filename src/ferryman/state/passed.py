"""What a log's destinations have not had: entries that were read before a plan led them there.

Such entries have no delivery at a destination, and are not missing there. It is noted when a plan has changed, beside
its structure, and holds for the structure that it was noted for: a change that a kill has cut short did not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from ferryman.plan.structure import Structure, reached
from ferryman.state.layout import PASSED
from ferryman.storage import files, seals
from ferryman.storage.files import StatePath


class NotHad(msgspec.Struct, frozen=True, array_like=True):
    """What a destination has not had of a log.

    Attributes:
        missed: entries that were read while nothing led them there.
        left: entries that had been read when the way there was taken out; None: it is there.
    """

    missed: int
    left: int | None = None


AllNotHad = dict[str, dict[str, NotHad]]
"""Log -> destination -> what it has not had; all others have had everything."""


class _Noted(msgspec.Struct, frozen=True):
    """The file: what held ``before`` a change, and what holds since the plan has the structure of this ``digest``."""

    digest: str
    before: AllNotHad
    after: AllNotHad


_NOTHING: Final = NotHad(0)

READ: Final = "ferryman.read."
"""Begins the application id of how many entries were read of a log."""


def passed_over(root: StatePath, plan: Structure) -> AllNotHad:
    """What holds under this structure, the one that the plan had when it ran last.

    Args:
        root: of the state.

    Raises:
        StateDamaged: the file is not what was written.
    """
    path = root / PASSED
    if not files.exists(path):
        return {}
    noted = msgspec.convert(seals.unseal(path), _Noted)
    return noted.after if noted.digest == _digest(plan) else noted.before


def note_passed_over(root: StatePath, before: Structure, after: Structure, transactions: Mapping[str, int]) -> None:
    """A plan has changed: note what its destinations have not had.

    Args:
        transactions: of the outbox, all of them: they say how much was read of each log, also of one that the plan does
            not have any more.
    """
    known = passed_over(root, before)
    read = {key.removeprefix(READ): number for key, number in transactions.items() if key.startswith(READ)}
    found = {
        log: _passed_over_of(log, known.get(log, {}), before, after, number) for log, number in read.items() if number
    }
    found = {log: mine for log, mine in found.items() if mine}
    if found or files.exists(root / PASSED):
        files.replace(root / PASSED, seals.sealed(_Noted(_digest(after), known, found)))


def _passed_over_of(
    log: str, known: Mapping[str, NotHad], before: Structure, after: Structure, read: int
) -> dict[str, NotHad]:
    had, has = reached(before, log), reached(after, log)
    found = dict(known)
    for name in has - had:
        its = known.get(name, NotHad(0, 0))
        found[name] = NotHad(its.missed + read - (its.left or 0))
    for name in had - has:
        found[name] = NotHad(known.get(name, _NOTHING).missed, read)
    return {name: its for name, its in found.items() if its != _NOTHING}


def _digest(plan: Structure) -> str:
    edges = {name: [node.kind, *node.after] for name, node in sorted(plan.items())}
    return blake2b(msgspec.json.encode(edges), digest_size=8).hexdigest()
