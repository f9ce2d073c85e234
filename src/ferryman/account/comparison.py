"""Comparison of what was delivered to a destination, by the ledger, with what the destination holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ferryman.account.relations import View
from ferryman.destinations.base import Stored, StoredColumns, StoredPages
from ferryman.errors import Misconfigured, message_of
from ferryman.records.rows import ORDINAL_STEPS, RANGE, STALE, Status
from ferryman.state.commands import REPAIR
from ferryman.storage.query import quote, quote_list

STORED: Final = pa.schema(
    [
        ("id", pa.string()),
        ("hash", pa.string()),
        ("intact", pa.bool_()),
        ("source", pa.string()),
        ("version", pa.string()),
        ("route", pa.string()),
    ]
)
"""Columns of a destination's inventory."""

_UNIFORM: Final = ("intact", "source", "route")

_BATCH: Final = 8_192
"""Records of an inventory that are in memory at a time."""

_PAGE: Final = 128
"""Records that are objects at a time, so few that the garbage collector does not go through them."""

_BUCKETS: Final = 4096
"""Buckets of records, of which those are compared one by one whose sums differ."""

_ORDER: Final = "wave * 4 + ordinal"


_ONLY: Final = """
    SELECT document, source, destination, CASE WHEN {kept} THEN hash END AS hash,
        CASE WHEN {kept} THEN [hash] END AS hashes, {kept} AS must_be_there, {kept} AS may_be_there, false AS in_flight
    FROM {arrived}
"""
"""SQL for one row per delivery that is the only one of its id, and of which nothing was asked since: nearly all are, so
these are read from the ledger whenever they are needed, and not stored."""

_LAST_OF_EACH_ID: Final = """
    SELECT document, any_value(source) AS source, any_value(destination) AS destination,
        any_value(hash) FILTER (is_upsert) AS hash, list(hash) FILTER (is_upsert) AS hashes,
        bool_and(is_upsert) AND NOT bool_or(changes) AS must_be_there, bool_or(is_upsert) AS may_be_there,
        bool_or(changes) AS in_flight
    FROM (
        SELECT several.*, coalesce(asked > happened, false) OR sending.document IS NOT NULL AS changes
        FROM several LEFT JOIN again USING (document) LEFT JOIN sending USING (document)
    ) SEMI JOIN latest USING (document, happened) GROUP BY document
"""
"""SQL for one row per id: its last delivery, or several of the same wave, whose order is unknown."""

_SUPERSEDED: Final = """
    SELECT late.hash, late.happened FROM several late JOIN several early USING (document)
    WHERE late.was_stale AND NOT early.was_stale AND early.happened < late.happened
        AND (early.source, early.destination, early.route) <> (late.source, late.destination, late.route)
"""
"""SQL for what came too late: by another way a later delivery of the id had arrived, which stays."""

_EACH: Final = """
    SELECT any_value(document) AS document, any_value(source) AS source, any_value(destination) AS destination,
        hash, [hash] AS hashes, bool_or(coalesce(asked <= several.happened, true)) AS must_be_there,
        true AS may_be_there, bool_and(coalesce(asked > latest.happened, false)) AS in_flight
    FROM several JOIN latest USING (document) LEFT JOIN again USING (document) GROUP BY hash
"""
"""SQL for one row per delivery."""


class Difference(NamedTuple):
    """A delivery that is not at its destination as the ledger has it.

    Attributes:
        kind: ``missing``: it is not there. ``changed``: another content, or another delivery, is there. ``extra``: it
            is there, and the ledger has it as deleted, or does not have it.
        destination: name of the node that delivered it.
        document, source, hash: of the delivery; of what is extra, as the destination has them.
        why: what was found.
    """

    kind: str
    destination: str
    document: str
    source: str
    hash: str
    why: str


class ComparisonCounts(NamedTuple):
    """Numbers of a comparison.

    Attributes:
        expected: deliveries that must be there.
        in_flight: deliveries that are being sent, or sent again, or are in doubt, and were not compared.
        unknown: deliveries whose content could not be compared, because the destination keeps no hash of it.
        others: records that this plan did not write.
    """

    expected: int
    in_flight: int
    missing: int
    changed: int
    extra: int
    unknown: int
    others: int


