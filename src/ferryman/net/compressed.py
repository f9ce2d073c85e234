"""Compressed bytes, known by the first of them: gzip, bzip2, xz and zstd."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

from ferryman import limits

CHUNK_BYTES: Final = 128 * limits.KIB
DAMAGES: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
"""Exceptions of unpackers for damaged bytes."""

_HEAD_BYTES: Final = 10


def kind(head: bytes) -> str:
    """Return the compression that these first bytes announce; "" if they do not."""
    return next((name for name, (magic, _) in _KINDS.items() if magic.match(head)), "")


def kind_of(stream: io.BufferedReader) -> str:
    """Return the compression of a stream, which stays where it is."""
    return kind(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES])


class Unpacked(io.RawIOBase):
    """Content of a compressed stream, which is closed with it. Memory does not grow with it.

    Args:
        take: is told of so many bytes when they have been unpacked, and raises where it is too much.
    """

    def __init__(self, packed: io.BufferedReader, take: Callable[[int], None]) -> None:
        self._packed, self._take = packed, take
        self._inner = _KINDS[kind_of(packed)][1](packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read1(len(buffer))  # not read: what comes before a damage is good
        buffer[: len(data)] = data
        self._take(len(data))
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()


class _Xz:
    """Python's own reader of xz sets no limit to the memory that a file may ask for; this one does."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._decoder: lzma.LZMADecompressor | None = None
        self._rest = b""

    def read1(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        while True:
            if self._decoder is None and not self._next():
                return b""
            assert self._decoder is not None
            if self._decoder.needs_input and not self._rest:
                self._rest = self._packed.read1(CHUNK_BYTES)
                if not self._rest:
                    raise EOFError("it breaks off")
            data = self._decoder.decompress(self._rest, size)
            self._rest = b""
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
            if data:
                return data

    def _next(self) -> bool:
        """Begin the next of several streams; between them there may be zeros."""
        while not (rest := self._rest.lstrip(b"\0")):
            self._rest = self._packed.read1(CHUNK_BYTES)
            if not self._rest:
                return False
        self._rest = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.PACKED_MEMORY_BYTES)
        return True


def _zstd(packed: io.BufferedReader) -> Any:
    """Arrow's reader; it refuses windows of more than 128 MiB itself."""
    import pyarrow as pa  # takes 0.1 s to load, and few need it

    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")


_KINDS: Final[dict[str, tuple[re.Pattern[bytes], Callable[[io.BufferedReader], Any]]]] = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), lambda packed: gzip.GzipFile(fileobj=packed)),
    "bzip2": (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2File),
    "xz": (re.compile(rb"\xfd7zXZ\0"), _Xz),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), _zstd),
}
"""Name -> first bytes, unpacker."""
