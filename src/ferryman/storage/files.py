"""Durable files of a state, on a disk or in an object store: what returns from here survives a power cut.

A state lives in a folder of a file system or in an object store, and this is the only module that knows the difference:
its functions take a ``StatePath``, which is one or the other. On a disk a name is durable once its folder is synced; an
object is durable and complete once the store has accepted it.

It also explains errors of the file system to users, and seals small files with a checksum.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import itertools
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from ferryman.errors import EngineError, FerrymanError, Misconfigured, StateDamaged, Unavailable, plain_text
from ferryman.storage import disk, objects
from ferryman.storage.disk import TEMPORARY, discard_if_left, requires, temporary_name, write_synced
from ferryman.storage.objects import ObjectPath

StatePath = Path | ObjectPath
"""Path of a file or folder of a state, on a disk or in an object store."""

Stamp = tuple[int | str, ...]
"""Values that distinguish a file from another of the same name."""


_MAX_HEAD_REQUESTS: Final = 8
"""Number of objects up to which their sizes are requested one by one, instead of listing the folder."""


def path_of(where: str | StatePath) -> StatePath:
    """Parse the folder of a state, or its URL, as a user has named it.

    Raises:
        UsageError: the URL is not one of an object store.
    """
    if isinstance(where, ObjectPath):
        return where
    return ObjectPath.parse(str(where)) if objects.is_url(where) else Path(where)


def fsync_folder(folder: StatePath | str) -> None:
    """Make the names in a folder durable; in an object store they already are."""
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
    """Set a file's content atomically and durably."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, data)
        return
    temporary = temporary_name(path)
    with discard_if_left(temporary):
        write_synced(temporary, data)
        os.replace(temporary, path)
    fsync_folder(path.parent)


def publish(path: StatePath, data: bytes) -> bool:
    """Create a file, complete and once only; return False, without a look at its content, if it exists. Durable in
    either case: whoever created it may have been killed before its name was."""
    with staged(path, data) as publish_name:
        created = publish_name()
    fsync_folder(path.parent)
    return created is not None


@contextlib.contextmanager
def staged(path: StatePath, data: bytes) -> Iterator[Callable[[], Stamp | None]]:
    """Prepare content under a temporary name. Calling the yielded function gives it its name and returns its stamp, or
    None if the name is taken; the name is durable once its folder is synced."""
    if isinstance(path, ObjectPath):
        yield lambda: _create(path, data)
        return
    temporary = temporary_name(path)
    with discard_if_left(temporary):
        write_synced(temporary, data)
        yield lambda: _link(temporary, path)


def _create(path: ObjectPath, data: bytes) -> Stamp | None:
    tag = path.store.create(path.key, data)
    return None if tag is None else (tag, len(data))


def _link(temporary: Path, path: Path) -> Stamp | None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return None
    return stamp(temporary)


def make_folder(folder: StatePath, mode: int = 0o777) -> None:
    """Create a folder and its parents, durably; an object store needs none. ``mode`` applies to the folders created,
    less the umask.

    An existing folder may have been created by a process that was killed before its name was durable, so its parent is
    synced once per process.
    """
    if isinstance(folder, ObjectPath):
        return
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    if folder not in _durable_folders:
        with contextlib.suppress(OSError):  # another user's, which we may not be allowed to read
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
"""Folders that existed and whose names this process has made durable."""


def probe(folder: StatePath) -> None:
    """Check that the file system of a folder, or the object store, has all features that a state needs; no file
    remains.

    Raises:
        UsageError: it has not; names the missing feature.
    """
    if isinstance(folder, ObjectPath):
        objects.probe(folder)
    else:
        disk.probe(folder)


def read(path: StatePath) -> bytes:
    """Return a file's content.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if isinstance(path, Path):
        return path.read_bytes()
    if (data := path.store.get(path.key)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


def read_version(path: StatePath) -> tuple[bytes, str] | None:
    """Return a file's content, and the version tag of an object ("" for a file); None if it does not exist."""
    if isinstance(path, ObjectPath):
        return path.store.get_tagged(path.key)
    try:
        return path.read_bytes(), ""
    except FileNotFoundError:
        return None


