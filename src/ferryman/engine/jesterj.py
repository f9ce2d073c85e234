"""Taking over a plan that was run in JesterJ: what its tables in Cassandra say becomes the first wave of a new state.

1. read the last status of each document at each output step, and its last hash
2. list and read the plan's sources here, in this process, to learn what has changed since
3. commit one wave: of each document that JesterJ knows a row of ``documents``, and an event for each destination

A kill before 3 leaves a state without a wave, into which the import can be done again.

JesterJ's hash cannot be computed anew: it is made of fields that only its scanner knows, times among them. So a
document counts as unchanged if it was modified before JesterJ last recorded it, or if an operator says so.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from ferryman import crash
from ferryman.document import Document
from ferryman.engine.commit import commit_wave
from ferryman.engine.driver import record_plan_changes
from ferryman.engine.settle import in_process, settle
from ferryman.engine.transform.reader import version_of
from ferryman.errors import BadDocument, UsageError
from ferryman.mirror.tables import DOC_HASH, STATUS, keyspace_of
from ferryman.net.cassandra import CassandraServers, Connection
from ferryman.plan import End, Plan, SourceNode, ends, sources_of
from ferryman.records.families import (
    FailedMember,
    MissingDelivery,
    Published,
    count_open_deliveries,
    encode_failures,
    encode_published,
)
from ferryman.records.rows import DOCUMENTS, ORDINAL_STEPS, Status, events, hasher, table_of
from ferryman.sources import DataFrame, Fetched, Listed, Log, Source
from ferryman.sources.base import id_of
from ferryman.state.state import State
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part, write_part

_ROWS: Final = 10_000
"""Documents in a file that is staged."""

_ENDED: Final = frozenset({Status.INDEXED, Status.DROPPED, Status.DEAD, Status.ERROR_DOC})


class Names(NamedTuple):
    """Names under which the plan ran in JesterJ.

    Attributes:
        scanners, steps: source -> scanner, destination -> output step, where they differ.
        strip: beginning of JesterJ's ids that the plan's ids do not have.
    """

    plan: str
    version: int
    scanners: Mapping[str, str]
    steps: Mapping[str, str]
    strip: str


class Known(NamedTuple):
    """A document that JesterJ knows.

    Attributes:
        hash: its last hash; "": there is none.
        seen: when JesterJ last recorded anything of it, ms since 1970.
        statuses: destination -> (status, message, ms since 1970).
    """

    hash: str
    seen: int
    statuses: dict[str, tuple[str, str, int]]


class Imported(NamedTuple):
    """Result of an import, as numbers of documents.

    Attributes:
        unchanged: have ended at every destination, and the first run sends nothing of them.
        unfinished: lack some destinations: the first run sends them there.
        changed: were modified since, or nobody can tell: the first run sends them again.
        failed: are failed or rejected at some destination, as they were.
        unlisted: are not at their source any more: the first run deletes them.
        families: have children, whose ids mean something else here: the first run sends all of them.
        unknown: listed, and JesterJ does not know them, or not any more.
        unreadable: could not be read now.
        example: an id that JesterJ knows and no source lists; "".
    """

    unchanged: int
    unfinished: int
    changed: int
    failed: int
    unlisted: int
    families: int
    unknown: int
    unreadable: int
    example: str


def import_jesterj(
    plan: Plan, root: StatePath, servers: CassandraServers, names: Names, *, trust: bool = False
) -> Imported:
    """Make the state of a plan from JesterJ's tables; nothing in Cassandra is changed.

    Args:
        trust: what JesterJ has delivered counts as unchanged, also where nobody can tell.

    Raises:
        UsageError: the state has run already, no keyspace is there, or a source is of a kind that has no listing here.
        Unavailable, Misconfigured: Cassandra cannot be read.
    """
    plan.freeze()
    sources = [node for node in sources_of(plan.nodes) if _check_source(node)]
    with servers.connection() as connection:  # 1
        known = {node.name: _read_known(connection, plan, node.name, names) for node in sources}
    state = State.take(root, plan)
    try:
        if state.wave:
            raise UsageError(f"{root}: this state has run already. Give another --state: an import begins a new one.")
        record_plan_changes(state, accept_changes=False)
        found = Importer(state, trust)
        for node in sources:
            found.add_source(node, *known[node.name])  # 2
        found.commit()  # 3
        return found.result()
    finally:
        state.release()


def _check_source(node: SourceNode) -> bool:
    if isinstance(node.source, Log | DataFrame):
        raise UsageError(
            f"source {node.name}: only sources that list documents by themselves can be taken over, not a "
            f"{type(node.source).__name__}. Import into a plan without it, and add it with a new version."
        )
    return True


def _read_known(connection: Connection, plan: Plan, source: str, names: Names) -> tuple[dict[str, Known], set[str]]:
    """Return the documents that JesterJ knows of a scanner, by the plan's ids, and those that have children."""
    scanner = names.scanners.get(source, source)
    entry = next(node.entry for node in sources_of(plan.nodes) if node.name == source)
    destinations = list(dict.fromkeys(end.destination for end in ends(plan.nodes)[entry]))
    keyspaces = {
        name: keyspace_of(scanner, names.plan, names.version, names.steps.get(name, name)) for name in destinations
    }
    there = {name: keyspace for name, keyspace in keyspaces.items() if connection.check_table(keyspace, STATUS)}
    if not there:
        texts = ", ".join(
            f"{keyspace} (of jj_{scanner}_{names.plan}_{names.version}_{names.steps.get(name, name)})"
            for name, keyspace in keyspaces.items()
        )
        raise UsageError(
            f"source {source}: there is no keyspace {texts}. A keyspace is named after scanner, plan, version and "
            "output step as in JesterJ: give --plan-name, --plan-version, --scanner and --step where they differ."
        )
    known: dict[str, Known] = {}
    parents: set[str] = set()
    for name, keyspace in there.items():
        query = (
            f"SELECT docid, parentid, origparentid, status, message, created FROM {keyspace}.{STATUS.name} "
            "PER PARTITION LIMIT 1"
        )
        for row in connection.iter_rows(query):
            if row.parentid is not None and row.parentid != row.docid:
                parents.add(_own_id(row.origparentid or row.parentid, names.strip))
                continue
            at = _milliseconds(row.created)
            id = _own_id(row.docid, names.strip)
            before = known.get(id, Known("", 0, {}))
            before.statuses[name] = (row.status, row.message or "", at)
            known[id] = before._replace(seen=max(before.seen, at))
    hashes = keyspace_of(scanner, names.plan, names.version)
    if connection.check_table(hashes, DOC_HASH):
        for row in connection.iter_rows(f"SELECT docid, dochash, created FROM {hashes}.{DOC_HASH.name} "
                                        "PER PARTITION LIMIT 1"):  # fmt: skip
            if (id := _own_id(row.docid, names.strip)) in known:
                known[id] = known[id]._replace(
                    hash=row.dochash or "", seen=max(known[id].seen, _milliseconds(row.created))
                )
    return known, parents


