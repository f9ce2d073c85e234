"""Destinations of files: one for each document, or lines of JSON."""

from __future__ import annotations

import os
import re
import time
import unicodedata
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b, file_digest, sha256
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args
from urllib.parse import unquote_to_bytes

import msgspec
import sqlalchemy as sa

from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    LastDelivery,
    Outcome,
    compare,
    encode_payload,
    encode_payloads,
    printable_id,
    writer_name,
)
from ferryman.destinations.sql import sqlite
from ferryman.destinations.sql.layout import CONTENT_HASH, WRITERS
from ferryman.destinations.sql.sqlite import SQLite
from ferryman.destinations.stored import Stored, content_hash, slices
from ferryman.document import encode_fields
from ferryman.errors import BadDocument, Misconfigured, PlanError
from ferryman.net import relative_paths
from ferryman.storage import disk, files
from ferryman.storage.files import classified_errors

__all__ = ["Directory"]


# The identity of a folder: a file with a random name in it.

IDENTITY: Final = ".ferryman-id"


def _identify_folder(folder: Path) -> None:
    """Give a folder an identity, if it has none."""
    if not (folder / IDENTITY).exists():
        files.publish(folder / IDENTITY, uuid.uuid4().hex.encode())


def _folder_identity(folder: Path) -> str:
    """Return the identity of a folder; "" if there is no such folder, or it has none."""
    try:
        return (folder / IDENTITY).read_text("ascii")
    except FileNotFoundError:
        return ""


# Names of documents' files.

NAME_BYTES: Final = 240
"""Longest name, in bytes: file systems take 255, and prefixes and suffixes need some."""

PATH_BYTES: Final = 1000
"""Longest path below the directory, in bytes: a quarter of Linux's limit, and macOS's limit."""

STEM_CHARACTERS: Final = 60
SUFFIX_CHARACTERS: Final = 10
"""Characters of an id kept in a made-up name: enough for a reader to recognise it, and for a program to know its
kind."""

_UNSAFE: Final = re.compile(r'[%/\\:*?"<>|~\x00-\x1f\x7f-\x9f\u2028\u2029]')
"""Characters that some file system refuses, separators of folders, line ends, and ``~``, which marks names with a
hash."""


def path_of_id(id: str) -> str | None:
    """Return the path for an id: its parts between slashes are folders, percent-encoded characters are decoded.

    None if there can be no such file: a name or the path is too long, or a name is empty.

    Raises:
        UnicodeEncodeError: the id is not text.
    """
    names = [_safe_name(name) for name in id.split("/")]
    if names[0].casefold() == ".ferryman":
        names[0] = "%2E" + names[0][1:]
    path = "/".join(names)
    if len(path.encode()) > PATH_BYTES or any(not name or len(name.encode()) > NAME_BYTES for name in names):
        return None
    return path


def hashed_path(id: str, suffix: str = "") -> str:
    """Return a unique path for an id that cannot have its plain one: the beginning of the name, ``~``, a hash."""
    stem, dot, own = id.rpartition("/")[2].rpartition(".")
    if not stem or not own.isascii() or not own.isalnum() or len(own) > SUFFIX_CHARACTERS:
        stem, own = stem + dot + own, ""
    begin = re.sub(r"[^A-Za-z0-9._ -]", "_", stem)[:STEM_CHARACTERS].strip(" .")
    return f"{begin}~{blake2b(id.encode(), digest_size=16).hexdigest()}{'.' if own else ''}{own}{suffix}"


