"""A destination in a search engine: one document per id, with its delivery's hash and sequence in it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol
from urllib.parse import quote

import msgspec

from ferryman import limits
from ferryman.destinations.base import (
    SNIPPET_CHARACTERS,
    Delivery,
    DestinationContext,
    Effect,
    Facts,
    Guarantee,
    Hit,
    Outcome,
    Query,
    Stored,
    Term,
    parse_query,
    slices,
)
from ferryman.destinations.opensearch import vectors as vectors_
from ferryman.destinations.opensearch.answers import (
    FILTER,
    NO_PIPELINE,
    NO_ROUTING,
    outcome_rows,
    read_items,
    refusal,
    request_meaning,
)
from ferryman.destinations.opensearch.documents import (
    ID_BYTES,
    OBJECT,
    PAGE,
    REQUEST_BYTES,
    SCROLL,
    BulkRow,
    BulkWriter,
    Page,
    read_page,
    split_requests,
    stored_document,
)
from ferryman.destinations.vectors import (
    FUSED,
    Declaration,
    Filter,
    VectorDestination,
    VectorField,
    Where,
    declaration_findings,
    fuse_ranks,
    read_filter,
    read_question,
    read_vectors,
    vector_fields,
)
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, PlanError, Unavailable, UsageError
from ferryman.net import relative_paths, urls
from ferryman.net.http import Answer, Auth, Http, NotSent, Unanswered, check_destination

__all__ = ["Elasticsearch", "OpenSearch"]


# The index: created, or checked against the plan.

GC_DELETES_S: Final = 600
"""Time that an index created here remembers deletes, during which older upserts are refused. Ferryman sends nothing
more than a minute late; ten times that allows for requests that wait in the server. A remembered delete takes some 100
bytes of its memory."""

GC_DELETES_LEAST_S: Final = 60
"""The server's default: as long as a write may take."""

OWN_FIELDS: Final[dict[str, Any]] = {
    "dynamic": False,
    "properties": {
        "hash": {"type": "keyword"},
        "sequence": {"type": "long"},
        "origin": {"type": "keyword"},
        "parent": {"type": "keyword"},
        "source": {"type": "keyword"},
        "version": {"type": "keyword"},
        "route": {"type": "keyword"},
    },
}

_DURABILITY: Final = "index.translog.durability"
_NEWEST: Final = 100
"""Documents that ``newer_than`` yields."""

_UNITS: Final = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXISTS: Final = "resource_already_exists_exception"

_log = logging.getLogger("ferryman")


class Ask(Protocol):
    """Function that sends a request and raises for every refusal whose status is not ``expected``."""

    def __call__(self, method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = ()) -> Answer: ...


