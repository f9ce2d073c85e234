"""Deletes that are held back: too much is missing at once, or the driver sees what was not listed.

A document that is not listed any more is deleted everywhere. So before that, some of these documents are looked for on
this machine, which need not be the one that listed them; and what is too much for a source, or for one of its
first-level folders, waits for an operator. Everything else goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.engine.scan.changes import SourceComparison
from ferryman.engine.scan.listing import Listing
from ferryman.engine.scan.reason import Reason
from ferryman.sources import Source
from ferryman.storage.groups import RowGroups

Allowed = bool | Collection[str]
"""Whether an operator allows deletes beyond ``max_deleted``: of everything, or of these first-level folders."""


@dataclass
class HeldDeletes:
    """What of a source is not deleted in this scan.

    Attributes:
        contradicted: why its listing is incomplete after all; "" if it is not.
        too_many: why deletes wait for an operator, a message each.
    """

    contradicted: str = ""
    too_many: list[str] = field(default_factory=list)
    _all: bool = False
    _folders: set[str] = field(default_factory=set)
    _allowed: frozenset[str] = frozenset()
    _trim: int = 0

    def released(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the missing documents that are deleted."""
        if self.contradicted:
            return rows.slice(0, 0)
        if not self._all and not self._folders:
            return rows
        folders = _folders_of(rows.column("id"), self._trim)
        if self._all:
            return rows.filter(pc.is_in(folders, pa.array(sorted(self._allowed), pa.string())))
        return rows.filter(pc.invert(pc.is_in(folders, pa.array(sorted(self._folders), pa.string()))))


def hold_back(comparison: SourceComparison, listing: Listing, allowed: Allowed) -> HeldDeletes:
    """What must not be deleted of what the comparison found missing."""
    source: Source = listing.source.source
    if not comparison.gone:
        return HeldDeletes()
    contradicted = _contradiction(comparison, source, listing)
    if contradicted or allowed is True:
        return HeldDeletes(contradicted)
    trim = len(source.prefix)
    words = frozenset(word.rstrip("/") for word in allowed) if allowed else frozenset()
    names = words | {word.removeprefix(source.prefix) for word in words}
    gone = _counts((batch.column("id") for batch in comparison.missing()), trim)
    spoken_for = sum(gone[name] for name in names)
    share = source.max_deleted
    if comparison.gone - spoken_for > share * comparison.known:
        why = too_many(comparison.name, "", comparison.gone, comparison.known, share, "")
        return HeldDeletes(too_many=[why], _all=True, _allowed=names & gone.keys(), _trim=trim)
    held = HeldDeletes(_trim=trim)
    known = _known(comparison, gone, trim) if share < 1 else Counter[str]()
    for folder in sorted(known.keys() - names):
        if known[folder] >= limits.GUARDED_DOCUMENTS and gone[folder] > share * known[folder]:
            held._folders.add(folder)
            told = source.prefix + folder
            held.too_many.append(too_many(comparison.name, told, gone[folder], known[folder], share, f"={told}"))
    return held


def too_many(source: str, folder: str, gone: int, known: int, share: float, option: str) -> str:
    """Why deletes wait for an operator, and how to allow them."""
    where = f"source {source}, folder {folder}" if folder else f"source {source}"
    return (
        f"{where}: {gone} of {known} documents are missing, more than max_deleted={share:g} allows. They were not "
        f"deleted; everything else continues. If they were removed on purpose, run again with --allow-deletes{option}."
    )


def _contradiction(comparison: SourceComparison, source: Source, listing: Listing) -> str:
    """What is there for this machine though it was not listed; "" if nothing is."""
    there = source.still_there(_some(comparison, source))
    if not there:
        return ""
    hosts = sorted({part.host for part in listing.parts if part.host})
    listed = f" (it was listed on {', '.join(hosts[:5])}{', …' if len(hosts) > 5 else ''})" if hosts else ""
    return f"{there}, but not in the listing{listed}. Every machine must see the same there: mount it on all of them."


def _some(comparison: SourceComparison, source: Source) -> Iterator[str]:
    """Missing documents by their own ids: a few of each folder."""
    looked_at: Counter[str] = Counter()
    left = limits.LOOKED_AT_AGAIN
    for batch in comparison.missing():
        for id in batch.column("id").to_pylist():
            own = source.own_id(id)
            folder = own.rpartition("/")[0]
            looked_at[folder] += 1
            if looked_at[folder] <= limits.LOOKED_AT_A_FOLDER:
                yield own
                left -= 1
                if not left:
                    return


def _known(comparison: SourceComparison, gone: Counter[str], trim: int) -> Counter[str]:
    """How many documents there were in each folder that may be too empty now.

    Those that are missing, and those that are listed and not new.
    """
    least = comparison.max_deleted * limits.GUARDED_DOCUMENTS
    folders = [name for name, count in gone.items() if count > least]
    if not folders:
        return Counter()
    listed: Counter[str] = Counter()
    for path in comparison.paths:
        with RowGroups(path, ["id"]) as file:
            listed += _counts((rows["id"] for rows in file.all()), trim, folders)
    new = _counts((batch.column("id") for batch in comparison.taken_up(Reason.NEW)), trim, folders)
    return Counter({name: gone[name] + max(0, listed[name] - new[name]) for name in folders})


def _counts(columns: Iterable[Any], trim: int, only: list[str] | None = None) -> Counter[str]:
    """Documents by their first-level folders."""
    counts: Counter[str] = Counter()
    for ids in columns:
        folders = _folders_of(ids, trim)
        if only is not None:
            folders = folders.filter(pc.is_in(folders, pa.array(only, pa.string())))
        for each in pc.value_counts(folders.drop_null()).to_pylist():
            counts[each["values"]] += each["counts"]
    return counts


def _folders_of(ids: Any, trim: int) -> Any:
    """The first-level folder of each id, null where it is in none."""
    names = pc.utf8_slice_codeunits(ids, start=trim)
    return pc.struct_field(pc.extract_regex(names, r"^(?P<folder>[^/#]+)/"), "folder")
