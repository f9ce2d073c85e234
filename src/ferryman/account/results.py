"""What became of documents, one by one: for who waits for their last delivery."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from ferryman.account.questions import retry_read, view
from ferryman.account.relations import View
from ferryman.plan import Plan
from ferryman.records.reasons import reason_of
from ferryman.records.statuses import TERMINAL, Status
from ferryman.storage.files import StatePath

FAILED: Final = frozenset({Status.DEAD, Status.ERROR_DOC, Status.INDEXING})
"""Ends that an operator has to look at. INDEXING: the outcome is unknown."""


class FailedDelivery(NamedTuple):
    """A delivery that did not end well."""

    document: str
    destination: str
    status: str
    why: str


class DocumentResult(NamedTuple):
    """A source document's current revision, with all that was made from it."""

    fingerprint: str
    """Of what was processed last; "" if that could not be read."""
    settled: bool
    """Has every delivery ended, so that none is pending?"""
    failures: tuple[FailedDelivery, ...]

    def speaks_of(self, fingerprint: str) -> bool:
        """Is it about this content? What could not be read has no fingerprint, and has failed."""
        return self.fingerprint == fingerprint or (not self.fingerprint and bool(self.failures))


def document_results(root: StatePath, plan: Plan, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    """Source documents (ids with prefix) -> what became of them; those that were never processed are not in it.

    Raises:
        StateDamaged: by name.
    """

    def look() -> dict[str, DocumentResult]:
        with view(root, plan) as seen:
            return _of(seen, source, documents)

    return retry_read(root, look)


def _of(seen: View, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    asked: dict[str, Any] = {"source": source, "wanted": list(documents)}
    wanted = "(SELECT unnest($wanted::VARCHAR[]))"
    known = seen.rows(
        f"""
        SELECT document,
            arg_max({{fingerprint: fingerprint, revision: revision, owed: due IS NOT NULL OR forced}}, wave) AS last
        FROM documents WHERE source = $source AND document IN {wanted} GROUP BY document
        """,
        asked,
    )
    current = {row["document"]: row["last"] for row in known}
    open_ones = {document for document, last in current.items() if last["owed"]}
    failures: dict[str, dict[FailedDelivery, None]] = defaultdict(dict)
    ended = seen.rows(
        f"""
        SELECT origin, revision, arg_max({{document: document, destination: destination, status: status,
            message: message}}, wave * 4 + ordinal) AS last
        FROM ledger WHERE source = $source AND destination <> '' AND origin IN {wanted}
        GROUP BY delivery_hash, origin, revision ORDER BY origin
        """,
        asked,
    )
    for row in ended:
        origin, last = row["origin"], row["last"]
        if origin not in current or row["revision"] != current[origin]["revision"]:
            continue
        status = Status(last["status"])
        if status in FAILED:
            found = FailedDelivery(
                last["document"], last["destination"], status.value, reason_of(last["message"] or "")
            )
            failures[origin][found] = None
        elif status not in TERMINAL:
            open_ones.add(origin)
    unsent = seen.rows(f"SELECT origin, revision FROM unsent WHERE source = $source AND origin IN {wanted}", asked)
    open_ones |= {
        row["origin"]
        for row in unsent
        if row["origin"] in current and row["revision"] == current[row["origin"]]["revision"]
    }
    return {
        document: DocumentResult(last["fingerprint"] or "", document not in open_ones, tuple(failures[document]))
        for document, last in current.items()
    }