class Index:
    """An index, given by its name or by an alias of one index."""

    def __init__(
        self,
        ask: Ask,
        name: str,
        mappings: Mapping[str, Any],
        settings: Mapping[str, Any],
        vectors: Mapping[str, VectorField],
        *,
        shown: str,
    ) -> None:
        self._ask = ask
        self._vectors = vectors
        self._path = f"/{quote(name, safe='')}"
        self._mappings = with_own_fields(mappings)
        self._settings = {"index.gc_deletes": f"{GC_DELETES_S}s", **settings}
        self._shown = shown

    def prepare(self) -> None:
        """Create the index, or check an existing one and add missing fields. Two drivers may do so at once.

        Raises:
            Misconfigured: its mappings contradict the plan's, or the name means something else than one index.
        """
        if self._vectors:
            self._add_vectors()
        indices = self._find()
        if indices is None:
            self._make()
            indices = self._find()  # another driver may have been faster
        if indices is not None:
            self._check(indices)

    def _add_vectors(self) -> None:
        """Add the vectors to mappings and settings, in the words of this server."""
        self._is_opensearch = is_opensearch(self._ask)
        for name, field in self._vectors.items():
            if problem := vectors_.dimension_problem(field, self._is_opensearch):
                raise Misconfigured(f"{self._shown}: vectors: {name!r}: {problem}. Use a model with fewer.")
        self._mappings = vectors_.with_vectors(self._mappings, self._vectors, self._is_opensearch)
        if self._is_opensearch:
            self._settings = {"index.knn": True, **self._settings}

    def _find(self) -> dict[str, Any] | None:
        answer = self._ask("GET", f"{self._path}?flat_settings=true", expected=(404,))
        if answer.status == 404:
            return None
        indices: dict[str, Any] = msgspec.json.decode(answer.body)
        return indices

    def _make(self) -> None:
        body = {"settings": self._settings, "mappings": self._mappings}
        answer = self._ask("PUT", self._path, body, expected=(400,))
        if answer.status == 400 and _EXISTS not in (why := refusal(answer.body)):
            raise Misconfigured(
                f"{self._shown} cannot be made: {why}. Correct index=, mappings= or settings=.",
            )

    def _check(self, indices: dict[str, Any]) -> None:
        if any("data_stream" in each for each in indices.values()):
            raise Misconfigured(
                f"{self._shown} is a data stream, which takes new documents only: no versions, so that a late write "
                "would undo a newer one, and no change or delete of a document by its id. Name an index.",
            )
        if len(indices) != 1:
            raise Misconfigured(
                f"{self._shown} is an alias of {len(indices)} indices: a document that changes would be in two of "
                "them. Name one index, or an alias of one.",
            )
        [(name, there)] = indices.items()
        if there.get("mappings", {}).get("_routing", {}).get("required"):
            raise Misconfigured(f"{self._shown}: its mappings require a routing for each document. {NO_ROUTING}.")
        self._check_pipelines(there.get("settings", {}))
        self._warn_of_short_memory(name, there.get("settings", {}))
        if self._vectors:
            mappings = there.get("mappings", {})
            notes = vectors_.check_index(self._shown, self._vectors, mappings, self._is_opensearch)
            meta = {**mappings.get("_meta", {}), **self._mappings["_meta"], vectors_.META: notes}
            self._mappings = {**self._mappings, "_meta": meta}
        if _differs(self._mappings, there.get("mappings", {})):
            self._add_fields()

    def _check_pipelines(self, settings: Mapping[str, str]) -> None:
        """Check that there are the ingest pipelines through which the index sends each document.

        A user may have no right to look, and a server no such pipelines: then what is written tells.
        """
        for setting in ("index.default_pipeline", "index.final_pipeline"):
            pipeline = settings.get(setting, "_none")
            if pipeline == "_none":
                continue
            answer = self._ask("GET", f"/_ingest/pipeline/{quote(pipeline, safe='')}", expected=(400, 403, 404, 405))
            if answer.status == 404:
                raise Misconfigured(
                    f"{self._shown}: its {setting} is {pipeline}, and there is no such pipeline. {NO_PIPELINE}."
                )

    def _warn_of_short_memory(self, name: str, settings: Mapping[str, str]) -> None:
        """Warn if the server does not remember a delete for as long as an older upsert may still arrive, which
        exactly-once requires."""
        remembered = settings.get("index.gc_deletes")
        if remembered is not None and 0 <= parse_time(remembered) < GC_DELETES_LEAST_S:
            _log.warning(
                "%s: index.gc_deletes is %s, so that an upsert which arrives late, after a kill, may bring a deleted "
                "document back. Set it to %ss or more: PUT /%s/_settings",
                self._shown, remembered, GC_DELETES_S, name,
            )  # fmt: skip

    def _add_fields(self) -> None:
        answer = self._ask("PUT", f"{self._path}/_mapping", self._mappings, expected=(400,))
        if answer.status == 400:
            raise Misconfigured(
                f"{self._shown}: the index's mappings contradict the plan's: {refusal(answer.body)}. Correct "
                "mappings=, or name a new index and give the plan a higher version.",
            )


def is_opensearch(ask: Ask) -> bool:
    """Return whether the server is an OpenSearch; else it is an Elasticsearch."""
    answer = ask("GET", "/", expected=(403, 405))  # an Elasticsearch may be without a page there
    if "x-elastic-product" in answer.headers:
        return False
    version = msgspec.json.decode(answer.body).get("version", {})
    return answer.status != 200 or bool(version.get("distribution") == "opensearch")


