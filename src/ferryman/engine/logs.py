"""A run's way through its logs: what the next wave processes of them, and where they stand after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ferryman import limits
from ferryman.engine.batches import EntryRange, HeldEntry, LogBatch, LogSplit
from ferryman.engine.breakers import Nodes
from ferryman.engine.once import Intake, Intakes, end_intake
from ferryman.engine.results import NONE, NOTHING, Blocked, ListedPart, Listing, Only, Staged, outage_of
from ferryman.errors import Misconfigured, StateLost, UsageError, message_of
from ferryman.plan import ExportsNode, SourceNode, errors_node, keyed_nodes, logs_read
from ferryman.plan.keyed import read_once_sources, upstream_sources
from ferryman.records.keys import lane_number, lanes, place_id, place_of
from ferryman.records.rows import now_us, wait_s
from ferryman.sources.log import Log, Piece, Positions
from ferryman.state.logs import LogHead, LogPositions, held_rows, next_places, reader_name
from ferryman.state.state import State
from ferryman.storage.query import connect, quote_list

Again = Callable[[Sequence[LogSplit]], list[Staged]]
"""Runs tasks."""

_Place = tuple[str, str]
"""Source and partition."""


class KeptOfLogs(NamedTuple):
    """Results of a wave over logs that it commits."""

    staged: list[Staged]
    positions: dict[str, int]
    """Application transactions of the outbox."""
    left: list[Staged]
    """Staged results that do not count."""


class Logs:
    """The logs that a plan reads, for the time of a run."""

    def __init__(self, state: State, nodes: Nodes, tell: Callable[[str], None]) -> None:
        self._state = state
        self._nodes = nodes
        self._tell = tell
        self._sources = {n.name: n for n in logs_read(state.plan.nodes)}
        self._logs = {name: n.source for name, n in self._sources.items() if isinstance(n.source, Log)}
        self._seen: dict[str, LogLook] = {}
        self._waiting: dict[_Place, Blocked] = {}
        self._heads: dict[_Place, LogHead] = {}
        """The entries that were counted last as those that wait, as of the last commit."""
        self._moved: set[str] = set()
        self._once = state.plan.once
        self._most = limits.ONCE_DOCUMENTS if self._once else limits.TASK_DOCUMENTS
        self._counted_once = read_once_sources(state.plan.nodes)
        self._intakes = Intakes(state, self._logs)
        holds = errors_node(state.plan.nodes) is None
        self._held_back = {
            n.name: HeldExports(state, n.name, ended_holds=holds)
            for n in self._sources.values()
            if isinstance(n, ExportsNode)
        }

    def __bool__(self) -> bool:
        return bool(self._sources)

    def look(self) -> bool:
        """Where do the logs end now? What comes later is for the next look. False: one could not be asked."""
        found = [self._look_at(node) for node in self._sources.values()]
        self._nodes.hear_listings(found)
        self._intakes.look()
        return not any(listing.failures for listing in found)

    def waiting(self) -> Only:
        """Entries that are to be read again, by their ids; those of keyed nodes are read by their places."""
        return entries_that_wait(
            self._sources.keys() - self._held_back, self._state.documents.paths(), self._state.local_scratch, now_us()
        )

    def batch(self, slots: int, wave_bytes: int) -> LogBatch | None:
        """Return the next wave's entries, a share of each log in turns; None: nothing can be processed now."""
        if again := self._intakes.due(self._is_ready):
            return LogBatch(again, sum(split.piece.bytes for split in again), once=True)
        share = wave_bytes // max(1, len(self._sources))
        by_source = [list(self._splits(name, seen, slots, share)) for name, seen in self._seen.items()]
        tasks = [split for turn in zip_longest(*by_source) for split in turn if split is not None]
        numbered = [split._replace(number=number) for number, split in enumerate(tasks)]
        return LogBatch(numbered, sum(s.piece.bytes for s in numbered), self._once) if numbered else None

    def kept_of(self, splits: Sequence[LogSplit], staged: Sequence[Staged], again: Again) -> KeptOfLogs:
        """Return the results of a wave's tasks that count: in each partition, those before the first entry that cannot
        be processed now.

        Args:
            again: runs tasks that end before such an entry.
        """
        kept: list[Staged] = []
        left: list[Staged] = []
        reached: dict[str, dict[str, int]] = {}
        read: dict[str, int] = {}
        blocked: dict[_Place, Blocked] = {}
        held: dict[_Place, frozenset[int]] = defaultdict(frozenset)
        for split, done in zip(splits, staged, strict=True):
            place = (split.source, split.piece.partition)
            if place in blocked:
                left.append(done)
                continue
            if held[place] - split.held:
                left.append(done)
                split = split.holding(held[place])
                [done] = again([split])
            while (found := done.blocked) is not None:
                blocked[place] = found
                left.append(done)
                split = split.before(found.place)
                done = again([split])[0] if split.rows > 0 else NOTHING
            held[place] |= done.held
            if split.rows > 0:
                kept.append(done)
            if split.rows > 0 and not split.held_back:
                reached.setdefault(split.source, {}).update(done.reached or {})
                read[split.source] = read.get(split.source, 0) + done.entries
        self._note(reached, blocked)
        return KeptOfLogs(kept, self._advanced(reached, read) | self._counted(blocked), left)

    def taken(self, splits: Sequence[LogSplit]) -> tuple[list[EntryRange], dict[str, int]]:
        """Return the ranges of these tasks, and the application transactions that keep them from being taken a
        second time."""
        found: dict[str, dict[str, int]] = {}
        for split in splits:
            if split.rerun is None:
                found.setdefault(split.source, {}).update(self._logs[split.source].behind(split.piece))
        return self._intakes.taken(splits), self._advanced(found, dict.fromkeys(found, 0))

    def kept_once(self, intake: Intake, splits: Sequence[LogSplit], staged: Sequence[Staged]) -> KeptOfLogs:
        """Return the results that count of tasks that ran once at most."""
        ended = self._intakes.ended(intake, splits, staged)
        self._note(ended.reached, ended.blocked)
        return KeptOfLogs(ended.kept, ended.transactions, ended.left)

    def committed(self) -> None:
        """The wave is: whoever keeps the log may know where the plan stands."""
        for name in self._moved:
            self._tell_log(name, self._seen[name])
        self._moved.clear()
        end_intake(self._state)

    def wait_s(self) -> float | None:
        """Seconds until an entry that waits can be tried; None: none waits, or not in this run."""
        waits = [self._wait_of(place, found) for place, found in self._waiting.items()]
        waits += [0.0 for name in self._sources if self._has_grown(name)]
        waits += [each.wait_s(now_us()) for name, each in self._held_back.items() if not self._nodes.blocked(name)]
        return min((wait for wait in waits if wait is not None), default=None)

    def messages(self) -> Iterator[str]:
        """At the end of a run: a line for each entry that waits, and for what failed and holds others."""
        for name, held_back in self._held_back.items():
            if behind := held_back.behind:
                yield (
                    f"{name}: {behind} exports wait for earlier ones of their keys, which a step or router could not "
                    "take: `ferryman deliveries` names them; fix it and retry those."
                )
        for (source, _), found in self._waiting.items():
            if not found.stop and not found.held:
                yield f"source {source} waits at {found.id}: {found.why} (attempt {found.attempt}). Run again to go on."

    @property
    def waits(self) -> bool:
        """Return whether an entry could not be processed."""
        return bool(self._waiting)

    # -- inside ------------------------------------------------------------------------------------

    def _has_grown(self, name: str) -> bool:
        """Has a keyed node exported more since the last look? Lanes that wait are not read on."""
        keyed = self._state.keyed.get(name)
        if keyed is None or self._nodes.blocked(name):
            return False
        before = self._seen[name].end if name in self._seen else {}
        now = {lane: keyed.exports.transaction(place_id(lane)) for lane in lanes()}
        return any(now[lane] > before.get(lane, 0) and (name, lane) not in self._waiting for lane in now)

    def _look_at(self, node: SourceNode) -> Listing:
        log, kept = self._logs[node.name], LogPositions(self._state, node.name)
        try:
            if (before := self._seen.get(node.name)) is None and not kept.was_read:
                log.announce(reader_name(self._state, node.name))
            other = partial(self._refuse_another, node.name) if node.name in self._counted_once else None
            seen = look_at(node.name, log, kept, self._tell, self._mover(node.name, kept), before, other)
        except (UsageError, StateLost):
            raise
        except Exception as e:
            self._seen.pop(node.name, None)
            failure = message_of(e)
            self._tell(f"source {node.name}: {failure}")
            return Listing(node, [ListedPart(node.name, "", 0, 0, failure, outage=outage_of(e))])
        self._seen[node.name] = seen
        for partition in seen.positions.keys() - {p for source, p in self._heads if source == node.name}:
            if (head := kept.head(partition)) is not None:
                self._heads[node.name, partition] = head
        if before is None:
            self._begin(node.name, seen, known=kept.was_read)
        return Listing(node, [ListedPart(node.name, "", 0, 0, seen.missing)] if seen.missing else [])

    def refuse_others(self) -> None:
        """Before anything is read: is each log of which entries were counted by key the one that it was?

        Raises:
            UsageError: one is another log now. Nothing was read.
        """
        for name in self._counted_once.intersection(self._logs) - self._held_back.keys():
            try:
                self._logs[name].check()
                if replaced := LogPositions(self._state, name).replaced_logs(self._logs[name].identities()):
                    self._refuse_another(name, replaced)
            except UsageError:
                raise
            except Exception:  # it cannot be asked now: whoever looks at it says so
                continue

    def _refuse_another(self, name: str, replaced: Sequence[str]) -> NoReturn:
        places = ", ".join(str(self._logs[name].place_of(each)) for each in replaced)
        raise UsageError(
            f"source {name}: {places} is not what was read before: it was deleted and made again, or the plan names "
            f"another one now. {' and '.join(self._counting(name))} would count its entries on top of those of the one "
            f"before. Put that one back; or run once with {self._resetting(name)}, which empties what it has fed; or "
            "give the plan a higher version (without --from-version). Nothing was read."
        )

    def _counting(self, name: str) -> list[str]:
        """Keyed nodes to which a log's entries come."""
        plan = self._state.plan.nodes
        return [n.name for n in keyed_nodes(plan) if name in {s.name for s in upstream_sources(n, plan)}]

    def _resetting(self, name: str) -> str:
        return " ".join(f"--reset-state {node}" for node in self._counting(name))

    def _mover(self, name: str, kept: LogPositions) -> str:
        """By which name the log may know where an operator has moved us; "": nothing may be read a second time."""
        reader = reader_name(self._state, name)
        if name not in self._counted_once:
            return reader
        moved = None if name in self._seen else self._logs[name].moved(reader)
        if moved is not None and kept.has_followed_move(moved.token):  # a kill came before it could be told
            self._logs[name].note(reader, kept.all_places(), moved.token)
        elif moved is not None:
            self._tell(
                f"source {name}: was moved, and goes on where it was: a keyed node would count its entries twice. To "
                f"have it follow, run once with {self._resetting(name)}, which empties what it has fed"
            )
        return ""

    def _begin(self, name: str, seen: LogLook, *, known: bool) -> None:
        """A log is looked at for the first time in this run; it need not keep anything for an older version."""
        state: Any = self._state.identity()
        if "from" in state and not known:
            self._tell(f"source {name}: version {state['from']} had no place in it; it is read from its beginning")
        if not seen.moved:  # what an operator has said stays until a commit has followed it
            self._tell_log(name, seen, state.get("readers", ()))

    def _splits(self, name: str, seen: LogLook, slots: int, wave_bytes: int) -> Iterator[LogSplit]:
        if self._nodes.blocked(name):
            return
        log = self._logs[name]
        ready = {p for p in seen.positions if self._wait_of((name, p), None) == 0.0}
        held_back = self._held_back.get(name)
        held: dict[str, frozenset[int]] = {}
        if held_back is not None and len(held_back):
            again = list(held_back.splits(log, ready, now_us()))
            ready -= {split.piece.partition for split in again}  # what came later waits until it is known who goes on
            held = held_back.held()
            yield from again
        start = {p: at if p in ready else seen.end[p] for p, at in seen.positions.items()}
        if not (total := log.lag(start, seen.end)):
            return
        most = int(np.clip(total // (2 * slots), _LEAST, self._most))
        size = 0
        try:
            for piece in pieces_of(name, log, seen, start, most, self._tell):
                if size and size + piece.bytes > wave_bytes:
                    return
                size += piece.bytes
                head = self._heads.get((name, piece.partition))
                same = head is not None and head.replay == seen.replay
                waiting = held.get(piece.partition, frozenset())
                yield LogSplit(name, piece, 1 + seen.replay, head if same else None, held=waiting)
        except Misconfigured as e:
            why = message_of(e)
            self._waiting |= {(name, p): Blocked(at, f"place {at}", why, True, (name,)) for p, at in start.items()}
            self._nodes.stop(name, f"it cannot be read on: {why}")

    def _is_ready(self, name: str, partition: str) -> bool:
        """May it be read now?"""
        seen = name in self._seen and not self._nodes.blocked(name)
        return seen and self._wait_of((name, partition), None) == 0.0

    def _note(self, reached: dict[str, dict[str, int]], blocked: dict[_Place, Blocked]) -> None:
        """Which entries wait now, and why."""
        for source, partitions in reached.items():
            for partition in partitions:
                self._waiting.pop((source, partition), None)
        self._waiting |= blocked
        for source in reached.keys() - {source for source, _ in self._waiting}:
            self._nodes.go_on(source)
        for (source, _), found in blocked.items():
            if found.stop:
                self._nodes.stop(source, f"it stops before {found.id}: {found.why}")
            elif source in found.held:
                self._nodes.pause(source, found.why)

    def _counted(self, blocked: dict[_Place, Blocked]) -> dict[str, int]:
        """Application transactions for attempts that were spent: a later run goes on counting. Of an entry that stops
        the plan nothing is kept: each run tries it once more."""
        transactions: dict[str, int] = {}
        for (name, partition), found in blocked.items():
            head = found.head(self._seen[name].replay)
            if head.attempt and not found.stop and self._heads.get((name, partition)) != head:
                self._heads[name, partition] = head
                transactions |= LogPositions(self._state, name).head_transactions(partition, head)
        return transactions

    def _advanced(self, reached: dict[str, dict[str, int]], read: dict[str, int]) -> dict[str, int]:
        """Application transactions for what was reached."""
        transactions: dict[str, int] = {}
        for name, moved in reached.items():
            seen = self._seen[name]
            if moved.items() <= seen.positions.items():
                continue
            self._seen[name] = seen = seen._replace(positions={**seen.positions, **moved})
            self._moved.add(name)
            kept, partitions = LogPositions(self._state, name), seen.partitions(self._logs[name])
            transactions |= kept.transactions(
                seen.identities, partitions, seen.positions, kept.entries_read + read[name], seen.replay, seen.moved
            )
        return transactions

    def _wait_of(self, place: _Place, found: Blocked | None) -> float | None:
        """Seconds until the entry that waits there can be tried; 0: none waits; None: not in this run."""
        if found is None and (found := self._waiting.get(place)) is None:
            return 0.0
        waits = [self._nodes.wait_of(key) for key in dict.fromkeys((place[0], *found.held))]
        if any(wait is None for wait in waits):
            return None
        due_s = 0.0 if found.due is None else max(0.0, (found.due - now_us()) / 1e6)
        return max(due_s, *(wait for wait in waits if wait is not None))

    def _tell_log(self, name: str, seen: LogLook, forgotten: Sequence[str] = ()) -> None:
        log = self._logs[name]
        try:
            log.note(reader_name(self._state, name), seen.positions, seen.moved)
            for reader in forgotten:
                log.forget(reader)
        except Exception as e:  # the next wave notes it, and until then nothing is removed
            self._tell(f"source {name}: its position could not be noted: {message_of(e)}")


_LEAST = 256
"""Entries of a task: fewer cost more to hand out than to process."""


# Exports that a step could not take, and those of their keys that came later: what is tried again, and when.
#
# They are rows of ``documents``, named by their places (``records.keyed.export_name``), their keys as fingerprints.
# The earliest of a key is its head. Once it is due, it and what is behind it go their way again, in their order; a
# head that failed for good holds its key until an operator retries it.

_ENDED: Final = -1
"""Due time of what has failed for good."""
_MOST: Final = 50_000
"""Entries that go their way again in one wave: 1 KB each."""

Numbers = np.ndarray[Any, Any]


class _HeldRows(NamedTuple):
    """Entries in the order of their revisions, an array a column."""

    revision: Numbers
    key: Numbers
    due: Numbers


class HeldExports:
    """Held exports of one keyed node, as of the last commit.

    Args:
        ended_holds: does what has failed for good hold the later ones of its key?
    """

    def __init__(self, state: State, node: str, *, ended_holds: bool) -> None:
        self._state = state
        self._node = node
        self._ended_holds = ended_holds
        self._files: frozenset[str] | None = None
        none = np.array([], np.int64)
        self._found, self._heads = _HeldRows(none, none, none), none

    def __len__(self) -> int:
        return len(self._now().key)

    @property
    def behind(self) -> int:
        """How many wait for one that has failed for good."""
        found = self._now()
        stuck = found.due[self._heads] == _ENDED
        return int((stuck & (found.due != _ENDED)).sum())

    def held(self) -> dict[str, frozenset[int]]:
        """Keys of which later exports wait, by their lanes."""
        found: dict[str, set[int]] = defaultdict(set)
        for key in np.unique(self._now().key).tolist():
            found[f"lane{lane_number(key)}"].add(key)
        return {lane: frozenset(keys) for lane, keys in found.items()}

    def wait_s(self, now_us: int) -> float | None:
        """Seconds until a head is due; None: none will be."""
        dues = self._head_dues()
        longest_s = self._state.plan.longest_backoff_s
        return wait_s(int(dues.min()), now_us, longest_s) if len(dues) else None

    def splits(self, log: Log, ready: set[str], now_us: int) -> Iterator[LogSplit]:
        """Yield the entries that are due and those behind them, in order.

        Args:
            ready: lanes that may be read now.
        """
        found = self._now()
        longest_s = self._state.plan.longest_backoff_s
        dues = found.due[self._heads]
        due = np.array([each != _ENDED and not wait_s(each, now_us, longest_s) for each in dues.tolist()], bool)
        chosen = found.revision[due][:_MOST].tolist()
        by_lane: dict[str, list[int]] = {}
        for revision in chosen:
            lane, place = place_of(revision)
            if lane in ready:
                by_lane.setdefault(lane, []).append(place)
        known = self._details(chosen)
        for lane, places in by_lane.items():
            yield from self._of_lane(log, lane, places, known)

    def _of_lane(
        self, log: Log, lane: str, places: Sequence[int], known: dict[tuple[str, int], tuple[Any, ...]]
    ) -> Iterator[LogSplit]:
        for piece in log.pieces({lane: places[0]}, {lane: places[-1] + 1}, places[-1] + 1):
            mine = [HeldEntry(at, known[lane, at]) for at in places if piece.start <= at < piece.end]
            if mine:
                yield LogSplit(self._node, piece, held_back=tuple(mine))

    def _head_dues(self) -> Numbers:
        found = self._now()
        dues = found.due[np.unique(self._heads)]
        waiting: Numbers = dues[dues != _ENDED]
        return waiting

    def _now(self) -> _HeldRows:
        files = frozenset(self._state.documents.files)
        if files != self._files:
            self._files, self._found = files, self._read()
            self._heads = _heads(self._found)
        return self._found

    def _read(self) -> _HeldRows:
        rows = held_rows(self._state, self._node, "revision, fingerprint::BIGINT, coalesce(due, -1)")
        found = _HeldRows(*(np.array(column, np.int64) for column in zip(*rows, strict=True))) if rows else None
        if found is None:
            return _HeldRows(*(np.array([], np.int64) for _ in _HeldRows._fields))
        found = _HeldRows(*(column[np.argsort(found.revision)] for column in found))
        return found if self._ended_holds else _HeldRows(*(column[found.due != _ENDED] for column in found))

    def _details(self, revisions: Sequence[int]) -> dict[tuple[str, int], tuple[Any, ...]]:
        if not revisions:
            return {}
        names = "version, revision, fingerprint, operation, given, due, failed, held, again"
        among = f"revision IN ({', '.join(map(str, revisions))})"
        return {place_of(row[1]): row for row in held_rows(self._state, self._node, names, among)}


def _heads(rows: _HeldRows) -> Numbers:
    """Return for each row the position of the first row of its key; rows are ordered by revision within each lane."""
    order = np.lexsort((rows.revision, rows.key))
    begins = np.ones(len(order), bool)
    begins[1:] = rows.key[order][1:] != rows.key[order][:-1]
    found = np.empty(len(order), np.int64)
    found[order] = order[begins][np.cumsum(begins) - 1] if len(order) else 0
    return found


# A look at a log: where it ends now, where the plan stands in it, and which entries wait. Nothing is noted there.

Tell = Callable[[str], None]

_ENTRY_BYTES: Final = limits.KIB
"""Assumed size of an entry, in bytes, where the log does not know the sizes of its pieces."""


_ANOTHER: Final = (
    "is not what was read before: it was deleted and made again, or the plan names another one now; it is read from "
    "its beginning"
)
_ANOTHER_AGAIN: Final = "is not what was read last, but what was read before that; it is read on from there"


class LogLook(NamedTuple):
    """A log as it was when it was looked at."""

    identities: Mapping[str, str]
    positions: dict[str, int]
    end: Positions
    replay: int
    read: int
    moved: str = ""
    """The last move of the reader, which the next commit follows; see ``Log.moved``."""
    missing: str = ""
    """Logs that the plan has read and that are not there now, for people; "": all are."""

    def lag(self, log: Log) -> int:
        """Entries that the plan has not come to."""
        return log.lag(self.positions, self.end)

    def partitions(self, log: Log) -> dict[str, list[str]]:
        """Return the log's partitions, see ``LogPositions.transactions``."""
        return {name: log.partitions_of(name, self.positions) for name in self.identities}


def entries_that_wait(logs: Collection[str], documents: Sequence[Path], folder: Path, now_us: int) -> Only:
    """Source -> entries of these logs that are to be read again, by their ids: a retry is due, an operator or a step
    wants it.

    Args:
        documents: files of the table.
        folder: for scratch files.
    """
    if not logs or not documents:
        return NONE
    query = f"""
        SELECT source, document FROM (
            SELECT * FROM read_parquet({quote_list(map(str, documents))}) WHERE source IN {quote_list(logs)}
            QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC) = 1
        ) WHERE forced OR due <= {int(now_us)} OR again <= {int(now_us)}
    """
    found: dict[str, set[str]] = defaultdict(set)
    with connect(folder) as db:
        for source, document in db.execute(query).fetchall():
            found[source].add(document)
    return {source: frozenset(ids) for source, ids in found.items()}


def look_at(
    name: str,
    log: Log,
    kept: LogPositions | None,
    tell: Tell,
    reader: str = "",
    before: LogLook | None = None,
    refuse: Callable[[Sequence[str]], None] | None = None,
) -> LogLook:
    """Return a log's extent and the plan's position in it.

    Args:
        kept: None: the plan has no state yet.
        reader: by which name the log knows the plan; "": whoever looks has none.
        before: the last look, if this is another one; what that has said is not said again.
        refuse: raises for those of its logs that are others now; None: they are read from their beginning.

    Raises:
        UsageError, Unavailable, Misconfigured: of the log.
    """
    log.check()
    identities, end = log.identities(), dict(log.end())
    missing = _tell_of_absence(name, log, [] if kept is None else kept.missing_logs(identities), before, tell)
    begin, moved = log.begin(), log.moved(reader) if reader else None
    replay, read = (0, 0) if kept is None else (kept.replay, kept.entries_read)
    positions = next_places(kept, log, identities, begin, end)
    if kept is not None and (replaced := kept.replaced_logs(identities)):
        if refuse is not None:
            refuse(replaced)
        for each in replaced:
            known = kept.places(identities, {each: log.partitions_of(each, end)})
            tell(f"source {name}: {log.place_of(each)} {_ANOTHER_AGAIN if known else _ANOTHER}")
        replay = kept.next_replay()
    if moved is not None and not (kept is not None and kept.has_followed_move(moved.token)):
        positions |= moved.positions
        replay = 1 if kept is None else kept.next_replay()
        if before is None or before.moved != moved.token:
            places = ", ".join(f"{partition} {at}" for partition, at in moved.positions.items())
            tell(f"source {name}: was moved, and goes on at {places}")
    return LogLook(identities, positions, end, replay, read, moved.token if moved else "", missing)


def _tell_of_absence(name: str, log: Log, gone: Sequence[str], before: LogLook | None, tell: Tell) -> str:
    """``LogLook.missing``; says it, or that there is nothing to read yet, unless it was said before.

    Args:
        gone: logs that were known and do not say now which they are.
    """
    nothing = log.nothing()
    missing = ", ".join(str(log.place_of(each)) for each in gone) if nothing else ""
    if missing and (before is None or before.missing != missing):
        tell(f"source {name}: {missing} is not there any more: it was deleted, or its folder is away")
    elif before is None and nothing and not missing:
        tell(f"source {name}: {nothing}")
    return missing


def pieces_of(name: str, log: Log, seen: LogLook, start: Positions, most: int, tell: Tell) -> Iterator[Piece]:
    """Yield the pieces in between, see ``Log.pieces``; report what is not kept any more."""
    begun: set[str] = set()
    for piece in log.pieces(start, seen.end, most):
        for partition, first in ((piece.partition, piece.start), *((each, at) for each, at, _ in piece.inputs)):
            if partition not in begun and first > (missed := start[partition]):
                gone = f"{partition} {missed} to {first - 1}"
                tell(f"source {name}: {gone} are not kept any more: they were removed before they were read")
            begun.add(partition)
        size = piece.bytes or _ENTRY_BYTES * (piece.end - piece.start)
        yield log.pinned(piece._replace(bytes=size), seen.identities)