class Comparison:
    """Compares the deliveries to one target.

    Args:
        view: the state's tables.
        destinations: names of the nodes that write to the target.
        keyed: whether the target keeps one record per id.
        after: deliveries of this wave and of earlier ones are not expected.
        ids: only documents with these ids; None: all.

    Attributes:
        differs: whether ``pair`` has found that anything differs.
    """

    def __init__(
        self,
        view: View,
        destinations: Sequence[str],
        *,
        keyed: bool,
        after: int = 0,
        ids: Collection[str] | None = None,
    ) -> None:
        self._view = view
        self._is_partial = ids is not None
        if ids is not None:
            self._load_texts("wanted", id=ids)
        self._names = quote_list(destinations)
        self._keyed = keyed
        self._key, self._key_of_expected = ("id", "document") if keyed else ("hash", "hash")
        sent = f"status = '{Status.INDEXED}' AND ordinal <> {ORDINAL_STEPS}"  # not: "unchanged", which was not sent
        self._arrived = f"""(
            SELECT document, source, destination, route, delivery_hash AS hash, wave, {_ORDER} AS happened,
                operation = 'upsert' AS is_upsert, coalesce(message, '') = '{STALE}' AS was_stale
            FROM ledger
            WHERE destination IN {self._names} AND {sent} AND wave > {after} AND NOT starts_with(version, '{RANGE}')
                {"AND document IN (SELECT id FROM wanted)" if self._is_partial else ""}
        )"""
        self._only = _ONLY.format(arrived=self._arrived, kept="is_upsert" if keyed else "true")
        self._expected, self._stored, self._judges = "", "stored", 0
        self.differs = False

    def expect(self, since: int = 0) -> None:
        """Collect the deliveries that must be there.

        Args:
            since: only documents that were delivered in this wave or later.
        """
        at, restarted = f"destination IN {self._names}", f"status = '{Status.RESTART}'"
        asked = f"({restarted} OR status = '{Status.FORCE}')" if self._keyed else restarted
        if not self._keyed:  # of a log, only a repair replaces a delivery by another one
            asked += f" AND starts_with(message, '{REPAIR}')"
        failed = f"status IN ('{Status.DEAD}', '{Status.ERROR_DOC}', '{Status.DROPPED}')"
        for name, query in {
            "again": f"""
                SELECT document, max({_ORDER}) FILTER ({asked}) AS asked FROM ledger
                WHERE {at} AND ({asked} OR {failed}) GROUP BY document
                HAVING max({_ORDER}) FILTER ({asked}) > coalesce(max({_ORDER}) FILTER ({failed}), 0)
            """,
            "sending": f"""
                SELECT DISTINCT document FROM waiting WHERE {at} AND (due IS NOT NULL OR delivery_hash IN (
                    SELECT delivery_hash FROM ledger SEMI JOIN waiting USING (delivery_hash) GROUP BY delivery_hash
                    HAVING arg_max(status, {_ORDER}) = '{Status.INDEXING}'
                ))
            """,
            "several_ids": f"""
                SELECT {_id_hash("document")} AS id FROM {self._arrived} GROUP BY id HAVING count(*) > 1
                UNION SELECT {_id_hash("document")} FROM again UNION SELECT {_id_hash("document")} FROM sending
            """,
        }.items():
            self._view.keep(name, query)
        self._expected = f"({self._only})"
        if self._count("several_ids"):
            self._expect_last_of_several()
        if self._is_partial:
            self._expect_only("true")  # read from the ledger once
        if since:
            self._expect_only(f"document IN (SELECT document FROM {self._arrived} WHERE wave >= {since})")

    def _expect_last_of_several(self) -> None:
        """Expect the last delivery of ids with several, or of which something was asked. Where hashes of ids collide,
        all of these are looked at."""
        is_several = f"several_ids ON {_id_hash('document')} = several_ids.id"
        for name, query in {
            "several": f"SELECT arrived.* FROM {self._arrived} arrived SEMI JOIN {is_several}",
            "superseded": _SUPERSEDED,
            "latest": """
                SELECT document, max(happened) AS happened FROM several ANTI JOIN superseded USING (hash, happened)
                GROUP BY document
            """,
            "last_of_several": _LAST_OF_EACH_ID if self._keyed else _EACH,
        }.items():
            self._view.keep(name, query)
        self._expected = f"({self._only} ANTI JOIN {is_several} UNION ALL SELECT * FROM last_of_several)"

    def _expect_only(self, condition: str) -> None:
        """Expect only those of the expected deliveries that this condition, as SQL, selects."""
        self._view.keep("expected", f"SELECT * FROM {self._expected} WHERE {condition}")
        self._expected = "expected"

    def draw_sample(self, size: int, seed: int) -> list[str]:
        """Keep only so many of the expected deliveries, drawn at random; return their ids."""
        self._expect_only(f"must_be_there ORDER BY hash(document || '{seed}') LIMIT {size}")
        return self.expected_ids()

    def expected_ids(self) -> list[str]:
        """Return the ids of the expected documents."""
        return [row["document"] for row in self._view.iter_rows(f"SELECT DISTINCT document FROM {self._expected}")]

    def load(self, inventory: Path | pa.Table) -> None:
        """Take the destination's inventory, as ``storage.query.spool`` has stored its ``inventory_batches``."""
        self._view.register("stored", inventory)

    def pair(self) -> None:
        """Pair the destination's inventory with the deliveries that must be there, and keep the pairs that are not
        equal.

        Both sides are cut into buckets by a hash of the id, and for each bucket the hashes of all records are added up:
        128 bits, to which the same change in two records adds twice, so that it does not cancel. Only records of
        buckets with different sums are paired: all others are neither stored nor joined.
        """
        self._view.keep(
            "sums",
            f"""
            SELECT {_bucket(self._key_of_expected)} AS bucket,
                {_sums(self._key_of_expected, "must_be_there", "FILTER (must_be_there)")},
                count(*) FILTER (must_be_there) AS expected, count(*) FILTER (in_flight) AS in_flight
            FROM {self._expected} GROUP BY bucket
        """,
        )

        self._view.keep(
            "differing",
            f"""
            SELECT bucket FROM (
                SELECT {_bucket(self._key)} AS bucket, {_sums(self._key, "intact IS TRUE")}
                FROM {self._stored} GROUP BY bucket
            ) s FULL JOIN sums e USING (bucket) WHERE s.one IS DISTINCT FROM e.one OR s.two IS DISTINCT FROM e.two
        """,
        )
        self.differs = self._count("differing") > 0
        if not self.differs:
            return
        stored, expected = (
            f"(SELECT * FROM {table} SEMI JOIN differing ON {_bucket(column)} = bucket)"
            for table, column in ((self._stored, self._key), (self._expected, self._key_of_expected))
        )
        self._view.keep(
            "pairs",
            f"""
            SELECT s.*, e.document, e.source AS of_source, e.destination, e.hash AS expected_hash, e.hashes,
                coalesce(e.must_be_there, false) AS must_be_there,
                coalesce(e.may_be_there OR e.in_flight, false) AS may_be_there
            FROM {stored} s FULL JOIN {expected} e ON s.{self._key} = e.{self._key_of_expected}
            WHERE NOT coalesce(e.must_be_there AND s.intact AND list_contains(e.hashes, s.hash), false)
        """,
        )

    def differ(self, of_plan: Mapping[str, str], *, extra: bool) -> None:
        """Find the differences, if ``pair`` has found that there are any; ``counts`` and ``differences`` return them.
        Call ``unknown_records`` before.

        Args:
            of_plan: hash -> destination of the stored records that the ledger does not have, but that this destination
                of the plan wrote.
            extra: whether to look for what should not be there: not if only a part was expected.
        """
        self._load_texts("of_plan", hash=of_plan.keys(), destination=of_plan.values())
        self._view.keep(
            "strays",
            f"""
            SELECT * FROM pairs SEMI JOIN ledger_hashes USING (hash)
            WHERE {extra and self._keyed} AND document IS NULL
        """,
        )
        ledger = self._ledger_if("strays")
        self._view.keep(
            "found",
            f"""
            SELECT 'missing' AS kind, destination, document, of_source AS source, expected_hash AS hash,
                'it is not there' AS why
            FROM pairs WHERE id IS NULL AND must_be_there
            UNION ALL
            SELECT 'changed', destination, document, of_source, expected_hash,
                CASE WHEN list_contains(hashes, hash) THEN 'its content was changed'
                ELSE 'another delivery is there' END
            FROM pairs WHERE id IS NOT NULL AND must_be_there AND (NOT list_contains(hashes, hash) OR intact = false)
            UNION ALL
            SELECT 'extra', coalesce(s.destination, p.destination), s.id, s.source, s.hash,
                CASE WHEN s.document IS NULL THEN 'the ledger does not have it' ELSE 'it was deleted' END
            FROM pairs s LEFT JOIN ledger_hashes l ON l.hash = s.hash LEFT JOIN of_plan p ON p.hash = s.hash
            LEFT JOIN sending f ON f.document = s.id
            WHERE {extra} AND s.id IS NOT NULL AND NOT s.may_be_there
                AND f.document IS NULL AND (p.hash IS NOT NULL OR (l.hash IS NOT NULL AND s.document IS NOT NULL))
            UNION ALL
            SELECT DISTINCT 'extra', l.destination, s.id, s.source, s.hash, 'it is a copy of another document'
            FROM strays s JOIN {ledger} l ON l.delivery_hash = s.hash
            WHERE l.destination IN {self._names} AND l.document <> s.id
        """,
        )

    def unknown_records(self, table: str = "pairs") -> Iterator[dict[str, Any]]:
        """Yield the records in a table, ``pairs`` or ``stored``, that the ledger does not have: ``id``, ``hash``,
        ``source``, ``version``, ``route``."""
        ledger = self._ledger_if(f"{table} WHERE id IS NOT NULL")
        self._view.keep(
            "ledger_hashes",
            f"""
            SELECT DISTINCT delivery_hash AS hash FROM {ledger} SEMI JOIN {table} s ON s.hash = delivery_hash
            WHERE destination IN {self._names}
        """,
        )
        return self._view.iter_rows(f"SELECT * FROM {table} ANTI JOIN ledger_hashes USING (hash) WHERE id IS NOT NULL")

    def _ledger_if(self, rows: str) -> str:
        """Return the ledger, as SQL, to be joined with these rows: without any, no part of it is read."""
        return "ledger" if self._count(rows) else "(SELECT * FROM ledger LIMIT 0)"

    def undelivered_hashes(self) -> Iterator[str]:
        """Yield the hashes of the stored records that the ledger does not have as delivered."""
        arrived = f"SELECT delivery_hash AS hash FROM ledger WHERE status = '{Status.INDEXED}'"
        rows = self._view.iter_rows(f"SELECT DISTINCT hash FROM stored ANTI JOIN ({arrived}) USING (hash)")
        return (row["hash"] for row in rows)

    def highest_revision(self) -> int:
        """Return the highest revision of a delivery to the target; 0 also if all that is stored is what is expected."""
        ledger = self._ledger_if("pairs WHERE id IS NOT NULL")
        [row] = self._view.rows(f"SELECT max(revision) AS highest FROM {ledger} WHERE destination IN {self._names}")
        return int(row["highest"] or 0)

    def judge(self, destination: str, inventory: Path | pa.Table) -> None:
        """Take the inventory of another node that writes to the target, and believe it about what that node delivered:
        it may have columns of its own, and only it knows what was written to them."""
        judged = f"judged_by_{self._judges}"
        self._judges += 1
        self._view.register(judged, inventory)
        of_node = f"SELECT DISTINCT hash FROM {self._arrived} WHERE destination = {quote(destination)}"
        self._view.keep(
            "merged",
            f"""
            SELECT s.* REPLACE (CASE WHEN n.hash IS NULL THEN s.intact ELSE j.intact END AS intact)
            FROM {self._stored} s LEFT JOIN ({of_node}) n ON n.hash = s.hash
            LEFT JOIN {judged} j ON j.hash = s.hash AND j.id = s.id
        """,
        )
        self._stored = "merged"

    def differing_ids(self, most: int) -> list[str] | None:
        """Return the ids of the documents that differ; None: there are more than ``most``."""
        rows = self._view.rows(f"SELECT DISTINCT document FROM found LIMIT {most + 1}")
        return None if len(rows) > most else sorted(row["document"] for row in rows)

    def save(self, path: str) -> None:
        """Write all differences to a file, for ``keep_repeated``."""
        self._view.rows(f"COPY (SELECT kind, document, hash FROM found) TO {quote(path)} (FORMAT parquet)")

    def keep_repeated(self, earlier: str) -> None:
        """Keep only differences that an earlier look found, too.

        Args:
            earlier: file of that look.
        """
        found = f"SELECT f.* FROM found f SEMI JOIN read_parquet({quote(earlier)}) e USING (kind, document, hash)"
        self._view.keep("found", found)

    def counts(self) -> ComparisonCounts:
        """Count what was found."""
        [sums] = self._view.rows("SELECT sum(expected) AS expected, sum(in_flight) AS in_flight FROM sums")
        compared = {name: int(number or 0) for name, number in sums.items()}
        if not self.differs:
            return ComparisonCounts(**compared, missing=0, changed=0, extra=0, unknown=0, others=0)
        kinds = {
            row["kind"]: row["n"] for row in self._view.rows("SELECT kind, count(*) AS n FROM found GROUP BY kind")
        }
        return ComparisonCounts(
            **compared,
            **{kind: kinds.get(kind, 0) for kind in ("missing", "changed", "extra")},
            unknown=self._count("pairs WHERE id IS NOT NULL AND document IS NOT NULL AND intact IS NULL"),
            others=self._count(
                "pairs ANTI JOIN ledger_hashes USING (hash) "
                "WHERE id IS NOT NULL AND hash NOT IN (SELECT hash FROM of_plan)"
            ),
        )

    def count_older(self) -> int:
        """Count the differences that an older copy of the target has: what is missing, what was deleted, and earlier
        deliveries."""
        return self._count(
            "found WHERE kind <> 'changed' OR document IN (SELECT id FROM pairs SEMI JOIN ledger_hashes USING (hash) "
            f"WHERE hash NOT IN (SELECT unnest(hashes) FROM {self._expected}))"
        )

    def differences(self, limit: int) -> list[Difference]:
        """Return the first differences, by kind and id."""
        rows = self._view.iter_rows(f"SELECT * FROM found ORDER BY kind, document, hash LIMIT {limit}")
        return [Difference(**row) for row in rows]

    def _load_texts(self, table: str, **columns: Iterable[str]) -> None:
        rows = pa.table({name: pa.array(list(texts), pa.string()) for name, texts in columns.items()})
        self._view.load(table, rows.schema, rows.to_batches())

    def _count(self, what: str) -> int:
        [row] = self._view.rows(f"SELECT count(*) AS n FROM {what}")
        return int(row["n"])


