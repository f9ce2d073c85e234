"""Tests of the promises of the port for logs (``ferryman.sources.Log``): run them over a log of your own.

    from ferryman.testing.logs import LogSuite

    class TestMyLog(LogSuite):
        def source(self, folder):
            write(folder / "log", ["one", "two", "three"])
            return MyLog(folder / "log")

        def append(self, source):
            ...

pytest collects the class and runs every promise as a test. Only ``source`` is required; a promise that needs a method
you do not override is skipped. This module imports no test framework.
"""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import SkipTest

import cloudpickle
import pyarrow as pa

from ferryman.document import Document, decode_fields, encode_fields
from ferryman.errors import BadDocument
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, Piece, Positions
from ferryman.sources.log_rows import ROWS

_LEAST: Final = 3
"""Least number of entries: enough to show an order, and a split in the middle."""

_WHOLE: Final = 1 << 20
"""Limit of entries that puts a whole partition into one piece."""

_HIGHEST: Final = (1 << 62) - 1
"""Highest place that a position can hold."""


class LogSuite:
    """Base of a test class. ``folder`` is pytest's ``tmp_path``: empty, and used by one test only."""

    # --- to override --------------------------------------------------------------------------------------------------

    def source(self, folder: Path) -> Log:
        """Return the log, with at least three entries."""
        raise NotImplementedError

    def append(self, source: Log) -> None:
        """Add an entry or more at the end, as the outside world would."""
        raise SkipTest("append() is not overridden")

    def trim(self, source: Log, id: str) -> None:
        """Remove this entry, the first of a partition, as the outside world would (retention, a trim); perhaps more."""
        raise SkipTest("trim() is not overridden")

    # --- the promises -------------------------------------------------------------------------------------------------

    def test_check_passes_where_there_is_something(self, tmp_path: Path) -> None:
        """check() raises nothing, and may be called again; nothing() is "" then."""
        source = self.source(tmp_path)
        source.check()
        source.check()
        assert source.nothing() == "", "nothing() says that there is nothing to read"

    def test_it_begins_before_it_ends(self, tmp_path: Path) -> None:
        """begin() names each partition of end(), at a place from 0 to that of the end."""
        source = self.source(tmp_path)
        begin, end = source.begin(), source.end()
        assert end, "end() names no partition"
        for partition, last in end.items():
            assert isinstance(partition, str), f"partition {partition!r} is not text"
            assert partition.splitlines() == [partition], f"partition {partition!r} is not one line of text"
            assert partition in begin, f"begin() does not name partition {partition}"
            for place in (begin[partition], last):
                assert isinstance(place, int), f"{partition}: place {place!r} is not a whole number"
            assert 0 <= begin[partition] <= last <= _HIGHEST, f"{partition} is from {begin[partition]} to {last}"

    def test_pieces_cover_everything(self, tmp_path: Path) -> None:
        """Pieces of a partition follow each other from start to end without gaps, also from the middle on."""
        source = self.source(tmp_path)
        end = source.end()
        for start in self._starts(source):
            for limit in (1, 2, _WHOLE):
                for partition, pieces in _by_partition(source.pieces(start, end, limit)).items():
                    for before, after in itertools.pairwise(pieces):
                        assert before.end == after.start, f"{after} does not begin where {before} ends"
                    assert all(piece.start < piece.end for piece in pieces), f"an empty piece: {pieces}"
                    assert pieces[0].start >= start[partition], f"{pieces[0]} begins before {start[partition]}"
                    assert pieces[-1].end == end[partition], f"{pieces[-1]} does not end at {end[partition]}"

    def test_pieces_are_no_larger_than_asked_for(self, tmp_path: Path) -> None:
        """A piece has ``limit`` entries at most, unless it covers one place; between equal positions there is none."""
        source = self.source(tmp_path)
        for limit in (1, 2):
            for piece in source.pieces(source.begin(), source.end(), limit):
                found = len(list(source.entries(piece)))
                assert found <= limit or piece.end - piece.start == 1, f"{piece} has {found} entries, not {limit}"
        assert list(source.pieces(source.end(), source.end(), 1)) == [], "there is nothing between the end and the end"

    def test_places_ascend(self, tmp_path: Path) -> None:
        """Places of a piece's entries ascend and lie in it; only with ``shares_places`` two entries share one."""
        source = self.source(tmp_path)
        for limit in (2, _WHOLE):
            for piece in source.pieces(source.begin(), source.end(), limit):
                places = [entry.place for entry in source.entries(piece)]
                assert places == sorted(places), f"{piece}: {places}"
                assert source.shares_places or len(places) == len(set(places)), f"{piece}: {places}"
                assert all(piece.start <= place < piece.end for place in places), f"{piece}: {places}"

    def test_entries_are_documents(self, tmp_path: Path) -> None:
        """An entry has bytes or None as raw, JSON fields, is not a child, and is read by its id."""
        entries = self._all(source := self.source(tmp_path))
        assert len(entries) >= _LEAST, f"source() has to have at least {_LEAST} entries"
        for _, entry in entries:
            doc = entry.document
            assert isinstance(doc, Document), f"read_piece() gave a {type(doc).__name__}"
            assert (doc.origin_id, doc.parent_id, doc.operation) == (doc.id, None, "upsert")
            assert doc.raw is None or isinstance(doc.raw, bytes), f"{doc.id}: raw is a {type(doc.raw).__name__}"
            encode_fields(doc.fields)
        assert any(not entry.refused for _, entry in entries), "source() has to have readable entries"
        assert all(isinstance(listed, Listed) for listed in source.listing(["a", "b"]))

    def test_ids_are_plain_text(self, tmp_path: Path) -> None:
        """An id is unique, one line, not empty, and text that UTF-8 can encode."""
        ids = [entry.document.id for _, entry in self._all(self.source(tmp_path))]
        for id in ids:
            assert isinstance(id, str), f"{id!r} is not text"
            assert id.encode(), "an id is empty"
            assert id.splitlines() == [id], f"{id!r} has a line end in it"
        assert len(ids) == len(set(ids)), f"there are ids twice: {ids}"

    def test_rows_are_the_same_entries(self, tmp_path: Path) -> None:
        """rows() has the entries of read_piece() in the columns of ``ROWS``, with the prefix before their ids."""
        source = self.source(tmp_path)
        plain = [entry.document.id for _, entry in self._all(source)]
        source.prefix = "prefix/"
        assert [entry.document.id for _, entry in self._all(source)] == plain, "read_piece() puts the prefix before ids"
        for piece in source.pieces(source.begin(), source.end(), 2):
            tables = list(source.rows(piece))
            schemas = [table.schema for table in tables]
            assert all(_is_row_schema(schema, source) for schema in schemas), f"{piece}: {schemas}"
            found = [row for table in tables for row in table.to_pylist()]
            entries = list(source.entries(piece))
            assert len(found) == len(entries), f"{piece}: {len(found)} rows of {len(entries)} entries"
            for row, entry in zip(found, entries, strict=True):
                _compare(source, row, entry)

    def test_it_repeats_itself(self, tmp_path: Path) -> None:
        """Reading again, in whatever pieces, gives equal entries: an entry never changes."""
        source = self.source(tmp_path)
        once = self._entries_from(source, source.begin())
        assert self._entries_from(source, source.begin()) == once, "read again, they are other entries"
        for limit in (1, 2):
            assert self._entries_from(source, source.begin(), limit) == once, (
                f"in pieces of {limit} they are other entries"
            )
        for start in self._starts(source):
            later = {p: [e for e in of if e[0] >= start[p]] for p, of in once.items()}
            assert self._entries_from(source, start) == {p: of for p, of in later.items() if of}, f"from {start} on"

    def test_it_works_from_a_worker(self, tmp_path: Path) -> None:
        """A pickled copy reads pickled pieces as the original does, and has the same identity."""
        source = self.source(tmp_path)
        here = self._entries_from(source, source.begin())
        pieces = list(source.pieces(source.begin(), source.end(), 2))
        copy, sent = pickle.loads(cloudpickle.dumps((source, pieces)))
        assert _entries_of(copy, sent) == here
        identity = source.identity()
        assert copy.identity() == identity == source.identity(), "a pickled copy has another identity()"
        assert identity.splitlines() in ([], [identity]), f"identity() is more than a line: {identity!r}"

    def test_an_entry_is_read_again_by_its_id(self, tmp_path: Path) -> None:
        """read() returns an equal document by its id, and entry() its provenance too; also in a pickled copy."""
        source = self.source(tmp_path)
        copy: Log = pickle.loads(cloudpickle.dumps(source))
        for _, entry in self._all(source):
            [listed] = source.listing([entry.document.id])
            if entry.refused:
                continue
            for log in (source, copy):
                assert _content(log.read(listed)) == _content(entry.document), f"{listed.id} is another document"
                again = log.entry(listed)
                assert _content(again.document) == _content(entry.document), f"{listed.id} is another document"
                assert (again.dropped, again.provenance) == (entry.dropped, entry.provenance), f"{listed.id}: {again}"

    def test_a_step_changes_only_its_own_copy(self, tmp_path: Path) -> None:
        """A change that a step makes to a document does not appear when the log is read again."""
        source = self.source(tmp_path)
        before = self._entries_from(source, source.begin())
        for _, entry in self._all(source):
            for value in entry.document.values():
                if isinstance(value, list | dict):
                    value.clear()
            entry.document["changed"] = True
        assert self._entries_from(source, source.begin()) == before

    def test_new_entries_come_at_the_end(self, tmp_path: Path) -> None:
        """New entries move end() and nothing else: they come after all earlier entries."""
        source = self.source(tmp_path)
        begin, end, before = source.begin(), source.end(), self._entries_from(source, source.begin())
        self.append(source)
        after = source.end()
        assert set(end) <= set(after), f"a partition is missing: {after}"
        assert all(after[p] >= last for p, last in end.items()), f"an end went back, from {end} to {after}"
        assert after != end, "something was appended, and end() is what it was"
        assert {p: source.begin()[p] for p in begin} == begin, "begin() moved"
        assert _entries_of(source, source.pieces(begin, end, _WHOLE)) == before, "what was there has changed"
        start = {p: end.get(p, source.begin()[p]) for p in after}
        assert self._entries_from(source, start), "nothing lies between the end of before and the end of now"

    def test_what_is_not_kept_is_left_out(self, tmp_path: Path) -> None:
        """Pieces begin after entries that were removed; reading one of these by its id raises BadDocument."""
        source = self.source(tmp_path)
        start, end, before = source.begin(), source.end(), self._entries_from(source, source.begin())
        partition, first = self._all(source)[0]
        self.trim(source, first.document.id)
        pieces = _by_partition(source.pieces(start, end, _WHOLE))
        kept_from = pieces[partition][0].start if partition in pieces else end[partition]
        assert kept_from > first.place, f"{partition} is read from {kept_from}, which is not kept"
        kept = {p: [e for e in of if p != partition or e[0] >= kept_from] for p, of in before.items()}
        assert _entries_of(source, source.pieces(start, end, _WHOLE)) == {p: of for p, of in kept.items() if of}
        for ask in (source.read, source.entry):
            error = _refusal(ask, Listed(first.document.id, 0))
            assert str(pickle.loads(pickle.dumps(error))) == str(error) != "", "the error says nothing, or is lost"

    def test_positions_may_be_noted_again(self, tmp_path: Path) -> None:
        """note() and forget() raise nothing, also repeated or for an unknown reader, and remove no entries."""
        source = self.source(tmp_path)
        begin = source.begin()
        before = self._entries_from(source, begin)
        for _ in range(2):
            source.note("reader-v1.source-0", begin)
        assert self._entries_from(source, begin) == before
        for _ in range(2):
            source.note("reader-v1.source-0", source.end())
            source.forget("reader-v0.source-0")
        assert not list(source.pieces(source.end(), source.end(), 1))
        for _ in range(2):
            source.forget("reader-v1.source-0")

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _all(self, source: Log) -> list[tuple[str, Entry]]:
        """Return all entries, each with its partition."""
        pieces = source.pieces(source.begin(), source.end(), _WHOLE)
        return [(piece.partition, entry) for piece in pieces for entry in source.entries(piece)]

    def _entries_from(self, source: Log, start: Positions, limit: int = _WHOLE) -> dict[str, list[tuple[Any, ...]]]:
        """Return partition -> all facts of its entries from this position on."""
        return _entries_of(source, source.pieces(start, source.end(), limit))

    def _starts(self, source: Log) -> list[dict[str, int]]:
        """Return the beginning, and positions at some later entries."""
        begin = dict(source.begin())
        places = sorted({(partition, entry.place) for partition, entry in self._all(source)})
        return [begin, *({**begin, partition: place} for partition, place in places[: 2 * _LEAST])]


