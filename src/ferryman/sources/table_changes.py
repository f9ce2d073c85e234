"""A Delta table: a first reading, then its change data feed, version by version."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from ferryman import limits
from ferryman.document import Document, decode_fields
from ferryman.errors import BadDocument, FerrymanError, Misconfigured, Unavailable, UsageError
from ferryman.net import relative_paths, urls
from ferryman.sources.base import Bookmark, Complete, Detect, Listed, Note, Source

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

OnVersionsLost = Literal["stop", "compare"]

TABLE: Final = "table"
"""The bookmark."""

_IDS: Final = "ids"
"""Key of a partition that reads only the rows of these ids, for a retry."""

_NAMED_IDS: Final = 1000
"""Ids that a query names; if there are more, all rows are read and the others left out."""

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")

_FEED: Final = "delta.enableChangeDataFeed"
_ADDED: Final = ("_change_type", "_commit_version", "_commit_timestamp")
"""Columns that the feed adds."""

_BEFORE: Final = ("delete", "update_preimage")
"""Kinds of change that tell what a row was."""

_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables that change nothing about the rows of the feed. With deletion vectors, rows that are deleted by a
vector alone are not in its files."""

_AWAY: Final = ("timed out", "timeout", "connection", "error sending request", "dns error", "503", "502", "429")
"""Texts by which an error of the table's store is known to pass."""


class TableVersion(msgspec.Struct, frozen=True):
    """Bookmark: the last version that was read."""

    table: str
    """Id of the table: one that is made again at the same place has another."""
    version: int


