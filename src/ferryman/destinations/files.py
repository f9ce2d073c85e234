"""Destinations of files: one for each document, or lines of JSON."""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Literal, NamedTuple, Self, get_args
from urllib.parse import unquote_to_bytes

import msgspec
import sqlalchemy as sa

from ferryman import crash
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    LastDelivery,
    Outcome,
    Stored,
    compare,
    content_hash,
    encode_payload,
    encode_payloads,
    printable_id,
    slices,
    writer_name,
)
from ferryman.destinations.file_index import (
    DOCUMENTS,
    SLICE,
    WRITERS_OF_FOLDER,
    FileIndex,
    LocalIndex,
    RemoteIndex,
    identify,
    index_columns,
    read_identity,
    record_writer,
)
from ferryman.destinations.sql.layout import CONTENT_HASH
from ferryman.destinations.sql.sqlite import SQLite
from ferryman.document import encode_fields
from ferryman.errors import BadDocument, Misconfigured, PlanError, Unavailable
from ferryman.storage.folders import Kind, TargetFolder, open_folder

__all__ = ["Directory"]


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


Content = Literal["raw", "json"]
By = Literal["id", "content"]


def _as_given(directory: str | Path, folder: TargetFolder) -> str:
    """Return the argument for a message, without secrets."""
    return str(directory) if folder.local else folder.where


class _InFolder(Destination):
    """Base of the destinations that write files into a folder.

    Attributes:
        has_index: whether the folder has a folder with an index, which belongs to Ferryman.
    """

    has_index: ClassVar[bool] = False

    def _open_folder(self, directory: str | Path, options: Mapping[str, Any] | None) -> None:
        """
        Raises:
            PlanError: the URL, or an option, is invalid.
        """
        try:
            self._use(open_folder(directory, options, own=self.has_index))
        except ValueError as e:
            raise PlanError([f"{type(self).__name__}: {e}."]) from None

    def _use(self, folder: TargetFolder) -> None:
        self._folder = folder
        self.directory: Path | str = Path(folder.local) if folder.local else folder.where

    def elsewhere(self, directory: Path) -> Self:
        """Return a copy that writes into this folder."""
        other = copy.copy(self)
        other._open_folder(directory, None)
        return other

    def target(self) -> str:
        return self._folder.target

    def local_paths(self) -> tuple[str, ...]:
        return (self._folder.local,) if self._folder.local else ()

    def not_installed(self) -> str:
        return self._folder.not_installed()


