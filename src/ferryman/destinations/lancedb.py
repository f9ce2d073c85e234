"""A destination in LanceDB: a table of documents with vectors, in a folder or in an object store."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from ferryman import crash, limits
from ferryman.destinations.base import (
    Delivery,
    DestinationContext,
    Effect,
    Facts,
    Hit,
    LastDelivery,
    Outcome,
    Stored,
    slices,
)
from ferryman.destinations.vectors import (
    TOMBSTONE_S,
    Declaration,
    Metric,
    VectorDestination,
    VectorField,
    VectorRow,
    Where,
    another_vector,
    check_remembered,
    declaration_findings,
    filter_token,
    filter_tokens,
    hit_of,
    missing_package,
    newest_rows,
    read_filter,
    read_question,
    read_rows,
    record_stored,
    route_text,
    stored_hash,
    vector_fields,
)
from ferryman.errors import DeliveryError, Misconfigured, PlanError, Unavailable, UsageError
from ferryman.net import relative_paths, urls
from ferryman.net.http import expand_variables

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Time that the merge of a chunk has: after it nothing is written any more, so nothing arrives late."""

COMPACT_FRAGMENTS: Final = 32
"""Fragments at which a table is compacted: each merge makes one, and a search opens each."""

COMPACT_SHARE: Final = 0.2
"""Part of a table's rows that are dead, or lie in small fragments beside the largest, at which it is compacted."""

INDEX_ROWS: Final = 10_000
"""Rows from which a field with ``index="hnsw"`` gets its index: below, a look at each vector takes milliseconds."""

PAGE: Final = 1000
"""Rows of an inventory that are in memory together."""

IDS: Final = 5000
"""Ids that one query asks for."""

OWN_COLUMNS: Final = (
    "id", "parent_id", "origin_id", "source", "version", "sequence", "delivery_hash", "route", "text", "fields",
    "filters", "content_hash", "deleted_at",
)  # fmt: skip

_NEWER: Final = (
    "target.sequence < source.sequence OR "
    "(target.sequence = source.sequence AND target.delivery_hash <> source.delivery_hash)"
)
"""Condition on which a row replaces the one of its id: the rule of ``compare``."""

_LIVE: Final = "deleted_at IS NULL"
_IDENTITY: Final = b"ferryman.identity"
_REMEMBERED: Final = b"ferryman.vector"
_PRIMARY_KEY: Final = b"lance-schema:unenforced-primary-key:position"
"""Metadata of a column by which LanceDB notices that two writers insert the same key."""

_METRICS: Final[Mapping[Metric, Any]] = {"cosine": "cosine", "l2": "l2", "dot": "dot"}

_CONFLICT: Final = re.compile(r"conflict|concurrent|too many.{0,100}retr|retryable", re.IGNORECASE)
_AWAY: Final = re.compile(
    r"error sending request|timed? ?out|connection|dns error|no space left|503|502|504|slow ?down|temporar",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"\b40[13]\b|access ?denied|forbidden|unauthorized|credential|nosuchbucket|invalidaccesskey|signature|"
    r"permission denied|read-only file system|not a directory|unknown scheme|no object store",
    re.IGNORECASE,
)

_log = logging.getLogger("ferryman")


