"""Tests of the promises of the source port: run them over a source of your own.

    from ferryman.testing.sources import SourceSuite

    class TestMySource(SourceSuite):
        def source(self, folder):
            (folder / "a.txt").write_text("a")
            (folder / "b.txt").write_text("b")
            return MySource(folder)

        def change(self, source, id):
            ...

pytest collects the class and runs every promise as a test. Only ``source`` is required; a promise that needs a method
you do not override is skipped. This module imports no test framework.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import SkipTest

import cloudpickle

from ferryman.document import Document, content_version, encode_fields
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.sources.base import Complete, Fetched, Listed, Source, Unchanged


class SourceSuite:
    """Base of a test class. ``folder`` is pytest's ``tmp_path``: empty, and used by one test only."""

    # --- to override --------------------------------------------------------------------------------------------------

    def source(self, folder: Path) -> Source:
        """Return the source, with at least two documents to list, all of them readable."""
        raise NotImplementedError

    def absent(self, folder: Path) -> Source:
        """Return the source with nothing to list from (no such folder, no such table)."""
        raise SkipTest("absent() is not overridden")

    def change(self, source: Source, id: str) -> None:
        """Give this document another content, as the outside world would."""
        raise SkipTest("change() is not overridden")

    def remove(self, source: Source, id: str) -> None:
        """Remove this document, as the outside world would."""
        raise SkipTest("remove() is not overridden")

    def broken(self, folder: Path) -> Source:
        """Return the source with a listing that fails in the middle (a page that does not come)."""
        raise SkipTest("broken() is not overridden")

    def pieces(self, source: Source) -> list[Any]:
        """Return the pieces of a scan, in the driver. Override it only for a source that is listed in another way."""
        return source.partitions_after({})

    def entries(self, source: Source, piece: Any) -> Iterable[Listed | Document]:
        """Return the documents of a piece, in a worker. Override it only together with ``pieces``."""
        listed = (entry.document if isinstance(entry, Fetched) else entry for entry in source.listing(piece))
        return [entry for entry in listed if isinstance(entry, Listed | Document)]

    # --- the promises -------------------------------------------------------------------------------------------------

    def test_check_passes_where_there_is_something(self, tmp_path: Path) -> None:
        """check() raises nothing, and may be called again."""
        source = self.source(tmp_path)
        source.check()
        source.check()

    def test_check_says_what_is_missing(self, tmp_path: Path) -> None:
        """check() raises UsageError if there is nothing to list from: an empty listing would delete everything."""
        source = self.absent(tmp_path)
        error = _error_of(source.check)
        assert isinstance(error, UsageError), f"check() raised {error!r}, where there is nothing to list from"
        assert str(error), "the error says nothing"

    def test_it_works_from_a_worker(self, tmp_path: Path) -> None:
        """A pickled copy lists and reads pickled pieces as the original does."""
        source = self.source(tmp_path)
        original = [self._document(source, entry) for entry in self._scan(source)]
        copy = pickle.loads(cloudpickle.dumps(source))
        pieces = pickle.loads(cloudpickle.dumps(self.pieces(source)))
        copied = [self._document(copy, entry) for piece in pieces for entry in self.entries(copy, piece)]
        assert len(original) >= 2, "source() has to have at least two documents"
        assert copied == original

    def test_a_scan_repeats_itself(self, tmp_path: Path) -> None:
        """A second scan without changes lists the same ids in the same order; of equal ids the last entry counts."""
        source = self.source(tmp_path)
        first, second = list(self._scan(source)), list(self._scan(source))
        assert [entry.id for entry in first] == [entry.id for entry in second]
        for before, after in zip(first, second, strict=True):
            if isinstance(before, Listed) and isinstance(after, Listed) and before.fingerprint and after.fingerprint:
                assert before.fingerprint == after.fingerprint, f"{before.id} did not change, its fingerprint did"

    def test_ids_are_plain_text(self, tmp_path: Path) -> None:
        """An id is unique, one line, not empty, and text that UTF-8 can encode."""
        ids = [entry.id for entry in self._scan(self.source(tmp_path))]
        for id in ids:
            assert isinstance(id, str), f"{id!r} is not text"
            assert id.encode(), "an id is empty"
            assert id.splitlines() == [id], f"{id!r} has a line end in it"
        assert len(ids) == len(set(ids)), f"there are ids twice: {ids}"

    def test_ids_are_without_prefix(self, tmp_path: Path) -> None:
        """The prefix is put before ids by the engine, not by the source."""
        source = self.source(tmp_path)
        ids = [entry.id for entry in self._scan(source)]
        source.prefix = "prefix/"
        assert [entry.id for entry in self._scan(source)] == ids

    def test_a_listing_says_what_the_engine_needs(self, tmp_path: Path) -> None:
        """Entries are Listed (with a size in bytes) or Document; a refusal is one line of text."""
        for entry in self._scan(self.source(tmp_path)):
            assert isinstance(entry, Listed | Document), f"{entry!r} is neither Listed nor Document"
            if isinstance(entry, Listed):
                assert entry.size >= 0, f"{entry.id}: size {entry.size}"
                for text in (entry.fingerprint, entry.location, entry.refused):
                    assert text.encode().decode().splitlines() in ([], [text]), (
                        f"{entry.id}: {text!r} is more than a line"
                    )

    def test_content_is_a_document(self, tmp_path: Path) -> None:
        """read() returns a document with the listed id, bytes or None as raw and JSON fields, which is not a child."""
        source = self.source(tmp_path)
        for entry in self._scan(source):
            doc = self._document(source, entry)
            assert isinstance(doc, Document), f"{entry.id}: read() returned a {type(doc).__name__}"
            assert (doc.id, doc.origin_id, doc.parent_id) == (entry.id, entry.id, None)
            assert doc.operation == "upsert"
            assert doc.raw is None or isinstance(doc.raw, bytes), f"{doc.id}: raw is a {type(doc.raw).__name__}"
            encode_fields(doc.fields)

    def test_unchanged_content_keeps_its_version(self, tmp_path: Path) -> None:
        """Reading again gives equal content: nothing in it depends on time or chance."""
        source = self.source(tmp_path)
        assert self._versions(source) == self._versions(source)

    def test_a_step_changes_only_its_own_copy(self, tmp_path: Path) -> None:
        """A change that a step makes to a document does not appear when the source is read again."""
        source = self.source(tmp_path)
        before = self._versions(source)
        for entry in self._scan(source):
            doc = self._document(source, entry)
            for value in doc.values():
                if isinstance(value, list | dict):
                    value.clear()
            doc.raw = b"changed by a step"
            doc["changed"] = True
        assert self._versions(source) == before

    def test_a_change_is_seen(self, tmp_path: Path) -> None:
        """Changed content has another version, and another fingerprint or an untrusted one."""
        source = self.source(tmp_path)
        before = {entry.id: entry for entry in self._scan(source)}
        versions = self._versions(source)
        id = next(iter(before))
        self.change(source, id)
        after = {entry.id: entry for entry in self._scan(source)}
        now = self._versions(source)
        assert now.pop(id) != versions.pop(id), f"{id} changed, its version did not"
        assert now == versions, "other documents changed too"
        old, new = before[id], after[id]
        if isinstance(old, Listed) and isinstance(new, Listed):
            assert new.fingerprint == "" or new.fingerprint != old.fingerprint, f"{id} changed, its fingerprint did not"

    def test_a_removed_document_is_not_listed(self, tmp_path: Path) -> None:
        """A removed document is missing from the next scan; reading it raises a picklable error of Ferryman."""
        source = self.source(tmp_path)
        before = list(self._scan(source))
        removed = before[0]
        self.remove(source, removed.id)
        assert [entry.id for entry in self._scan(source)] == [entry.id for entry in before[1:]]
        if isinstance(removed, Listed):
            error = _error_of(lambda: source.read(removed))
            assert isinstance(error, TransientError | BadDocument), f"{removed.id} was removed; read() raised {error!r}"
            assert str(pickle.loads(pickle.dumps(error))) == str(error) != ""

    def test_a_listing_that_fails_in_the_middle_deletes_nothing(self, tmp_path: Path) -> None:
        """It raises an error that says why and can be pickled, and says neither that it was complete nor that anything
        was deleted."""
        source = self.broken(tmp_path)
        found: list[Any] = []

        def scan() -> None:
            for piece in self.pieces(source):
                found.extend(source.listing(piece))

        error = _error_of(scan)
        assert error is not None, "the listing ended as if it were complete"
        assert str(error), "the error does not say why"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert not any(isinstance(entry, Complete) for entry in found), "it says that it was complete, and was not"
        deleted = [entry.id for entry in found if isinstance(entry, Document) and entry.operation == "delete"]
        assert not deleted, f"it says that {deleted[0]} was deleted"

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _scan(self, source: Source) -> Iterable[Listed | Document]:
        for piece in self.pieces(source):
            yield from self.entries(source, piece)

    def _document(self, source: Source, entry: Listed | Document) -> Document:
        if isinstance(entry, Document):
            return entry
        assert not entry.refused, f"source() has to have readable documents only: {entry.refused}"
        found = source.read(entry)
        assert not isinstance(found, Unchanged), f"{entry.id} was read without a condition (Listed.known is empty)"
        return found.document if isinstance(found, Fetched) else found

    def _versions(self, source: Source) -> dict[str, str]:
        documents = (self._document(source, entry) for entry in self._scan(source))
        return {
            doc.id: content_version(encode_fields(source.counted(doc.fields)), doc.raw if source.counts_raw else None)
            for doc in documents
        }


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as e:
        return e
    return None