def _bucket(column: str) -> str:
    """Return SQL for the number of the bucket that a record is in, by its id or hash."""
    return f"hash({column}) & {_BUCKETS - 1}"


def _id_hash(column: str) -> str:
    """Return SQL for the hash of an id. DuckDB's own has thousands of collisions among a million file names; the other
    one sees their characters in other words of eight."""
    return f"hash({column}, 'x' || {column})"


def _sums(key: str, flag: str, which: str = "") -> str:
    """Return SQL for the sums of a bucket, over the key, the delivery's hash and a flag of each record; ``one`` and
    ``two``."""
    return f"sum(hash({key}, hash, {flag})) {which} AS one, sum(hash({flag}, hash, 'x' || {key})) {which} AS two"


def inventory_batches(inventory: Iterable[Stored]) -> Iterator[pa.RecordBatch]:
    """Yield an inventory in the columns ``STORED``.

    Raises:
        Misconfigured: it yields something else than ``Stored``.
    """
    pages = inventory.pages if isinstance(inventory, StoredPages) else _pages(inventory)
    while True:
        columns: list[list[Any]] = [[] for _ in STORED]
        while len(columns[0]) < _BATCH and (page := next(pages, None)):
            for column, values in zip(columns, page, strict=True):
                column += values
        if not columns[0]:
            return
        with _no_other_records():
            batch = _record_batch(columns)
        yield batch


