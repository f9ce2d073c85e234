"""Sample of a plan's sources: read once, and then listed as the same two versions in every round of a proof.

In the first version the newest documents are missing. In the second they are there, some have the content of others,
and some are gone. So each round has documents that are new, changed and deleted, whatever the sources do meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from ferryman.document import Document, copy_value
from ferryman.engine.transform.reader import read_listed
from ferryman.errors import BadDocument, Unavailable, UsageError
from ferryman.limits import MIB
from ferryman.plan import AltsNode, JoinNode, Plan, SourceNode
from ferryman.proof.faults import Effects
from ferryman.sources import DataFrame, Fetched, Listed, Source
from ferryman.sources.log import Entry, Log, Piece, Positions

VERSIONS: Final = 2
"""Versions of a sample, which a round's runs see one after the other."""

_LISTED: Final = 20
"""Documents that are listed for each that is drawn."""

_BYTES: Final = 64 * MIB
"""Size of a sample: it is read again in each round."""

_SHARE: Final = 8
"""One document of so many is new, one is changed, and one is deleted in the second version."""

_OWN: Final = ("uri", "name")
"""Fields that a document keeps when it gets the content of another."""


class Drawn(NamedTuple):
    """A document as its source gave it, or the reason why it cannot be one."""

    id: str
    raw: bytes | None
    fields: dict[str, Any]
    refused: str = ""
    size: int = 0

    @property
    def bytes(self) -> int:
        return self.size or len(self.raw or b"") + 64 * len(self.fields)


@dataclass(frozen=True)
class DrawnSource:
    """Documents of one source.

    Attributes:
        reads: it lists documents without their content, which is read later.
        entries: entries of a log, in place of documents.
    """

    reads: bool = False
    documents: list[Drawn] = field(default_factory=list)
    entries: list[Document | Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.documents) + len(self.entries)

    @property
    def bytes(self) -> int:
        """Approximate size."""
        return sum(each.bytes for each in self.documents) + 1024 * len(self.entries)

    def version(self, number: int) -> list[Drawn]:
        """Return the documents of a version, from 0."""
        documents = self.documents
        new = set(range(len(documents) - 1, 1, -_SHARE))
        if number == 0:
            return [each for place, each in enumerate(documents) if place not in new]
        gone = set(range(2, len(documents) - 1, _SHARE)) - new
        changed = {place for place in range(0, len(documents), _SHARE) if place not in gone | new}
        return [
            self._exchange_content(place) if place in changed else each
            for place, each in enumerate(documents)
            if place not in gone
        ]

    def _exchange_content(self, place: int) -> Drawn:
        """Return a document with the content of the next one of its kind, which its steps can surely process."""
        this = self.documents[place]
        kind = PurePosixPath(this.id).suffix
        for other in self.documents[place + 1 :] + self.documents[:place]:
            alike = PurePosixPath(other.id).suffix == kind and not other.refused and not this.refused
            if alike and (other.raw, other.fields) != (this.raw, this.fields):
                kept: dict[str, Any] = {name: this.fields[name] for name in _OWN if name in this.fields}
                return this._replace(raw=other.raw, fields={**other.fields, **kept}, size=other.size)
        return this


Sample = dict[str, DrawnSource]
"""Name of a source node -> what was drawn of it."""


def draw_sample(plan: Plan, count: int, seed: int) -> Sample:
    """Read at most ``count`` documents of each source, drawn at random.

    Raises:
        UsageError: a source cannot be sampled, or has no documents.
    """
    sample: Sample = {}
    for node in plan.nodes:
        if isinstance(node, SourceNode) and not isinstance(node, JoinNode | AltsNode):
            node.source.check()
            if isinstance(node.source, Log):
                sample[node.name] = DrawnSource(entries=list(islice(_entries(node.source, count), count)))
            elif isinstance(node.source, DataFrame):
                raise UsageError(
                    f"source {node.name} is a DataFrame, which only Spark can read, and a proof does not: give the "
                    "plan another source for it, such as Memory with some rows."
                )
            else:
                sample[node.name] = _draw(node.source, count, random.Random(seed))
    if empty := [name for name, drawn in sample.items() if not len(drawn)]:
        raise UsageError(f"source {', '.join(empty)} has no documents: there is nothing to prove anything with.")
    return sample


