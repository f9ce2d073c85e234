"""A destination in Apache Solr: a document a document."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from ferryman import limits, net
from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Facts, Outcome
from ferryman.destinations.http import Auth, Http
from ferryman.destinations.payload import shown_id
from ferryman.destinations.solr.client import CONFLICT, Collection, Reply, StoredVersion, told
from ferryman.destinations.solr.document import Names, document, encoded
from ferryman.errors import BadDocument, Misconfigured, PlanError

TIMEOUT_S: Final = 30.0
"""Time a request gets: a bulk of some MiB takes a second; a server that merges segments may need more."""

WRITE_S: Final = limits.SEND_TIMEOUT_S - TIMEOUT_S - 5
"""After this no more requests are begun in a ``write``, so that the last one may take all its time."""

ROUNDS: Final = 8
"""How often an id that somebody else writes at the same time is read again before it is left for later."""

COMMIT_WITHIN_MS: Final = 1000
"""What was sent can be found after this: soon for a user, and few commits for the server."""


class Solr(Destination):
    """Writes documents into a collection of Apache Solr, which must be there.

    ``Solr("http://localhost:8983/solr/plays")`` keeps a document an id: the fields as they are, ``id``, ``text`` (the
    raw bytes decoded as UTF-8; not set without raw), ``ferryman_hash_s`` and ``ferryman_sequence_l``. A list is a field
    with several values; an object, and what is deeper in a list, is JSON text; null is left out. Fields called as
    Solr's own (``_version_``, ``_root_`` …) are refused.

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
        hash_field, sequence_field: names of these fields.

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
        outcomes=tuple(told()),
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
    ) -> None:
        self.url = url.rstrip("/")
        self.names = Names(text, hash_field, sequence_field)
        self.commit_within_ms = commit_within_ms
        self.versions = versions
        self.auth = auth
        self.ca = ca
        self.transactional = versions is not None  # type: ignore[misc]  # of this one
        self.compares_sequences = versions is not None  # type: ignore[misc]
        self._http: Http | None = None
        if findings := list(self._findings()):
            raise PlanError([f"Solr({net.plain(url)!r}): {finding}" for finding in findings])

    def _findings(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://", "${")) or "?" in self.url:
            yield "the url is not an http or https URL of a collection: http://localhost:8983/solr/plays"
        if len({"id", *self.names}) < 4 or not all(self.names):
            yield "id, text, hash_field and sequence_field need names of their own"
        if self.versions == "":
            yield "versions is empty: name the chain's deleteVersionParam, or leave it out"
        if self.commit_within_ms is not None and self.commit_within_ms < 1:
            yield f"commit_within_ms={self.commit_within_ms}: give 1 or more, or None"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_collection"} | {"_http": None}

    def target(self) -> str:
        return net.plain(self.url)

    def check(self) -> None:
        """Is the collection there, with the fields and the chain that are needed? Changes nothing.

        Raises:
            TransientError, ConnectionError: it does not answer.
            PermanentError: it is not fit, or this user may not ask; says what to do.
        """
        http = self._connection()
        try:
            Collection(http, self.target(), self.names, TIMEOUT_S).check(self.versions is not None)
        finally:
            http.close()

    def highest_sequence(self) -> int | None:
        """Of the documents; with ``versions=`` of deletes, too."""
        http = self._connection()
        try:
            return Collection(http, self.target(), self.names, TIMEOUT_S).highest_sequence()
        finally:
            http.close()

    def open(self, context: DestinationContext) -> None:
        self._http = self._connection()
        self._collection = Collection(self._http, self.target(), self.names, TIMEOUT_S)

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
        outcomes: dict[int, Outcome] = {}
        writing = _Writing(self._collection, self._parameters(), self.versions, outcomes)
        for layer in self._layers(chunk, outcomes):
            writing.settle(layer)
        return [outcomes[position] for position in range(len(chunk))]

    def _layers(self, chunk: list[Delivery], outcomes: dict[int, Outcome]) -> list[list[UpdateRow]]:
        """Each id once in a layer; of several deliveries of one id, the older ones in earlier layers."""
        layers: list[list[UpdateRow]] = []
        seen: dict[str, int] = defaultdict(int)
        for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
            delivery = chunk[position]
            try:
                delivery.id.encode()
                body = document(delivery, self.names) if delivery.operation == "upsert" else {}
                encoded(body)
            except (BadDocument, UnicodeEncodeError) as e:
                outcomes[position] = Outcome.permanent(f"{shown_id(delivery)}: {e}")
                continue
            depth = seen[delivery.id]
            seen[delivery.id] += 1
            if depth == len(layers):
                layers.append([])
            layers[depth].append(UpdateRow(position, delivery, body))
        return layers

    def _parameters(self) -> dict[str, str]:
        return {} if self.commit_within_ms is None else {"commitWithin": str(self.commit_within_ms)}

    def _connection(self) -> Http:
        return Http(self.url, shown=self.target(), auth=self.auth, ca=self.ca)


class UpdateRow(NamedTuple):
    """A delivery of a chunk, with its place in it and the document that is made of it ({} of a delete)."""

    position: int
    delivery: Delivery
    body: dict[str, Any]


class _Writing:
    """One ``write``: rows, each of another id, are sent until each has an outcome.

    Args:
        parameters: of every update.
        outcomes: position -> outcome; filled.
    """

    def __init__(
        self, collection: Collection, parameters: dict[str, str], versions: str | None, outcomes: dict[int, Outcome]
    ) -> None:
        self._collection = collection
        self._parameters = parameters
        self._versions = versions
        self._outcomes = outcomes
        self._until = time.monotonic() + WRITE_S

    def settle(self, rows: list[UpdateRow]) -> None:
        """1. What has the collection? 2. Compare. 3. Send what is newer, naming what was seen. 4. What is not confirmed
        was seen by somebody else too: again from 1."""
        for _ in range(ROUNDS):
            known = self._collection.known(row.delivery.id for row in rows)  # 1
            rows = [row for row in rows if not self._is_settled(row, known.get(row.delivery.id))]  # 2
            rows = self._upserts([r for r in rows if r.body], known) + self._deletes(
                [r for r in rows if not r.body], known
            )  # 3
            if not rows:
                return
        for row in rows:
            self._outcomes[row.position] = Outcome.transient("other writers change this document at the same time")

    def _is_settled(self, row: UpdateRow, known: StoredVersion | None) -> bool:
        """Needs this row not be sent?"""
        if known is None:
            if row.body or self._versions is not None:
                return False
            self._outcomes[row.position] = Outcome.ok()  # nothing is there to delete
        elif row.delivery.hash == known.hash or row.delivery.sequence == known.sequence:
            self._outcomes[row.position] = Outcome.ok()
        elif row.delivery.sequence < known.sequence:
            self._outcomes[row.position] = Outcome.stale()
        else:
            return False
        return True

    def _upserts(self, rows: list[UpdateRow], known: dict[str, StoredVersion]) -> list[UpdateRow]:
        """Send documents; those that are still open."""
        waiting: list[UpdateRow] = []
        groups = [rows] if rows else []
        while groups:
            group = groups.pop(0)
            if time.monotonic() > self._until:
                self._too_late(group)
                continue
            body = b"[" + b",".join(encoded(self._conditional(row, known)) for row in group) + b"]"
            reply = self._collection.update(body, **self._parameters)
            rest = self._confirmed(group, reply)
            if reply.status in (200, CONFLICT):
                waiting += rest
            elif len(group) == 1 and rest:
                self._refused(group[0], reply)
            elif rest:
                # It stopped at the first one that it had not taken, or, in a cloud, at one of them.
                groups = [part for part in (rest[:1], rest[1:]) if part] + groups
        return waiting

    def _deletes(self, rows: list[UpdateRow], known: dict[str, StoredVersion]) -> list[UpdateRow]:
        """Send deletes; those that are still open."""
        if not rows:
            return []
        if self._versions is None:
            orders = [{"id": row.delivery.id, "_version_": known[row.delivery.id].version} for row in rows]
            body = b"{" + b",".join(b'"delete":' + msgspec.json.encode(order) for order in orders) + b"}"
            return self._answered(rows, self._collection.update(body, **self._parameters))
        waiting: list[UpdateRow] = []
        for row in rows:
            if time.monotonic() > self._until:
                self._too_late([row])
                continue
            parameters = {**self._parameters, self._versions: str(row.delivery.sequence)}
            reply = self._collection.update(msgspec.json.encode({"delete": {"id": row.delivery.id}}), **parameters)
            waiting += self._answered([row], reply)
        return waiting

    def _answered(self, rows: list[UpdateRow], reply: Reply) -> list[UpdateRow]:
        """Deletes after their answer; those that are still open."""
        rest = self._confirmed(rows, reply)
        if reply.status in (200, CONFLICT):
            return rest
        for row in rest:
            self._refused(row, reply)
        return []

    def _conditional(self, row: UpdateRow, known: dict[str, StoredVersion]) -> dict[str, Any]:
        """The document, to be taken only if what is there is what we have seen (-1: nothing)."""
        seen = known.get(row.delivery.id)
        return row.body | {"_version_": -1 if seen is None else seen.version}

    def _confirmed(self, rows: list[UpdateRow], reply: Reply) -> list[UpdateRow]:
        """Note what was taken; the rest."""
        rest = []
        for row in rows:
            if row.delivery.id in reply.taken:
                self._outcomes[row.position] = Outcome.ok()
            else:
                rest.append(row)
        return rest

    def _refused(self, row: UpdateRow, reply: Reply) -> None:
        id = row.delivery.id
        # Of the same trouble the same words: many of them in a row are the collection's trouble, not the documents'.
        said = reply.why.replace(f"[doc={id}] ", "").replace(f"document id {id} ", "document ")
        why = f"Solr refuses it ({reply.status}): {said}"
        self._outcomes[row.position] = Outcome.transient(why) if reply.status == 500 else Outcome.permanent(why)

    def _too_late(self, rows: list[UpdateRow]) -> None:
        for row in rows:
            self._outcomes[row.position] = Outcome.unavailable(
                f"the chunk was not done within {WRITE_S:g} s",
            )
