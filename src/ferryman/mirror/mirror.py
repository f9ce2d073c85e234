"""Mirroring a state's ledger into Cassandra: what is sent, and how far.

A pass has these steps; a kill between any two repeats some of them, which changes nothing:

1. record durably which deliveries that still wait are sent as BATCHED, and with which time: they have no event yet
2. make the keyspaces and tables of sources and destinations that are new
3. send the rows of some settled waves, with times made of the events
4. record durably up to which wave the mirror is complete
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from ferryman import crash, limits
from ferryman.account.queries import open_view, retry_read
from ferryman.account.relations import View
from ferryman.destinations.cassandra import Cassandra
from ferryman.errors import Misconfigured, StateDamaged, message_of
from ferryman.mirror.tables import (
    ALGORITHM,
    DOC_HASH,
    STATUS,
    HashRow,
    StatusRow,
    hash_rows,
    keyspace_of,
    latest_time,
    microseconds,
    status_rows,
    waiting_rows,
    waves_to_read,
)
from ferryman.net.cassandra import Connection, Write
from ferryman.plan import Plan, destinations_of_sources
from ferryman.state.state import MIRRORED
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.locks import lock_with_timeout

_LOCK: Final = "mirrored.lock"

_WAIT_S: Final = 0.05
"""Time between two looks whether a mirror has failed."""


class MirrorPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a mirror is.

    Attributes:
        wave: it has every event up to this wave.
        batched: it has a BATCHED row of every delivery that waited when this wave was settled.
        batched_at: time of the last of these rows, µs since 1970: later events of a document come after it.
        planned, planned_at: wave up to which more of these rows may have been sent, and their time; 0: none.
        tables: keyspace and table -> the table's id, to notice one that was dropped.
    """

    wave: int = 0
    batched: int = 0
    batched_at: int = 0
    planned: int = 0
    planned_at: int = 0
    tables: dict[str, str] = {}


class MirrorPass(msgspec.Struct, frozen=True):
    """Result of a pass.

    Attributes:
        events, documents: rows that were sent to the two tables.
        behind: settled waves that the mirror does not have yet.
        refused: rows that Cassandra cannot hold, such as those of an id of 64 KiB, with the reason.
    """

    events: int
    documents: int
    behind: int
    refused: list[str] = []