def case_key(path: str) -> str:
    """Return a key that is equal for paths that some file system does not distinguish (letter case, Unicode forms)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _safe_name(name: str) -> str:
    decoded = name
    if "%" in name:
        try:
            decoded = unquote_to_bytes(name).decode()
        except UnicodeDecodeError:
            return _encode_unsafe(name.replace("%", "\0")).replace("%00", "%")  # bytes that are not text stay encoded
    safe = _encode_unsafe(decoded)
    if safe in (".", ".."):
        return safe.replace(".", "%2E")
    if safe[-1:] in (".", " "):
        return safe[:-1] + f"%{ord(safe[-1]):02X}"
    return safe


def _encode_unsafe(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def os_path(folder: str, path: str) -> str:
    """Join a folder and a path with slashes by the separator of the operating system."""
    return os.path.join(folder, *path.split("/"))


Content = Literal["raw", "json"]
By = Literal["id", "content"]


def _folder(destination: Destination, directory: str | Path) -> Path:
    try:
        return Path(relative_paths.absolute_folder(directory))
    except ValueError as e:
        raise PlanError([f"{type(destination).__name__}: {e}."]) from None


class Directory(Destination):
    """Keeps one file per document in a folder: ``Directory("out")`` puts ``histories/henryv.txt`` where its id says.

    **Content.** ``content="raw"``: the raw bytes as they are; of a document without any, its fields as a JSON object.
    ``content="json"``: the object that ``JsonLines`` writes, with fields, text, hash and sequence, and ``.json`` behind
    the name.

    **Names.** The id is the path; what is percent-encoded in it is decoded, so that files from ``Files`` get their own
    names back. Characters that some file system refuses are percent-encoded, and names that lead elsewhere (``..``)
    too. Where a name is too long, or another id has it (``a`` and ``a/b``; ``A`` and ``a``, which not every file system
    tells apart), the file is in the top folder with a name that ends in ``~`` and a hash of the id. An id keeps its
    name. A file that was there before is not touched: the document that asks for its name is refused.

    **Archive.** ``by="content"`` keeps raw bytes under their own hash, ``sha256/ab/cd/abcd…``: equal content once,
    never changed and never removed; ``sha256sum`` verifies it. The index tells which id has which.

    **The index**, ``.ferryman/index.db`` (SQLite), has id, path, sequence and delivery hash of every document, deletes
    included. So an older version never replaces a newer one, and does not come back after its delete. Do not remove it:
    files would be taken for somebody else's. ``SELECT id, path FROM documents WHERE operation = 'upsert'`` lists all.

    A file appears whole, under its name, or not at all, and is durable before it is confirmed. A kill between file and
    index leaves a newer file than the index says; it is sent again, which changes nothing. So it is
    at-least-once, and what is there in the end is right; in the second after a kill, an older version of just that
    document may be there. One writer at a time, on the machine of the folder: SQLite's locks do not hold on network
    file systems.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    single_writer = True
    compares_sequences = True
    keyed_by_id = True

    facts: ClassVar[Facts] = Facts(
        stored="a file a document; its index has the hash and sequence of each document, and of each delete",
        limits=(f"a name of more than {NAME_BYTES} bytes, or a path of more than {PATH_BYTES}, is made up",),
        outcomes=(
            ("no room, a disk in trouble", "transient, about all"),
            ("no right to write", "permanent, about all"),
            ("a file of this name was there before", "permanent"),
        ),
    )

    def __init__(self, directory: str | Path, content: Content = "raw", by: By = "id") -> None:
        """``directory`` is created if it does not exist. A relative path is relative to the plan file's folder; in a
        program, to the current folder."""
        self.directory = _folder(self, directory)
        self.content: Content = content
        self.by: By = by
        self._engine: sa.Engine | None = None
        self._writer = ""
        findings = []
        if content not in get_args(Content):
            findings.append(f"content={content!r}: use 'raw' or 'json'")
        if by not in get_args(By):
            findings.append(f"by={by!r}: use 'id' or 'content'")
        if by == "content" and content == "json":
            findings.append("by='content' keeps raw bytes: leave content= out")
        if findings:
            raise PlanError([f"Directory({str(directory)!r}): {finding}" for finding in findings])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}

    def target(self) -> str:
        return self.directory.as_uri()

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.directory),)

    def check(self) -> None:
        """Make the folder and its index, and clean up after killed writers.

        Raises:
            TransientError: no room, or somebody holds the index for too long.
            PermanentError: no right to write here.
        """
        with classified_errors(self.directory), SQLite().translated_errors(self.target()):
            files.make_folder(self.directory / INDEX / "new")
            _identify_folder(self.directory / INDEX)
            engine = self._index()
            sqlite.prepare(engine)
            with engine.connect() as connection, connection.begin():  # no writer is at work
                DOCUMENTS.create(connection, checkfirst=True)
                WRITERS_OF_FOLDER.create(connection, checkfirst=True)
                if CONTENT_HASH not in _index_columns(connection):  # an older Ferryman made it
                    connection.exec_driver_sql(f"ALTER TABLE documents ADD COLUMN {CONTENT_HASH} TEXT")
                for left in (self.directory / INDEX / "new").iterdir():
                    left.unlink(missing_ok=True)

    def identity(self) -> str | None:
        """Return the index's identity."""
        return _folder_identity(self.directory / INDEX)

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of files and deletes."""
        query = sa.select(sa.func.max(DOCUMENTS.c.sequence)).where(DOCUMENTS.c.operation != "new")
        engine = self._index()
        with (
            classified_errors(self.directory),
            SQLite().translated_errors(self.target()),
            engine.connect() as connection,
        ):
            highest: int | None = connection.scalar(query)
        engine.dispose()
        return highest

    def highest_of(self, context: DestinationContext) -> int | None:
        """Return the highest sequence of the state's deliveries, by the index."""
        if not (self.directory / INDEX / "index.db").is_file():
            return None
        own = WRITERS_OF_FOLDER.c.writer == writer_name(context)
        engine = sqlite.reader(self._index_url())
        with classified_errors(self.directory), SQLite().translated_errors(self.target()), engine.connect() as index:
            if not sa.inspect(index).has_table(WRITERS_OF_FOLDER.name):
                return None
            highest: int | None = index.scalar(sa.select(WRITERS_OF_FOLDER.c.sequence).where(own))
            return highest

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the documents of the index whose files are there, see ``Destination.inventory``.

        Raises:
            Unavailable, Misconfigured: a file or the index cannot be read.
        """
        if not (self.directory / INDEX / "index.db").is_file():
            return
        engine = sqlite.reader(self._index_url())
        with classified_errors(self.directory), SQLite().translated_errors(self.target()), engine.connect() as index:
            d = DOCUMENTS.c
            written_hash = d[CONTENT_HASH] if CONTENT_HASH in _index_columns(index) else sa.null()
            query = sa.select(d.id, d.path, d.delivery_hash, written_hash).where(d.operation == "upsert")
            for some in (None,) if ids is None else slices(ids, _SLICE):
                rows = index.execution_options(yield_per=_SLICE).execute(
                    query if some is None else query.where(d.id.in_(some))
                )
                for id, path, delivery_hash, written in rows:
                    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                        yield Stored(id, delivery_hash, self._is_intact(path, written))

    def _is_intact(self, path: str, written: str | None) -> bool | None:
        """Return whether a file has the content with this hash; None: it is not known.

        Raises:
            FileNotFoundError, NotADirectoryError, IsADirectoryError: there is no such file.
        """
        with open(os_path(str(self.directory), path), "rb") as file:
            return None if written is None else file_digest(file, _FileHash).hexdigest() == written

    def open(self, context: DestinationContext) -> None:
        self._engine = self._index()
        self._writer = writer_name(context)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write a chunk: 1. reserve names 2. write files 3. rename them, remove deleted ones 4. record them in the
        index.

        Raises:
            Unavailable: no room, or a disk in trouble.
            Misconfigured: no right to write here.
        """
        if self._engine is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: dict[int, Outcome] = {}
        bodies = dict(self._bodies(chunk, outcomes))
        with (
            classified_errors(self.directory),
            SQLite().translated_errors(self.target()),
            self._engine.connect() as connection,
        ):
            indexed = IndexedFolder(self.directory, connection)
            with connection.begin():  # a name is durably reserved before there is a file of that name
                refused = indexed.reserve({chunk[i].id: body for i, body in bodies.items()})  # 1
            for position in [i for i in bodies if chunk[i].id in refused]:
                outcomes[position] = Outcome.permanent(refused[chunk[position].id])
                del bodies[position]
            deliveries = {position: chunk[position] for position in bodies}
            with connection.begin():
                compared, winners = compare(
                    list(deliveries.values()), indexed.known({d.id for d in deliveries.values()})
                )
                body_of = {delivery.hash: bodies[position] for position, delivery in deliveries.items()}
                winning_files = [(delivery, body_of[delivery.hash]) for delivery in winners.values()]
                indexed.put({delivery.id: body for delivery, body in winning_files})  # 2, 3
                indexed.record(winning_files)  # 4
                if deliveries:
                    written = list(deliveries.values())
                    sqlite.record_sequence(connection, WRITERS_OF_FOLDER, DOCUMENTS.name, self._writer, written)
        outcomes |= dict(zip(deliveries, compared, strict=True))
        return [outcomes[position] for position in range(len(chunk))]

    def _bodies(self, chunk: list[Delivery], outcomes: dict[int, Outcome]) -> Iterator[tuple[int, FileBody]]:
        """Yield each delivery's file by position; deliveries without one get an outcome."""
        for position, delivery in enumerate(chunk):
            try:
                delivery.id.encode()
                yield position, self._body(delivery)
            except (BadDocument, ValueError, TypeError) as e:
                outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")

    def _body(self, delivery: Delivery) -> FileBody:
        suffix = ".json" if self.content == "json" else ""
        if delivery.operation == "delete":
            return FileBody(None, suffix, self.by == "content")
        if self.by == "content":
            if delivery.raw is None:
                raise BadDocument("it has no raw bytes to archive. Leave such documents out with a router.")
            digest = sha256(delivery.raw).hexdigest()
            return FileBody(delivery.raw, by_content=True, content=f"sha256/{digest[:2]}/{digest[2:4]}/{digest}")
        if self.content == "json":
            return FileBody(encode_payload(delivery) + b"\n", suffix)
        return FileBody(encode_fields(delivery.fields) + b"\n" if delivery.raw is None else delivery.raw)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _index(self) -> sa.Engine:
        return sqlite.make_engine(self._index_url())

    def _index_url(self) -> sa.URL:
        return sa.make_url("sqlite://").set(database=str(self.directory / INDEX / "index.db"))


