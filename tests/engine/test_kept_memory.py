"""What a run keeps: nothing of a document, and nothing of a wave, once the wave is settled."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from ferryman import Plan, limits
from ferryman.destinations import Null
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.observe import Silent
from ferryman.sources import Rows
from ferryman.sources.log import Log, Piece
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess

DOCUMENTS = 40
"""New ones in each turn."""
TURNS = 5
"""In so many, all that is merged and folded now and then is so at least once."""
_NOT_KEPT = (type, ModuleType, FunctionType, CodeType, threading.Thread, Plan)

listed = 0


def rows() -> Iterator[dict[str, Any]]:
    """All documents so far; those of the last turn have changed since."""
    for n in range(listed):
        yield {"id": f"d{n}", "text": "changed" if n < listed - DOCUMENTS else "new"}


class Entries(Log):
    """As many entries."""

    def begin(self) -> dict[str, int]:
        return {"0": 0}

    def end(self) -> dict[str, int]:
        return {"0": listed}

    def read_piece(self, piece: Piece) -> Iterator[Document]:
        for n in range(piece.start, piece.end):
            yield Document.of(str(n), {"n": n})


def count_kept(run: Run) -> int:
    """Count the objects that a run holds, directly or through others; not the plan's own."""
    gc.collect()
    seen, found = {id(run)}, [run]
    for each in found:
        more = [r for r in gc.get_referents(each) if id(r) not in seen and not isinstance(r, _NOT_KEPT)]
        seen.update(map(id, more))
        found += {id(r): r for r in more}.values()
    return len(found)


@pytest.mark.rule("size.run")
@pytest.mark.parametrize("source", [Rows(rows), Entries()], ids=["listed", "log"])
def test_a_run_keeps_nothing_of_documents_and_waves(
    source: Rows | Log, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are new or have changed."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 4)
    monkeypatch.setitem(globals(), "listed", 0)
    plan = Plan("kept", version=1)
    plan.source("docs", source).destination("out", Null())
    plan.freeze()
    kept: list[int] = []
    with State.take(state_root(plan, place), plan) as state:
        run = Run(state, InProcess(), Silent())
        run.recover()
        for turn in range(3 * TURNS):
            globals()["listed"] += DOCUMENTS
            run.turn()
            run.report()
            if turn >= TURNS:
                kept.append(count_kept(run))
        assert state.wave >= 3 * TURNS
    assert min(kept[TURNS:]) < min(kept[:TURNS]) + TURNS, kept
