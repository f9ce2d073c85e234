"""Scan, second half: the driver judges a finished listing once, then cuts it into waves.

What is new, changed, owed (a failed step is due) or gone is decided by one join of the listing with the ``documents``
table, in DuckDB: it streams, and spills to disk where memory ends. Contents are not touched; documents whose content
was not read while listing are marked ``look``: the worker that reads them decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import duckdb
import pyarrow as pa

from ferryman import settings
from ferryman.engine.scan.cut import JUDGED, Cutter, Slice
from ferryman.engine.scan.listing import LISTING, Listing
from ferryman.engine.scan.undone import Undone
from ferryman.errors import TooManyDeletes
from ferryman.ledger.schemas import DOCUMENTS
from ferryman.storage.query import connect, quoted, quoted_list, register
from ferryman.storage.tables import Table

KNOWN = (
    "k.version AS known_version, k.revision AS known_revision, k.fingerprint AS known_fingerprint, "
    "k.operation AS known_operation, CASE k.operation WHEN 'upsert' THEN k.given ELSE '' END AS given, k.due, k.failed"
)
"""What the last row in ``documents``, ``k``, says, in JUDGED's columns; a deleted document is given to nobody."""


class Verdict(NamedTuple):
    """A judged listing."""

    slices: list[Slice]
    notes: list[str]
    """What a person should know: duplicates, incomplete listings."""
    complete: bool


def judge(
    listings: list[Listing],
    documents: Table,
    outbox: Table,
    folder: Path,
    *,
    now_us: int,
    rivals: Mapping[str, Sequence[str]] = MappingProxyType({}),
    only_owed: bool = False,
    allow_deletes: bool = False,
    slots: int = 2,
    wave_bytes: int = settings.WAVE_BYTES,
) -> Verdict:
    """Judge the listings of all sources, then cut.

    Args:
        rivals: source -> others that may bring documents of the same ids to the same target; see ``plan.rivals``.
        only_owed: take up only what a failed step or a person is waiting for; nothing is judged as gone.
        slots: tasks that run at once; a small scan is cut so that all have work.

    Raises:
        TooManyDeletes: before anything is cut.
    """
    notes = [
        f"source {x.source.name}: incomplete listing, nothing of it is deleted: {f}"
        for x in listings
        for f in x.failures
    ]
    with connect(folder) as db:
        register(db, "documents", documents.paths(), DOCUMENTS)
        judges: dict[str, _SourceJudge] = {}
        for i, listing in enumerate(listings):
            others = {name: judges.get(name) for name in rivals.get(listing.source.name, ())}
            judges[listing.source.name] = _SourceJudge(db, f"verdict_{i}", listing, outbox, now_us, only_owed, others)
        for j in judges.values():
            if j.duplicates:
                notes.append(
                    f"source {j.name}: {j.duplicates} duplicate ids, of each the last is kept: {', '.join(j.examples)}"
                )
            j.guard_deletes(allow_deletes)
        cutter = Cutter(folder, slots, sum(x.rows for x in listings), sum(x.bytes for x in listings), wave_bytes)
        for j in judges.values():
            j.cut_taken_up(cutter)
        for j in judges.values():  # in the last slice: what replaces them elsewhere is delivered first
            j.cut_gone(cutter)
        return Verdict(cutter.finish(), notes, not any(x.failures for x in listings))