def _pages(inventory: Iterable[Stored]) -> Iterator[StoredColumns]:
    records = iter(inventory)
    while rows := list(islice(records, _PAGE)):
        with _no_other_records():
            page = StoredColumns(*zip(*rows, strict=True))
        yield page


@contextmanager
def _no_other_records() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, AttributeError) as e:
        raise Misconfigured(f"its inventory yields what is not Stored: {message_of(e)}") from e


def _record_batch(columns: list[list[Any]]) -> pa.RecordBatch:
    if columns[5].count(()) < len(columns[5]):
        columns[5] = ["/".join(route) for route in columns[5]]
    else:
        columns[5] = [""] * len(columns[5])
    try:
        batch = _to_batch(columns)
    except UnicodeEncodeError:
        columns[0], columns[3] = list(map(_text, columns[0])), list(map(_text, columns[3]))
        batch = _to_batch(columns)
    if batch["id"].null_count or batch["hash"].null_count:
        raise TypeError("an id or a hash is None")
    return batch


def _to_batch(columns: Sequence[list[Any]]) -> pa.RecordBatch:
    arrays = [_to_array(column, f.type, f.name) for column, f in zip(columns, STORED, strict=True)]
    return pa.record_batch(arrays, schema=STORED)


def _to_array(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    """Return a column; one that usually has a single value is made of it, in a fifth of the time."""
    if name in _UNIFORM and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _text(text: str) -> str:
    """Return text that a table can hold: with ``?`` for half a character."""
    return text if text.isascii() else text.encode(errors="replace").decode()
