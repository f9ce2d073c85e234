"""Memory of the plan's sources during a scan: what their listings are given, and what the wave that ends the scan
commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from ferryman import crash
from ferryman.engine.results import ListedPart, Listing, Staged
from ferryman.engine.scan.listing import ListingFile
from ferryman.engine.tasks import CONTENT, LISTING, content_path
from ferryman.errors import message_of
from ferryman.observe import WARNING
from ferryman.plan import SourceNode, sources_of
from ferryman.records.rows import DOCUMENTS
from ferryman.sources import Source
from ferryman.state.logs import reader_name
from ferryman.state.source_memory import (
    NOTHING_REMEMBERED,
    SourceMemory,
    load_memory,
    memory_folder,
    remove_old_memories,
    write_memory,
)
from ferryman.state.state import SOURCES, State
from ferryman.storage.files import StatePath, local_copy
from ferryman.storage.parquet import BatchGroups, PartWriter, RowGroups, read_part
from ferryman.storage.query import connect, quote, register

_WAITS: Final = "operation = 'upsert' AND (due IS NOT NULL OR forced OR again IS NOT NULL OR failed IS NOT NULL)"
"""SQL that tests whether a document's content may still be needed."""

_KEPT: Final = pa.schema([*LISTING, *(f for f in CONTENT if f.name != "row")])
"""Columns of the data file with kept content."""

Versions = dict[str, str]
"""Id of a document -> its version."""


class SourceMemories:
    """Memories of all sources of a state.

    Attributes:
        current: source -> its memory, for sources that have any.
        failures: source -> why it could not prepare the scan; it is not listed.
        has_more: whether a source has more to list at once, as of the last commit.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._nodes = [node for node in sources_of(state.plan.nodes) if uses_memory(node)]
        self._listings: list[Listing] = []
        self._held: frozenset[str] = frozenset()
        self._to_release: list[SourceNode] = []
        self.current: dict[str, SourceMemory] = {}
        self.failures: dict[str, Exception] = {}
        self.has_more = False

    def begin(self, *, prepare: bool) -> Iterator[str]:
        """Load the memories for a scan, and remove the files of older ones; yield messages for people.

        Args:
            prepare: have the sources prepare a full scan, too.
        """
        self._listings = []
        self._to_release = []
        self.failures = {}
        self.has_more = False
        self.current = {node.name: load_memory(self._state, node.name) for node in self._nodes}
        remove_old_memories(self._state, self.current)
        for node in self._nodes if prepare else ():
            try:
                yield from node.source.begin_scan(
                    reader_name(self._state, node.name), self.current[node.name].bookmarks
                )
            except Exception as e:
                self.failures[node.name] = e

    def kept(self, folder: StatePath) -> list[ListedPart]:
        """List the kept documents that still wait, in the version that was kept, into files in ``folder``."""
        return list_kept(self._state, self._nodes, self.current, folder, self._state.local_scratch)

    def record(self, listings: Sequence[Listing], held: frozenset[str]) -> None:
        """Record what a full scan has listed: its bookmarks count once the wave that ends the scan commits.

        Args:
            held: sources with missing documents that are not deleted now.
        """
        self._listings = [listing for listing in listings if listing.source.name in self.current]
        self._held = held

    def begin_commit(self, wave: int) -> dict[str, int]:
        """Write what counts until the scan's last wave commits; return the transactions that its first wave records."""
        transactions: dict[str, int] = {}
        for listing in self._listings:
            name = listing.source.name
            marks = {m.partition: m.meanwhile for part in listing.parts for m in part.bookmarks}
            before = self.current[name]
            bookmarks = before.bookmarks | {key: value for key, value in marks.items() if value is not None}
            if bookmarks != before.bookmarks:
                self.current[name] = SourceMemory(bookmarks, before.kept, before.unseen_deletes)
                transactions |= write_memory(self._state, name, wave, self.current[name])
        return transactions

    def commit(self, wave: int, staged: Sequence[Staged]) -> dict[str, int]:
        """Write the memories that have changed; return the transactions that the commit of this wave records.

        Args:
            wave: the last wave of the scan.
            staged: what the tasks of this wave have staged.
        """
        transactions: dict[str, int] = {}
        for listing in self._listings:
            name = listing.source.name
            before = self.current[name]
            marks = {m.partition: m.value for part in listing.parts for m in part.bookmarks}
            if name not in self._held:
                complete = (each.bookmark for part in listing.parts for each in part.complete_within)
                marks |= {m.partition: m.value for m in complete if m is not None}
            bookmarks = {key: value for key, value in {**before.bookmarks, **marks}.items() if value is not None}
            kept = self._keep(listing, before, staged) if listing.source.source.keeps_content else ""
            memory = SourceMemory(bookmarks, kept, listing.source.source.unseen_deletes(bookmarks))
            if memory != before:
                transactions |= write_memory(self._state, name, wave, memory)
                self.current[name] = memory
                self._to_release.append(listing.source)
        self._listings = []
        return transactions

    def after_commit(self) -> Iterator[str]:
        """Have the sources release what they keep elsewhere before the bookmarks of the last commit; yield messages for
        people."""
        nodes, self._to_release = self._to_release, []
        for node in nodes:
            try:
                self.has_more |= node.source.end_scan(self.current[node.name].bookmarks)
            except Exception as e:  # the next scan releases it
                yield f"{WARNING}source {node.name}: what was read could not be released: {message_of(e)}"

    def _keep(self, listing: Listing, before: SourceMemory, staged: Sequence[Staged]) -> str:
        """Write the content of the documents that wait, all of which were listed; return the file's name, that of the
        last file if nothing has changed, or "" if none waits."""
        name = listing.source.name
        waiting = waiting_versions(self._state, name, self._state.local_scratch, staged)
        if not waiting:
            return ""
        folder = memory_folder(self._state, name)
        if before.kept and _kept_versions(folder / before.kept) == waiting:
            return before.kept
        writer = PartWriter(folder, _KEPT, epoch=self._state.epoch)
        try:
            for rows in _listed_content(listing.parts, waiting):
                writer.write(rows)
            if not writer.rows:
                writer.abandon()
                return ""
            kept = writer.finish().path
        except BaseException:
            writer.abandon()
            raise
        crash.point("memory.kept")
        return kept


