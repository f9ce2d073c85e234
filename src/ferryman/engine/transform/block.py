"""A block of compared rows: its columns, and what ``documents`` says about each document."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.engine.tasks import NOTHING_KNOWN, KnownDocument, Reason
from ferryman.records.families import FailedMember, decode_held
from ferryman.records.keys import export_name
from ferryman.storage.parquet import column_values

KNOWN_COLUMNS: Final = [
    "known_version",
    "known_revision",
    "known_fingerprint",
    "known_operation",
    "given",
    "due",
    "failed",
    "held",
    "again",
]

_NO_REVISION: Final = pa.nulls(1, pa.int64())[0]


class Block:
    """A block of a task's rows; row ``i`` of every column belongs to the same document.

    Attributes:
        table: the compared rows.
        ids, reasons, refused: their columns as lists.
        versions: version of each document; None until its content is read.
        fingerprints: fingerprints for the next scan to compare with; "": the next scan reads the content.
        first_seen: whether all documents of the block are new.
        first_revision: revision of new documents, if the rows have none.
        places: places of a log's entries; empty for other sources.
        key_hashes: key hashes of a keyed node's exports; empty for other sources.
        provenances: provenance of each document as JSON; None: unknown for all.
    """

    def __init__(self, table: pa.Table, first_revision: int = 1) -> None:
        self.table = table
        self.first_revision = first_revision
        of_log, changed, exported = (name in table.column_names for name in ("place", "revision", "key_hash"))
        self.places: list[int] = table["place"].to_pylist() if of_log else []
        self.provenances: list[str | None] | None = table["provenance"].to_pylist() if of_log else None
        self._contents: tuple[list[bytes | None], list[bytes | None]] | None = None
        self._read: dict[int, tuple[bytes | None, str | None]] = {}
        self._drop_reasons: list[str | None] = column_values(table["dropped"]) if of_log else []
        self._revisions: list[int] = table["revision"].to_pylist() if changed else []
        self.key_hashes: list[int] = table["key_hash"].to_pylist() if exported else []
        self._deletes: list[bool] = table["deletes"].to_pylist() if changed else []
        self.ids: list[str] = table["id"].to_pylist()
        self.reasons: list[str] = table["reason"].to_pylist()
        self.refused: list[str | None] = column_values(table["refused"])
        self.versions: list[Any] = column_values(table["version"])
        self.fingerprints: list[str] = table["fingerprint"].to_pylist()
        self.first_seen = table["known_version"].null_count == table.num_rows
        self._known_revisions: list[int | None] = []
        if not self.first_seen:
            is_known = pc.is_valid(table["known_version"])
            self._known_revisions = pc.if_else(is_known, table["known_revision"], _NO_REVISION).to_pylist()

    def set_known(self, known: list[KnownDocument]) -> None:
        """Record what ``documents`` says of each row's document, for entries of a log, whose rows come without it."""
        self._known = known
        self._known_revisions = [each.revision for each in known]
        self.published = [each.given for each in known]
        self.reasons = [Reason.NEW.value if each.version is None else Reason.CHANGED.value for each in known]
        self.first_seen = False

    def replace_known(self, i: int, known: KnownDocument) -> None:
        """Record what an earlier entry about row ``i``'s document has come to."""
        if self.first_seen:
            self.set_known([NOTHING_KNOWN] * len(self))
        self._known[i], self._known_revisions[i], self.published[i] = known, known.revision, known.given
        self.reasons[i] = Reason.CHANGED.value

    @cached_property
    def _known(self) -> list[KnownDocument]:
        columns = [self.table[name].to_pylist() for name in KNOWN_COLUMNS]
        return list(map(KnownDocument._make, zip(*columns, strict=True)))

    @cached_property
    def is_plain(self) -> bool:
        """Whether all documents are new or changed, and nothing is pending for any."""
        if self.reasons.count(Reason.NEW) + self.reasons.count(Reason.CHANGED) < len(self):
            return False
        if self.first_seen:
            return True
        if self.places:
            return all(each.due is None and each.failed is None and each.held is None for each in self._known)
        return all(self.table[name].null_count == len(self) for name in ("due", "failed", "held"))

    @cached_property
    def published(self) -> list[str | None]:
        """Deliveries published of each document before, as ``encode_published`` returns them; "" or None: none."""
        return [None] * len(self) if self.first_seen else self.table["given"].to_pylist()

    def __len__(self) -> int:
        return len(self.ids)

    def known(self, i: int) -> KnownDocument | None:
        """Return the document's last row in ``documents``; None if it was never seen."""
        if self.first_seen or (known := self._known[i]).version is None:
            return None
        return known

    def contents(self) -> tuple[list[bytes | None], list[bytes | None]] | None:
        """Return fields and raw bytes of each row, if the rows contain them; None: they have to be read elsewhere."""
        if self._contents is None and self.places:
            self._contents = column_values(self.table["fields"]), column_values(self.table["raw"])
        return self._contents

    def drop_reason(self, i: int) -> str | None:
        """Return why the source drops row ``i``; None: it does not."""
        return self._drop_reasons[i] if self._drop_reasons else None

    @property
    def drops(self) -> bool:
        """Return whether the source drops any row."""
        return self._drop_reasons.count(None) < len(self._drop_reasons)

    def set_drop_reason(self, i: int, why: str) -> None:
        """Record why the source drops row ``i``; "": it does not."""
        if why:
            self._drop_reasons = self._drop_reasons or [None] * len(self)
            self._drop_reasons[i] = why

    def entry_fields(self, i: int) -> bytes | None:
        """Return the fields of row ``i`` as the log delivered them; None if it is not a log entry, or could not be
        read."""
        contents = self.contents()
        return self.read_fields(i)[0] if i in self._read or contents is None else contents[0][i]

    def read_fields(self, i: int) -> tuple[bytes | None, str | None]:
        """Return what ``set_read`` stored for row ``i``: fields and provenance."""
        return self._read.get(i, (None, None))

    def set_read(self, i: int, fields: bytes | None, provenance: str | None) -> None:
        """Store the fields and provenance of row ``i``, a log entry that was read again by its id."""
        self._read[i] = fields, provenance
        if provenance is not None:
            if self.provenances is None:
                self.provenances = [None] * len(self)
            self.provenances[i] = provenance

    def has_version(self, i: int, version: str) -> bool:
        """Return whether ``documents`` has row ``i`` in this version."""
        known = self.known(i)
        return known is not None and known.version == version and known.operation == "upsert"

    def revision(self, i: int) -> int:
        """Return the revision of row ``i``: a retry keeps the known one, anything else gets the next."""
        before = None if self.first_seen else self._known_revisions[i]
        if before is None:
            return self._revisions[i] if self._revisions else self.first_revision
        if self.reasons[i] == Reason.RETRY and self.is_retry(i, self._known[i]):
            return before
        return max(before + 1, self._revisions[i]) if self._revisions else before + 1

    def revisions(self, rows: list[int]) -> list[int]:
        """Return the revisions of these rows."""
        if self.first_seen and not self._revisions:
            return [self.first_revision] * len(rows)
        return [self.revision(i) for i in rows]

    def count_new(self, rows: list[int]) -> int:
        """Return the number of these rows whose documents were never seen."""
        return len(rows) if self.first_seen else sum(self._known_revisions[i] is None for i in rows)

    def name(self, i: int) -> str:
        """Return the name of row ``i`` in ``documents``."""
        return export_name(self._revisions[i]) if self.key_hashes else self.ids[i]

    def deletes(self, i: int) -> bool:
        """Return whether row ``i`` is an export that deletes a document."""
        return bool(self._deletes) and self._deletes[i]

    def held_by(self, i: int) -> list[str]:
        """Return the nodes that all pending deliveries of row ``i`` wait for, see ``records.families.encode_held``."""
        known = self.known(i)
        return decode_held(known.held) if known is not None else []

    def failures_to_retry(self, i: int) -> list[FailedMember] | None:
        """Return the failures of row ``i`` from which a retry continues; None: it is not a retry of the same
        version."""
        known = self.known(i)
        return known.failures if known is not None and self.is_retry(i, known) else None

    def is_retry(self, i: int, known: KnownDocument) -> bool:
        """Return whether row ``i`` is processed only to retry its failures, and has not changed since."""
        return self.reasons[i] == Reason.RETRY and known.version == self.versions[i]
