"""Deliver, in the workers: committed rows go to their destination, chunk by chunk, each with a durable result.

What a lane does with a chunk, and what a kill between two of the numbers leaves behind:

1. (at-most-once) claim it, durably       killed after this: never sent again, *unknown*
2. look whether the pass is still open     closed: send nothing
3. ``write``                               killed in here: unknown; sent again under the other guarantees
4. note what came of it, durably           (at-most-once: each chunk; else at least every second)
5. at the end of a file or so: the rows' ledger events as a data file, and a result that names it
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import settings
from ferryman.destinations.base import Delivery, DestinationContext, Guarantee, Outcome
from ferryman.engine.runner import Shipped
from ferryman.engine.sender import Hung, Sender, universal
from ferryman.errors import PermanentError, words
from ferryman.ledger.events import sent_events
from ferryman.ledger.journal import UNTOUCHED, Journal, Result, RowResult, Rows
from ferryman.ledger.schemas import OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.statuses import Status
from ferryman.plan import DestinationNode, Policy
from ferryman.storage.files import fsync_folder
from ferryman.storage.groups import RowGroups, values
from ferryman.storage.parquet import read_part, write_part
from ferryman.testing import crash

_SENT: Final = (
    "document",
    "delivery_hash",
    "row",
    "operation",
    "fields",
    "raw",
    "version",
    "source",
    "parent",
    "origin",
    "route",
    "attempt",
)
"""Columns that a delivery is made of, in the order of ``Delivery.of``."""
_CONTENT: Final = ["fields", "raw"]
"""The large ones: in memory a row group at a time."""
_KEPT: Final = [f.name for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, *_CONTENT)]


class OutboxFile(NamedTuple):
    """A file with owed rows."""

    path: str
    key: int
    """Its first sequence."""


class Lane(NamedTuple):
    """What one delivery task takes: files of one destination, oldest first."""

    destination: str
    files: list[OutboxFile]
    contested: dict[str, int]
    """Ids with several owed rows -> the sequence that goes first; the others are held."""


class LaneReport(NamedTuple):
    """What a lane met that concerns its whole destination."""

    destination: str
    trouble: str = ""
    """Why it stopped: the destination is down, or wrong."""
    permanent: bool = False
    """A person must mend it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Task: deliver a lane in this pass."""

    shipped: Shipped
    root: str
    number: int
    now_us: int
    pace_s: float = settings.PACE_S
    send_timeout_s: float = settings.SEND_TIMEOUT_S

    def __call__(self, lane: Lane) -> LaneReport:
        node = next(n for n in self.shipped.plan().nodes if n.name == lane.destination)
        assert isinstance(node, DestinationNode)
        return _Lane(self, lane, node).deliver()


class _Stop(Exception):
    """The lane ends here; the rest stays owed."""

    def __init__(self, why: str = "", permanent: bool = False) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent = why, permanent


class _Lane:
    def __init__(self, pass_: Pass, lane: Lane, node: DestinationNode) -> None:
        self.pass_ = pass_
        self.lane = lane
        self.node = node
        self.root = Path(pass_.root)
        self.journal = Journal(self.root / "journal")
        self.once = node.policy.guarantee is Guarantee.AT_MOST_ONCE
        self.until = time.monotonic() + pass_.pace_s
        self.sender = Sender(node.name)
        self.met: list[Rows] = []
        """Chunks that somebody else has claimed."""

    def deliver(self) -> LaneReport:
        plan = self.pass_.shipped.plan()
        context = DestinationContext(
            plan.name, plan.version, self.node.name, self.pass_.number, self.node.policy.guarantee
        )
        destination = self.node.destination
        stopped = _Stop()
        try:
            self._call(destination.open, context)
            for file in self.lane.files:
                _FileDelivery(self, file).deliver()
            self._call(destination.close)
        except _Stop as stop:
            stopped = stop
        self.sender.end()
        self._await_others()
        return LaneReport(self.node.name, stopped.why, stopped.permanent)

    def _call(self, function: Any, *args: Any) -> None:
        """``open`` and ``close`` speak for the whole destination."""
        try:
            self.sender.call(function, *args, timeout_s=self.pass_.send_timeout_s)
        except Exception as e:
            raise _Stop(f"{type(e).__name__}: {words(e)}", isinstance(e, PermanentError)) from e

    def check(self) -> None:
        """2. may we still send?"""
        if not self.journal.open_for(self.pass_.number):
            raise _Stop
        if time.monotonic() > self.until:
            raise _Stop

    def _await_others(self) -> None:
        """Another's live claim: do not return before its result is there, at most the time that a send may take."""
        until = time.monotonic() + self.pass_.send_timeout_s
        number = self.pass_.number
        while self.met and time.monotonic() < until and self.journal.open_for(number):
            done = {r.range for r in self.journal.results(number)}
            self.met = [m for m in self.met if m not in done and self.journal.owner_alive(number, m)]
            if self.met:
                time.sleep(0.05)


