"""Archives: zip and tar, the latter also compressed. Never more is unpacked than was asked for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple

from ferryman.steps.formats import kinds

Take = Callable[[int, int], None]
"""(members, bytes): counts what is about to be unpacked, and raises where it is too much."""


class Member(NamedTuple):
    """A file in an archive."""

    path: str
    raw: bytes
    refused: str = ""
    """Why it may not or cannot be unpacked, and what to do."""


_DRIVE: Final = re.compile(r"[A-Za-z]:")
_CLIMBS: Final = "has a path that leads out of the archive. Pack it again with paths below one folder"
_ENCRYPTED: Final = "is encrypted. Pack it without a password"
_NO_FILE: Final = "is {}, not a file. Pack the file itself"
_BROKEN: Final = "is broken: {}. Pack it again"

_TAR_BYTES: Final = 512
"""The first block of a tar says that it is one."""


def is_archive(raw: bytes) -> bool:
    """Is it one that ``members`` unpacks?"""
    return kinds.kind_of(raw) == kinds.ZIP if raw.startswith(b"PK") else _is_tar(raw)


def members(raw: bytes, take: Take) -> Iterator[Member]:
    """Files of an archive in their order; of folders nothing.

    Raises:
        Unreadable: ``take`` says so.
    """
    yield from _of_zip(raw, take) if raw.startswith(b"PK") else _of_tar(raw, take)


def _of_zip(raw: bytes, take: Take) -> Iterator[Member]:
    archive = zipfile.ZipFile(io.BytesIO(raw))
    infos = [info for info in archive.infolist() if not info.is_dir()]
    take(len(infos), sum(info.file_size for info in infos))  # before the first one is unpacked
    for info in infos:
        path = info.filename
        unix = info.external_attr >> 16 & 0o170000
        if why := _climbs(path):
            yield Member(path, b"", why)
        elif info.flag_bits & 1:
            yield Member(path, b"", _ENCRYPTED)
        elif unix == 0o120000:
            yield Member(path, b"", _NO_FILE.format("a link"))
        else:
            try:
                yield Member(path, archive.read(info))  # it reads no more than was declared
            except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as e:
                yield Member(path, b"", _BROKEN.format(e))
            except NotImplementedError as e:
                yield Member(
                    path, b"", f"is compressed in a way that is not known here ({e}). Pack it again as deflate"
                )


def _of_tar(raw: bytes, take: Take) -> Iterator[Member]:
    with _opened(raw, take) as stream, tarfile.open(fileobj=stream, mode="r|", errorlevel=1) as archive:
        for info in archive:
            if info.isdir():
                continue
            take(1, 0)  # its bytes are counted where they are read
            if why := _climbs(info.name):
                yield Member(info.name, b"", why)
            elif not info.isreg():
                kind = "a link" if info.issym() or info.islnk() else "a device"
                yield Member(info.name, b"", _NO_FILE.format(kind))
            elif info.issparse():
                yield Member(info.name, b"", "is a file with holes, which may be of any size. Pack it without --sparse")
            else:
                file = archive.extractfile(info)
                content = file.read() if file is not None else b""
                if len(content) < info.size:
                    raise tarfile.ReadError(f"ends in the middle of {info.name!r}")
                yield Member(info.name, content)


def _climbs(path: str) -> str:
    """Why a path is not a place below a folder; "" if it is one."""
    parts = path.replace("\\", "/").split("/")
    if not parts[0] or _DRIVE.match(path) or ".." in parts or "\0" in path:
        return _CLIMBS
    return ""


def _is_tar(raw: bytes) -> bool:
    """Also a compressed one: its first block is unpacked, and no more."""
    try:
        with _opened(raw, lambda members, size: None) as stream:
            head = stream.read(_TAR_BYTES)
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error, ValueError):
        return False
    return True


def _zstd(packed: IO[bytes]) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")


_PACKERS: Final[tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...]] = (
    (b"\x1f\x8b", lambda packed: gzip.GzipFile(fileobj=packed)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", _zstd),
)
"""First bytes -> how to unpack what follows."""


def _opened(raw: bytes, take: Take) -> Any:
    """The unpacked bytes as a stream that counts them."""
    packed = io.BytesIO(raw)
    for magic, unpacker in _PACKERS:
        if raw.startswith(magic):
            return _Counted(unpacker(packed), take)
    return packed


class _Counted(io.RawIOBase):
    """A stream of which every byte is counted as it is unpacked."""

    def __init__(self, stream: IO[bytes], take: Take) -> None:
        self._stream = stream
        self._take = take

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = bytes(self._stream.read(size))
        self._take(0, len(content))
        return content

    def close(self) -> None:
        self._stream.close()
        super().close()