class LanceDB(VectorDestination):
    """Writes documents with vectors into a table of LanceDB, which is made if it is not there; in a folder, or in an
    object store.

    ``LanceDB("index.lancedb", vectors={"vector": 256})`` keeps one row per id (``pip install 'ferryman[lancedb]'``).
    The columns: ``id``, ``parent_id``, ``origin_id``, ``source``, ``version``, ``sequence``, ``delivery_hash``,
    ``route`` (a JSON list), ``text`` (the raw bytes decoded as UTF-8; NULL without raw), ``fields`` (JSON, without
    the vectors), a column for each vector, and ``filters``: a text for each value among the fields, ``team="a"``, by
    which any program can filter: ``array_has_any(filters, ['team="a"'])``.

    **Exactly-once.** A chunk is one merge, which is one new version of the table: all of it, or nothing. A row replaces
    the one of its id only if its sequence is higher, so a repeated or late chunk changes nothing. The ``id`` is the
    table's primary key, and merges do not use an index on it, which would make LanceDB blind to the ids that another
    writer inserts at the same moment; so two writers leave each id once, too. A plan has one writer at a time.

    A delete leaves a row without content, whose ``deleted_at`` says since when (seconds since 1970), for an hour: an
    older upsert cannot bring the document back. Programs that read the table leave it out with ``deleted_at IS NULL``;
    a search by vector never finds it.

    The writer compacts the table after its last chunk when many fragments are small or many rows are dead, brings
    indices up to date, and removes versions older than ``keep_versions``. A compaction that fails or takes too long
    harms nothing; the next one tries again.

    Args:
        uri: a folder, relative to the plan file's, or a URL: ``s3://bucket/index``.
        table: its name.
        vectors: field -> dimensions, or a ``VectorField``. ``index="hnsw"``: an index once there are 10 000 rows;
            before, and without it, each question looks at each vector.
        storage_options: of an object store, as LanceDB takes them; ``${NAME}`` in a value is filled in from the
            environment of the driver and the workers. Without them: the environment (``AWS_ACCESS_KEY_ID``, …).
        keep_versions: time for which programs that have opened an older version of the table can go on reading it.
        compact_s: time that a compaction may take; below the node's ``send_timeout``.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True
    single_writer = True

    preferred_batch: ClassVar[int | None] = 10_000
    """Each chunk is a merge, which reads the column of ids, and a fragment: the fewer, the better."""

    facts: ClassVar[Facts] = Facts(
        stored=f"a row an id, with hash and sequence; of a delete an empty row for {TOMBSTONE_S} s",
        limits=(
            f"a `write` has {WRITE_S:g} s",
            "one writer: a second one at the same moment is harmless, and waits",
            "each merge reads the ids of the whole table: some 0.2 s for 200 000",
        ),
        tested=("LanceDB 0.40, in a folder and in S3 (moto)",),
    )

    def __init__(
        self,
        uri: str | Path,
        table: str = "documents",
        vectors: Declaration | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        keep_versions: str = "1h",
        compact_s: float = 40.0,
    ) -> None:
        self.uri = str(uri) if "://" in str(uri) else relative_paths.absolute(uri)
        self.table = table
        self.storage_options = dict(storage_options or {})
        self.compact_s = compact_s
        self._table: Any = None
        self._wrote = False
        findings = list(declaration_findings(vectors))
        try:
            urls.check_login(self.uri)
        except ValueError as e:
            findings.append(str(e))
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", table):
            findings.append(f"table={table!r}: give a name of letters, digits and _.-")
        if vectors and not findings and (taken := [name for name in vectors if name in OWN_COLUMNS]):
            findings.append(f"vectors: {taken[0]!r} is a column of LanceDB's own; give the field another name")
        try:
            self.keep_versions_s = limits.seconds(keep_versions)
        except ValueError as e:
            findings.append(f"keep_versions={keep_versions!r}: {e}")
        if findings:
            raise PlanError([f"LanceDB({urls.strip_secrets(self.uri)!r}, {table!r}): {each}" for each in findings])
        self.vectors = vector_fields(vectors)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_table": None, "_wrote": False}

    def __repr__(self) -> str:
        return f"LanceDB({self.target()!r})"

    def not_installed(self) -> str:
        return missing_package("lancedb", "lancedb", "LanceDB")

    def target(self) -> str:
        place = urls.strip_secrets(self.uri) if "://" in self.uri else f"lancedb://{self.uri}"
        return f"{place}#{self.table}"

    def local_paths(self) -> tuple[str, ...]:
        return () if "://" in self.uri else (self.uri,)

    # --- the table ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make the table, or check that it is fit; forget deletes that nobody can undo any more.

        Raises:
            Unavailable: the store does not answer, or the disk is full.
            Misconfigured: a table that is not Ferryman's, other dimensions, or no right to write.
        """
        with self._translated_errors():
            table = self._open_table()
            if table is None:
                table = self._make_table()
            self._check_columns(table)
            old = f"deleted_at < {int(time.time()) - TOMBSTONE_S}"
            if table.count_rows(old):
                table.delete(old)

    def _make_table(self) -> Any:
        connection = self._connect()
        try:
            table = connection.create_table(self.table, schema=self._schema())
        except ValueError as e:
            if "already exists" in str(e):  # another driver was faster
                return connection.open_table(self.table)
            raise
        crash.point("target.made")
        return table

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        text = [pa.field(name, pa.string()) for name in OWN_COLUMNS[1:5]]
        columns = [
            pa.field("id", pa.string(), nullable=False, metadata={_PRIMARY_KEY: b"1"}),
            *text,
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("delivery_hash", pa.string(), nullable=False),
            *(pa.field(name, pa.string()) for name in ("route", "text", "fields")),
            pa.field("filters", pa.list_(pa.string())),
            pa.field("content_hash", pa.string()),
            pa.field("deleted_at", pa.int64()),
        ]
        for name, field in self.vectors.items():
            remembered = msgspec.json.encode(field.remembered())
            columns.append(pa.field(name, _vector_type(field), metadata={_REMEMBERED: remembered}))
        return pa.schema(columns, metadata={_IDENTITY: uuid.uuid4().hex.encode()})

    def _check_columns(self, table: Any) -> None:
        target, schema = self.target(), table.schema
        missing = [name for name in OWN_COLUMNS if name not in schema.names]
        if missing or not (schema.field("id").metadata or {}).get(_PRIMARY_KEY):
            raise Misconfigured(
                f"{target}: the table was not made by Ferryman: "
                + (f"it has no column {missing[0]!r}" if missing else "its column 'id' is not a primary key")
                + ". Name another table."
            )
        for name, field in self.vectors.items():
            if name not in schema.names:
                raise Misconfigured(another_vector(target, f"the table has no column for the vector {name!r}"))
            there, ours = schema.field(name), _vector_type(field)
            remembered = msgspec.json.decode((there.metadata or {}).get(_REMEMBERED, b"{}"))
            size = getattr(there.type, "list_size", 0)
            remembered = check_remembered(target, name, field, {**remembered, "dimensions": size}, "table")
            if there.type != ours:
                raise Misconfigured(
                    another_vector(target, f"the vector {name!r} is {there.type}, the plan says {ours}")
                )
            if (kept := msgspec.json.encode(remembered)) != (there.metadata or {}).get(_REMEMBERED):
                table.update_field_metadata({"path": name, "metadata": {_REMEMBERED.decode(): kept.decode()}})

    def _connect(self) -> Any:
        import lancedb

        return lancedb.connect(self.uri, storage_options=self._options(), read_consistency_interval=timedelta(0))

    def _options(self) -> dict[str, str] | None:
        expanded = {name: expand_variables(each, self.target()) for name, each in self.storage_options.items()}
        return expanded or None

    def _open_table(self) -> Any:
        """Return the table; None: there is none."""
        if "://" not in self.uri and not Path(self.uri, f"{self.table}.lance").exists():
            return None  # connecting would make the folder
        try:
            return self._connect().open_table(self.table)
        except (ValueError, FileNotFoundError) as e:
            if "not found" in str(e).lower():
                return None
            raise

    def identity(self) -> str | None:
        """Return the identity that the table got when it was made."""
        with self._translated_errors():
            table = self._open_table()
            return "" if table is None else (table.schema.metadata or {}).get(_IDENTITY, b"unknown").decode()

    def highest_sequence(self) -> int | None:
        with self._translated_errors():
            import pyarrow.compute as pc

            table = self._open_table()
            batches = [] if table is None else table.search().select(["sequence"]).to_batches()
            return max((pc.max(batch["sequence"]).as_py() for batch in batches if batch.num_rows), default=None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def open(self, context: DestinationContext) -> None:
        with self._translated_errors():
            self._table = self._open_table()
        if self._table is None:
            raise Misconfigured(f"{self.target()}: the table is gone. Run again: Ferryman makes it.")

    def close(self) -> None:
        table, self._table, wrote, self._wrote = self._table, None, self._wrote, False
        if table is not None and wrote:
            self._compact(table)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One merge per chunk.

        Raises:
            Unavailable: the store does not answer, or another program's changes went first each time.
        """
        if self._table is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: list[Outcome | None] = [None] * len(chunk)
        rows = read_rows(chunk, self.vectors, outcomes)
        if merged := newest_rows(rows):
            with self._translated_errors():
                done = self._merge(merged)
                self._wrote = True
                if done.num_inserted_rows + done.num_updated_rows < len(merged):
                    stored = self._read_last_deliveries(row.delivery.id for row in rows)
                    record_stored(rows, stored, outcomes, self.target())
        return [outcome or Outcome.ok() for outcome in outcomes]

    def _merge(self, rows: list[VectorRow]) -> Any:
        merge = self._table.merge_insert("id").use_index(False).when_matched_update_all(where=_NEWER)
        done = merge.when_not_matched_insert_all().execute(
            self._to_arrow(rows), on_bad_vectors="null", timeout=timedelta(seconds=WRITE_S)
        )
        crash.point("target.written")
        return done

    def _read_last_deliveries(self, ids: Iterable[str]) -> dict[str, LastDelivery]:
        columns = ["id", "sequence", "delivery_hash"]
        found: dict[str, LastDelivery] = {}
        for some in slices(ids, IDS):
            for batch in self._table.search().where(_is_one_of(some)).select(columns).to_batches():
                for row in batch.to_pylist():
                    found[row["id"]] = LastDelivery(row["sequence"], row["delivery_hash"])
        return found

    def _to_arrow(self, rows: list[VectorRow]) -> pa.Table:
        import pyarrow as pa

        now, schema, records = int(time.time()), self._table.schema, []
        for row in rows:
            d, live = row.delivery, row.delivery.operation == "upsert"
            fields = msgspec.json.decode(row.fields)
            records.append(
                {
                    "id": d.id, "parent_id": d.parent_id, "origin_id": d.origin_id, "source": d.source,
                    "version": d.version, "sequence": d.sequence, "delivery_hash": d.hash,
                    "route": route_text(d.route), "text": row.text,
                    "fields": row.fields.decode() if live else None, "filters": filter_tokens(fields),
                    "content_hash": row.content_hash() if live else None, "deleted_at": None if live else now,
                }
            )  # fmt: skip
        columns = [
            _vector_column(rows, name, self.vectors[name])
            if name in self.vectors
            else pa.array([record.get(name) for record in records], schema.field(name).type)
            for name in schema.names
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    # --- compaction ---------------------------------------------------------------------------------------------------

    def _compact(self, table: Any) -> None:
        """Compact the table if it is due. The chunks are written: no failure of it concerns them."""
        try:
            before = table.stats()
            due = self._missing_indices(table, before["num_rows"])
            if not due and not _is_fragmented(before):
                return
            for name in due:
                self._make_index(table, name)
                crash.point("target.indexed")
            asyncio.run(self._optimize())
            crash.point("target.compacted")
            table.checkout_latest()
            after = table.stats()
        except TimeoutError:
            _log.warning(
                "%s: compacting takes longer than %g s, and was given up. Raise compact_s= and send_timeout=, or call "
                "optimize() of the table while no run writes to it.", self.target(), self.compact_s,
            )  # fmt: skip
        except Exception as e:
            _log.warning("%s: it was not compacted, the next run tries again: %s", self.target(), e)
        else:
            fragments = [each["fragment_stats"]["num_fragments"] for each in (before, after)]
            _log.info("%s: compacted %d fragments to %d", self.target(), *fragments)

    async def _optimize(self) -> None:
        import lancedb

        connection = await lancedb.connect_async(self.uri, storage_options=self._options())
        table = await connection.open_table(self.table)
        keep = timedelta(seconds=self.keep_versions_s)
        await asyncio.wait_for(table.optimize(cleanup_older_than=keep), self.compact_s)

    def _missing_indices(self, table: Any, rows: int) -> list[str]:
        """Return the vectors that shall have an index, have none, and are enough for one."""
        wanted = [name for name, field in self.vectors.items() if field.index == "hnsw"]
        if not wanted or rows < INDEX_ROWS:
            return []
        indexed = {column for index in table.list_indices() for column in index.columns}
        return [name for name in wanted if name not in indexed]

    def _make_index(self, table: Any, name: str) -> None:
        from lancedb.index import HnswSq

        distance = _METRICS[self.vectors[name].metric]
        table.create_index(name, config=HnswSq(distance_type=distance), wait_timeout=timedelta(seconds=self.compact_s))

    # --- reading ------------------------------------------------------------------------------------------------------

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        with self._translated_errors():
            table = self._open_table()
            if table is None:
                return
            for condition in [_LIVE] if ids is None else [f"{_LIVE} AND {_is_one_of(s)}" for s in slices(ids, IDS)]:
                for batch in table.search().where(condition).to_batches(PAGE):
                    yield from self._stored_rows(batch)

    def _stored_rows(self, batch: pa.RecordBatch) -> Iterator[Stored]:
        import numpy as np

        names = [name for name in OWN_COLUMNS if name != "filters"]
        vectors = {name: batch[name] for name in self.vectors}
        for position, row in enumerate(batch.select(names).to_pylist()):
            parts = [row[n] for n in ("id", "delivery_hash", "sequence", "parent_id", "origin_id", "source", "version")]
            held = {name: column[position].as_py() for name, column in vectors.items()}
            numbers = {name: np.asarray(value, np.float32) for name, value in held.items() if value is not None}
            try:
                written = stored_hash([*parts, row["route"]], row["text"], (row["fields"] or "").encode(), numbers)
            except ValueError:  # somebody has made something else of the fields than JSON
                written = ""
            route = tuple(msgspec.json.decode(row["route"] or "[]", type=list[str]))
            intact = written == row["content_hash"]
            yield Stored(row["id"], row["delivery_hash"], intact, row["source"], row["version"], route)

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        question = read_question(self.vectors, field, vector)
        conditions = [_LIVE, f"`{field}` IS NOT NULL"]
        for name, values in read_filter(where).items():
            tokens = ", ".join(_quote(filter_token(name, value)) for value in values)
            conditions.append(f"array_has_any(filters, [{tokens}])")
        if limit < 1:
            return []
        metric = self.vectors[field].metric
        with self._translated_errors():
            table = self._open_table()
            if table is None:
                raise UsageError(f"{self.target()}: there is no such table.")
            query = table.search(question, vector_column_name=field, query_type="vector")
            query = query.distance_type(_METRICS[metric]).where(" AND ".join(conditions), prefilter=True)
            if self.vectors[field].index == "hnsw":
                query = query.refine_factor(4)  # the index holds vectors of 8 bits: order the best by the whole ones
            found = query.select(["id", "text", "fields", "_distance"]).limit(limit).to_arrow().to_pylist()
        return [_hit(row, metric) for row in found]

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the errors of LanceDB, which tell by their texts what has happened."""
        try:
            yield
        except (DeliveryError, UsageError):
            raise
        except ImportError as e:
            raise Misconfigured(f"{self.not_installed() or e}.") from e
        except (OSError, RuntimeError, ValueError) as e:
            why = f"{self.target()}: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
            if _CONFLICT.search(str(e)):
                raise Unavailable(f"{why}: another program writes to the table") from e
            if _REFUSED.search(str(e)) or isinstance(e, PermissionError | NotADirectoryError | FileExistsError):
                raise Misconfigured(f"{why}. Correct the place, or the rights on it.") from e
            if _AWAY.search(str(e)) or isinstance(e, OSError):
                raise Unavailable(why) from e
            raise


def _vector_type(field: VectorField) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.float16() if field.type == "float16" else pa.float32(), field.dimensions)


