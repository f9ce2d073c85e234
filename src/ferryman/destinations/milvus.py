"""A destination in Milvus: a collection of entities, one per document."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

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
    compare,
    slices,
    split_by_size,
)
from ferryman.destinations.vectors import (
    TOMBSTONE_S,
    VECTOR_WRITE_S,
    Declaration,
    Metric,
    VectorRow,
    VectorServer,
    Where,
    another_vector,
    check_remembered,
    declaration_findings,
    filter_token,
    filter_tokens,
    hit_of,
    read_filter,
    read_question,
    read_rows,
    route_text,
    stored_hash,
    vector_fields,
)
from ferryman.errors import Misconfigured, PlanError, Unavailable, UsageError, hide_secrets
from ferryman.net import urls
from ferryman.net.http import check_destination, expand_variables

REQUEST_S: Final = 15.0
"""Time-out of a request."""

REQUEST_BYTES: Final = 10 * limits.MIB
"""Largest estimated size of a request with several documents; the server accepts 64 MB."""

TEXT_BYTES: Final = 65_535
"""Longest text, and longest JSON of the fields, that Milvus holds."""

ID_BYTES: Final = 4096
"""Longest id: as the primary key it is in memory for each document."""

VALUES: Final = 4096
"""Values among a document's fields that filters can find: the longest array that Milvus holds."""

PAGE: Final = 500
"""Documents of an inventory that are in memory together."""

LOST_CODES: Final = frozenset({2, 14})
"""Codes of the client's errors for a server that does not answer."""

_CONNECTION: Final = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_permit_without_calls": 0}
"""Options of connections: some servers close one that asks every ten seconds whether it is alive, as the client does by
itself."""

_IDENTITY: Final = "ferryman.identity"
_REMEMBERED: Final = "ferryman.vectors"
_METRICS: Final[Mapping[Metric, str]] = {"cosine": "COSINE", "l2": "L2", "dot": "IP"}
_OWN: Final = ("id", "sequence", "delivery_hash", "text", "fields", "filters", "vectors", "deleted_at", "ferryman")
_AWAY: Final = re.compile(
    r"fail(ed)? connecting|unavailable|deadline|timed? ?out|connection|refused to connect|not ready", re.IGNORECASE
)
_FORBIDDEN: Final = re.compile(r"auth|permission|privilege|token|denied", re.IGNORECASE)


