"""A block of compared rows: its columns, and what is known of each document."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa

from ferryman.engine.tasks import Reason
from ferryman.records.families import FailedMember, decode_failures, decode_held
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


class KnownDocument(NamedTuple):
    """A document's row in ``documents``."""

    version: str
    revision: int
    fingerprint: str
    operation: str
    given: str
    due: int | None
    failed: str | None
    held: str | None
    again: int | None

    @property
    def failures(self) -> list[FailedMember]:
        """Return the failures at its steps."""
        return decode_failures(self.failed)


class Block:
    """Some rows of a task; row ``i`` of every column is the same document.

    Attributes:
        table: the rows as they were compared.
        ids, reasons, refused: their columns as lists.
        versions: None where the content was not read yet; whoever reads it sets it.
        fingerprints: what the next scan compares with; "": it reads the content.
        first_seen: no document of the block was known before.
        first_revision: of documents that are seen for the first time, where the rows have no revision.
        places: of entries of a log, else empty.
        key_hashes: keys of the exports of a keyed node, else empty.
        provenances: where each document came from, as JSON; None: not known for any.
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
        self._known = [] if self.first_seen else [table[name].to_pylist() for name in KNOWN_COLUMNS]

    def __len__(self) -> int:
        return len(self.ids)

    def known(self, i: int) -> KnownDocument | None:
        """Return the document's last row in ``documents``; None if it was never seen."""
        if self.first_seen or self._known[0][i] is None:
            return None
        return KnownDocument(*(column[i] for column in self._known))

    def contents(self) -> tuple[list[bytes | None], list[bytes | None]] | None:
        """Return fields and raw bytes of each row, where they came with it; None: they are elsewhere."""
        if self._contents is None and self.places:
            self._contents = column_values(self.table["fields"]), column_values(self.table["raw"])
        return self._contents

    def drop_reason(self, i: int) -> str | None:
        """Return why its source drops row ``i``; None: it does not."""
        return self._drop_reasons[i] if self._drop_reasons else None

    def set_drop_reason(self, i: int, why: str) -> None:
        """Note that its source drops row ``i`` for this reason; "": it does not."""
        if why:
            self._drop_reasons = self._drop_reasons or [None] * len(self)
            self._drop_reasons[i] = why

    def entry_fields(self, i: int) -> bytes | None:
        """Return the fields of an entry of a log as it came; None: it is not one, or could not be read."""
        contents = self.contents()
        return self.read_fields(i)[0] if contents is None else contents[0][i]

    def read_fields(self, i: int) -> tuple[bytes | None, str | None]:
        """Return what was read of row ``i`` by its id: fields and provenance."""
        return self._read.get(i, (None, None))

    def set_read(self, i: int, fields: bytes | None, provenance: str | None) -> None:
        """Store what was read of row ``i``, an entry of a log, by its id."""
        self._read[i] = fields, provenance
        if provenance is not None:
            if self.provenances is None:
                self.provenances = [None] * len(self)
            self.provenances[i] = provenance

    def has_version(self, i: int, version: str) -> bool:
        """Return whether ``documents`` has this version of row ``i``."""
        known = self.known(i)
        return known is not None and known.version == version and known.operation == "upsert"

    def revision(self, i: int) -> int:
        """Return the revision of row ``i``: a retry keeps it, everything else processed opens a new one."""
        known = self.known(i)
        if known is None:
            return self._revisions[i] if self._revisions else self.first_revision
        return known.revision if self.is_retry(i, known) else known.revision + 1

    def revisions(self, rows: list[int]) -> list[int]:
        """Return the revisions of these rows."""
        if self.first_seen and not self._revisions:
            return [self.first_revision] * len(rows)
        return [self.revision(i) for i in rows]

    def name(self, i: int) -> str:
        """Return the name of row ``i`` in ``documents``."""
        return export_name(self._revisions[i]) if self.key_hashes else self.ids[i]

    def deletes(self, i: int) -> bool:
        """Return whether row ``i`` is the export of a deletion."""
        return bool(self._deletes) and self._deletes[i]

    def held_by(self, i: int) -> list[str]:
        """Return the nodes that all pending deliveries of row ``i`` wait for, see ``family.encode_held``."""
        known = self.known(i)
        return decode_held(known.held) if known is not None else []

    def failures_to_retry(self, i: int) -> list[FailedMember] | None:
        """Return the failures at which a retry of this version continues; None: it is not a retry."""
        known = self.known(i)
        return known.failures if known is not None and self.is_retry(i, known) else None

    def is_retry(self, i: int, known: KnownDocument) -> bool:
        """Return whether row ``i`` is processed only for its failures and has not changed since."""
        return self.reasons[i] == Reason.RETRY and known.version == self.versions[i]
