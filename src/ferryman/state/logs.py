"""Positions of a plan in its logs: application transactions of the outbox, committed with the waves that reached them.

A transaction number of 0 means none, so places are stored plus one. Positions belong to a particular log: if it is
deleted and created again, the new log's positions are different ones, even for partitions that it does not have yet. A
source that reads several logs (a join) stores the positions of each log under its name; any other source stores them
under "".

The module also finds out which exports and inputs of keyed nodes are unfinished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.plan import Plan, SourceNode, logs_read
from ferryman.plan.structure import Structure
from ferryman.records.families import was_published_sql
from ferryman.records.keys import lanes, place_id, place_of
from ferryman.records.rows import DOCUMENTS
from ferryman.sources.log import CombinedLog, Log, Positions
from ferryman.state.outbox import has_exports, pending_rows
from ferryman.state.state import READ, State, id_of
from ferryman.storage import parquet
from ferryman.storage.parquet import read_part
from ferryman.storage.query import connect, quote, quote_list

RANGES: Final = "ferryman.ranges"
"""Application id: the last wave that added rows about ranges to the ledger; see ``records.rows.RANGE``."""

Partitions = Mapping[str, Iterable[str]]
"""Name of a log -> its partitions."""


class LogHead(NamedTuple):
    """Entry at which a log waits, and the attempts to process it so far."""

    place: int
    entry: int
    """Number made of its id, see ``number_of_text``, since several entries may share a place."""
    attempt: int
    transient: int
    since: int
    """Time of its first transient error, µs since 1970; 0: it had none."""
    replay: int
    """Replay number of the log, see ``LogPositions.replay``: when read again, the entry is another revision."""


class StoppedEntry(NamedTuple):
    """Entry that a plan stops before, since it failed permanently. It is recorded by the wave that ended before it, and
    removed by the wave that gets past it."""

    place: int
    entry: int
    """Number made of its id, see ``number_of_text``."""
    wave: int
    """Wave whose events include the failure, about the entry's document; 0: nothing stops the plan."""
    reason: int
    """Number made of the failure's text: the same failure is not recorded again. 0: the next one is recorded."""
    passed: int = 0
    """1: an operator has the plan pass the entry, which then counts as failed."""
    replay: int = 0
    """Replay number of the log, see ``LogPositions.replay``."""


NOTHING_STOPS: Final = StoppedEntry(0, 0, 0, 0)


