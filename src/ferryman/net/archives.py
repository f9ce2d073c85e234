"""Members of zip and tar archives, also compressed tar, with guards against archives that are made to do harm."""

from __future__ import annotations

import enum
import io
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

from ferryman.net import compressed

ARCHIVE_ERRORS: Final = (*compressed.DAMAGE_ERRORS, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)
"""Exceptions of opening and reading broken archives; an ``OSError`` with a number is about the disk."""

Stream = io.RawIOBase | io.BytesIO

_DRIVE: Final = re.compile(r"[A-Za-z]:")


HEADER_BYTES: Final = 1 << 20
"""Longest name or extended attributes of a tar member, in bytes: a path has some thousand at most."""

DIRECTORY_BYTES: Final = 512
"""Bytes of a zip's directory for each member: a name of some hundred at most, and its details."""

ENTRIES: Final = 2
"""Entries in a zip's directory for each member that may be unpacked: folders have some, too."""

DIGITS: Final = 256
"""Longest run of digits in a tar member's attributes: real ones have far fewer."""

_ENTRY: Final = b"PK\x01\x02"
_ENTRY_BYTES: Final = 46
"""Fixed bytes of an entry in a zip's directory, before its name, extra data and comment."""
_LENGTHS_AT: Final = 28

_UTF8_FLAG: Final = 1 << 11
_UNICODE_PATH: Final = 0x7075
"""Extra field of a zip's member with its name in UTF-8, valid while the checksum in it is that of the name."""

_TYPES_READ_WHOLE: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class Flaw(enum.StrEnum):
    """Reason for not unpacking a member."""

    OUTSIDE = "outside"
    ENCRYPTED = "encrypted"
    LINK = "a link"
    DEVICE = "a device"
    SPARSE = "a sparse file"


class Member(NamedTuple):
    """A file in an archive; it must be opened before the next member is requested."""

    path: str
    flaw: Flaw | None
    open: Callable[[], Any]


class BudgetExceeded(Exception):
    """An archive exceeds its budget; the message says which limit."""


class Budget:
    """Limits of an archive's members and unpacked size, counted over all archives in it.

    Args:
        packed: size of the archive (bytes).
        members: largest number of members.
        size: largest unpacked size of all members (bytes).
        ratio: largest number of unpacked bytes per packed byte; not checked up to ``free`` unpacked bytes.
        messages: templates for the errors of too many members, too many bytes, too high a ratio; ``{}`` is the limit.
    """

    def __init__(self, packed: int, members: int, size: int, ratio: float, free: int, messages: Sequence[str]) -> None:
        self._limits = (members, size, ratio)
        self._ratio_bytes = max(free, packed * ratio)
        self._words = messages
        self._members = self._bytes = 0
        self.is_spent = False

    def members_left(self) -> int:
        """Return the number of members that may still be unpacked."""
        return int(max(0, self._limits[0] - self._members))

    def take(self, members: int, size: int) -> None:
        """Count members and bytes that are about to be unpacked, or have just been.

        Raises:
            BudgetExceeded: a limit is exceeded.
        """
        self._members += members
        self._bytes += size
        counts = ((self._members, self._limits[0]), (self._bytes, self._limits[1]), (self._bytes, self._ratio_bytes))
        for (count, limit_), limit, messages in zip(counts, self._limits, self._words, strict=True):
            if count > limit_:
                self.is_spent = True
                raise BudgetExceeded(messages.format(limit))


def is_archive(file: Stream) -> bool:
    """Return whether a file begins like an archive that ``members`` unpacks. Closes the file."""
    plain: io.BufferedReader = io.BufferedReader(file)
    with plain:
        if _is_zip(plain):
            return True
        try:
            head = _decompress(plain, lambda size: None).read(tarfile.BLOCKSIZE)
            tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
        except ARCHIVE_ERRORS:
            return False
    return True


def members(file: Stream, budget: Budget, names: str = "") -> Iterator[Member]:
    """Yield the files of an archive in their order, without folders. Closes the archive.

    Args:
        names: encoding of the names that the archive does not declare to be UTF-8. By default they are UTF-8 if they
            are valid as such, else cp437 in a zip, as its standard says, and cp1252 in a tar.

    A zip's declared sizes are charged to the budget before the first member, a compressed tar's bytes as they are
    unpacked. The content of an uncompressed tar is not charged: it is not larger than the archive.

    Raises:
        BudgetExceeded: a limit is exceeded; possibly only while a member is read.
        Exception: one of ``ARCHIVE_ERRORS``: the archive is damaged; possibly only while a member is opened or read.
    """
    plain: io.BufferedReader = io.BufferedReader(file)
    with plain:
        yield from (_zip_members if _is_zip(plain) else _tar_members)(plain, budget, names)


def leads_outside(path: str) -> bool:
    """Return whether the path leads out of its folder."""
    parts = path.replace("\\", "/").split("/")
    return not parts[0] or ".." in parts or "\0" in path or bool(_DRIVE.match(path))


def _decode_name(raw: bytes, names: str, fallback: str) -> str:
    """Decode a member's name: as told, else as UTF-8, else by the encoding that archives of its kind mostly have."""
    for encoding in (names,) if names else ("utf-8", fallback):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            pass
    return raw.decode("latin-1")  # which decodes every byte, so that names that differ stay different


def _zip_name(info: zipfile.ZipInfo, names: str) -> str:
    """Return the name of a zip's member, which ``zipfile`` has decoded as cp437 unless it is flagged as UTF-8."""
    if info.flag_bits & _UTF8_FLAG:
        return info.filename
    raw = info.orig_filename.encode("cp437").partition(b"\0")[0]
    return _unicode_path(info.extra, raw) or _decode_name(raw, names, "cp437")


