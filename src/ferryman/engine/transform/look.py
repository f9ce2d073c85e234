"""While Spark has not started: which of the documents that are to be looked at have changed?

Where a source compares contents, each scan reads them all. If there is nothing else to do, they are read beside Spark,
which starts only if one has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ferryman.engine.live import Follower, Live
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.engine.scan.batches import RowRange, TaskSplit
from ferryman.engine.scan.detect import ChangeSet
from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.node_errors import ErrorKind, classify_error
from ferryman.engine.transform.reader import listed_of, version_of, version_unread
from ferryman.plan import source_named
from ferryman.sources import Source

_BLOCK: Final = 4096
"""Rows handled at a time: what is held as Python objects."""

_FEW: Final = 0.25
"""The part of a task's rows that may have changed, if only they are processed: more are quicker read in one piece."""


def look_early(changes: ChangeSet, shipped: PickledPlan, runner: Runner, live: Follower) -> ChangeSet:
    """The same without documents that are as they were; as it is if Spark is there, or needed anyway."""
    tasks = [task for batch in changes.slices for task in batch.tasks]
    if (
        not tasks
        or runner.started
        or not all(task.compared and task.reasons().keys() <= {Reason.LOOK} for task in tasks)
    ):
        return changes
    with live.following() as folder:
        changed = iter(runner.run_early(FindChanged(shipped, folder), tasks))
    left = []
    for batch in changes.slices:
        some = [_only(task, next(changed)) for task in batch.tasks]
        if some := [task for task in some if task.pieces]:
            left.append(batch._replace(tasks=[task._replace(number=n) for n, task in enumerate(some)]))
    return changes._replace(slices=left)


@dataclass(frozen=True, slots=True)
class FindChanged:
    """Task: read the documents of one cut; which of its rows are not as they were?

    When the source is away the rest is left to who knows what to do then: it counts as changed.
    """

    shipped: PickledPlan
    live: str = ""

    def __call__(self, cut: TaskSplit) -> list[int]:
        source = source_named(self.shipped.plan().nodes, cut.source).source
        live = Live(self.live)
        changed: list[int] = []
        row, away = 0, False
        for rows in cut.tables():
            for at in range(0, rows.num_rows, _BLOCK):
                block = Block(rows.slice(at, _BLOCK), cut.revision)
                for i in range(len(block)):
                    same, away = (False, True) if away else _compared(source, cut.source, block, i)
                    if not same:
                        changed.append(row)
                    row += 1
                    live.add(1)
        live.flush()
        return changed


def _compared(source: Source, name: str, block: Block, i: int) -> tuple[bool, bool]:
    """Is the document as it was? Is the source away?"""
    known = block.known(i)
    if source.detect != "content" and block.refused[i] is None and (known is None or known.fingerprint):
        return False, False  # its fingerprint is to be remembered, whatever its content is
    try:
        version = version_of(source, source.read(listed_of(source, block, i)))
    except Exception as e:
        fault = classify_error(e, name, "reading it", reading=True)
        permanent = fault.kind is ErrorKind.PERMANENT
        return permanent and block.is_known_as(i, version_unread(fault, "")), not permanent
    return source.detect == "content" and block.is_known_as(i, version), False


def _only(task: TaskSplit, rows: Sequence[int]) -> TaskSplit:
    """The task with these of its rows."""
    if len(rows) > _FEW * task.rows:
        return task
    return task._replace(pieces=list(_ranges(task.pieces, iter(rows))))


def _ranges(pieces: Sequence[RowRange], rows: Iterator[int]) -> Iterator[RowRange]:
    """These rows of the pieces, in order, neighbours together."""
    row, start = next(rows, None), 0
    for path, first, end in pieces:
        stop = start + end - first
        while row is not None and row < stop:
            begun, last = row, row
            while (row := next(rows, None)) is not None and row == last + 1 and row < stop:
                last = row
            yield RowRange(path, first + begun - start, first + last + 1 - start)
        start = stop
