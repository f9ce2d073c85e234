"""Containers: zip, and tar, the latter also compressed, unpacked to files. Bombs and paths that climb are refused."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from ferryman.limits import GIB, MIB
from ferryman.service.errors import Corrupt
from ferryman.service.manifest import checked_path
from ferryman.storage import files

MEMBERS: Final = 1_000_000
UNPACKED_BYTES: Final = 64 * GIB
"""All members together: as much as one file that is fetched."""

RATIO: Final = 200.0
FREE_BYTES: Final = 64 * MIB
"""So much may be unpacked whatever the ratio; above, unpacked bytes a packed byte. Text packs to a twentieth, a bomb to
a thousandth."""

SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_PIECE: Final = MIB


def unpack(
    path: Path,
    folder: Path,
    stopping: Callable[[], None] = lambda: None,
    *,
    name: str = "",
    members: int = MEMBERS,
    unpacked_bytes: int = UNPACKED_BYTES,
    ratio: float = RATIO,
) -> None:
    """Unpack a container into a folder, which is made again. Killed in the middle, it is done again from the start.

    Args:
        stopping: asked between pieces; what it raises ends it.
        name: of the container, in messages; default: its file's.
        members, unpacked_bytes, ratio: see ``MEMBERS``, ``UNPACKED_BYTES``, ``RATIO``.

    Raises:
        Corrupt: it is not zip or tar, is broken or encrypted, a member's path climbs out of it, is a link or a device,
            two members have one path, or it unpacks to more than it may. Nothing of it counts then.
        OSError: the disk is full, or failed.
    """
    shown = f"container {name or path.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget = _ContainerBudget(path.stat().st_size, members, unpacked_bytes, ratio)
    seen: set[str] = set()
    try:
        for member, content in _members(path):
            stopping()
            place = checked_path(member)
            budget.member()
            if place in seen:
                raise Corrupt(f"it has {place[:200]!r} twice.")
            seen.add(place)
            _write(folder / place, content, budget, stopping)
    except Corrupt as e:
        raise Corrupt(f"{shown}: {e} Pack it again.") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as e:
        raise Corrupt(f"{shown}: is broken: {str(e)[:200]}. Pack it again.") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Corrupt(f"{shown}: a name in it is both a file and a folder. Pack it again.") from None
    except OSError as e:
        if e.errno is None:  # gzip's and bz2's own words for what they cannot read
            raise Corrupt(f"{shown}: is broken: {str(e)[:200]}. Pack it again.") from None
        raise
    if not seen:
        raise Corrupt(f"{shown}: there are no files in it.")


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                if info.flag_bits & 1:
                    raise Corrupt(f"its member {info.filename[:200]!r} is encrypted.")
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise Corrupt(f"its member {info.filename[:200]!r} is a link, not a file.")
                with archive.open(info) as content:
                    yield info.filename, content
        return
    try:
        tar = tarfile.open(path, mode="r|*", errorlevel=1)  # noqa: SIM115 - entered below
    except tarfile.ReadError:
        raise Corrupt("it is neither zip nor tar.") from None
    with tar:
        for member in tar:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise Corrupt(
                    f"its member {member.name[:200]!r} is not a plain file, but a link, a device or a sparse file."
                )
            found = tar.extractfile(member)
            assert found is not None
            with found:
                yield member.name, found


def _write(path: Path, content: IO[bytes], budget: _ContainerBudget, stopping: Callable[[], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as out:
        while piece := content.read(_PIECE):
            budget.take(len(piece))
            out.write(piece)
            stopping()
        out.flush()
        os.fsync(out.fileno())


def synced(folder: Path) -> None:
    """Make the names in a folder, and below, durable."""
    for at, _, _ in os.walk(folder):
        with contextlib.suppress(FileNotFoundError):
            files.fsync_folder(at)


class _ContainerBudget:
    """What may still be unpacked."""

    def __init__(self, packed: int, members: int, unpacked_bytes: int, ratio: float) -> None:
        self._packed, self._left, self._limit, self._ratio = packed, members, unpacked_bytes, ratio
        self._bytes = 0

    def member(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Corrupt("it has too many members.")

    def take(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limit:
            raise Corrupt(f"it unpacks to more than {self._limit} bytes.")
        if self._bytes > FREE_BYTES and self._bytes > self._packed * self._ratio:
            raise Corrupt(f"it unpacks to more than {self._ratio:g} times its size, as a decompression bomb does.")