class _FileDelivery:
    """One outbox file: its eligible rows, cut into chunks the same way by every attempt of a pass."""

    def __init__(self, lane: _Lane, file: OutboxFile) -> None:
        self.lane = lane
        self.file = file
        self.policy: Policy = lane.node.policy
        path = lane.root / "outbox" / file.path
        table = read_part(path, _KEPT)
        self.places, self.table = self._eligible(table)
        self.rows: np.ndarray[Any, Any] = self.table["row"].to_numpy()
        self.contents = RowGroups(str(path), _CONTENT, verified=True)
        self.content = pa.table({})
        """Content of the rows that ``_chunks`` came to last."""
        self.noted = time.monotonic()
        self.pending: list[tuple[int, int, list[Outcome] | None]] = []
        """Chunks sent and not yet in a ledger file: (start, end, outcomes; None = all ok)."""

    def deliver(self) -> None:
        done = self._done()
        try:
            for start, end in self._chunks():
                rows = self._range(start, end)
                if any(d.first <= rows.first and rows.end <= d.end for d in done):
                    continue
                if self.lane.once:
                    self._send_once(rows, start, end)
                else:
                    self._send(start, end)
        finally:
            self.contents.close()
            self._write_part()

    def _eligible(self, table: pa.Table) -> tuple[np.ndarray[Any, Any], pa.Table]:
        """Rows that are due and not held behind an older row of their id, and where in the file they are."""
        mask = pc.fill_null(pc.less_equal(table["due"], self.lane.pass_.now_us), False)
        if contested := self.lane.lane.contested:
            due, ids, rows = (table[c].to_pylist() for c in ("due", "document", "row"))
            first = [contested.get(i) for i in ids]
            goes = [
                None if f is None else f == self.file.key + r and d is not None
                for f, r, d in zip(first, rows, due, strict=True)
            ]
            mask = pc.coalesce(pa.array(goes, pa.bool_()), mask)
        places = np.flatnonzero(np.asarray(mask))
        return places, table if len(places) == table.num_rows else table.filter(mask).combine_chunks()

    def _done(self) -> list[Rows]:
        """Rows that an earlier attempt of this task has seen through."""
        return [r.range for r in self.lane.journal.results(self.lane.pass_.number, self.file.key)]

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Cut at ``batch`` rows or ``batch_bytes``, whichever is first; the content comes in on the way."""
        start = 0
        while start < len(self.places):
            content = pa.concat_tables(self.contents.pick(self.places[start : start + self.policy.batch]))
            sizes = [pc.fill_null(pc.binary_length(content[c]), 0).to_numpy() for c in _CONTENT]
            ends = np.cumsum(sum(sizes), dtype=np.int64)
            rows = max(1, int(np.searchsorted(ends, self.policy.batch_bytes, side="right")))
            self.content = content.slice(0, rows)
            yield start, start + rows
            start += rows

    def _range(self, start: int, end: int) -> Rows:
        return Rows(self.file.key, int(self.rows[start]), int(self.rows[end - 1]) + 1)

    # -- at-most-once ------------------------------------------------------------------------------

    def _send_once(self, rows: Rows, start: int, end: int) -> None:
        lane = self.lane
        if not lane.journal.open_for(lane.pass_.number) or time.monotonic() > lane.until:
            raise _Stop  # claim nothing that would not be sent
        if not lane.journal.claim(lane.pass_.number, rows, self._meant(rows, start, end)):  # 1
            lane.met.append(rows)
            return
        crash.point("deliver.claimed")
        if not lane.journal.open_for(lane.pass_.number):  # 2
            raise _Stop
        chunk = self._deliveries(start, end)
        stop: _Stop | None = None
        try:
            outcomes = self._write(chunk)  # 3
        except Hung as e:
            raise _Stop(f"write: {e}") from e
        except Exception as e:
            stop = _Stop(f"{type(e).__name__}: {words(e)}", isinstance(e, PermanentError)) if universal(e) else None
            outcomes = [Outcome("unknown", f"{type(e).__name__}: {words(e)}")] * len(chunk)
        crash.point("deliver.sent")
        noted = self._noted(start, end, outcomes)
        lane.journal.publish(lane.pass_.number, self._result(rows, start, end, noted, None))  # 4
        crash.point("deliver.noted")
        self.pending.append((start, end, outcomes))
        if stop is None:
            stop = _universal(outcomes)
        if stop is not None:
            raise stop

    # -- exactly-once, at-least-once ---------------------------------------------------------------

    def _send(self, start: int, end: int) -> None:
        self.lane.check()  # 2
        chunk = self._deliveries(start, end)
        try:
            outcomes = self._write_or_split(chunk)  # 3
        except Hung as e:
            raise _Stop(f"write: {e}") from e
        crash.point("deliver.sent")
        self.pending.append((start, end, outcomes))
        if (stop := _universal(outcomes)) is not None:
            raise stop
        if time.monotonic() - self.noted > settings.RESULT_EVERY_S:
            self._write_part()  # 4, 5

    def _write_or_split(self, chunk: list[Delivery]) -> list[Outcome] | None:
        """Outcomes; a chunk that fails as a whole is halved until the bad row stands alone."""
        try:
            return self._write(chunk)
        except Hung:
            raise
        except Exception as e:
            why = f"{type(e).__name__}: {words(e)}"
            permanent = isinstance(e, PermanentError)
            if universal(e):
                return [Outcome("permanent" if permanent else "transient", why, True)] * len(chunk)
            if len(chunk) == 1:
                return [Outcome("permanent" if permanent else "transient", why)]
        outcomes: list[Outcome] = []
        for half in (chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]):
            outcomes += self._write_or_split(half) or [Outcome.ok()] * len(half)
            if outcomes[-1].universal:
                return outcomes + [outcomes[-1]] * (len(chunk) - len(outcomes))
        return outcomes

    # -- both --------------------------------------------------------------------------------------

    def _write(self, chunk: list[Delivery]) -> list[Outcome] | None:
        """Call the destination. None: all ok. What it left out is unknown."""
        outcomes = self.lane.sender.call(
            self.lane.node.destination.write, chunk, timeout_s=self.lane.pass_.send_timeout_s
        )
        answered = list(outcomes) if outcomes is not None else []
        if len(answered) == len(chunk) and answered.count(Outcome.ok()) == len(chunk):
            return None
        answered = [
            o if isinstance(o, Outcome) else Outcome("unknown", f"write answered {o!r}") for o in answered[: len(chunk)]
        ]
        return answered + [Outcome("unknown", "write gave no outcome")] * (len(chunk) - len(answered))

    def _deliveries(self, start: int, end: int) -> list[Delivery]:
        part = self.table.slice(start, end - start)
        columns = {name: values((self.content if name in _CONTENT else part)[name]) for name in _SENT}
        columns["row"] = (self.rows[start:end] + self.file.key).tolist()
        columns["attempt"] = [attempt + 1 for attempt in columns["attempt"]]
        columns["route"] = [tuple(route.split("/")) if route else () for route in columns["route"]]
        return list(map(Delivery.of, *columns.values()))

    def _noted(self, start: int, end: int, outcomes: list[Outcome] | None) -> list[RowResult]:
        """What is to be remembered of rows that were not simply delivered."""
        if outcomes is None:
            return []
        attempts = self.table["attempt"].slice(start, end - start).to_pylist()
        return [
            noted
            for row, attempt, outcome in zip(self.rows[start:end].tolist(), attempts, outcomes, strict=True)
            if outcome.kind != "ok" and (noted := self._row_result(row, attempt + 1, outcome)) is not None
        ]

    def _row_result(self, row: int, attempt: int, outcome: Outcome) -> RowResult | None:
        kind, why, is_universal = outcome.kind, words(outcome.why), outcome.universal
        if kind == "stale":
            return RowResult(row, Status.INDEXED, "stale: the destination has something newer", attempt, None)
        if is_universal:
            return RowResult(row, UNTOUCHED, why, attempt - 1, None)  # no attempt is spent
        if kind == "permanent":
            return RowResult(row, Status.DEAD, why, attempt, None)
        if kind == "unknown" and self.lane.once:
            return RowResult(row, Status.INDEXING, f"unknown: {why}", attempt, None)
        if attempt >= self.policy.attempts:
            return RowResult(row, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt, None)
        wait = random.uniform(0, self.policy.longest_wait_s(attempt))
        return RowResult(row, Status.ERROR, why, attempt, self.lane.pass_.now_us + int(wait * 1e6))

    def _result(
        self, rows: Rows, start: int, end: int, noted: list[RowResult], part: tuple[str, int, int] | None
    ) -> Result:
        untouched = sum(n.status == UNTOUCHED for n in noted)
        stay = sum(n.status != Status.INDEXED for n in noted)
        return Result(
            *rows,
            sent=end - start - untouched,
            leave=end - start - stay,
            part=part,
            rows=noted,
            eligible=None if part is not None else self._meant(rows, start, end),
        )

    def _meant(self, rows: Rows, start: int, end: int) -> list[int] | None:
        """The rows of a range that are eligible; None if all are."""
        return None if rows.end - rows.first == end - start else self.rows[start:end].tolist()

    def _write_part(self) -> None:
        """5. ledger events of all chunks since the last time, a file a run of neighbouring chunks."""
        runs: list[list[tuple[int, int, list[Outcome] | None]]] = []
        for chunk in self.pending:
            if runs and runs[-1][-1][1] == chunk[0]:
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        self.pending = []
        for run in runs:
            start, end = run[0][0], run[-1][1]
            rows = self._range(start, end)
            known = {} if not self.lane.once else {n.row: n for r in self._bare(rows) for n in r.rows}
            noted = [n for s, e, o in run for n in self._noted(s, e, o)]
            noted = [known.get(n.row, n) for n in noted]  # the wait was drawn by lot: what is published counts
            events = sent_events(
                self.table.slice(start, end - start), noted, self.lane.node.name, self.lane.pass_.number
            )
            part = None
            if events.num_rows:
                written = write_part(self.lane.root / "ledger", events)
                fsync_folder(self.lane.root / "ledger")
                part = (written.path, written.size, written.rows)
            crash.point("deliver.part")
            self._publish(rows, start, end, noted, part)
        self.noted = time.monotonic()

    def _publish(
        self, rows: Rows, start: int, end: int, noted: list[RowResult], part: tuple[str, int, int] | None
    ) -> None:
        if part is None:
            return  # nothing was attempted
        result = self._result(rows, start, end, noted, part)
        self.lane.journal.publish(self.lane.pass_.number, result)
        crash.point("deliver.result")

    def _bare(self, rows: Rows) -> list[Result]:
        results = self.lane.journal.results(self.lane.pass_.number, self.file.key)
        return [r for r in results if r.part is None and rows.first <= r.first and r.end <= rows.end]


def _universal(outcomes: list[Outcome] | None) -> _Stop | None:
    for outcome in outcomes or ():
        if outcome.universal:
            return _Stop(words(outcome.why), outcome.kind == "permanent")
    return None
