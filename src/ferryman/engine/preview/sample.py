"""A sample of what a scan processes: its first few documents, transformed apart from all others.

Of many documents only their content tells whether they changed, so a sample is drawn in turns: a few tasks look for the
first documents that are processed, then more tasks, until there are enough. Each source gets its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ferryman.engine.scan.batches import TaskSplit
from ferryman.engine.scan.log_batches import LogSplit
from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.staged import Staged
from ferryman.engine.transform.task import TaskProcessing, Transform
from ferryman.engine.transform.time_limit import signals_noticed

Cut = TaskSplit | LogSplit

_BLOCK = 1024
"""Rows read at a time, at most."""


class Drawn(NamedTuple):
    """A document that was processed."""

    at: int
    """Its row in the cut."""
    id: str
    reason: str


class Sampled(NamedTuple):
    """What a task found in its cut."""

    drawn: list[Drawn]
    rows: int
    """How many it looked at."""
    staged: Staged
    """Of all that were drawn."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Task: process the first documents of a cut, so many at most, that are to be processed."""

    transform: Transform

    @signals_noticed()
    def __call__(self, item: tuple[Cut, int]) -> Sampled:
        cut, most = item
        if isinstance(cut, LogSplit):
            return self._of_log(cut, most)
        drawn: list[Drawn] = []
        passed = 0
        with TaskProcessing(self.transform, cut) as processing:
            for rows in cut.tables():
                at = 0
                while at < rows.num_rows and len(drawn) < most:
                    block = Block(rows.slice(at, min(most - len(drawn), _BLOCK)), cut.revision)
                    taken = processing.take_up(block)
                    drawn += [Drawn(passed + at + i, block.ids[i], _reason(block, i)) for i in taken]
                    at += len(block)
                passed += at
                if len(drawn) >= most:
                    break
        return Sampled(drawn, passed, processing.finish())

    def _of_log(self, cut: LogSplit, most: int) -> Sampled:
        """Rows are places. After an entry that cannot be processed now comes none."""
        drawn: list[Drawn] = []
        passed = cut.rows
        with TaskProcessing(self.transform, cut) as processing:
            for block in processing.blocks(min(most, _BLOCK)):
                processing.take_up(block)
                at = [place - cut.piece.start for place in block.places]
                drawn += map(Drawn, at, block.ids, block.reasons)
                if len(drawn) >= most:
                    passed = at[-1] + 1
                    break
        staged = processing.finish()
        if staged.blocked is not None:
            passed = cut.rows
            behind = staged.blocked.place - cut.piece.start
            drawn = [each for each in drawn if each.at < behind or each.id == staged.blocked.id]
        return Sampled(drawn, passed, staged)


class Draw(NamedTuple):
    """Some documents of a source, and the files in which is what they came to (of others, too)."""

    source: str
    documents: list[Drawn]
    staged: Staged


def draw(
    cuts: Iterable[Cut],
    limit: int,
    run: Callable[[Sequence[tuple[Cut, int]]], list[Sampled]],
    slots: int,
) -> tuple[list[Draw], list[Cut]]:
    """The first documents of each source, ``limit`` in all; and what of the cuts was not looked at.

    Args:
        run: a ``Sample`` on a runner.
    """
    queues: dict[str, list[Cut]] = {}
    for cut in cuts:
        queues.setdefault(cut.source, []).append(cut)
    draws: list[Draw] = []
    left, width = limit, 1
    while left and any(queues.values()):
        waiting = {source: queue[:width] for source, queue in queues.items() if queue}
        share = -(-left // len(waiting))
        answers = iter(run([(cut, share) for turn in waiting.values() for cut in turn]))
        for source, turn in waiting.items():
            room = min(share, left)
            left -= room
            rest = []
            for cut in turn:
                sampled = next(answers)
                kept = sampled.drawn[:room]
                room -= len(kept)
                if kept or sampled.staged.blocked is not None:
                    draws.append(Draw(source, kept, sampled.staged))
                passed = sampled.rows if len(kept) == len(sampled.drawn) else kept[-1].at + 1 if kept else 0
                rest.append(cut.after(passed))
            left += room
            queues[source][:width] = [cut for cut in rest if cut.rows]
        width = min(2 * width, slots)
    in_order = list(queues)
    return sorted(draws, key=lambda d: in_order.index(d.source)), [c for queue in queues.values() for c in queue]


def reasons(cuts: Iterable[Cut]) -> Counter[str]:
    """How many rows of the cuts are processed for which reason; ``look``: if their content has changed."""
    return sum((cut.reasons() for cut in cuts), Counter())


def _reason(block: Block, i: int) -> str:
    """Why it is processed, now that its content is known."""
    known, reason = block.known(i), block.reasons[i]
    if known is not None and (reason == Reason.LOOK or (reason == Reason.RETRY and not block.is_retry(i, known))):
        return Reason.CHANGED
    return reason