class LogPositions:
    """Positions of one source of a state."""

    def __init__(self, state: State, source: str) -> None:
        self._outbox = state.outbox
        self._documents = state.documents
        self._name = source

    def places(self, identities: Mapping[str, str], logs: Partitions) -> dict[str, int]:
        """Return partition -> next place to read, for partitions with a stored position; none for a log that was
        replaced.

        Args:
            identities: see ``sources.Log``.
        """
        prefixes = {name: self._position_prefix(name, self._current_log(name, identities)) for name in logs}
        known = {
            p: self._outbox.transaction(f"{prefixes[name]}{p}") for name, partitions in logs.items() for p in partitions
        }
        return {partition: number - 1 for partition, number in known.items() if number}

    def all_places(self) -> dict[str, int]:
        """Return partition -> next place to read for all stored partitions, without asking the logs which partitions
        they have."""
        prefix = f"{self._key('position')}/"
        return {
            key.removeprefix(prefix).split("/", 2)[2]: number - 1 for key, number in self._stored_positions().items()
        }

    @property
    def was_read(self) -> bool:
        """Return whether the source was ever read."""
        return self.entries_read > 0

    @property
    def entries_read(self) -> int:
        """Number of entries of this source that were processed."""
        return self._outbox.transaction(self.entries_read_id)

    @property
    def entries_read_id(self) -> str:
        """Application id of ``entries_read``."""
        return f"{READ}{self._name}"

    @property
    def replay(self) -> int:
        """Number of times the source was reset to another place; entries get this number plus one as their revision."""
        return self._outbox.transaction(self._key("replay"))

    def next_replay(self, log: Log) -> int:
        """Return the replay number for reading a log from another place, so that its entries get revisions never used
        before."""
        paths, columns = self._documents.paths(), pa.schema([DOCUMENTS.field("source"), DOCUMENTS.field("revision")])
        rows = parquet.scan(paths, columns).to_table(filter=pc.field("source") == self._name) if paths else None
        highest = pc.max(rows["revision"]).as_py() if rows is not None else None
        highest = (highest or 0) // limits.REVISIONS_PER_REPLAY + 1 if log.repeats_ids else highest
        return max(self.replay + 1, highest or 0)

    def replaced_logs(self, identities: Mapping[str, str]) -> list[str]:
        """Return the names of those logs that are not the ones the stored positions belong to.

        Args:
            identities: see ``sources.Log``.
        """
        return [
            name
            for name, identity in identities.items()
            if identity and self._recorded_log(name) not in (0, number_of_text(identity))
        ]

    def missing_logs(self, identities: Mapping[str, str]) -> list[str]:
        """Return the names of those logs with stored positions that do not exist now.

        Args:
            identities: see ``sources.Log``.
        """
        return [name for name, identity in identities.items() if not identity and self._recorded_log(name)]

    def has_followed_move(self, moved: str) -> bool:
        """Return whether this move of the reader is the last one that the plan followed."""
        return self._outbox.transaction(self._key("moved")) == number_of_text(moved)

    def transactions(
        self,
        identities: Mapping[str, str],
        logs: Partitions,
        positions: Mapping[str, int],
        read: int,
        replay: int,
        moved: str = "",
    ) -> dict[str, int]:
        """Return the transactions that a commit stores for a source that reached these positions.

        Args:
            identities: identities of its logs; "": unknown at the moment, so the recorded one is kept.
            moved: token of the reader's last move, which these positions follow.
        """
        found = {self.entries_read_id: read, self._key("replay"): replay}
        if moved:
            found[self._key("moved")] = number_of_text(moved)
        for name, partitions in logs.items():
            log = self._current_log(name, identities)
            prefix = self._position_prefix(name, log)
            found |= {f"{prefix}{partition}": positions[partition] + 1 for partition in partitions}
            if log:
                found[f"{self._key('log')}/{name}"] = log
        return found

    def head(self, partition: str) -> LogHead | None:
        """Return the entry at which the log last waited, with its attempts; None if it never waited. The entry may have
        been processed since."""
        prefix = self._head_prefix(partition)
        if not self._outbox.transaction(f"{prefix}attempt"):
            return None
        return LogHead(*(self._outbox.transaction(f"{prefix}{field}") for field in LogHead._fields))

    def head_transactions(self, partition: str, head: LogHead) -> dict[str, int]:
        """Return the transactions that a commit stores for a waiting entry."""
        prefix = self._head_prefix(partition)
        return {f"{prefix}{field}": number for field, number in head._asdict().items()}

    def stopped(self) -> dict[str, StoppedEntry]:
        """Return partition -> the entry that the plan stops before."""
        self._outbox.transaction(self.entries_read_id)  # reads the log, if nobody has
        prefix, last = f"{self._key('stop')}/", "/wave"
        names = [key for key, wave in self._outbox.log.transactions.items() if key.startswith(prefix) and wave]
        partitions = [key.removeprefix(prefix).removesuffix(last) for key in names if key.endswith(last)]
        return {partition: found for partition in partitions if (found := self._stop(partition)).wave}

    def stop_transactions(self, partition: str, entry: StoppedEntry) -> dict[str, int]:
        """Return the transactions that a commit stores for an entry that the plan stops before; ``NOTHING_STOPS``: for
        none."""
        return {f"{self._key('stop')}/{partition}/{field}": number for field, number in entry._asdict().items()}

    def _stop(self, partition: str) -> StoppedEntry:
        prefix = f"{self._key('stop')}/{partition}/"
        return StoppedEntry(*(self._outbox.transaction(f"{prefix}{field}") for field in StoppedEntry._fields))

    def retry_transactions(self, partition: str, *, passed: bool) -> dict[str, int]:
        """Return the transactions with which the plan tries the entry that it stops before again, with attempts from
        zero.

        Args:
            passed: pass the entry if it fails again.
        """
        attempt = {f"{self._head_prefix(partition)}attempt": 0}
        entry = self._stop(partition)._replace(reason=0, passed=int(passed))
        return {**attempt, **self.stop_transactions(partition, entry)}

    def all_transactions(self) -> dict[str, int]:
        """Return all transactions of the source, for a state that continues from this one."""
        if not self.was_read:
            return {}
        logs = {key: n for key, n in self._outbox.log.transactions.items() if key.startswith(f"{self._key('log')}/")}
        moved = {key: n for key in [self._key("moved")] if (n := self._outbox.transaction(key))}
        return {
            **self._stored_positions(),
            **logs,
            **moved,
            self.entries_read_id: self.entries_read,
            self._key("replay"): self.replay,
        }

    def _stored_positions(self) -> dict[str, int]:
        """Return application id -> number for each position of the logs as recorded now."""
        prefix = f"{self._key('position')}/"
        found = {}
        for key, number in self._outbox.log.transactions.items():
            if key.startswith(prefix):
                name, log, _ = key.removeprefix(prefix).split("/", 2)
                if int(log, 16) == self._recorded_log(name):
                    found[key] = number
        return found

    def _recorded_log(self, name: str) -> int:
        """Return the number of the log of this name that the positions belong to; 0 if unknown."""
        return self._outbox.transaction(f"{self._key('log')}/{name}")

    def _current_log(self, name: str, identities: Mapping[str, str]) -> int:
        """Return the number of the log that exists now; the recorded number if the log does not report an identity."""
        identity = identities.get(name, "")
        return number_of_text(identity) if identity else self._recorded_log(name)

    def _key(self, what: str) -> str:
        return f"ferryman.{what}.{self._name}"

    def _head_prefix(self, partition: str) -> str:
        return f"{self._key('head')}/{partition}/"

    def _position_prefix(self, name: str, log: int) -> str:
        """Return the prefix of the application ids of a log's positions."""
        return f"{self._key('position')}/{name}/{log:x}/"


