"""Late answers: what was not taken is not sent again once something newer of its document was committed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.row_results import RowResult
from ferryman.records.schemas import LEDGER, OUTBOX
from ferryman.records.statuses import Status
from ferryman.state.state import State
from ferryman.storage import parquet
from ferryman.storage.handles import DataFile
from ferryman.storage.query import connect

_NEWER = """
    SELECT DISTINCT a."row" FROM again a JOIN {events} e ON a.source = e.source AND a.document = e.document
    WHERE a.key_hash IS NULL AND {where}
        AND (e.revision > a.revision OR (e.revision = a.revision AND e.route = a.route AND {later}))
"""


def drop_overtaken(state: State, file: DataFile, noted: Sequence[RowResult]) -> list[RowResult]:
    """What was noted late of rows of this outbox file; a row that would be sent again, but was overtaken, is dropped.

    Overtaken: a newer revision of its document, or of the same revision and route something later, was committed for
    this destination, and may have been sent meanwhile: rows that are in doubt hold nothing, but for exports, which hold
    those of their key.
    """
    again = [n.row for n in noted if n.due is not None]
    if not again:
        return list(noted)
    overtaken = _overtaken(state, file, again)
    return [_dropped(n) if n.row in overtaken else n for n in noted]


def _dropped(noted: RowResult) -> RowResult:
    why = "superseded: something newer was committed before the destination said that it had not taken this: "
    return RowResult(noted.row, Status.DROPPED, why + noted.message, noted.attempt, None)


def _overtaken(state: State, file: DataFile, rows: list[int]) -> set[int]:
    names = ["row", "source", "document", "revision", "route", "operation", "key_hash"]
    of_file = parquet.scan([state.outbox.path(file.path)], pa.schema([OUTBOX.field(n) for n in names]))
    again = of_file.to_table(filter=pc.field("row").isin(rows))
    destination = file.partition["destination"]
    key = int(file.partition["first_sequence"])
    with connect(state.spill) as db:
        db.register("again", again)
        found = set()
        for other in state.outbox.files.values():
            if other.partition["destination"] == destination:
                db.register("other", parquet.scan([state.outbox.path(other.path)], of_file.schema))
                later = f'e."row" + {int(other.partition["first_sequence"])} > a."row" + {key}'
                found |= _rows(db.execute(_NEWER.format(events="other", where="true", later=later)).fetchall())
        db.register("events", parquet.scan(state.ledger.paths(), LEDGER))
        later = "a.operation = 'upsert' AND e.operation = 'delete'"  # a delete follows the upsert that it takes back
        sent = db.execute(_NEWER.format(events="events", where="e.destination = $1", later=later), [destination])
        return found | _rows(sent.fetchall())


def _rows(found: list[tuple[int]]) -> set[int]:
    return {row for (row,) in found}
