"""Twins of destinations: what replaces a plan's own destinations in a proof.

A SQLite database, a folder and a queue have a twin of the same kind, in the round's folder. For everything else, such
as a webhook, the twin is a ``Recorder``: it behaves as its guarantee demands, and shows what Ferryman has sent. Each
twin is wrapped in a ``Twin``, which writes down every call, and has the faults of the round.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from ferryman.destinations import Directory, JsonLines, Null, Queue, Sql
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Guarantee,
    Outcome,
    Stored,
    encode_payload,
)
from ferryman.errors import FerrymanError
from ferryman.net import databases
from ferryman.plan import DestinationNode, target_of
from ferryman.proof.faults import Effects

ARRIVALS: Final = "arrivals.jsonl"
"""File of a round with every delivery that a twin was given."""

Misbehaviour = Literal["", "refuses", "away", "hangs", "half", "drops", "forgets"]
"""Misbehaviour of a twin in the call that its fault hits."""

_DECLARED: Final = (
    "effect",
    "transactional",
    "single_writer",
    "in_order",
    "compares_sequences",
    "holds_keys",
    "keyed_by_id",
    "preferred_batch",
)
"""Attributes by which a destination declares what it promises, and its twin too."""

HANG_S: Final = 3600.0
"""Longer than any call may take."""


class Arrival(NamedTuple):
    """A delivery that a twin was given.

    Attributes:
        node: name of the destination's node.
        digest: of all that the destination stores of it, but the sequence.
        refused: the twin did nothing with it.
    """

    node: str
    hash: str
    digest: str
    operation: str
    id: str
    version: str
    route: str
    source: str
    sequence: int
    refused: bool


class Holding(NamedTuple):
    """A delivery that a twin holds at the end of a round."""

    id: str
    hash: str
    intact: bool | None


# Of the same kind, where there is one.


def scratch_of(destination: Destination, name: str) -> Destination | None:
    """Return the same destination with a table of its own beside the user's; None: it is not a database on a server."""
    if not isinstance(destination, Sql) or _database(destination).get_backend_name() == "sqlite":
        return None
    twin = copy.copy(destination)
    vars(twin)["table"] = f"{destination.table}_{name}"
    return twin


def drop_scratch(twin: Destination) -> None:
    """Drop a scratch table, and what belongs to it."""
    inner = twin.inner if isinstance(twin, Twin) else twin
    assert isinstance(inner, Sql)
    engine = sa.create_engine(_database(inner))
    quote = engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        for suffix in ("", "_tombstones"):
            name = ".".join(quote(part) for part in f"{inner.table}{suffix}".split("."))
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))
    engine.dispose()


def embedded_twin(destination: Destination, folder: Path) -> Destination | None:
    """Return a twin of the same kind in a folder; None: the kind needs a server, or is not known."""
    match destination:
        case Sql() if _database(destination).get_backend_name() == "sqlite":
            twin = copy.copy(destination)
            vars(twin)["url"] = f"sqlite:///{folder / 'twin.db'}"
            return twin
        case JsonLines() | Directory():
            return destination.elsewhere(folder / "files")
        case Queue():
            return Queue(destination.name, folder, keep=destination.keep, text=destination.text)
        case Null():
            return destination
    return None


def _database(destination: Sql) -> sa.URL:
    return databases.parse_url(destination.url)


def can_be_read(destination: Destination) -> bool:
    """Return whether what it holds can be read back."""
    return type(destination).inventory is not Destination.inventory


def make_twin(node: DestinationNode, folder: Path, scratch: str = "") -> tuple[Destination, str]:
    """Return the twin of a node's destination, and its kind: "embedded", "scratch" or "recorder".

    Args:
        scratch: end of the names of scratch tables; "": none may be made.
    """
    destination = node.destination
    own = folder / blake2b(target_of(node).encode(), digest_size=6).hexdigest()
    own.mkdir(parents=True, exist_ok=True)
    if (twin := embedded_twin(destination, own)) is not None:
        return twin, "embedded"
    if scratch and (twin := scratch_of(destination, scratch)) is not None:
        return twin, "scratch"
    recorder = ReadableRecorderTwin if can_be_read(destination) else RecorderTwin
    return recorder(own / "record.jsonl", destination, node.policy.guarantee), "recorder"