def replace_version(path: StatePath, data: bytes, version: str | None) -> bool:
    """Replace an object atomically if it is still at this version, or still missing (None); return False if it was
    changed in the meantime. A file on a disk is replaced in any case: a lock keeps others out.

    Args:
        data: different each time, so that it is recognized if the store's answer was lost.
    """
    if isinstance(path, Path):
        replace(path, data)
        return True
    store = path.store
    return (store.create(path.key, data) if version is None else store.put(path.key, data, version)) is not None


def exists(path: StatePath) -> bool:
    """Return whether a file of this name exists."""
    return path.exists() if isinstance(path, Path) else path.store.head(path.key) is not None


def can_open(path: StatePath) -> bool:
    """Return whether a file exists, asking where it is stored: a network file system that caches names asks its
    server."""
    if isinstance(path, ObjectPath):
        return exists(path)
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def is_folder(path: StatePath) -> bool:
    """Return whether a folder of this name exists; in an object store, whether any object lies below it."""
    return path.is_dir() if isinstance(path, Path) else any(path.store.list_folder(path.key))


def list_names(folder: StatePath) -> list[str]:
    """Return the names of the files and folders in a folder, unordered; empty if it does not exist."""
    if isinstance(folder, ObjectPath):
        folders, found = folder.store.list_folder(folder.key)
        return [*folders, *(each.key.rpartition("/")[2] for each in found)]
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_stamps(folder: StatePath) -> dict[str, Stamp | None]:
    """Return name -> stamp of the files in a folder, see ``stamp``; None where it would take a call of its own."""
    if isinstance(folder, ObjectPath):
        return {each.key.rpartition("/")[2]: (each.tag, each.size) for each in folder.store.list_folder(folder.key)[1]}
    return dict.fromkeys(list_names(folder))


