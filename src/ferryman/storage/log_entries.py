"""Entries and checkpoints of a Delta log that is our own, read and written without delta-rs: for logs of a few dozen
small entries that takes a twentieth of the time, and no threads.

What a name or a value may be in such a log is what we write there; ``TableLog`` refuses what others have written.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.memory import lacks_memory

_STATISTICS: Final = ("minValues", "maxValues", "nullCount")


class LogUnreadable(Exception):
    """A log is not there, or cannot be read."""


class DataFile(NamedTuple):
    """A live file of a table."""

    path: str
    """Its name in the table's folder."""
    size: int
    rows: int
    partition: dict[str, str]
    stats: dict[str, Any]


class LogChanges(NamedTuple):
    """What an entry, or all up to a checkpoint, has changed."""

    adds: list[DataFile]
    removes: list[str]
    transactions: dict[str, int]


class _Add(msgspec.Struct):
    path: str
    size: int
    partitionValues: dict[str, str]
    stats: str | None = None


class _Remove(msgspec.Struct):
    path: str


class _AppNumber(msgspec.Struct):
    appId: str
    version: int


class _Action(msgspec.Struct):
    """What else there is in an entry is skipped."""

    add: _Add | None = None
    remove: _Remove | None = None
    txn: _AppNumber | None = None


_decode = msgspec.json.Decoder(_Action).decode


def read_entry(path: Path) -> LogChanges:
    """What an entry has changed.

    Raises:
        LogUnreadable: it is not there, or is not an entry.
    """
    try:
        actions = [_decode(line) for line in path.read_bytes().splitlines()]
        adds = [_data_file(a.path, a.size, a.partitionValues, a.stats) for a in (each.add for each in actions) if a]
    except (OSError, ValueError) as e:
        if lacks_memory(e):
            raise
        raise LogUnreadable(f"{path}: {e}") from e
    return LogChanges(
        adds,
        [each.remove.path for each in actions if each.remove],
        {each.txn.appId: each.txn.version for each in actions if each.txn},
    )


def read_checkpoint(path: Path) -> LogChanges:
    """All that there is in a checkpoint.

    Raises:
        LogUnreadable: it is not there, or is not a checkpoint.
    """
    try:
        table = pq.read_table(path, columns=["add", "txn"])
        adds = [
            _data_file(add["path"], add["size"], dict(add["partitionValues"] or ()), add["stats"])
            for add in table["add"].to_pylist()
            if add is not None
        ]
        found = (txn for txn in table["txn"].to_pylist() if txn is not None)
        return LogChanges(adds, [], {txn["appId"]: txn["version"] for txn in found})
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as e:
        if lacks_memory(e):
            raise
        raise LogUnreadable(f"{path}: {e}") from e


def first_entry(schema: str, partition_by: list[str], configuration: Mapping[str, str]) -> bytes:
    """The entry that makes a table."""
    now = time.time_ns() // 1_000_000
    metadata = {
        "id": str(uuid.uuid4()),
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partition_by,
        "createdTime": now,
        "configuration": configuration,
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": "ferryman"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def encode_entry(
    adds: Iterable[DataFile],
    removes: Iterable[DataFile],
    transactions: Mapping[str, int],
    info: Mapping[str, Any],
    partition_by: list[str],
    *,
    data_change: bool,
) -> bytes:
    """The file of an entry; ``info`` is kept beside its actions."""
    how = {"mode": "Append", "partitionBy": msgspec.json.encode(partition_by).decode()}
    now = time.time_ns() // 1_000_000
    about = {"timestamp": now, "operation": "WRITE", "operationParameters": how, "engineInfo": "ferryman", **info}
    return b"".join(msgspec.json.encode(a) + b"\n" for a in _actions(about, adds, removes, transactions, data_change))


def _actions(
    about: Mapping[str, Any],
    adds: Iterable[DataFile],
    removes: Iterable[DataFile],
    transactions: Mapping[str, int],
    data_change: bool,
) -> Iterator[dict[str, Any]]:
    yield {"commitInfo": about}
    for name, number in transactions.items():
        yield {"txn": {"appId": name, "version": number}}
    for gone in removes:
        yield {
            "remove": {
                "path": gone.path,
                "dataChange": data_change,
                "deletionTimestamp": 0,
                "extendedFileMetadata": True,
                "partitionValues": gone.partition,
                "size": gone.size,
            }
        }
    for file in adds:
        yield {
            "add": {
                "path": file.path,
                "partitionValues": file.partition,
                "size": file.size,
                "modificationTime": 0,
                "dataChange": data_change,
                "stats": msgspec.json.encode({"numRecords": file.rows, **file.stats}).decode(),
            }
        }


def _data_file(path: str, size: int, partition: dict[str, str], stats: str | None) -> DataFile:
    said = msgspec.json.decode(stats) if stats else {}
    return DataFile(
        path, size, said.get("numRecords") or 0, partition, {k: said[k] for k in _STATISTICS if said.get(k)}
    )
