"""Documents of another index: OpenSearch, Elasticsearch, Solr.

An index changes while it is read, and a part of it may not answer. What is listed here is complete, or the listing says
that it is not: OpenSearch and Elasticsearch are read at one point in time, whose number of documents is known; Solr,
which has no such thing, in the order of its unique key, in which a document that stays is always met.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from ferryman.document import Document
from ferryman.errors import DeliveryError, Misconfigured, TransientError, Unavailable, UsageError
from ferryman.net import relative_paths, urls
from ferryman.net.http import Answer, Auth, Http, NotSent, Unanswered, check_auth
from ferryman.sources.base import Bookmark, Detect, Listed, Note, Source
from ferryman.sources.functions import MAX_DELETED

PIECES: Final = 4
"""Parts of an index that are read at once."""

MOST_PIECES: Final = 1024
"""Slices that OpenSearch and Elasticsearch allow for a point in time."""

SMALL: Final = 10_000
"""Documents up to which an index is read in one piece."""

PAGE_BYTES: Final = 8 << 20
"""Size of a page that is aimed at, as its answer comes: a worker holds one."""

FIRST_PAGE: Final = 100
MOST_HITS: Final = 5_000
"""Documents of the first page, and most of any: half of what a server allows (``index.max_result_window``)."""

KEEP_ALIVE: Final = "5m"
"""Time for which a server keeps a point in time after each request."""

TIMEOUT_S: Final = 120.0
"""Time for an answer."""

OWN: Final = "_ferryman"
OWN_IN_SOLR: Final = frozenset({"ferryman_hash_s", "ferryman_sequence_l", "ferryman_origin_s"})
"""Fields that Ferryman's destinations write beside a document's own: they are not read."""

_WHOLE: Final = ""
"""Bookmark with the number of documents, and the points in time that are still open."""

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_EXPIRED: Final = "search_context_missing_exception"


class IndexSource(Source):
    """Base of sources that read another index, see ``OpenSearch`` and ``Solr``."""

    _named: ClassVar[str] = ""

    def __init__(
        self,
        url: str,
        content: str | None,
        auth: Auth | None,
        ca: str | Path | None,
        pieces: int,
        may_be_empty: bool,
        prefix: str,
        detect: Detect,
        max_deleted: float,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        try:
            urls.check_login(url)
            self.auth = check_auth(auth)
        except TypeError:
            raise UsageError(f"{self._named}: auth= is neither (user, password) nor text.") from None
        except ValueError as e:
            raise UsageError(f"{self._named}: {e}.") from None
        if not url.startswith(("http://", "https://", "${")):
            raise UsageError(f"{self._named}({urls.redact(url)!r}): the url is not an http or https URL.")
        if not 1 <= pieces <= MOST_PIECES:
            raise UsageError(f"{self._named}(pieces={pieces}): give a number from 1 to {MOST_PIECES}.")
        self.url = url.rstrip("/")
        self.content = content
        self.ca = None if ca is None else relative_paths.absolute(str(ca))
        self.pieces = pieces
        self.may_be_empty = may_be_empty

    def __repr__(self) -> str:
        return f"{self._named}({self.place()!r})"

    def place(self) -> str:
        raise NotImplementedError

    @contextmanager
    def _server(self) -> Iterator[IndexServer]:
        auth = self.auth
        if isinstance(auth, str) and " " not in auth:
            auth = f"ApiKey {auth}"
        server = IndexServer(Http(self.url, shown=self.place(), auth=auth, ca=self.ca), self.place())
        try:
            yield server
        finally:
            server.close()

    def listing(self, partition: Slice | HashPart) -> Iterator[Listed | Document | Bookmark | Note]:
        if partition.remembered is not None:
            yield Bookmark(_WHOLE, partition.remembered)
            yield from map(Note, partition.notes)
        with self._server() as server:
            yield from self._documents(server, partition)

    def _documents(self, server: IndexServer, part: Any) -> Iterator[Listed | Document]:
        """Yield the documents of a part, page by page."""
        raise NotImplementedError

    def _check_count(self, count: int, bookmarks: Mapping[str, Any]) -> None:
        """
        Raises:
            TransientError: nothing is there, where something was.
        """
        known = (bookmarks.get(_WHOLE) or {}).get("count", 0)
        if not count and known and not self.may_be_empty:
            raise TransientError(
                f"{self.place()}: no documents, where {known} were known: was it emptied, or made again? If that is "
                "right, say may_be_empty=True"
            )

    def _document_of(self, id: str, fields: dict[str, Any]) -> Listed | Document:
        """Return a document of an index, whose content is one of its fields."""
        raw = None
        if self.content is not None and (text := fields.pop(self.content, None)) is not None:
            parts = text if isinstance(text, list) else [text]
            try:
                raw = b"\n".join(
                    each.encode() if isinstance(each, str) else msgspec.json.encode(each) for each in parts
                )
            except UnicodeEncodeError:
                why = f"{id}: field {self.content!r} holds half a character (a lone surrogate), so it is not text."
                return Listed(id, 0, refused=why)
        return Document.of(id, fields, raw)


class IndexServer:
    """Connection to an index's server."""

    def __init__(self, http: Http, shown: str) -> None:
        self._http = http
        self._shown = shown

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: Sequence[int] = (),
        form: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], int]:
        """Return the decoded answer, and its size in bytes; {} for a status that is ``expected``.

        Raises:
            Unavailable: the server or a part of it does not answer, or not now.
            UsageError, Misconfigured: it refuses the request: for somebody to correct.
        """
        sent = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": _JSON}
        if form is not None:
            sent, headers = urlencode(form).encode(), {"content-type": _FORM}
        try:
            answer = self._http.request(
                method, self._http.path.rstrip("/") + path, sent, timeout_s=TIMEOUT_S, headers=headers
            )
        except NotSent as e:
            raise (Misconfigured if e.permanent else Unavailable)(f"{self._shown}: {e}") from e
        except Unanswered as e:
            raise Unavailable(f"{self._shown}: {e}") from e
        if not answer.is_success:
            if answer.status in expected:
                return {}, 0
            raise self._error_of(answer)
        content = _decode_answer(answer.body)
        if not isinstance(content, dict):
            raise UsageError(f"{self._shown}: what answers there is not the server of an index. Correct the url.")
        return content, len(answer.body)

    def _error_of(self, answer: Answer) -> Exception:
        why = f"{self._shown}: answered {answer.status} {answer.reason}".rstrip()
        reason = self._http.redact(answer.body)
        why += f" ({reason})" if reason else ""
        if _EXPIRED in str(answer.body):
            return Unavailable(f"{self._shown}: its point in time has expired while it was read: it is listed again")
        if urls.is_retryable(answer.status):
            return Unavailable(why)
        return UsageError(f"{why}. Correct the url, the query, auth= or the rights of this user.")