def walk_names(folder: StatePath) -> Iterator[str]:
    """Yield the relative names of all files and folders below a folder, with "/" as separator; a file yields its own
    name."""
    if isinstance(folder, ObjectPath):
        start = len(folder.key) + 1
        yield from (found.key[start:] for _, found in objects.walk(folder))
    elif folder.is_dir():
        yield from (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    elif folder.exists():
        yield folder.name


def file_sizes(folder: StatePath) -> dict[str, int]:
    """Return name -> size in bytes of the files in a folder."""
    if isinstance(folder, ObjectPath):
        return {each.key.rpartition("/")[2]: each.size for each in folder.store.list_folder(folder.key)[1]}
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except FileNotFoundError:
        return {}


def cached_listing(folder: StatePath) -> contextlib.AbstractContextManager[None]:
    """List the folder once in an object store, and answer questions in this block from that listing, see
    ``storage.objects.cached_listing``."""
    return objects.cached_listing(folder) if isinstance(folder, ObjectPath) else contextlib.nullcontext()


def look_up_sizes(folder: StatePath, wanted: Sequence[str]) -> list[int | None]:
    """Return the sizes in bytes of these files in a folder; None for a missing one."""
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
    """Set a file's modification time to now, where permitted; not for another user's file, nor for an object."""
    if isinstance(path, Path):
        with contextlib.suppress(OSError):
            os.utime(path)


def filesystem_time(path: StatePath) -> float:
    """Return the current time of the file system, or store, in seconds since 1970, by writing to this path."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, b"")
        found = path.store.head(path.key)
        return 0.0 if found is None else found.changed
    os.utime(path)
    return path.stat().st_mtime


def remove(path: StatePath) -> None:
    """Remove a file if it exists."""
    if isinstance(path, ObjectPath):
        path.store.delete([path.key])
        objects.remove_cached(path)
    else:
        path.unlink(missing_ok=True)


def remove_all(paths: Iterable[StatePath]) -> None:
    """Remove files, in this order; missing ones are skipped."""
    removed = list(paths)
    in_store = [path for path in removed if isinstance(path, ObjectPath)]
    if in_store:
        in_store[0].store.delete([path.key for path in in_store])
    for path in removed:
        if isinstance(path, Path):
            path.unlink(missing_ok=True)
        else:
            objects.remove_cached(path)


def remove_folder(folder: StatePath) -> None:
    """Remove a folder with all its content, as far as possible."""
    if isinstance(folder, ObjectPath):
        folder.store.delete([found.key for _, found in objects.walk(folder)])
        objects.remove_cached_folder(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_flat_folder(folder: StatePath) -> None:
    """Remove a folder of files, with its content.

    Raises:
        OSError: a file was added in the meantime, or it cannot be removed.
    """
    if isinstance(folder, ObjectPath):
        remove_folder(folder)
        return
    for leftover in folder.iterdir():
        leftover.unlink(missing_ok=True)
    folder.rmdir()


def local_copy(path: StatePath) -> Path:
    """Return an immutable file as a local file: itself, or a cached copy of the object.

    Raises:
        FileNotFoundError: there is no such object.
    """
    return objects.fetch(path) if isinstance(path, ObjectPath) else path


def fresh_copy(path: StatePath) -> Path:
    """Return an immutable file as ``local_copy`` does, an object as it is in the store now.

    Raises:
        FileNotFoundError: there is no such object.
    """
    if isinstance(path, ObjectPath):
        objects.remove_cached(path)
    return local_copy(path)


def damage_of(file: Path | str, what: str) -> StateDamaged:
    """Return the error for a data file, or an object given by its URL, that is not what was written. A local copy of an
    object is removed."""
    remedy = ""
    if objects.remove_if_copy(Path(file)):
        remedy = (
            "It is a copy of an object on this machine, and was removed: run again, which fetches the object. If that "
            "is damaged, too, restore it from a copy"
        )
    return StateDamaged(str(file), what, remedy)


def local_copies(paths: Iterable[StatePath]) -> list[Path]:
    """Return immutable files as local files; objects are fetched several at a time."""
    wanted = list(paths)
    if not any(isinstance(path, ObjectPath) for path in wanted):
        return [local_copy(path) for path in wanted]
    return objects.fetch_all([path for path in wanted if isinstance(path, ObjectPath)])


def local_path(name: str | Path) -> str:
    """Return a file's path or an object's URL, as a task has it, as the path of a local file. See ``local_copy``."""
    return str(local_copy(path_of(str(name))))


def path_to_write(path: StatePath) -> Path:
    """Return a local path for writing a short-lived file; others see it after ``upload``."""
    return local_folder(path.parent) / path.name


def upload(path: StatePath) -> None:
    """Make a file written locally visible to others; on a disk it already is. Nothing is synced."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, objects.cached_path(path))


def move_to_state(file: Path, path: StatePath) -> None:
    """Give a synced file from ``local_folder`` its name in the state."""
    if isinstance(path, ObjectPath):
        path.store.put(path.key, file)
        file.replace(objects.cached_path(path))
    else:
        file.rename(path)


def local_folder(folder: StatePath) -> Path:
    """Return a local folder from which ``move_to_state`` can move files into a folder of the state; on a disk, the
    folder itself."""
    if isinstance(folder, Path):
        return folder
    found = objects.cached_path(folder)
    found.mkdir(parents=True, exist_ok=True)
    return found


def remove_temporary(folder: StatePath, before: float) -> None:
    """Remove half-written files that a crash left in a folder: those not changed since ``before`` (a time of the file
    system, seconds since 1970). A younger one may belong to a process at work."""
    for name in list_names(folder):
        if name.startswith(TEMPORARY) and changed_before(folder / name, before):
            remove(folder / name)


def stamp(path: StatePath) -> Stamp | None:
    """Return values that distinguish a file from another of the same name; None if it does not exist."""
    if isinstance(path, ObjectPath):
        found = path.store.head(path.key)
        return None if found is None else (found.tag, found.size)
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def changed_before(path: StatePath, when: float) -> bool:
    """Return whether a file exists and was last changed before this time of its file system or store (seconds since
    1970)."""
    if isinstance(path, ObjectPath):
        found = path.store.head(path.key)
        return found is not None and found.changed < when
    try:
        return path.stat().st_mtime < when
    except FileNotFoundError:
        return False


def is_disk_full(error: BaseException) -> bool:
    """Return whether a write failed because of a full disk or an exhausted quota, also in Spark or delta-rs."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "No space left on device" in plain_text(error)


# --- errors of the file system, explained ---

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
"""A failing disk, too many open files; or the folder was removed, which ``check`` creates again."""

_PATH_ERRNOS: Final = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
"""Errors of a path that cannot be read or written until somebody changes it."""


_DISK_ERRNOS: Final = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def classified_errors(folder: Path | ObjectPath) -> Iterator[None]:
    """Raise errors of the file system inside as ``Unavailable`` or ``Misconfigured``, about the whole folder."""
    try:
        yield
    except OSError as e:
        why = f"{folder}: {e.strerror or e}"
        if is_disk_full(e) or e.errno in _TRANSIENT_ERRNOS:
            raise Unavailable(f"{why}. It is tried again.") from e
        raise Misconfigured(f"{why}. Make it a folder that can be written, then run again.") from e


@contextmanager
def explained_errors(where: object) -> Iterator[None]:
    """Raise errors of the file system inside as Ferryman's errors that say what to do, see ``explain_error``: for the
    public interface."""
    try:
        yield
    except Exception as e:
        if (explained := explain_error(where, e)) is e:
            raise
        raise explained from e


def explain_error(where: object, error: Exception) -> Exception:
    """Return an error of the file system or the disk as one that says what to do; any other error as it is.

    Args:
        where: named in place of a path if the error has none.
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
    """Return whether the disk itself refused or failed, which no other process can have caused."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRNOS


def _is_duckdb_file_error(error: Exception) -> bool:
    """Return whether this is DuckDB's error of a file that it reads or spills into."""
    duckdb = sys.modules.get("duckdb")  # not loaded: it cannot be an error of DuckDB
    return duckdb is not None and isinstance(error, duckdb.IOException)


def explain_errors_of_class(where: Callable[[Any], object]) -> Callable[[type[_C]], type[_C]]:
    """Make all public methods and properties of a class, and its ``__init__``, explain errors of files.

    Args:
        where: returns the folder that an object is about.
    """

    def wrapped(method: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> _R:
            try:
                return method(self, *args, **options)
            except FerrymanError:
                raise
            except Exception as e:
                if (explained := explain_error(where(self), e)) is e:
                    raise
                raise explained from e

        return call

    def decorated(cls: type[_C]) -> type[_C]:
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(member, property):
                setattr(cls, name, member.getter(wrapped(member.fget)) if member.fget else member)
            elif callable(member):
                setattr(cls, name, wrapped(member))
        return cls

    return decorated


def explain_errors_of_state(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make an operation on a state, given as ``state=``, explain errors of files."""

    @functools.wraps(call)
    def outer(*args: _P.args, **options: _P.kwargs) -> _R:
        state: Any = options.get("state")
        with explained_errors(path_of(".ferryman" if state is None else state)):
            return call(*args, **options)

    return outer


# --- sealed files: small, with their own checksum, so that damage is detected ---


def seal(record: object) -> bytes:
    """Encode a record as JSON behind its CRC-32, which ``unseal`` verifies."""
    body = msgspec.json.encode(record)
    return b"%08x " % zlib.crc32(body) + body


def unseal(path: StatePath) -> object:
    """Return the record in a sealed file.

    Raises:
        StateDamaged: the file is missing, or its content is not what was written.
    """
    try:
        return unseal_bytes(path, read(path))
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None


def unseal_bytes(path: StatePath, data: bytes) -> object:
    """Return the record in the content of a sealed file.

    Raises:
        StateDamaged: its content is not what was written.
    """
    body = data[9:]
    if data[:9] != b"%08x " % zlib.crc32(body):
        raise StateDamaged(str(path), "its checksum does not match its content")
    return msgspec.json.decode(body)


# --- records that are appended one by one ---

_FRAME: Final = struct.Struct("<II")
"""Before each record: its length and CRC-32."""
_WRITTEN_BYTES: Final = 4 * 1024 * 1024
"""Records that are held before they are written; those of one write are an object of their own in a store."""


class RecordPlace(NamedTuple):
    """Place of a record: the number of its object (0 on a disk), and the bytes before it there."""

    object: int = 0
    at: int = 0


class RecordWriter:
    """Appends records to one new file; in an object store, to objects ``<path>.0``, ``<path>.1`` and so on. It has one
    writer, once.

    Args:
        locked: lock the file, on a disk, until it is closed.
    """

    def __init__(self, path: StatePath, *, locked: bool = False) -> None:
        self._path = path
        self._locked = locked
        self._held: list[bytes] = []
        self._bytes = 0
        """Bytes of the records that are held."""
        self._end = RecordPlace()
        """Place behind the last record that is written."""
        self._fd = -1

    def add(self, record: bytes) -> RecordPlace:
        """Append a record, which is durable after the next ``sync``; return its place."""
        place = self._end._replace(at=self._end.at + self._bytes)
        self._held += [_FRAME.pack(len(record), zlib.crc32(record)), record]
        self._bytes += _FRAME.size + len(record)
        if self._bytes >= _WRITTEN_BYTES:
            self._write()
        return place

    def flush(self) -> None:
        """Let others see all records, on a disk."""
        if not isinstance(self._path, ObjectPath):
            self._write()

    def sync(self) -> None:
        """Make all records durable."""
        self._write()
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        """Write the records that are held. If that fails they are lost on a disk, and held on in a store."""
        data = b"".join(self._held)
        if isinstance(self._path, ObjectPath):
            if data:
                replace(numbered(self._path, self._end.object), data)
                self._end = RecordPlace(self._end.object + 1)
            self._held, self._bytes = [], 0
        else:
            self._held, self._bytes = [], 0
            self._append(self._path, memoryview(data))
            self._end = RecordPlace(0, self._end.at + len(data))

    def _append(self, path: Path, data: memoryview) -> None:
        if self._fd < 0:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            if self._locked:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            fsync_folder(path.parent)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            os.ftruncate(self._fd, self._end.at)  # a reader would take what follows for the rest of a cut record
            raise


def read_records(path: StatePath) -> Iterator[bytes]:
    """Yield the records of a ``RecordWriter``, up to the first that a kill has cut off, or that is damaged."""
    if isinstance(path, ObjectPath):
        for number in itertools.count():
            if (found := read_version(numbered(path, number))) is None:
                return
            yield from _whole_records(io.BytesIO(found[0]))
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        yield from _whole_records(file)


def _whole_records(file: BinaryIO) -> Iterator[bytes]:
    for _, record in framed_records(file):
        if record is None:
            return
        yield record


def framed_records(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield for each record of a ``RecordWriter``, from the file's position on, how many bytes it takes there, and its
    content; None: it is damaged. One that is cut off is not yielded."""
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        length, checksum = _FRAME.unpack(head)
        if len(record := file.read(length)) < length:
            return
        yield _FRAME.size + length, record if zlib.crc32(record) == checksum else None


def numbered(path: ObjectPath, number: int) -> ObjectPath:
    """Return the path of one of the objects of a ``RecordWriter``."""
    return path.parent / f"{path.name}.{number}"
