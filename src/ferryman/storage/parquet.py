"""Data files: Parquet with page checksums, each with its own CRC-32 in its name, so that any flipped byte is found."""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ferryman.errors import StateDamaged
from ferryman.storage.files import write_synced

_NAME = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet\Z")
_VERIFYING = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=False)
)


class Part(NamedTuple):
    """A data file, written and fsynced, not yet in any table."""

    path: str
    """Relative to its table's folder."""
    size: int
    """Bytes."""
    rows: int
    stats: dict[str, Any] | None = None
    """Delta statistics beside the number of rows (``minValues`` …)."""


def write_part(folder: Path, table: pa.Table, under: str = "", stats: dict[str, Any] | None = None) -> Part:
    """Write a table's file and fsync it. The folder is fsynced by whoever publishes the name.

    Args:
        folder: the table's folder.
        under: folder within it, "" or ending in "/".
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="lz4",
        write_page_checksum=True,
        row_group_size=65_536,
        use_dictionary=[f.name for f in table.schema if pa.types.is_dictionary(f.type)] or False,
        store_schema=False,
    )
    data = sink.getvalue()
    name = f"{under}{uuid.uuid4().hex}-{zlib.crc32(data):08x}.parquet"
    path = folder / name
    if under:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_synced(path, memoryview(data))
    return Part(name, data.size, table.num_rows, stats)


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A data file's rows, page checksums verified.

    Raises:
        StateDamaged: missing, or not what was written.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, memory_map=False) as file:
            return file.read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as e:
        raise damaged(path, e) from e


def scan(paths: Iterable[Path], schema: pa.Schema) -> ds.Dataset:
    """Data files as one dataset for queries, page checksums verified while they are read."""
    return ds.dataset([str(p) for p in paths], schema=schema, format=_VERIFYING)


def verify(path: Path) -> str | None:
    """Read the whole file; what is wrong with it, or None."""
    try:
        data = path.read_bytes()
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    name = _NAME.match(path.name)
    if name is None:
        return "its name is not one that Ferryman gives"
    if zlib.crc32(data) != int(name[1], 16):
        return "its checksum does not fit its content"
    return None


def damaged(path: Path, error: Exception) -> StateDamaged:
    """The error for a data file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return StateDamaged(str(path), "the file is missing")
    return StateDamaged(str(path), f"cannot be read as Parquet ({str(error).splitlines()[0]})")
