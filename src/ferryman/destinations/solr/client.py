"""What is asked of a collection of Solr, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from ferryman import limits, net
from ferryman.destinations.http import Answer, Http, NotSent, Unanswered
from ferryman.destinations.solr.document import Names
from ferryman.errors import Misconfigured, PermanentError, Unavailable

GET_BYTES: Final = limits.MIB
"""Of ids in one request: half of what Solr takes as a form by default (``formdataUploadLimitInKB``)."""

CHAIN: Final = "DocBasedVersionConstraintsProcessorFactory"

LOG_ACTIVE: Final = 3
"""State of a transaction log that has been read to its end."""

THESE: Final = (400, 413, 500)
"""Statuses that speak of the documents that were sent."""

CONFLICT: Final = 409

_FOR_A_PERSON: Final = {
    301: "correct the URL",
    302: "correct the URL",
    401: "correct auth=",
    403: "correct auth=, or what this user may do",
    404: "make the collection, or correct the URL",
    405: "correct the URL",
    407: "correct the URL",
}
"""Statuses that waiting does not fix, and what does."""

_Result = TypeVar("_Result")


def told() -> Iterator[tuple[str, str]]:
    """(Answer, what becomes of the deliveries), for the reference."""
    yield "200, the id among what was taken", "ok"
    yield "the same hash is there", "ok"
    yield "a higher sequence is there", "stale"
    yield "409, or 200 without the id", "somebody was faster: it is read and compared again"
    yield "400, 413", "permanent, once it stands alone, with Solr's words"
    yield "500", "transient, once it stands alone"
    for status, remedy in _FOR_A_PERSON.items():
        yield str(status), f"permanent, about all: {remedy}"
    yield ", ".join(map(str, net.NOT_TAKEN)), "transient, about all"
    yield "any other, no connection, no answer", "transient, about all; it may have taken effect, and is sent again"


class StoredVersion(NamedTuple):
    """What the collection has of an id. A tombstone has no hash."""

    sequence: int
    hash: str | None
    version: int
    """Solr's own number of this state of the document: a write that names it is refused if it has changed."""


class Reply(NamedTuple):
    """What became of an update: 200, 409 (somebody was faster, or it is too old) or one of ``THESE``.

    Attributes:
        taken: ids that took effect, as far as Solr tells; also of an update that it refused in the end.
        why: Solr's words.
    """

    status: int
    taken: set[str]
    why: str


