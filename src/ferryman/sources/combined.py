"""Several logs read as one: for ``Plan.join`` and ``Plan.alts``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from ferryman import limits
from ferryman.document import Document, decode_fields
from ferryman.errors import BadDocument, Misconfigured
from ferryman.records.provenance import Provenance, encode
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, Moved, Piece, Positions

if TYPE_CHECKING:
    import pyarrow as pa

_BETWEEN: Final = "&"
"""Between the ids of the entries that make one document."""

_NUMBER: Final = "#"
"""The partition of a join's own count."""

_LAST: Final = 1 << 62
"""No join comes to this number: how many there will be shows only when they are read."""


class CombinedLog(Log):
    """Base of both.

    Args:
        inputs: name -> log.
    """

    def __init__(self, inputs: Mapping[str, Log]) -> None:
        logs = [log for log in inputs.values() if isinstance(log, Log)]  # others are refused by check
        ordered, stops = all(log.ordered for log in logs), any(log.on_error == "stop" for log in logs)
        super().__init__(ordered=ordered, on_error="stop" if stops else "continue")
        self.inputs = dict(inputs)

    def check(self) -> None:
        for log in self.inputs.values():
            log.check()

    def place(self) -> str | None:
        return ", ".join(place for log in self.inputs.values() if (place := log.place()))

    def local_paths(self) -> tuple[str, ...]:
        return tuple(path for log in self.inputs.values() for path in log.local_paths())

    def identities(self) -> dict[str, str]:
        return {name: log.identity() for name, log in self.inputs.items()}

    def nothing(self) -> str:
        return "; ".join(filter(None, (log.nothing() for log in self.inputs.values())))

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        """Of all positions, those of one input, under its own partitions."""
        raise NotImplementedError

    def place_of(self, name: str) -> str | None:
        return self.inputs[name].place()

    def forget(self, reader: str) -> None:
        for name, log in self.inputs.items():
            log.forget(self._reader(reader, name))

    def moved(self, reader: str) -> Moved | None:
        moves = {name: log.moved(self._reader(reader, name)) for name, log in self.inputs.items()}
        found = {name: move for name, move in moves.items() if move is not None}
        positions = {p: at for name, move in found.items() for p, at in self._under(name, move.positions).items()}
        return Moved(positions, json.dumps({name: move.token for name, move in found.items()})) if found else None

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        tokens = json.loads(moved) if moved else {}
        for name, log in self.inputs.items():
            if mine := self.positions_of(name, positions):
                log.note(self._reader(reader, name), mine, tokens.get(name, ""))

    def _reader(self, reader: str, name: str) -> str:
        """By which name an input knows its reader: where two inputs read the same log, each by its own."""
        places = [log.place() for log in self.inputs.values()]
        if places.count(self.inputs[name].place()) == 1:
            return reader
        told, _, state = reader.rpartition("-")
        return f"{told[: limits.READER_CHARACTERS - len(name)]}.{name}-{state}"

    def _under(self, name: str, positions: Positions) -> Positions:
        """Positions of an input, under the partitions that it has here."""
        raise NotImplementedError