def with_own_fields(mappings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the mapping of Ferryman's metadata to the plan's mappings."""
    return {**mappings, "properties": {**mappings.get("properties", {}), OBJECT: OWN_FIELDS}}


def parse_time(time_value: str) -> float:
    """Parse a time in settings (``60s``) to seconds; infinity for no limit (``-1``) or anything else."""
    match = re.fullmatch(r"(\d{1,18}+)(\w{1,9})", time_value)
    return int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else float("inf")


def _differs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether ``ours`` has something that ``theirs`` lacks or has otherwise. ``theirs`` may have more."""
    for key, value in ours.items():
        if key not in theirs:
            if not (key == "type" and value == "object" and "properties" in theirs):  # the server leaves that out
                return True
        elif isinstance(value, Mapping) and isinstance(theirs[key], Mapping):
            if _differs(value, theirs[key]):
                return True
        elif str(value).lower() != str(theirs[key]).lower():  # it has some numbers and truths as text
            return True
    return False


WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Time a ``write`` has, with all its requests: after it nothing is sent any more, so nothing arrives late."""

SHARD_S: Final = 30
"""Time the server waits for a missing shard: less than Ferryman waits, so that the server reports it."""

CHECK_S: Final = 30.0
"""Time-out of a request of ``check``: creating an index waits for its shards."""

_JSON: Final = {"content-type": "application/json"}
_NDJSON: Final = {"content-type": "application/x-ndjson"}

Refresh = bool | Literal["wait_for"]


class OpenSearch(VectorDestination):
    """Writes documents into an index of OpenSearch, or of Elasticsearch, which is made if it is not there.

    ``OpenSearch("https://search.example.org:9200", "plays", auth=("ferryman", "${OPENSEARCH_PASSWORD}"))`` keeps one
    document per id. Its ``_id`` is the document's id, its source the document's fields, ``text`` (the raw bytes decoded
    as UTF-8; left out without raw, and where a step has made a field of that name), and ``_ferryman``: an object with
    ``hash``, ``sequence``, ``origin``, ``parent``, ``source``, ``version`` and ``route`` of its delivery, and
    ``content_hash``, by which ``ferryman verify`` sees whether somebody has changed the document. What is
    written can be searched after the index's next refresh.

    **Exactly-once.** A document and its delivery's hash are one write. Each write has the delivery's sequence as its
    external version (``external_gte``), so the server refuses what is older than what it has, a deleted document
    included; we call that *stale*. A delivery that comes again, after a kill or a lost answer, has the version that is
    there: the same bytes are written again, which changes nothing. Inside of a write a request is sent again only if
    the server has not taken it and asks to wait (``Retry-After``).

    The server remembers a delete for ``index.gc_deletes``: 10 minutes in an index that is made here; an index with less
    than a minute is warned of. No request is sent later than 50 s after its write began, and the delete of a document
    waits until its upserts have a result. So an old upsert can bring back a deleted document only if a worker was
    stopped and continued at just the wrong instant, or the server itself held a request for longer than that, or was
    restarted meanwhile; its next change, or ``ferryman retry --force``, corrects it.

    Args:
        url: of the server or cluster; a path in it goes before the index. ``${NAME}`` in it and in ``auth`` is filled
            in from the environment of the driver and the workers: then it is in no plan file, state, message or log.
        index: its name, or an alias of one index.
        mappings: as the server's create-index API takes them: ``{"properties": {"title": {"type": "text"}}}``. An index
            that is there gets the fields that it lacks; one that contradicts them is refused.
        text: name of the field for the decoded raw bytes. None: they are left out.
        auth: ``(user, password)``, an API key as text, or a whole header: ``"Bearer ${TOKEN}"``.
        refresh: False: the index refreshes by its own settings. True: each request makes it, so that what was written
            is found at once, at a price. "wait_for": each request waits for it.
        settings: of an index that is made here: ``{"number_of_shards": 3}``.
        ca: a PEM file with the authorities to trust; None: the system's.
        vectors: field -> dimensions, or a ``VectorField``, of fields that hold a vector: ``knn_vector`` of OpenSearch,
            which needs its plugin k-NN, or ``dense_vector`` of Elasticsearch 8. ``nearest`` and ``hybrid`` ask for
            them; their filters compare keywords, numbers, and text that has a keyword beside it.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True

    preferred_batch: ClassVar[int | None] = 1000
    """Twice what clients send by default: half as many answers to wait for, and still about 1 MB of short documents."""

    facts: ClassVar[Facts] = Facts(
        stored="the document, with its delivery's hash and sequence in `_ferryman`; of a delete nothing, and for "
        f"`index.gc_deletes` ({GC_DELETES_S} s in an index that is made here) the server remembers its sequence",
        limits=(
            f"an id has {ID_BYTES} bytes at most",
            f"a request has {REQUEST_BYTES >> 20} MiB at most, or one document",
            f"a `write` has {WRITE_S:g} s",
            "fields, depths and sizes: the index's own settings and `http.max_content_length`",
            "vectors of 16 000 dimensions on OpenSearch, 4 096 on Elasticsearch",
        ),
        outcomes=tuple(outcome_rows()),
        tested=("OpenSearch 2.19, with k-NN 2.19.1", "Elasticsearch 7.17", "Elasticsearch 8.19"),
    )

    def __init__(
        self,
        url: str,
        index: str,
        mappings: Mapping[str, Any] | None = None,
        text: str | None = "text",
        auth: Auth | None = None,
        refresh: Refresh = False,
        *,
        settings: Mapping[str, Any] | None = None,
        ca: str | Path | None = None,
        vectors: Declaration | None = None,
    ) -> None:
        if auth is not None and not (isinstance(auth, str) or _is_pair(auth)):
            raise PlanError([f"{type(self).__name__}(…, {index!r}): auth= is neither (user, password) nor text"])
        self.auth, _ = check_destination(f"{type(self).__name__}(…, {index!r})", url, auth)
        self.url = url.rstrip("/")
        self.index = index
        self.mappings = dict(mappings or {})
        self.text = text
        self.refresh: Refresh = refresh
        self.settings = dict(settings or {})
        self.ca = None if ca is None else relative_paths.absolute(ca)
        self._http: Http | None = None
        self._writer = BulkWriter(text)
        self._once = False
        self.vectors = vector_fields(vectors) if isinstance(vectors, Mapping) else {}
        if findings := [*declaration_findings(vectors), *self._findings()]:
            where = f"{type(self).__name__}({urls.strip_secrets(url)!r}, {index!r})"
            raise PlanError([f"{where}: {finding}" for finding in findings])

    def _findings(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://", "${")):
            yield "the url is not an http or https URL"
        if self.auth is not None and "@" in self.url:
            yield "the url and auth= both name a user: leave one of them out"
        if not self.index or self.index != self.index.lower() or set(self.index) & set(' "*\\<|,>/?#:'):
            yield 'an index has a name of lower-case characters, without spaces and without "*\\<|,>/?#:'
        elif self.index[0] in "-_+." or len(self.index.encode()) > 255:
            yield "the index's name begins with one of -_+. or is longer than 255 bytes"
        if self.refresh not in (True, False, "wait_for"):
            yield f"refresh={self.refresh!r}: give True, False or 'wait_for'"
        if self.text == OBJECT or OBJECT in self.mappings.get("properties", {}):
            yield f"{OBJECT} is reserved for Ferryman: give the field another name"
        yield from vectors_.declaration_findings(self.vectors, self.text)
        if "mappings" in self.mappings or any(isinstance(v, Mapping) and "type" in v for v in self.mappings.values()):
            yield "mappings: put the fields under 'properties': mappings={'properties': {'title': {'type': 'text'}}}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_http": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target()!r})"

    def target(self) -> str:
        return f"{urls.strip_secrets(self.url)}/{self.index}"

    def check(self) -> None:
        """Make the index, or look whether it is fit; any number of drivers may do so at once.

        Raises:
            TransientError: no connection, no answer, or the server is overloaded.
            PermanentError: refused credentials, no right, mappings that contradict the plan's, a certificate that is
                not trusted, an environment variable that is not set.
        """
        with self._open_reader() as ask:
            Index(ask, self.index, self.mappings, self.settings, self.vectors, shown=self.target()).prepare()

    def identity(self) -> str | None:
        """Return the index's UUID."""
        with self._open_reader() as ask:
            answer = ask("GET", f"{self._path}/_settings?flat_settings=true", expected=(404,))
            if answer.status == 404:
                return ""
            indices = msgspec.json.decode(answer.body)
            return ",".join(sorted(each["settings"]["index.uuid"] for each in indices.values()))

    def durability_risk(self) -> str:
        with self._open_reader() as ask:
            path = f"{self._path}/_settings/{_DURABILITY}?flat_settings=true"
            indices = msgspec.json.decode(ask("GET", path).body)
        if not any(each["settings"].get(_DURABILITY) == "async" for each in indices.values()):
            return ""
        return f"{_DURABILITY} is async: a crash of its machine loses the last seconds. Set it to request"

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of the documents: the server does not reveal what it remembers of deletes."""
        query = {"size": 0, "aggs": {"highest": {"max": {"field": f"{OBJECT}.sequence"}}}}
        with self._open_reader() as ask:
            ask("POST", f"{self._path}/_refresh")
            answer = ask("POST", f"{self._path}/_search", query)
            highest = msgspec.json.decode(answer.body)["aggregations"]["highest"]["value"]
        return None if highest is None else int(highest)

    def newer_than(self, sequence: int) -> Iterator[Stored]:
        """Yield the documents of the highest sequences, see ``Destination.newer_than``."""
        newer = {"range": {f"{OBJECT}.sequence": {"gt": sequence}}}
        query = {"size": _NEWEST, "sort": [{f"{OBJECT}.sequence": "desc"}], "query": newer}
        with self._open_reader() as ask:
            if ask("POST", f"{self._path}/_refresh", expected=(404,)).status == 404:
                return  # there is no index
            page = read_page(ask("POST", f"{self._path}/_search", query).body)
        yield from filter(None, (stored_document(hit, self.text) for hit in page.hits.hits))

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the documents, see ``Destination.inventory``. All of them: after a refresh.

        Raises:
            Unavailable: the server, or one of the index's shards, does not answer.
            Misconfigured: the index does not keep what it was given (``_source``).
        """
        with self._open_reader() as ask:
            if ask("POST", f"{self._path}/_refresh", expected=(404,)).status == 404:
                return  # there is no index
            for page in self._all_pages(ask) if ids is None else self._pages_of(ask, ids):
                for hit in (*page.hits.hits, *page.docs):
                    if (found := stored_document(hit, self.text)) is not None:
                        yield found

    def _all_pages(self, ask: Ask) -> Iterator[Page]:
        query = {"size": PAGE, "sort": ["_doc"], "query": {"match_all": {}}}
        page = read_page(ask("POST", f"{self._path}/_search?scroll={SCROLL}", query).body)
        try:
            while page.hits.hits:
                if page.timed_out or page.shards.failed:
                    raise Unavailable(f"{self.target()}: {page.shards.failed} of its shards did not answer")
                yield page
                more = {"scroll": SCROLL, "scroll_id": page.scroll_id}
                page = read_page(ask("POST", "/_search/scroll", more).body)
        finally:
            with suppress(DeliveryError):
                ask("DELETE", "/_search/scroll", {"scroll_id": page.scroll_id}, expected=(404,))

    def _pages_of(self, ask: Ask, ids: Collection[str]) -> Iterator[Page]:
        """Yield documents by id, in real time."""
        for some in slices(ids, PAGE):
            yield read_page(ask("POST", f"{self._path}/_mget", {"ids": some}).body)

    def search(self, query: Query, limit: int, mark: tuple[str, str]) -> list[Hit]:
        """Return the documents that match the query in any of the index's text fields, best first."""
        with self._open_reader() as ask:
            mapped = msgspec.json.decode(ask("GET", f"{self._path}/_mapping").body)
            names = [name for each in mapped.values() for name in text_fields(each["mappings"].get("properties", {}))]
            if not names:
                return []
            answer = ask("POST", f"{self._path}/_search", search_request(query, names, limit, mark))
            hits = msgspec.json.decode(answer.body)["hits"]["hits"]
        return [
            Hit(
                hit["_id"],
                None if hit["_source"].get("title") is None else str(hit["_source"]["title"]),
                " … ".join(part for parts in hit.get("highlight", {}).values() for part in parts),
                -float(hit["_score"]),
            )
            for hit in hits
        ]

    def lookup(self, id: str) -> Hit | None:
        """Return the document of this id, also one that cannot be searched yet, see ``Destination.lookup``.

        Raises:
            Unavailable, Misconfigured: the server does not answer, or refuses.
        """
        with self._open_reader() as ask:
            found = msgspec.json.decode(ask("GET", f"{self._path}/_doc/{quote(id, safe='')}", expected=(404,)).body)
        if not found.get("found"):
            return None
        hidden = {OBJECT, self.text, *self.vectors}
        source = found["_source"]
        fields = {name: value for name, value in source.items() if name not in hidden}
        return Hit(id, None, "", 0.0, fields=fields, text=source.get(self.text) if self.text else None)

    @property
    def has_full_text(self) -> bool:
        """Return whether its documents have a text, which the index cuts into words."""
        return self.text is not None

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        question, wanted = read_question(self.vectors, field, vector), read_filter(where)
        with self._open_reader() as ask:
            return self._nearest(ask, field, question, limit, wanted, self._properties(ask))

    def hybrid(
        self, text: str, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None
    ) -> list[Hit]:
        """Fuse the ranks of words and of vectors, see ``VectorDestination.hybrid``."""
        question, wanted = read_question(self.vectors, field, vector), read_filter(where)
        query, depth = parse_query(text), min(vectors_.MOST_HITS, max(limit, FUSED))
        with self._open_reader() as ask:
            properties = self._properties(ask)
            near = self._nearest(ask, field, question, depth, wanted, properties)
            found: list[Hit] = []
            if query and (names := list(text_fields(properties))):
                body = search_request(query, names, depth, ("", ""))
                condition = vectors_.filter_query(wanted, properties) if wanted else {"match_all": {}}
                body["query"] = {"bool": {"must": [body["query"]], "filter": [condition]}}
                body["_source"] = {"excludes": list(self.vectors)}
                answer = ask("POST", f"{self._path}/_search", body)
                found, _ = vectors_.read_hits(answer.body, wanted, self.vectors, self.text, None)
        return fuse_ranks(near, found, limit=max(limit, 0))

    def _nearest(
        self, ask: Ask, field: str, question: Any, limit: int, wanted: Filter, properties: Mapping[str, Any]
    ) -> list[Hit]:
        """Ask for as many as it takes until enough of them fit the filter, which the server may round."""
        size = limit = min(limit, vectors_.MOST_HITS)
        opensearch = limit > 0 and is_opensearch(ask)
        condition = vectors_.filter_query(wanted, properties) if wanted else None
        while limit > 0:
            body = vectors_.question_request(field, question, size, condition, self.vectors, opensearch)
            answer = ask("POST", f"{self._path}/_search", body)
            hits, count = vectors_.read_hits(answer.body, wanted, self.vectors, self.text, self.vectors[field].metric)
            if len(hits) >= limit or count < size or size >= vectors_.MOST_HITS:
                return sorted(hits, key=lambda hit: (hit.rank, hit.id))[:limit]
            size = min(4 * size, vectors_.MOST_HITS)
        return []

    def _properties(self, ask: Ask) -> dict[str, Any]:
        """Return the mapping of the index's fields."""
        answer = ask("GET", f"{self._path}/_mapping", expected=(404,))
        if answer.status == 404:
            raise UsageError(f"{self.target()}: there is no such index. Run the plan first.")
        properties: dict[str, Any] = {}
        for each in msgspec.json.decode(answer.body).values():
            properties |= each["mappings"].get("properties", {})
        return properties

    @contextmanager
    def _open_reader(self) -> Iterator[Ask]:
        """Open a connection for questions.

        Raises:
            Misconfigured: an answer is not JSON.
        """
        http = self._connection()
        try:
            yield partial(self._ask, http)
        except msgspec.DecodeError as e:
            raise self._foreign_server() from e
        finally:
            http.close()

    def open(self, context: DestinationContext) -> None:
        self._once = context.guarantee is Guarantee.AT_MOST_ONCE
        self._http = self._connection()

    def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One request, or as many as the chunk's size needs; one is repeated only if the server asks to wait.

        Raises:
            ConnectionError: a request was sent and has no answer: it may have taken effect.
            ServerFault: the server failed over it: it may have taken effect.
        """
        deadline = time.monotonic() + WRITE_S
        outcomes: list[Outcome | None] = [None] * len(chunk)
        common_outcome: Outcome | None = None
        if self.vectors:
            read_vectors(chunk, self.vectors, outcomes)
        for rows in split_requests(self._writer.rows(chunk, outcomes)):
            if common_outcome is None:
                common_outcome = self._send(rows, outcomes, deadline)
            else:
                _record(rows, outcomes, common_outcome)
        return [outcome or Outcome.ok() for outcome in outcomes]

    # --- one request --------------------------------------------------------------------------------------------------

    def _send(self, rows: list[BulkRow], outcomes: list[Outcome | None], deadline: float) -> Outcome | None:
        """Send rows and set their outcomes; return an outcome that applies to all following rows too, or None."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return _record(rows, outcomes, Outcome.unavailable(f"{self.target()}: it is too slow"))
        if self._http is None:
            raise Misconfigured(f"{self.target()}: write before open")
        body = b"".join(row.lines for row in rows)
        try:
            answer = self._http.request("POST", self._bulk_path(), body, timeout_s=left_s, headers=_NDJSON)
        except NotSent as e:
            kind = "permanent" if e.permanent else "transient"
            return _record(rows, outcomes, Outcome(kind, f"{self.target()}: {e}", True))
        except Unanswered as e:
            return self._raise_or_record_unknown(
                rows, outcomes, ConnectionError(f"{self.target()}: it was sent, but {e}")
            )
        if answer.status == 200:
            return self._read_answer(rows, outcomes, answer)
        if answer.wait(deadline - 1):
            return self._send(rows, outcomes, deadline)
        return self._handle_refusal(rows, outcomes, answer, deadline)

    def _read_answer(self, rows: list[BulkRow], outcomes: list[Outcome | None], answer: Answer) -> Outcome | None:
        try:
            items = read_items(answer.body)
        except ValueError:  # the headers broke off, or another kind of server answered, which `check` reports
            lost = f"{self.target()}: its answer is not a bulk answer"
            return self._raise_or_record_unknown(rows, outcomes, ConnectionError(lost))
        if len(items) != len(rows):
            lost = f"{self.target()}: it answered {len(items)} of {len(rows)} documents"
            return self._raise_or_record_unknown(rows, outcomes, ConnectionError(lost))
        common_outcome = None
        for row, item in zip(rows, items, strict=True):
            outcome = outcomes[row.position] = item.outcome(self.target())
            common_outcome = outcome if outcome.universal else common_outcome
        return common_outcome

    def _handle_refusal(
        self, rows: list[BulkRow], outcomes: list[Outcome | None], answer: Answer, deadline: float
    ) -> Outcome | None:
        assert self._http is not None
        meaning = request_meaning(answer.status)
        why = self._why(self._http, answer)
        if meaning.kind == "unknown":
            return self._raise_or_record_unknown(
                rows, outcomes, ConnectionError(why) if meaning.universal else ServerFault(why)
            )
        if meaning.kind == "halve" and len(rows) > 1:
            middle = len(rows) // 2
            common_outcome = self._send(rows[:middle], outcomes, deadline)
            if common_outcome is not None:
                return _record(rows[middle:], outcomes, common_outcome)
            return self._send(rows[middle:], outcomes, deadline)
        kind = "permanent" if meaning.kind == "halve" else meaning.kind
        common_outcome = _record(rows, outcomes, Outcome(kind, f"{why}. {meaning.remedy}.", meaning.universal))
        return common_outcome if meaning.universal else None

    def _raise_or_record_unknown(
        self, rows: list[BulkRow], outcomes: list[Outcome | None], error: Exception
    ) -> Outcome | None:
        """Raise an error after which the chunk may be sent again; under at-most-once, set unknown outcomes instead, so
        that the outcomes of the chunk's other requests are kept."""
        if not self._once:
            raise error
        _record(rows, outcomes, Outcome("unknown", str(error)))
        return Outcome.unavailable(str(error))

    def _bulk_path(self) -> str:
        assert self._http is not None
        options = f"timeout={SHARD_S}s&filter_path={FILTER}"
        if self.refresh:
            options += f"&refresh={'wait_for' if self.refresh == 'wait_for' else 'true'}"
        return f"{self._http.path.rstrip('/')}{self._path}/_bulk?{options}"

    # --- the server ---------------------------------------------------------------------------------------------------

    def _connection(self) -> Http:
        auth = self.auth
        if isinstance(auth, str) and " " not in auth:
            auth = f"ApiKey {auth}"
        return Http(self.url, shown=self.target(), auth=auth, ca=self.ca)

    @property
    def _path(self) -> str:
        """Return the path of the index, below that of the server."""
        return f"/{quote(self.index, safe='')}"

    def _ask(self, http: Http, method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = ()) -> Answer:
        """Send a request that is not one of ``write``; any failure concerns the whole destination."""
        sent = None if body is None else msgspec.json.encode(body)
        try:
            answer = http.request(method, http.path.rstrip("/") + path, sent, timeout_s=CHECK_S, headers=_JSON)
        except NotSent as e:
            raise (Misconfigured if e.permanent else Unavailable)(f"{self.target()}: {e}") from e
        except Unanswered as e:
            raise Unavailable(f"{self.target()}: {e}") from e
        if "content-length" not in answer.headers and "transfer-encoding" not in answer.headers:
            raise Unavailable(f"{self.target()}: its answer broke off in the headers")
        if answer.status == 200 or answer.status in expected:
            return answer
        meaning = request_meaning(answer.status)
        why = self._why(http, answer) + (f". {meaning.remedy}." if meaning.remedy else "")
        raise (Unavailable if meaning.kind in ("transient", "unknown") else Misconfigured)(why)

    def _why(self, http: Http, answer: Answer) -> str:
        reason = http.redact(refusal(answer.body))
        why = f"{self.target()}: answered {answer.status} {answer.reason}".rstrip() + answer.asks_to_wait
        return why + (f" ({reason})" if reason else "")

    def _foreign_server(self) -> PermanentError:
        return Misconfigured(
            f"{self.target()}: what answers there is neither OpenSearch nor Elasticsearch. Correct the url.",
        )