class Directory(_InFolder):
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

    **Elsewhere.** The folder may be a URL: ``s3://bucket/folder``, ``gs://…``, ``az://…`` (``ferryman[store]``),
    ``ftp://host/folder`` (``ferryman[fsspec]``), ``sftp://…`` (``ferryman[sftp]``), ``smb://host/share/folder``
    (``ferryman[smb]``), ``webhdfs://…`` (``ferryman[hdfs]``). Names, content and promises are the same; the index is a
    row of small files in ``.ferryman/index``. A file is uploaded under another name, in ``.ferryman/new``, and renamed.
    Where a server cannot rename over a file (HDFS, some FTP servers, SFTP without ``posix-rename@openssh.com``), the
    older one is removed before, so that its name is missing for a moment; each run says so.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    has_index = True
    single_writer = True
    compares_sequences = True
    keyed_by_id = True

    facts: ClassVar[Facts] = Facts(
        stored="a file a document; its index has the hash and sequence of each document, and of each delete",
        limits=(f"a name of more than {NAME_BYTES} bytes, or a path of more than {PATH_BYTES}, is made up",),
        outcomes=(
            ("no room, a disk in trouble, no connection", "transient, about all"),
            ("no right to write, a login that is refused", "permanent, about all"),
            ("a file of this name was there before", "permanent"),
        ),
        tested=("OpenSSH 9.2", "pyftpdlib 2", "Samba 4.17", "moto 5 (S3)"),
    )

    def __init__(
        self,
        directory: str | Path,
        content: Content = "raw",
        by: By = "id",
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """``directory`` is created if it does not exist. A relative path is relative to the plan file's folder; in a
        program, to the current folder.

        Args:
            storage_options: options for fsspec beside the URL of a drive. They travel to the workers, and are never
                shown. Logins are better left to the environment.
        """
        self._open_folder(directory, storage_options)
        self.content: Content = content
        self.by: By = by
        self._context: DestinationContext | None = None
        findings = []
        if content not in get_args(Content):
            findings.append(f"content={content!r}: use 'raw' or 'json'")
        if by not in get_args(By):
            findings.append(f"by={by!r}: use 'id' or 'content'")
        if by == "content" and content == "json":
            findings.append("by='content' keeps raw bytes: leave content= out")
        if findings:
            raise PlanError([f"Directory({_as_given(directory, self._folder)!r}): {finding}" for finding in findings])

    def _use(self, folder: TargetFolder) -> None:
        super()._use(folder)
        self._index: FileIndex = LocalIndex(folder) if folder.local else RemoteIndex(folder)

    def check(self) -> None:
        """Make the folder and its index, and clean up after killed writers.

        Raises:
            TransientError: no room, no connection, or somebody holds the index for too long.
            PermanentError: no right to write here.
        """
        with self._errors():
            self._folder.make(sweep=True)  # no writer is at work
            self._index.prepare()

    def identity(self) -> str | None:
        """Return the index's identity."""
        with self._errors():
            return self._index.identity()

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of files and deletes."""
        query = sa.select(sa.func.max(DOCUMENTS.c.sequence)).where(DOCUMENTS.c.operation != "new")
        with self._errors(), self._index.reader() as index:
            highest: int | None = None if index is None else index.scalar(query)
            return highest

    def highest_of(self, context: DestinationContext) -> int | None:
        """Return the highest sequence of the state's deliveries, by the index."""
        own = WRITERS_OF_FOLDER.c.writer == writer_name(context)
        with self._errors(), self._index.reader() as index:
            if index is None or not sa.inspect(index).has_table(WRITERS_OF_FOLDER.name):
                return None
            highest: int | None = index.scalar(sa.select(WRITERS_OF_FOLDER.c.sequence).where(own))
            return highest

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the documents of the index whose files are there, see ``Destination.inventory``.

        Raises:
            Unavailable, Misconfigured: a file or the index cannot be read.
        """
        with self._errors(), self._index.reader() as index:
            if index is None:
                return
            d = DOCUMENTS.c
            there = index_columns(index)
            later = [d[name] if name in there else sa.null() for name in (CONTENT_HASH, "source", "version", "route")]
            query = sa.select(d.id, d.path, d.delivery_hash, *later).where(d.operation == "upsert")
            for some in (None,) if ids is None else slices(ids, SLICE):
                rows = index.execution_options(yield_per=SLICE).execute(
                    query if some is None else query.where(d.id.in_(some))
                )
                for id, path, delivery_hash, written, source, version, route in rows:
                    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                        names = tuple(route.split("/")) if route else ()
                        intact = self._is_intact(path, written)
                        yield Stored(id, delivery_hash, intact, source or "", version or "", names)

    def _is_intact(self, path: str, written: str | None) -> bool | None:
        """Return whether a file has the content with this hash; None: it is not known.

        Raises:
            FileNotFoundError, NotADirectoryError, IsADirectoryError: there is no such file.
        """
        with self._folder.open(path) as file:
            return None if written is None else _hash_of_file(file) == written

    def maintain(self) -> list[str]:
        with self._errors():
            return [line for line in (self._index.merge(), self._folder.remark()) if line]

    def open(self, context: DestinationContext) -> None:
        self._context = context
        self._index.open()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write a chunk: 1. reserve names 2. write files 3. rename them, remove deleted ones 4. record them in the
        index.

        Raises:
            Unavailable: no room, no connection, or a disk in trouble.
            Misconfigured: no right to write here.
        """
        if self._context is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: dict[int, Outcome] = {}
        bodies = dict(self._bodies(chunk, outcomes))
        with self._errors(), self._index.writing() as connection:
            indexed = IndexedFolder(self._folder, connection)
            wanted = {chunk[i].id: body for i, body in bodies.items()}
            # a name is durably reserved before there is a file of that name, by a writer beside this one, too
            if not self._folder.local and indexed.has_unknown_files(wanted):
                self._index.refresh()
            with self._index.transaction(connection, indexed.changed):
                refused = indexed.reserve(wanted)  # 1
            crash.point("files.reserved")
            self._require_open_pass()
            for position in [i for i in bodies if chunk[i].id in refused]:
                outcomes[position] = Outcome.permanent(refused[chunk[position].id])
                del bodies[position]
            deliveries = {position: chunk[position] for position in bodies}
            indexed.changed.clear()
            with self._index.transaction(connection, indexed.changed):
                compared, winners = compare(
                    list(deliveries.values()), indexed.known({d.id for d in deliveries.values()})
                )
                body_of = {delivery.hash: bodies[position] for position, delivery in deliveries.items()}
                winning_files = [(delivery, body_of[delivery.hash]) for delivery in winners.values()]
                indexed.put({delivery.id: body for delivery, body in winning_files})  # 2, 3
                crash.point("files.placed")
                indexed.record(winning_files)  # 4
                if deliveries:
                    record_writer(connection, writer_name(self._context), list(deliveries.values()))
        crash.point("files.recorded")
        outcomes |= dict(zip(deliveries, compared, strict=True))
        return [outcomes[position] for position in range(len(chunk))]

    def _require_open_pass(self) -> None:
        """Keep a worker that was stopped for long from writing beside the one after it.

        Raises:
            Unavailable: another pass may have begun.
        """
        if self._context is not None and self._context.is_open is not None and not self._context.is_open():
            raise Unavailable(f"{self.target()}: this pass has been closed, so nothing is written by it any more")

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
        self._index.close()
        self._folder.close()

    def _errors(self) -> ExitStack:
        errors = ExitStack()
        errors.enter_context(self._folder.translated())
        errors.enter_context(SQLite().translated_errors(self.target()))
        return errors


_FileHash: Final = partial(blake2b, digest_size=16)
"""Hash of a file's content, as ``content_hash`` of the index has it."""

_READ_BYTES: Final = 1 << 20


def _hash_of_file(file: BinaryIO) -> str:
    digest = _FileHash()
    while data := file.read(_READ_BYTES):
        digest.update(data)
    return digest.hexdigest()


# One ``write`` into a directory.


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


class IndexedFolder:
    """A directory and its index, inside a transaction that holds the index's write lock.

    Attributes:
        changed: ids whose rows were changed.
    """

    def __init__(self, folder: TargetFolder, connection: sa.Connection) -> None:
        self._folder = folder
        self._connection = connection
        self._kinds: dict[str, Kind] = {}
        self.changed: set[str] = set()

    def known(self, ids: Iterable[str]) -> dict[str, LastDelivery]:
        d = DOCUMENTS.c
        rows = self._rows(ids, d.id, d.sequence, d.delivery_hash, d.operation)
        return {row.id: LastDelivery(row.sequence, row.delivery_hash) for row in rows if row.operation != "new"}

    def has_unknown_files(self, wanted: Mapping[str, FileBody]) -> bool:
        """Return whether there are files of names that ids without a name would get."""
        with self._connection.begin():
            known = {row.id for row in self._rows(wanted, DOCUMENTS.c.id)}
        paths = [_first_path(id, body.suffix) for id, body in wanted.items() if id not in known and not body.by_content]
        self._look_at(paths)
        return any(self._kind(path) for path in paths)

    def reserve(self, wanted: Mapping[str, FileBody]) -> dict[str, str]:
        """Reserve a unique name for each id; return the ids that cannot have one, with the reason."""
        d = DOCUMENTS.c
        paths = {row.id: row.path for row in self._rows(wanted, d.id, d.path)}
        self._look_at(_first_path(id, body.suffix) for id, body in wanted.items() if id not in paths)
        refused = {}
        for id, body in wanted.items():
            if id in paths and (body.by_content or not self._is_blocked(paths[id])):
                continue
            path = "" if body.by_content else next(self._free_paths(id, body.suffix), None)
            if path is None:
                asked = f"{self._folder.where}/{_first_path(id, body.suffix)}"
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
            self.changed.add(id)
        return refused

    def put(self, bodies: Mapping[str, FileBody]) -> None:
        """Write these files under their names, whole and durably, and remove those of deletes."""
        d = DOCUMENTS.c
        paths = {row.id: row.path for row in self._rows(bodies, d.id, d.path)}
        written: dict[str, bytes] = {}
        unchanged = []
        for id, body in bodies.items():
            if body.data is None:
                continue
            if body.content and (body.content in written or self._folder.read(body.content) == body.data):
                unchanged.append(body.content)  # a killed writer may not have synced it
                continue
            written[body.content or paths[id]] = body.data
        self._folder.put(list(written.items()))
        self._folder.confirm(unchanged)
        self._folder.remove(
            paths[id] for id, body in bodies.items() if body.data is None and not body.by_content and id in paths
        )

    def record(self, deliveries: Iterable[tuple[Delivery, FileBody]]) -> None:
        """Record these deliveries in the index as those that are in the directory."""
        for delivery, body in deliveries:
            values: dict[str, Any] = {"sequence": delivery.sequence, "delivery_hash": delivery.hash}
            values |= {"operation": delivery.operation}
            values[CONTENT_HASH] = None if body.data is None else _FileHash(body.data).hexdigest()
            values |= {"source": delivery.source, "version": delivery.version, "route": "/".join(delivery.route)}
            if body.content:
                values["path"] = body.content
            self._connection.execute(sa.update(DOCUMENTS).where(DOCUMENTS.c.id == delivery.id).values(values))
            self.changed.add(delivery.id)

    # --- names --------------------------------------------------------------------------------------------------------

    def _free_paths(self, id: str, suffix: str) -> Iterator[str]:
        """Yield the free names that this id could have, best first."""
        for path in (path_of_id(id + suffix), hashed_path(id, suffix)):
            if path is None or self._is_blocked(path) or self._is_taken(id, path):
                continue
            if not self._kind(path):
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
        if not self._folder.nests:
            return False
        return self._kind(path) == "folder" or any(self._kind(folder) == "file" for folder in _folders_of(path))

    def _kind(self, path: str) -> Kind:
        if path not in self._kinds:
            self._look_at([path])
        return self._kinds[path]

    def _look_at(self, paths: Iterable[str]) -> None:
        """Ask for the kinds of many names at once."""
        asked = {path for path in paths if path not in self._kinds}
        if asked:
            self._kinds |= self._folder.kinds(sorted(asked))

    def _rows(self, ids: Iterable[str], *columns: sa.Column) -> Iterator[sa.Row]:  # type: ignore[type-arg]
        for some in slices(ids, SLICE):
            yield from self._connection.execute(sa.select(*columns).where(DOCUMENTS.c.id.in_(some))).all()


def _first_path(id: str, suffix: str) -> str:
    """Return the name that an id gets if nobody has it."""
    return path_of_id(id + suffix) or hashed_path(id, suffix)


def _folders_of(path: str) -> Iterator[str]:
    names = path.split("/")
    return ("/".join(names[:end]) for end in range(1, len(names)))


# Lines of JSON in a folder: a file for each chunk.


class JsonLines(_InFolder):
    """A folder of files ``<first sequence>-<last sequence>-<chunk>.jsonl``; each appears whole, or not at all.

    A line is an object with ``hash``, ``sequence``, ``operation`` ("upsert" or "delete"), ``id``, ``parent_id``,
    ``origin_id``, ``source``, ``version``, ``route`` (a list), ``fields`` and ``text``: the raw bytes decoded as
    UTF-8, null without raw. Raw bytes that are not UTF-8 stand as base64 in ``raw_base64``, and ``text`` is null. The
    last key, ``content_hash``, shows ``ferryman verify`` whether somebody has changed the line.

    The folder is a log: a new version is a new line, so is a delete. **How to read it:** sort the files by name, skip
    a line whose ``hash`` you have seen, and of an ``id`` take the line with the highest ``sequence``. A hash can stand
    in two files: after a kill a chunk is written again, and if it is cut the same it makes the same file, but rows
    that were not sure to have arrived may be cut differently then. Nothing that was confirmed is ever overwritten.

    Ignore names that begin with a dot: ``.ferryman-id`` is the folder's identity, and a killed writer leaves at most
    one more, which is removed later. Each run notices a folder that was removed, emptied, exchanged or put back from an
    older copy. So who takes files away leaves the newest one. The folder may be a URL, see ``Directory``: then each
    chunk of a wave is a file there.
    """

    effect = Effect.IDEMPOTENT

    facts: ClassVar[Facts] = Facts(
        stored="a line a delivery, deletes too, with hash and sequence",
        limits=("a file has `rows` lines at most, and ends at the plan's `batch_bytes`",),
        outcomes=(
            ("no room, a disk in trouble, no connection", "transient, about all"),
            ("no right to write, a login that is refused", "permanent, about all"),
            ("fields that are not JSON", "permanent"),
        ),
    )

    def __init__(
        self,
        directory: str | Path,
        rows: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """``directory`` is created if it does not exist. A relative path is relative to the plan file's folder; in a
        program, to the current folder.

        Args:
            rows: maximum number of lines per file; a plan's own ``batch=`` wins. None: 500. A file also ends at the
                plan's ``batch_bytes=``, 5 MiB by default, and where a pass of delivering ends.
            storage_options: as ``Directory`` says.

        Raises:
            PlanError: ``rows`` is below 1.
        """
        self._open_folder(directory, storage_options)
        if rows is not None and rows < 1:
            raise PlanError([f"JsonLines({_as_given(directory, self._folder)!r}): rows={rows}: give 1 or more"])
        self.preferred_batch = rows  # type: ignore[misc]  # of this one

    def check(self) -> None:
        """Make the folder with its identity, and clean up after killed writers."""
        with self._folder.translated():
            self._folder.make(sweep=False)
            identify(self._folder, _IDENTITY_OF_LINES)

    def identity(self) -> str | None:
        """Return the folder's identity."""
        with self._folder.translated():
            return read_identity(self._folder, _IDENTITY_OF_LINES)

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of lines, by the names of the files."""
        with self._folder.translated():
            return max((last for last, _ in self._files()), default=None)

    def newer_than(self, sequence: int) -> Iterator[Stored]:
        """Yield lines with higher sequences than this one, whoever wrote them."""
        with self._folder.translated():
            for last, name in self._files():
                if last <= sequence:
                    continue
                with self._folder.open(name) as file:
                    for line in file:
                        stored = _stored_line(line.rstrip(b"\r\n"), above=sequence)
                        if stored is not None:
                            yield stored

    def _files(self) -> Iterator[tuple[int, str]]:
        """Yield (last sequence, name) of each file that is named as ``write`` does."""
        for name in self._folder.names():
            if match := _NAME_OF_LINES.fullmatch(name):
                yield int(match[1]), name

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the lines, each hash once, see ``Destination.inventory``; of a line that stands in several files the
        first.

        Raises:
            Unavailable, Misconfigured: a file cannot be read.
        """
        wanted, seen = None if ids is None else set(ids), set[bytes]()
        with self._folder.translated():
            for name in self._folder.names():
                if name.startswith(".") or not name.endswith(".jsonl"):
                    continue
                with self._folder.open(name) as file:
                    for line in file:
                        each = _stored_line(line.rstrip(b"\r\n"))
                        if each is None or (wanted is not None and each.id not in wanted):
                            continue
                        if (key := each.hash.encode()) not in seen:
                            seen.add(key)
                            yield each

    def maintain(self) -> list[str]:
        return [line for line in (self._folder.remark(),) if line]

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write the chunk's file.

        Raises:
            Unavailable: no room, no connection, or a disk in trouble; no file was made.
            Misconfigured: no right to write here.
        """
        outcomes: list[Outcome | None] = [None] * len(chunk)
        if lines := encode_payloads(chunk, outcomes):
            name = _name([chunk[position] for position, _ in lines])
            content = b"\n".join(_with_content_hash(line) for _, line in lines) + b"\n"
            with self._folder.translated():
                self._folder.put([(name, content)])
        return [outcome or Outcome.ok() for outcome in outcomes]

    def close(self) -> None:
        self._folder.close()


_IDENTITY_OF_LINES: Final = ".ferryman-id"

_NAME_OF_LINES: Final = re.compile(r"[0-9]{16}-([0-9]{16})-[0-9a-f]{8}\.jsonl")

_CONTENT_HASH_KEY: Final = b',"content_hash":"'


def _with_content_hash(line: bytes) -> bytes:
    """Add the last key of a line: a hash of the line without it."""
    return line[:-1] + _CONTENT_HASH_KEY + content_hash(line).encode() + b'"}'


def _stored_line(line: bytes, above: int = -1) -> Stored | None:
    """Return what a line holds; None: it is not one of ours, was cut, or its sequence is not above this one."""
    try:
        delivery = _decode_line(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    if delivery.sequence <= above:
        return None
    payload, key, written = line.rpartition(_CONTENT_HASH_KEY)
    intact = (
        None if not delivery.content_hash else bool(key) and content_hash(payload + b"}").encode() + b'"}' == written
    )
    return Stored(delivery.id, delivery.hash, intact, delivery.source, delivery.version, tuple(delivery.route))


class _Line(msgspec.Struct):
    id: str
    hash: str
    sequence: int = 0
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
