"""Transform: workers read what the scan took up, run the plan's steps, and stage everything the wave will commit.

A task's files lie in the tables' folders, fsynced, but are in no table: nobody sees them before the commit names them.
Spark may run a task twice; only the files that the winning attempt returns are ever named.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.document import Document, content_version, decode_fields, encode_fields
from ferryman.engine.judge import TaskCut
from ferryman.engine.listing import rows_of
from ferryman.engine.runner import Shipped
from ferryman.engine.staging import Staged, Stager, known_of
from ferryman.errors import BadDocument, Dropped, PermanentError, TransientError
from ferryman.ledger.statuses import Status
from ferryman.plan import Path as PlanPath
from ferryman.plan import StepNode, paths
from ferryman.sources import Listed, Source

UNREAD: Final = "unread"
"""Version of a document that could not be read: any content that can be read later differs from it."""


@dataclass(frozen=True, slots=True)
class Transform:
    """Task: take up the documents of one cut."""

    shipped: Shipped
    root: str
    wave: int
    now_us: int

    def __call__(self, cut: TaskCut) -> Staged:
        plan = self.shipped.plan()
        path = paths(plan.nodes)[cut.source]
        with pq.ParquetFile(cut.path) as file:
            judged = file.read_row_group(cut.group, use_threads=False)
        stager = Stager(plan, path, Path(self.root), self.wave)
        feed = _Feed(path, stager, self.now_us)
        for at in range(0, judged.num_rows, _BLOCK):
            block = judged.slice(at, _BLOCK)
            feed.block(block)
        return stager.finish()


_BLOCK: Final = 8192
"""Rows handled at a time: what is held as Python objects."""


class _Feed:
    """Feeds documents of one source through its path."""

    def __init__(self, path: PlanPath, stager: Stager, now_us: int) -> None:
        self._source: Source = path.source.source
        self._trim = len(self._source.prefix)
        self._steps = [(s.name, guarded(s)) for s in path.steps]
        self._attempts = path.destination.policy.attempts
        self._policy = path.destination.policy
        self._stage = stager
        self._now_us = now_us

    def block(self, block: pa.Table) -> None:
        rows = zip(*(c.to_pylist() for c in block.columns), strict=True)
        content = _contents(block)
        for i, (_part, _row, id, size, fingerprint, location, refused, version, reason, *known_values) in enumerate(
            rows
        ):
            known = known_of(known_values)
            if reason == "gone":
                self._stage.gone(id, known)
                continue
            try:
                if refused is not None:
                    raise BadDocument(refused)
                if version is not None:
                    fields, raw = content[i]
                    doc = Document.of(id, decode_fields(fields), raw, version)
                else:
                    doc = self._read(id, size, fingerprint, location)
            except Exception as e:
                unread = f"{UNREAD}:{fingerprint}" if not isinstance(e, PermanentError) else f"{UNREAD}:{e}"
                version = content_version(unread.encode("utf-8", "surrogatepass"), None)
                if reason == "look" and known is not None and known.version == version and known.operation == "upsert":
                    continue  # still as unreadable as it was
                self._failed(id, version, "", reason, known, e, "reading it")
                continue
            if reason == "look" and known is not None and known.version == doc.version and known.operation == "upsert":
                if known.fingerprint != fingerprint and self._source.detect == "fingerprint":
                    self._stage.touched(id, known, fingerprint)
                continue
            self._walk(doc, fingerprint, reason, known)

    def _read(self, id: str, size: int, fingerprint: str, location: str) -> Document:
        doc = self._source.read(Listed(id[self._trim :], size, fingerprint, location))
        doc.version = content_version(encode_fields(doc.fields), doc.raw)
        doc.id = doc.origin_id = id
        return doc

    def _walk(self, doc: Document, fingerprint: str, reason: str, known: Any) -> None:
        """All steps on the way, once each; what comes out is a row of the outbox, a drop, or an error."""
        id, version = doc.id, doc.version
        name = ""
        try:
            for name, step in self._steps:
                out = step(doc)
                if out is doc:
                    continue
                if out is None:
                    raise Dropped(f"dropped by step {name}")
                if not isinstance(out, Document):
                    raise PermanentError(f"returned a {type(out).__name__}, not the document or None")
                if out.id != id:
                    raise PermanentError(f"returned a document of another id, {out.id!r}")
                doc = out
            fields = encode_fields(doc.fields)
        except Dropped as e:
            self._stage.ended(
                id, version, fingerprint, reason, known, Status.DROPPED, str(e) or f"dropped by step {name}"
            )
        except Exception as e:
            self._failed(id, version, fingerprint, reason, known, e, f"step {name}")
        else:
            self._stage.upsert(id, version, fingerprint, reason, known, fields, doc.raw)

    def _failed(
        self, id: str, version: str, fingerprint: str, reason: str, known: Any, error: Exception, where: str
    ) -> None:
        text = f"{where}: {type(error).__name__}: {error}"
        if isinstance(error, PermanentError):
            text = str(error) if isinstance(error, BadDocument) else text
            self._stage.ended(id, version, fingerprint, reason, known, Status.ERROR_DOC, text)
            return
        tried = 1 + self._stage.attempts_before(version, reason, known)
        if tried >= self._attempts:
            self._stage.ended(
                id, version, fingerprint, reason, known, Status.DEAD, f"{text} (attempt {tried}, the last)", tried
            )
            return
        wait = random.uniform(0, self._policy.longest_wait_s(tried))
        self._stage.owed(id, version, fingerprint, reason, known, text, tried, self._now_us + int(wait * 1e6))


def guarded(step: StepNode) -> Callable[[Document], Any]:
    """The step's function; with ``timeout=`` interrupted after that many seconds (in the main thread of the worker).

    A call stuck in C code is interrupted only when it returns to Python.
    """
    timeout = step.timeout
    if timeout is None or threading.current_thread() is not threading.main_thread():
        return step.fn
    fn, name = step.fn, step.name

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise TransientError(f"step {name} took longer than timeout={timeout:g} s")

    def timed(doc: Document) -> Any:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            return fn(doc)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return timed


def _contents(block: pa.Table) -> dict[int, tuple[bytes, bytes | None]]:
    """Content that was staged while listing: index in the block -> (fields, raw)."""
    if block["version"].null_count == block.num_rows:
        return {}
    wanted: dict[str, dict[int, int]] = {}
    for i, (part, row, version) in enumerate(_columns(block, "part", "row", "version")):
        if version is not None and part is not None:
            wanted.setdefault(part, {})[row] = i
    found: dict[int, tuple[bytes, bytes | None]] = {}
    for part, rows in wanted.items():
        staged = rows_of(part, rows, ["fields", "raw"])
        found.update((rows[row], values) for row, values in staged.items())
    return found


def _columns(block: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(block[n].to_pylist() for n in names), strict=True)


def now_us() -> int:
    """Wall clock, µs since 1970."""
    return time.time_ns() // 1000
