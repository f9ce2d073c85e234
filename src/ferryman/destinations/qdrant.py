"""A destination in Qdrant: a collection of points, one per document."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal, get_args

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
    split_by_size,
)
from ferryman.destinations.vectors import (
    TOMBSTONE_S,
    VECTOR_WRITE_S,
    Declaration,
    Metric,
    Scalar,
    VectorField,
    VectorRow,
    VectorServer,
    Where,
    another_vector,
    check_remembered,
    declaration_findings,
    hit_of,
    newest_rows,
    read_filter,
    read_question,
    read_rows,
    record_stored,
    route_text,
    stored_hash,
    vector_fields,
)
from ferryman.errors import Misconfigured, PlanError, Unavailable, UsageError
from ferryman.net import urls
from ferryman.net.http import check_destination, expand_variables
from ferryman.net.urls import NOT_HANDLED

REQUEST_S: Final = 20
"""Time-out of a request."""

REQUEST_BYTES: Final = 10 * limits.MIB
"""Largest estimated size of a request with several points; the server accepts 32 MB."""

PAGE: Final = 500
"""Points read in a request: they are in memory together."""

LEAST_VERSION: Final = (1, 16)
"""First version of the server that has conditional updates; an older one ignores the condition."""

OBJECT: Final = "_ferryman"
"""Field of a point's payload with Ferryman's metadata."""

IndexType = Literal["keyword", "integer", "float", "bool", "text", "datetime"]

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "ferryman:qdrant")
_SEQUENCE: Final = f"{OBJECT}.sequence"
_DELETED: Final = f"{OBJECT}.deleted_at"
_HASH: Final = f"{OBJECT}.hash"
_IDENTITY: Final = "ferryman_identity"
_REMEMBERED: Final = "ferryman_vectors"
_DISTANCES: Final[Mapping[Metric, str]] = {"cosine": "Cosine", "l2": "Euclid", "dot": "Dot"}
_BAD_ROW: Final = frozenset({400, 413, 422})
"""Statuses of a request that has a point which the server refuses."""

_FLOAT: Final = re.compile(rb"[0-9][.eE]")
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""Integers that the server keeps exactly."""


