"""Decompression of gzip, bzip2, xz and zstd, recognised by their first bytes."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

from ferryman import limits

CHUNK_BYTES: Final = 128 * limits.KIB
DAMAGE_ERRORS: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
"""Exceptions of unpackers for damaged bytes."""

_HEAD_BYTES: Final = 10


def compression_of(head: bytes) -> str:
    """Return the compression that begins with these bytes; "" if there is none."""
    return next((name for name, (magic, _) in _COMPRESSIONS.items() if magic.match(head)), "")


def stream_compression(stream: io.BufferedReader) -> str:
    """Return the compression of a stream, without moving its position."""
    return compression_of(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES])


class UnpackedStream(io.RawIOBase):
    """Content of a compressed stream, which is closed with this one. It is unpacked in chunks, so memory is bounded.

    Args:
        on_unpacked: called with the number of bytes after each chunk; it raises if there are too many.
    """

    def __init__(self, packed: io.BufferedReader, on_unpacked: Callable[[int], None]) -> None:
        self._packed, self._on_unpacked = packed, on_unpacked
        self._inner = _COMPRESSIONS[stream_compression(packed)][1](packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read1(len(buffer))  # not read(): data before a damaged part is good
        buffer[: len(data)] = data
        self._on_unpacked(len(data))
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()


class _GzipReader:
    """Reader of gzip that ignores what follows the last member and is not gzip, as ``gzip`` does: mail programs and
    file transfers append line ends, tapes zeros. Python's own refuses the whole file."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._decoder = zlib.decompressobj(_GZIP)
        self._rest = b""

    def read1(self, size: int) -> bytes:
        """Return up to ``size`` bytes; b"" at the end."""
        while True:
            if self._decoder.eof and not self._next():
                return b""
            self._rest = self._rest or self._packed.read1(CHUNK_BYTES)
            if not self._rest:
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            data = self._decoder.decompress(self._rest, size)
            self._rest = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail
            if data:
                return data

    def _next(self) -> bool:
        """Begin the next of several concatenated members; False at the end."""
        self._rest = self._rest.lstrip(b"\0")
        while len(self._rest) < _HEAD_BYTES and (more := self._packed.read1(CHUNK_BYTES)):
            self._rest = (self._rest + more).lstrip(b"\0")
        if compression_of(self._rest) != "gzip":
            return False
        self._decoder = zlib.decompressobj(_GZIP)
        return True


_GZIP: Final = 16 + zlib.MAX_WBITS
"""zlib's number for gzip, with its header and its checksum."""


class _XzReader:
    """Reader of xz that limits the memory a file may demand; Python's own does not."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._decoder: lzma.LZMADecompressor | None = None
        self._rest = b""

    def read1(self, size: int) -> bytes:
        """Return up to ``size`` bytes; b"" at the end."""
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
        """Begin the next of several concatenated streams, between which there may be zeros; False at the end."""
        while not (rest := self._rest.lstrip(b"\0")):
            self._rest = self._packed.read1(CHUNK_BYTES)
            if not self._rest:
                return False
        self._rest = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.PACKED_MEMORY_BYTES)
        return True


def _open_zstd(packed: io.BufferedReader) -> Any:
    """Open Arrow's reader of zstd, which refuses windows of more than 128 MiB."""
    import pyarrow as pa  # takes 0.1 s to load, and is rarely needed

    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")


_COMPRESSIONS: Final[dict[str, tuple[re.Pattern[bytes], Callable[[io.BufferedReader], Any]]]] = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), _GzipReader),
    "bzip2": (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2File),
    "xz": (re.compile(rb"\xfd7zXZ\0"), _XzReader),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstd),
}
"""Name of a compression -> its first bytes, and how to open a reader."""
