"""The lines of a file, as UTF-8, whatever encoding the file has."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import Any, Final

from ferryman import limits
from ferryman.errors import BadDocument, UsageError
from ferryman.sources.root import LEAVE_OUT

Physical = tuple[int, bytes, str]
"""Number from 1, the line in UTF-8 with its line end, and what is wrong with it: the line is "" if it is too long."""

_BOMS: Final = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHUNK_BYTES: Final = 64 * limits.KIB


def checked_encoding(source: str, encoding: str) -> str:
    """Python's name of an encoding.

    Raises:
        UsageError: there is none of this name, or it is not a text encoding.
    """
    try:
        found = codecs.lookup(encoding)
        "".encode(encoding)  # base64 and its like are codecs too
    except (LookupError, TypeError):
        raise UsageError(
            f"{source}(encoding={encoding!r}): not a text encoding; give one such as 'utf-8' or 'cp1252'."
        ) from None
    return "utf-8" if found.name == "utf-8-sig" else found.name


def physical_lines(stream: io.BufferedReader, encoding: str, limit_bytes: int, path: str) -> Iterator[Physical]:
    """Lines end with LF or CR LF; the last one need not. A byte order mark is left out, and wins over ``encoding``.

    A line over the limit is passed by without being held.

    Args:
        limit_bytes: longest line (bytes in the file; in UTF-8 where the encoding's line end is not one byte, as
            UTF-16's).

    Raises:
        BadDocument: invalid UTF-16 or the like: where the next line begins cannot be known.
    """
    head = stream.peek(4)[:4]
    for mark, marked in _BOMS:
        if head.startswith(mark):
            stream.read(len(mark))
            encoding = marked
            break
    if "\n".encode(encoding) != b"\n":
        stream = io.BufferedReader(_AsUtf8(stream, encoding, path), _CHUNK_BYTES)
        encoding = "utf-8"
    number, is_utf8 = 0, encoding == "utf-8"
    readline = stream.readline
    while line := readline(limit_bytes + 2):
        number += 1
        if len(line) > limit_bytes and len(line.rstrip(b"\r\n")) > limit_bytes:
            while not line.endswith(b"\n") and (line := readline(_CHUNK_BYTES)):
                pass
            yield number, b"", f"more than {limit_bytes} bytes. Raise max_bytes, or shorten the line"
            continue
        try:
            text = line.decode(encoding)
            yield number, line if is_utf8 else text.encode(), ""
        except UnicodeError as e:
            yield number, line.decode(encoding, "replace").encode(errors="replace"), _why(e, line, encoding)


def _why(error: UnicodeError, line: bytes, encoding: str) -> str:
    at = error.start if isinstance(error, UnicodeDecodeError) else 0
    return (
        f"not {encoding} text: byte {at} of the line (0x{line[at]:02x}). Save the file in this encoding, or give its "
        "own: encoding='latin-1'"
    )


class _AsUtf8(io.RawIOBase):
    """A stream of another encoding."""

    def __init__(self, stream: io.BufferedReader, encoding: str, path: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._path = path
        self._left = b""
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            data = self._stream.read1(_CHUNK_BYTES)
            try:
                self._left = self._decoder.decode(data, final=not data).encode()
            except UnicodeError as e:
                raise BadDocument(
                    f"{self._path}: not {self._encoding} text after byte {self._read}: {getattr(e, 'reason', e)}. "
                    f"Save the file again, {LEAVE_OUT}."
                ) from None
            self._read += len(data)
            if not data:
                break
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)