class Collection:
    """A collection, core or alias, by its URL."""

    def __init__(self, http: Http, shown: str, names: Names, timeout_s: float) -> None:
        self._http = http
        self._shown = shown
        self._names = names
        self._timeout_s = timeout_s
        self._path = http.path.rstrip("/")
        self._awake_at = 0
        """Number of the connection by which it was seen to be awake."""

    def check(self, versions: bool) -> None:
        """Is it there, and has it what is needed?

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            PermanentError: it is not fit; says what to do.
        """
        unique = self._json(self._ask("GET", "/schema/uniquekey")).get("uniqueKey")
        if unique != "id":
            raise self._unfit(f"its unique key is {unique!r}: Ferryman needs id")
        for name in self._names[1:]:
            path = f"/schema/fields/{quote(name, safe='')}?includeDynamic=true"
            if self._request("GET", path).status == 404:
                raise self._unfit(f"its schema has no field {name}: add it, or a dynamic field that it falls under")
        if versions:
            config = self._ask("GET", "/config/updateRequestProcessorChain").body
            if CHAIN.encode() not in config:
                raise self._unfit(f"no update chain of it has a {CHAIN}: add one, or leave versions= out")

    def known(self, ids: Iterable[str]) -> dict[str, StoredVersion]:
        """What is there of these ids now, committed or not (a real-time get)."""
        self._awake()
        found: dict[str, StoredVersion] = {}
        names = self._names
        for form in self._forms(ids):
            told = self._json(self._ask("POST", "/get", form, _FORM))
            # Of one id Solr answers {"doc": …}, of several {"response": …}.
            for doc in told["response"]["docs"] if "response" in told else filter(None, [told.get("doc")]):
                sequence, digest = _one(doc.get(names.sequence)), _one(doc.get(names.hash))
                found[doc["id"]] = StoredVersion(
                    -1 if sequence is None else int(sequence), digest, int(doc["_version_"])
                )
        return found

    def update(self, body: bytes, **parameters: str) -> Reply:
        """Send documents or deletes.

        Raises:
            Unavailable: it was not sent, or not taken.
            ConnectionError: it may have taken effect, or not.
            Misconfigured: for an operator to fix.
        """
        self._awake()
        query = urlencode({"versions": "true", "failOnVersionConflicts": "false", "wt": "json", **parameters})
        answer = self._request("POST", f"/update?{query}", body, _JSON)
        if answer.fine or answer.status in (CONFLICT, *THESE):
            told = self._json(answer)
            why = self._http.shown(str(told.get("error", {}).get("msg", answer.reason)))
            self._about_the_collection(why)
            pairs = [*told.get("adds", ()), *told.get("deletes", ())]
            return Reply(200 if answer.fine else answer.status, set(pairs[::2]), why)
        raise self._failed(answer)

    def highest_sequence(self) -> int | None:
        """Of the documents that are there, and of deletes that leave one. Commits what is not committed yet.

        Raises:
            TransientError, ConnectionError: it cannot be asked.
            Misconfigured: for an operator to fix.
        """
        self._awake()
        self._ask("POST", "/update?commit=true&wt=json", b"{}", _JSON)
        field = self._names.sequence
        form = urlencode(
            {"q": "*:*", "rows": "0", "wt": "json", "stats": "true", "stats.field": f"{{!max=true}}{field}"}
        )
        told = self._json(self._ask("POST", "/select", form.encode(), _FORM))
        highest = (told["stats"]["stats_fields"].get(field) or {}).get("max")
        return None if highest is None else int(highest)

    def _awake(self) -> None:
        """A server that stands alone takes writes while it reads its transaction log after a crash, and does not see
        what it has not read yet: an older version would replace a newer one. In a cloud it waits by itself."""
        self._sent(lambda: self._http.connect(self._timeout_s))
        connection = self._http.connections
        if connection == self._awake_at:
            return
        # A core that is still loading calls its log read: one that answers has begun to read it.
        self._ask("POST", "/get", urlencode({"id": ""}).encode(), _FORM)
        base, _, name = self._path.rpartition("/")
        log = f"solr.core.{unquote(name)}:TLOG.state"
        answer = self._request("GET", f"/admin/metrics?{urlencode({'key': log, 'wt': 'json'})}", base=base)
        state = (
            self._json(answer).get("metrics", {}).get(log) if answer.fine else None
        )  # None: it is not for us to know
        if connection != self._http.connections:
            raise Unavailable(f"{self._shown}: it closed the connection while it was asked")
        if state not in (None, LOG_ACTIVE):
            raise Unavailable(f"{self._shown}: it has not read its transaction log to the end yet")
        self._awake_at = connection

    # --- requests -----------------------------------------------------------------------------------------------------

    def _forms(self, ids: Iterable[str]) -> Iterable[bytes]:
        names = self._names
        head = urlencode({"wt": "json", "fl": f"id,_version_,{names.sequence},{names.hash}"})
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
        if not answer.fine:
            raise self._failed(answer)
        return answer

    def _request(
        self, method: str, path: str, body: bytes | None = None, kind: str = "", *, base: str | None = None
    ) -> Answer:
        headers = {"content-type": kind} if kind else {}
        path = (self._path if base is None else base) + path
        return self._sent(lambda: self._http.request(method, path, body, timeout_s=self._timeout_s, headers=headers))

    def _sent(self, send: Callable[[], _Result]) -> _Result:
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
            found = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            found = None
        if not isinstance(found, dict):
            if answer.fine:
                raise self._unfit("its answer is not JSON: is this the URL of a collection?")
            return {"error": {"msg": self._http.shown(answer.body) or answer.reason}}
        return found

    # --- what it means ------------------------------------------------------------------------------------------------

    def _failed(self, answer: Answer) -> Exception:
        said = str(self._json(answer).get("error", {}).get("msg", "")) if answer.body[:1] == b"{" else ""
        why = f"{self._shown}: answered {answer.status} {answer.reason}".rstrip()
        why += f" ({self._http.shown(said)})" if said else ""
        if remedy := _FOR_A_PERSON.get(answer.status):
            return Misconfigured(f"{why}. To fix it: {remedy}; then run again.")
        return Unavailable(why) if answer.status in net.NOT_TAKEN else ConnectionError(why)

    def _about_the_collection(self, why: str) -> None:
        """Some words are no document's fault, though they come with a document's status."""
        if "must specify doc version param" in why:
            raise self._unfit(f"its update chain compares versions ({why}): say versions=, with this parameter's name")
        for name in self._names[1:]:
            if f"unknown field '{name}'" in why:
                raise self._unfit(f"its schema has no field {name}: add it, or a dynamic field that it falls under")

    def _unfit(self, why: str) -> PermanentError:
        return Misconfigured(f"{self._shown}: {why}; then run again.")


_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"


def _one(value: Any) -> Any:
    """A field's value; a schema that was guessed makes lists of all."""
    return value[0] if isinstance(value, list) and value else value
