"""Record of what the driver of a state is doing, and of the nodes that it does not call for now, for ``status``.

The driver writes it into its lock, unsynced. Nothing but questions of users relies on it. Times are seconds since 1970.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from ferryman.storage.files import StatePath
from ferryman.storage.locks import Holder, find_holder


class Trouble(msgspec.Struct, frozen=True):
    """A node that is not called for now.

    Attributes:
        node: its name.
        label: words for it: ``destination index``, ``step fetch (host:80)``.
        is_destination: whether it is called after the commit, so that rows of the outbox wait for it.
        why: its last error.
        since: when it first failed.
        next_try: when it is called again; None: by the next run.
    """

    node: str
    label: str
    is_destination: bool
    why: str
    since: float
    next_try: float | None = None


class Activity(msgspec.Struct, frozen=True):
    """Activity of a run.

    Attributes:
        wave: number of the current wave, or the last one.
        phase: its phase; "": it waits, until ``until``.
        since: when that phase, or the wait, began.
        done, expected: documents of the phase; 0: unknown.
        until: when the wait ends; 0: unknown.
        delivered, pending, failed: deliveries so far: delivered or deleted, pending now, failed or rejected.
        troubles: nodes that are not called for now.
    """

    wave: int = 0
    phase: str = ""
    since: float = 0.0
    done: int = 0
    expected: int = 0
    until: float = 0.0
    delivered: int = 0
    pending: int = 0
    failed: int = 0
    troubles: tuple[Trouble, ...] = ()


def find_activity(lock: StatePath) -> tuple[Holder | None, Activity]:
    """Return who drives a state, or drove it last, and what that driver noted last."""
    holder = find_holder(lock)
    note: Any = {} if holder is None else holder.note
    try:
        return holder, msgspec.convert(note, Activity, strict=False)
    except msgspec.ValidationError:  # written by another version of Ferryman
        return holder, Activity()


def describe_trouble(trouble: Trouble, *, is_active: bool) -> str:
    """Return why rows wait for a node, since when, and when it is called again.

    Args:
        is_active: whether a run is active; if not, the node is called by the next one.
    """
    at = trouble.next_try if is_active else None
    when = "by the next run" if at is None else f"at {format_utc(at)}"
    return f"{trouble.why.removesuffix('.')} (since {format_utc(trouble.since)}; tried again {when})"


def format_utc(seconds: float) -> str:
    """Format a time in seconds since 1970 for reading: ``2025-01-31 12:00:00 UTC``."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