def _decode_answer(body: bytes) -> Any:
    """Return an answer's JSON; None: it is not JSON.

    A server returns a document as it was given it, also with half a character or a number that no double can hold.
    Python's own library reads these; then only that document is refused, and not the whole page.
    """
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        with suppress(ValueError, RecursionError):
            return json.loads(body)
    return None


# OpenSearch and Elasticsearch.


class Slice(NamedTuple):
    """A part of one index at a point in time.

    Attributes:
        point: id of the point in time.
        order: field by which the server sorts: ``_shard_doc``, or ``_doc`` if the point is one of a single shard.
        query: the source's, with the filter of an alias.
        number, of: which slice of how many.
        remembered: for the first one: value of the bookmark.
        notes: for the first one: what people should know.
    """

    point: str
    order: str
    query: dict[str, Any]
    number: int = 0
    of: int = 1
    remembered: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


class OpenSearch(IndexSource):
    """Documents of an index of OpenSearch: ``OpenSearch("https://search.example.org:9200", "plays")``.

    Each document's id is its ``_id``, its fields are those of its ``_source``. An index whose ``_source`` is switched
    off or lacks fields is refused, since its documents cannot be read. What Ferryman's own destination adds
    (``_ferryman``) is left out.

    Each scan reads every index of the name at one point in time, which later changes do not touch, in slices that
    several workers read at once. The listing is complete, so deletes are seen. A shard that fails, a point in time
    that expires and fewer documents than the server has counted make it incomplete: it is listed again, or nothing is
    deleted in this scan. The same holds if there is nothing where documents were known. Points in time are closed by
    the next scan, or after five minutes; OpenSearch needs release 2.4.

    Args:
        url: of the server or cluster; ``${NAME}`` in it and in ``auth`` is filled in from the environment.
        index: name of an index or an alias (with its filter), several with commas between them, or a pattern.
        query: which documents, in the server's query language: ``{"term": {"kind": "play"}}``; None: all.
        content: field whose text becomes the raw bytes; it is left out of the fields then.
        auth: ``(user, password)``, an API key as text, or a whole header: ``"Bearer ${TOKEN}"``.
        ca: a PEM file with the authorities to trust; None: the system's.
        pieces: slices of each index, 1024 at most; an index of up to 10 000 documents is read in one.
        may_be_empty: whether no documents at all are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    _named = "OpenSearch"

    def __init__(
        self,
        url: str,
        index: str,
        query: Mapping[str, Any] | None = None,
        *,
        content: str | None = None,
        auth: Auth | None = None,
        ca: str | Path | None = None,
        pieces: int = PIECES,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = MAX_DELETED,
    ) -> None:
        self.index = index
        self.query = dict(query or {"match_all": {}})
        super().__init__(url, content, auth, ca, pieces, may_be_empty, prefix, detect, max_deleted)
        if not index or index.startswith("-") or set(index) & set(' "\\<|>/?#'):
            raise UsageError(f"{self._named}(…, {index!r}): give the name of an index.")
        self._open_points: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_points": []}

    def place(self) -> str:
        return f"{urls.strip_secrets(self.url)}/{self.index}"

    def check(self) -> None:
        """Check that the indices are there, and that their documents can be read whole.

        Raises:
            UsageError: they are not.
            Unavailable: the server does not answer.
        """
        with self._server() as server:
            for name, index in self._indices(server).items():
                source = index.get("mappings", {}).get("_source", {})
                if source.get("enabled") in (False, "false") or source.get("includes") or source.get("excludes"):
                    raise UsageError(
                        f"{self.place()}: the mappings of {name} do not keep the whole _source ({_text(source)}), so "
                        "that its documents cannot be read. Index them again from where they came."
                    )

    def _indices(self, server: IndexServer) -> dict[str, dict[str, Any]]:
        """Return name -> aliases, mappings and settings of each concrete index.

        Raises:
            UsageError: there is none.
        """
        found, _ = server.ask("GET", f"/{quote(self.index, safe='*,')}?flat_settings=true", expected=(404,))
        if not found:
            raise UsageError(f"{self.place()}: there is no such index.")
        return found

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Slice]:
        with self._server() as server:
            remembered = bookmarks.get(_WHOLE) or {}
            self._close(server, [*remembered.get("points", ()), *self._open_points])
            self._open_points = []
            indices = self._indices(server)
            counts = {name: self._count(server, name, self._query_of(name, index)) for name, index in indices.items()}
            self._check_count(sum(counts.values()), bookmarks)
            sorts_by_shard = self._has_shard_doc(server)
            slices = [
                each
                for name, index in indices.items()
                for each in self._slices(server, name, index, counts[name], sorts_by_shard)
            ]
        first = {"count": sum(counts.values()), "points": list(self._open_points)}
        notes = tuple(
            f"{name}: its _source is synthetic: lists come back sorted and without repeated values"
            for name, index in indices.items()
            if _is_synthetic(index)
        )
        return [slices[0]._replace(remembered=first, notes=notes), *slices[1:]]

    def _count(self, server: IndexServer, name: str, query: dict[str, Any]) -> int:
        answer, _ = server.ask("POST", f"/{quote(name, safe='')}/_count", {"query": query})
        self._raise_if_partial(answer)
        return int(answer["count"])

    def _query_of(self, name: str, index: Mapping[str, Any]) -> dict[str, Any]:
        """Return the query, with the filters of the aliases by which the index was named, as in a search: any of them
        lets a document through, and there are none if the index was named itself, too, or by an alias without one."""
        aliases = index.get("aliases", {})
        named = _named_by(self.index, {name, *aliases})
        filters = [aliases[each].get("filter") for each in sorted(named - {name})]
        if name in named or not filters or not all(filters):
            return self.query
        return {"bool": {"must": [self.query], "filter": {"bool": {"should": filters, "minimum_should_match": 1}}}}

    def _slices(
        self, server: IndexServer, name: str, index: Mapping[str, Any], count: int, sorts_by_shard: bool
    ) -> Iterator[Slice]:
        """Open the points in time of an index, and yield its slices."""
        query = self._query_of(name, index)
        if sorts_by_shard:
            pieces = self.pieces if count > SMALL else 1
            point = self._open(server, name)
            yield from (Slice(point, "_shard_doc", query, number, pieces) for number in range(pieces))
            return
        # An order that all shards have in common would have to be loaded into memory, as of _id: one by one instead.
        for shard in range(int(index["settings"]["index.number_of_shards"])):
            yield Slice(self._open(server, name, f"&preference=_shards:{shard}"), "_doc", query)

    def _open(self, server: IndexServer, name: str, options: str = "") -> str:
        path = f"/{quote(name, safe='')}/_search/point_in_time?keep_alive={KEEP_ALIVE}{options}"
        answer, _ = server.ask("POST", path)
        self._raise_if_partial(answer)
        point = str(answer["pit_id"])
        self._open_points.append(point)
        return point

    def _close(self, server: IndexServer, points: Sequence[str]) -> None:
        """Close points in time, of which some may have expired."""
        with suppress(DeliveryError, UsageError):
            if points:
                server.ask("DELETE", "/_search/point_in_time", {"pit_id": list(points)}, expected=(404,))

    def _has_shard_doc(self, server: IndexServer) -> bool:
        """Return whether the server sorts by ``_shard_doc``: from OpenSearch 3.3 on."""
        version = self._version(server)
        if version and version < (2, 4):
            raise UsageError(f"{self.place()}: it has no points in time: OpenSearch 2.4 or later is needed.")
        return version >= (3, 3)

    def _version(self, server: IndexServer) -> tuple[int, ...]:
        """Return major and minor number of the server's release; () if this user may not ask, or nobody."""
        answer, _ = server.ask("GET", "/", expected=(403, 404, 405))
        number = str(answer.get("version", {}).get("number", ""))
        return tuple(int(part) for part in number.split("-")[0].split(".")[:2] if part.isdecimal())

    def _documents(self, server: IndexServer, part: Slice) -> Iterator[Listed | Document]:
        """Yield the documents of a slice, page by page.

        Raises:
            Unavailable: a shard failed, or the point in time has expired.
            TransientError: fewer documents came than were counted.
        """
        body: dict[str, Any] = {
            "pit": {"id": part.point, "keep_alive": KEEP_ALIVE},
            "query": part.query,
            "sort": [{part.order: "asc"}],
            "size": FIRST_PAGE,
            "track_total_hits": True,
        }
        if part.of > 1:
            body["slice"] = {"id": part.number, "max": part.of}
        listed, total = 0, None
        while total is None or listed < total:
            answer, size = server.ask("POST", "/_search", body)
            self._raise_if_partial(answer)
            hits = answer["hits"]["hits"]
            total = answer["hits"]["total"]["value"] if total is None else total
            if not hits:
                break
            for hit in hits:
                yield self._document(hit)
            listed += len(hits)
            body |= {"search_after": hits[-1]["sort"], "track_total_hits": False, "size": _page(size, len(hits))}
        if listed < (total or 0):
            raise TransientError(f"{self.place()}: {listed} documents came, where the server had counted {total}")

    def _document(self, hit: Mapping[str, Any]) -> Listed | Document:
        source = hit.get("_source")
        if not isinstance(source, dict):
            return Listed(hit["_id"], 0, refused=f"{hit['_id']}: the index has not kept its _source.")
        source.pop(OWN, None)
        return self._document_of(hit["_id"], source)

    def _raise_if_partial(self, answer: Mapping[str, Any]) -> None:
        """
        Raises:
            Unavailable: a shard failed, or the time was not enough for all of them.
        """
        shards = answer.get("_shards", {})
        if failed := shards.get("failed"):
            reasons = {_text(each.get("reason", {}).get("reason", each)) for each in shards.get("failures", [])}
            why = f" ({'; '.join(sorted(reasons))[:300]})" if reasons else ""
            if any(_EXPIRED in _text(each) for each in shards.get("failures", [])):
                why = " (its point in time has expired)"
            raise Unavailable(f"{self.place()}: {failed} of {shards.get('total')} shards did not answer{why}")
        asked, answered = shards.get("total", 0), shards.get("successful", 0) + shards.get("skipped", 0)
        if answered < asked:  # a shard that no node has counts as neither
            raise Unavailable(f"{self.place()}: {asked - answered} of {asked} shards did not answer: no node has them")
        if answer.get("timed_out"):
            raise Unavailable(f"{self.place()}: its answer is partial: its time limit was too short")


