"""Is this file whole? Of each family, how many of its deliveries have ended.

A family is an origin with all that steps made of it. Rows of a file (``Csv``, ``Lines``, ``JsonLines``) are origins of
their own, called after their file: ``products.csv#row=2``. They count as the family of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ferryman import limits
from ferryman.account.questions import retry_read, view
from ferryman.account.relations import View
from ferryman.plan import Plan
from ferryman.records.family import SEPARATOR, in_family
from ferryman.records.statuses import TERMINAL
from ferryman.storage.files import StatePath
from ferryman.storage.query import quoted, quoted_list

_FAMILY: Final = f"split_part({{id}}, '{SEPARATOR}', 1)"


class Wholeness(NamedTuple):
    """How far a family has come; counts are of deliveries of current documents."""

    source: str
    family: str
    deliveries: int
    ended: int
    pending: int
    in_doubt: int
    failed: int
    rejected: int

    @property
    def complete(self) -> bool:
        """Has everything of it ended, one way or the other?"""
        return self.ended == self.deliveries

    def told(self) -> str:
        """``incomplete: 3 of 5 deliveries have ended: 2 pending; 1 failed``."""
        what = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        has = "has" if self.deliveries == 1 else "have"
        said = f"{'complete' if self.complete else 'incomplete'}: {self.ended} of {what} {has} ended"
        still = [f"{n} {word}" for n, word in ((self.pending, "pending"), (self.in_doubt, "in doubt")) if n]
        badly = [f"{n} {word}" for n, word in ((self.failed, "failed"), (self.rejected, "rejected")) if n]
        return said + "".join(f"; {', '.join(words)}" for words in (still, badly) if words)


def of_family(root: StatePath, family: str, plan: Plan | None = None) -> list[Wholeness]:
    """How far this family has come, one for each source that has it; [] if none has.

    Raises:
        UsageError: there is no state yet.
        StateDamaged: by name.
    """

    def look(seen: View) -> list[Wholeness]:
        every = _found(seen, in_family(family), in_family(family, "document"))
        return [each._replace(family=family) for each in every]  # one row of a file may be asked for

    return _looked(root, plan, look)


def incomplete(
    root: StatePath, plan: Plan | None = None, source: str | None = None, family: str | None = None
) -> list[Wholeness]:
    """Families of which something is pending or in doubt; only of this source, only this family.

    Raises: as ``of_family``.
    """

    def look(seen: View) -> list[Wholeness]:
        if family is not None:
            every = _found(seen, in_family(family), in_family(family, "document"))
            return [each for each in every if not each.complete and source in (None, each.source)]
        only = "" if source is None else f" AND source = {quoted(source)}"
        seen.keep("open_families", f"SELECT DISTINCT hash(source, {_family('id')}) AS h FROM ({_open(only)})")
        among = "hash(source, {family}) IN (SELECT h FROM open_families)"
        origins, documents = (among.format(family=_family(column)) for column in ("origin", "document"))
        return sorted(each for each in _found(seen, origins, documents) if not each.complete)

    return _looked(root, plan, look)


def _looked(root: StatePath, plan: Plan | None, ask: Any) -> list[Wholeness]:
    def look() -> list[Wholeness]:
        with view(root, plan) as seen:
            found: list[Wholeness] = ask(seen)
            return found

    return retry_read(root, look)


def _family(column: str) -> str:
    return _FAMILY.format(id=column)


def _open(only: str) -> str:
    """(source, id) of all origins of which something may not have ended."""
    return f"""
        SELECT source, origin AS id FROM waiting WHERE due IS NOT NULL{only}
        UNION ALL SELECT source, origin FROM ledger WHERE status = 'INDEXING'{only}
        UNION ALL SELECT source, document FROM documents WHERE (due IS NOT NULL OR forced){only}
    """


def _found(seen: View, origins: str, documents: str) -> Iterator[Wholeness]:
    """The families of these origins, in shares that fit into memory.

    Args:
        origins, documents: SQL on ``origin`` and ``document``: which ones are meant.
    """
    [counted] = seen.rows(f"SELECT count(*) AS n FROM ledger WHERE {origins}")
    shares = 1 + counted["n"] // limits.QUERY_ROWS
    for share in range(shares):
        of_share = f" AND hash({{column}}) % {shares} = {share}"
        query = _counts(
            origins + of_share.format(column=_family("origin")),
            documents + of_share.format(column=_family("document")),
        )
        for row in seen.rows(query):
            yield Wholeness(**row)


def _counts(origins: str, documents: str) -> str:
    ended = quoted_list(sorted(TERMINAL))
    return f"""
        WITH last AS (
            SELECT arg_max({{source: source, origin: origin, revision: revision, status: status}},
                wave * 4 + ordinal) AS e
            FROM ledger WHERE destination <> '' AND {origins} GROUP BY delivery_hash
        ), now AS (
            SELECT source, document, max(revision) AS revision FROM documents WHERE {documents} GROUP BY ALL
        ), ends AS (
            SELECT n.source, n.document AS origin, e.status FROM last JOIN now n
                ON e.source = n.source AND e.origin = n.document AND e.revision = n.revision
            UNION ALL
            SELECT n.source, n.document, 'BATCHED' FROM unsent u JOIN now n
                ON u.source = n.source AND u.origin = n.document AND u.revision = n.revision
            UNION ALL
            SELECT n.source, n.document, 'BATCHED' FROM waiting w JOIN now n
                ON w.source = n.source AND w.origin = n.document AND w.revision < n.revision
            WHERE w.due IS NOT NULL AND w.delivery_hash NOT IN (
                SELECT delivery_hash FROM ledger WHERE status = 'INDEXED' AND {origins})
        )
        SELECT source, {_family("origin")} AS family, count(*) AS deliveries,
            count(*) FILTER (status IN {ended}) AS ended,
            count(*) FILTER (status NOT IN {ended} AND status <> 'INDEXING') AS pending,
            count(*) FILTER (status = 'INDEXING') AS in_doubt, count(*) FILTER (status = 'DEAD') AS failed,
            count(*) FILTER (status = 'ERROR_DOC') AS rejected
        FROM ends GROUP BY ALL ORDER BY source, family
    """
