"""When something is due. A clock that was ahead once puts nothing off for years: what seems to be due later than the
plan's longest back-off from now was not given by this clock, and is due now."""

from __future__ import annotations

import time

from ferryman.storage.handles import DataFile


def wait_s(due_us: int, now_us: int, longest_s: float) -> float:
    """Seconds until ``due_us``; both in µs since 1970.

    Args:
        longest_s: the longest back-off, see ``Plan.longest_backoff_s``.
    """
    return (due_us - now_us) / 1e6 if now_us < due_us <= latest_us(now_us, longest_s) else 0.0


def wait_of_file_s(file: DataFile, now_us: int, longest_s: float) -> float:
    """Seconds until the first pending row of an outbox file is due."""
    dues = [int(file.stats.get(kind, {}).get("due", 0)) for kind in ("minValues", "maxValues")]
    return min(wait_s(due, now_us, longest_s) for due in dues)


def is_due_sql(column: str, now_us: int, longest_s: float) -> str:
    """Is it due, in SQL; NULL where the column is."""
    return f"({column} <= {now_us} OR {column} > {latest_us(now_us, longest_s)})"


def latest_us(now_us: int, longest_s: float) -> int:
    """Nothing is due later than this, µs since 1970."""
    return now_us + int(longest_s * 1e6)


def now_us() -> int:
    """Wall clock, µs since 1970."""
    return time.time_ns() // 1000