def next_places(
    kept: LogPositions | None, log: Log, identities: Mapping[str, str], begin: Positions, end: Positions
) -> dict[str, int]:
    """Return the next place to read for each partition of a log; the first place if no position is known.

    Args:
        kept: None: the plan has no state yet.
    """
    known = {} if kept is None else kept.places(identities, {name: log.partitions_of(name, end) for name in identities})
    return {partition: known.get(partition, begin.get(partition, last)) for partition, last in end.items()}


def reader_name(state: State, source: str) -> str:
    """Return the name by which a log knows this reader, which no source of another state has."""
    return f"{state.plan.key}.{source}"[: limits.READER_CHARACTERS] + f"-{id_of(state.root)[:8]}"


def number_of_text(identity: str) -> int:
    """Return a hash of a text as a number of 62 bits, above 0."""
    return 1 + (int.from_bytes(blake2b(identity.encode(), digest_size=8).digest()) >> 2)


# --- exports that failed at a step or wait for one that did ---
#
# Their rows of ``documents`` are named by their places; their keys are their fingerprints.


def held_rows(state: State, node: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    """Return columns of the last rows of a node's exports that are not completely processed.

    Args:
        where: an SQL condition on all rows of one export.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = state.documents.paths()
    if not paths:
        return []
    with connect(state.local_scratch) as db:
        db.register("documents", parquet.scan(paths, DOCUMENTS))  # of other sources' rows only this column is read
        return db.execute(f"""
            SELECT {columns} FROM (
                SELECT * FROM documents WHERE source = {quote(node)} AND {where}
                QUALIFY row_number() OVER (PARTITION BY document ORDER BY wave DESC) = 1
            ) WHERE failed IS NOT NULL
        """).fetchall()


def lowest_places(state: State, node: str) -> dict[str, int]:
    """Return lane -> lowest place of an export that is not completely processed."""
    found: dict[str, int] = {}
    for (revision,) in held_rows(state, node, "revision"):
        lane, place = place_of(revision)
        found[lane] = min(place, found.get(lane, place))
    return found


# --- documents and exports that wait at keyed nodes or downstream of them ---
#
# As long as something waits, the nodes' states do not include everything that was sent to them.


def unfinished_work(state: State, nodes: Collection[str], plan: Structure, *, ended: bool = False) -> Iterator[str]:
    """Yield a message for each place at or downstream of these nodes where something waits, or is held for review.

    Args:
        plan: the plan's structure in its last run.
        ended: also report documents of a source that ``update`` rejected permanently, since an operator may retry them
            at any time.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    yield from _uncounted_inputs(state, nodes, ended=ended)
    yield from _waiting_exports(state, nodes)
    for name in sorted(nodes):
        if any(name in node.after for node in plan.values()) and (unread := _unread_exports(state, name)):
            yield f"{name}: {unread} exports were not carried on"
        if held := held_rows(state, name, "document"):
            yield f"{name}: {len(held)} exports wait at a step or router, or failed there (one of them: {held[0][0]})"


def counted_and_failed(state: State, logs: Collection[str], nodes: Collection[str]) -> Iterator[str]:
    """Yield a message for each of these logs with entries that a keyed node has counted although a step on another
    branch failed for them: if they were read again, they would be counted twice."""
    counted = " OR ".join(map(was_published_sql, nodes)) or "false"
    for source, number, example in _failed(state, logs, counted):
        yield f"{source}: {number} entries were counted, and failed on another branch (one of them: {example})"


def failed_entries(state: State, logs: Collection[str]) -> Iterator[str]:
    """Yield a message for each of these logs with entries that failed in a step or router, temporarily or
    permanently."""
    for source, number, example in _failed(state, logs, "true"):
        yield f"{source}: {number} entries wait at a step or router, or failed there (one of them: {example})"


def _failed(state: State, logs: Collection[str], where: str) -> list[tuple[str, int, str]]:
    paths = state.documents.paths()
    if not paths or not logs:
        return []
    with connect(state.local_scratch) as db:
        db.register("documents", parquet.scan(paths, DOCUMENTS))
        return db.execute(f"""
            SELECT source, count(*), min(document) FROM (
                SELECT * FROM documents WHERE source IN (SELECT unnest({quote_list(logs)}))
                QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC) = 1
            ) WHERE failed IS NOT NULL AND ({where}) GROUP BY source ORDER BY source
        """).fetchall()


def _uncounted_inputs(state: State, nodes: Collection[str], *, ended: bool) -> Iterator[str]:
    waiting: Counter[str] = Counter()
    for file in state.outbox.files.values():
        if file.partition["destination"] in nodes:
            waiting[file.partition["destination"]] += file.rows if ended else pending_rows(file)
    for name, number in sorted((+waiting).items()):
        refused = ", or held for review" if ended else ""
        yield f"{name}: {number} documents are committed, and not counted yet{refused}"


def _waiting_exports(state: State, nodes: Collection[str]) -> Iterator[str]:
    found: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for file in filter(has_exports, state.outbox.files.values()):
        rows = read_part(state.outbox.path(file.path), ["source", "document"])
        for source, document in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if source in nodes:
                place = (file.partition["destination"], source)
                found[place] += 1
                examples[place] = document
    for (destination, source), number in sorted(found.items()):
        example = examples[destination, source]
        yield f"{destination}: {number} exports of {source} wait, or are held for review (one of them: {example})"


def _unread_exports(state: State, name: str) -> int:
    reached = LogPositions(state, name).places({"": ""}, {"": lanes()})
    table = state.keyed[name].exports
    return sum(max(0, table.transaction(place_id(lane)) - reached.get(lane, 0)) for lane in lanes())


# --- how far a plan has read its logs ---


def log_counts(state: State | None, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return for each log ``positions`` (partition -> the next place), ``read`` (entries processed) and ``lag`` (places
    not processed yet; None: the log cannot be reached, or has been replaced).

    Args:
        state: None if the plan has never run.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in logs_read(plan.nodes):
        assert isinstance(node.source, Log)
        log = node.source.apart()  # a run in another thread may be reading it
        found[node.name] = counts = _counts(None if state is None else LogPositions(state, node.name), log)
        if isinstance(log, CombinedLog):
            found |= dict(zip(node.after, _input_counts(log, counts["positions"]), strict=True))
    return found


def combined_counts(plan: Plan, sources: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Count the entries that each join and alts has received from its inputs.

    Args:
        sources: the result of ``log_counts``.
    """
    nodes = [n for n in plan.nodes if isinstance(n, SourceNode) and isinstance(n.source, CombinedLog)]
    return {n.name: sum(sources[name]["read"] for name in n.after) for n in nodes}


class _LogExtent(NamedTuple):
    """Partitions of a log, with their first and last places."""

    identities: Mapping[str, str]
    begin: Positions
    end: Positions
    nothing: str


def _input_counts(log: CombinedLog, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name, each in log.inputs.items():
        extent = _extent_of(each)
        if extent is None:
            yield {"positions": {}, "read": 0, "lag": None}
            continue
        own_positions = log.positions_of(name, positions)
        read = sum(at - extent.begin.get(partition, at) for partition, at in own_positions.items())
        missing = not own_positions or (read and extent.nothing)
        yield {
            "positions": own_positions,
            "read": read,
            "lag": None if missing else each.lag(own_positions, extent.end),
        }


def _counts(stored: LogPositions | None, log: Log) -> dict[str, Any]:
    read, extent = 0 if stored is None else stored.entries_read, _extent_of(log)
    if extent is None or (read and extent.nothing and not isinstance(log, CombinedLog)):
        return {"positions": {} if stored is None else stored.all_places(), "read": read, "lag": None}
    positions = next_places(stored, log, extent.identities, extent.begin, extent.end)
    return {"positions": positions, "read": read, "lag": log.lag(positions, extent.end)}


def _extent_of(log: Log) -> _LogExtent | None:
    """Return None if the log cannot be reached: ``status`` works without it, and a run reports the error."""
    try:
        log.check()
        return _LogExtent(log.identities(), log.begin(), log.end(), log.nothing())
    except Exception:
        return None
