"""When something is due. A clock that was ahead once puts nothing off for years: what seems to be due later than the
longest back-off from now was not given by this clock, and is due now."""

from __future__ import annotations

from typing import Final

from ferryman import settings
from ferryman.storage.tables import DataFile

_LONGEST_US: Final = int(settings.BACKOFF_MAX_S * 1e6)


def wait_s(due_us: int, now_us: int) -> float:
    """Seconds until ``due_us``; both in µs since 1970."""
    return (due_us - now_us) / 1e6 if now_us < due_us <= now_us + _LONGEST_US else 0.0


def wait_of_file_s(file: DataFile, now_us: int) -> float:
    """Seconds until the first pending row of an outbox file is due."""
    dues = [int(file.stats.get(kind, {}).get("due", 0)) for kind in ("minValues", "maxValues")]
    return min(wait_s(due, now_us) for due in dues)


def is_due_sql(column: str, now_us: int) -> str:
    """Is it due, in SQL; NULL where the column is."""
    return f"({column} <= {now_us} OR {column} > {now_us + _LONGEST_US})"


def latest_us(now_us: int) -> int:
    """Nothing is due later than this, µs since 1970."""
    return now_us + _LONGEST_US
