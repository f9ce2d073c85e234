"""Compressed files, known by their first bytes and read as what is in them."""

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
from ferryman.errors import BadDocument
from ferryman.sources.root import LEAVE_OUT

_HEAD_BYTES: Final = 10
_CHUNK_BYTES: Final = 128 * limits.KIB
_DAMAGES: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)  # an error of reading comes as Ferryman's


def unpacked(stream: io.RawIOBase | io.BytesIO, path: str, size: int) -> io.BufferedReader:
    """The bytes of a file: unpacked if it is gzip, bzip2, xz or zstd, as they are if not.

    Closing what is returned closes the stream. It streams: memory does not grow with the file.

    Args:
        path: for messages.
        size: bytes of the packed file, 0 if not known; see ``limits.PACKED_RATIO``.

    Raises:
        BadDocument: while reading: the packed bytes are damaged or break off, or unpack to far too many.
    """
    plain: io.BufferedReader = io.BufferedReader(stream, _CHUNK_BYTES)
    head = plain.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    for name, magic, opened in _KINDS:
        if magic.match(head):
            return io.BufferedReader(_Unpacked(plain, opened(plain), f"{path}: {name} data", size), _CHUNK_BYTES)
    return plain


def read_unpacked(data: bytes, path: str, limit_bytes: int) -> bytes:
    """The same of a file that is in memory already.

    Raises:
        BadDocument: see above; or it unpacks to more than the limit.
    """
    if not any(magic.match(data) for _, magic, _ in _KINDS):
        return data
    with unpacked(io.BytesIO(data), path, len(data)) as stream:
        whole = stream.read(limit_bytes + 1)
    if len(whole) > limit_bytes:
        raise BadDocument(
            f"{path}: more than the limit of {limit_bytes} bytes when unpacked. Raise max_bytes, {LEAVE_OUT}."
        )
    return whole


class _Unpacked(io.RawIOBase):
    """What an unpacker makes, with an eye on how much, and damages in words."""

    def __init__(self, packed: io.BufferedReader, inner: Any, what: str, size: int) -> None:
        self._packed = packed
        self._inner = inner
        self._what = what
        self._most = max(limits.PACKED_FREE_BYTES, size * limits.PACKED_RATIO)
        self._made = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._inner.read1(len(buffer))  # not read: what comes before a damage is good
        except _DAMAGES as e:
            raise BadDocument(
                f"{self._what} that cannot be unpacked after byte {self._made} ({e}). Make the file again, {LEAVE_OUT}."
            ) from None
        buffer[: len(data)] = data
        self._made += len(data)
        if self._made > self._most:
            raise BadDocument(
                f"{self._what} that unpack to more than {self._most} bytes, {limits.PACKED_RATIO} times the file: "
                f"it looks like a decompression bomb. Unpack the file if it is not, {LEAVE_OUT}."
            )
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
                self._rest = self._packed.read1(_CHUNK_BYTES)
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
            self._rest = self._packed.read1(_CHUNK_BYTES)
            if not self._rest:
                return False
        self._rest = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.PACKED_MEMORY_BYTES)
        return True


def _zstd(packed: io.BufferedReader) -> Any:
    """Arrow's reader; it refuses windows of more than 128 MiB itself."""
    import pyarrow as pa  # takes 0.1 s to load, and few need it

    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")


_KINDS: Final[tuple[tuple[str, re.Pattern[bytes], Callable[[io.BufferedReader], Any]], ...]] = (
    ("gzip", re.compile(rb"\x1f\x8b\x08"), lambda packed: gzip.GzipFile(fileobj=packed)),
    ("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2File),
    ("xz", re.compile(rb"\xfd7zXZ\0"), _Xz),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), _zstd),
)
"""Name, first bytes, unpacker."""
