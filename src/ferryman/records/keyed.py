"""Columns of the tables of a keyed node, and how its keys are spread."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from ferryman import limits

KEY_STATE: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("wave", pa.int64()),
        pa.field("bucket", pa.int64()),
    ]
)
"""The row of a key with the highest ``wave`` counts. ``value``: JSON; null: the key has no state any more.
``sequence``: of the last document that changed it, it grows with each change. ``bucket``: see ``bucket_of``; files are
sorted by bucket and key."""

CONTRIBUTIONS: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("source", pa.string()),
        pa.field("document", pa.string()),
        pa.field("route", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("fields", pa.binary()),
        pa.field("wave", pa.int64()),
        pa.field("bucket", pa.int64()),
    ]
)
"""What a key was given of documents that may change: of (``key``, ``source``, ``document``) the row with the highest
``wave`` counts, whatever its ``route``. ``fields``: JSON; null: the key has nothing of it any more."""

EXPORTS: Final = pa.schema(
    [
        pa.field("lane", pa.string()),
        pa.field("first_place", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("document", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("version", pa.string()),
    ]
)
"""What a keyed node has exported and the plan has not carried on yet. Place = ``first_place`` + row of the file."""

EXPORTS_PARTITION: Final = ["lane", "first_place"]

EXPORTS_FILE: Final = pa.schema([f for f in EXPORTS if f.name not in EXPORTS_PARTITION])
"""Columns inside a file of exports."""

BUCKETS: Final = 1 << 16
"""Hash values. A node's buckets are ranges of them, so their number may change at any time."""


def bucket_of(key: str) -> int:
    """The hash of a key, below ``BUCKETS``. It never changes."""
    return zlib.crc32(key.encode()) >> 16


def key_hash(key: str) -> int:
    """Tells a key from others where they are only compared: its bucket, then 40 bits of another hash. It never
    changes."""
    return bucket_of(key) << _REST | int.from_bytes(blake2b(key.encode(), digest_size=_REST // 8).digest())


def lane_number(hashed: int) -> int:
    """Of a ``key_hash``: the number of its lane, see ``lane_of``."""
    return (hashed >> _REST) * limits.KEY_LANES // BUCKETS


def export_revision(lane: int, place: Any) -> Any:
    """Of an export at this place, or of several: keys of several lanes may export one id, and the revisions of a lane
    are no other lane's."""
    return place * limits.KEY_LANES + 1 + lane


def place_of(revision: int) -> tuple[str, int]:
    """Lane and place of an export, by its revision."""
    place, lane = divmod(revision - 1, limits.KEY_LANES)
    return f"lane{lane}", place


def export_name(revision: int) -> str:
    """What ``documents`` calls an export: one id may be exported again and again."""
    lane, place = place_of(revision)
    return f"{lane}/{place}"


_REST: Final = 40


PUBLISHED: Final = "ferryman.published"
"""Application id of the tables: number of the last wave whose results one has."""


def file_stats(buckets: tuple[int, int], waves: tuple[int, int]) -> dict[str, Any]:
    """Delta statistics of a file of states, or of contributions: which buckets and waves it may have."""
    (first, last), (least, greatest) = buckets, waves
    return {"minValues": {"bucket": first, "wave": least}, "maxValues": {"bucket": last, "wave": greatest}}


def lane_of(bucket: int) -> str:
    """The lane in which the exports of these keys go on."""
    return f"lane{bucket * limits.KEY_LANES // BUCKETS}"


def lanes() -> list[str]:
    """All of them."""
    return [f"lane{n}" for n in range(limits.KEY_LANES)]


def place_id(lane: str) -> str:
    """Application id of a lane's next place."""
    return f"ferryman.place.{lane}"