def _index_columns(connection: sa.Connection) -> set[str]:
    return {column[1] for column in connection.exec_driver_sql("PRAGMA table_info(documents)")}


_FileHash: Final = partial(blake2b, digest_size=16)
"""Hash of a file's content, as ``content_hash`` of the index has it."""


# The index of a directory, and one ``write`` into it.

INDEX: Final = ".ferryman"
"""Ferryman's own folder in the directory: the index, and files that are being written."""

DOCUMENTS: Final = sa.Table(
    "documents",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("path_key", sa.Text, unique=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("delivery_hash", sa.Text, nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column(CONTENT_HASH, sa.Text),
    sqlite_with_rowid=False,
)
"""Index of the directory: the last delivery of each id, deletes too. Operation "new": the name is only reserved.
Without ``path_key`` the path depends on the content, and many ids may share it."""

WRITERS_OF_FOLDER: Final = sa.Table(
    WRITERS,
    sa.MetaData(),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("writer", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
)
"""Highest sequence that each state and node has written to the directory."""

_SLICE: Final = 500
"""Values in one ``IN (…)``: below what every SQLite takes."""


class FileBody(NamedTuple):
    """File of a delivery.

    Attributes:
        data: content of the file; None: the delivery is a delete.
        suffix: added to the document's name.
        by_content: whether the file is named after its content, not its id.
        content: path made of the content, if ``by_content``.
    """

    data: bytes | None
    suffix: str = ""
    by_content: bool = False
    content: str = ""


def _has_content(path: str, data: bytes) -> bool:
    """Return whether a file is there and has this content."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size == len(data) and file.read() == data
    return False


class IndexedFolder:
    """A directory and its index, inside a transaction that holds the index's write lock."""

    def __init__(self, folder: Path, connection: sa.Connection) -> None:
        self._folder = str(folder)
        self._new = folder / INDEX / "new"
        self._connection = connection

    def known(self, ids: Iterable[str]) -> dict[str, LastDelivery]:
        """Return the last delivery of each id."""
        d = DOCUMENTS.c
        rows = self._rows(ids, d.id, d.sequence, d.delivery_hash, d.operation)
        return {row.id: LastDelivery(row.sequence, row.delivery_hash) for row in rows if row.operation != "new"}

    def reserve(self, wanted: Mapping[str, FileBody]) -> dict[str, str]:
        """Reserve a unique name for each id; return the ids that cannot have one, with the reason."""
        d = DOCUMENTS.c
        paths = {row.id: row.path for row in self._rows(wanted, d.id, d.path)}
        refused = {}
        for id, body in wanted.items():
            if id in paths and (body.by_content or not self._is_blocked(paths[id])):
                continue
            path = "" if body.by_content else next(self._free_paths(id, body.suffix), None)
            if path is None:
                asked = os_path(self._folder, path_of_id(id + body.suffix) or hashed_path(id, body.suffix))
                refused[id] = (
                    f"{asked} already existed and was not written by Ferryman. Move it away, or use another folder."
                )
                continue
            names = {"path": path, "path_key": None if body.by_content else case_key(path)}
            if id in paths:
                self._connection.execute(sa.update(DOCUMENTS).where(d.id == id).values(names))
            else:
                row = {"id": id, **names, "sequence": -1, "delivery_hash": "", "operation": "new"}
                self._connection.execute(sa.insert(DOCUMENTS).values(row))
        return refused

    def put(self, bodies: Mapping[str, FileBody]) -> None:
        """Write these files under their names, whole and durably, and remove those of deletes."""
        d = DOCUMENTS.c
        paths = {row.id: row.path for row in self._rows(bodies, d.id, d.path)}
        placed = []
        touched = set()
        for id, body in bodies.items():
            if body.data is None:
                continue
            if body.content and _has_content(os_path(self._folder, body.content), body.data):
                touched.add(Path(os_path(self._folder, body.content)).parent)  # a killed writer may not have synced it
                continue
            temporary = self._new / uuid.uuid4().hex
            disk.write_synced(temporary, body.data)
            placed.append((temporary, Path(os_path(self._folder, body.content or paths[id]))))
        for temporary, path in placed:
            files.make_folder(path.parent)
            os.replace(temporary, path)
            touched.add(path.parent)
        for id, body in bodies.items():
            if body.data is None and not body.by_content and id in paths:
                touched |= self._remove(Path(os_path(self._folder, paths[id])))
        for folder in touched:
            with suppress(FileNotFoundError):  # the folder was removed with its last file
                files.fsync_folder(folder)

    def record(self, deliveries: Iterable[tuple[Delivery, FileBody]]) -> None:
        """Record these deliveries in the index as those that are in the directory."""
        for delivery, body in deliveries:
            values: dict[str, Any] = {"sequence": delivery.sequence, "delivery_hash": delivery.hash}
            values |= {"operation": delivery.operation}
            values[CONTENT_HASH] = None if body.data is None else _FileHash(body.data).hexdigest()
            if body.content:
                values["path"] = body.content
            self._connection.execute(sa.update(DOCUMENTS).where(DOCUMENTS.c.id == delivery.id).values(values))

    # --- names --------------------------------------------------------------------------------------------------------

    def _free_paths(self, id: str, suffix: str) -> Iterator[str]:
        """Yield the free names that this id could have, best first."""
        for path in (path_of_id(id + suffix), hashed_path(id, suffix)):
            if path is None or self._is_blocked(path) or self._is_taken(id, path):
                continue
            if not os.path.lexists(os_path(self._folder, path)):
                yield path

    def _is_taken(self, id: str, path: str) -> bool:
        """Return whether another id has this name, or a folder in its path, or uses it as a folder."""
        asked, column = case_key(path), DOCUMENTS.c.path_key
        names = asked.split("/")
        folders = ["/".join(names[:n]) for n in range(1, len(names) + 1)]
        below_it = (column > f"{asked}/") & (column < f"{asked}0")  # 0 follows the slash
        query = sa.select(DOCUMENTS.c.id).where(column.in_(folders) | below_it, DOCUMENTS.c.id != id)
        return self._connection.execute(query.limit(1)).first() is not None

    def _is_blocked(self, path: str) -> bool:
        """Return whether a folder is where the file should be, or a file where a folder should be."""
        full = Path(os_path(self._folder, path))
        if full.is_dir():
            return True
        return any(parent.is_file() for parent in full.parents if len(parent.parts) > len(Path(self._folder).parts))

    def _remove(self, path: Path) -> set[Path]:
        """Remove a file, and the folders that are empty then; return the folder that has changed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        folder = path.parent
        with suppress(OSError):  # it is not empty
            while folder != Path(self._folder):
                with suppress(FileNotFoundError):  # removed before, by a writer that was killed
                    folder.rmdir()
                folder = folder.parent
        return {folder}

    def _rows(self, ids: Iterable[str], *columns: sa.Column) -> Iterator[sa.Row]:  # type: ignore[type-arg]
        all_ids: Sequence[str] = list(ids)
        for start in range(0, len(all_ids), _SLICE):
            some = all_ids[start : start + _SLICE]
            yield from self._connection.execute(sa.select(*columns).where(DOCUMENTS.c.id.in_(some))).all()


# Lines of JSON in a folder: a file for each chunk.

STALE_S: Final = 3600.0
"""Age from which a temporary file is left by a killed writer: no ``write`` takes nearly as long."""


class JsonLines(Destination):
    """A folder of files ``<first sequence>-<last sequence>-<chunk>.jsonl``; each appears whole, or not at all.

    A line is an object with ``hash``, ``sequence``, ``operation`` ("upsert" or "delete"), ``id``, ``parent_id``,
    ``origin_id``, ``source``, ``version``, ``route`` (a list), ``fields`` and ``text``: the raw bytes decoded as
    UTF-8, null without raw. Raw bytes that are not UTF-8 stand as base64 in ``raw_base64``, and ``text`` is null. The
    last key, ``content_hash``, shows ``ferryman verify`` whether somebody has changed the line.

    The folder is a log: a new version is a new line, so is a delete. **How to read it:** sort the files by name, skip
    a line whose ``hash`` you have seen, and of an ``id`` take the line with the highest ``sequence``. A hash can stand
    in two files: after a kill a chunk is written again, and if it is cut the same it makes the same file, but rows
    that were not sure to have arrived may be cut differently then. Nothing that was confirmed is ever overwritten.

    A killed writer leaves at most a file whose name begins with a dot. Ignore it; it is removed later.
    """

    effect = Effect.IDEMPOTENT

    facts: ClassVar[Facts] = Facts(
        stored="a line a delivery, deletes too, with hash and sequence",
        limits=("a file has `rows` lines at most, and ends at the plan's `batch_bytes`",),
        outcomes=(
            ("no room, a disk in trouble", "transient, about all"),
            ("no right to write", "permanent, about all"),
            ("fields that are no JSON", "permanent"),
        ),
    )

    def __init__(self, directory: str | Path, rows: int | None = None) -> None:
        """``directory`` is created if it does not exist. A relative path is relative to the plan file's folder; in a
        program, to the current folder.

        Args:
            rows: maximum number of lines per file; a plan's own ``batch=`` wins. None: 500. A file also ends at the
                plan's ``batch_bytes=``, 5 MiB by default, and where a pass of delivering ends.

        Raises:
            PlanError: ``rows`` is below 1.
        """
        if rows is not None and rows < 1:
            raise PlanError([f"JsonLines({str(directory)!r}): rows={rows}: give 1 or more"])
        self.directory = _folder(self, directory)
        self.preferred_batch = rows  # type: ignore[misc]  # of this one

    def target(self) -> str:
        return self.directory.as_uri()

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.directory),)

    def check(self) -> None:
        """Make the folder, and clean up after killed writers."""
        with classified_errors(self.directory):
            files.make_folder(self.directory)
            files.fsync_folder(self.directory)
            long_ago = time.time() - STALE_S
            for temporary in self.directory.glob(f"{disk.TEMPORARY}*"):
                with suppress(FileNotFoundError):
                    if temporary.stat().st_mtime < long_ago:
                        temporary.unlink()

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the lines, each hash once, see ``Destination.inventory``; of a line that stands in several files the
        first.

        Raises:
            Unavailable, Misconfigured: a file cannot be read.
        """
        wanted, seen = None if ids is None else set(ids), set[bytes]()
        with classified_errors(self.directory):
            for path in sorted(self.directory.glob("[!.]*.jsonl")):
                with open(path, "rb") as file:
                    for line in file:
                        each = _stored_line(line.rstrip(b"\r\n"))
                        if each is None or (wanted is not None and each.id not in wanted):
                            continue
                        if (key := each.hash.encode()) not in seen:
                            seen.add(key)
                            yield each

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write the chunk's file.

        Raises:
            Unavailable: no room, or a disk in trouble; no file was made.
            Misconfigured: no right to write here.
        """
        outcomes: list[Outcome | None] = [None] * len(chunk)
        if lines := encode_payloads(chunk, outcomes):
            name = _name([chunk[position] for position, _ in lines])
            with classified_errors(self.directory):
                files.replace(self.directory / name, b"\n".join(_with_content_hash(line) for _, line in lines) + b"\n")
        return [outcome or Outcome.ok() for outcome in outcomes]


_CONTENT_HASH_KEY: Final = b',"content_hash":"'


def _with_content_hash(line: bytes) -> bytes:
    """Add the last key of a line: a hash of the line without it."""
    return line[:-1] + _CONTENT_HASH_KEY + content_hash(line).encode() + b'"}'


def _stored_line(line: bytes) -> Stored | None:
    """Return what a line holds; None: it is not one of ours, or was cut."""
    try:
        delivery = _decode_line(line)
    except msgspec.DecodeError:
        return None
    payload, key, written = line.rpartition(_CONTENT_HASH_KEY)
    intact = (
        None if not delivery.content_hash else bool(key) and content_hash(payload + b"}").encode() + b'"}' == written
    )
    return Stored(delivery.id, delivery.hash, intact, delivery.source, delivery.version, tuple(delivery.route))


class _Line(msgspec.Struct):
    id: str
    hash: str
    source: str = ""
    version: str = ""
    route: list[str] = []
    content_hash: str = ""


_decode_line: Final = msgspec.json.Decoder(_Line).decode


def _name(chunk: list[Delivery]) -> str:
    """Return a name that depends on the deliveries, so that no file replaces a different one."""
    sequences = [d.sequence for d in chunk]
    digest = blake2b("".join(d.hash for d in chunk).encode(), digest_size=4).hexdigest()
    return f"{min(sequences):016d}-{max(sequences):016d}-{digest}.jsonl"