class TableChanges(Source):
    """Changes of a Delta table (docs/how-to/follow-a-delta-table.md): ``TableChanges("s3://lake/items",
    id="item_no")``.

    Each row is a document, each column a field, converted as in ``sources.DataFrame``. A new plan reads the table
    whole. Then each scan reads the change data feed of the versions since the last one: inserts and updates send the
    row, deletes delete it, and an update that changes the id does both. Of several changes of a row in one scan the
    last one counts.

    The table must have ``delta.enableChangeDataFeed = true``. Versions for which there is no feed any more (their files
    were vacuumed, their log was cleaned up, the feed was off meanwhile) are never skipped: see ``on_lost``.

    Args:
        table: path or URL of the table (``pip install 'ferryman[delta]'``).
        id: column that holds the id, unique in the table: text or a number.
        on_lost: what to do if changes are lost, or the table was made again. "stop": the source stops, and says why;
            "compare": it reads the table whole, and deletes the documents of rows that are gone, under ``max_deleted``.
        options: settings of the store, as delta-rs has them: ``{"AWS_REGION": …}``; never shown.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    lists_all = False
    keeps_content = True

    def __init__(
        self,
        table: str,
        id: str = "id",
        *,
        on_lost: OnVersionsLost = "stop",
        options: Mapping[str, str] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if on_lost not in get_args(OnVersionsLost):
            raise UsageError(f"on_lost={on_lost!r}: choose one of {', '.join(get_args(OnVersionsLost))}.")
        self.table = str(table) if "://" in str(table) else relative_paths.absolute(table)
        self.id = id
        self.on_lost = on_lost
        self.options = dict(options or {})

    def __repr__(self) -> str:
        return f"TableChanges({self.place()!r}, id={self.id!r})"

    def not_installed(self) -> str:
        if find_spec("deltalake") is None:
            return "TableChanges needs deltalake, which is not installed: pip install 'ferryman[delta]'"
        return ""

    def place(self) -> str | None:
        return urls.redact(self.table) if "://" in self.table else self.table

    def local_paths(self) -> tuple[str, ...]:
        return () if "://" in self.table else (self.table,)

    def check(self) -> None:
        """Raises:
        Misconfigured: delta-rs is not installed.
        """
        if why := self.not_installed():
            raise Misconfigured(why)

    def partitions(self) -> list[Any]:
        return self.partitions_after({})

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        return [bookmarks.get(TABLE)]  # the table is opened by workers only: delta-rs does not survive a fork

    def partitions_of_ids(self, ids: Collection[str], bookmarks: Mapping[str, Any]) -> list[Any] | None:
        last = bookmarks.get(TABLE)
        return [{**last, _IDS: sorted(ids)}] if last else []

    def listing(self, partition: dict[str, Any] | None) -> Iterator[Listed | Document | Bookmark | Complete | Note]:
        """Yield what changed since the bookmark, or all rows; or the rows of some ids, as they are now.

        Raises:
            Misconfigured: there is no such table, it has no feed, or changes are lost.
            Unavailable: its store does not answer.
        """
        found = self._open()
        if partition is not None and _IDS in partition:
            if partition["table"] == str(found.metadata().id):  # else the next scan says that it was made again
                yield from self._rows_of(found, partition[_IDS])
            return
        self._check_feed(found)
        self._check_features(found)
        now = TableVersion(str(found.metadata().id), found.version())
        bookmark = Bookmark(TABLE, msgspec.to_builtins(now))
        last = None if partition is None else msgspec.convert(partition, TableVersion)
        if last == now:
            return
        if last is not None and (why := self._lost(found, now, last)):
            if self.on_lost == "stop":
                raise Misconfigured(
                    f"table {self.place()}: {why}. What changed since version {last.version} would be missing. To go "
                    "on, give the source on_lost='compare': it reads the table whole, and deletes the documents of "
                    "rows that are gone"
                )
            yield Note(f"{why}: the table is read whole")
            last = None
        if last is None:
            yield from self._all_rows(found)
            yield Complete("", bookmark)
            return
        for version in range(last.version + 1, now.version + 1):
            yield from self._changes(found, version)
        yield bookmark

    # --- the table ----------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable

        with self._translated_errors():
            return DeltaTable(self.table, storage_options=self.options or None)

    def _check_feed(self, found: DeltaTable) -> None:
        if str(found.metadata().configuration.get(_FEED, "")).lower() != "true":
            raise Misconfigured(
                f"table {self.place()} has no change data feed: ALTER TABLE … SET TBLPROPERTIES ({_FEED} = true), or "
                "read it as a DataFrame, which compares all rows"
            )

    def _check_features(self, found: DeltaTable) -> None:
        protocol = found.protocol()
        features = set(protocol.reader_features or ())
        if protocol.min_reader_version == 2:
            features.add("columnMapping")
        if unknown := features - _FEATURES:
            raise Misconfigured(
                f"table {self.place()} has {', '.join(sorted(unknown))}, with which its change data feed is not read "
                "safely: ALTER TABLE … DROP FEATURE, or read it as a DataFrame, which compares all rows"
            )

    def _lost(self, found: DeltaTable, now: TableVersion, last: TableVersion) -> str:
        """Return why the feed does not tell what changed since a version; "": it does."""
        if last.table != now.table:
            return "it was made again"
        if last.version > now.version:
            return f"it is at version {now.version} now, before the one that was read: it was put back"
        try:
            reader = found.load_cdf(starting_version=last.version + 1, ending_version=now.version)
            del reader  # its files are not read before it is asked for batches
            self._look_for_files(found, last.version + 1)
        except FileNotFoundError as e:
            return str(e)
        except Exception as e:
            if _is_passing(e):
                raise Unavailable(f"table {self.place()}: {e}") from e
            if "Invalid table version" in str(e):
                return f"its log does not have version {last.version + 1} any more"
            return " ".join(str(e).removeprefix("External error: ").split())
        return ""

    def _look_for_files(self, found: DeltaTable, first: int) -> None:
        """Look for the files of the oldest version, which are the first to be vacuumed.

        Raises:
            FileNotFoundError: they are not there.
        """
        try:
            for _ in self._feed(found, first):
                break
        except Exception as e:
            if "not found" in str(e).lower():
                raise FileNotFoundError(f"files of version {first} were vacuumed") from e
            raise

    def _feed(self, found: DeltaTable, version: int) -> Iterator[pa.RecordBatch]:
        return _plain_batches(found.load_cdf(starting_version=version, ending_version=version))

    def _all_rows(self, found: DeltaTable) -> Iterator[Listed | Document]:
        from deltalake import QueryBuilder

        with self._translated_errors():
            query = QueryBuilder().register("followed", found).execute("SELECT * FROM followed")
            yield from self._documents(_plain_batches(query), Document.of)

    def _rows_of(self, found: DeltaTable, ids: Collection[str]) -> Iterator[Document]:
        from deltalake import QueryBuilder

        wanted = set(ids)
        name = '"' + self.id.replace('"', '""') + '"'
        kind = next((str(field.type.type) for field in found.schema().fields if field.name == self.id), "")
        condition = "TRUE"  # others are read and left out
        if len(wanted) <= _NAMED_IDS and (kind == "string" or all(map(_WHOLE.fullmatch, wanted))):
            values = (f"'{id.replace(chr(39), chr(39) * 2)}'" if kind == "string" else id for id in sorted(wanted))
            condition = f"{name} IN ({', '.join(values)})"
        with self._translated_errors():
            query = QueryBuilder().register("followed", found).execute(f"SELECT * FROM followed WHERE {condition}")
            yield from (doc for doc in self._documents(_plain_batches(query), Document.of) if doc.id in wanted)

    def _changes(self, found: DeltaTable, version: int) -> Iterator[Listed | Document]:
        """Yield the deletes of a version, then its upserts: a row that is replaced is in both."""
        import pyarrow as pa
        import pyarrow.compute as pc

        def parts(*, before: bool) -> Iterator[pa.RecordBatch]:
            for batch in self._feed(found, version):
                is_before = pc.is_in(batch.column("_change_type"), pa.array(_BEFORE))
                yield batch.filter(is_before if before else pc.invert(is_before)).drop_columns(list(_ADDED))

        with self._translated_errors():
            yield from self._documents(parts(before=True), lambda id, *_: Document.deleted(id))
            yield from self._documents(parts(before=False), Document.of)

    def _documents(self, batches: Iterator[pa.RecordBatch], make: Callable[..., Document]) -> Iterator[Document]:
        """Yield a document for each row.

        Raises:
            BadDocument: some rows have no id; raised after the last batch.
        """
        from ferryman.sources.arrow import encode_batches

        unnamed = 0
        for rows in encode_batches(batches, self.id, "TableChanges"):
            for id, fields in zip(*rows, strict=True):
                if id:
                    yield make(id, decode_fields(fields))
                else:
                    unnamed += 1
        if unnamed:
            raise BadDocument(
                f"table {self.place()}: {unnamed} rows have no {self.id!r} (null or empty) and cannot be documents"
            )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of the table and of its store to ours."""
        try:
            yield
        except (FerrymanError, BadDocument):
            raise
        except Exception as e:
            text = f"table {self.place()}: {' '.join(str(e).split())}"
            if "not found" in text.lower() and "_change_data" in text:
                raise Misconfigured(
                    f"{text}: files of the change data feed were vacuumed. To go on, give the source on_lost='compare'"
                ) from e
            raise (Unavailable if _is_passing(e) else Misconfigured)(text) from e


def _plain_batches(stream: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stream of delta-rs, without its views."""
    import pyarrow as pa

    from ferryman.sources.arrow import plain_types

    reader = pa.RecordBatchReader.from_stream(stream)
    schema = plain_types(reader.schema)
    for batch in reader:
        if batch.num_rows:
            yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def _is_passing(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, ConnectionError | TimeoutError) or any(each in text for each in _AWAY)