def _named_by(expressions: str, names: Collection[str]) -> set[str]:
    """Return which of these names are meant by names and patterns with commas between them, of which those behind a
    minus are left out."""
    named: set[str] = set()
    for expression in expressions.split(","):
        pattern = expression.removeprefix("-").replace("[", "[[]")  # only * means something there
        found = {name for name in names if fnmatchcase(name, pattern)}
        named = named - found if expression.startswith("-") else named | found
    return named


class Elasticsearch(OpenSearch):
    """Documents of an index of Elasticsearch: ``Elasticsearch("https://search.example.org:9200", "plays")``.

    As ``OpenSearch``, of which it has the arguments; Elasticsearch needs release 7.12.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    _named = "Elasticsearch"

    def _open(self, server: IndexServer, name: str, options: str = "") -> str:
        answer, _ = server.ask("POST", f"/{quote(name, safe='')}/_pit?keep_alive={KEEP_ALIVE}{options}")
        self._raise_if_partial(answer)
        point = str(answer["id"])
        self._open_points.append(point)
        return point

    def _close(self, server: IndexServer, points: Sequence[str]) -> None:
        for point in points:
            with suppress(DeliveryError, UsageError):
                server.ask("DELETE", "/_pit", {"id": point}, expected=(404,))

    def _has_shard_doc(self, server: IndexServer) -> bool:
        version = self._version(server)
        if version and version < (7, 12):
            raise UsageError(f"{self.place()}: it has no points in time: Elasticsearch 7.12 or later is needed.")
        return True


# Solr.


class HashPart(NamedTuple):
    """A part of a collection: the documents whose key has this hash.

    Attributes:
        key: name of the unique key.
        copies: (source, target) of the schema's copies, which may have a ``*``.
        number, of: which part of how many.
        remembered, notes: as those of ``Slice``.
    """

    key: str
    copies: tuple[tuple[str, str], ...]
    number: int = 0
    of: int = 1
    remembered: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


class Solr(IndexSource):
    """Documents of a collection of Apache Solr: ``Solr("http://localhost:8983/solr/plays")``.

    Each document's id is its unique key, its fields are those that Solr returns: stored ones, and docValues. Left out
    are Solr's own (``_version_`` …), those that Ferryman's own destination adds, and targets of ``copyField``: the next
    index makes its own copies. Fields that are in the index but can not be read, since they are not stored, are named
    in each run; so are those whose values come sorted, since they are only in docValues.

    Each scan reads all, by a cursor in the order of the unique key, in parts by a hash of the key that several workers
    read at once. A document that stays while Solr is read is always met; one that comes meanwhile is met by the next
    scan. Partial results, and fewer documents than Solr has counted, make the listing incomplete: nothing is deleted
    in this scan. The same holds if there is nothing where documents were known. Only what is committed is seen.

    Args:
        url: of the collection, core or alias: ``…/solr/<name>``. ``${NAME}`` in it and in ``auth`` is filled in from
            the environment.
        query: which documents, in Solr's query language.
        content: field whose text becomes the raw bytes; it is left out of the fields then.
        auth: ``(user, password)``, or a whole header: ``"Bearer ${TOKEN}"``.
        ca: a PEM file with the authorities to trust; None: the system's.
        pieces: parts, if there are more than 10 000 documents.
        may_be_empty: whether no documents at all are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    _named = "Solr"

    def __init__(
        self,
        url: str,
        query: str = "*:*",
        *,
        content: str | None = None,
        auth: Auth | None = None,
        ca: str | Path | None = None,
        pieces: int = PIECES,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = MAX_DELETED,
    ) -> None:
        self.query = query
        super().__init__(url, content, auth, ca, pieces, may_be_empty, prefix, detect, max_deleted)

    def place(self) -> str:
        return urls.strip_secrets(self.url)

    def check(self) -> None:
        """Check that the collection is there, and that its handler adds no conditions of its own.

        Raises:
            UsageError: there is no such collection, it refuses the query, or it would hide documents.
            Unavailable: it does not answer.
        """
        with self._server() as server:
            key = self._schema(server)["uniqueKey"]
            answer, _ = self._select(server, key, {"rows": 0, "echoParams": "all"})
            hidden = answer["responseHeader"].get("params", {})
            for name in ("fq", "group", "collapse"):
                if hidden.get(name) not in (None, "false"):
                    raise UsageError(
                        f"{self.place()}: its handler /select adds {name}={_text(hidden[name])}, which hides "
                        "documents. Take it out of solrconfig.xml, or name a handler without it."
                    )

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[HashPart]:
        with self._server() as server:
            schema = self._schema(server)
            key = schema["uniqueKey"]
            answer, _ = self._select(server, key, {"rows": 0})
            count = answer["response"]["numFound"]
            self._check_count(count, bookmarks)
            copies = tuple((each["source"], each["dest"]) for each in schema.get("copyFields", ()))
            pieces = self.pieces if count > SMALL and self._can_split(server, key) else 1
            notes = tuple(self._notes(server, key, copies))
        parts = [HashPart(key, copies, number, pieces) for number in range(pieces)]
        return [parts[0]._replace(remembered={"count": count}, notes=notes), *parts[1:]]

    def _schema(self, server: IndexServer) -> dict[str, Any]:
        schema: dict[str, Any] = server.ask("GET", "/schema?wt=json")[0]["schema"]
        if not schema.get("uniqueKey"):
            raise UsageError(f"{self.place()}: its schema has no unique key, by which documents are known.")
        return schema

    def _can_split(self, server: IndexServer, key: str) -> bool:
        """Return whether Solr can filter by a hash of the key, for which the key must have docValues."""
        try:
            self._select(server, key, {"rows": 0, **_hash_filter(key, 0, 2)})
        except UsageError:
            return False
        return True

    def _notes(self, server: IndexServer, key: str, copies: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield what people should know of fields that cannot be read as they were written."""
        luke, _ = server.ask("GET", "/admin/luke?numTerms=0&wt=json", expected=(403, 404))
        names = [
            name
            for name in luke.get("fields", {})
            if name != key and not _is_own(name) and not any(_copied_from(name, *each) for each in copies)
        ]
        if not names:
            return
        listed = {name: luke["fields"][name].get("schema", "") for name in names}  # flags, such as "ITS-----OF"
        if lost := sorted(name for name, flags in listed.items() if "S" not in flags and "D" not in flags):
            yield f"fields that are not stored cannot be read, and are missing from each document: {', '.join(lost)}"
        if unordered := sorted(n for n, flags in listed.items() if "S" not in flags and "D" in flags and "M" in flags):
            yield (
                "fields with several values that are only in docValues come sorted and without repeated values: "
                f"{', '.join(unordered)}"
            )

    def _select(self, server: IndexServer, key: str, more: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """
        Raises:
            Unavailable: the results are partial.
        """
        form = {"q": self.query, "sort": f"{key} asc", "fl": "*", "wt": "json", "shards.tolerant": "false", **more}
        answer, size = server.ask("POST", "/select", form=form)
        if answer.get("responseHeader", {}).get("partialResults"):
            raise Unavailable(f"{self.place()}: its results are partial: a shard failed, or timeAllowed was not enough")
        if "response" not in answer:
            raise UsageError(f"{self.place()}: what answers there is not a collection of Solr. Correct the url.")
        return answer, size

    def _documents(self, server: IndexServer, part: HashPart) -> Iterator[Listed | Document]:
        """Yield the documents of a part, page by page.

        Raises:
            Unavailable: the results are partial.
            TransientError: fewer documents came than there were at any time.
        """
        form: dict[str, Any] = {"rows": FIRST_PAGE, "cursorMark": "*"}
        if part.of > 1:
            form |= _hash_filter(part.key, part.number, part.of)
        listed, fewest, mark = 0, None, ""
        while form["cursorMark"] != mark:
            mark = form["cursorMark"]
            answer, size = self._select(server, part.key, form)
            found = answer["response"]["numFound"]
            fewest = found if fewest is None else min(found, fewest)
            docs = answer["response"]["docs"]
            for doc in docs:
                yield self._document(part, doc)
            listed += len(docs)
            form |= {"cursorMark": answer["nextCursorMark"], "rows": _page(size, len(docs))}
        if listed < (fewest or 0):
            raise TransientError(f"{self.place()}: {listed} documents came, where Solr had at least {fewest}")

    def _document(self, part: HashPart, doc: Mapping[str, Any]) -> Listed | Document:
        fields = {
            name: value
            for name, value in doc.items()
            if name != part.key and not _is_own(name) and not _is_copy(name, doc, part.copies)
        }
        return self._document_of(str(doc[part.key]), fields)


def _hash_filter(key: str, number: int, of: int) -> dict[str, str]:
    return {"fq": f"{{!hash workers={of} worker={number}}}", "partitionKeys": key}


def _is_own(name: str) -> bool:
    """Return whether a field is Solr's own, or one that Ferryman's destination adds."""
    return (name.startswith("_") and name.endswith("_")) or name in OWN_IN_SOLR


def _is_copy(name: str, doc: Mapping[str, Any], copies: Sequence[tuple[str, str]]) -> bool:
    """Return whether a document's field is a copy: the target of a ``copyField``; if that is a pattern, of a field that
    the document has."""
    return any(
        (origin := _copied_from(name, source, target)) is not None and ("*" not in target or origin in doc)
        for source, target in copies
    )


def _copied_from(name: str, source: str, target: str) -> str | None:
    """Return the field that this one is a copy of; None if it is not a target of this ``copyField``."""
    if "*" not in target:
        return source if name == target else None
    before, _, after = target.partition("*")
    if len(name) <= len(before) + len(after) or not (name.startswith(before) and name.endswith(after)):
        return None
    return source.replace("*", name[len(before) : len(name) - len(after)])


def _page(size: int, documents: int) -> int:
    """Return how many documents to ask for next, by the bytes that these took."""
    return max(1, min(MOST_HITS, PAGE_BYTES * max(documents, 1) // max(size, 1)))


def _is_synthetic(index: Mapping[str, Any]) -> bool:
    mode = index.get("settings", {}).get("index.mapping.source.mode", "")
    return "synthetic" in (mode, index.get("mappings", {}).get("_source", {}).get("mode", ""))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
