"""A run's way through its logs: what the next wave processes of them, and where they stand after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ferryman import limits
from ferryman.engine.commit.intake import Intake, end_intake
from ferryman.engine.held_exports import HeldExports
from ferryman.engine.intakes import Intakes
from ferryman.engine.nodes import Nodes
from ferryman.engine.ranges import EntryRange
from ferryman.engine.scan.listing import ListedPart, Listing, Only, outage_of
from ferryman.engine.scan.log_batches import LogBatch, LogSplit
from ferryman.engine.scan.log_looks import LogLook, entries_that_wait, look_at, pieces_of
from ferryman.engine.transform.log_entries import Blocked
from ferryman.engine.transform.staged import NOTHING, Staged
from ferryman.errors import Misconfigured, StateLost, UsageError, message_of
from ferryman.plan import ExportsNode, SourceNode, errors_node, keyed_nodes, logs_read
from ferryman.plan.keyed import counted_once, sources_above
from ferryman.records.due import now_us
from ferryman.records.keyed import lanes, place_id
from ferryman.sources.log import Log
from ferryman.state.log_positions import Head, LogPositions, reader_of
from ferryman.state.state import State

Again = Callable[[Sequence[LogSplit]], list[Staged]]
"""Runs tasks."""

_Place = tuple[str, str]
"""Source and partition."""


class KeptOfLogs(NamedTuple):
    """What a wave commits of logs."""

    staged: list[Staged]
    positions: dict[str, int]
    """Application transactions of the outbox."""
    left: list[Staged]
    """What was staged and does not count."""


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
        self._heads: dict[_Place, Head] = {}
        """The entries that were counted last as those that wait, as of the last commit."""
        self._moved: set[str] = set()
        self._once = state.plan.once
        self._most = limits.ONCE_DOCUMENTS if self._once else limits.TASK_DOCUMENTS
        self._counted_once = counted_once(state.plan.nodes)
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
            self._sources.keys() - self._held_back, self._state.documents.paths(), self._state.spill, now_us()
        )

    def batch(self, slots: int, wave_bytes: int) -> LogBatch | None:
        """What a wave processes next, a share of each log in turns; None: nothing can be processed now."""
        if again := self._intakes.due(self._is_ready):
            return LogBatch(again, sum(split.piece.bytes for split in again), once=True)
        share = wave_bytes // max(1, len(self._sources))
        by_source = [list(self._splits(name, seen, slots, share)) for name, seen in self._seen.items()]
        tasks = [split for turn in zip_longest(*by_source) for split in turn if split is not None]
        numbered = [split._replace(number=number) for number, split in enumerate(tasks)]
        return LogBatch(numbered, sum(s.piece.bytes for s in numbered), self._once) if numbered else None

    def kept_of(self, splits: Sequence[LogSplit], staged: Sequence[Staged], again: Again) -> KeptOfLogs:
        """What counts of a wave's tasks: in each partition, those up to the first entry that cannot be processed now.

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
        """What these tasks take, and the application transactions by which it is not taken a second time."""
        found: dict[str, dict[str, int]] = {}
        for split in splits:
            if split.rerun is None:
                found.setdefault(split.source, {}).update(self._logs[split.source].behind(split.piece))
        return self._intakes.taken(splits), self._advanced(found, dict.fromkeys(found, 0))

    def kept_once(self, intake: Intake, splits: Sequence[LogSplit], staged: Sequence[Staged]) -> KeptOfLogs:
        """What counts of the tasks of a wave, each of which has run once at most."""
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
        """Is there an entry that could not be processed?"""
        return bool(self._waiting)

    # -- inside ------------------------------------------------------------------------------------

    def _has_grown(self, name: str) -> bool:
        """Has a keyed node exported more since the last look? Lanes that wait are not read on."""
        keyed = self._state.keyed.get(name)
        if keyed is None or self._nodes.blocked(name):
            return False
        before = self._seen[name].end if name in self._seen else {}
        now = {lane: keyed.exports.number(place_id(lane)) for lane in lanes()}
        return any(now[lane] > before.get(lane, 0) and (name, lane) not in self._waiting for lane in now)

    def _look_at(self, node: SourceNode) -> Listing:
        log, kept = self._logs[node.name], LogPositions(self._state, node.name)
        try:
            if (before := self._seen.get(node.name)) is None and not kept.known:
                log.announce(reader_of(self._state, node.name))
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
            self._begin(node.name, seen, known=kept.known)
        return Listing(node, [ListedPart(node.name, "", 0, 0, seen.missing)] if seen.missing else [])

    def refuse_others(self) -> None:
        """Before anything is read: is each log of which entries were counted by key the one that it was?

        Raises:
            UsageError: one is another log now. Nothing was read.
        """
        for name in self._counted_once.intersection(self._logs) - self._held_back.keys():
            try:
                self._logs[name].check()
                if replaced := LogPositions(self._state, name).replaced(self._logs[name].identities()):
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
        return [n.name for n in keyed_nodes(plan) if name in {s.name for s in sources_above(n, plan)}]

    def _resetting(self, name: str) -> str:
        return " ".join(f"--reset-state {node}" for node in self._counting(name))

    def _mover(self, name: str, kept: LogPositions) -> str:
        """By which name the log may know where an operator has moved us; "": nothing may be read a second time."""
        reader = reader_of(self._state, name)
        if name not in self._counted_once:
            return reader
        moved = None if name in self._seen else self._logs[name].moved(reader)
        if moved is not None and kept.has_followed(moved.token):  # a kill came before it could be told
            self._logs[name].note(reader, kept.every(), moved.token)
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
                seen.identities, partitions, seen.positions, kept.read + read[name], seen.replay, seen.moved
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
            log.note(reader_of(self._state, name), seen.positions, seen.moved)
            for reader in forgotten:
                log.forget(reader)
        except Exception as e:  # the next wave notes it, and until then nothing is removed
            self._tell(f"source {name}: its position could not be noted: {message_of(e)}")


_LEAST = 256
"""Entries of a task: fewer cost more to hand out than to process."""
