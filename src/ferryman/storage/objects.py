"""Object stores as a place for a state: paths in them, the few requests that Ferryman makes, and local copies of
objects.

A path is an ``ObjectPath``; ``storage.files`` has the same functions for it as for a file's path. A store must offer:
objects appear completely or not at all; of two writers that create a name one wins (``If-None-Match``); an object can
be replaced on condition that it still has a given version (``If-Match``); a listing shows everything written before it.
Amazon S3 has all of that since 2024, as have Google's and Microsoft's stores, MinIO and versitygw.

Credentials and addresses come from the environment: ``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` …, as obstore and most
other programs take them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ferryman.errors import EngineError, UsageError
from ferryman.net import urls
from ferryman.storage.disk import TEMPORARY

_URL = re.compile(r"(s3a?|gs|abfss?|az)://([^/]+)(?:/(.*))?\Z")
_NONCE: Final = "ferryman-nonce"
"""Metadata of an object that only one process may create, by which its creator recognizes it if the store's answer was
lost."""
_PROBES: Final = 3
"""Times that a store is asked whether it supports conditional writes, since another driver may empty the folder in
between."""
RETRY_S: Final = 60.0
"""Seconds for which a request is retried if the store answers with a server error or not at all."""


class StoredObject(NamedTuple):
    """Object listed by a store."""

    key: str
    size: int
    changed: float
    """Seconds since 1970, by the store's clock."""
    tag: str
    """Tag of this version."""


