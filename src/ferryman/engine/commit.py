"""Commit: one transaction on the outbox makes a wave's results permanent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ferryman import crash
from ferryman.engine.results import Staged
from ferryman.state.state import SEQUENCE, STEP_TIME, WAVE, State
from ferryman.storage.delta import DataFile
from ferryman.storage.files import fsync_folder
from ferryman.storage.parquet import Part

NO_POSITIONS: Final[Mapping[str, int]] = MappingProxyType({})


def commit_wave(
    state: State,
    number: int,
    *,
    outbox: Sequence[tuple[str, Part]] = (),
    documents: Sequence[Part] = (),
    new: int = 0,
    dropped: int = 0,
    failed: int = 0,
    ledger: Sequence[Part] = (),
    replaced: Sequence[tuple[str, DataFile | None]] = (),
    positions: Mapping[str, int] = NO_POSITIONS,
    keyed: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Commit wave ``number``.

    1. sync the folders, so that the names of the staged files are durable (their content already is), and check that
       all files exist
    2. one transaction: outbox rows under their sequences, the names of the staged ``documents`` rows and ledger events,
       how far logs were read, the wave's number, the next free sequence, the driver's epoch

    Before step 2 there are only files that no table names; after it the wave is committed, and nothing of it is
    computed again.

    Args:
        outbox: (destination, file) in the order of their rows.
        new: lower bound of the number of ``documents`` rows that are the first of their document.
        dropped: number of deliveries that steps dropped, for the counts of the wave's ledger commit.
        failed: number of those that failed or were rejected in steps, likewise.
        replaced: (path of a live outbox file, its replacement or None), from an operator command on waiting rows.
        keyed: files that settle adds to the tables of keyed nodes, see ``settle.keyed_files``.
        positions: application transactions that say how far logs were read; see ``state.logs.LogPositions``.

    Raises:
        StateLost: another driver took over; nothing was committed.
        EngineError: a staged file is missing; nothing was committed.
    """
    for table in state.tables:  # 1
        fsync_folder(table.folder)
    for table, parts in ((state.documents, documents), (state.ledger, ledger)):
        table.check_written([table.data_file(part) for part in parts])
    crash.point("commit.ready")
    sequence = state.next_sequence
    adds = [file for _, file in replaced if file is not None]
    for destination, part in outbox:
        partition = {"wave": str(number), "destination": destination, "first_sequence": str(sequence)}
        adds.append(state.outbox.data_file(part, partition))
        sequence += part.rows
    state.outbox.commit(  # 2
        "wave",
        adds=adds,
        removes=[path for path, _ in replaced],
        transactions={WAVE: number, SEQUENCE: sequence, **positions},
        info={
            "wave": number,
            "documents": list(documents),
            "new": new,
            "dropped": dropped,
            "failed": failed,
            "ledger": list(ledger),
            "keyed": dict(keyed),
        },
    )


def commit_staged(
    state: State, number: int, staged: Sequence[Staged], positions: Mapping[str, int] = NO_POSITIONS
) -> None:
    """Commit what a wave's tasks have staged, and add up how long their steps took."""
    took_us: Counter[str] = Counter()
    for each in staged:
        took_us.update(each.took_us or {})
    times = {f"{STEP_TIME}{name}": state.outbox.transaction(f"{STEP_TIME}{name}") + us for name, us in took_us.items()}
    commit_wave(
        state,
        number,
        outbox=[part for s in staged for part in s.outbox],
        documents=[part for s in staged for part in s.documents],
        new=sum(s.new for s in staged),
        dropped=sum(s.counts["dropped"] for s in staged),
        failed=sum(s.counts["dead"] + s.counts["error_doc"] for s in staged),
        ledger=[part for s in staged for part in s.ledger],
        positions={**positions, **times},
    )
