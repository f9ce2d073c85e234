"""Where a plan stands in its logs: application transactions of the outbox, committed with the waves that got there.

A number of 0 is as good as none, so places are kept one higher. Positions are of one log: those of a log that was
deleted and made again are others, also of partitions that it does not have yet. A source that reads several logs (a
join) keeps the positions of each under its name, any other source under "".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.records.schemas import DOCUMENTS
from ferryman.sources.log import Log, Positions
from ferryman.state.identity import id_of
from ferryman.state.passed import READ
from ferryman.state.state import State
from ferryman.storage import parquet

RANGES: Final = "ferryman.ranges"
"""Application id: the last wave that has written rows of ranges into the ledger; see ``schemas.RANGE``."""

Partitions = Mapping[str, Iterable[str]]
"""Name of a log -> its partitions."""


class Head(NamedTuple):
    """The entry at which a log waits, and what it has had."""

    place: int
    entry: int
    """Number of its id, see ``number_of``: several may have one place."""
    attempt: int
    transient: int
    since: int
    """When it first failed for now, µs since 1970; 0: it has not."""
    replay: int
    """Of the log, see ``LogPositions.replay``: read again, it is another revision."""


class LogPositions:
    """Of one source of a state."""

    def __init__(self, state: State, source: str) -> None:
        self._outbox = state.outbox
        self._documents = state.documents
        self._name = source

    def of(self, identities: Mapping[str, str], logs: Partitions) -> dict[str, int]:
        """The place that comes next, of those partitions of which something is known: nothing of a log that is another
        one now.

        Args:
            identities: see ``sources.Log``.
        """
        stems = {name: self._positions_of(name, self._now(name, identities)) for name in logs}
        known = {p: self._outbox.number(f"{stems[name]}{p}") for name, partitions in logs.items() for p in partitions}
        return {partition: number - 1 for partition, number in known.items() if number}

    def every(self) -> dict[str, int]:
        """The same of all partitions, also where the logs cannot be asked which they have."""
        stem = f"{self._key('position')}/"
        return {key.removeprefix(stem).split("/", 2)[2]: number - 1 for key, number in self._kept().items()}

    @property
    def known(self) -> bool:
        """Was the source ever read?"""
        return self.read > 0

    @property
    def read(self) -> int:
        """Entries that were processed, of this source."""
        return self._outbox.number(self.read_key)

    @property
    def read_key(self) -> str:
        """Application id of ``read``."""
        return f"{READ}{self._name}"

    @property
    def replay(self) -> int:
        """Grows each time the source is read from another place on than where the plan stood: one less than the
        revision of what is read for the first time since."""
        return self._outbox.number(self._key("replay"))

    def next_replay(self) -> int:
        """For a log that is read from another place on: its entries get revisions that none of this source has had."""
        paths, columns = self._documents.paths(), pa.schema([DOCUMENTS.field("source"), DOCUMENTS.field("revision")])
        rows = parquet.scan(paths, columns).to_table(filter=pc.field("source") == self._name) if paths else None
        highest = pc.max(rows["revision"]).as_py() if rows is not None else None
        return max(self.replay + 1, highest or 0)

    def replaced(self, identities: Mapping[str, str]) -> list[str]:
        """Of its logs, those that are others now than the positions are of.

        Args:
            identities: see ``sources.Log``.
        """
        return [
            name
            for name, identity in identities.items()
            if identity and self._log(name) not in (0, number_of(identity))
        ]

    def missing(self, identities: Mapping[str, str]) -> list[str]:
        """Of its logs, those that were known and are not there now.

        Args:
            identities: see ``sources.Log``.
        """
        return [name for name, identity in identities.items() if not identity and self._log(name)]

    def has_followed(self, moved: str) -> bool:
        """Was this the last move of the reader that was followed?"""
        return self._outbox.number(self._key("moved")) == number_of(moved)

    def transactions(
        self,
        identities: Mapping[str, str],
        logs: Partitions,
        positions: Mapping[str, int],
        read: int,
        replay: int,
        moved: str = "",
    ) -> dict[str, int]:
        """What a commit keeps of a source that got there.

        Args:
            identities: of its logs; "": one does not say now, and is the one that was known.
            moved: the last move of the reader, which this follows.
        """
        found = {self.read_key: read, self._key("replay"): replay}
        if moved:
            found[self._key("moved")] = number_of(moved)
        for name, partitions in logs.items():
            log = self._now(name, identities)
            stem = self._positions_of(name, log)
            found |= {f"{stem}{partition}": positions[partition] + 1 for partition in partitions}
            if log:
                found[f"{self._key('log')}/{name}"] = log
        return found

    def head(self, partition: str) -> Head | None:
        """At which entry the log waited last, and how often it was tried; None: it never did. It may have gone through
        since."""
        stem = self._head_of(partition)
        if not self._outbox.number(f"{stem}attempt"):
            return None
        return Head(*(self._outbox.number(f"{stem}{field}") for field in Head._fields))

    def head_transactions(self, partition: str, head: Head) -> dict[str, int]:
        """What a commit keeps of it."""
        stem = self._head_of(partition)
        return {f"{stem}{field}": number for field, number in head._asdict().items()}

    def all_transactions(self) -> dict[str, int]:
        """All that is kept of the source, for a state that goes on with it."""
        if not self.known:
            return {}
        logs = {key: n for key, n in self._outbox.log.transactions().items() if key.startswith(f"{self._key('log')}/")}
        moved = {key: n for key in [self._key("moved")] if (n := self._outbox.number(key))}
        return {**self._kept(), **logs, **moved, self.read_key: self.read, self._key("replay"): self.replay}

    def _kept(self) -> dict[str, int]:
        """Application id -> number, of each position of the logs as they are known now."""
        stem = f"{self._key('position')}/"
        found = {}
        for key, number in self._outbox.log.transactions().items():
            if key.startswith(stem):
                name, log, _ = key.removeprefix(stem).split("/", 2)
                if int(log, 16) == self._log(name):
                    found[key] = number
        return found

    def _log(self, name: str) -> int:
        """Of which log of this name the positions are; 0: nothing is known of it."""
        return self._outbox.number(f"{self._key('log')}/{name}")

    def _now(self, name: str, identities: Mapping[str, str]) -> int:
        """The log that is there now; where it does not say which it is, the one that was known."""
        identity = identities.get(name, "")
        return number_of(identity) if identity else self._log(name)

    def _key(self, what: str) -> str:
        return f"ferryman.{what}.{self._name}"

    def _head_of(self, partition: str) -> str:
        return f"{self._key('head')}/{partition}/"

    def _positions_of(self, name: str, log: int) -> str:
        """What the application ids of a log's positions begin with."""
        return f"{self._key('position')}/{name}/{log:x}/"


def stands_at(
    kept: LogPositions | None, log: Log, identities: Mapping[str, str], begin: Positions, end: Positions
) -> dict[str, int]:
    """The place that comes next, of each partition that a log has; where nothing is known, its first.

    Args:
        kept: None: the plan has no state yet.
    """
    known = {} if kept is None else kept.of(identities, {name: log.partitions_of(name, end) for name in identities})
    return {partition: known.get(partition, begin.get(partition, last)) for partition, last in end.items()}


def reader_of(state: State, source: str) -> str:
    """By which name a log knows who reads it: no other state's source has it."""
    return f"{state.plan.key}.{source}"[: limits.READER_CHARACTERS] + f"-{id_of(state.root)[:8]}"


def number_of(identity: str) -> int:
    """A text as a number of 62 bits, above 0."""
    return 1 + (int.from_bytes(blake2b(identity.encode(), digest_size=8).digest()) >> 2)
