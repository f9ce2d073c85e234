"""Whose state is this? What ``state.json`` says."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.errors import StateDamaged, StateForeign, UsageError
from ferryman.plan import Plan
from ferryman.state.layout import MIGRATED
from ferryman.storage import files, seals
from ferryman.storage.files import StatePath

IDENTITY: Final = "state.json"
"""The last file that is made of a state: it says that the rest is there."""


def folder_name(plan: Plan) -> str:
    """``<plan>-v<version>``.

    Raises:
        UsageError: it is not a plan, but the name of its file, or a flow.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"{plan!r} is not a Plan: import it from its file, as in `from papers import plan`.")
    return plan.key


def new_identity(plan: Plan, more: Mapping[str, Any]) -> dict[str, Any]:
    """Of a state that is made now; ``more`` is kept in it too."""
    return {
        "format": limits.FORMAT,
        "plan": plan.name,
        "version": plan.version,
        "id": str(uuid.uuid4()),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "first_sequence": int(time.time()) * limits.SEQUENCE_PER_SECOND,
        **more,
    }


def identity_of(root: StatePath, plan: Plan) -> dict[str, Any]:
    """What the state of a plan says of itself.

    Raises:
        StateDamaged: it cannot be read.
        StateForeign: it is of another plan, or of a format that we do not know.
    """
    path = root / IDENTITY
    try:
        found: Any = seals.unseal(path)
    except OSError as e:
        raise StateDamaged(str(path), f"cannot be read ({e.strerror})") from e
    if found["format"] > limits.FORMAT:
        raise StateForeign(
            f"{path}: format {found['format']}, this Ferryman knows up to {limits.FORMAT}. "
            "Nothing was touched. Use the newer Ferryman that wrote it."
        )
    if found["format"] < limits.FORMAT:
        raise StateForeign(
            f"{path}: format {found['format']}, which an older Ferryman wrote; this one writes {limits.FORMAT}. "
            "Nothing was touched. Finish its runs with the older one, then begin a new state with --state."
        )
    if (found["plan"], found["version"]) != (plan.name, plan.version):
        raise StateForeign(
            f"{root} is the state of plan {found['plan']} version {found['version']}, not of {plan.name} "
            f"version {plan.version}. Nothing was touched. Give another --state, or the right plan."
        )
    return dict(found)


def refuse_if_migrated(root: StatePath, successor: int | None) -> None:
    """
    Raises:
        StateForeign: another version than ``successor`` continues from this state.
    """
    if not files.exists(path := root / MIGRATED):
        return
    if (to := msgspec.convert(seals.unseal(path), dict[str, int])["to"]) != successor:
        raise StateForeign(
            f"{root}: version {to} of this plan continues from this state. Nothing was touched. "
            "Run that version; status, deliveries and history of this one can still be read."
        )


def id_of(root: StatePath) -> str:
    """What no other state has; "" if there is none. An older state has only the time of its making.

    Raises:
        StateDamaged: its name cannot be read.
    """
    path = root / IDENTITY
    if not files.exists(path):
        return ""
    found: Any = seals.unseal(path)
    return str(found.get("id", found["first_sequence"]))


class Sender(NamedTuple):
    """Under which name a state delivers."""

    state: str
    """Its id; of a state that continues from an older version's: that one's."""
    version: int
    """Of the plan, in the state that the id is of."""


def sender_of(root: StatePath) -> Sender:
    """What no other state delivers under, but that of a newer version which continues from it: what was sent and not
    recorded comes again from there, and must be known again.

    Args:
        root: of the state, which is there.

    Raises:
        StateDamaged: its name cannot be read.
    """
    found: Any = seals.unseal(root / IDENTITY)
    taken: dict[str, Any] | None = found.get("sender")
    return Sender(**taken) if taken else Sender(id_of(root), found["version"])


def plan_of(root: StatePath) -> Plan:
    """An empty plan of the name and version that a state says it is of: enough to read it.

    Raises:
        StateDamaged: the state's name cannot be read.
    """
    path = root / IDENTITY
    if not files.exists(path):
        return Plan(root.name)
    found: Any = seals.unseal(path)
    return Plan(found["plan"], found["version"])