class Alternating(CombinedLog):
    """The entries of several logs, a piece of each in turns."""

    def begin(self) -> Positions:
        return self._all(lambda log: log.begin())

    def end(self) -> Positions:
        return self._all(lambda log: log.end())

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        each = [
            [piece._replace(partition=f"{name}/{piece.partition}") for piece in log.pieces(*places, limit)]
            for name, log in self.inputs.items()
            if all(places := (self.positions_of(name, start), self.positions_of(name, end)))
        ]
        for turn in zip_longest(*each):
            yield from (piece for piece in turn if piece is not None)

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        return piece._replace(identity=identities[piece.partition.partition("/")[0]])

    def read_piece(self, piece: Piece) -> Iterator[Document | Entry]:
        log, own = self._own(piece)
        return log.read_piece(own)

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        log, own = self._own(piece)
        return log.rows(own)

    def range_id(self, piece: Piece) -> str:
        log, own = self._own(piece)
        return log.range_id(own)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        errors = []
        for log in self.inputs.values():
            if listed.id.startswith(log.prefix):
                try:
                    return log.entry(listed._replace(id=log.own_id(listed.id)))
                except BadDocument as e:
                    errors.append(str(e))
        raise BadDocument("; ".join(errors) or f"{listed.id}: not an entry of any input")

    def full_id(self, id: str) -> str:
        return id  # it is the input's already

    def own_id(self, full_id: str) -> str:
        return full_id

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        mine = f"{name}/"
        return {p.removeprefix(mine): at for p, at in positions.items() if p.startswith(mine)}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        return [partition for partition in positions if partition.startswith(f"{name}/")]

    def _under(self, name: str, positions: Positions) -> Positions:
        return {f"{name}/{partition}": at for partition, at in positions.items()}

    def _all(self, ask: Any) -> Positions:
        return {p: at for name, log in self.inputs.items() for p, at in self._under(name, ask(log)).items()}

    def _own(self, piece: Piece) -> tuple[Log, Piece]:
        name, _, partition = piece.partition.partition("/")
        log = self.inputs[name]
        return log, piece._replace(partition=partition)


