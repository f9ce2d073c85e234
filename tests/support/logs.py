"""Logs of other kinds than a queue, in a folder: a topic with partitions, a change feed, numbered batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ferryman.destinations import Destination
from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.plan import Plan
from ferryman.sources import Entry, Listed, Log, Piece, Queue
from ferryman.sources.log import Positions
from tests.support.plan_world import PlanWorld


class Topic(Log):
    """As Kafka has them: partitions with offsets from 0; compaction leaves gaps, retention removes the oldest.

    A partition is a file of records, each (offset, key, value), and one that says where it begins and ends.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def identity(self) -> str:
        path = self.folder / "id"
        return path.read_text() if path.exists() else ""

    def begin(self) -> Positions:
        return {p: self._bounds(p)[0] for p in self.partition_names()}

    def end(self) -> Positions:
        return {p: self._bounds(p)[1] for p in self.partition_names()}

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        kept = {p: max(start.get(p, 0), self._bounds(p)[0]) for p in end}
        return iter(super().pieces(kept, end, limit))

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for offset, _, value in self._records(piece.partition):
            if piece.start <= offset < piece.end:
                yield self._made(piece.partition, offset, value)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        partition, _, offset = listed.id.rpartition("/")
        for found, _, value in self._records(partition):
            if found == int(offset):
                return self._made(partition, found, value)
        raise BadDocument(f"{listed.id}: the topic does not keep this record any more")

    def partition_names(self) -> list[str]:
        return sorted(p.stem for p in self.folder.glob("*.bounds"))

    # -- the outside world -------------------------------------------------------------------------

    def publish(self, partition: str, *values: Any, key: str | None = None) -> None:
        """Append records; a partition is made by its first. A text is a value that is not an object."""
        begin, end = self._bounds(partition)
        with (self.folder / f"{partition}.records").open("a") as file:
            for offset, value in enumerate(values, end):
                file.write(json.dumps([offset, key, value]) + "\n")
        self._put_bounds(partition, begin, end + len(values))

    def compact(self, partition: str) -> None:
        """Of several records of one key only the last is kept; offsets stay."""
        last = {key: offset for offset, key, _ in self._records(partition) if key is not None}
        self._keep(partition, [r for r in self._records(partition) if r[1] is None or last[r[1]] == r[0]])

    def expire(self, partition: str, before: int) -> None:
        """Records before this offset are removed."""
        self._keep(partition, [r for r in self._records(partition) if r[0] >= before])
        self._put_bounds(partition, before, self._bounds(partition)[1])

    def make_again(self, id: str) -> None:
        """Delete it, and make one of this identity."""
        for path in self.folder.iterdir():
            path.unlink()
        (self.folder / "id").write_text(id)

    def _made(self, partition: str, offset: int, value: Any) -> Entry:
        id, came = f"{partition}/{offset}", json.dumps({"topic": [partition, offset]})
        if not isinstance(value, Mapping):
            return Entry(offset, Document(id), provenance=came, refused=f"{value!r} is not an object")
        return Entry(offset, Document(id, **value), provenance=came)

    def _records(self, partition: str) -> list[Any]:
        path = self.folder / f"{partition}.records"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _keep(self, partition: str, records: list[Any]) -> None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (self.folder / f"{partition}.records").write_text(text)

    def _bounds(self, partition: str) -> tuple[int, int]:
        path = self.folder / f"{partition}.bounds"
        begin, end = json.loads(path.read_text()) if path.exists() else (0, 0)
        return begin, end

    def _put_bounds(self, partition: str, begin: int, end: int) -> None:
        (self.folder / f"{partition}.bounds").write_text(json.dumps([begin, end]))


class ChangeFeed(Log):
    """As a Delta table has them: each version is a file of changes. A version is a place, which its changes share."""

    shares_places = True

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def begin(self) -> Positions:
        return {"table": min(self._versions(), default=0)}

    def end(self) -> Positions:
        return {"table": max(self._versions(), default=-1) + 1}

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Whole versions, so many that they have no more changes than ``limit``; one at least."""
        first: int | None = None
        count = 0
        for version in self._versions():
            if not start["table"] <= version < end["table"]:
                continue
            changes = len(self._changes(version))
            if first is not None and count + changes > limit:
                yield Piece("table", first, version)
                first, count = version, 0
            first = version if first is None else first
            count += changes
        if first is not None:
            yield Piece("table", first, end["table"])

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for version in range(piece.start, piece.end):
            for row, change in enumerate(self._changes(version)):
                yield Entry(version, Document(f"{version}/{row}", **change))

    def read(self, listed: Listed) -> Document:
        version, _, row = listed.id.partition("/")
        if int(version) not in self._versions():
            raise BadDocument(f"{listed.id}: the table does not keep this version any more")
        return Document(listed.id, **self._changes(int(version))[int(row)])

    # -- the outside world -------------------------------------------------------------------------

    def commit(self, *changes: dict[str, Any]) -> int:
        """A version with these changes; its number."""
        version = self.end()["table"]
        (self.folder / f"{version:06}.json").write_text(json.dumps(changes))
        return version

    def vacuum(self, before: int) -> None:
        """Remove what is older than this version."""
        for version in self._versions():
            if version < before:
                (self.folder / f"{version:06}.json").unlink()

    def _versions(self) -> list[int]:
        return sorted(int(p.stem) for p in self.folder.glob("*.json"))

    def _changes(self, version: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / f"{version:06}.json").read_text())
        return found


class Batches(Log):
    """As a stream hands them out: numbered batches from 0, each of them one document."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def begin(self) -> Positions:
        return {"batches": 0}

    def end(self) -> Positions:
        return {"batches": len(list(self.folder.iterdir()))}

    def read_piece(self, piece: Piece) -> Iterator[Document]:
        for number in range(piece.start, piece.end):
            yield self.read(Listed(f"batch/{number}", 0))

    def read(self, listed: Listed) -> Document:
        path = self.folder / listed.id.rpartition("/")[2]
        return Document(listed.id, raw=path.read_bytes())

    # -- the outside world -------------------------------------------------------------------------

    def add(self, content: bytes) -> None:
        """The next batch."""
        (self.folder / str(self.end()["batches"])).write_bytes(content)


def build_reader(
    world: PlanWorld,
    log: Log | None = None,
    *steps: Callable[..., Any],
    name: str = "reading",
    ends: tuple[str, str] = ("log", "out"),
    into: Destination | None = None,
    backoff: float = 0,
    **options: Any,
) -> Plan:
    """Build a plan: a log → steps, named as their functions → a destination.

    Args:
        log: default: queue ``in``, read with ``options``.
        ends: names of the source and the destination.
        into: default: a recorder.
    """
    plan = Plan(name, version=1)
    node = plan.source(ends[0], log or Queue("in", world.folder, **options))
    for step in steps:
        node = node.step(step.__name__, step)
    node.destination(ends[1], into or world.out(), backoff=backoff)
    return plan


def read_log(folder: Path, log: Log | None = None, *steps: Callable[..., Any], **options: Any) -> PlanWorld:
    """Create a world whose plan reads a log, see ``build_reader``; ``put`` appends numbers ``n`` to queue ``in``."""
    return PlanWorld(folder, build_reader, field="n").build(log, *steps, **options)