class _SourceJudge:
    """The verdict on one source: a table of this connection, with a row for each document that is taken up or gone.

    Two joins make it. The first is narrow, and takes a few bytes a document: of which ids do listing and ``documents``
    not say the same? The second takes up only these, by the whole rules. Nothing is joined where all is new.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        verdict: str,
        listing: Listing,
        outbox: Table,
        now_us: int,
        only_owed: bool,
        rivals: Mapping[str, _SourceJudge | None],
    ) -> None:
        self._db = db
        self._source = listing.source.source
        self.name = listing.source.name
        self._now_us = now_us
        self._outbox = outbox
        self._only_owed = only_owed
        self._guards = self._source.lists_all and not only_owed and not listing.failures
        """May what is not listed be gone?"""
        self._paths = [p.path for p in listing.parts if p.rows]
        self._listed = self._relation_of_listing()
        self.duplicates, self.examples = self._find_duplicates(listing.rows)
        self._known = _rows_of(self.name)
        self._verdict = verdict
        clashes = self._refuse_clashes(rivals) if rivals else 0
        self._all_new = not self.duplicates and not clashes and not self._one(f"SELECT count(*) FROM {self._known}")
        if not self._all_new:
            self._db.execute(f"CREATE TEMP TABLE suspects_{verdict} AS {self._suspects()}")
            self._db.execute(f"CREATE TEMP TABLE {verdict} AS {self._judged(f'(FROM suspects_{verdict})')}")

    def guard_deletes(self, allowed: bool) -> None:
        """Raise if too much of the source is gone."""
        if allowed or not self._gone:
            return
        known = self._one(f"SELECT count(*) FROM {_last_rows(self._known)} WHERE operation = 'upsert'")
        if self._gone > self._source.max_deleted * known:
            raise TooManyDeletes(self.name, self._gone, known, self._source.max_deleted)

    def cut_taken_up(self, cutter: Cutter) -> None:
        """What is listed and must be read or fed, in the source's order."""
        if not self._all_new:
            order = f"list_position({quoted_list(self._paths)}, part), row"
            for batch in self._batches(f"SELECT * FROM {self._verdict} WHERE reason <> 'gone' ORDER BY {order}"):
                cutter.add_judged(self.name, batch)
        elif not self._only_owed:
            for path in self._paths:
                cutter.add_listed(self.name, path)

    def cut_gone(self, cutter: Cutter) -> None:
        """What was known and is not listed any more."""
        if self._gone:
            for batch in self._batches(f"SELECT * FROM {self._verdict} WHERE reason = 'gone'"):
                cutter.add_judged(self.name, batch)

    @cached_property
    def _gone(self) -> int:
        if self._all_new:
            return 0
        return self._one(f"SELECT count(*) FROM {self._verdict} WHERE reason = 'gone'")

    @cached_property
    def _undone(self) -> Undone:
        return Undone(self._db, self._outbox, self.name, f"SELECT id, known_revision, given FROM {self._verdict}")

    # -- queries -----------------------------------------------------------------------------------

    def _relation_of_listing(self) -> str:
        """The listing's rows, ``part`` being the path of their file."""
        if not self._paths:
            self._db.register("nothing", LISTING.empty_table())
            return "(SELECT '' AS part, * FROM nothing)"
        return f"(SELECT filename AS part, * FROM read_parquet({quoted_list(self._paths)}, filename = true))"

    def _find_duplicates(self, listed: int) -> tuple[int, list[str]]:
        """(how many rows too many, some ids); of each id the last row is kept."""
        if listed == self._one(f"SELECT count(DISTINCT hash(id)) FROM {self._listed}"):
            return 0, []
        twice = listed - self._one(f"SELECT count(DISTINCT id) FROM {self._listed}")
        rows = self._db.execute(
            f"SELECT id FROM {self._listed} GROUP BY id HAVING count(*) > 1 ORDER BY id LIMIT 3"
        ).fetchall()
        last = f"list_position({quoted_list(self._paths)}, part) DESC, row DESC"
        self._listed = f"(SELECT * FROM {self._listed} QUALIFY row_number() OVER (PARTITION BY id ORDER BY {last}) = 1)"
        return twice, [r[0] for r in rows]

    def _refuse_clashes(self, rivals: Mapping[str, _SourceJudge | None]) -> int:
        """Refuse ids that a rival has given its destination, or lists before us, unless they are ours; how many.

        They are looked at in every scan, like what cannot be read: once the rival is gone they are taken up.
        """
        given = "operation = 'upsert' AND given <> ''"
        theirs = [f"SELECT document FROM {_last_rows(_rows_of(name))} WHERE {given}" for name in rivals]
        theirs += [f"SELECT id FROM {rival._listed}" for rival in rivals.values() if rival is not None]
        ours = f"SELECT document FROM {_last_rows(self._known)} WHERE {given}"
        clash = f"clash_{self._verdict}"
        self._db.execute(
            f"CREATE TEMP TABLE {clash} AS SELECT id FROM {self._listed} "
            f"WHERE id IN ({' UNION ALL '.join(theirs)}) AND id NOT IN ({ours})"
        )
        count = self._one(f"SELECT count(*) FROM {clash}")
        if count:
            why = (
                f"its id is taken: source {' or '.join(rivals)} brings a document of this id to the same destination: "
                "give each source a prefix="
            )
            self._listed = (
                f"(SELECT * FROM {self._listed} WHERE id NOT IN (FROM {clash}) UNION ALL "
                f"SELECT * REPLACE (NULL AS part, NULL AS version, {quoted(why)} AS refused) "
                f"FROM {self._listed} WHERE id IN (FROM {clash}))"
            )
        return count

    def _suspects(self) -> str:
        """Hashes of ids of which the listing and ``documents`` do not say the same, as a query; of some more, too."""
        if self._only_owed:
            return f"SELECT hash(document) AS h FROM {self._known} WHERE forced OR due IS NOT NULL"
        listed, known, same = "hash(version) AS v", "CASE WHEN {settled} THEN hash(version) END AS v", "l.v = k.v"
        if self._source.detect == "fingerprint":
            listed += ", CASE WHEN fingerprint <> '' AND refused IS NULL THEN hash(fingerprint) END AS f"
            known += ", CASE WHEN {settled} THEN hash(fingerprint) END AS f"
            same += " OR l.f = k.f"
        settled = "operation = 'upsert' AND NOT forced AND due IS NULL"
        if self._source.detect == "none":
            settled = "false"
        listed = f"(SELECT hash(id) AS h, {listed} FROM {self._listed})"
        known = f"(SELECT hash(document) AS h, {known.format(settled=settled)} FROM {self._known})"
        return (
            "SELECT DISTINCT coalesce(l.h, k.h) AS h "
            f"FROM {listed} l FULL JOIN {known} k ON l.h = k.h WHERE ({same}) IS NOT TRUE"
        )

    def _judged(self, suspects: str) -> str:
        """The documents that are taken up or gone, as a query."""
        join = "FULL JOIN" if self._guards else "LEFT JOIN"
        listed = f"(SELECT * FROM {self._listed} WHERE hash(id) IN {suspects})"
        known = _last_rows(f"(SELECT * FROM {self._known} WHERE hash(document) IN {suspects})")
        return (
            "SELECT l.part, l.row, coalesce(l.id, k.document) AS id, coalesce(l.size, 0) AS size, "
            "coalesce(l.fingerprint, '') AS fingerprint, coalesce(l.location, '') AS location, l.refused, l.version, "
            f"{self._reason()} AS reason, {KNOWN} "
            f"FROM {listed} l {join} {known} k ON l.id = k.document WHERE reason IS NOT NULL"
        )

    def _reason(self) -> str:
        """Why a document is taken up, as SQL; NULL: it is not."""
        due = f"WHEN k.due <= {self._now_us} THEN 'retry'"
        if self._only_owed:
            return f"CASE WHEN k.forced THEN 'forced' {due} END"
        always = "WHEN k.operation = 'upsert' THEN 'again'" if self._source.detect == "none" else ""
        same_print = "l.fingerprint <> '' AND l.fingerprint = k.fingerprint AND l.refused IS NULL"
        trusted = f"WHEN {same_print} THEN NULL" if self._source.detect == "fingerprint" else ""
        return (
            "CASE WHEN k.document IS NULL THEN 'new' "
            "WHEN l.id IS NULL THEN CASE WHEN k.operation = 'upsert' THEN 'gone' END "
            f"WHEN k.forced THEN 'forced' {due} {always} "
            "WHEN k.operation = 'delete' THEN 'new' "
            "WHEN l.version = k.version THEN NULL "
            f"WHEN l.version IS NOT NULL THEN 'changed' {trusted} "
            "ELSE 'look' END"
        )

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Rows of a query in JUDGED's columns."""
        undone = self._undone  # asked first: a connection answers one query at a time
        for batch in self._db.sql(query).to_arrow_reader(65_536):
            if batch.num_rows:
                columns = [batch.column(f.name).cast(f.type) for f in JUDGED]
                yield undone.added_to(pa.RecordBatch.from_arrays(columns, schema=JUDGED))

    def _one(self, query: str) -> int:
        [(value,)] = self._db.execute(query).fetchall()
        return int(value)


def _rows_of(source: str) -> str:
    return f"(SELECT * FROM documents WHERE source = {quoted(source)})"


def _last_rows(known: str) -> str:
    """Of these rows of ``documents`` each document's last one."""
    last = f"(SELECT document, max(wave) AS wave FROM {known} GROUP BY document)"
    return f"(SELECT d.* FROM {known} d JOIN {last} USING (document, wave))"