class Mirror:
    """The mirror of one state at one target. Each call opens what it needs, and closes it.

    Args:
        root: the state's folder.
    """

    def __init__(self, root: StatePath, plan: Plan, target: Cassandra) -> None:
        self.root, self.plan, self.target = root, plan, target
        self._key = blake2b(target.target().encode(), digest_size=8).hexdigest()

    def catch_up(self, go_on: Callable[[], bool] = lambda: True) -> MirrorPass:
        """Send what the mirror lacks, wave by wave, as long as ``go_on`` says so.

        Raises:
            Unavailable, ConnectionError: the target is away; the next call goes on.
            Misconfigured: a table of the target is another one, or it refuses the login.
            StateDamaged: the state cannot be read.
        """
        events = documents = 0
        refused: list[str] = []
        with self.exclusive() as is_free, self.target.servers.connection() as connection:
            behind = 1 if is_free else 0
            tables = MirrorTables(connection, self.plan, self.target.replication)
            while behind and go_on():
                done = self._pass(connection, tables)
                events, documents, behind = events + done.events, documents + done.documents, done.behind
                refused += done.refused[: limits.MIRROR_MESSAGES - len(refused)]
        return MirrorPass(events, documents, behind, refused)

    def _pass(self, connection: Connection, tables: MirrorTables) -> MirrorPass:
        """Send some waves; the numbers are those of the module's docstring."""
        position = self._position(connection)
        with contextlib.ExitStack() as stack:
            view = retry_read(self.root, lambda: stack.enter_context(open_view(self.root, self.plan)))
            if position.wave > view.settled:  # the state was put back from an older copy
                position = MirrorPosition()
            last = waves_to_read(view, position.wave, limits.MIRROR_EVENTS)
            complete = last == view.settled
            planned = self._plan_waiting(view, position, last) if complete else position  # 1
            tables.prepare(pairs_of(view, self.plan))  # 2
            documents = tables.write_hashes(hash_rows(view, position.wave, last, microseconds(view.created)))
            sent = status_rows(view, position.wave, last, floor=position.batched_at)
            events = tables.write_statuses(sent)
            if planned.planned:
                waiting = waiting_rows(view, planned.batched, planned.planned, planned.planned_at)
                events += tables.write_statuses(waiting)  # 3
            behind = view.settled - last
        crash.point("mirror.sent")
        batched = planned.planned or planned.batched
        behind = behind or int(batched < last)  # a plan of a pass that was killed: newer waves have one of their own
        batched_at = planned.planned_at or planned.batched_at
        self._save(MirrorPosition(last, batched, batched_at, tables=position.tables | tables.ids()))  # 4
        crash.point("mirror.kept")
        return MirrorPass(events, documents, behind, tables.take_refused())

    def _plan_waiting(self, view: View, position: MirrorPosition, last: int) -> MirrorPosition:
        """Record which waiting deliveries get a BATCHED row, unless an earlier pass did and was killed."""
        if position.planned:
            return position
        condition = f"wave > {position.batched} AND wave <= {last}"
        [found] = view.rows(f"SELECT count(*) AS waiting FROM unsent WHERE {condition}")
        if not found["waiting"]:
            return msgspec.structs.replace(position, batched=last)
        at = max(latest_time(view, last), microseconds(view.created), position.batched_at) + 1
        planned = msgspec.structs.replace(position, planned=last, planned_at=at)
        self._save(planned)
        crash.point("mirror.planned")
        return planned

    # --- the durable position -----------------------------------------------------------------------------------------

    def _position(self, connection: Connection) -> MirrorPosition:
        """Return how far the mirror is; from the beginning if one of its tables was dropped."""
        position = self.read_all().get(self._key, MirrorPosition())
        for name, id in position.tables.items():
            if connection.table_id(*name.split(".")) != id:
                return MirrorPosition()
        return position

    def read_all(self) -> dict[str, MirrorPosition]:
        """Return the positions of all mirrors of the state. A damaged file is as good as none: all is sent again."""
        path = self.root / MIRRORED
        if not files.exists(path):
            return {}
        try:
            return msgspec.convert(files.unseal(path), dict[str, MirrorPosition])
        except (StateDamaged, msgspec.ValidationError):
            return {}

    def _save(self, position: MirrorPosition) -> None:
        files.replace(self.root / MIRRORED, files.seal(self.read_all() | {self._key: position}))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Keep other processes from mirroring this state at the same time; yield False if one does."""
        if not isinstance(self.root, Path) or not self.root.exists():  # without a state there is nothing to mirror
            yield True
            return
        fd = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield lock_with_timeout(fd, fcntl.LOCK_EX, 0.0)
        finally:
            os.close(fd)


def pairs_of(view: View, plan: Plan) -> set[tuple[str, str]]:
    """Return (source, destination) of the plan and of all events and deliveries; "": no destination."""
    reached = destinations_of_sources(plan.nodes)
    found = view.rows("SELECT source, destination FROM ledger UNION SELECT source, destination FROM unsent")
    pairs = {(source, name) for source, names in reached.items() for name in names}
    pairs |= {(row["source"], row["destination"] or "") for row in found}
    return pairs | {(source, "") for source, _ in pairs}


class MirrorTables:
    """The tables of a plan's mirror, over an open connection."""

    def __init__(self, connection: Connection, plan: Plan, replication: int | None) -> None:
        self._connection, self._plan, self._replication = connection, plan, replication
        self._ids: dict[str, str] = {}
        self._keyspaces: dict[tuple[str, str], str] = {}
        self._inserts: dict[tuple[str, str], Any] = {}
        self._refused: list[str] = []

    def keyspace(self, scanner: str, output_step: str) -> str:
        """Return the keyspace of a scanner and output step."""
        pair = (scanner, output_step)
        if pair not in self._keyspaces:
            self._keyspaces[pair] = keyspace_of(scanner, self._plan.name, self._plan.version, output_step)
        return self._keyspaces[pair]

    def prepare(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Make keyspaces and tables where they are missing.

        Raises:
            Misconfigured: a table is there and is another one; no table was made.
        """
        wanted = {
            self.keyspace(scanner, step): [STATUS] if step else [STATUS, DOC_HASH] for scanner, step in sorted(pairs)
        }
        new = {
            keyspace: tables
            for keyspace, tables in wanted.items()
            if any(f"{keyspace}.{table.name}" not in self._ids for table in tables)
        }
        for keyspace, tables in new.items():
            for table in tables:
                self._connection.check_table(keyspace, table)
        for keyspace, tables in new.items():
            self._connection.make_tables(keyspace, tables, self._replication)
            crash.point("mirror.made")
            for table in tables:
                self._ids[f"{keyspace}.{table.name}"] = self._connection.table_id(keyspace, table.name)

    def ids(self) -> dict[str, str]:
        """Return keyspace and table -> id of the tables that were made or found."""
        return dict(self._ids)

    def write_statuses(self, rows: Iterable[StatusRow]) -> int:
        """Write rows of ``jj_output_step_status``; return their number."""
        columns = (
            "docId, docHash, parentId, origParentId, outputStepName, status, message, antiCollision, created, "
            "createdNanos"
        )

        def write_of(row: StatusRow) -> Write:
            keyspace = self.keyspace(row.scanner, row.output_step)
            values = (
                *(row.id, row.hash, row.parent, row.origin, row.output_step, row.status, row.message),
                *(row.anti_collision, row.created, row.nanos, row.at),
            )
            size = 2 * len(row.id) + len(row.message or "") + 200
            return Write(self._insert(keyspace, STATUS.name, columns), values, size)

        return self._write(map(write_of, rows), "an event of")

    def write_hashes(self, rows: Iterable[HashRow]) -> int:
        """Write rows of ``jj_scanner_doc_hash``; return their number."""
        columns = "docId, created, createdNanos, antiCollision, hashAlg, docHash"

        def write_of(row: HashRow) -> Write:
            values = (row.id, row.created, row.nanos, row.anti_collision, ALGORITHM, row.hash, row.at)
            keyspace = self.keyspace(row.scanner, "")
            return Write(self._insert(keyspace, DOC_HASH.name, columns), values, len(row.id) + 150)

        return self._write(map(write_of, rows), "the hash of")

    def _insert(self, keyspace: str, table: str, columns: str) -> Any:
        """Return the statement that writes a row; made once for each table."""
        if (keyspace, table) not in self._inserts:
            marks = ", ".join("?" * (columns.count(",") + 1))
            self._inserts[keyspace, table] = self._connection.prepare(
                f"INSERT INTO {keyspace}.{table} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"
            )
        return self._inserts[keyspace, table]

    def _write(self, writes: Iterator[Write], what: str) -> int:
        """Write rows, some at a time; what Cassandra can never hold, such as an id of 64 KiB, is left out."""
        number = 0
        while some := list(islice(writes, limits.MIRROR_ROWS)):
            numbered = [each._replace(row=i) for i, each in enumerate(some)]
            for row, why in self._connection.write(numbered).items():
                self._refused.append(f"{what} {str(some[row].values[0])[:100]!r}: {why}")
            number += len(some)
        return number

    def take_refused(self) -> list[str]:
        """Return what was left out since the last call, with the reason."""
        taken, self._refused = self._refused[: limits.MIRROR_MESSAGES], []
        return taken


# --- beside a run ---


class BackgroundMirrors:
    """The mirrors of a running plan, each in a thread of its own, which the run never waits for.

    Args:
        root: the state's folder.
    """

    def __init__(self, root: StatePath, plan: Plan, targets: Sequence[Cassandra]) -> None:
        self._workers = [_MirrorThread(Mirror(root, plan, target)) for target in dict.fromkeys(targets)]

    def start(self) -> None:
        """Start the threads."""
        for each in self._workers:
            each.start()

    def wake(self) -> None:
        """Have the mirrors look: a wave was settled."""
        for each in self._workers:
            each.wake()

    def messages(self) -> list[str]:
        """Return what went wrong since the last call."""
        return [text for each in self._workers for text in each.take_messages()]

    def end(self, wait_s: float | None = None) -> list[str]:
        """End the threads: each may finish what it does if it gets on, for so many seconds at most (None:
        ``limits.MIRROR_END_S``); return messages about mirrors that are behind."""
        until = time.monotonic() + (limits.MIRROR_END_S if wait_s is None else wait_s)
        for each in self._workers:
            each.end()
        for each in self._workers:
            each.wait(until)
        return self.messages()


class _MirrorThread:
    """Keeps one mirror up to date until it is ended."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._changed, self._ending, self._done = threading.Event(), threading.Event(), threading.Event()
        self._abandoned = False
        """The run has ended and does not wait any longer."""
        self._is_stopped = False
        """Somebody has to act first."""
        self._failures = 0
        self._messages: list[str] = []
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="ferryman-mirror", daemon=True)

    def start(self) -> None:
        self._changed.set()
        self._thread.start()

    def wake(self) -> None:
        self._changed.set()

    def end(self) -> None:
        self._ending.set()
        self._changed.set()

    def wait(self, until: float) -> None:
        """Wait until it has caught up, or does not get on; not longer than until this monotonic time."""
        while not self._failures and time.monotonic() < until and not self._done.wait(_WAIT_S):
            pass
        self._abandoned = True
        if not self._done.is_set() and not self._failures:
            self._report("it is behind, and the run has ended")

    def take_messages(self) -> list[str]:
        taken = self._messages[:]
        del self._messages[: len(taken)]  # the thread may be about to append to this very list
        return taken

    def _work(self) -> None:
        while not self._abandoned:
            self._changed.wait()
            self._changed.clear()
            is_last, started = self._ending.is_set(), time.monotonic()
            if not self._is_stopped:
                self._try_once()
            if is_last:
                break
            pause = limits.MIRROR_PACE * (time.monotonic() - started)
            if self._failures:
                pause = min(limits.MIRROR_RETRY_S * 4 ** min(self._failures - 1, 6), limits.MIRROR_RETRY_MAX_S)
                self._changed.set()
            self._ending.wait(pause)
        self._done.set()

    def _try_once(self) -> None:
        try:
            done = self._mirror.catch_up(lambda: not self._abandoned)
        except Misconfigured as e:
            self._is_stopped = True
            self._failures += 1
            self._report(f"{message_of(e)} It is stopped until the next run")
        except Exception as e:  # whatever it is, the run goes on
            self._failures += 1
            self._report(f"{message_of(e)} It is tried again")
        else:
            self._failures = 0
            for refused in done.refused:
                self._report(f"left out {refused}")

    def _report(self, what: str) -> None:
        """Keep a message for the run, once for each text."""
        if what not in self._reported and len(self._reported) < limits.MIRROR_MESSAGES:
            self._reported.add(what)
            place = self._mirror.target.target()
            self._messages.append(
                f"mirror {place}: {what.removesuffix('.')}. Deliveries are not affected; "
                f"`ferryman ledger export PLAN --to {place}` sends what it lacks."
            )