def _draw(source: Source, count: int, chance: random.Random) -> DrawnSource:
    listed = list(islice(_listing(source), _LISTED * count))
    chosen = sorted(chance.sample(range(len(listed)), min(count, len(listed))))
    documents: list[Drawn] = []
    room = _BYTES
    for place in chosen:
        each = _read(source, listed[place])
        if each is not None and each.bytes <= room:
            documents.append(each)
            room -= each.bytes
    return DrawnSource(any(isinstance(each, Listed) for each in listed), list({d.id: d for d in documents}.values()))


def _listing(source: Source) -> Iterator[Listed | Document]:
    for partition in source.partitions_after({}):
        for each in source.listing(partition):
            if isinstance(each, Fetched):
                each = each.document
            if isinstance(each, Listed) or (isinstance(each, Document) and each.operation == "upsert"):
                yield each


def _read(source: Source, each: Listed | Document) -> Drawn | None:
    """Return a listed document with its content; None: it went meanwhile."""
    if isinstance(each, Document):
        return Drawn(each.id, each.raw, dict(each.fields))
    if each.refused:
        return Drawn(each.id, None, {}, each.refused)
    if each.size > _BYTES:
        return None
    try:
        found = read_listed(source, each)
    except BadDocument as e:
        return Drawn(each.id, None, {}, str(e))
    except OSError:
        return None
    if found is None:
        return None
    document, _ = found
    return Drawn(each.id, document.raw, dict(document.fields), size=each.size)


def _entries(log: Log, count: int) -> Iterator[Document | Entry]:
    for piece in log.pieces(log.begin(), log.end(), count):
        yield from log.read_piece(piece)


# What stands in place of the sources, in each round.


class SampleSource(Source):
    """Lists a sample in place of a plan's own source. Steps get copies, as a source makes a new document for each.

    Args:
        drawn: documents of a version.
        reads: it lists them without their content.
        like: the source itself, of which ids and errors are.
        effects: faults of this source.
    """

    def __init__(self, drawn: Sequence[Drawn], reads: bool, like: Source, effects: Effects) -> None:
        super().__init__(prefix=like.prefix, detect=like.detect, max_deleted=1.0)
        self.encodes_ids = like.encodes_ids
        self.unsupported = like.unsupported
        self.uncounted = like.uncounted
        self._drawn = {each.id: each for each in drawn}
        self._reads = reads
        self._effects = effects

    def partitions(self) -> list[list[str]]:
        """Split it into two pieces, so that two tasks list it."""
        ids = list(self._drawn)
        middle = (len(ids) + 1) // 2
        return [ids[:middle], ids[middle:]]

    def listing(self, partition: list[str]) -> Iterator[Listed | Document]:
        """Yield the documents of a piece."""
        if self._effects.happens():
            raise Unavailable("the proof has taken the source away")
        for id in partition:
            each = self._drawn[id]
            if each.refused:
                yield Listed(id, 0, refused=each.refused)
            elif self._reads:
                yield Listed(id, each.bytes)
            else:
                yield Document.of(id, copy_value(each.fields), each.raw)

    def read(self, listed: Listed) -> Document:
        """Return the content of a document."""
        each = self._drawn[listed.id]
        return Document.of(each.id, copy_value(each.fields), each.raw)


class SampleLog(Log):
    """Has the entries of a sample in place of a plan's own log; the last ones only in the second version."""

    def __init__(self, drawn: DrawnSource, version: int, like: Log) -> None:
        super().__init__(prefix=like.prefix, ordered=like.ordered, on_error=like.on_error)
        self.filters = like.filters
        self.repeats_ids = like.repeats_ids
        entries = drawn.entries
        self._documents = [each.document if isinstance(each, Entry) else each for each in entries]
        self._entries = entries if version else entries[: len(entries) - len(entries) // _SHARE]

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> Positions:
        """Return the place of the first entry."""
        return {"sample": 0}

    def end(self) -> Positions:
        """Return the place after the last entry."""
        return {"sample": len(self._entries)}

    def read_piece(self, piece: Piece) -> Iterator[Document | Entry]:
        """Yield the entries of a piece."""
        for place in range(piece.start, piece.end):
            each = self._entries[place]
            document = self._documents[place]
            copied = Document.of(document.id, copy_value(document.fields), document.raw)
            if isinstance(each, Entry):
                yield each._replace(place=place, document=copied)
            else:
                yield Entry(place, copied)

    def read(self, listed: Listed) -> Document:
        """Return a single entry."""
        document = next(each for each in self._documents if each.id == listed.id)
        return Document.of(document.id, copy_value(document.fields), document.raw)


def bytes_of(sample: Sample) -> int:
    """Return the approximate size of a sample."""
    return sum(each.bytes for each in sample.values())