def uses_memory(node: SourceNode) -> bool:
    """Return whether a source may have a memory: whether it keeps content, or lists by its bookmarks."""
    source = node.source
    return source.keeps_content or type(source).partitions_after is not Source.partitions_after


def list_kept(
    state: State, nodes: Sequence[SourceNode], memories: Mapping[str, SourceMemory], folder: StatePath, scratch: Path
) -> list[ListedPart]:
    """List the kept documents that still wait, in the version that was kept, into files in ``folder``.

    Args:
        scratch: folder for data that does not fit into memory.
    """
    parts = []
    for node in nodes:
        memory = memories.get(node.name, NOTHING_REMEMBERED)
        if not memory.kept:
            continue
        waiting = waiting_versions(state, node.name, scratch)
        table = read_part(local_copy(state.root / SOURCES / node.name / memory.kept))
        rows = table.filter(_is_wanted(table, waiting))
        if rows.num_rows:
            with ListingFile(str(folder), node.name, node.source) as out:
                out.add_rows(rows)
                parts.append(out.finish()._replace(is_complete=None))
    return parts


def waiting_versions(state: State, source: str, scratch: Path, staged: Sequence[Staged] = ()) -> Versions:
    """Return the documents of a source whose content may still be needed.

    Args:
        scratch: folder for data that does not fit into memory.
        staged: results that are about to be committed.
    """
    staged_names = [part.path for s in staged for part in s.documents]
    paths = state.documents.paths() + state.documents.paths(staged_names)  # staged rows have the highest wave
    mine = f"source = {quote(source)}"
    with connect(scratch) as db:
        register(db, "documents", paths, DOCUMENTS)
        rows = db.execute(f"""
            WITH waits AS (SELECT DISTINCT document FROM documents WHERE {mine} AND {_WAITS})
            SELECT document, version FROM (
                SELECT * FROM documents SEMI JOIN waits USING (document) WHERE {mine}
                QUALIFY row_number() OVER (PARTITION BY document ORDER BY wave DESC) = 1
            ) WHERE {_WAITS}
        """).fetchall()
    return dict(rows)


def _kept_versions(path: StatePath) -> Versions:
    table = read_part(local_copy(path), ["id", "version"])
    return dict(zip(table["id"].to_pylist(), table["version"].to_pylist(), strict=True))


def _is_wanted(rows: pa.Table, wanted: Versions) -> pa.Array:
    pairs = zip(rows["id"].to_pylist(), rows["version"].to_pylist(), strict=True)
    return pa.array([version is not None and wanted.get(id) == version for id, version in pairs], pa.bool_())


def _listed_content(parts: Sequence[ListedPart], wanted: Versions) -> Iterator[pa.Table]:
    """Yield the listed rows of these documents with their content, each document once."""
    left = dict(wanted)
    for part in parts:
        if not part.rows:
            continue
        with (
            RowGroups(part.path, LISTING.names) as listed,
            BatchGroups(content_path(part.path), CONTENT.names) as content,
        ):
            for group in listed.all_rows():
                rows = group.filter(_is_wanted(group, left))
                if not rows.num_rows:
                    continue
                for id in rows["id"].to_pylist():
                    left.pop(id, None)
                yield from _with_content(rows, content)


def _with_content(rows: pa.Table, content: BatchGroups) -> Iterator[pa.Table]:
    done = 0
    for found in content.rows_at(rows["row"].to_numpy()):
        these = rows.slice(done, found.num_rows)
        done += found.num_rows
        columns = [found[name] if name in ("fields", "raw") else these[name] for name in _KEPT.names]
        yield pa.table(columns, schema=_KEPT)
