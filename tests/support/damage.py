"""A state with something of everything, its files by kind, and ways to damage them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.delta import DeltaLog
from tests.support import NOT_SOON_S
from tests.support.plan_world import MEMORY, Interrupted, PlanWorld, Until

TABLES = ("outbox", "documents", "ledger")


def answer(delivery: Delivery) -> Outcome:
    match delivery.id:
        case "refused":
            return Outcome.permanent("refused on principle")
        case "later":
            return Outcome.transient("not now")
        case _:
            return Outcome.ok()


def words(doc: Document) -> Document:
    doc["words"] = len(doc.text().split())
    return doc


def make(folder: Path) -> PlanWorld:
    """A trial over this folder; its state may be there already."""
    trial = PlanWorld(folder).build(words, answer=answer, backoff=NOT_SOON_S, attempts=9)
    trial.put("a", "b", "c", "refused", "later")
    trial.documents.append({"id": "bad", "raw": b"\xff"})
    return trial


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Waves 1 and 2 settled, with a parked row, a waiting row, a bad document and checkpoints; wave 3 committed and
    sent, not settled; a command in the queue."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None))
    trial = make(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHECKPOINT_COMMITS", 2)
        trial.run(wait=0)
    trial.put("a", text="two")
    trial.run(wait=0)
    trial.put("b", text="two")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(3, "settle"), checked=False)
    with trial.take():
        assert trial.retry(status="failed").queued
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def damaged(made: Path, place: Path) -> PlanWorld:
    """A copy to damage."""
    shutil.copytree(made, place, dirs_exist_ok=True)
    trial = make(place)
    trial.put("a", "b", text="two")
    return trial


def versions_of(log: DeltaLog[Any]) -> list[int]:
    """Return the versions of a log that have an entry, by the names in its folder, ascending."""
    names = files.list_names(log.entries_folder)
    return sorted(int(name.removesuffix(".json")) for name in names if re.fullmatch(r"\d{20}\.json", name))


def entry(state: State, table: str, which: int) -> Path:
    log = getattr(state, table).log
    return Path(log.path(versions_of(log)[which]))


def live(state: State, table: str) -> Path:
    """A live data file; of the outbox the one with the parked row."""
    loaded = getattr(state, table)
    loaded.load()
    return Path(min(loaded.paths(), key=lambda p: p.stat().st_mtime_ns))


def named(state: State, table: str) -> Path:
    """A file that the commit of wave 3 named for this table, not in it yet."""
    for each in state.tables:
        each.load(["ferryman.wave", "ferryman.settled"])
    loaded = getattr(state, table)
    return Path(loaded.folder / state.staged_files(loaded)[0].path)


def one(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


LOGS: dict[str, Callable[[State], Path]] = {
    "state.json": lambda s: s.root / "state.json",
    **{f"{t} first log entry": lambda s, t=t: entry(s, t, 0) for t in TABLES},  # type: ignore[misc]
    **{f"{t} middle log entry": lambda s, t=t: entry(s, t, 1) for t in TABLES},  # type: ignore[misc]
    **{f"{t} last log entry": lambda s, t=t: entry(s, t, -1) for t in TABLES},  # type: ignore[misc]
    **{f"{t} checkpoint": lambda s, t=t: one(s.root / t / "_delta_log", "*.checkpoint.parquet") for t in TABLES},  # type: ignore[misc]
}
NOTES: dict[str, Callable[[State], Path]] = {
    "journal": lambda s: one(s.root / "journal" / "3", "*.result"),
    "command": lambda s: one(s.commands, "*.json"),
}
DATA: dict[str, Callable[[State], Path]] = {
    **{f"{t} data": lambda s, t=t: live(s, t) for t in TABLES},  # type: ignore[misc]
    **{f"{t} data of wave 3": lambda s, t=t: named(s, t) for t in TABLES[1:]},  # type: ignore[misc]
}
KINDS = {**LOGS, **NOTES, **DATA}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file and folder, but for who holds the lock."""
    return {
        str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*") if p.name != "lock"
    }


def refusal(trial: PlanWorld, kind: type[Exception]) -> Any:
    """What a run raises; it changes nothing."""
    before = tree(trial.root)
    with pytest.raises(kind) as error:
        trial.run(checked=False)
    assert tree(trial.root) == before
    return error.value