def _unicode_path(extra: bytes, name: bytes) -> str:
    """Return the name in a member's extra fields that is meant for this name; "" if there is none."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        data = extra[at + 4 : at + 4 + size]
        if kind == _UNICODE_PATH and data[:1] == b"\1" and data[1:5] == struct.pack("<I", crc32(name)):
            return data[5:].decode("utf-8", "ignore")
        at += 4 + size
    return ""


def _tar_name(info: tarfile.TarInfo, names: str) -> str:
    """Return the name of a tar's member; only extended headers declare that it is UTF-8."""
    is_declared = "path" in info.pax_headers and info.pax_headers.get("hdrcharset") != "BINARY"
    return _decode_name(info.name.encode("utf-8", "surrogateescape"), "" if is_declared else names, "cp1252")


def _zip_members(plain: io.BufferedReader, budget: Budget, names: str) -> Iterator[Member]:
    bounded = _BoundedZip(plain, budget)
    with zipfile.ZipFile(bounded) as archive:
        bounded.is_listed = True
        infos = [info for info in archive.infolist() if not info.is_dir()]
        if sum(info.compress_size for info in infos) > plain.seek(0, io.SEEK_END):
            raise zipfile.BadZipFile("its members have more bytes than the archive: they overlap")
        budget.take(len(infos), sum(info.file_size for info in infos))
        for info in infos:
            is_link = stat.S_ISLNK(info.external_attr >> 16)
            name = _zip_name(info, names)
            flaws = {Flaw.OUTSIDE: leads_outside(name), Flaw.ENCRYPTED: info.flag_bits & 1, Flaw.LINK: is_link}
            flaw = next((flaw for flaw, has in flaws.items() if has), None)
            yield Member(name, flaw, partial(archive.open, info))  # it reads no more than was declared


class _BoundedZip:
    """File of a zip that refuses a directory with more entries than may be unpacked.

    ``zipfile`` reads the directory as a whole, and each entry takes ten times its bytes in memory, so the entries are
    counted before ``zipfile`` parses them.
    """

    def __init__(self, plain: io.BufferedReader, budget: Budget) -> None:
        self._plain, self._budget = plain, budget
        self.seek, self.tell, self.seekable = plain.seek, plain.tell, plain.seekable
        self.is_listed = False
        """Whether the directory has been read and members follow."""

    def read(self, size: int = -1) -> bytes:
        if self.is_listed:
            return self._plain.read(size)
        members = ENTRIES * max(1, self._budget.members_left())
        if size > max(HEADER_BYTES, members * DIRECTORY_BYTES):
            raise zipfile.BadZipFile(f"its directory has {size} bytes: more than {DIRECTORY_BYTES} a member")
        data = self._plain.read(size)
        if data.startswith(_ENTRY) and (entries := _entries(data)) > members:
            self._budget.take(entries, 0)
        return data


def _entries(directory: bytes) -> int:
    """Count the entries of a zip's directory."""
    count = at = 0
    while len(directory) - at >= _ENTRY_BYTES:
        at += _ENTRY_BYTES + sum(struct.unpack_from("<HHH", directory, at + _LENGTHS_AT))
        count += 1
    return count


def _tar_members(plain: io.BufferedReader, budget: Budget, names: str) -> Iterator[Member]:
    stream = _decompress(plain, partial(budget.take, 0))
    with (
        stream,
        tarfile.open(fileobj=stream, mode="r|", errorlevel=1, tarinfo=_BoundedInfo, encoding="utf-8") as archive,
    ):
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them in memory
            if not info.isdir():
                budget.take(1, 0)
                name = _tar_name(info, names)
                yield Member(name, _flaw(info, name), partial(archive.extractfile, info))


class _BoundedInfo(tarfile.TarInfo):
    """Header of a tar member. Blocks for long names and attributes, which are read as a whole, must be short."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _TYPES_READ_WHOLE and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a member's name or attributes have {self.size} bytes, more than {HEADER_BYTES}")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]

    def _proc_pax(self, archive: Any) -> tarfile.TarInfo:
        """Refuse attributes with a long run of digits: ``tarfile`` would search them in quadratic time."""
        inner = archive.fileobj
        data = inner.read(self._block(self.size))  # type: ignore[attr-defined]
        if max(map(len, re.split(rb"[^0-9]+", data))) > DIGITS:
            raise tarfile.ReadError(f"a member's attributes have a number of more than {DIGITS} digits")
        archive.fileobj = _ReplayingStream(data, inner)
        try:
            return super()._proc_pax(archive)  # type: ignore[misc, no-any-return]
        finally:
            archive.fileobj = inner


class _ReplayingStream:
    """A stream that returns data that was read ahead before it goes on."""

    def __init__(self, data: bytes, inner: Any) -> None:
        self._data, self._inner = data, inner
        self.tell, self.seek = inner.tell, inner.seek

    def read(self, size: int) -> bytes:
        data, self._data = self._data, b""
        return data or bytes(self._inner.read(size))


def _flaw(info: tarfile.TarInfo, name: str) -> Flaw | None:
    if leads_outside(name):
        return Flaw.OUTSIDE
    if not info.isreg():
        return Flaw.LINK if info.issym() or info.islnk() else Flaw.DEVICE
    return Flaw.SPARSE if info.issparse() else None


def _is_zip(plain: io.BufferedReader) -> bool:
    """Return whether a file begins like a zip; ``zipfile`` looks at the end, where a tar may hold a zip."""
    return plain.peek(2).startswith(b"PK")


def _decompress(plain: io.BufferedReader, take: Callable[[int], None]) -> io.BufferedReader:
    return io.BufferedReader(compressed.UnpackedStream(plain, take)) if compressed.stream_compression(plain) else plain
