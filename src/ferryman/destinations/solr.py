"""A destination in Apache Solr: a Solr document for each document."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from ferryman import limits
from ferryman.destinations.base import (
    SNIPPET_CHARACTERS,
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Hit,
    Outcome,
    Query,
    Stored,
    Term,
    printable_id,
)
from ferryman.errors import BadDocument, Misconfigured, PermanentError, PlanError, Unavailable
from ferryman.net import urls
from ferryman.net.http import Answer, Auth, Http, NotSent, Unanswered, check_destination

__all__ = ["Solr"]


# Requests to a collection of Solr, and the meaning of its answers.

GET_BYTES: Final = limits.MIB
"""Most bytes of ids in one request: half of Solr's default limit for a form (``formdataUploadLimitInKB``)."""

CHAIN: Final = "DocBasedVersionConstraintsProcessorFactory"

LOG_ACTIVE: Final = 3
"""State of a transaction log that has been replayed completely."""

DOCUMENT_STATUSES: Final = (400, 413, 500)
"""Statuses that concern the documents that were sent."""

CONFLICT: Final = 409

_REMEDIES: Final = {
    301: "correct the URL",
    302: "correct the URL",
    401: "correct auth=",
    403: "correct auth=, or what this user may do",
    404: "make the collection, or correct the URL",
    405: "correct the URL",
    407: "correct the URL",
}
"""Statuses that waiting does not resolve -> what to do."""

_Result = TypeVar("_Result")


def outcome_rows() -> Iterator[tuple[str, str]]:
    """Yield (answer, outcome of the deliveries), for the reference."""
    yield "200, the id among what was taken", "ok"
    yield "the same hash is there", "ok"
    yield "a higher sequence is there", "stale"
    yield "409, or 200 without the id", "another writer was faster: it is read and compared again"
    yield "400, 413", "permanent, once it stands alone, with Solr's words"
    yield "500", "transient, once it stands alone"
    for status, remedy in _REMEDIES.items():
        yield str(status), f"permanent, about all: {remedy}"
    yield ", ".join(map(str, urls.NOT_HANDLED)), "transient, about all"
    yield "any other, no connection, no answer", "transient, about all; it may have taken effect, and is sent again"


_PAGE: Final = 1_000
"""Documents read in a request of ``inventory``: of each its id, hash and origin."""

_NEWEST: Final = 100
"""Documents read in a request of ``newer_than``."""


class StoredVersion(NamedTuple):
    """Stored version of an id. A tombstone has no hash."""

    sequence: int
    hash: str | None
    version: int
    """Solr's ``_version_`` of the document: a write that names it is refused if the document has changed since."""


class Reply(NamedTuple):
    """Result of an update: 200, 409 (another writer was faster, or it is too old) or one of ``DOCUMENT_STATUSES``.

    Attributes:
        accepted: ids that took effect, as far as Solr tells; also of an update that failed in the end.
        why: Solr's words.
    """

    status: int
    accepted: set[str]
    why: str


