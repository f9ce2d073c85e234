"""Transform: workers read what the scan took up, run the plan's steps, and stage everything the wave will commit.

A task's files lie in the tables' folders, fsynced, but are in no table: nobody sees them before the commit names them.
Spark may run a task twice; only the files that the winning attempt returns are ever named.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ferryman.document import Document, content_version, decode_fields, encode_fields
from ferryman.engine.block import Block
from ferryman.engine.contents import Contents
from ferryman.engine.cut import TaskCut
from ferryman.engine.runner import Shipped
from ferryman.engine.staging import Staged, Stager
from ferryman.errors import BadDocument, Dropped, PermanentError, TransientError, named, words
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
        stager = Stager(plan, path, Path(self.root), self.wave)
        feed = _Feed(path, stager, self.now_us)
        for rows in cut.tables():
            for at in range(0, rows.num_rows, _BLOCK):
                feed.block(Block(rows.slice(at, _BLOCK)))
        feed.close()
        return stager.finish()


_BLOCK: Final = 4096
"""Rows handled at a time: what is held as Python objects."""


class _Feed:
    """Feeds documents of one source through its path."""

    def __init__(self, path: PlanPath, stager: Stager, now_us: int) -> None:
        self._source: Source = path.source.source
        self._trim = len(self._source.prefix)
        self._steps = [(s.name, guarded(s)) for s in path.steps]
        self._policy = path.destination.policy
        self._contents = Contents()
        self._stage = stager
        self._now_us = now_us
        self._at = ""
        """Name of the step that is running."""

    def block(self, block: Block) -> None:
        """Read, walk and stage each document of the block."""
        stage, walk = self._stage, self._walk
        stage.begin(block)
        rows = zip(block.ids, block.versions, block.reasons, *self._contents.of(block.table), strict=True)
        for i, (id, version, reason, fields, raw) in enumerate(rows):
            if reason == "gone":
                stage.gone(i)
                continue
            try:
                if fields is not None:
                    doc = Document.of(id, decode_fields(fields), raw, version)
                else:
                    doc = self._read(block, i)
            except (Exception, SystemExit) as e:
                self._unread(block, i, e)
                continue
            if reason == "look" and block.is_known_as(i, doc.version):
                if self._source.detect == "fingerprint":
                    stage.touched(i)
                continue
            try:
                doc = walk(doc)
                encoded = encode_fields(doc.fields)
                raw = doc.raw
                if raw is not None and not isinstance(raw, bytes):
                    raise PermanentError(f"left a {type(raw).__name__} as raw, which must be bytes or None")
            except Dropped as e:
                stage.ended(i, Status.DROPPED, words(e) or f"dropped by step {self._at}")
            except (Exception, SystemExit) as e:
                self._failed(block, i, e, f"step {self._at}" if self._at else "its fields")
            else:
                stage.upsert(i, encoded, raw)
        stage.end()

    def close(self) -> None:
        self._contents.close()

    def _read(self, block: Block, i: int) -> Document:
        """Ask the source for the content; its version is known from now on."""
        id, refused = block.ids[i], block.refused[i]
        if refused is not None:
            raise BadDocument(refused)
        row = block.table.slice(i, 1)
        size, location = row["size"][0].as_py(), row["location"][0].as_py()
        doc = self._source.read(Listed(id[self._trim :], size, block.fingerprints[i], location))
        doc.version = block.versions[i] = content_version(encode_fields(doc.fields), doc.raw)
        doc.id = doc.origin_id = id
        return doc

    def _walk(self, doc: Document) -> Document:
        """All steps on the way, once each."""
        id = doc.id
        for name, step in self._steps:
            self._at = name
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
        return doc

    def _unread(self, block: Block, i: int, error: BaseException) -> None:
        """A document that could not be read, unless it is still as unreadable as it was."""
        unread = f"{UNREAD}:{words(error) if isinstance(error, PermanentError) else block.fingerprints[i]}"
        version = block.versions[i] or content_version(unread.encode("utf-8", "surrogatepass"), None)
        if block.reasons[i] == "look" and block.is_known_as(i, version):
            return
        block.versions[i], block.fingerprints[i] = version, ""
        self._failed(block, i, error, "reading it")

    def _failed(self, block: Block, i: int, error: BaseException, where: str) -> None:
        text = f"{where}: {named(error)}"
        if isinstance(error, PermanentError):
            self._stage.ended(i, Status.ERROR_DOC, words(error) if isinstance(error, BadDocument) else text)
            return
        tried = 1 + block.attempts_before(i)
        if tried >= self._policy.attempts:
            self._stage.ended(i, Status.DEAD, f"{text} (attempt {tried}, the last)")
            return
        wait = random.uniform(0, self._policy.longest_wait_s(tried))
        self._stage.owed(i, text, tried, self._now_us + int(wait * 1e6))


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


def now_us() -> int:
    """Wall clock, µs since 1970."""
    return time.time_ns() // 1000
