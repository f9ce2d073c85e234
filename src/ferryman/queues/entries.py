"""Entries of a queue's Delta log: each contains its own checksum, so that it needs no mark beside it.

An entry is written completely and synced under a temporary name, and then linked to the name of its version, which only
one of several writers can do. So an entry that exists is complete, and the link decides between writers.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ferryman.errors import StateDamaged
from ferryman.storage.files import StatePath, read

LAST: Final = "index"
"""Application whose transaction number is the index of the last message ever appended."""

COLUMNS: Final[dict[str, str]] = {
    "index": "long",
    "message": "string",
    "meta": "string",
    "hash": "string",
    "created": "timestamp",
}
"""Column -> its type in Delta's schema."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SEAL: Final = re.compile(rb'"crc":"([0-9a-f]{8})"')
_UNSEALED: Final = b'"crc":"00000000"'


class MessageFile(NamedTuple):
    """Live data file with the messages ``first`` to ``end`` - 1."""

    path: str
    """File name in the table's folder."""
    size: int
    first: int
    rows: int
    oldest: int
    newest: int
    """Least (``oldest``) and greatest ``created`` of its messages, µs since 1970."""
    level: int = 0
    """Number of times its messages have been merged."""
    key: str = ""
    """Hash of the key that the file was appended with; "" if none."""

    @property
    def end(self) -> int:
        """Index after its last message."""
        return self.first + self.rows


class LogEntry(NamedTuple):
    """Changes of one commit."""

    kind: str
    adds: tuple[MessageFile, ...] = ()
    removes: tuple[MessageFile | str, ...] = ()
    transactions: Mapping[str, int] = {}


def first_queue_entry(identity: str) -> bytes:
    """Return the content of the entry that creates the table; its id is the queue's."""
    fields = [
        {"name": name, "type": kind, "nullable": name != "index", "metadata": {}} for name, kind in COLUMNS.items()
    ]
    metadata = {
        "id": identity,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": [],
        "configuration": {"delta.enableExpiredLogCleanup": "false", "delta.logRetentionDuration": "interval 0 days"},
        "createdTime": _now_ms(),
    }
    return _encode_sealed(
        "create", [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    )


def encode_entry(entry: LogEntry, *, data_change: bool) -> bytes:
    """Return the content of an entry."""
    now = _now_ms()
    actions: list[dict[str, Any]] = [
        {"txn": {"appId": name, "version": number, "lastUpdated": now}} for name, number in entry.transactions.items()
    ]
    for removed in entry.removes:
        assert isinstance(removed, MessageFile), "what is removed was live"
        remove = {"path": removed.path, "deletionTimestamp": 0, "dataChange": data_change, "extendedFileMetadata": True}
        actions.append({"remove": {**remove, "partitionValues": {}, "size": removed.size}})
    for file in entry.adds:
        actions.append({"add": _add(file, now, data_change)})
    return _encode_sealed(entry.kind, actions)


def read_entry(path: StatePath) -> LogEntry:
    """Return an entry after verifying its checksum.

    Raises:
        StateDamaged: it is not what was written, or another program wrote it.
        FileNotFoundError: it does not exist.
    """
    data = read(path)
    found = _SEAL.search(data)
    if found is None:
        raise StateDamaged(str(path), "it was not written by Ferryman")
    if zlib.crc32(data[: found.start()] + _UNSEALED + data[found.end() :]) != int(found[1], 16):
        raise StateDamaged(str(path), "its checksum does not match its content")
    actions = [msgspec.json.decode(line) for line in data.splitlines()]
    return LogEntry(
        actions[0]["commitInfo"]["ferryman"]["kind"],
        tuple(_file(a["add"], dict(a["add"].get("tags") or {})) for a in actions if "add" in a),
        tuple(a["remove"]["path"] for a in actions if "remove" in a),
        {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a},
    )


def decode_checkpoint(rows: Iterable[Mapping[str, Any]]) -> LogEntry:
    """Return the content of a checkpoint, from its columns ``add`` and ``txn``."""
    adds, transactions = [], {}
    for row in rows:
        if row["add"] is not None:
            adds.append(_file(row["add"], dict(row["add"]["tags"] or ())))
        if row["txn"] is not None:
            transactions[row["txn"]["appId"]] = row["txn"]["version"]
    return LogEntry("checkpoint", tuple(adds), (), transactions)


def _add(file: MessageFile, now: int, data_change: bool) -> dict[str, Any]:
    stats = {
        "numRecords": file.rows,
        "minValues": {"index": file.first, "created": _milliseconds(file.oldest)},
        "maxValues": {"index": file.end - 1, "created": _milliseconds(file.newest + 999)},
        "nullCount": {"index": 0, "created": 0},
    }
    tags = {"level": str(file.level), "oldest": str(file.oldest), "newest": str(file.newest)}
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": data_change,
        "stats": msgspec.json.encode(stats).decode(),
        "tags": {**tags, "key": file.key} if file.key else tags,
    }


def _file(add: Mapping[str, Any], tags: Mapping[str, str]) -> MessageFile:
    stats = msgspec.json.decode(add["stats"])
    oldest, newest, level = int(tags["oldest"]), int(tags["newest"]), int(tags["level"])
    first, rows = stats["minValues"]["index"], stats["numRecords"]
    return MessageFile(add["path"], add["size"], first, rows, oldest, newest, level, tags.get("key", ""))


def _encode_sealed(kind: str, actions: list[dict[str, Any]]) -> bytes:
    operation = "CREATE TABLE" if kind == "create" else "OPTIMIZE" if kind == "merge" else "WRITE"
    info = {"timestamp": _now_ms(), "operation": operation, "ferryman": {"crc": "00000000", "kind": kind}}
    data = b"".join(msgspec.json.encode(action) + b"\n" for action in ({"commitInfo": info}, *actions))
    return data.replace(_UNSEALED, b'"crc":"%08x"' % zlib.crc32(data), 1)


def _milliseconds(created_us: int) -> str:
    """Return a time for Delta's statistics, rounded down to the millisecond."""
    at = _EPOCH + dt.timedelta(milliseconds=created_us // 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