class Collection:
    """A collection, core or alias, by its URL."""

    def __init__(self, http: Http, shown: str, names: FieldNames, timeout_s: float) -> None:
        self._http = http
        self._shown = shown
        self._names = names
        self._timeout_s = timeout_s
        self._path = http.path.rstrip("/")
        self.until = 0.0
        """Latest time (monotonic) at which a request is sent again, if the server asks to wait."""
        self._replayed_connection = 0
        """Number of the connection on which the transaction log was last seen to be replayed."""

    def check(self, versions: bool) -> None:
        """Check that the collection exists and has the fields that are needed.

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            PermanentError: it is not fit; says what to do.
        """
        unique = self._json(self._ask("GET", "/schema/uniquekey")).get("uniqueKey")
        if unique != "id":
            raise self._misconfigured(f"its unique key is {unique!r}: Ferryman needs id")
        for name in self._names.required:
            if not self.has_field(name):
                raise self._misconfigured(
                    f"its schema has no field {name}: add it, or a dynamic field that it falls under"
                )
        if versions:
            config = self._ask("GET", "/config/updateRequestProcessorChain").body
            if CHAIN.encode() not in config:
                raise self._misconfigured(f"no update chain of it has a {CHAIN}: add one, or leave versions= out")

    def has_field(self, name: str) -> bool:
        """Return whether the schema has a field of this name, or a dynamic one that it falls under."""
        path = f"/schema/fields/{quote(name, safe='')}?includeDynamic=true"
        return self._request("GET", path).status != 404

    def known(self, ids: Iterable[str]) -> dict[str, StoredVersion]:
        """Return the stored versions of these ids, committed or not."""
        stored: dict[str, StoredVersion] = {}
        names = self._names
        for doc in self._get(ids, ["id", "_version_", names.sequence, names.hash]):
            sequence, digest = _single_value(doc.get(names.sequence)), _single_value(doc.get(names.hash))
            stored[doc["id"]] = StoredVersion(-1 if sequence is None else int(sequence), digest, int(doc["_version_"]))
        return stored

    def _get(self, ids: Iterable[str], fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these fields of the documents with these ids, committed or not (a real-time get)."""
        self._check_log_replayed()
        for form in self._forms(ids, fields):
            content = self._json(self._ask("POST", "/get", form, _FORM))
            # Of one id Solr answers {"doc": …}, of several {"response": …}.
            yield from content["response"]["docs"] if "response" in content else filter(None, [content.get("doc")])

    def update(self, body: bytes, **parameters: str) -> Reply:
        """Send documents or deletes.

        Raises:
            Unavailable: it was not sent, or not taken.
            ConnectionError: it may have taken effect, or not.
            Misconfigured: for an operator to fix.
        """
        self._check_log_replayed()
        query = urlencode({"versions": "true", "failOnVersionConflicts": "false", "wt": "json", **parameters})
        answer = self._request("POST", f"/update?{query}", body, _JSON)
        if answer.is_success or answer.status in (CONFLICT, *DOCUMENT_STATUSES):
            content = self._json(answer)
            why = self._http.redact(str(content.get("error", {}).get("msg", answer.reason)))
            self._raise_if_misconfigured(why)
            pairs = [*content.get("adds", ()), *content.get("deletes", ())]
            return Reply(200 if answer.is_success else answer.status, set(pairs[::2]), why)
        raise self._error_of(answer)

    def _commit(self) -> None:
        """Commit pending updates, so that all can be found."""
        self._check_log_replayed()
        self._ask("POST", "/update?commit=true&wt=json", b"{}", _JSON)

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of documents, and of deletes that leave a tombstone. Commits pending updates.

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            Misconfigured: for an operator to fix.
        """
        self._commit()
        field = self._names.sequence
        form = urlencode(
            {"q": "*:*", "rows": "0", "wt": "json", "stats": "true", "stats.field": f"{{!max=true}}{field}"}
        )
        content = self._json(self._ask("POST", "/select", form.encode(), _FORM))
        highest = (content["stats"]["stats_fields"].get(field) or {}).get("max")
        return None if highest is None else int(highest)

    def stored(self, ids: Iterable[str] | None) -> Iterator[Stored]:
        """Yield the documents that have a delivery's hash; of all ids, after committing pending updates.

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            Misconfigured: for an operator to fix.
        """
        fields = list(filter(None, ["id", self._names.hash, self._names.origin]))
        if ids is not None:
            yield from self._read_documents(self._get(ids, fields))
            return
        self._commit()
        mark, next_mark = "", "*"
        while next_mark != mark:
            mark = next_mark
            form = {"q": "*:*", "sort": "id asc", "rows": _PAGE, "wt": "json", "cursorMark": mark}
            form["fl"] = ",".join(fields)
            content = self._json(self._ask("POST", "/select", urlencode(form).encode(), _FORM))
            yield from self._read_documents(content["response"]["docs"])
            next_mark = content["nextCursorMark"]

    def newer_than(self, sequence: int) -> Iterator[Stored]:
        """Yield the documents of the highest sequences, if they are higher than this one, after committing pending
        updates.

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            Misconfigured: for an operator to fix.
        """
        self._commit()
        names = self._names
        form = {"q": f"{names.sequence}:[{sequence + 1} TO *]", "sort": f"{names.sequence} desc", "rows": _NEWEST}
        form |= {"fl": f"id,{names.hash},{names.origin}", "wt": "json"}
        content = self._json(self._ask("POST", "/select", urlencode(form).encode(), _FORM))
        yield from self._read_documents(content["response"]["docs"])

    def _read_documents(self, documents: Iterable[dict[str, Any]]) -> Iterator[Stored]:
        """Yield those of these documents that have a delivery's hash."""
        for doc in documents:
            if digest := _single_value(doc.get(self._names.hash)):
                yield Stored(doc["id"], digest, None, *_read_origin(_single_value(doc.get(self._names.origin))))

    def search(self, query: Query, limit: int, mark: tuple[str, str]) -> list[Hit]:
        """Return the documents that match the query in any of the collection's text fields, best first."""
        luke = self._json(self._ask("GET", "/admin/luke?numTerms=0&wt=json"))
        names = [name for name, field in luke["fields"].items() if str(field.get("type", "")).startswith("text")]
        if not names:
            return []
        form = {
            "q": " OR ".join(f"({' AND '.join(_term_query(term, names) for term in terms)})" for terms in query),
            "fq": f"{self._names.hash}:*",
            "fl": "id,title,score",
            "rows": str(limit),
            "wt": "json",
            "hl": "true",
            "hl.method": "unified",
            "hl.fl": ",".join(names),
            "hl.snippets": "1",
            "hl.fragsize": str(SNIPPET_CHARACTERS),
            "hl.tag.pre": mark[0],
            "hl.tag.post": mark[1],
        }
        found = self._json(self._ask("POST", "/select", urlencode(form).encode(), _FORM))
        marked = found.get("highlighting", {})
        return [
            Hit(
                doc["id"],
                None if (title := _single_value(doc.get("title"))) is None else str(title),
                " … ".join(part for parts in marked.get(doc["id"], {}).values() for part in parts),
                -float(doc["score"]),
            )
            for doc in found["response"]["docs"]
        ]

    def _check_log_replayed(self) -> None:
        """Check that the server has replayed its transaction log.

        A single server accepts writes while it replays its log after a crash, and does not see updates that it has not
        replayed yet: an older version would replace a newer one. A cloud waits by itself. The check is made once for
        each connection.
        """
        self._translate_errors(lambda: self._http.connect(self._timeout_s))
        connection = self._http.connections
        if connection == self._replayed_connection:
            return
        # A core that is still loading reports its log as replayed, but one that answers a request has begun replaying.
        self._ask("POST", "/get", urlencode({"id": ""}).encode(), _FORM)
        base, _, name = self._path.rpartition("/")
        log = f"solr.core.{unquote(name)}:TLOG.state"
        answer = self._request("GET", f"/admin/metrics?{urlencode({'key': log, 'wt': 'json'})}", base=base)
        state = (
            self._json(answer).get("metrics", {}).get(log) if answer.is_success else None
        )  # None: this user may not read metrics
        if connection != self._http.connections:
            raise Unavailable(f"{self._shown}: it closed the connection while it was asked")
        if state not in (None, LOG_ACTIVE):
            raise Unavailable(f"{self._shown}: it has not read its transaction log to the end yet")
        self._replayed_connection = connection

    # --- requests -----------------------------------------------------------------------------------------------------

    def _forms(self, ids: Iterable[str], fields: Sequence[str]) -> Iterable[bytes]:
        head = urlencode({"wt": "json", "fl": ",".join(fields)})
        form = head
        for id in ids:
            form += "&" + urlencode({"id": id})
            if len(form) > GET_BYTES:
                yield form.encode()
                form = head
        if form != head:
            yield form.encode()

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Answer:
        answer = self._request(method, path, body, kind)
        if not answer.is_success:
            raise self._error_of(answer)
        return answer

    def _request(
        self, method: str, path: str, body: bytes | None = None, kind: str = "", *, base: str | None = None
    ) -> Answer:
        headers = {"content-type": kind} if kind else {}
        path = (self._path if base is None else base) + path

        def send() -> Answer:
            return self._http.request(method, path, body, timeout_s=self._timeout_s, headers=headers)

        answer = self._translate_errors(send)
        while answer.wait(self.until):
            answer = self._translate_errors(send)
        return answer

    def _translate_errors(self, send: Callable[[], _Result]) -> _Result:
        try:
            return send()
        except NotSent as e:
            if e.permanent:
                raise Misconfigured(f"{self._shown}: {e}") from e
            raise Unavailable(f"{self._shown}: {e}") from e
        except Unanswered as e:
            raise ConnectionError(f"{self._shown}: {e}") from e

    def _json(self, answer: Answer) -> dict[str, Any]:
        try:
            content = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            content = None
        if not isinstance(content, dict):
            if answer.is_success:
                raise self._misconfigured("its answer is not JSON: is this the URL of a collection?")
            return {"error": {"msg": self._http.redact(answer.body) or answer.reason}}
        return content

    # --- what it means ------------------------------------------------------------------------------------------------

    def _error_of(self, answer: Answer) -> Exception:
        text = str(self._json(answer).get("error", {}).get("msg", "")) if answer.body[:1] == b"{" else ""
        why = f"{self._shown}: answered {answer.status} {answer.reason}".rstrip() + answer.asks_to_wait
        why += f" ({self._http.redact(text)})" if text else ""
        if remedy := _REMEDIES.get(answer.status):
            return Misconfigured(f"{why}. To fix it: {remedy}; then run again.")
        return Unavailable(why) if answer.status in urls.NOT_HANDLED else ConnectionError(why)

    def _raise_if_misconfigured(self, why: str) -> None:
        """Raise if a refusal is the collection's fault, although its status is that of a bad document."""
        if "must specify doc version param" in why:
            raise self._misconfigured(
                f"its update chain compares versions ({why}): say versions=, with this parameter's name"
            )
        for name in self._names.required:
            if f"unknown field '{name}'" in why:
                raise self._misconfigured(
                    f"its schema has no field {name}: add it, or a dynamic field that it falls under"
                )

    def _misconfigured(self, why: str) -> PermanentError:
        return Misconfigured(f"{self._shown}: {why}; then run again.")


_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"


_SPECIAL: Final = re.compile(r'([-+!(){}\[\]^"~*?:\\/&|\s])')
"""Characters that have a meaning in Solr's query language."""


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _term_query(term: Term, names: Sequence[str]) -> str:
    """Return a term in Solr's query language, in which no character of it has a meaning. A last word that is only the
    beginning of one need not follow the words before it."""
    queries = []
    for phrase in term.spellings():
        words = phrase.split()
        whole = " ".join(words[:-1] if term.is_prefix else words)
        escaped = whole.replace("\\", "\\\\").replace('"', '\\"')
        for name in map(_escape, names):
            parts = [f'{name}:"{escaped}"'] if whole else []
            if term.is_prefix:
                parts.append(f"{name}:{_escape(words[-1].lower())}*")
            queries.append(f"({' AND '.join(parts)})")
    return f"({' OR '.join(queries)})"


def _single_value(value: Any) -> Any:
    """Return a field's value; a schemaless collection makes lists of all values."""
    return value[0] if isinstance(value, list) and value else value


TIMEOUT_S: Final = 30.0
"""Time a request gets: a bulk of some MiB takes a second; a server that merges segments may need more."""

WRITE_S: Final = limits.SEND_TIMEOUT_S - TIMEOUT_S - 5
"""Time during which a ``write`` begins requests, so that the last one may still take its whole time-out."""

ROUNDS: Final = 8
"""Number of times that an id is read again because another writer changes it, before it is left for later."""

COMMIT_WITHIN_MS: Final = 1000
"""Time until sent documents can be found, in milliseconds: short for a user, and few commits for the server."""


class Solr(Destination):
    """Writes documents into a collection of Apache Solr, which must be there.

    ``Solr("http://localhost:8983/solr/plays")`` keeps one document per id: the fields as they are, ``id``, ``text``
    (the raw bytes decoded as UTF-8; not set without raw), ``ferryman_hash_s``, ``ferryman_sequence_l`` and, if the
    schema has such a field, ``ferryman_origin_s``: source, version and route as JSON, by which a run notices that its
    state is an older copy. A list is a field with several values; an object, and what is deeper in a list, is JSON
    text; null is left out. Fields called as Solr's own (``_version_``, ``_root_`` …) are refused.

    **Without** ``versions`` it is at-least-once: what a kill leaves in doubt is sent again, and changes nothing. Before
    each write the collection is asked what it has (a real-time get, committed or not), and the write names that state
    (``_version_``): if another writer was faster, it is compared again. So an older version never replaces a newer one.
    **The limit**: Solr forgets what is deleted. A writer that was killed can, in the second after, bring back a
    document that its successor has deleted; it stays until it is deleted again.

    **With** ``versions`` it is exactly-once. The collection's update chain must have a
    ``DocBasedVersionConstraintsProcessorFactory`` whose ``versionField`` is the sequence's and whose
    ``deleteVersionParam`` is what you give: ``versions="ferryman_sequence"``. It refuses what is older, also than a
    delete, of which it keeps a document with hardly more than the id: leave those out with ``fq=ferryman_hash_s:*``.
    Hash and document are one write. Such deletes go one by one.

    ``ferryman verify`` compares ids and hashes, not the content, since nobody can tell what a schema makes of a value.
    An edit by hand that leaves ``ferryman_hash_s`` as it was is not found.

    Inside of a write a request that Solr did not handle is sent again if it asks to wait (``Retry-After``).

    Ids of 32 766 bytes are Solr's limit, and so are terms of a field that is not analysed.

    Args:
        url: of the collection, core or alias: ``…/solr/<name>``. ``${NAME}`` in it, and in ``auth``, is filled in from
            the environment of the driver and the workers.
        text: name of the field for the text.
        commit_within_ms: milliseconds until what was sent can be found (``commitWithin``); None: as the collection
            commits by itself.
        versions: the ``deleteVersionParam`` of the collection's chain.
        auth: user and password, or all that the header ``Authorization`` says: ``"Bearer ${TOKEN}"``.
        ca: a PEM file with the authorities to trust; None: the system's.
        hash_field, sequence_field, origin_field: names of these fields.

    A chunk that Solr refuses is sent on without the document that it stopped at, which is tried alone: its refusal is a
    permanent outcome of this document. What Solr confirmed survives the end of its process; a power cut, only if its
    transaction log is synced (``<str name="syncLevel">FSYNC</str>``) or there are replicas.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    transactional = False
    compares_sequences = False
    keyed_by_id = True

    facts: ClassVar[Facts] = Facts(
        stored="the document, with its delivery's hash and sequence; of a delete nothing. With `versions=` it is "
        "exactly-once: a delete leaves a document with id and sequence",
        limits=(
            "an id, and a term that is not analysed, has 32 766 bytes at most",
            f"a `write` begins requests for {WRITE_S:g} s",
        ),
        outcomes=tuple(outcome_rows()),
        tested=("Solr 9.10, one server",),
    )

    def __init__(
        self,
        url: str,
        text: str = "text",
        commit_within_ms: int | None = COMMIT_WITHIN_MS,
        versions: str | None = None,
        *,
        auth: Auth | None = None,
        ca: str | None = None,
        hash_field: str = "ferryman_hash_s",
        sequence_field: str = "ferryman_sequence_l",
        origin_field: str = "ferryman_origin_s",
    ) -> None:
        self.auth, _ = check_destination("Solr", url, auth)
        self.url = url.rstrip("/")
        self.names = FieldNames(text, hash_field, sequence_field, origin_field)
        self.commit_within_ms = commit_within_ms
        self.versions = versions
        self.ca = ca
        self.transactional = versions is not None  # type: ignore[misc]  # of this one
        self.compares_sequences = versions is not None  # type: ignore[misc]
        self._http: Http | None = None
        self._written: FieldNames | None = None  # those that the schema has, asked by the first write
        if findings := list(self._findings()):
            raise PlanError([f"Solr({urls.strip_secrets(url)!r}): {finding}" for finding in findings])

    def _findings(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://", "${")) or "?" in self.url:
            yield "the url is not an http or https URL of a collection: http://localhost:8983/solr/plays"
        if len({"id", *self.names}) < 5 or not all(self.names):
            yield "id, text, hash_field, sequence_field and origin_field need names of their own"
        if self.versions == "":
            yield "versions is empty: name the chain's deleteVersionParam, or leave it out"
        if self.commit_within_ms is not None and self.commit_within_ms < 1:
            yield f"commit_within_ms={self.commit_within_ms}: give 1 or more, or None"

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_collection"}
        return kept | {"_http": None, "_written": None}

    def target(self) -> str:
        return urls.strip_secrets(self.url)

    def check(self) -> None:
        """Check that the collection exists, with the fields and the chain that are needed. Changes nothing.

        Raises:
            TransientError, ConnectionError: it does not answer.
            PermanentError: it is not fit, or this user may not ask; says what to do.
        """
        with self._open_collection() as collection:
            collection.check(self.versions is not None)

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of documents; with ``versions=`` also of deletes."""
        with self._open_collection() as collection:
            return collection.highest_sequence()

    def newer_than(self, sequence: int) -> Iterator[Stored]:
        """Yield the documents of the highest sequences, see ``Destination.newer_than``."""
        with self._open_collection() as collection:
            yield from collection.newer_than(sequence)

    def inventory(self, context: DestinationContext, ids: Iterable[str] | None = None) -> Iterator[Stored]:
        """Yield the documents, see ``Destination.inventory``. Their content is not compared with what was written: the
        schema may have changed its form."""
        with self._open_collection() as collection:
            yield from collection.stored(ids)

    def search(self, query: Query, limit: int, mark: tuple[str, str]) -> list[Hit]:
        """Return the documents that match the query in any of the collection's text fields, best first."""
        with self._open_collection() as collection:
            return collection.search(query, limit, mark)

    def open(self, context: DestinationContext) -> None:
        self._http = self._connection()
        self._collection = Collection(self._http, self.target(), self.names, TIMEOUT_S)
        self._written = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write it, each id's deliveries in the order of their sequences.

        Raises:
            TransientError, ConnectionError: Solr is away, or was away before all of it was confirmed.
            Misconfigured: no such collection, no right to write.
        """
        if self._http is None:
            raise Misconfigured(f"{self.target()}: write before open")
        if self._written is None:
            has_origin = self._collection.has_field(self.names.origin)
            self._written = self.names if has_origin else self.names._replace(origin="")
        outcomes: dict[int, Outcome] = {}
        writer = _ChunkWriter(self._collection, self._parameters(), self.versions, outcomes)
        for layer in self._layers(chunk, self._written, outcomes):
            writer.settle(layer)
        return [outcomes[position] for position in range(len(chunk))]

    def _layers(self, chunk: list[Delivery], names: FieldNames, outcomes: dict[int, Outcome]) -> list[list[UpdateRow]]:
        """Split a chunk into layers with each id once; older deliveries of an id are in earlier layers."""
        layers: list[list[UpdateRow]] = []
        layer_of: dict[str, int] = defaultdict(int)
        for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
            delivery = chunk[position]
            try:
                delivery.id.encode()
                body = solr_document(delivery, names) if delivery.operation == "upsert" else {}
                encode(body)
            except (BadDocument, UnicodeEncodeError) as e:
                outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")
                continue
            depth = layer_of[delivery.id]
            layer_of[delivery.id] += 1
            if depth == len(layers):
                layers.append([])
            layers[depth].append(UpdateRow(position, delivery, body))
        return layers

    def _parameters(self) -> dict[str, str]:
        return {} if self.commit_within_ms is None else {"commitWithin": str(self.commit_within_ms)}

    @contextmanager
    def _open_collection(self) -> Iterator[Collection]:
        http = self._connection()
        try:
            yield Collection(http, self.target(), self.names, TIMEOUT_S)
        finally:
            http.close()

    def _connection(self) -> Http:
        return Http(self.url, shown=self.target(), auth=self.auth, ca=self.ca)


class UpdateRow(NamedTuple):
    """A delivery of a chunk, its position, and the document made of it ({} for a delete)."""

    position: int
    delivery: Delivery
    body: dict[str, Any]


class _ChunkWriter:
    """State of one ``write``: sends rows with different ids until each has an outcome.

    Args:
        parameters: parameters of every update.
        outcomes: position -> outcome; filled in.
    """

    def __init__(
        self, collection: Collection, parameters: dict[str, str], versions: str | None, outcomes: dict[int, Outcome]
    ) -> None:
        self._collection = collection
        self._parameters = parameters
        self._versions = versions
        self._outcomes = outcomes
        self._until = collection.until = time.monotonic() + WRITE_S

    def settle(self, rows: list[UpdateRow]) -> None:
        """Bring each row to an outcome: 1. read the stored versions 2. compare 3. send newer rows, on the condition
        that the stored version has not changed 4. repeat for rows that lost to another writer."""
        for _ in range(ROUNDS):
            known = self._collection.known(row.delivery.id for row in rows)  # 1
            rows = [row for row in rows if not self._is_settled(row, known.get(row.delivery.id))]  # 2
            rows = self._send_upserts([r for r in rows if r.body], known) + self._send_deletes(
                [r for r in rows if not r.body], known
            )  # 3
            if not rows:
                return
        for row in rows:
            self._outcomes[row.position] = Outcome.transient("other writers change this document at the same time")

    def _is_settled(self, row: UpdateRow, known: StoredVersion | None) -> bool:
        """Return whether this row needs no update, and set its outcome."""
        if known is None:
            if row.body or self._versions is not None:
                return False
            self._outcomes[row.position] = Outcome.ok()  # nothing is there to delete
        elif row.delivery.sequence <= known.sequence:
            repeated = row.delivery.hash == known.hash or row.delivery.sequence == known.sequence
            self._outcomes[row.position] = Outcome.ok() if repeated else Outcome.stale()
        else:
            return False
        return True

    def _send_upserts(self, rows: list[UpdateRow], known: dict[str, StoredVersion]) -> list[UpdateRow]:
        """Send documents; return the rows without an outcome."""
        waiting: list[UpdateRow] = []
        groups = [rows] if rows else []
        while groups:
            group = groups.pop(0)
            if time.monotonic() > self._until:
                self._record_too_late(group)
                continue
            body = b"[" + b",".join(encode(self._conditional(row, known)) for row in group) + b"]"
            reply = self._collection.update(body, **self._parameters)
            rest = self._record_accepted(group, reply)
            if reply.status in (200, CONFLICT):
                waiting += rest
            elif len(group) == 1 and rest:
                self._record_refusal(group[0], reply)
            elif rest:
                # It stopped at the first document that it had not accepted, or, in a cloud, at one of these.
                groups = [part for part in (rest[:1], rest[1:]) if part] + groups
        return waiting

    def _send_deletes(self, rows: list[UpdateRow], known: dict[str, StoredVersion]) -> list[UpdateRow]:
        """Send deletes; return the rows without an outcome."""
        if not rows:
            return []
        if self._versions is None:
            orders = [{"id": row.delivery.id, "_version_": known[row.delivery.id].version} for row in rows]
            body = b"{" + b",".join(b'"delete":' + msgspec.json.encode(order) for order in orders) + b"}"
            return self._handle_reply(rows, self._collection.update(body, **self._parameters))
        waiting: list[UpdateRow] = []
        for row in rows:
            if time.monotonic() > self._until:
                self._record_too_late([row])
                continue
            parameters = {**self._parameters, self._versions: str(row.delivery.sequence)}
            reply = self._collection.update(msgspec.json.encode({"delete": {"id": row.delivery.id}}), **parameters)
            waiting += self._handle_reply([row], reply)
        return waiting

    def _handle_reply(self, rows: list[UpdateRow], reply: Reply) -> list[UpdateRow]:
        """Set the outcomes of deletes by the reply; return the rows without an outcome."""
        rest = self._record_accepted(rows, reply)
        if reply.status in (200, CONFLICT):
            return rest
        for row in rest:
            self._record_refusal(row, reply)
        return []

    def _conditional(self, row: UpdateRow, known: dict[str, StoredVersion]) -> dict[str, Any]:
        """Return the document with the condition that the stored version is the one that was read (-1: none)."""
        seen = known.get(row.delivery.id)
        return row.body | {"_version_": -1 if seen is None else seen.version}

    def _record_accepted(self, rows: list[UpdateRow], reply: Reply) -> list[UpdateRow]:
        """Set the outcomes of the accepted rows; return the others."""
        rest = []
        for row in rows:
            if row.delivery.id in reply.accepted:
                self._outcomes[row.position] = Outcome.ok()
            else:
                rest.append(row)
        return rest

    def _record_refusal(self, row: UpdateRow, reply: Reply) -> None:
        id = row.delivery.id
        # Equal faults get equal texts, because many of them in a row mean that the collection is at fault.
        reason = reply.why.replace(f"[doc={id}] ", "").replace(f"document id {id} ", "document ")
        why = f"Solr refuses it ({reply.status}): {reason}"
        self._outcomes[row.position] = Outcome.transient(why) if reply.status == 500 else Outcome.permanent(why)

    def _record_too_late(self, rows: list[UpdateRow]) -> None:
        for row in rows:
            self._outcomes[row.position] = Outcome.unavailable(
                f"the chunk was not done within {WRITE_S:g} s",
            )


# Conversion of deliveries to documents of Solr.

_RESERVED_FIELDS: Final = ("_version_", "_root_", "_nest_path_", "_nest_parent_", "_childDocuments_")
"""Fields with a meaning in Solr: a document that sets them would not be stored as an ordinary one."""

TERM_BYTES: Final = 32_766
"""Most bytes of a term that is not analysed."""

_encode = msgspec.json.Encoder().encode
_decode_origin = msgspec.json.Decoder(tuple[str, str, list[str]]).decode


class FieldNames(NamedTuple):
    """Names of fields in the collection; ``origin`` is "" if the schema has no such field."""

    text: str
    hash: str
    sequence: str
    origin: str

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the fields that a schema must have."""
        return self.hash, self.sequence


def solr_document(delivery: Delivery, names: FieldNames) -> dict[str, Any]:
    """Convert a delivery to a document with its fields, ``id``, the text, hash, sequence and origin.

    Numbers, texts and booleans stay as they are, a list of them becomes a field with several values, None is left out.
    Nested values become JSON text: Solr would interpret an object as an instruction to modify the stored document.

    Raises:
        BadDocument: a field has a name that Solr or Ferryman keeps for itself.
    """
    fields: dict[str, Any] = {}
    for name, value in delivery.fields.items():
        if name in _RESERVED_FIELDS or name in names[1:]:
            raise BadDocument(f"a field is called {name}, which has a meaning of its own. Rename it in a step.")
        if isinstance(value, list):
            fields[name] = [_flatten(each) for each in value if each is not None]
        elif value is not None:
            fields[name] = _flatten(value)
    if delivery.raw is not None:
        fields[names.text] = delivery.text()
    origin = _encode([delivery.source, delivery.version, delivery.route]).decode() if names.origin else ""
    if 0 < len(origin.encode()) <= TERM_BYTES:
        fields[names.origin] = origin
    return fields | {"id": delivery.id, names.hash: delivery.hash, names.sequence: delivery.sequence}


def _read_origin(text: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return source, version and route of a document; empty ones if it has none, or somebody has changed them."""
    try:
        source, version, route = _decode_origin(text or "")
    except (msgspec.DecodeError, TypeError):
        return "", "", ()
    return source, version, tuple(route)


def encode(document: dict[str, Any]) -> bytes:
    """Encode as JSON.

    Raises:
        BadDocument: it holds what JSON cannot hold.
    """
    try:
        return _encode(document)
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        for name, value in document.items():
            try:
                _encode({name: value})
            except Exception:
                raise BadDocument(f"field {name!r} holds what JSON cannot hold ({e}). Change it in a step.") from None
        raise BadDocument(f"its fields are not JSON: {e}") from None


def _flatten(value: Any) -> Any:
    return _encode(value).decode() if isinstance(value, (dict, list)) else value