class Joined(CombinedLog):
    """The first entry of each log together, then the second of each, and so on: those that their filters let pass.

    Positions are those of the inputs, by their names, and the number of the document that comes next.
    """

    shares_places = True
    """What a filter drops has the number of the document that comes next."""

    def begin(self) -> Positions:
        return {**{name: _only(name, log.begin()) for name, log in self.inputs.items()}, _NUMBER: 1}

    def end(self) -> Positions:
        ends = {name: _only(name, log.end()) for name, log in self.inputs.items()}
        return {**ends, _NUMBER: _LAST}

    def lag(self, positions: Positions, end: Positions) -> int:
        return min(max(0, end[name] - positions[name]) for name in self.inputs)

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        if start[_NUMBER] >= end[_NUMBER]:
            return
        start = {**start, **{name: self._first(name, start[name], end[name]) for name in self.inputs}}
        if not (rows := self.lag(start, end)):
            return
        upto = {name: end[name] for name in self.inputs}
        if any(log.filters for log in self.inputs.values()):  # how many pass shows only when they are read
            yield self._piece(start, upto, start[_NUMBER], start[_NUMBER] + rows)
            return
        for done in range(0, rows, limit):
            some = min(limit, rows - done)
            first = {name: start[name] + done for name in self.inputs}
            last = {name: at + some for name, at in first.items()}
            number = start[_NUMBER] + done
            yield self._piece(first, last, number, number + some)

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        return piece._replace(identities=tuple(identities[name] for name, *_ in piece.inputs))

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        return self._entries(piece, {})

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        self._reached: dict[str, int] = {}
        return self._tables(self._entries(piece, self._reached))

    def reached(self, piece: Piece) -> Positions:
        return self._reached

    def behind(self, piece: Piece) -> Positions:
        return {name: last for name, _, last in piece.inputs} | {_NUMBER: piece.end}

    def range_id(self, piece: Piece) -> str:
        pieces = (
            (self.inputs[name], Piece(next(iter(self.inputs[name].begin())), first, last))
            for name, first, last in piece.inputs
        )
        return _BETWEEN.join(log.range_id(each) for log, each in pieces)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        parts: dict[str, Entry] = {}
        for (name, log), id in zip(self.inputs.items(), listed.id.split(_BETWEEN), strict=True):
            parts[name] = log.entry(listed._replace(id=log.own_id(unquote(id))))
        return self._joined(0, parts)

    def full_id(self, id: str) -> str:
        return id

    def own_id(self, full_id: str) -> str:
        return full_id

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        return {partition: positions[name] for partition in self.inputs[name].begin() if name in positions}

    def identities(self) -> dict[str, str]:
        return {**super().identities(), _NUMBER: _NUMBER}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        return [name]

    def _under(self, name: str, positions: Positions) -> Positions:
        return {name: next(iter(positions.values()))}

    def _first(self, name: str, start: int, end: int) -> int:
        """Of the entries of an input that lie between, the first that is kept."""
        [partition] = self.inputs[name].begin()
        pieces = self.inputs[name].pieces({partition: start}, {partition: end}, max(1, end - start))
        return next((piece.start for piece in pieces), max(start, end))

    def _piece(self, first: Positions, last: Positions, number: int, end: int) -> Piece:
        inputs = tuple((name, first[name], last[name]) for name in self.inputs)
        return Piece(_NUMBER, number, end, 0, "", inputs)

    def _entries(self, piece: Piece, reached: dict[str, int]) -> Iterator[Entry]:
        """One after the other; where the inputs stand then is in ``reached``."""
        reached |= {name: first for name, first, _ in piece.inputs} | {_NUMBER: piece.start}
        identities = piece.identities or ("",) * len(piece.inputs)
        readers = {
            name: _entries_of(self.inputs[name], first, last, identity)
            for (name, first, last), identity in zip(piece.inputs, identities, strict=True)
        }
        passed: dict[str, Entry] = {}
        while reached[_NUMBER] < piece.end:
            for name, reader in readers.items():
                while name not in passed and (entry := next(reader, None)) is not None:
                    if entry.dropped:
                        reached[name] = entry.place + 1
                        entry.document.id = self.inputs[name].full_id(entry.document.id)
                        yield entry._replace(place=reached[_NUMBER])
                    else:
                        passed[name] = entry
            if len(passed) < len(readers):
                return
            number = reached[_NUMBER]
            reached |= {name: entry.place + 1 for name, entry in passed.items()} | {_NUMBER: number + 1}
            yield self._joined(number, passed)
            passed = {}

    def _joined(self, number: int, parts: Mapping[str, Entry]) -> Entry:
        fields: dict[str, Any] = {}
        ids = []
        refused: list[str] = []
        queues: dict[str, Any] = {}
        tx: int | None = None
        for name, entry in parts.items():
            doc = entry.document
            id = self.inputs[name].full_id(doc.id)
            ids.append(quote(id, safe="/:") if "&" in id or "%" in id else id)
            fields[name] = {"id": id, "fields": doc.fields}
            if doc.raw is not None:
                fields[name]["raw"] = base64.b64encode(doc.raw).decode()
            if entry.refused:
                refused.append(f"{id}: {entry.refused}")
            if entry.provenance is not None:
                known = Provenance.of(entry.provenance)
                queues |= known.queues
                tx = known.tx if tx is None else tx
        provenance = encode(Provenance(queues, tx)) if queues else None
        return Entry(number, Document.of(_BETWEEN.join(ids), fields), "", provenance, "; ".join(refused))


def inputs_of(doc: Document) -> dict[str, Document]:
    """The documents of which a join has made one, by the names of its inputs."""
    found = {}
    for name, part in doc.fields.items():
        raw = part.get("raw")
        found[name] = Document.of(part["id"], part["fields"], None if raw is None else base64.b64decode(raw))
    return found


def _entries_of(log: Log, first: int, last: int, identity: str) -> Iterator[Entry]:
    from ferryman.storage.groups import values

    [partition] = log.begin()
    for rows in log.rows(Piece(partition, first, last, 0, identity)):
        columns = (values(rows[name]) for name in ("place", "id", "fields", "raw", "refused", "dropped", "provenance"))
        for place, id, fields, raw, refused, dropped, provenance in zip(*columns, strict=True):
            doc = Document.of(log.own_id(id), {} if refused is not None else decode_fields(fields), raw)
            yield Entry(place, doc, dropped or "", provenance, refused or "")


def _only(name: str, positions: Positions) -> int:
    """The position in a log of one partition.

    Raises:
        Misconfigured: it has several: its entries have no order.
    """
    if len(positions) != 1:
        raise Misconfigured(
            f"input {name} has {len(positions)} partitions, so its entries have no order: a join takes logs of one."
        )
    return next(iter(positions.values()))
