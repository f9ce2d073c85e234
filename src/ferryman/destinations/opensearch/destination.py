"""A destination in a search engine: one document an id, with its delivery's hash and sequence in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote

import msgspec

from ferryman import limits, net, places
from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Facts, Guarantee, Outcome
from ferryman.destinations.http import Answer, Auth, Http, NotSent, Unanswered
from ferryman.destinations.opensearch import answers
from ferryman.destinations.opensearch.body import ID_BYTES, OBJECT, REQUEST_BYTES, BulkRow, BulkWriter, pieces
from ferryman.destinations.opensearch.index import GC_DELETES_S, Index
from ferryman.errors import Misconfigured, PermanentError, PlanError, Unavailable

WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Time a ``write`` has, with all its requests: after it nothing is sent any more, so nothing arrives late."""

SHARD_S: Final = 30
"""Time the server waits for a shard that is not there: less than we wait, so that it is the server who says so."""

CHECK_S: Final = 30.0
"""Time a question of ``check`` gets: making an index waits for its shards."""

_JSON: Final = {"content-type": "application/json"}
_NDJSON: Final = {"content-type": "application/x-ndjson"}

Refresh = bool | Literal["wait_for"]


class OpenSearch(Destination):
    """Writes documents into an index of OpenSearch, or of Elasticsearch, which is made if it is not there.

    ``OpenSearch("https://search.example.org:9200", "plays", auth=("ferryman", "${OPENSEARCH_PASSWORD}"))`` keeps one
    document an id. Its ``_id`` is the document's id, its source the document's fields, ``text`` (the raw bytes decoded
    as UTF-8; left out without raw, and where a step has made a field of that name), and ``_ferryman``: an object with
    ``hash``, ``sequence``, ``origin``, ``parent``, ``source``, ``version`` and ``route`` of its delivery. What is
    written can be searched after the index's next refresh.

    **Exactly-once.** A document and its delivery's hash are one write. Each write has the delivery's sequence as its
    external version (``external_gte``), so the server refuses what is older than what it has, a deleted document
    included; we call that *stale*. A delivery that comes again, after a kill or a lost answer, has the version that is
    there: the same bytes are written again, which changes nothing. Nothing is tried again inside of a write.

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
        ),
        outcomes=tuple(answers.told()),
        tested=("OpenSearch 2.19", "Elasticsearch 7.17", "Elasticsearch 8.19"),
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
    ) -> None:
        self.url = url.rstrip("/")
        self.index = index
        self.mappings = dict(mappings or {})
        self.text = text
        self.auth = auth
        self.refresh: Refresh = refresh
        self.settings = dict(settings or {})
        self.ca = None if ca is None else places.absolute(ca)
        self._http: Http | None = None
        self._writer = BulkWriter(text)
        self._once = False
        if findings := list(self._findings()):
            raise PlanError([f"OpenSearch({net.plain(url)!r}, {index!r}): {finding}" for finding in findings])

    def _findings(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://", "${")):
            yield "the url is not an http or https URL"
        if self.auth is not None and "@" in self.url:
            yield "the url and auth= both name a user: leave one of them out"
        if self.auth is not None and not (isinstance(self.auth, str) or _is_pair(self.auth)):
            yield "auth= is neither (user, password) nor text"
        if not self.index or self.index != self.index.lower() or set(self.index) & set(' "*\\<|,>/?#:'):
            yield 'an index has a name of lower-case characters, without spaces and without "*\\<|,>/?#:'
        elif self.index[0] in "-_+." or len(self.index.encode()) > 255:
            yield "the index's name begins with one of -_+. or is longer than 255 bytes"
        if self.refresh not in (True, False, "wait_for"):
            yield f"refresh={self.refresh!r}: give True, False or 'wait_for'"
        if self.text == OBJECT or OBJECT in self.mappings.get("properties", {}):
            yield f"{OBJECT} is reserved for Ferryman: give the field another name"
        if "mappings" in self.mappings or any(isinstance(v, Mapping) and "type" in v for v in self.mappings.values()):
            yield "mappings: put the fields under 'properties': mappings={'properties': {'title': {'type': 'text'}}}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_http": None}

    def __repr__(self) -> str:
        return f"OpenSearch({self.target()!r})"

    def target(self) -> str:
        return f"{net.plain(self.url)}/{self.index}"

    def check(self) -> None:
        """Make the index, or look whether it is fit; any number of drivers may do so at once.

        Raises:
            TransientError: no connection, no answer, or the server has no room for now.
            PermanentError: refused credentials, no right, mappings that contradict the plan's, a certificate that is
                not trusted, an environment variable that is not set.
        """
        http = self._connection()

        def ask(method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = ()) -> Answer:
            return self._ask(http, method, path, body, expected)

        try:
            Index(ask, self.index, self.mappings, self.settings, shown=self.target()).prepare()
        except msgspec.DecodeError as e:
            raise self._stranger() from e
        finally:
            http.close()

    def highest_sequence(self) -> int | None:
        """Of the documents: the server tells nobody what it remembers of deletes."""
        http = self._connection()
        index = f"/{quote(self.index, safe='')}"
        query = {"size": 0, "aggs": {"highest": {"max": {"field": f"{OBJECT}.sequence"}}}}
        try:
            self._ask(http, "POST", f"{index}/_refresh", None, ())
            answer = self._ask(http, "POST", f"{index}/_search", query, ())
            highest = msgspec.json.decode(answer.body)["aggregations"]["highest"]["value"]
        finally:
            http.close()
        return None if highest is None else int(highest)

    def open(self, context: DestinationContext) -> None:
        self._once = context.guarantee is Guarantee.AT_MOST_ONCE
        self._http = self._connection()

    def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One request, or as many as the chunk's size needs; none of them is repeated.

        Raises:
            ConnectionError: a request was sent and has no answer: it may have taken effect.
            ServerFault: the server failed over it: it may have taken effect.
        """
        give_up = time.monotonic() + WRITE_S
        outcomes: list[Outcome | None] = [None] * len(chunk)
        stop: Outcome | None = None
        for piece in pieces(self._writer.rows(chunk, outcomes)):
            if stop is None:
                stop = self._send(piece, outcomes, give_up)
            else:
                _note(piece, outcomes, stop)
        return [outcome or Outcome.ok() for outcome in outcomes]

    # --- one request --------------------------------------------------------------------------------------------------

    def _send(self, piece: list[BulkRow], outcomes: list[Outcome | None], give_up: float) -> Outcome | None:
        """Note what becomes of these rows; an outcome that is about all others too."""
        left_s = give_up - time.monotonic()
        if left_s <= 0:
            return _note(piece, outcomes, Outcome.unavailable(f"{self.target()}: it is too slow"))
        if self._http is None:
            raise Misconfigured(f"{self.target()}: write before open")
        body = b"".join(row.lines for row in piece)
        try:
            answer = self._http.request("POST", self._bulk_path(), body, timeout_s=left_s, headers=_NDJSON)
        except NotSent as e:
            kind = "permanent" if e.permanent else "transient"
            return _note(piece, outcomes, Outcome(kind, f"{self.target()}: {e}", True))
        except Unanswered as e:
            return self._unknown(piece, outcomes, ConnectionError(f"{self.target()}: it was sent, but {e}"))
        if answer.status == 200:
            return self._read_answer(piece, outcomes, answer)
        return self._refused(piece, outcomes, answer, give_up)

    def _read_answer(self, piece: list[BulkRow], outcomes: list[Outcome | None], answer: Answer) -> Outcome | None:
        try:
            items = answers.items(answer.body)
        except ValueError:  # broken off in its headers, or from somebody else: then `check` says so
            lost = f"{self.target()}: its answer is not a bulk answer"
            return self._unknown(piece, outcomes, ConnectionError(lost))
        if len(items) != len(piece):
            lost = f"{self.target()}: it answered {len(items)} of {len(piece)} documents"
            return self._unknown(piece, outcomes, ConnectionError(lost))
        stop = None
        for row, item in zip(piece, items, strict=True):
            outcome = outcomes[row.position] = item.outcome(self.target())
            stop = outcome if outcome.universal else stop
        return stop

    def _refused(
        self, piece: list[BulkRow], outcomes: list[Outcome | None], answer: Answer, give_up: float
    ) -> Outcome | None:
        assert self._http is not None
        meaning = answers.of_request(answer.status)
        why = self._why(self._http, answer)
        if meaning.kind == "unknown":
            return self._unknown(piece, outcomes, ConnectionError(why) if meaning.universal else ServerFault(why))
        if meaning.kind == "halve" and len(piece) > 1:
            middle = len(piece) // 2
            stop = self._send(piece[:middle], outcomes, give_up)
            if stop is not None:
                return _note(piece[middle:], outcomes, stop)
            return self._send(piece[middle:], outcomes, give_up)
        kind = "permanent" if meaning.kind == "halve" else meaning.kind
        stop = _note(piece, outcomes, Outcome(kind, f"{why}. {meaning.remedy}.", meaning.universal))
        return stop if meaning.universal else None

    def _unknown(self, piece: list[BulkRow], outcomes: list[Outcome | None], error: Exception) -> Outcome | None:
        """Under at-most-once what other requests have said stays said; else all of it may be sent again."""
        if not self._once:
            raise error
        _note(piece, outcomes, Outcome("unknown", str(error)))
        return Outcome.unavailable(str(error))

    def _bulk_path(self) -> str:
        assert self._http is not None
        options = f"timeout={SHARD_S}s&filter_path={answers.FILTER}"
        if self.refresh:
            options += f"&refresh={'wait_for' if self.refresh == 'wait_for' else 'true'}"
        return f"{self._http.path.rstrip('/')}/{quote(self.index, safe='')}/_bulk?{options}"

    # --- the server ---------------------------------------------------------------------------------------------------

    def _connection(self) -> Http:
        auth = self.auth
        if isinstance(auth, str) and " " not in auth:
            auth = f"ApiKey {auth}"
        return Http(self.url, shown=self.target(), auth=auth, ca=self.ca)

    def _ask(self, http: Http, method: str, path: str, body: Any, expected: tuple[int, ...]) -> Answer:
        """For ``check``: here any failure is about the whole destination."""
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
        meaning = answers.of_request(answer.status)
        why = self._why(http, answer) + (f". {meaning.remedy}." if meaning.remedy else "")
        raise (Unavailable if meaning.kind in ("transient", "unknown") else Misconfigured)(why)

    def _why(self, http: Http, answer: Answer) -> str:
        shown = http.shown(answers.refusal(answer.body))
        return f"{self.target()}: answered {answer.status} {answer.reason}".rstrip() + (f" ({shown})" if shown else "")

    def _stranger(self) -> PermanentError:
        return Misconfigured(
            f"{self.target()}: what answers there is neither OpenSearch nor Elasticsearch. Correct the url.",
        )


class ServerFault(Exception):
    """The server failed over a request; it may have taken effect."""


def _note(piece: list[BulkRow], outcomes: list[Outcome | None], outcome: Outcome) -> Outcome:
    for row in piece:
        outcomes[row.position] = outcome
    return outcome


def _is_pair(auth: Any) -> bool:
    return isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(each, str) for each in auth)