def _vector_column(rows: list[VectorRow], name: str, field: VectorField) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    numbers = np.zeros((len(rows), field.dimensions), np.float16 if field.type == "float16" else np.float32)
    for number, row in enumerate(rows):
        if name in row.vectors:
            numbers[number] = row.vectors[name]
    missing = pa.array([name not in row.vectors for row in rows])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), field.dimensions, mask=missing)


def _hit(row: Mapping[str, Any], metric: Metric) -> Hit:
    distance = float(row["_distance"])
    if metric == "l2":
        distance = max(distance, 0.0) ** 0.5  # LanceDB gives its square
    elif metric == "dot":
        distance -= 1  # LanceDB gives 1 - the inner product
    title = msgspec.json.decode(row["fields"]).get("title")
    return hit_of(row["id"], title, row["text"], row["fields"], distance, metric=metric)


def _is_fragmented(stats: Mapping[str, Any]) -> bool:
    """Return whether so many fragments are small, or so many rows dead, that a compaction pays."""
    fragments = stats["fragment_stats"]
    if fragments["num_small_fragments"] >= COMPACT_FRAGMENTS:
        return True
    written = fragments["lengths"]["mean"] * fragments["num_fragments"]
    dead = written - stats["num_rows"]
    scattered = written - fragments["lengths"]["max"] if fragments["num_small_fragments"] > 1 else 0
    return bool(max(dead, scattered) > COMPACT_SHARE * stats["num_rows"])


def _is_one_of(ids: Iterable[str]) -> str:
    return f"id IN ({', '.join(map(_quote, ids))})"


def _quote(text: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
