"""Transform: workers read what the scan took up, run the plan's steps, and stage everything the wave will commit.

A task's files lie in the tables' folders, fsynced, but are in no table: nobody sees them before the commit names them.
Spark may run a task twice; only the files that the winning attempt returns are ever named.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferryman.engine.block import Block
from ferryman.engine.careful import CarefulFeed
from ferryman.engine.cut import TaskCut
from ferryman.engine.feed import Feed, Taken
from ferryman.engine.runner import Shipped
from ferryman.engine.staging import Staged, Stager

_BLOCK: Final = 4096
"""Rows handled at a time: what is held as Python objects."""


@dataclass(frozen=True, slots=True)
class Transform:
    """Task: take up the documents of one cut."""

    shipped: Shipped
    root: str
    wave: int
    now_us: int
    careful: bool = False
    """A worker died over it: each document in a child process."""

    def __call__(self, cut: TaskCut) -> Staged:
        plan = self.shipped.plan()
        stager = Stager(plan, cut.source, Path(self.root), self.wave, self.now_us)
        feed = Feed(plan, cut, stager)
        careful = CarefulFeed(plan, cut, stager) if self.careful else None
        try:
            for rows in cut.tables():
                for at in range(0, rows.num_rows, _BLOCK):
                    block = Block(rows.slice(at, _BLOCK))
                    if careful is None:
                        _take_up(block, feed, stager)
                    else:
                        careful.take_up(block, feed.contents(block))
        finally:
            feed.close()
        return stager.finish()


def _take_up(block: Block, feed: Feed, stager: Stager) -> None:
    """Read, walk and stage each document of the block."""
    stager.begin(block)
    for i, (fields, raw) in enumerate(zip(*feed.contents(block), strict=True)):
        taken, go = feed.take(block, i, fields, raw)
        if go is not None:
            stager.walked(i, feed.walk, go, retry=taken is Taken.AGAIN)
        elif taken is not Taken.KNOWN:
            stager.unwalked(i, gone=taken is Taken.GONE)
    stager.end()


def now_us() -> int:
    """Wall clock, µs since 1970."""
    return time.time_ns() // 1000
