"""Durable files: what returns from here survives a power cut.

A state lives in a folder of a file system or in an object store, and this is the only module that knows the difference:
its functions take a ``StatePath``, which is one or the other. On a disk a name is durable once its folder is synced; an
object is durable, and whole, when the store has taken it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from ferryman.errors import EngineError, FerrymanError, Misconfigured, StateDamaged, Unavailable, plain_text
from ferryman.storage import disk, objects
from ferryman.storage import objects as cache
from ferryman.storage import objects as listing
from ferryman.storage.disk import TEMPORARY, discard_if_left, requires, temporary_name, write_synced
from ferryman.storage.objects import ObjectPath

StatePath = Path | ObjectPath
"""A name in a state, wherever the state is."""


_MAX_HEAD_REQUESTS: Final = 8
"""Objects that are asked for one by one, and not by a list of all."""


def path_of(where: str | StatePath) -> StatePath:
    """What somebody has named: the folder of a state, or its URL.

    Raises:
        UsageError: a URL of something else than an object store.
    """
    if isinstance(where, ObjectPath):
        return where
    return ObjectPath.parse(str(where)) if objects.is_url(where) else Path(where)


def fsync_folder(folder: StatePath | str) -> None:
    """Make the names in a folder durable. In an object store, they are."""
    if not isinstance(folder, ObjectPath):
        disk.sync_folder(folder)


def fsync_file(path: StatePath | str) -> None:
    """Make a file's content durable, whoever wrote it."""
    if isinstance(path, ObjectPath):
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: StatePath, data: bytes) -> None:
    """Set a file's content, all or nothing, durably."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, data)
        return
    temporary = temporary_name(path)
    with discard_if_left(temporary):
        write_synced(temporary, data)
        os.replace(temporary, path)
    fsync_folder(path.parent)


def publish(path: StatePath, data: bytes) -> bool:
    """Make a file whole and once for all: False if it is there already (its content is not looked at). Durable in
    either case: whoever made it may have been killed before its name was."""
    with staged(path, data) as name_it:
        made = name_it()
    fsync_folder(path.parent)
    return made


@contextlib.contextmanager
def staged(path: StatePath, data: bytes) -> Iterator[Callable[[], bool]]:
    """Content that is ready: one call gives it its name, which is durable once its folder is synced; False: the name is
    taken."""
    if isinstance(path, ObjectPath):
        yield lambda: path.store.create(path.key, data) is not None
        return
    temporary = temporary_name(path)
    with discard_if_left(temporary):
        write_synced(temporary, data)
        yield lambda: _link(temporary, path)


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def make_folder(folder: StatePath, mode: int = 0o777) -> None:
    """Make a folder and its parents, durably; an object store needs none. ``mode``: of those that are made, less the
    umask.

    One that is there may have been made by a process that was killed before its name was durable: that is seen to once
    a process.
    """
    if isinstance(folder, ObjectPath):
        return
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    if folder not in _durable_folders:
        with contextlib.suppress(OSError):  # somebody else's, which we may not even read
            fsync_folder(folder.parent)
        if len(_durable_folders) >= _MAX_DURABLE_FOLDERS:
            _durable_folders.clear()
        _durable_folders.add(folder)
    for each in reversed(missing):
        each.mkdir(mode, exist_ok=True)
        with requires(each.parent, "a sync of folders"):
            fsync_folder(each.parent)
        _durable_folders.add(each)


_MAX_DURABLE_FOLDERS: Final = 10_000
_durable_folders: Final[set[Path]] = set()
"""Folders that were there, and whose names this process has made durable."""


def probe(folder: StatePath) -> None:
    """Has the file system of a folder, or the object store, all that a state needs? Leaves nothing behind.

    Raises:
        UsageError: it has not; names what is missing.
    """
    if isinstance(folder, ObjectPath):
        objects.probe(folder)
    else:
        disk.probe(folder)


def read(path: StatePath) -> bytes:
    """A file's content.

    Raises:
        FileNotFoundError: there is none.
    """
    if isinstance(path, Path):
        return path.read_bytes()
    if (data := path.store.get(path.key)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


def read_version(path: StatePath) -> tuple[bytes, str] | None:
    """A file's content, and what names this version of an object (""); None: there is none."""
    if isinstance(path, ObjectPath):
        return path.store.get_tagged(path.key)
    try:
        return path.read_bytes(), ""
    except FileNotFoundError:
        return None