class Milvus(VectorServer):
    """Writes documents with vectors into a collection of Milvus, which is made if it is not there.

    ``Milvus("http://localhost:19530", "pages", vectors={"vector": 512}, token="${MILVUS_TOKEN}")`` keeps one entity per
    id (``pip install 'ferryman[milvus]'``). The fields: ``id`` (the primary key), ``sequence``, ``delivery_hash``,
    ``text`` (the raw bytes decoded as UTF-8; null without raw), ``fields`` (JSON, without the vectors), a field for
    each vector, and ``ferryman`` (JSON: parent, origin, source, version, route, and ``content_hash``, by which
    ``ferryman verify`` sees whether somebody has changed the entity). ``filters`` and ``vectors`` are lists of text for
    the questions of ``ferryman search``.

    The server must be Milvus 2.5 or later, or Milvus Lite as one.

    **At-least-once.** Milvus has no conditional write. What it has of a chunk's ids is read first; what is newer is
    left as it is, and a repeated delivery changes nothing. Between that and the upsert another writer may come, which a
    plan has only in the moments after a kill.

    A delete leaves an entity without content, whose ``deleted_at`` says since when (seconds since 1970; 0 for
    documents), for an hour: an older upsert does not bring the document back. Other programs leave it out with the
    filter ``deleted_at == 0``.

    Args:
        uri: of the server. For Milvus Lite start ``milvus-lite server --data-dir DIR``: a file can be used by one
            process at a time. ``${NAME}`` in it and in ``token`` is filled in from the environment of the driver and
            the workers: then it is in no plan file, state, message or log.
        collection: its name: letters, digits and underscores.
        vectors: field -> dimensions, or a ``VectorField``; Milvus needs one at least. ``index="hnsw"`` makes an HNSW
            index; without it the server chooses.
        token: ``user:password``, or an API key.
        database: its name; "": the default one.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    keyed_by_id = True
    request_s = REQUEST_S
    package = ("pymilvus", "milvus")

    preferred_batch: ClassVar[int | None] = 500
    """About 2 MB with vectors of 512 numbers."""

    facts: ClassVar[Facts] = Facts(
        stored="an entity an id, with hash and sequence; of a delete an empty entity for an hour",
        limits=(
            f"an id has {ID_BYTES} bytes at most",
            f"text, and the JSON of the fields, have {TEXT_BYTES} bytes at most",
            f"{VALUES} values among the fields",
            f"a `write` has {VECTOR_WRITE_S:g} s",
        ),
        tested=("Milvus Lite 3.2 as a server",),
    )

    def __init__(
        self,
        uri: str,
        collection: str,
        vectors: Declaration,
        *,
        token: str | None = None,
        database: str = "",
    ) -> None:
        name = f"Milvus(…, {collection!r})"
        checked, _ = check_destination(name, uri, token, argument="token=")
        self.token = None if checked is None else str(checked)
        self.uri = uri.rstrip("/")
        self.collection = collection
        self.database = database
        findings = list(declaration_findings(vectors))
        if not self.uri.startswith(("http://", "https://", "tcp://", "${")):
            findings.append(
                "the uri is not an http or https URL. A file of Milvus Lite is used by one process at a time, so start "
                "a server over it: milvus-lite server --data-dir DIR"
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
            findings.append("a collection has a name of letters, digits and underscores")
        if not vectors:
            findings.append("vectors= is empty: Milvus holds only documents with a vector field")
        for field in vectors or {}:
            if field in _OWN or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(field)):
                findings.append(f"vectors: {field!r} cannot be the name of a vector in Milvus; rename the field")
        if findings:
            raise PlanError([f"{name}: {finding}" for finding in findings])
        self.vectors = vector_fields(vectors)

    def target(self) -> str:
        database = f"/{self.database}" if self.database else ""
        return f"{urls.strip_secrets(self.uri)}{database}/{self.collection}"

    # --- the collection -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make the collection and its indexes, or check that it is fit; forget deletes that nobody can undo any more.

        Raises:
            Unavailable: no connection, or no answer.
            Misconfigured: refused credentials, a collection that is not Ferryman's, other vectors.
        """
        with self._connection() as client, self._translated_errors():
            if not client.has_collection(self.collection, timeout=REQUEST_S):
                self._make(client)
            found = client.describe_collection(self.collection, timeout=REQUEST_S)
            before = (found.get("properties") or {}).get(_REMEMBERED)
            kept = msgspec.json.encode(self._check_fields(found, msgspec.json.decode(before or "{}"))).decode()
            if kept != before:
                client.alter_collection_properties(self.collection, {_REMEMBERED: kept}, timeout=REQUEST_S)
            client.load_collection(self.collection, timeout=REQUEST_S)
            old = f"deleted_at > 0 and deleted_at < {int(time.time()) - TOMBSTONE_S}"
            client.delete(self.collection, filter=old, timeout=REQUEST_S)

    def _make(self, client: Any) -> None:
        from pymilvus import DataType, MilvusException

        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=ID_BYTES)
        schema.add_field("sequence", DataType.INT64)
        schema.add_field("delivery_hash", DataType.VARCHAR, max_length=64)
        schema.add_field("text", DataType.VARCHAR, max_length=TEXT_BYTES, nullable=True)
        schema.add_field("fields", DataType.JSON)
        texts: dict[str, Any] = {"element_type": DataType.VARCHAR, "max_length": 256, "max_capacity": VALUES}
        schema.add_field("filters", DataType.ARRAY, **texts)
        schema.add_field("vectors", DataType.ARRAY, **texts)
        schema.add_field("deleted_at", DataType.INT64)
        schema.add_field("ferryman", DataType.JSON)
        index = client.prepare_index_params()
        for name, field in self.vectors.items():
            kind = DataType.FLOAT16_VECTOR if field.type == "float16" else DataType.FLOAT_VECTOR
            schema.add_field(name, kind, dim=field.dimensions)
            metric = _METRICS[field.metric]
            if field.index == "hnsw":
                graph = {"M": 16, "efConstruction": 200}
                index.add_index(name, index_type="HNSW", metric_type=metric, params=graph)
            else:
                index.add_index(name, index_type="AUTOINDEX", metric_type=metric)
        try:
            client.create_collection(
                self.collection, schema=schema, index_params=index, consistency_level="Strong", timeout=VECTOR_WRITE_S,
                properties={
                    _IDENTITY: uuid.uuid4().hex,
                    _REMEMBERED: msgspec.json.encode({n: f.remembered() for n, f in self.vectors.items()}).decode(),
                },
            )  # fmt: skip
        except MilvusException as e:
            if _AWAY.search(str(e.message)):
                raise
            if not client.has_collection(self.collection, timeout=REQUEST_S):  # no other driver was faster
                raise Misconfigured(f"{self.target()} cannot be made: {e.message}") from e
        crash.point("target.made")

    def _check_fields(self, found: Mapping[str, Any], remembered: dict[str, Any]) -> dict[str, Any]:
        """Return what the collection's properties are to say of its vectors."""
        kept = dict(remembered)
        there = {field["name"]: field for field in found["fields"]}
        if missing := [name for name in _OWN if name not in there]:
            raise Misconfigured(
                f"{self.target()}: the collection was not made by Ferryman: it has no field {missing[0]!r}. Name "
                "another collection."
            )
        if not there["text"].get("nullable"):
            raise Misconfigured(
                f"{self.target()}: the collection has no fields without a value, which a delete leaves: it was made by "
                "a server before Milvus 2.5. Drop it, and use a later server."
            )
        for name, field in self.vectors.items():
            if name not in there:
                raise Misconfigured(another_vector(self.target(), f"the collection has no vector {name!r}"))
            dimensions = int(there[name]["params"].get("dim", 0))
            before = {**remembered.get(name, {}), "dimensions": dimensions}
            kept[name] = check_remembered(self.target(), name, field, before, "collection")
        if unknown := [name for name, field in there.items() if "dim" in field["params"] and name not in self.vectors]:
            raise Misconfigured(another_vector(self.target(), f"the plan does not name the vector {unknown[0]!r}"))
        return kept

    def identity(self) -> str | None:
        """Return the identity in the collection's properties; None: it was made by another program."""
        with self._connection() as client, self._translated_errors():
            if not client.has_collection(self.collection, timeout=REQUEST_S):
                return ""
            properties = client.describe_collection(self.collection, timeout=REQUEST_S).get("properties") or {}
            found = properties.get(_IDENTITY)
            return None if found is None else str(found)

    def highest_sequence(self) -> int | None:
        """Return the highest sequence, found by halving: Milvus has no maximum of a field."""
        with self._connection() as client, self._translated_errors():

            def is_there(least: int) -> bool:
                return bool(self._query(client, f"sequence >= {least}", ["sequence"], limit=1))

            if not is_there(0):
                return None
            low, high = 0, 1 << 53
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if is_there(middle) else (low, middle)
            return low

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Read what there is of the chunk's ids, and upsert what is newer: in one request, or as many as the chunk's
        size needs.

        Raises:
            ConnectionError: a request has no whole answer: it may have taken effect.
            Unavailable, Misconfigured: the server refuses all.
        """
        until = self._begin_write()
        outcomes: list[Outcome | None] = [None] * len(chunk)
        rows = []
        for row in read_rows(chunk, self.vectors, outcomes):
            if problem := _problem(row):
                outcomes[row.position] = Outcome.permanent(f"{self.target()} cannot hold it: {problem}")
            else:
                rows.append(row)
        if rows:
            compared, winners = compare([row.delivery for row in rows], self._known(rows, until))
            for row, outcome in zip(rows, compared, strict=True):
                outcomes[row.position] = outcome
            last = [row for row in rows if winners.get(row.delivery.id) is row.delivery]
            for request in split_by_size(last, _size, REQUEST_BYTES):
                self._upsert(request, outcomes, until)
            crash.point("target.written")
        return [outcome or Outcome.ok() for outcome in outcomes]

    def _known(self, rows: list[VectorRow], until: float) -> dict[str, LastDelivery]:
        known = {}
        for some in slices(dict.fromkeys(row.delivery.id for row in rows), PAGE):
            self._check_time(until)
            with self._translated_errors():
                for each in self._query(self._client, _is_one_of(some), ["id", "sequence", "delivery_hash"]):
                    known[each["id"]] = LastDelivery(each["sequence"], each["delivery_hash"])
        return known

    def _upsert(self, rows: list[VectorRow], outcomes: list[Outcome | None], until: float) -> None:
        """Upsert rows; in halves if the server refuses one, whose outcome is permanent."""
        self._check_time(until)
        try:
            with self._translated_errors(sent=True):
                self._client.upsert(self.collection, [self._entity(row) for row in rows], timeout=REQUEST_S)
        except _Refused as e:
            if len(rows) == 1:
                outcomes[rows[0].position] = Outcome.permanent(f"{self.target()} refuses it: {e}")
                return
            middle = len(rows) // 2
            self._upsert(rows[:middle], outcomes, until)
            self._upsert(rows[middle:], outcomes, until)

    def _entity(self, row: VectorRow) -> dict[str, Any]:
        import numpy as np

        d, live = row.delivery, row.delivery.operation == "upsert"
        fields = msgspec.json.decode(row.fields)
        own = {
            "parent": d.parent_id, "origin": d.origin_id, "source": d.source, "version": d.version,
            "route": list(d.route), "content_hash": row.content_hash(),
        }  # fmt: skip
        entity = {
            "id": d.id, "sequence": d.sequence, "delivery_hash": d.hash, "text": row.text, "fields": fields,
            "filters": filter_tokens(fields), "vectors": list(row.vectors),
            "deleted_at": 0 if live else int(time.time()), "ferryman": own if live else {},
        }  # fmt: skip
        for name, field in self.vectors.items():
            vector = row.vectors.get(name)
            if vector is None:
                vector = np.eye(1, field.dimensions, dtype=np.float32)[0]  # each entity has one: `vectors` says whose
            entity[name] = vector.astype(np.float16) if field.type == "float16" else vector
        return entity

    # --- reading ------------------------------------------------------------------------------------------------------

    def _query(self, client: Any, condition: str, fields: list[str], **options: Any) -> list[Any]:
        found = client.query(
            self.collection, filter=condition, output_fields=fields, consistency_level="Strong", timeout=REQUEST_S,
            **options,
        )  # fmt: skip
        return list(found)

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        columns = [name for name in _OWN if name != "filters"] + list(self.vectors)
        with self._connection() as client, self._translated_errors():
            if not client.has_collection(self.collection, timeout=REQUEST_S):
                return
            if ids is not None:
                for some in slices(ids, PAGE):
                    yield from map(
                        self._read_entity, self._query(client, f"deleted_at == 0 and {_is_one_of(some)}", columns)
                    )
                return
            pages = client.query_iterator(
                self.collection, batch_size=PAGE, filter="deleted_at == 0", output_fields=columns, timeout=REQUEST_S,
                consistency_level="Strong",
            )  # fmt: skip
            try:
                while page := pages.next():
                    yield from map(self._read_entity, page)
            finally:
                pages.close()

    def _read_entity(self, entity: Mapping[str, Any]) -> Stored:
        import numpy as np

        own = _json(entity["ferryman"])
        route = tuple(map(str, own.get("route") or ()))
        numbers = {}
        for name in entity["vectors"]:
            if name in self.vectors:
                value = entity[name]
                half = isinstance(value, bytes) or self.vectors[name].type == "float16"
                value = np.frombuffer(value, np.float16) if half and isinstance(value, bytes) else value
                numbers[name] = np.asarray(value, np.float32)
        parts = [entity["id"], entity["delivery_hash"], entity["sequence"]]
        parts += [own.get(name) for name in ("parent", "origin", "source", "version")]
        fields = msgspec.json.encode(_json(entity["fields"]), order="sorted")
        intact = stored_hash([*parts, route_text(route)], entity["text"], fields, numbers) == own.get("content_hash")
        id, hash = str(entity["id"]), str(entity["delivery_hash"])
        return Stored(id, hash, intact, str(own.get("source", "")), str(own.get("version", "")), route)

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        question = read_question(self.vectors, field, vector)
        conditions = [f"array_contains(vectors, {_quote(field)})"]
        for name, values in read_filter(where).items():
            tokens = ", ".join(_quote(filter_token(name, value)) for value in values)
            conditions.append(f"array_contains_any(filters, [{tokens}])")
        if limit < 1:
            return []
        declared = self.vectors[field]
        half = declared.type == "float16"
        params = {"ef": max(64, 2 * limit)} if declared.index == "hnsw" else {}
        with self._connection() as client, self._translated_errors():
            if not client.has_collection(self.collection, timeout=REQUEST_S):
                raise UsageError(f"{self.target()}: there is no such collection.")
            client.load_collection(self.collection, timeout=REQUEST_S)
            [found] = client.search(
                self.collection, data=[question.astype("float16") if half else question.tolist()], anns_field=field,
                limit=limit, filter=" and ".join(conditions), output_fields=["id", "text", "fields"],
                search_params={"metric_type": _METRICS[declared.metric], "params": params},
                consistency_level="Strong", timeout=REQUEST_S,
            )  # fmt: skip
        return [_hit(each, declared.metric) for each in found]

    # --- the server ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        uri = expand_variables(self.uri, self.target())
        token = expand_variables(self.token or "", self.target())
        with self._translated_errors():
            from pymilvus import MilvusClient

            logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it prints each error with its stack
            return MilvusClient(
                uri, token=token, db_name=self.database, timeout=REQUEST_S, grpc_options=_CONNECTION, dedicated=True
            )

    def _translate(self, error: Exception, sent: bool) -> Exception:
        import grpc
        from pymilvus import MilvusException

        said = error.message if isinstance(error, MilvusException) else str(error)
        why = f"{self.target()}: {' '.join(str(said).split())}"
        if self.token:
            token = expand_variables(self.token, self.target())
            why = hide_secrets(why, (token, token.partition(":")[2]))
        lost = isinstance(error, MilvusException) and (error.code in LOST_CODES or _AWAY.search(said))
        if lost or isinstance(error, grpc.RpcError | TimeoutError):
            return ConnectionError(why) if sent else Unavailable(why)
        if isinstance(error, MilvusException) and error.retriable:
            return Unavailable(why)
        if _FORBIDDEN.search(str(said)):
            return Misconfigured(f"{why}. Correct token=, or its rights.")
        if sent:
            return _Refused(" ".join(str(said).split()))
        return Misconfigured(why) if isinstance(error, MilvusException) else error


class _Refused(Exception):
    """The server, or its client, does not take an entity of a request."""


def _problem(row: VectorRow) -> str:
    """Return why Milvus cannot hold a document, in the same words for each; "" if it can."""
    if len(row.delivery.id.encode()) > ID_BYTES:
        return f"its id is longer than {ID_BYTES} bytes. Give it a shorter one in the source."
    if row.text is not None and len(row.text.encode()) > TEXT_BYTES:
        return f"its text is longer than {TEXT_BYTES} bytes. Split it with split_text."
    if len(row.fields) > TEXT_BYTES:
        return f"its fields are longer than {TEXT_BYTES} bytes as JSON. Remove some in a step."
    if len(filter_tokens(msgspec.json.decode(row.fields))) > VALUES:
        return f"its fields have more than {VALUES} values. Remove some in a step."
    return ""


def _size(row: VectorRow) -> int:
    """Return about how many bytes of a request a document takes."""
    return 600 + 2 * len(row.fields) + len(row.text or "") + 4 * sum(len(v) for v in row.vectors.values())


def _hit(found: Mapping[str, Any], metric: Metric) -> Hit:
    entity, given = found["entity"], float(found["distance"])
    distance = {"cosine": 1 - given, "dot": -given, "l2": max(given, 0.0) ** 0.5}[metric]  # of "l2" it is the square
    fields = _json(entity["fields"])
    return hit_of(
        str(found["id"]), fields.get("title"), entity["text"], msgspec.json.encode(fields), distance, metric=metric
    )


def _json(value: Any) -> dict[str, Any]:
    """Return a JSON field: some servers give its text."""
    return dict(msgspec.json.decode(value) if isinstance(value, str | bytes) else value)


def _is_one_of(ids: Sequence[str]) -> str:
    return f"id in [{', '.join(map(_quote, ids))}]"


def _quote(text: str) -> str:
    """Return a text as a literal of a filter expression."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
