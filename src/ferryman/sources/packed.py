"""Compressed files, known by their first bytes and read as what is in them."""

from __future__ import annotations

import io
from typing import Any

from ferryman import limits
from ferryman.archives import compressed
from ferryman.errors import BadDocument
from ferryman.sources.root import LEAVE_OUT


def unpacked(stream: io.RawIOBase | io.BytesIO, path: str, size: int) -> io.BufferedReader:
    """The bytes of a file: unpacked if it is gzip, bzip2, xz or zstd, as they are if not.

    Closing what is returned closes the stream. It streams: memory does not grow with the file.

    Args:
        path: for messages.
        size: bytes of the packed file, 0 if not known; see ``limits.PACKED_RATIO``.

    Raises:
        BadDocument: while reading: the packed bytes are damaged or break off, or unpack to far too many.
    """
    plain: io.BufferedReader = io.BufferedReader(stream, compressed.CHUNK_BYTES)
    if kind := compressed.kind_of(plain):
        return io.BufferedReader(_Told(plain, f"{path}: {kind} data", size), compressed.CHUNK_BYTES)
    return plain


def read_unpacked(data: bytes, path: str, limit_bytes: int) -> bytes:
    """The same of a file that is in memory already.

    Raises:
        BadDocument: see above; or it unpacks to more than the limit.
    """
    if not compressed.kind(data):
        return data
    with unpacked(io.BytesIO(data), path, len(data)) as stream:
        whole = stream.read(limit_bytes + 1)
    if len(whole) > limit_bytes:
        raise BadDocument(
            f"{path}: more than the limit of {limit_bytes} bytes when unpacked. Raise max_bytes, {LEAVE_OUT}."
        )
    return whole


class _Told(compressed.Unpacked):
    """Unpacked bytes, with damages and bombs told in words."""

    def __init__(self, packed: io.BufferedReader, what: str, size: int) -> None:
        super().__init__(packed, self._count)
        self._what = what
        self._most = max(limits.PACKED_FREE_BYTES, size * limits.PACKED_RATIO)
        self._made = 0

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except compressed.DAMAGES as e:  # an error of reading comes as Ferryman's
            raise BadDocument(
                f"{self._what} that cannot be unpacked after byte {self._made} ({e}). Make the file again, {LEAVE_OUT}."
            ) from None

    def _count(self, size: int) -> None:
        self._made += size
        if self._made > self._most:
            raise BadDocument(
                f"{self._what} that unpack to more than {self._most} bytes, {limits.PACKED_RATIO} times the file: "
                f"it looks like a decompression bomb. Unpack the file if it is not, {LEAVE_OUT}."
            )
