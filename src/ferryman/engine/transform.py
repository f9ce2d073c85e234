"""Transform: workers read what the scan took up, run the plan's steps, and stage everything the wave will commit.

A task's files lie in the tables' folders, fsynced, but are in no table: nobody sees them before the commit names them.
Spark may run a task twice; only the files that the winning attempt returns are ever named.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ferryman.document import Document, content_version, decode_fields, encode_fields
from ferryman.engine.block import Block
from ferryman.engine.contents import Contents
from ferryman.engine.cut import TaskCut
from ferryman.engine.runner import Shipped
from ferryman.engine.staging import Staged, Stager
from ferryman.engine.walk import Walk
from ferryman.errors import BadDocument, PermanentError, TransientError, words
from ferryman.plan import Plan, SourceNode, StepNode
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
        stager = Stager(plan, cut.source, Path(self.root), self.wave, self.now_us)
        feed = Feed(plan, cut, stager)
        for rows in cut.tables():
            for at in range(0, rows.num_rows, _BLOCK):
                feed.block(Block(rows.slice(at, _BLOCK)))
        feed.close()
        return stager.finish()


_BLOCK: Final = 4096
"""Rows handled at a time: what is held as Python objects."""


class Feed:
    """Feeds documents of one source to the walk through the plan."""

    def __init__(self, plan: Plan, cut: TaskCut, stager: Stager) -> None:
        self._source: Source = next(n.source for n in plan.nodes if isinstance(n, SourceNode) and n.name == cut.source)
        self._trim = len(self._source.prefix)
        self._walk = Walk(plan, cut.source, stager, task=cut.number, guarded=guarded)
        self._contents = Contents()
        self._stage = stager

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
            failures = None if reason != "retry" else block.to_retry(i)
            if failures is None:
                stage.walked(i, walk, partial(walk.first, doc), retry=False)
            else:
                stage.walked(i, walk, partial(walk.again, doc, failures), retry=True)
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

    def _unread(self, block: Block, i: int, error: BaseException) -> None:
        """A document that could not be read, unless it is still as unreadable as it was."""
        unread = f"{UNREAD}:{words(error) if isinstance(error, PermanentError) else block.fingerprints[i]}"
        version = block.versions[i] or content_version(unread.encode("utf-8", "surrogatepass"), None)
        if block.reasons[i] == "look" and block.is_known_as(i, version):
            return
        block.versions[i], block.fingerprints[i] = version, ""
        doc = Document.of(block.ids[i], {}, None, version)
        failures = block.to_retry(i)
        go = partial(self._walk.unread, doc, error, failures)
        self._stage.walked(i, self._walk, go, retry=failures is not None)


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
