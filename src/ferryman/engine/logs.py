"""Logs during a run: which entries the next wave processes, which results it commits, and the positions after it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ferryman import crash, limits
from ferryman.engine.at_most_once import OnceRanges, OnceWave, end_once_wave
from ferryman.engine.breakers import NodeBreakers, listing_key
from ferryman.engine.known_entries import EntryIndex
from ferryman.engine.results import NO_IDS, NOTHING_STAGED, Blocked, ListedPart, Listing, Staged, WantedIds, outage_of
from ferryman.engine.runner.base import QueryFailed, Runner, run_frame_again
from ferryman.engine.tasks import EntryRange, HeldEntry, LogBatch, LogSplit
from ferryman.errors import Misconfigured, StateLost, Unavailable, UsageError, message_of
from ferryman.limits import plural
from ferryman.observe import WARNING
from ferryman.plan import (
    ExportsNode,
    SourceNode,
    errors_node,
    keyed_nodes,
    logs_of_versions,
    logs_read,
    read_once_sources,
    upstream_sources,
)
from ferryman.records.keys import lane_number, lanes, place_id, place_of
from ferryman.records.rows import ORDINAL_STEPS, STOPS, Status, events, now_us, wait_s
from ferryman.sources.log import Log, Piece, Positions, SparkAccess
from ferryman.state.logs import (
    NOTHING_STOPS,
    LogHead,
    LogPositions,
    held_rows,
    next_places,
    number_of_text,
    reader_name,
)
from ferryman.state.state import STREAMS, State
from ferryman.storage.parquet import write_part
from ferryman.storage.query import connect, quote_list

RunSplits = Callable[[Sequence[LogSplit]], list[Staged]]
"""Runs the transform task for these splits."""

_PartitionKey = tuple[str, str]
"""Source and partition."""


class LogResults(NamedTuple):
    """Results of a wave over logs."""

    staged: list[Staged]
    """Results to commit."""
    positions: dict[str, int]
    """Application transactions of the outbox for the positions reached."""
    discarded: list[Staged]
    """Results that are not committed; their files are to be removed."""


class Logs:
    """Logs that a plan reads, during one run.

    ``refresh`` finds out where the logs end; ``next_batch`` returns a wave's entries; ``select_results`` picks the task
    results to commit; ``after_commit`` tells the logs their new positions.
    """

    def __init__(self, state: State, nodes: NodeBreakers, report: Callable[[str], None]) -> None:
        self._state = state
        self._nodes = nodes
        self._report = report
        self._sources = {n.name: n for n in logs_read(state.plan.nodes)}
        self._logs = {name: n.source for name, n in self._sources.items() if isinstance(n.source, Log)}
        self._snapshots: dict[str, LogSnapshot] = {}
        self._blocked: dict[_PartitionKey, Blocked] = {}
        self._counted_heads: dict[_PartitionKey, LogHead] = {}
        """Blocked entries and the attempts spent on them, as of the last commit."""
        self._ask_at: dict[str, float] = {}
        """Log -> monotonic time before which it is not asked again where it ends."""
        self._to_note: set[str] = set()
        """Logs whose new positions have been committed but not passed on to the log."""
        self._once = state.plan.once
        self._max_entries = limits.ONCE_DOCUMENTS if self._once else limits.TASK_DOCUMENTS
        self._of_versions = logs_of_versions(state.plan.nodes) & self._sources.keys()
        self._entry_index = EntryIndex(state, self._of_versions, state.staging / "known")
        self._alone: dict[str, str] = {}
        """Log of versions -> a partition which the next wave reads alone, since it has documents of others."""
        self._counted_once = read_once_sources(state.plan.nodes)
        self._once_ranges = OnceRanges(state, self._logs)
        holds = errors_node(state.plan.nodes) is None
        self._held_exports = {
            n.name: HeldExports(state, n.name, ended_holds=holds)
            for n in self._sources.values()
            if isinstance(n, ExportsNode)
        }

    def __bool__(self) -> bool:
        return bool(self._sources)

    def open(self, runner: Runner) -> None:
        """Prepare the logs for the run, before workers get copies of them."""
        for name, log in self._logs.items():
            log.open(self._state.root / STREAMS / name, LogSpark(runner))

    def close(self) -> None:
        """End what ``open`` has begun."""
        for log in self._logs.values():
            log.close()
        self._entry_index.close()

    def forget_attempts(self) -> None:
        """Read the attempts of blocked entries again at the next ``refresh``, since an operator may have reset them."""
        self._counted_heads.clear()

    def refresh(self) -> bool:
        """Read the current end of each log; entries added later wait for the next call. False: a log was
        unavailable."""
        listings = [self._inspect(node) for node in self._sources.values()]
        self._nodes.record_listings(listings)
        self._once_ranges.refresh()
        return not any(listing.failures for listing in listings)

    def have_grown(self) -> bool:
        """Return whether a log that can be read ends elsewhere than at the last ``refresh``; each log is asked now and
        then only."""
        return any(self._has_grown_since(name, log) for name, log in self._logs.items())

    def _has_grown_since(self, name: str, log: Log) -> bool:
        now = time.monotonic()
        if name in self._held_exports or now < self._ask_at.get(name, 0.0):
            return False
        if self._nodes.blocked(name) or self._nodes.blocked(listing_key(name)):
            return False
        self._ask_at[name] = now + log.ask_again_s
        snapshot = self._snapshots.get(name)
        try:
            return snapshot is None or log.has_grown(snapshot.end)
        except Exception:
            return True  # which ``refresh`` reports

    def due_entries(self) -> WantedIds:
        """Return source -> ids of entries that are to be read again now. Exports of keyed nodes are not included; they
        are read by place."""
        return read_due_entries(
            self._sources.keys() - self._held_exports,
            self._state.documents.paths(),
            self._state.local_scratch,
            now_us(),
        )

    def next_batch(self, slots: int, wave_bytes: int) -> LogBatch | None:
        """Return the entries for the next wave, an equal share from each log; None: nothing can be processed now."""
        if unfinished := self._once_ranges.due_splits(self._is_ready):
            return LogBatch(unfinished, sum(split.piece.bytes for split in unfinished), once=True)
        share = wave_bytes // max(1, len(self._sources))
        by_source = [list(self._splits(name, snapshot, slots, share)) for name, snapshot in self._snapshots.items()]
        tasks = [split for turn in zip_longest(*by_source) for split in turn if split is not None]
        numbered = [split._replace(number=number) for number, split in enumerate(tasks)]
        if any(split.source in self._of_versions for split in numbered):
            known = self._entry_index.files()
            numbered = [s._replace(known=known) if s.source in self._of_versions else s for s in numbered]
        return LogBatch(numbered, sum(s.piece.bytes for s in numbered), self._once) if numbered else None

    def select_results(self, splits: Sequence[LogSplit], staged: Sequence[Staged], run_again: RunSplits) -> LogResults:
        """Select the results that a wave commits: in each partition, those before the first blocked entry.

        Args:
            run_again: runs splits again that were cut off before a blocked entry.
        """
        kept: list[Staged] = []
        discarded: list[Staged] = []
        reached: dict[str, dict[str, int]] = {}
        read: dict[str, int] = {}
        blocked: dict[_PartitionKey, Blocked] = {}
        held: dict[_PartitionKey, frozenset[int]] = defaultdict(frozenset)
        hashes: dict[str, np.ndarray[Any, Any]] = {}
        self._alone = {}
        for split, result in zip(splits, staged, strict=True):
            partition = (split.source, split.piece.partition)
            if split.source in self._of_versions and self._shares_documents(split, result, hashes):
                discarded.append(result)
                continue
            if partition in blocked:  # an earlier split of this partition has stopped
                discarded.append(result)
                continue
            if held[partition] - split.held:  # an earlier split holds keys that this one did not know of
                discarded.append(result)
                split = split.with_held(held[partition])
                [result] = run_again([split])
            while (entry := result.blocked) is not None:  # run again up to the entry: the results include later ones
                blocked[partition] = entry
                discarded.append(result)
                split = split.before(entry.place)
                result = run_again([split])[0] if split.rows > 0 else NOTHING_STAGED
            held[partition] |= result.held
            if split.rows > 0:
                kept.append(result)
            if split.rows > 0 and not split.held_back:
                reached.setdefault(split.source, {}).update(result.reached or {})
                read[split.source] = read.get(split.source, 0) + result.entries
        self._update_blocked(reached, blocked)
        positions = self._position_transactions(reached, read) | self._attempt_transactions(blocked)
        stops, failures = self._record_stops(blocked, reached)
        return LogResults([*kept, *failures], positions | stops, discarded)

    def _shares_documents(self, split: LogSplit, result: Staged, hashes: dict[str, np.ndarray[Any, Any]]) -> bool:
        """Return whether a document of this task is also one of an earlier task of the wave, whose result this task did
        not know. Its partition is then read again, alone.

        Args:
            hashes: source -> hashes of the documents of the earlier tasks.
        """
        mine = np.unique(np.frombuffer(result.hashes, np.uint64))
        before = hashes.get(split.source)
        if before is None:
            hashes[split.source] = mine
            return False
        if len(np.intersect1d(before, mine, assume_unique=True)):
            self._alone.setdefault(split.source, split.piece.partition)
            return True
        hashes[split.source] = np.union1d(before, mine)
        return False

    def follow_moves(self) -> dict[str, int]:
        """Return the application transactions for readers that an operator has moved away from an entry that the plan
        stops before, where no wave has followed the move: nothing may be left to read."""
        transactions: dict[str, int] = {}
        for name, snapshot in self._snapshots.items():
            stored = LogPositions(self._state, name)
            if not snapshot.moved or stored.has_followed_move(snapshot.moved) or not (stops := stored.stopped()):
                continue
            self._to_note.add(name)
            transactions |= stored.transactions(
                snapshot.identities,
                snapshot.partitions(self._logs[name]),
                snapshot.positions,
                stored.entries_read,
                snapshot.replay,
                snapshot.moved,
            )
            for partition in stops:
                transactions |= stored.stop_transactions(partition, NOTHING_STOPS)
        return transactions

    def ranges_to_take(self, splits: Sequence[LogSplit]) -> tuple[list[EntryRange], dict[str, int]]:
        """Return what an at-most-once wave commits before its tasks run: the ranges of entries, and the application
        transactions that advance the positions past them."""
        reached: dict[str, dict[str, int]] = {}
        for split in splits:
            if split.rerun is None:
                reached.setdefault(split.source, {}).update(self._logs[split.source].behind(split.piece))
        return self._once_ranges.ranges_of(splits), self._position_transactions(reached, dict.fromkeys(reached, 0))

    def select_once_results(
        self, once_wave: OnceWave, splits: Sequence[LogSplit], staged: Sequence[Staged]
    ) -> LogResults:
        """Select the results that an at-most-once wave commits; its tasks have run at most once."""
        ended = self._once_ranges.results_of(once_wave, splits, staged)
        self._update_blocked(ended.reached, ended.blocked)
        stops, _ = self._record_stops({}, ended.reached)  # of the time before the plan was one of at-most-once
        return LogResults(ended.kept, ended.transactions | stops, ended.discarded)

    def after_commit(self) -> None:
        """Pass the committed positions to the logs, which may then remove what was read."""
        for name in self._to_note:
            self._note_position(name, self._snapshots[name])
        self._to_note.clear()
        end_once_wave(self._state)

    def wait_s(self) -> float | None:
        """Return the seconds until a waiting entry can be processed; None: none is waiting, or none can be in this
        run."""
        waits = [self._partition_wait_s(partition, entry) for partition, entry in self._blocked.items()]
        waits += [0.0 for name in self._sources if self._has_grown(name)]
        waits += [each.wait_s(now_us()) for name, each in self._held_exports.items() if not self._nodes.blocked(name)]
        return min((wait for wait in waits if wait is not None), default=None)

    def messages(self) -> Iterator[str]:
        """Yield messages for the end of a run: one for each blocked entry, and one for each node with exports held back
        by failed ones."""
        for name, held_back in self._held_exports.items():
            if count := held_back.stuck_count:
                waiting = plural(count, "export waits", "exports wait")
                yield (
                    f"{name}: {waiting} for earlier ones of the same key, which a step or router could not "
                    "take: `ferryman deliveries PLAN` names them; fix it and retry those."
                )
        for (source, _), entry in self._blocked.items():
            if not entry.stop and not entry.held:
                yield f"source {source} waits at {entry.id}: {entry.why} (attempt {entry.attempt}). Run again to go on."

    @property
    def is_blocked(self) -> bool:
        """Return whether an entry that could not be processed blocks a log."""
        return bool(self._blocked)

    # -- inside ------------------------------------------------------------------------------------

    def _has_grown(self, name: str) -> bool:
        """Return whether a keyed node has added exports since ``refresh`` to lanes that are not blocked."""
        keyed = self._state.keyed.get(name)
        if keyed is None or self._nodes.blocked(name):
            return False
        before = self._snapshots[name].end if name in self._snapshots else {}
        now = {lane: keyed.exports.transaction(place_id(lane)) for lane in lanes()}
        return any(now[lane] > before.get(lane, 0) and (name, lane) not in self._blocked for lane in now)

    def _inspect(self, node: SourceNode) -> Listing:
        log, stored = self._logs[node.name], LogPositions(self._state, node.name)
        try:
            if (previous := self._snapshots.get(node.name)) is None and not stored.was_read:
                log.announce(reader_name(self._state, node.name))
            refuse = partial(self._refuse_replaced, node.name) if node.name in self._counted_once else None
            snapshot = inspect_log(
                node.name, log, stored, self._report, self._reader_to_follow(node.name, stored), previous, refuse
            )
        except (UsageError, StateLost):
            raise
        except Exception as e:
            self._snapshots.pop(node.name, None)
            failure = message_of(e)
            self._report(f"{WARNING}source {node.name}: {failure}")
            return Listing(node, [ListedPart(node.name, "", 0, 0, failure, outage=outage_of(e))])
        self._snapshots[node.name] = snapshot
        for partition in snapshot.positions.keys() - {p for source, p in self._counted_heads if source == node.name}:
            if (head := stored.head(partition)) is not None:
                self._counted_heads[node.name, partition] = head
        if previous is None:
            self._start_reading(node.name, snapshot, was_read=stored.was_read)
        return Listing(node, [ListedPart(node.name, "", 0, 0, snapshot.missing)] if snapshot.missing else [])

    def refuse_replaced_logs(self) -> None:
        """Refuse to run if a log whose entries a keyed node counts has been replaced. Call it before anything is read.

        Raises:
            UsageError: a log has been replaced. Nothing was read.
        """
        for name in self._counted_once.intersection(self._logs) - self._held_exports.keys():
            try:
                self._logs[name].check()
                if replaced := LogPositions(self._state, name).replaced_logs(self._logs[name].identities()):
                    self._refuse_replaced(name, replaced)
            except UsageError:
                raise
            except Exception:  # it is unavailable now, which ``refresh`` reports
                continue

    def _refuse_replaced(self, name: str, replaced: Sequence[str]) -> NoReturn:
        places = ", ".join(str(self._logs[name].place_of(each)) for each in replaced)
        counting, options = " and ".join(self._keyed_nodes_fed_by(name)), self._reset_options(name)
        raise UsageError(
            f"source {name}: {places} is not what was read before: it was deleted and made again, or the plan names "
            f"another one now. {counting} would count its entries on top of those of the one "
            f"before. Put that one back; or run once with {options}, which empties what it has fed; or "
            "give the plan a higher version (without --from-version). Nothing was read."
        )

    def _keyed_nodes_fed_by(self, name: str) -> list[str]:
        """Return the keyed nodes that a log's entries reach."""
        plan = self._state.plan.nodes
        return [n.name for n in keyed_nodes(plan) if name in {s.name for s in upstream_sources(n, plan)}]

    def _reset_options(self, name: str) -> str:
        return " ".join(f"--reset-state {node}" for node in self._keyed_nodes_fed_by(name))

    def _reader_to_follow(self, name: str, stored: LogPositions) -> str:
        """Return the name under which a log knows the plan as a reader that an operator may have moved.

        "" if a keyed node counts the entries, so that none may be read twice: then moves are reported instead of
        followed.
        """
        reader = reader_name(self._state, name)
        if name not in self._counted_once:
            return reader
        moved = None if name in self._snapshots else self._logs[name].moved(reader)
        if moved is not None and stored.has_followed_move(moved.token):  # a kill came before the log was told
            self._logs[name].note(reader, stored.all_places(), moved.token)
        elif moved is not None:
            self._report(
                f"source {name}: was moved, and goes on where it was: a keyed node would count its entries twice. To "
                f"have it follow, run once with {self._reset_options(name)}, which empties what it has fed"
            )
        return ""

    def _start_reading(self, name: str, snapshot: LogSnapshot, *, was_read: bool) -> None:
        """Tell a log its position when the run first reads it, and that readers of older plan versions need nothing any
        more."""
        state: Any = self._state.identity()
        if "from" in state and not was_read:
            self._report(f"source {name}: version {state['from']} had no position in it; it is read from its beginning")
        if not snapshot.moved:  # the log keeps an operator's move until a commit has followed it
            self._note_position(name, snapshot, state.get("readers", ()))

    def _splits(self, name: str, snapshot: LogSnapshot, slots: int, wave_bytes: int) -> Iterator[LogSplit]:
        if self._nodes.blocked(name):
            return
        log = self._logs[name]
        ready = {p for p in snapshot.positions if self._partition_wait_s((name, p), None) == 0.0}
        if (alone := self._alone.get(name)) in ready:
            ready = {alone}
        taken: set[str] = set()
        """Partitions of a log of versions of which the wave has a piece: one task knows what earlier entries made."""
        held_back = self._held_exports.get(name)
        held: dict[str, frozenset[int]] = {}
        stopped = LogPositions(self._state, name).stopped()
        passed = {p: (s.place, s.entry) for p, s in stopped.items() if s.passed and s.replay == snapshot.replay}
        if held_back is not None and len(held_back):
            retries = list(held_back.splits(log, ready, now_us()))
            ready -= {split.piece.partition for split in retries}  # later entries wait for the results of the retries
            held = held_back.keys_by_lane()
            yield from retries
        start = {p: at if p in ready else snapshot.end[p] for p, at in snapshot.positions.items()}
        if not (total := log.lag(start, snapshot.end)):
            return
        most = int(np.clip(total // (2 * slots), _MIN_TASK_ENTRIES, self._max_entries))
        if name in self._of_versions:
            most = self._max_entries
        size = 0
        try:
            for piece in iter_pieces(name, log, snapshot, start, most, self._report):
                if piece.partition in taken:
                    continue
                if size and size + piece.bytes > wave_bytes:
                    return
                size += piece.bytes
                if name in self._of_versions:
                    taken.add(piece.partition)
                head = self._counted_heads.get((name, piece.partition))
                same = head is not None and head.replay == snapshot.replay
                waiting = held.get(piece.partition, frozenset())
                yield LogSplit(
                    name,
                    piece,
                    1 + snapshot.replay,
                    head if same else None,
                    held=waiting,
                    passed=passed.get(piece.partition),
                )
        except (Misconfigured, Unavailable) as e:
            why, stop = message_of(e), isinstance(e, Misconfigured)
            self._blocked |= {(name, p): Blocked(at, f"place {at}", why, stop, (name,)) for p, at in start.items()}
            if stop:
                self._nodes.stop(name, f"it cannot be read on: {why}")
            else:
                self._nodes.pause(name, why)

    def _is_ready(self, name: str, partition: str) -> bool:
        """Return whether a partition may be read now."""
        readable = name in self._snapshots and not self._nodes.blocked(name)
        return readable and self._partition_wait_s((name, partition), None) == 0.0

    def _update_blocked(self, reached: dict[str, dict[str, int]], blocked: dict[_PartitionKey, Blocked]) -> None:
        """Update the blocked entries after a wave, and open or close the breakers of their sources."""
        for source, partitions in reached.items():
            for partition in partitions:
                self._blocked.pop((source, partition), None)
        self._blocked |= blocked
        for source in reached.keys() - {source for source, _ in self._blocked}:
            self._nodes.resume(source)
        for (source, _), entry in blocked.items():
            if entry.stop:
                self._nodes.stop(source, f"it stops before {entry.id}: {entry.why}")
            elif source in entry.held:
                self._nodes.pause(source, entry.why)

    def _attempt_transactions(self, blocked: dict[_PartitionKey, Blocked]) -> dict[str, int]:
        """Return application transactions that record the attempts spent on blocked entries, for later runs.

        Those of an entry that stops the plan are not recorded: each run tries it once more.
        """
        transactions: dict[str, int] = {}
        for (name, partition), entry in blocked.items():
            head = entry.head(self._snapshots[name].replay)
            if head.attempt and not entry.stop and self._counted_heads.get((name, partition)) != head:
                self._counted_heads[name, partition] = head
                transactions |= LogPositions(self._state, name).head_transactions(partition, head)
        return transactions

    def _record_stops(
        self, blocked: dict[_PartitionKey, Blocked], reached: Mapping[str, Mapping[str, int]]
    ) -> tuple[dict[str, int], list[Staged]]:
        """Record the entries that the plan stops before, and forget those that it no longer stops before.

        Returns:
            Application transactions, and staged events of failures that are not recorded yet.
        """
        wave, transactions, rows = self._state.wave + 1, dict[str, int](), list[dict[str, Any]]()
        moved = {(source, partition) for source, positions in reached.items() for partition in positions}
        for name, partition in moved | blocked.keys():
            stored, entry = LogPositions(self._state, name), blocked.get((name, partition))
            known = stored.stopped().get(partition, NOTHING_STOPS)
            if entry is not None and entry.stops_plan:
                replay = self._snapshots[name].replay
                stop = known._replace(
                    place=entry.place,
                    entry=number_of_text(entry.id),
                    reason=number_of_text(entry.why),
                    replay=replay,
                )
                if stop == known:
                    continue
                stop = stop._replace(wave=wave, passed=0)
                rows.append(_stop_event(name, entry, 1 + replay))
            elif (name, partition) in moved or (entry is not None and _waits_itself(entry) and not known.passed):
                stop = NOTHING_STOPS
            else:
                continue
            if stop != known:
                transactions |= stored.stop_transactions(partition, stop)
        if not rows:
            return transactions, []
        table = events(rows, wave=wave, ordinal=ORDINAL_STEPS)
        part = write_part(self._state.ledger.folder, table, epoch=self._state.epoch)
        crash.point("stop.staged")
        return transactions, [NOTHING_STAGED._replace(ledger=[part])]

    def _position_transactions(self, reached: dict[str, dict[str, int]], read: dict[str, int]) -> dict[str, int]:
        """Advance the positions to what a wave reached, and return the application transactions that record it.

        Args:
            reached: source -> partition -> new position.
            read: source -> number of entries read.
        """
        transactions: dict[str, int] = {}
        for name, moved in reached.items():
            snapshot = self._snapshots[name]
            if moved.items() <= snapshot.positions.items():
                continue
            self._snapshots[name] = snapshot = snapshot._replace(positions={**snapshot.positions, **moved})
            self._to_note.add(name)
            stored, partitions = LogPositions(self._state, name), snapshot.partitions(self._logs[name])
            transactions |= stored.transactions(
                snapshot.identities,
                partitions,
                snapshot.positions,
                stored.entries_read + read[name],
                snapshot.replay,
                snapshot.moved,
            )
        return transactions

    def _partition_wait_s(self, partition: _PartitionKey, entry: Blocked | None) -> float | None:
        """Return the seconds until a partition's blocked entry can be retried; 0: it is not blocked; None: not in this
        run.

        Args:
            entry: the blocked entry; None: the one of the last wave.
        """
        if entry is None and (entry := self._blocked.get(partition)) is None:
            return 0.0
        waits = [self._nodes.node_wait_s(key) for key in dict.fromkeys((partition[0], *entry.held))]
        if any(wait is None for wait in waits):
            return None
        due_s = 0.0 if entry.due is None else max(0.0, (entry.due - now_us()) / 1e6)
        return max(due_s, *(wait for wait in waits if wait is not None))

    def _note_position(self, name: str, snapshot: LogSnapshot, forgotten: Sequence[str] = ()) -> None:
        log = self._logs[name]
        try:
            log.note(reader_name(self._state, name), snapshot.positions, snapshot.moved)
            for reader in forgotten:
                log.forget(reader)
        except Exception as e:  # the next wave tells it again, and until then the log removes nothing
            self._report(f"{WARNING}source {name}: its position could not be recorded: {message_of(e)}")


def _waits_itself(entry: Blocked) -> bool:
    """Return whether an entry waits for its next attempt, rather than for a node."""
    return not entry.stop and not entry.held


def _stop_event(source: str, entry: Blocked, revision: int) -> dict[str, Any]:
    """Return the event, as columns, that a plan stops before this entry; it is about none of its deliveries."""
    return {
        "source": source,
        "document": entry.id,
        "parent": None,
        "origin": entry.id,
        "version": entry.version,
        "revision": revision,
        "operation": "upsert",
        "destination": "",
        "delivery_hash": "",
        "status": Status.ERROR.value,
        "message": STOPS + entry.why,
        "attempt": entry.attempt,
    }


_MIN_TASK_ENTRIES = 256
"""Smallest number of entries per task: scheduling a task costs more than processing fewer."""


# Held exports: those that failed in a step, and later ones of the same keys, which wait for them.
#
# They are rows of ``documents``, named by their places (``records.keys.export_name``), with their keys as fingerprints.
# The earliest export of a key is its head. Once the head is due, all exports of the key are processed again, in order.
# A head that failed permanently holds back its key until an operator retries it.

_FAILED_FOR_GOOD: Final = -1
"""Due time of an export that failed permanently."""
_MAX_HELD_ENTRIES: Final = 50_000
"""Most held exports that one wave processes again; each takes about 1 KB."""

Numbers = np.ndarray[Any, Any]


class _HeldRows(NamedTuple):
    """Held exports in the order of their revisions, one array per column."""

    revision: Numbers
    key: Numbers
    due: Numbers


class HeldExports:
    """Held exports of one keyed node, as of the last commit.

    Args:
        ended_holds: whether an export that failed permanently holds back the later ones of its key.
    """

    def __init__(self, state: State, node: str, *, ended_holds: bool) -> None:
        self._state = state
        self._node = node
        self._ended_holds = ended_holds
        self._files: frozenset[str] | None = None
        none = np.array([], np.int64)
        self._rows, self._head_of_row = _HeldRows(none, none, none), none

    def __len__(self) -> int:
        return len(self._current().key)

    @property
    def stuck_count(self) -> int:
        """Return how many exports wait for one that failed permanently."""
        rows = self._current()
        stuck = rows.due[self._head_of_row] == _FAILED_FOR_GOOD
        return int((stuck & (rows.due != _FAILED_FOR_GOOD)).sum())

    def keys_by_lane(self) -> dict[str, frozenset[int]]:
        """Return lane -> hashes of the keys whose later exports must wait."""
        by_lane: dict[str, set[int]] = defaultdict(set)
        for key in np.unique(self._current().key).tolist():
            by_lane[f"lane{lane_number(key)}"].add(key)
        return {lane: frozenset(keys) for lane, keys in by_lane.items()}

    def wait_s(self, now_us: int) -> float | None:
        """Return the seconds until a head is due; None: no head has a due time."""
        dues = self._head_dues()
        longest_s = self._state.plan.longest_backoff_s
        return wait_s(int(dues.min()), now_us, longest_s) if len(dues) else None

    def splits(self, log: Log, ready: set[str], now_us: int) -> Iterator[LogSplit]:
        """Yield splits with the heads that are due and the exports behind them, in order.

        Args:
            ready: lanes that may be read now.
        """
        rows = self._current()
        longest_s = self._state.plan.longest_backoff_s
        dues = rows.due[self._head_of_row]
        due = np.array(
            [each != _FAILED_FOR_GOOD and not wait_s(each, now_us, longest_s) for each in dues.tolist()], bool
        )
        chosen = rows.revision[due][:_MAX_HELD_ENTRIES].tolist()
        by_lane: dict[str, list[int]] = {}
        for revision in chosen:
            lane, place = place_of(revision)
            if lane in ready:
                by_lane.setdefault(lane, []).append(place)
        by_place = self._read_rows(chosen)
        for lane, places in by_lane.items():
            yield from self._lane_splits(log, lane, places, by_place)

    def _lane_splits(
        self, log: Log, lane: str, places: Sequence[int], by_place: dict[tuple[str, int], tuple[Any, ...]]
    ) -> Iterator[LogSplit]:
        for piece in log.pieces({lane: places[0]}, {lane: places[-1] + 1}, places[-1] + 1):
            held = [HeldEntry(at, by_place[lane, at]) for at in places if piece.start <= at < piece.end]
            if held:
                yield LogSplit(self._node, piece, held_back=tuple(held))

    def _head_dues(self) -> Numbers:
        rows = self._current()
        dues = rows.due[np.unique(self._head_of_row)]
        waiting: Numbers = dues[dues != _FAILED_FOR_GOOD]
        return waiting

    def _current(self) -> _HeldRows:
        files = frozenset(self._state.documents.files)
        if files != self._files:
            self._files, self._rows = files, self._read()
            self._head_of_row = _find_heads(self._rows)
        return self._rows

    def _read(self) -> _HeldRows:
        rows = held_rows(self._state, self._node, "revision, fingerprint::BIGINT, coalesce(due, -1)")
        if not rows:
            return _HeldRows(*(np.array([], np.int64) for _ in _HeldRows._fields))
        unsorted = _HeldRows(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
        held = _HeldRows(*(column[np.argsort(unsorted.revision)] for column in unsorted))
        return held if self._ended_holds else _HeldRows(*(column[held.due != _FAILED_FOR_GOOD] for column in held))

    def _read_rows(self, revisions: Sequence[int]) -> dict[tuple[str, int], tuple[Any, ...]]:
        if not revisions:
            return {}
        names = "version, revision, fingerprint, operation, given, due, failed, held, again"
        among = f"revision IN ({', '.join(map(str, revisions))})"
        return {place_of(row[1]): row for row in held_rows(self._state, self._node, names, among)}


def _find_heads(rows: _HeldRows) -> Numbers:
    """Return, for each row, the index of the first row of its key; rows must be sorted by revision within each lane."""
    order = np.lexsort((rows.revision, rows.key))
    begins = np.ones(len(order), bool)
    begins[1:] = rows.key[order][1:] != rows.key[order][:-1]
    heads = np.empty(len(order), np.int64)
    heads[order] = order[begins][np.cumsum(begins) - 1] if len(order) else 0
    return heads


class LogSpark(SparkAccess):
    """Spark as logs use it: a query of the user's that fails is an outage of the log."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def use_session(self, use: Callable[[Any], Any]) -> Any:
        return self._runner.use_session(use)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Any]) -> list[Any]:
        """
        Raises:
            Unavailable: the frame's rows cannot be computed.
        """
        try:
            return run_frame_again(self._runner, read, task)
        except QueryFailed as e:
            raise Unavailable(f"the rows cannot be computed: {message_of(e)}") from e


# Snapshots of a log: where it ends now, the plan's position in it, and entries to read again. The log is only read.

Report = Callable[[str], None]

_ENTRY_BYTES: Final = limits.KIB
"""Assumed bytes per entry if a log does not know the sizes of its pieces."""


_REPLACED_TEXT: Final = (
    "is not what was read before: it was deleted and made again, or the plan names another one now; it is read from "
    "its beginning"
)
_RESTORED_TEXT: Final = "is not what was read last, but what was read before that; it is read on from there"


class LogSnapshot(NamedTuple):
    """A log at one moment, and the plan's position in it."""

    identities: Mapping[str, str]
    positions: dict[str, int]
    """Partition -> place of the next entry to read."""
    end: Positions
    replay: int
    read: int
    """Number of entries that the plan has read."""
    moved: str = ""
    """Token of the operator's last move of the reader, which the next commit will follow; see ``Log.moved``."""
    missing: str = ""
    """Names of logs that the plan has read before and that are missing now, for messages; "" if there are none."""

    def lag(self, log: Log) -> int:
        """Return the number of entries that the plan has not read."""
        return log.lag(self.positions, self.end)

    def partitions(self, log: Log) -> dict[str, list[str]]:
        """Return the number of entries that the plan has not read yet."""
        return {name: log.partitions_of(name, self.positions) for name in self.identities}


def read_due_entries(logs: Collection[str], documents: Sequence[Path], folder: Path, now_us: int) -> WantedIds:
    """Return source -> ids of entries to read again: a retry is due, or an operator or a step requested it.

    Args:
        documents: files of the table.
        folder: for scratch files.
    """
    if not logs or not documents:
        return NO_IDS
    query = f"""
        SELECT source, document FROM (
            SELECT * FROM read_parquet({quote_list(map(str, documents))}) WHERE source IN {quote_list(logs)}
            QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC) = 1
        ) WHERE forced OR due <= {int(now_us)} OR again <= {int(now_us)}
    """
    entries: dict[str, set[str]] = defaultdict(set)
    with connect(folder) as db:
        for source, document in db.execute(query).fetchall():
            entries[source].add(document)
    return {source: frozenset(ids) for source, ids in entries.items()}


def inspect_log(
    name: str,
    log: Log,
    stored: LogPositions | None,
    report: Report,
    reader: str = "",
    previous: LogSnapshot | None = None,
    refuse_replaced: Callable[[Sequence[str]], None] | None = None,
) -> LogSnapshot:
    """Return a log's extent and the plan's position in it.

    Args:
        stored: the plan's stored positions; None: the plan has no state yet.
        reader: name by which the log knows the plan as a reader; "": moves of the reader are not followed.
        previous: the last snapshot in this run; its messages are not repeated.
        refuse_replaced: called if logs have been replaced, and raises; None: such logs are read from their beginning.

    Raises:
        UsageError, Unavailable, Misconfigured: raised by the log.
    """
    log.check()
    identities, end = log.identities(), dict(log.end())
    missing = _report_missing(name, log, [] if stored is None else stored.missing_logs(identities), previous, report)
    begin, moved = log.begin(), log.moved(reader) if reader else None
    replay, read = (0, 0) if stored is None else (stored.replay, stored.entries_read)
    positions = next_places(stored, log, identities, begin, end)
    if stored is not None and (replaced := stored.replaced_logs(identities)):
        if refuse_replaced is not None:
            refuse_replaced(replaced)
        for each in replaced:
            known = stored.places(identities, {each: log.partitions_of(each, end)})
            report(f"source {name}: {log.place_of(each)} {_RESTORED_TEXT if known else _REPLACED_TEXT}")
        replay = stored.next_replay(log)
    # Entries that are read again get new revisions, derived from the replay number.
    if moved is not None and not (stored is not None and stored.has_followed_move(moved.token)):
        positions |= moved.positions
        replay = 1 if stored is None else stored.next_replay(log)
        if previous is None or previous.moved != moved.token:
            places = ", ".join(f"{partition} {at}" for partition, at in moved.positions.items())
            report(f"source {name}: was moved, and goes on at {places}")
    return LogSnapshot(identities, positions, end, replay, read, moved.token if moved else "", missing)


def _report_missing(
    name: str, log: Log, missing_logs: Sequence[str], previous: LogSnapshot | None, report: Report
) -> str:
    """Return ``LogSnapshot.missing``; report it, or that there is nothing to read yet, unless that was reported before.

    Args:
        missing_logs: known logs that have no identity now.
    """
    nothing = log.nothing()
    missing = ", ".join(str(log.place_of(each)) for each in missing_logs) if nothing else ""
    if missing and (previous is None or previous.missing != missing):
        report(f"source {name}: {missing} is not there any more: it was deleted, or its folder is away")
    elif previous is None and nothing and not missing:
        report(f"source {name}: {nothing}")
    return missing


def iter_pieces(
    name: str, log: Log, snapshot: LogSnapshot, start: Positions, most: int, report: Report
) -> Iterator[Piece]:
    """Yield pieces of the log from ``start`` to its end, see ``Log.pieces``; report entries that were removed before
    they were read."""
    seen: set[str] = set()
    for piece in log.pieces(start, snapshot.end, most):
        for partition, first in ((piece.partition, piece.start), *((each, at) for each, at, _ in piece.inputs)):
            if partition not in seen and first > (expected := start[partition]):
                lost_range = f"{partition} {expected} to {first - 1}"
                report(f"source {name}: {lost_range} are not kept any more: they were removed before they were read")
            seen.add(partition)
        size = piece.bytes or _ENTRY_BYTES * (piece.end - piece.start)
        yield log.pinned(piece._replace(bytes=size), snapshot.identities)
