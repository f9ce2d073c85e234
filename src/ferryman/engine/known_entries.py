"""Look-ups in ``documents``, for entries of logs that are versions of documents.

Other sources are listed, and the driver compares the listing with ``documents``. A log is not listed: which documents a
task gets shows when it reads. So the driver sorts each file of ``documents`` by hash, once a run, into the scratch
folder, and tasks look up the documents of their entries there. It does the same with the outbox: what waits there
counts as delivered, see ``scan.changes.UNCONFIRMED``.

Most documents are published in one of a few ways, so the index itself has what is known of them. Only for others the
row in ``documents`` is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.engine.tasks import NOTHING_KNOWN, IndexedFile, KnownDocument, KnownFiles, add_unconfirmed
from ferryman.records.families import Published, encode_published
from ferryman.state.state import State
from ferryman.storage.files import (
    StatePath,
    local_path,
    make_folder,
    path_of,
    path_to_write,
    remove_all,
    remove_folder,
    upload,
)
from ferryman.storage.parquet import RowGroups
from ferryman.storage.tables import Table

_Array = np.ndarray[Any, Any]

_ROW: Final = np.dtype(
    [("check", "u8"), ("wave", "i8"), ("row", "i8"), ("revision", "i8"), ("text", "i4"), ("deleted", "?")]
)
"""Columns of an index, beside the hashes that it is sorted by. ``check``: 64 more bits of the hash; ``row``: in the
data file; ``text``: number of what is published among the texts of the index, or -1: the row has to be read."""

_READ: Final = -1

_TEXTS_BYTES: Final = 4 * limits.MIB
"""Size up to which an index has the texts of what is published."""

_STORED: Final = ("version", "revision", "fingerprint", "operation", "given", "due", "failed", "held", "again")
_OF_DOCUMENTS: Final = [
    *("source", "document", "wave", "revision", "operation", "given", "due", "failed", "held", "forced", "again"),
]
_OF_OUTBOX: Final = ["source", "origin"]
_WAITING: Final = ["source", "origin", "document", "route", "operation", "revision", "due"]


def hash_documents(source: str, ids: Sequence[str]) -> _Array:
    """Return two 64-bit hashes of each document of a source: an array of two columns, the same in every process."""
    first = f"{source}\0".encode()
    digests = b"".join([md5(first + id.encode(), usedforsecurity=False).digest() for id in ids])
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


class EntryIndex:
    """Indexes of the files of ``documents`` and of the outbox, kept up to date by the driver during a run.

    Args:
        sources: the logs whose entries are looked up.
        folder: for the indexes, which tasks must see.
    """

    def __init__(self, state: State, sources: Collection[str], folder: StatePath) -> None:
        self._state = state
        self._folder = folder
        self._sources = pa.array(sorted(sources), pa.string())
        self._known: dict[str, dict[str, IndexedFile | None]] = {"documents": {}, "outbox": {}}
        """Table -> file -> its index; None: it has no rows of these sources."""
        self._count = 0

    def files(self) -> KnownFiles:
        """Index the files that are new, forget those that are gone, and return what tasks need."""
        return KnownFiles(self._refresh(self._state.documents), self._refresh(self._state.outbox))

    def close(self) -> None:
        """Remove the indexes."""
        self._known = {"documents": {}, "outbox": {}}
        remove_folder(self._folder)

    def _refresh(self, table: Table) -> tuple[IndexedFile, ...]:
        known, files = self._known[table.name], table.files
        gone = [each for name in known.keys() - files.keys() if (each := known.pop(name)) is not None]
        remove_all(path_of(f"{each.index_path}{ending}") for each in gone for ending in _ENDINGS)
        for name, file in files.items():
            if name not in known:
                destination = file.partition["destination"] if table is self._state.outbox else ""
                known[name] = self._index(table, name, destination)
        return tuple(each for each in known.values() if each is not None)

    def _index(self, table: Table, name: str, destination: str) -> IndexedFile | None:
        path = str(table.folder / name)
        rows = _outbox_rows(path, self._sources) if destination else _document_rows(path, self._sources)
        if rows is None:
            return None
        make_folder(self._folder)
        self._count += 1
        index = self._folder / f"{self._count:06}"
        for ending, content in zip(_ENDINGS, rows, strict=True):
            _write(self._folder / f"{index.name}{ending}", content)
        return IndexedFile(path, str(index), destination)


_ENDINGS: Final = (".hashes", ".rows", ".texts")


def _write(path: StatePath, content: Any) -> None:
    with path_to_write(path).open("wb") as file:
        if isinstance(content, np.ndarray):
            np.save(file, content)
        else:
            file.write(msgspec.json.encode(content))
    upload(path)


def _document_rows(path: str, sources: pa.Array) -> tuple[_Array, _Array, list[str]] | None:
    """Return the index of a file of ``documents``: of each document its last row, by hash; None: it has none of these
    sources."""
    hashes, found = [], []
    texts: dict[str, int] = {}
    size = first = 0
    with RowGroups(path, _OF_DOCUMENTS, verified=True) as groups:
        for every in groups.all_rows():
            at = np.arange(first, first + every.num_rows)
            first += every.num_rows
            mask = pc.is_in(every["source"], value_set=sources)
            table = every.filter(mask)
            if not table.num_rows:
                continue
            rows = np.zeros(table.num_rows, _ROW)
            rows["row"] = at[np.asarray(mask)]
            rows["wave"], rows["revision"] = (table[name].to_numpy() for name in ("wave", "revision"))
            rows["deleted"] = np.asarray(pc.equal(table["operation"], "delete"))
            is_plain = pc.invert(table["forced"])
            for name in ("due", "failed", "held", "again"):
                is_plain = pc.and_(is_plain, pc.is_null(table[name]))
            given = pc.if_else(pc.equal(table["operation"], "delete"), "", table["given"])
            encoded = pc.if_else(is_plain, given, None).combine_chunks().dictionary_encode()
            numbers = np.full(len(encoded.dictionary) + 1, _READ, np.int32)
            for code, text in enumerate(encoded.dictionary.to_pylist()):
                if text not in texts and size + len(text) <= _TEXTS_BYTES:
                    size += len(text) + 1
                    texts[text] = len(texts)
                numbers[code] = texts.get(text, _READ)
            rows["text"] = numbers[pc.fill_null(encoded.indices, len(numbers) - 1).to_numpy()]
            both = _hash_rows(table["source"], table["document"])
            rows["check"] = both[:, 1]
            hashes.append(both[:, 0])
            found.append(rows)
    if not found:
        return None
    low, rows = np.concatenate(hashes), np.concatenate(found)
    order = np.argsort(low)
    if (low[order[1:]] == low[order[:-1]]).any():
        order = np.lexsort((rows["wave"], rows["check"], low))
    low, rows = low[order], rows[order]
    last = np.append((low[1:] != low[:-1]) | (rows["check"][1:] != rows["check"][:-1]), True)
    return low[last], rows[last], list(texts)


def _outbox_rows(path: str, sources: pa.Array) -> tuple[_Array, _Array, list[str]] | None:
    """Return the index of an outbox file, by the hashes of the origins; None: it has no rows of these sources."""
    with RowGroups(path, _OF_OUTBOX, verified=True) as groups:
        tables = list(groups.all_rows())
    table = pa.concat_tables(tables) if tables else None
    if table is None or not (mask := np.asarray(pc.is_in(table["source"], value_set=sources))).any():
        return None
    rows = np.zeros(int(mask.sum()), _ROW)
    rows["row"] = np.flatnonzero(mask)
    mine = table.filter(pa.array(mask))
    both = _hash_rows(mine["source"], mine["origin"])
    rows["check"] = both[:, 1]
    order = np.argsort(both[:, 0], kind="stable")
    return both[:, 0][order], rows[order], []


def _hash_rows(sources: pa.ChunkedArray, ids: pa.ChunkedArray) -> _Array:
    hashes = np.zeros((len(ids), 2), np.uint64)
    names = np.asarray(sources.combine_chunks().dictionary_encode().indices)
    of_name = sources.unique().to_pylist()
    for number, source in enumerate(of_name):
        mine = names == number
        hashes[mine] = hash_documents(source, ids.filter(pa.array(mine)).to_pylist())
    return hashes


# In a task.


class _OpenIndex:
    """The index of one file, open in a task."""

    def __init__(self, file: IndexedFile) -> None:
        self.file = file
        self.hashes, self.rows = (
            np.load(local_path(f"{file.index_path}{ending}"), mmap_mode="r") for ending in _ENDINGS[:2]
        )
        self.texts: list[str] = msgspec.json.decode(Path(local_path(f"{file.index_path}{_ENDINGS[2]}")).read_bytes())

    def find(self, wanted: _Array) -> _Array:
        """Return the position of each document, -1 where it is not there; the index has each document once."""
        at = np.searchsorted(self.hashes, wanted[:, 0])
        found = np.full(len(wanted), -1)
        rest = np.arange(len(wanted))
        while len(rest := rest[at[rest] < len(self.hashes)]):
            rest = rest[self.hashes[at[rest]] == wanted[rest, 0]]
            same = self.rows["check"][at[rest]] == wanted[rest, 1]
            found[rest[same]] = at[rest[same]]
            rest = rest[~same]
            at[rest] += 1
        return found

    def find_all(self, wanted: _Array) -> _Array:
        """Return the rows of the file that are about these documents, ascending, and possibly some others."""
        first, end = (np.searchsorted(self.hashes, wanted[:, 0], side) for side in ("left", "right"))
        each = [np.arange(f, e) for f, e in zip(first[end > first], end[end > first], strict=True)]
        return np.unique(self.rows["row"][np.concatenate(each)]) if each else np.zeros(0, np.int64)


class KnownEntries:
    """Looks up documents of one log, in a task.

    Attributes:
        hashes: of the documents that were looked up.
    """

    def __init__(self, files: KnownFiles, source: str) -> None:
        self._source = source
        self._documents = [_OpenIndex(file) for file in files.documents]
        self._outbox = [_OpenIndex(file) for file in files.outbox]
        self.hashes: list[_Array] = []

    def look_up(self, ids: Sequence[str]) -> list[KnownDocument] | None:
        """Return what is known of each document, ``NOTHING_KNOWN`` if it has no row; None: none has one."""
        wanted = hash_documents(self._source, ids)
        self.hashes.append(wanted[:, 0])
        waves = np.full(len(ids), -1)
        places = np.zeros((len(ids), 2), np.int64)  # number of the index, position in it
        for number, index in enumerate(self._documents):
            at = index.find(wanted)
            there = np.flatnonzero(at >= 0)
            newer = there[index.rows["wave"][at[there]] > waves[there]]
            waves[newer] = index.rows["wave"][at[newer]]
            places[newer, 0], places[newer, 1] = number, at[newer]
        if not (waves >= 0).any():
            return None
        found = [NOTHING_KNOWN] * len(ids)
        for number, index in enumerate(self._documents):
            rows = np.flatnonzero((waves >= 0) & (places[:, 0] == number))
            for i, known in zip(rows.tolist(), _known_of(index, places[rows, 1]), strict=True):
                found[i] = known
        if self._outbox:
            self._correct(ids, found, wanted[waves >= 0])
        return found

    def _correct(self, ids: Sequence[str], found: list[KnownDocument], wanted: _Array) -> None:
        """Count what waits in the outbox: deletes as not made, contents of upserts as unknown."""
        deletes: Mapping[str, list[tuple[int | None, int, Published]]] = defaultdict(list)
        upserts: Mapping[str, list[tuple[int | None, int]]] = defaultdict(list)
        for index in self._outbox:
            for row in _waiting_rows(index, wanted, self._source):
                origin, due, revision = row["origin"], row["due"], row["revision"]
                if row["operation"] == "delete":
                    member = row["document"][len(origin) :]
                    deletes[origin].append((due, revision, Published(member, row["route"], index.file.destination)))
                else:
                    upserts[origin].append((due, revision))
        for i, id in enumerate(ids) if deletes or upserts else ():
            known = found[i]
            if known.version is None or (id not in deletes and id not in upserts):
                continue
            waits = [each for due, revision, each in deletes[id] if due is not None or revision == known.revision]
            unsure = any(due is not None or revision == known.revision for due, revision in upserts[id])
            given = add_unconfirmed(known.given, encode_published(waits) if waits else None, unsure)
            found[i] = known._replace(given=given or "")


def _known_of(index: _OpenIndex, at: _Array) -> Iterator[KnownDocument]:
    """Yield what is known of the documents at these positions of an index."""
    rows = index.rows[at]
    stored = _read_documents(index.file.path, rows["row"][rows["text"] == _READ])
    columns = (rows[name].tolist() for name in ("row", "revision", "text", "deleted"))
    for row, revision, text, deleted in zip(*columns, strict=True):
        if text == _READ:
            yield stored[row]
        else:
            operation = "delete" if deleted else "upsert"
            yield KnownDocument("", revision, "", operation, index.texts[text], None, None, None, None)


def _read_documents(path: str, rows: _Array) -> dict[int, KnownDocument]:
    if not len(rows):
        return {}
    rows = np.unique(rows)
    with RowGroups(path, list(_STORED), verified=True) as groups:
        tables = [table.select(list(_STORED)) for table in groups.rows_at(rows)]
    values = zip(*(pa.concat_tables(tables)[name].to_pylist() for name in _STORED), strict=True)
    known = (KnownDocument(*each) for each in values)
    return {
        row: each if each.operation == "upsert" else each._replace(given="")
        for row, each in zip(rows.tolist(), known, strict=True)
    }


def _waiting_rows(index: _OpenIndex, wanted: _Array, source: str) -> Iterator[dict[str, Any]]:
    if not len(rows := index.find_all(wanted)):
        return
    with RowGroups(index.file.path, _WAITING, verified=True) as groups:
        for table in groups.rows_at(rows):
            yield from (row for row in table.select(_WAITING).to_pylist() if row["source"] == source)
