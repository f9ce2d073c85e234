"""Containers: zip, and tar, the latter also compressed, unpacked to files. Bombs and paths that climb are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from ferryman import limits
from ferryman.archives import members as archives
from ferryman.archives.members import BROKEN, Budget, Flaw, Member, TooMuch
from ferryman.limits import MIB
from ferryman.service.errors import Corrupt
from ferryman.service.manifest import checked_path

SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_OVER: Final = (
    "has too many members",
    "unpacks to more than {} bytes",
    "unpacks to more than {:g} times its size, as a decompression bomb does",
)

_PIECE: Final = MIB


def unpack(
    path: Path,
    folder: Path,
    stopping: Callable[[], None] = lambda: None,
    *,
    name: str = "",
    members: int = limits.UNPACK_FILES,
    unpacked_bytes: int = limits.UNPACK_FILES_BYTES,
    ratio: float = limits.UNPACK_RATIO,
    take: Callable[[int], None] = lambda size: None,
) -> None:
    """Unpack a container into a folder, which is made again. Killed in the middle, it is done again from the start.

    The files are not durable yet: ``disk.fsync_tree`` makes all of them so at once.

    Args:
        stopping: asked between pieces; what it raises ends it.
        take: told of what is about to be written; what it raises ends it.
        name: of the container, in messages; default: its file's.
        members, unpacked_bytes, ratio: see ``limits``; the ratio is that of the step ``unpack``.

    Raises:
        Corrupt: it is not zip or tar, is broken or encrypted, a member's path climbs out of it, is a link or a device,
            two members have one path, or it unpacks to more than it may. Nothing of it counts then.
        OSError: the disk is full, or failed.
    """
    shown = f"container {name or path.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget = Budget(path.stat().st_size, members, unpacked_bytes, ratio, limits.UNPACK_FREE_BYTES, _OVER)
    seen: set[str] = set()
    try:
        if not archives.is_archive(path.open("rb", buffering=0)):
            raise Corrupt("it is neither zip nor tar.")
        for member in archives.members(path.open("rb", buffering=0), budget):
            stopping()
            place = _place(member)
            if place in seen:
                raise Corrupt(f"it has {place[:200]!r} twice.")
            seen.add(place)
            with member.open() as content:
                _write(folder / place, content, stopping, take)
    except Corrupt as e:
        raise Corrupt(f"{shown}: {e} Pack it again.") from None
    except TooMuch as e:
        raise Corrupt(f"{shown}: it {e}. Pack it again.") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Corrupt(f"{shown}: a name in it is both a file and a folder. Pack it again.") from None
    except BROKEN as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # our own disk
        raise Corrupt(f"{shown}: is broken: {str(e)[:200]}. Pack it again.") from None
    if not seen:
        raise Corrupt(f"{shown}: there are no files in it.")


def _place(member: Member) -> str:
    place = checked_path(member.path)
    if member.flaw:
        what = "encrypted" if member.flaw is Flaw.ENCRYPTED else f"not a plain file, but {member.flaw}"
        raise Corrupt(f"its member {member.path[:200]!r} is {what}.")
    return place


def _write(path: Path, content: IO[bytes], stopping: Callable[[], None], take: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as out:
        while piece := content.read(_PIECE):
            take(len(piece))
            out.write(piece)
            stopping()