def _milliseconds(created: dt.datetime) -> int:
    """Return a time as the client gives it, without a zone, as ms since 1970."""
    return int(created.replace(tzinfo=dt.UTC).timestamp() * 1000)


def _own_id(id: str, strip: str) -> str:
    """Return the plan's id for one of JesterJ's. Those of files are URLs, percent-encoded."""
    rest = id.removeprefix(strip)
    return id_of(os.fsdecode(unquote_to_bytes(rest))) if strip.startswith("file:") and rest != id else rest


class Importer:
    """Builds the first wave of a state.

    Args:
        trust: what was delivered counts as unchanged.
    """

    def __init__(self, state: State, trust: bool) -> None:
        self._state, self._trust = state, trust
        self._documents: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._document_parts: list[Part] = []
        self._event_parts: list[Part] = []
        self._counts: Counter[str] = Counter()
        self._hashers: dict[tuple[str, End], Callable[[str, str, int], str]] = {}
        self._ends: dict[str, tuple[End, ...]] = ends(state.plan.nodes)
        self._example = ""

    def add_source(self, node: SourceNode, known: dict[str, Known], parents: set[str]) -> None:
        """Add what JesterJ knows of a source, compared with what the source has now."""
        self._counts["families"] += len(parents)
        for id in parents:
            known.pop(id, None)
        listed: set[str] = set()
        for id, fingerprint, read in _list_documents(node.source):
            listed.add(id)
            if id not in known:
                self._counts["unknown"] += id not in parents
                continue
            self._add_listed(node, id, known[id], fingerprint, read)
        for id in known.keys() - listed:
            self._example = min(filter(None, (self._example, id)))
            if any(status == Status.INDEXED for status, _, _ in known[id].statuses.values()):
                self._counts["unlisted"] += 1
                self._add(node, id, known[id], known[id].hash or "unknown", "", {})

    def _add_listed(
        self, node: SourceNode, id: str, known: Known, fingerprint: str, read: Callable[[], Document]
    ) -> None:
        reached = {end.destination for end in self._ends[node.entry]}
        statuses = {name: known.statuses.get(name, ("", "", 0))[0] for name in reached}
        if not any(status in _ENDED for status in statuses.values()):
            self._counts["unfinished"] += 1  # new to the state
            return
        try:
            document = read()
        except (BadDocument, OSError):
            self._counts["unreadable"] += 1
            return
        if not (self._trust or _is_older(document, known.seen)):
            self._counts["changed"] += 1
            self._add(node, id, known, known.hash or "unknown", "", {})
            return
        missing = {name: status for name, status in statuses.items() if status not in _ENDED}
        failed = any(status in (Status.DEAD, Status.ERROR_DOC) for status in statuses.values())
        self._counts["failed"] += failed
        self._counts["unfinished" if missing else "unchanged"] += bool(missing) or not failed
        self._add(node, id, known, version_of(node.source, document), fingerprint, missing)

    def _add(
        self, node: SourceNode, id: str, known: Known, version: str, fingerprint: str, missing: Mapping[str, str]
    ) -> None:
        """Add a document with its events.

        Args:
            missing: destination -> JesterJ's status, of those that the next run sends it to.
        """
        given, failures = [], []
        for end in self._ends[node.entry]:
            status, message, at = known.statuses.get(end.destination, ("", "", known.seen))
            route = "/".join(end.route)
            if status == Status.INDEXED:
                given.append(Published("", route, end.destination))
            elif end.destination in missing:
                failures.append(self._failure(end, 0, is_open=True))
                message, status = f"{status or 'no event'} in JesterJ", Status.RESTART
            elif status in (Status.DEAD, Status.ERROR_DOC):
                failures.append(self._failure(end, 1, is_open=False))
            if status in _ENDED or status == Status.RESTART:
                self._events.append(self._event(node, id, end, version, status, message, at))
        owed = count_open_deliveries(failures)
        self._documents.append(
            {
                "source": node.name, "document": id, "version": version, "revision": 1, "fingerprint": fingerprint,
                "operation": "upsert", "wave": 1, "given": encode_published(given), "due": 0 if owed else None,
                "owed": owed, "failed": encode_failures(failures), "held": None, "forced": False, "again": None,
            }
        )  # fmt: skip
        if len(self._documents) >= _ROWS:
            self._flush()

    @staticmethod
    def _failure(end: End, attempts: int, *, is_open: bool) -> FailedMember:
        route = "/".join(end.route)
        owed = [MissingDelivery(end.destination, route, attempts, is_open)]
        return FailedMember("", end.destination, route, "", owed)

    def _event(
        self, node: SourceNode, id: str, end: End, version: str, status: str, message: str, at: int
    ) -> dict[str, Any]:
        plan, route = self._state.plan, "/".join(end.route)
        key = (node.name, end)
        if key not in self._hashers:
            self._hashers[key] = hasher(plan.name, plan.version, node.name, end.destination, route, "upsert")
        return {
            "source": node.name, "document": id, "parent": None, "origin": id, "version": version, "revision": 1,
            "operation": "upsert", "route": route, "branches": "", "destination": end.destination,
            "delivery_hash": self._hashers[key](id, version, 1), "status": str(status),
            "message": f"import-jesterj: {message}" if message else "import-jesterj", "attempt": 1,
            "created": dt.datetime.fromtimestamp(at / 1000, dt.UTC),
        }  # fmt: skip

    def _flush(self) -> None:
        state = self._state
        if self._documents:
            columns = {f.name: [row[f.name] for row in self._documents] for f in DOCUMENTS}
            table = table_of(DOCUMENTS, len(self._documents), **columns)
            self._document_parts.append(write_part(state.documents.folder, table, epoch=state.epoch))
        if self._events:
            table = events(self._events, wave=1, ordinal=ORDINAL_STEPS)
            self._event_parts.append(write_part(state.ledger.folder, table, epoch=state.epoch))
        self._documents, self._events = [], []

    def commit(self) -> None:
        """Commit everything that was added as the state's first wave."""
        self._flush()
        crash.point("import.staged")
        new = sum(part.rows for part in self._document_parts)
        commit_wave(self._state, 1, documents=self._document_parts, ledger=self._event_parts, new=new)
        settle(self._state, 1, in_process)

    def result(self) -> Imported:
        """Return what was imported."""
        numbers = {name: self._counts[name] for name in Imported._fields if name != "example"}
        return Imported(**numbers, example=self._example)


def _list_documents(source: Source) -> Iterator[tuple[str, str, Callable[[], Document]]]:
    """Yield id, fingerprint, and a function that reads the content, of every document of a source now."""
    source.check()
    for partition in source.partitions():
        for each in source.listing(partition):
            if isinstance(each, Document):
                yield source.full_id(each.id), "", lambda document=each: document  # type: ignore[misc]
            elif isinstance(each, Listed) and not each.refused:
                yield source.full_id(each.id), each.fingerprint, lambda listed=each: _read(source, listed)  # type: ignore[misc]


def _read(source: Source, listed: Listed) -> Document:
    found = source.read(listed)
    if isinstance(found, Fetched):
        return found.document
    if not isinstance(found, Document):
        raise BadDocument(f"{listed.id}: its source says that it is unchanged")
    return found


def _is_older(document: Document, seen_ms: int) -> bool:
    """Return whether a document was modified before a time; False: after it, or it does not say."""
    try:
        modified = dt.datetime.fromisoformat(str(document.get("modified", "")))
    except ValueError:
        return False
    modified = modified if modified.tzinfo else modified.replace(tzinfo=dt.UTC)
    return modified.timestamp() * 1000 <= seen_ms