class Qdrant(VectorServer):
    """Writes documents with vectors into a collection of Qdrant, which is made if it is not there.

    ``Qdrant("https://search.example.org:6333", "pages", vectors={"vector": 512}, api_key="${QDRANT_KEY}")`` keeps one
    point per id (``pip install 'ferryman[qdrant]'``). Qdrant takes only numbers and UUIDs for ids: the point's is a
    UUIDv5 of the document's id. The payload has the document's fields without the vectors, ``text`` (the raw bytes
    decoded as UTF-8; left out without raw, and where a step has made a field of that name), and ``_ferryman``: an
    object with ``id``, ``hash``, ``sequence``, ``parent``, ``origin``, ``source``, ``version``, ``route`` and
    ``content_hash``, by which ``ferryman verify`` sees whether somebody has changed the payload.

    **Exactly-once.** A point and its delivery's hash are one write. Each point is an operation of its own, on the
    condition that the stored sequence is not higher, so a repeated chunk changes nothing, and a late one is refused.
    Which were refused is read back. A request waits until the server has applied it, in the server's one order
    (``wait=true``, ordering ``strong``).

    A delete leaves a point without vectors and content, whose ``_ferryman.deleted_at`` says since when (seconds since
    1970), for an hour: an older upsert cannot bring the document back. A search by vector never finds it; programs that
    list points leave it out with the condition that this field is empty.

    The server indexes vectors by itself (HNSW), and cleans up after edits by itself; ``index=`` of a ``VectorField``
    changes nothing.

    Args:
        url: of the server; without a port 6333 is meant. ``${NAME}`` in it and in ``api_key`` is filled in from the
            environment of the driver and the workers: then it is in no plan file, state, message or log.
        collection: its name, or an alias of one.
        vectors: field -> dimensions, or a ``VectorField``.
        payload_indexes: field -> type ("keyword", "integer", "float", "bool", "text", "datetime"), for the fields by
            which questions are filtered. Without an index, a filter that few points fit may find fewer than there are
            in a large collection.
        text: name of the field for the decoded raw bytes. None: they are left out.
        api_key: the server's key.
        settings: further arguments of the client's ``create_collection``: ``{"shard_number": 2}``.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True
    request_s = REQUEST_S
    package = ("qdrant_client", "qdrant")

    preferred_batch: ClassVar[int | None] = 500
    """About 4 MB with vectors of 512 numbers."""

    facts: ClassVar[Facts] = Facts(
        stored="a point an id, with hash and sequence in `_ferryman`; of a delete an empty point for an hour",
        limits=(
            f"a request has some {REQUEST_BYTES >> 20} MiB at most, or one document",
            f"a `write` has {VECTOR_WRITE_S:g} s",
            "integers from -2^63 to 2^64 - 1",
            "with the cosine the server stores vectors of length 1: `verify` does not compare vectors",
        ),
        outcomes=(
            ("400, 413 or 422", "the request is repeated in halves; the point to blame has failed"),
            ("401, 403 or 404", "permanent, about all: correct `api_key=`, its rights, or the url"),
            ("429", "transient, about all: it is sent again when the server has room"),
            ("any other status, or no whole answer", "unknown: the chunk is sent again"),
        ),
        tested=("the storage engine of Qdrant 1.19 (qdrant-edge-py 0.9), behind HTTP; not the server itself",),
    )

    def __init__(
        self,
        url: str,
        collection: str,
        vectors: Declaration | None = None,
        *,
        payload_indexes: Mapping[str, IndexType] | None = None,
        text: str | None = "text",
        api_key: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        name = f"Qdrant(…, {collection!r})"
        self.api_key, _ = check_destination(name, url, api_key, argument="api_key=")
        self.url = url.rstrip("/")
        self.collection = collection
        self.text = text
        self.payload_indexes = dict(payload_indexes or {})
        self.settings = dict(settings or {})
        findings = list(declaration_findings(vectors))
        if not self.url.startswith(("http://", "https://", "${")):
            findings.append("the url is not an http or https URL")
        if not collection or set(collection) & set('/\\?*<>"|:\0') or collection in (".", ".."):
            findings.append('a collection has a name without any of /\\?*<>"|:')
        if OBJECT in (text, *(vectors or {}), *self.payload_indexes):
            findings.append(f"{OBJECT} is reserved for Ferryman: give the field another name")
        for field, kind in self.payload_indexes.items():
            if kind not in get_args(IndexType):
                findings.append(f"payload_indexes: {field!r} is {kind!r}: use one of {', '.join(get_args(IndexType))}")
        if findings:
            raise PlanError([f"{name}: {finding}" for finding in findings])
        self.vectors = vector_fields(vectors)

    def target(self) -> str:
        return f"{urls.strip_secrets(self.url)}/{self.collection}"

    # --- the collection -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make the collection and its indexes, or check that they are fit; forget deletes that nobody can undo any
        more. Any number of drivers may do so at once.

        Raises:
            Unavailable: no connection, no answer, or the server is overloaded.
            Misconfigured: refused credentials, a server without conditional updates, other vectors.
        """
        with self._connection() as client, self._translated_errors():
            self.check_version(client.info().version)
            if not client.collection_exists(self.collection):
                self._make(client)
            found = client.get_collection(self.collection)
            metadata = found.config.metadata or {}
            kept = self._check_vectors(found.config.params.vectors, metadata.get(_REMEMBERED) or {})
            if kept != metadata.get(_REMEMBERED):
                client.update_collection(self.collection, metadata={_REMEMBERED: kept})
            wanted = {_SEQUENCE: "integer", _DELETED: "integer", **self.payload_indexes}
            for field, kind in wanted.items():
                if field not in found.payload_schema:
                    client.create_payload_index(self.collection, field, kind, wait=True)
            self._forget_deletes(client)

    def check_version(self, version: str) -> None:
        """Refuse a server that is too old.

        Raises:
            Misconfigured: it has no conditional updates.
        """
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
            raise Misconfigured(
                f"{self.target()}: the server is Qdrant {version}, which has no conditional updates: it would let an "
                "older version of a document overwrite a newer one. Upgrade it to 1.16 or newer."
            )

    def _make(self, client: Any) -> None:
        from qdrant_client import models
        from qdrant_client.http.exceptions import UnexpectedResponse

        params = {
            name: models.VectorParams(
                size=field.dimensions,
                distance=models.Distance(_DISTANCES[field.metric]),
                datatype=models.Datatype(field.type) if field.type != "float32" else None,
            )
            for name, field in self.vectors.items()
        }
        metadata = {_IDENTITY: uuid.uuid4().hex}
        try:
            client.create_collection(self.collection, vectors_config=params, metadata=metadata, **self.settings)
        except UnexpectedResponse as e:
            if e.status_code != 409:  # another driver was faster
                raise
        crash.point("target.made")

    def _check_vectors(self, found: Any, remembered: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the collection's metadata is to say of its vectors."""
        there, kept = found if isinstance(found, Mapping) else {}, {}
        for name, field in self.vectors.items():
            if name not in there:
                raise Misconfigured(another_vector(self.target(), f"the collection has no vector named {name!r}"))
            before = {**remembered.get(name, {}), "dimensions": there[name].size}
            kept[name] = check_remembered(self.target(), name, field, before, "collection")
            distance, ours = there[name].distance.value, _DISTANCES[field.metric]
            if distance != ours:
                what = f"the vector {name!r} has the distance {distance}, the plan says {ours}"
                raise Misconfigured(another_vector(self.target(), what))
        return {**remembered, **kept}

    def _forget_deletes(self, client: Any) -> None:
        from qdrant_client import models

        old = models.FieldCondition(key=_DELETED, range=models.Range(lt=int(time.time()) - TOMBSTONE_S))
        client.delete(self.collection, models.FilterSelector(filter=models.Filter(must=[old])), wait=True)

    def identity(self) -> str | None:
        """Return the identity in the collection's metadata; None: it was made by another program."""
        with self._connection() as client, self._translated_errors():
            if not client.collection_exists(self.collection):
                return ""
            found = (client.get_collection(self.collection).config.metadata or {}).get(_IDENTITY)
            return None if found is None else str(found)

    def highest_sequence(self) -> int | None:
        with self._connection() as client, self._translated_errors():
            from qdrant_client import models

            last_first = models.OrderBy(key=_SEQUENCE, direction=models.Direction.DESC)
            found, _ = client.scroll(self.collection, limit=1, order_by=last_first, with_payload=[OBJECT])
            return max((int(point.payload[OBJECT]["sequence"]) for point in found), default=None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One request, or as many as the chunk's size needs, then one that reads which points were refused.

        Raises:
            ConnectionError: a request has no whole answer: it may have taken effect.
            Unavailable, Misconfigured: the server refuses all.
        """
        until = self._begin_write()
        outcomes: list[Outcome | None] = [None] * len(chunk)
        rows = read_rows(chunk, self.vectors, outcomes)
        operations = self._operations(newest_rows(rows), outcomes)
        rows = [row for row in rows if outcomes[row.position] is None]
        for request in split_by_size(operations, _size, REQUEST_BYTES):
            self._send(request, outcomes, until)
        if operations:
            crash.point("target.written")
            self._record_stored([row for row in rows if outcomes[row.position] is None], outcomes, until)
        return [outcome or Outcome.ok() for outcome in outcomes]

    def _operations(self, rows: list[VectorRow], outcomes: list[Outcome | None]) -> list[tuple[VectorRow, Any]]:
        """Return the operation of each row; set the outcome of those that Qdrant cannot hold."""
        operations = []
        for row in rows:
            try:
                operations.append((row, self._operation(row)))
            except ValueError as e:
                outcomes[row.position] = Outcome.permanent(f"{self.target()} cannot hold it: {e}")
        return operations

    def _operation(self, row: VectorRow) -> Any:
        """Return the upsert of a point on the condition that nothing newer is stored.

        Raises:
            ValueError: the document has something that a payload cannot hold.
        """
        from qdrant_client import models

        d = row.delivery
        point = models.PointStruct(
            id=point_id(d.id),
            vector={name: vector.tolist() for name, vector in row.vectors.items()},
            payload=self._payload(row),
        )
        not_newer = models.FieldCondition(key=_SEQUENCE, range=models.Range(lte=d.sequence))
        # What is there already is left alone: writing it again would make work for the index.
        already = models.Filter(
            must=[
                models.FieldCondition(key=_SEQUENCE, range=models.Range(gte=d.sequence)),
                models.FieldCondition(key=_HASH, match=models.MatchValue(value=d.hash)),
            ]
        )
        condition = models.Filter(must=[not_newer], must_not=[already])
        return models.UpsertOperation(upsert=models.PointsList(points=[point], update_filter=condition))

    def _payload(self, row: VectorRow) -> dict[str, Any]:
        d = row.delivery
        own: dict[str, Any] = {"id": d.id, "hash": d.hash, "sequence": d.sequence}
        if d.operation == "delete":
            return {OBJECT: own | {"deleted_at": int(time.time())}}
        payload: dict[str, Any] = msgspec.json.decode(row.fields)
        if OBJECT in payload:
            raise ValueError(f"it has a field {OBJECT!r}, which Ferryman writes itself. Rename the field in a step.")
        _check_integers(payload)
        hashed = row._replace(fields=_hashed_fields(payload))
        if self.text is None or self.text in payload:
            hashed = hashed._replace(text=None)
        if hashed.text is not None:
            payload[str(self.text)], own["text"] = hashed.text, self.text
        own |= {
            "parent": d.parent_id, "origin": d.origin_id, "source": d.source, "version": d.version,
            "route": list(d.route), "content_hash": hashed.content_hash(with_vectors=False),
        }  # fmt: skip
        return payload | {OBJECT: own}

    def _send(self, operations: list[tuple[VectorRow, Any]], outcomes: list[Outcome | None], until: float) -> None:
        """Send operations; in halves if the server refuses one, whose outcome is permanent."""
        from qdrant_client import models
        from qdrant_client.http.exceptions import UnexpectedResponse

        update = partial(
            self._client.batch_update_points,
            self.collection,
            [operation for _, operation in operations],
            wait=True,
            ordering=models.WriteOrdering.STRONG,
        )
        try:
            self._request(update, until)
        except UnexpectedResponse as e:
            if e.status_code not in _BAD_ROW:
                raise
            if len(operations) == 1:
                [(row, _)] = operations
                why = f"{self.target()} refuses it: {_reason(e)}"
                outcomes[row.position] = Outcome.permanent(why)
                return
            middle = len(operations) // 2
            self._send(operations[:middle], outcomes, until)
            self._send(operations[middle:], outcomes, until)

    def _request(self, call: Callable[[], Any], until: float) -> Any:
        """Return what the call returns; a server that asks to wait (``Retry-After``) gets it, if there is time."""
        from qdrant_client.common.client_exceptions import ResourceExhaustedResponse

        while True:
            self._check_time(until)
            with self._translated_errors(sent=True):
                try:
                    return call()
                except ResourceExhaustedResponse as e:
                    wait_s = max(e.retry_after_s, limits.BACKOFF_FIRST_S)
                    if time.monotonic() + wait_s > until:
                        raise
            time.sleep(wait_s)

    def _record_stored(self, rows: list[VectorRow], outcomes: list[Outcome | None], until: float) -> None:
        """Set the outcome of each row by what the collection has of its id: the server does not name what it
        skipped."""
        from qdrant_client import models

        there: dict[str, Any] = {}
        for some in slices(dict.fromkeys(point_id(row.delivery.id) for row in rows), PAGE):
            retrieve = partial(
                self._client.retrieve,
                self.collection,
                some,
                with_payload=[OBJECT],
                consistency=models.ReadConsistencyType.MAJORITY,
            )
            found = self._request(retrieve, until)
            there |= {str(point.id): (point.payload or {}).get(OBJECT) for point in found}
        stored = {own["id"]: LastDelivery(own["sequence"], own["hash"]) for own in there.values() if own is not None}
        record_stored(rows, stored, outcomes, self.target())
        for row in rows:
            id = point_id(row.delivery.id)
            if id in there and there[id] is None:
                outcomes[row.position] = Outcome.permanent(
                    f"{self.target()}: another program has written the point of this document. Remove it."
                )

    # --- reading ------------------------------------------------------------------------------------------------------

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        from qdrant_client import models

        majority = models.ReadConsistencyType.MAJORITY
        with self._connection() as client, self._translated_errors():
            if not client.collection_exists(self.collection):
                return
            if ids is not None:
                for some in slices(map(point_id, ids), PAGE):
                    page = client.retrieve(self.collection, some, with_payload=True, consistency=majority)
                    yield from (stored for point in page if (stored := self._read_point(point)) is not None)
                return
            offset = None
            while True:
                page, offset = client.scroll(
                    self.collection, limit=PAGE, offset=offset, with_payload=True, consistency=majority
                )
                yield from (stored for point in page if (stored := self._read_point(point)) is not None)
                if offset is None:
                    return

    def _read_point(self, point: Any) -> Stored | None:
        """Return what a point holds; None: it is deleted, or was not written by Ferryman."""
        payload = dict(point.payload or {})
        own = payload.pop(OBJECT, None)
        if not isinstance(own, dict) or "deleted_at" in own:
            return None
        text = payload.pop(own["text"], None) if isinstance(own.get("text"), str) else None
        route = tuple(map(str, own.get("route") or ()))
        parts = [own.get(n) for n in ("id", "hash", "sequence", "parent", "origin", "source", "version")]
        try:
            intact = stored_hash([*parts, route_text(route)], text, _hashed_fields(payload), {}) == own.get(
                "content_hash"
            )
        except (TypeError, ValueError):  # somebody has made something else of it
            intact = False
        return Stored(str(own["id"]), str(own["hash"]), intact, str(own["source"]), str(own["version"]), route)

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        question = read_question(self.vectors, field, vector)
        conditions = [condition_of(name, values) for name, values in read_filter(where).items()]
        if limit < 1:
            return []
        from qdrant_client import models

        with self._connection() as client, self._translated_errors():
            if not client.collection_exists(self.collection):
                raise UsageError(f"{self.target()}: there is no such collection.")
            found = client.query_points(
                self.collection,
                query=question.tolist(),
                using=field,
                limit=limit,
                query_filter=models.Filter(must=conditions) if conditions else None,
                with_payload=True,
            )
        return [_hit(point, self.vectors[field]) for point in found.points if OBJECT in (point.payload or {})]

    # --- the server ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        with self._translated_errors():
            from qdrant_client import QdrantClient

            url = expand_variables(self.url, self.target())
            key = None if self.api_key is None else expand_variables(str(self.api_key), self.target())
            headers = {"api-key": key} if key else None  # as api_key= it would warn of each connection without TLS
            return QdrantClient(url=url, headers=headers, timeout=REQUEST_S, check_compatibility=False)

    def _translate(self, error: Any, sent: bool) -> Exception:
        """Return the error to raise; of a ``sent`` request, what one point may be to blame for is raised as it is."""
        from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        target = self.target()
        if isinstance(error, ResourceExhaustedResponse):
            return Unavailable(f"{target}: it is overloaded, and asks to wait {error.retry_after_s} s")
        if isinstance(error, QdrantException):  # it asks to wait until a date, which the client does not read
            return Unavailable(f"{target}: it is overloaded ({error})")
        if isinstance(error, ResponseHandlingException):
            import httpx

            lost = sent and not isinstance(error.source, httpx.ConnectError | httpx.ConnectTimeout)
            return (ConnectionError if lost else Unavailable)(f"{target}: {error.source or 'the answer broke off'}")
        if not isinstance(error, UnexpectedResponse):
            return error  # type: ignore[no-any-return]
        why = f"{target}: answered {error.status_code} ({_reason(error)})"
        if error.status_code in NOT_HANDLED:
            return Unavailable(why)
        if error.status_code in (401, 403):
            return Misconfigured(f"{why}. Correct api_key=, or give it the right to write.")
        if error.status_code == 404:
            return Misconfigured(f"{why}. Correct the url; a collection that is gone is made by the next run.")
        if sent and error.status_code in _BAD_ROW:
            return error  # type: ignore[no-any-return]
        if error.status_code is not None and error.status_code < 500:
            return Misconfigured(why)
        if sent and error.status_code == 500:
            return FailedRequest(why)
        return ConnectionError(why) if sent else Unavailable(why)


class FailedRequest(Exception):
    """The server failed over a request; it may have taken effect."""


def point_id(id: str) -> str:
    """Return the id of a document's point."""
    return str(uuid.uuid5(_NAMESPACE, id))


def condition_of(name: str, values: Sequence[Scalar]) -> Any:
    """Return the condition that a field holds one of these values, or a list with one of them."""
    from qdrant_client import models

    alternatives: list[Any] = []
    for value in values:
        if isinstance(value, str | bool):
            alternatives.append(models.FieldCondition(key=_path(name), match=models.MatchValue(value=value)))
        else:
            number = float(value)
            alternatives.append(models.FieldCondition(key=_path(name), range=models.Range(gte=number, lte=number)))
    return models.Filter(should=alternatives)


def _path(name: str) -> str:
    """Return the path of a field in the payload: quoted where its name has signs that mean something in a path."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _size(operation: tuple[VectorRow, Any]) -> int:
    """Return about how many bytes of a request an operation takes."""
    row, _ = operation
    numbers = sum(len(vector) for vector in row.vectors.values())
    return 600 + len(row.fields) + len(row.text or "") + 12 * numbers


def _check_integers(value: Any) -> None:
    """
    Raises:
        ValueError: somewhere in it is an integer that the server would not keep exactly.
    """
    match value:
        case int() if value not in _INTEGERS:
            raise ValueError("it has an integer beyond 64 bit. Make it text in a step.")
        case dict():
            for each in value.values():
                _check_integers(each)
        case list():
            for each in value:
                _check_integers(each)


def _hashed_fields(payload: Mapping[str, Any]) -> bytes:
    """Return the fields as JSON for the hash of the content, with 9 digits of each number that is not an integer: the
    server's parser may miss the last ones."""
    encoded = msgspec.json.encode(payload, order="sorted")
    if not _FLOAT.search(encoded):
        return encoded
    rounded = msgspec.json.Decoder(float_hook=lambda literal: float(f"{float(literal):.9g}")).decode(encoded)
    return msgspec.json.encode(rounded, order="sorted")


def _reason(error: Any) -> str:
    """Return the reason in the server's answer."""
    try:
        status = msgspec.json.decode(error.content)["status"]
        return str(status["error"] if isinstance(status, dict) else status)
    except (ValueError, KeyError, TypeError):
        return str(error.reason_phrase)


def _hit(point: Any, field: VectorField) -> Hit:
    payload = dict(point.payload)
    own = payload.pop(OBJECT)
    text = payload.pop(own["text"], None) if own.get("text") else None
    distance = {"cosine": 1 - point.score, "dot": -point.score, "l2": point.score}[field.metric]
    fields = msgspec.json.encode(payload)
    return hit_of(own["id"], payload.get("title"), text, fields, distance, metric=field.metric)