class ObjectStore(Protocol):
    """Requests that a state makes to an object store. Keys are complete names in the bucket, with "/" as separator.

    Every method may raise ``EngineError``: the store is unavailable, or refuses.
    """

    def create(self, key: str, data: bytes) -> str | None:
        """Create an object and return its tag; None if the name is taken. Only one creator wins, and it knows that even
        if an answer was lost."""

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        """Create or replace an object and return its tag; None if it is no longer at version ``if_match``."""

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None if it does not exist."""

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """Return an object's content and the tag of this version; None if it does not exist."""

    def head(self, key: str) -> StoredObject | None:
        """Return an object's metadata; None if it does not exist."""

    def list_objects(self, prefix: str) -> list[StoredObject]:
        """Return all objects whose keys begin with a prefix, sorted by key."""

    def list_folder(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        """Return the names of the folders, and the objects, directly below "folder/"."""

    def copy(self, key: str, to: str) -> None:
        """Copy an object inside the store, replacing the target.

        Raises:
            FileNotFoundError: it does not exist.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are skipped."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """Path in an object store, such as s3://bucket/states/papers-v1/state.json."""

    bucket: str
    """"s3://bucket"."""
    key: str

    @classmethod
    def parse(cls, url: str) -> ObjectPath:
        """Parse a URL.

        Raises:
            UsageError: the URL is not one of a supported store.
        """
        found = _URL.match(url)
        if found is None:
            raise UsageError(
                f"{urls.redact(url)}: not the URL of an object store. Give s3://BUCKET/PREFIX, gs://… or abfss://…"
            )
        key = (found[3] or "").strip("/")
        return cls(f"{found[1]}://{found[2]}", "/".join(part for part in key.split("/") if part))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def store(self) -> ObjectStore:
        return store_overrides.get().get(self.bucket) or open_store(self.bucket)

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is in an object store, and was taken for a file")


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether this looks like the URL of an object store, known or not."""
    return isinstance(place, str) and re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


store_overrides: Final[ContextVar[Mapping[str, ObjectStore]]] = ContextVar(
    "ferryman_stores", default=MappingProxyType({})
)
"""Bucket -> store that this thread uses instead of the real one for some time, see ``cached_listing``."""

_opened: dict[str, ObjectStore] = {}


def open_store(bucket: str) -> ObjectStore:
    """Return the store of a bucket, opened once per process."""
    if bucket not in _opened:
        _opened[bucket] = _opener(bucket)
    return _opened[bucket]


def not_installed(where: str) -> str:
    """Return that obstore is missing, with the command that installs it; "" if it is not."""
    if find_spec("obstore") is not None:
        return ""
    return f"{where} needs obstore, not installed here: pip install 'ferryman[store]'"


class RemoteStore:
    """Object store accessed through obstore."""

    def __init__(self, bucket: str, retry_s: float = RETRY_S) -> None:
        try:
            from obstore import store as known
        except ImportError:
            raise UsageError(f"{bucket}: what is there needs obstore: pip install 'ferryman[store]'") from None
        retry: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=retry_s)}
        self._bucket = bucket
        self._pid = os.getpid()
        try:
            self._store: Any = known.from_url(bucket, retry_config=retry)
        except Exception as e:  # of several kinds
            raise UsageError(
                f"{bucket}: this object store cannot be opened ({_first_line(e)}). Set its credentials and its address "
                "in the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL."
            ) from e

    def create(self, key: str, data: bytes) -> str | None:
        from obstore.exceptions import AlreadyExistsError

        nonce = uuid.uuid4().hex
        with self._translate_errors(key):
            try:
                return str(self._store.put(key, data, mode="create", attributes={_NONCE: nonce})["e_tag"])
            except AlreadyExistsError:  # it may be our own, if the answer was lost and the request repeated
                return self._created_by(nonce, key)

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        from obstore.exceptions import PreconditionError

        mode: Any = "overwrite" if if_match is None else {"e_tag": if_match}
        with self._translate_errors(key):
            try:
                return str(self._store.put(key, data, mode=mode)["e_tag"])
            except (PreconditionError, FileNotFoundError):
                if if_match is None:
                    raise
                found = self.head(key) if self.get(key) == data else None  # it may be our own, as above
                return found.tag if found else None

    def get(self, key: str) -> bytes | None:
        with self._translate_errors(key):
            try:
                return bytes(self._store.get(key).bytes())
            except FileNotFoundError:
                return None

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        with self._translate_errors(key):
            try:
                found = self._store.get(key)
                return bytes(found.bytes()), str(found.meta["e_tag"])
            except FileNotFoundError:
                return None

    def head(self, key: str) -> StoredObject | None:
        with self._translate_errors(key):
            try:
                return _stored_object(self._store.head(key))
            except FileNotFoundError:
                return None

    def list_objects(self, prefix: str) -> list[StoredObject]:
        # the store lists whole folders: prefixes that end inside a name are matched here
        folder = prefix.rpartition("/")[0]
        with self._translate_errors(prefix):
            found = [_stored_object(each) for batch in self._store.list(folder or None) for each in batch]
        return sorted(each for each in found if each.key.startswith(prefix))

    def list_folder(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        with self._translate_errors(folder):
            found = self._store.list_with_delimiter(folder or None)
        folders = [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]
        return folders, [_stored_object(each) for each in found["objects"]]

    def copy(self, key: str, to: str) -> None:
        with self._translate_errors(key):
            self._store.copy(key, to, overwrite=True)

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            with self._translate_errors(keys[0]):
                try:
                    self._store.delete(list(keys))
                except FileNotFoundError:  # some stores fail there, and may not have removed the rest of the batch
                    for key in keys:
                        try:
                            self._store.delete(key)
                        except FileNotFoundError:
                            continue

    def _created_by(self, nonce: str, key: str) -> str | None:
        try:
            found = self._store.get(key)
        except FileNotFoundError:
            return None
        return str(found.meta["e_tag"]) if found.attributes.get(_NONCE) == nonce else None

    def _translate_errors(self, key: str) -> _TranslateErrors:
        if os.getpid() != self._pid:
            raise EngineError(
                f"{self._bucket}/{key}: this process was forked from one that uses the object store already, whose "
                "threads it does not have. Start it as a new process (multiprocessing: spawn)."
            )
        return _TranslateErrors(f"{self._bucket}/{key}")


class _TranslateErrors:
    """Converts errors of a store to Ferryman's."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from obstore.exceptions import BaseError

        if isinstance(error, BaseError):
            raise EngineError(
                f"{self._what}: a request to the object store failed ({_first_line(error)}). Nothing is lost: "
                "look at address, credentials and permissions, then run again."
            ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300].rstrip()


def _stored_object(meta: Any) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


def probe(folder: ObjectPath) -> None:
    """Check that the store has all features that a state needs; no object remains.

    Raises:
        UsageError: it has not; names the missing feature.
    """
    if not any(_has_conditional_writes(folder) for _ in range(_PROBES)):
        raise UsageError(
            f"{folder}: this object store overwrites what only one may create (it ignores If-None-Match or If-Match). "
            "Ferryman needs both: use a newer release of it, or another store. Nothing was sent."
        )


def _has_conditional_writes(folder: ObjectPath) -> bool:
    """Return whether the store refuses to overwrite an object that exists, or that is not at the expected version."""
    store, key = folder.store, (folder / f"{TEMPORARY}{uuid.uuid4().hex}").key
    try:
        return bool(store.create(key, b"1")) and not store.create(key, b"2") and store.put(key, b"3", '"0"') is None
    finally:
        store.delete([key])


_opener: Callable[[str], ObjectStore] = RemoteStore


def set_store_opener(opener: Callable[[str], ObjectStore]) -> Callable[[str], ObjectStore]:
    """Open stores with this function from now on, in this process, and return the previous one: for tests."""
    global _opener
    before, _opener = _opener, opener
    _opened.clear()
    return before


def walk(folder: ObjectPath) -> Iterator[tuple[ObjectPath, StoredObject]]:
    """Yield all objects below a folder."""
    for found in folder.store.list_objects(f"{folder.key}/"):
        yield ObjectPath(folder.bucket, found.key), found


# --- local copies of immutable objects: data files, fetched once to a machine and read there as files ---
#
# A copy has the path of its object below the cache folder, and so its name, which contains the checksum of a data file.

CACHE_VARIABLE: Final = "FERRYMAN_CACHE"
"""Environment variable of driver and executors that names the cache folder; default is one in the system's temporary
folder."""
_MAX_AGE_S: Final = 7 * 86_400
"""Age at which a copy that was not opened is removed, when a process first uses the cache."""
_TOUCH_EVERY_S: Final = 3600
_PARALLEL_FETCHES: Final = 8
"""Objects fetched in parallel."""
_prepared_folders: set[Path] = set()


def cache_folder() -> Path:
    """Return the folder of this machine's copies, which only its user can read."""
    configured = os.environ.get(CACHE_VARIABLE)
    found = Path(configured) if configured else Path(tempfile.gettempdir(), f"ferryman-cache-{os.geteuid()}")
    if found not in _prepared_folders:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        if found.stat().st_uid != os.geteuid():
            raise UsageError(f"{found}: this cache belongs to another user. Give a folder of your own: --cache DIR.")
        _prepared_folders.add(found)
        _remove_old_copies(found)
    return found


def cached_path(path: ObjectPath) -> Path:
    """Return the path of an object's copy, whether it exists or not."""
    return cache_folder() / path.bucket.replace("://", "-") / path.key


def fetch(path: ObjectPath) -> Path:
    """Return the local copy of an immutable object, fetching it if necessary.

    Raises:
        FileNotFoundError: there is no such object.
        EngineError: the store is unavailable.
    """
    copy = cached_path(path)
    try:
        if time.time() - copy.stat().st_mtime > _TOUCH_EVERY_S:
            os.utime(copy)
    except FileNotFoundError:
        data = path.store.get(path.key)
        if data is None:
            raise FileNotFoundError(2, "no such object", str(path)) from None
        with new_cached_file(copy) as temporary:
            temporary.write_bytes(data)
    return copy


def fetch_all(paths: Iterable[ObjectPath]) -> list[Path]:
    """Return local copies of many objects, fetching several in parallel."""
    wanted = list(paths)
    if sum(not cached_path(path).exists() for path in wanted) < 2:
        return [fetch(path) for path in wanted]
    with ThreadPoolExecutor(_PARALLEL_FETCHES) as pool:
        return list(pool.map(fetch, wanted))


@contextlib.contextmanager
def new_cached_file(copy: Path) -> Iterator[Path]:
    """Yield a file to write, which becomes this copy at the end: others see it completely or not at all."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = copy.with_name(f".new-{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(copy)
    finally:
        temporary.unlink(missing_ok=True)


def remove_cached(path: ObjectPath) -> None:
    """Remove the local copy of a deleted object."""
    cached_path(path).unlink(missing_ok=True)


def remove_if_copy(file: Path) -> bool:
    """Remove a file that is the local copy of an object, which the next ``fetch`` makes again; return whether it is."""
    if not any(file.is_relative_to(folder) for folder in _prepared_folders):
        return False
    file.unlink(missing_ok=True)
    return True


def remove_cached_folder(path: ObjectPath) -> None:
    """Remove the local copies of all deleted objects below a folder."""
    shutil.rmtree(cached_path(path), ignore_errors=True)


def _remove_old_copies(place: Path) -> None:
    before = time.time() - _MAX_AGE_S
    for directory, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(directory, name)
                if os.stat(path).st_mtime < before:
                    os.unlink(path)


# --- one listing of a folder, by which many questions about it are answered ---

_CHANGED_NOW: Final = float("inf")
"""Time of change of objects written since the listing: they never count as old."""


class CachedListing:
    """Store with a listing of everything below a folder, kept up to date with this thread's own changes."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = f"{folder}/"
        self._objects = {each.key: each for each in store.list_objects(self._folder)}

    def covers(self, folder: str) -> bool:
        return f"{folder}/".startswith(self._folder)

    def create(self, key: str, data: bytes) -> str | None:
        tag = self._store.create(key, data)
        self._record(key, len(data), tag)
        return tag

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        tag = self._store.put(key, data, if_match)
        self._record(key, len(data) if isinstance(data, bytes) else data.stat().st_size, tag)
        return tag

    def get(self, key: str) -> bytes | None:
        return None if self._is_missing(key) else self._store.get(key)

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        return None if self._is_missing(key) else self._store.get_tagged(key)

    def head(self, key: str) -> StoredObject | None:
        return self._objects.get(key) if key.startswith(self._folder) else self._store.head(key)

    def list_objects(self, prefix: str) -> list[StoredObject]:
        if not prefix.startswith(self._folder):
            return self._store.list_objects(prefix)
        return sorted(each for each in self._objects.values() if each.key.startswith(prefix))

    def list_folder(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        if not self.covers(folder):
            return self._store.list_folder(folder)
        start = len(folder) + 1
        inside = [(each.key[start:].partition("/"), each) for each in self.list_objects(f"{folder}/")]
        return sorted({name for (name, slash, _), _ in inside if slash}), [
            e for (_, slash, _), e in inside if not slash
        ]

    def copy(self, key: str, to: str) -> None:
        self._store.copy(key, to)
        if found := self._objects.get(key):
            self._record(to, found.size, found.tag)

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(keys)
        for key in keys:
            self._objects.pop(key, None)

    def _is_missing(self, key: str) -> bool:
        return key.startswith(self._folder) and key not in self._objects

    def _record(self, key: str, size: int, tag: str | None) -> None:
        if tag is not None and key.startswith(self._folder):
            self._objects[key] = StoredObject(key, size, _CHANGED_NOW, tag)


@contextlib.contextmanager
def cached_listing(folder: ObjectPath) -> Iterator[None]:
    """Make this thread see the folder as of now, plus its own changes, during this block; for folders that nobody else
    changes, or where the exact moment does not matter."""
    known = store_overrides.get()
    last = known.get(folder.bucket)
    if isinstance(last, CachedListing) and last.covers(folder.key):
        yield
        return
    before = store_overrides.set(
        MappingProxyType({**known, folder.bucket: CachedListing(open_store(folder.bucket), folder.key)})
    )
    try:
        yield
    finally:
        store_overrides.reset(before)