class Elasticsearch(OpenSearch):
    """Writes documents into an index of Elasticsearch, which is made if it is not there.

    ``Elasticsearch("https://search.example.org:9200", "plays", auth="${ELASTIC_API_KEY}")`` is ``OpenSearch`` by the
    name of the other server: the two have one protocol as far as Ferryman uses it, and all that is said there holds,
    arguments included. Vectors need Elasticsearch 8 or later. A data stream is refused, for it takes new documents
    only: it has no versions, by which a late write is told from a newer one, and no delete by id.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    facts: ClassVar[Facts] = OpenSearch.facts._replace(tested=("Elasticsearch 7.17", "Elasticsearch 8.19"))


def text_fields(properties: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the names of the text fields of a mapping, except Ferryman's own."""
    for name, field in properties.items():
        if field.get("type") == "text":
            yield before + name
        if before or name != OBJECT:
            yield from text_fields(field.get("properties", {}), f"{before}{name}.")


def search_request(query: Query, names: Sequence[str], limit: int, mark: tuple[str, str]) -> dict[str, Any]:
    """Return the body of a search; no character of the query has a meaning of its own."""
    alternatives = [{"bool": {"must": [_any_of(_spellings(term, names)) for term in terms]}} for terms in query]
    return {
        "size": limit,
        "_source": ["title"],
        "query": _any_of(alternatives),
        "highlight": {
            "fields": {name: {} for name in names},
            "require_field_match": False,
            "number_of_fragments": 1,
            "fragment_size": SNIPPET_CHARACTERS,
            "pre_tags": [mark[0]],
            "post_tags": [mark[1]],
        },
    }


def _any_of(queries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bool": {"should": queries, "minimum_should_match": 1}}


def _spellings(term: Term, names: Sequence[str]) -> list[dict[str, Any]]:
    kind = "phrase_prefix" if term.is_prefix else "phrase"
    return [{"multi_match": {"query": each, "type": kind, "fields": list(names)}} for each in term.spellings()]


class ServerFault(Exception):
    """The server failed over a request; it may have taken effect."""


def _record(rows: list[BulkRow], outcomes: list[Outcome | None], outcome: Outcome) -> Outcome:
    for row in rows:
        outcomes[row.position] = outcome
    return outcome


def _is_pair(auth: Any) -> bool:
    return isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(each, str) for each in auth)