class RecorderTwin(Destination):
    """Keeps what it is given in a file, as a destination with these promises does.

    A transactional one keeps each hash once; one that compares sequences keeps no delivery older than what it has.

    Args:
        like: the destination whose promises it makes.
    """

    effect = Effect.POTENT

    def __init__(self, path: Path, like: Destination, guarantee: Guarantee) -> None:
        _declare(self, like)
        self.path = path
        self.once = guarantee is Guarantee.EXACTLY_ONCE
        self._sender = ""

    def open(self, context: DestinationContext) -> None:
        self._sender = context.destination

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        with open(self.path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            hashes, highest = set(), dict[str, int]()
            for id, digest, sequence, *_ in read_lines(self.path):
                hashes.add(digest)
                highest[id] = max(sequence, highest.get(id, 0))
            outcomes, added = [], []
            for each in chunk:
                if self.once and self.keeps_hash(each.hash, hashes):
                    outcomes.append(Outcome.ok())
                elif self.compares_sequences and each.sequence < highest.get(each.id, 0):
                    outcomes.append(Outcome.stale())
                else:
                    added.append([each.id, each.hash, each.sequence, each.operation, self._sender])
                    hashes.add(each.hash)
                    highest[each.id] = each.sequence
                    outcomes.append(Outcome.ok())
            append_lines(self.path, added)
        return outcomes

    def keeps_hash(self, digest: str, hashes: Collection[str]) -> bool:
        """Return whether a hash is there already: what exactly-once rests on."""
        return digest in hashes

    def highest_sequence(self) -> int | None:
        return max((row[2] for row in read_lines(self.path)), default=None)

    def held(self) -> list[Holding]:
        """Return what it holds: of one that is keyed by id the last delivery of each id that was not deleted, else all
        of them."""
        rows = read_lines(self.path)
        if self.keyed_by_id:
            last = {id: (id, digest, operation) for id, digest, _, operation, _ in rows}
            return [Holding(id, digest, True) for id, digest, operation in last.values() if operation == "upsert"]
        return [Holding(id, digest, True) for id, digest, *_ in rows]


class ReadableRecorderTwin(RecorderTwin):
    """Recorder of a destination that can be read back."""

    def identity(self) -> str | None:
        return None

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        wanted = None if ids is None else set(ids)
        for each in self.held():
            if wanted is None or each.id in wanted:
                yield Stored(each.id, each.hash, each.intact)


def _declare(twin: Destination, like: Destination) -> None:
    for name in _DECLARED:
        value = getattr(like, name)
        if getattr(twin, name) != value:
            setattr(twin, name, value)


# What writes down each call, and misbehaves.


class Twin(Destination):
    """Passes all calls on, writes down each delivery, and misbehaves in the calls that its fault hits.

    Args:
        inner: the twin itself.
        node: name of its node.
        folder: folder of the round.
        misbehaviour: how it misbehaves.
        effects: when.
    """

    effect = Effect.POTENT

    def __init__(
        self,
        inner: Destination,
        node: str,
        folder: Path,
        misbehaviour: Misbehaviour = "",
        effects: Effects | None = None,
    ) -> None:
        _declare(self, inner)
        self.inner = inner
        self._node = node
        self._folder = folder
        self._misbehaviour = misbehaviour
        self._effects = effects or Effects.none()

    def target(self) -> str | None:
        return self.inner.target()

    def local_paths(self) -> tuple[str, ...]:
        return self.inner.local_paths()

    def not_installed(self) -> str:
        return self.inner.not_installed()

    def check(self) -> None:
        self.inner.check()

    def identity(self) -> str | None:
        return self.inner.identity()

    def highest_sequence(self) -> int | None:
        return self.inner.highest_sequence()

    def highest_of(self, context: DestinationContext) -> int | None:
        return self.inner.highest_of(context)

    def forgets(self, context: DestinationContext) -> bool:
        return self.inner.forgets(context)

    def open(self, context: DestinationContext) -> None:
        self.inner.open(context)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        misbehaves = self._misbehaviour if self._effects.happens() else ""
        match misbehaves:
            case "refuses":
                self._note(chunk, refused=True)
                return [Outcome.transient("the proof has it refuse")] * len(chunk)
            case "away":
                self._note(chunk, refused=True)
                raise ConnectionRefusedError("the proof has taken it away")
            case "forgets":
                keep_copy(self.inner, self._folder)
        self._note(chunk)
        if misbehaves == "half":
            half = chunk[: len(chunk) // 2]
            return list(self.inner.write(half)) if half else []
        outcomes = list(self.inner.write(chunk))
        if misbehaves == "hangs":
            time.sleep(HANG_S)
        if misbehaves == "drops":
            raise ConnectionResetError("the proof has dropped the connection, after the work was done")
        return outcomes

    def close(self) -> None:
        self.inner.close()

    def _note(self, chunk: list[Delivery], *, refused: bool = False) -> None:
        rows = [
            Arrival(
                self._node,
                each.hash,
                digest_of(each),
                each.operation,
                each.id,
                each.version,
                "/".join(each.route),
                each.source,
                each.sequence,
                refused,
            )
            for each in chunk
        ]
        append_lines(self._folder / ARRIVALS, rows)


class ReadableTwin(Twin):
    """Twin of a destination that can be read back."""

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        return self.inner.inventory(context, ids)


def wrap(
    inner: Destination, node: str, folder: Path, misbehaviour: Misbehaviour, effects: Effects | None
) -> Destination:
    """Return a twin that writes down what it is given."""
    kind = ReadableTwin if can_be_read(inner) else Twin
    return kind(inner, node, folder, misbehaviour, effects)


def digest_of(delivery: Delivery) -> str:
    """Return a hash over all of a delivery but its sequence."""
    try:
        payload = msgspec.json.decode(encode_payload(delivery))
    except (ValueError, TypeError, FerrymanError):
        payload = {"id": delivery.id, "operation": delivery.operation, "version": delivery.version}
    payload.pop("sequence", None)
    payload.pop("hash", None)
    return blake2b(msgspec.json.encode(payload, order="sorted"), digest_size=12).hexdigest()


def append_lines(path: Path, rows: list[Any]) -> None:
    """Append rows to a file that several processes write to, each of which may be killed meanwhile."""
    lines = b"".join(b"\n" + msgspec.json.encode(row) for row in rows)  # the row before may have no end
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, lines)
    finally:
        os.close(fd)


def read_lines(path: Path) -> list[list[Any]]:
    """Return the rows of a file, if it is there; what a killed process has not written to its end does not count."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            rows.append(msgspec.json.decode(line))
    return rows


def read_arrivals(folder: Path) -> list[Arrival]:
    """Return what the twins of a round were given, in the order of arrival."""
    return [Arrival(*row) for row in read_lines(folder / ARRIVALS)]


def held_by(twin: Destination, context: DestinationContext) -> list[Holding] | None:
    """Return what a twin holds; None: it cannot be read."""
    inner = twin.inner if isinstance(twin, Twin) else twin
    if isinstance(inner, RecorderTwin):
        return inner.held()
    if not can_be_read(inner):
        return None
    return [Holding(each.id, each.hash, each.intact) for each in inner.inventory(context)]


# Losing what was acknowledged.


def keep_copy(inner: Destination, folder: Path) -> None:
    """Keep a copy of all that an embedded twin has now."""
    place = _place(inner)
    if place is not None and place.exists():
        shutil.copytree(place, folder / "kept", dirs_exist_ok=True)


def can_forget(inner: Destination) -> bool:
    """Return whether this twin can lose what it has, and be read back."""
    return _place(inner) is not None and can_be_read(inner) and not isinstance(inner, Queue | Null)


def forget_tail(inner: Destination, folder: Path) -> None:
    """Replace the content of the twin by the copy: its last writes are lost."""
    place = _place(inner)
    assert place is not None
    shutil.rmtree(place)
    shutil.copytree(folder / "kept", place)


def forget_holes(inner: Destination, folder: Path, chance: Random) -> int:
    """Lose some of what the twin has, here and there; return how much.

    Of a destination that keeps every delivery, only those since the copy are lost: an older version of a document
    cannot be sent again once there is a newer one.
    """
    place, kept = _place(inner), folder / "kept"
    assert place is not None
    match inner:
        case Sql():
            before = 0 if inner.keyed_by_id else _highest_row(kept / "twin.db", inner.table)
            with contextlib.closing(sqlite3.connect(place / "twin.db")) as db, db:
                query = f'SELECT rowid FROM "{inner.table}" WHERE rowid > ? ORDER BY rowid'
                lost = _some([id for (id,) in db.execute(query, [before])], chance)
                db.executemany(f'DELETE FROM "{inner.table}" WHERE rowid = ?', [(id,) for id in lost])
        case RecorderTwin():
            rows = read_lines(inner.path)
            first = 0 if inner.keyed_by_id else len(read_lines(kept / inner.path.name))
            lost = _some(range(first, len(rows)), chance)
            inner.path.unlink()
            append_lines(inner.path, [row for at, row in enumerate(rows) if at not in lost])
        case _:
            files = sorted(
                path
                for path in place.rglob("*")
                if path.is_file()
                and not _is_hidden(path, place)
                and (inner.keyed_by_id or not (kept / path.relative_to(place)).exists())
            )
            lost = _some(files, chance)
            for path in lost:
                path.unlink()
    return len(lost)


def _highest_row(database: Path, table: str) -> int:
    """Return the highest row of a table; 0 if there is none."""
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(database)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
            return 0
        [(highest,)] = db.execute(f'SELECT max(rowid) FROM "{table}"').fetchall()
        return highest or 0


def _some(items: Any, chance: Random) -> list[Any]:
    items = list(items)
    return chance.sample(items, min(len(items), max(1, len(items) // 4)))


def _is_hidden(path: Path, place: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(place).parts)


def _place(inner: Destination) -> Path | None:
    """Return the folder that an embedded twin is in."""
    match inner:
        case Sql() if _database(inner).get_backend_name() == "sqlite":
            return Path(_database(inner).database or "").parent
        case JsonLines() | Directory():
            return Path(inner.directory)
        case RecorderTwin():
            return inner.path.parent
        case Queue():
            return Path(inner.root)
    return None