def replace_version(path: StatePath, data: bytes, version: str | None) -> bool:
    """``replace`` an object if it is still this version, or is still not there (None); False: somebody was faster. On a
    disk it is replaced: a lock keeps others out.

    Args:
        data: never the same twice, by which it is known after an answer that was lost.
    """
    if isinstance(path, Path):
        replace(path, data)
        return True
    store = path.store
    return (store.create(path.key, data) if version is None else store.put(path.key, data, version)) is not None


def exists(path: StatePath) -> bool:
    """Is there a file of this name?"""
    return path.exists() if isinstance(path, Path) else path.store.head(path.key) is not None


def can_open(path: StatePath) -> bool:
    """The same, asked where the file lies: also a network file system that remembers names asks its server."""
    if isinstance(path, ObjectPath):
        return exists(path)
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def is_folder(path: StatePath) -> bool:
    """Is there a folder of this name? In an object store: anything below it."""
    return path.is_dir() if isinstance(path, Path) else any(path.store.list_folder(path.key))


def list_names(folder: StatePath) -> list[str]:
    """Names of the files and folders in a folder, in no order; none if it is not there."""
    if isinstance(folder, ObjectPath):
        folders, found = folder.store.list_folder(folder.key)
        return [*folders, *(each.key.rpartition("/")[2] for each in found)]
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk_names(folder: StatePath) -> Iterator[str]:
    """Names of all files and folders in a folder and below it, with "/" between their parts; of its own, if it is a
    file."""
    if isinstance(folder, ObjectPath):
        start = len(folder.key) + 1
        yield from (found.key[start:] for _, found in objects.walk(folder))
    elif folder.is_dir():
        yield from (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    elif folder.exists():
        yield folder.name


def file_sizes(folder: StatePath) -> dict[str, int]:
    """Name -> bytes of the files in a folder."""
    if isinstance(folder, ObjectPath):
        return {each.key.rpartition("/")[2]: each.size for each in folder.store.list_folder(folder.key)[1]}
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except FileNotFoundError:
        return {}


def cached_listing(folder: StatePath) -> contextlib.AbstractContextManager[None]:
    """In this block one list answers what is asked about an object store, see ``storage.listing``."""
    return listing.cached_listing(folder) if isinstance(folder, ObjectPath) else contextlib.nullcontext()


def look_up_sizes(folder: StatePath, wanted: Sequence[str]) -> list[int | None]:
    """Bytes of these files in a folder; None: it is not there."""
    if isinstance(folder, ObjectPath):
        if len(wanted) <= _MAX_HEAD_REQUESTS:
            heads = [folder.store.head((folder / name).key) for name in wanted]
            return [None if head is None else head.size for head in heads]
        found = file_sizes(folder)
        return [found.get(name) for name in wanted]
    return [_size(folder / name) for name in wanted]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def touch(path: StatePath) -> None:
    """Its age counts from now, where that can be said: not of somebody else's file, nor of an object."""
    if isinstance(path, Path):
        with contextlib.suppress(OSError):
            os.utime(path)


def filesystem_time(path: StatePath) -> float:
    """The time of its file system, or store, seconds since 1970: it is written to for that."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, b"")
        found = path.store.head(path.key)
        return 0.0 if found is None else found.changed
    os.utime(path)
    return path.stat().st_mtime


def remove(path: StatePath) -> None:
    """Remove a file, if it is there."""
    if isinstance(path, ObjectPath):
        path.store.delete([path.key])
        cache.remove_cached(path)
    else:
        path.unlink(missing_ok=True)


def remove_all(paths: Iterable[StatePath]) -> None:
    """Remove files, in their order; those that are not there are passed over."""
    gone = list(paths)
    in_store = [path for path in gone if isinstance(path, ObjectPath)]
    if in_store:
        in_store[0].store.delete([path.key for path in in_store])
    for path in gone:
        if isinstance(path, Path):
            path.unlink(missing_ok=True)
        else:
            cache.remove_cached(path)


def remove_folder(folder: StatePath) -> None:
    """Remove a folder with all that is in it, as far as that is possible."""
    if isinstance(folder, ObjectPath):
        folder.store.delete([found.key for _, found in objects.walk(folder)])
        cache.remove_cached_folder(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_flat_folder(folder: StatePath) -> None:
    """Remove a folder of files, with what is in it.

    Raises:
        OSError: something came into it meanwhile, or it cannot be removed.
    """
    if isinstance(folder, ObjectPath):
        remove_folder(folder)
        return
    for leftover in folder.iterdir():
        leftover.unlink(missing_ok=True)
    folder.rmdir()


def local_copy(path: StatePath) -> Path:
    """A file that never changes, as a file of this machine: itself, or a copy of the object.

    Raises:
        FileNotFoundError: there is no such object.
    """
    return cache.fetch(path) if isinstance(path, ObjectPath) else path


def local_copies(paths: Iterable[StatePath]) -> list[Path]:
    """The same for many, several at a time."""
    wanted = list(paths)
    if not any(isinstance(path, ObjectPath) for path in wanted):
        return [local_copy(path) for path in wanted]
    return cache.fetch_all([path for path in wanted if isinstance(path, ObjectPath)])


def local_path(name: str | Path) -> str:
    """A file's path, or an object's URL, as a task has it: as the path of a file of this machine. See ``local``."""
    return str(local_copy(path_of(str(name))))


def path_to_write(path: StatePath) -> Path:
    """A file of this machine to write, for what is read once and soon; others see it after ``share``."""
    return local_folder(path.parent) / path.name


def upload(path: StatePath) -> None:
    """What was written is there for others: on a disk it is already. Nothing is synced."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, cache.cached_path(path))


def move_to_state(made: Path, path: StatePath) -> None:
    """A file of this machine, synced, gets its name; see ``workplace``."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, made)
        made.replace(cache.cached_path(path))
    else:
        made.rename(path)


def local_folder(folder: StatePath) -> Path:
    """A folder of this machine from which ``give`` can name files in a folder of the state: the folder itself on a
    disk."""
    if isinstance(folder, Path):
        return folder
    found = cache.cached_path(folder)
    found.mkdir(parents=True, exist_ok=True)
    return found


def remove_temporary(folder: StatePath, before: float) -> None:
    """Remove the half-written files that a crash left in a folder: those that nobody has changed since ``before`` (a
    time of the file system, seconds since 1970). A younger one may be somebody's who is at work."""
    for name in list_names(folder):
        if name.startswith(TEMPORARY) and changed_before(folder / name, before):
            remove(folder / name)


def stamp(path: StatePath) -> tuple[int | str, ...] | None:
    """What tells a file from another one of its name; None: there is none."""
    if isinstance(path, ObjectPath):
        found = path.store.head(path.key)
        return None if found is None else (found.tag, found.size)
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def changed_before(path: StatePath, when: float) -> bool:
    """Was a file that is there changed last before this time of its file system or store (seconds since 1970)?"""
    if isinstance(path, ObjectPath):
        found = path.store.head(path.key)
        return found is not None and found.changed < when
    try:
        return path.stat().st_mtime < when
    except FileNotFoundError:
        return False


def is_disk_full(error: BaseException) -> bool:
    """Is this what a full disk (or a used-up quota) makes of a write, also of one by Spark or delta-rs?"""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "No space left on device" in plain_text(error)


# Errors of the files below a folder, in words that say what to do.

_C = TypeVar("_C")
_P = ParamSpec("_P")
_R = TypeVar("_R")

_TRANSIENT_ERRNOS: Final = (
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ENOENT,
)
"""A disk in trouble, too many open files; or the folder was removed, which ``check`` makes again."""

_PATH_ERRNOS: Final = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
"""The path is none that one may read or write here, until somebody changes that."""


_DISK_ERRNOS: Final = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def classified_errors(folder: Path | ObjectPath) -> Iterator[None]:
    """Errors of the file system inside come out as ``TransientError`` or ``PermanentError``, about the whole folder."""
    try:
        yield
    except OSError as e:
        why = f"{folder}: {e.strerror or e}"
        if is_disk_full(e) or e.errno in _TRANSIENT_ERRNOS:
            raise Unavailable(f"{why}. It is tried again.") from e
        raise Misconfigured(f"{why}. Make it a folder that can be written, then run again.") from e


@contextmanager
def explained_errors(where: object) -> Iterator[None]:
    """Errors of the file system inside come out in words, see ``in_words``: for whoever calls Ferryman."""
    try:
        yield
    except Exception as e:
        if (said := explain_error(where, e)) is e:
            raise
        raise said from e


def explain_error(where: object, error: Exception) -> Exception:
    """What to do about an error of the file system or the disk; any other one itself.

    Args:
        where: named where the error names no path.
    """
    if isinstance(error, FerrymanError):
        return error
    path = os.fsdecode(name) if isinstance(name := getattr(error, "filename", None), str | bytes) else where
    if is_disk_full(error):
        return EngineError(f"{path}: the disk is full. Nothing is lost: make room and do it again.")
    if not (isinstance(error, OSError) or _is_duckdb_file_error(error)):
        return error
    why = f"{path}: {plain_text(getattr(error, 'strerror', None) or error)}"
    if getattr(error, "errno", None) in _PATH_ERRNOS:
        return EngineError(f"{why}. Nothing is lost: make it one that can be read and written, then do it again.")
    return EngineError(f"{why}. Nothing is lost: fix it and do it again.")


def is_disk_error(error: BaseException) -> bool:
    """Did the disk refuse or fail, which no other process can be behind?"""
    return isinstance(error, OSError) and error.errno in _DISK_ERRNOS


def _is_duckdb_file_error(error: Exception) -> bool:
    """Is it DuckDB's error of a file that it reads or spills into?"""
    duckdb = sys.modules.get("duckdb")  # who has not loaded it has no error of it
    return duckdb is not None and isinstance(error, duckdb.IOException)


def explain_errors_of_class(where: Callable[[Any], object]) -> Callable[[type[_C]], type[_C]]:
    """Make all public methods and properties of a class, and its ``__init__``, tell errors of files in words.

    Args:
        where: of an object, the folder that it is about.
    """

    def wrapped(method: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> _R:
            try:
                return method(self, *args, **options)
            except FerrymanError:
                raise
            except Exception as e:
                if (said := explain_error(where(self), e)) is e:
                    raise
                raise said from e

        return call

    def decorated(of: type[_C]) -> type[_C]:
        for name, member in list(vars(of).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(member, property):
                setattr(of, name, member.getter(wrapped(member.fget)) if member.fget else member)
            elif callable(member):
                setattr(of, name, wrapped(member))
        return of

    return decorated


def explain_errors_of_state(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make an operation on a state, the ``state=`` of its call, tell errors of files in words."""

    @functools.wraps(call)
    def outer(*args: _P.args, **options: _P.kwargs) -> _R:
        state: Any = options.get("state")
        with explained_errors(path_of(".ferryman" if state is None else state)):
            return call(*args, **options)

    return outer


# Small files that hold their own checksum, so that a damaged one is known.


def checksum(data: bytes) -> str:
    """What a mark says of a file of the log."""
    return blake2b(data, digest_size=16).hexdigest()


def seal(record: object) -> bytes:
    """A record as JSON behind its CRC-32, so that ``unseal`` knows it whole."""
    body = msgspec.json.encode(record)
    return b"%08x " % zlib.crc32(body) + body


def unseal(path: StatePath) -> object:
    """The record in a sealed file.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    try:
        return unseal_bytes(path, read(path))
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None


def unseal_bytes(path: StatePath, data: bytes) -> object:
    """The record in the content of a sealed file.

    Raises:
        StateDamaged: it is not what was written.
    """
    body = data[9:]
    if data[:9] != b"%08x " % zlib.crc32(body):
        raise StateDamaged(str(path), "its checksum does not match its content")
    return msgspec.json.decode(body)