def _entries_of(source: Log, pieces: Iterable[Piece]) -> dict[str, list[tuple[Any, ...]]]:
    """Return partition -> (place, id, fields, raw, dropped, provenance, refused) of each entry of these pieces."""
    facts: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for piece in pieces:
        for entry in source.entries(piece):
            rest = (entry.dropped, entry.provenance, entry.refused)
            facts[piece.partition].append((entry.place, *_content(entry.document), *rest))
    return dict(facts)


def _content(doc: Document) -> tuple[str, bytes, bytes | None]:
    return doc.id, encode_fields(doc.fields), doc.raw


def _is_row_schema(schema: pa.Schema, source: Log) -> bool:
    """Return whether a schema is that of ``rows``, with two more columns for a log that repeats ids."""
    more = ["revision", "deletes"] if source.repeats_ids else []
    return schema.names == [*ROWS.names, *more] and all(schema.field(f.name) == f for f in ROWS)


def _by_partition(pieces: Iterable[Piece]) -> dict[str, Sequence[Piece]]:
    by_partition: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_partition[piece.partition].append(piece)
    return dict(by_partition)


def _compare(source: Log, row: dict[str, Any], entry: Entry) -> None:
    """Assert that a row of ``rows`` matches the entry."""
    doc = entry.document
    assert (row["place"], row["id"]) == (entry.place, source.full_id(doc.id)), f"{row} is not {doc.id}"
    assert row["provenance"] == entry.provenance, f"{doc.id}: provenance {row['provenance']}"
    assert row["version"], f"{doc.id}: it has no version"
    filled = [name for name in ("fields", "refused", "dropped") if row[name] is not None]
    if row["refused"] is not None:
        assert filled == ["refused"], f"{doc.id}: it is refused, and has {filled}"
        return
    assert (row["dropped"] or "") == entry.dropped, f"{doc.id}: dropped for {row['dropped']!r}"
    assert row["fields"] is not None, f"{doc.id}: it has no fields"
    assert decode_fields(row["fields"]) == decode_fields(encode_fields(doc.fields)), f"{doc.id}: other fields"
    assert row["raw"] == doc.raw, f"{doc.id}: other raw bytes"


def _refusal(read: Any, listed: Listed) -> BadDocument:
    try:
        result = read(listed)
    except BadDocument as e:
        return e
    raise AssertionError(f"{listed.id} is not kept; {read.__name__}() gave {result!r}, and no BadDocument")
