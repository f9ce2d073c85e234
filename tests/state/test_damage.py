"""A damaged state is refused by name, and not a byte of it is changed by the refusal."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import StateDamaged, StateForeign, UsageError
from ferryman.operations.fsck import check
from ferryman.plan import Plan
from ferryman.state.state import State
from ferryman.storage import files
from tests.support import NOT_SOON_S
from tests.support.places import MEMORY
from tests.support.trial import Interrupted, Trial, Until, Watch

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


def make(folder: Path) -> Trial:
    """A trial over this folder; its state may be there already."""
    trial = Trial(folder).build(words, answer=answer, backoff=NOT_SOON_S, attempts=9)
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
def damaged(made: Path, place: Path) -> Trial:
    """A copy to damage."""
    shutil.copytree(made, place, dirs_exist_ok=True)
    trial = make(place)
    trial.put("a", "b", text="two")
    return trial


# --- the files, by kind ---------------------------------------------------------------------------------


def entry(state: State, table: str, which: int) -> Path:
    log = getattr(state, table).log
    return Path(log.path(log.versions()[which]))


def mark(state: State, table: str, which: int) -> Path:
    log = getattr(state, table).log
    return Path(log.marks / f"{log.versions()[which]:020d}")


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
    return Path(loaded.folder / state.staged(loaded)[0].path)


def one(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


LOGS: dict[str, Callable[[State], Path]] = {
    "state.json": lambda s: s.root / "state.json",
    **{f"{t} first log entry": lambda s, t=t: entry(s, t, 0) for t in TABLES},  # type: ignore[misc]
    **{f"{t} middle log entry": lambda s, t=t: entry(s, t, 1) for t in TABLES},  # type: ignore[misc]
    **{f"{t} last log entry": lambda s, t=t: entry(s, t, -1) for t in TABLES},  # type: ignore[misc]
    **{f"{t} mark": lambda s, t=t: mark(s, t, 1) for t in TABLES},  # type: ignore[misc]
    **{f"{t} checkpoint": lambda s, t=t: one(s.root / t / "_delta_log", "*.checkpoint.parquet") for t in TABLES},  # type: ignore[misc]
    **{f"{t} mark of the checkpoint": lambda s, t=t: s.root / t / "_marks" / "checkpoint" for t in TABLES},  # type: ignore[misc]
    **{f"{t} hint": lambda s, t=t: s.root / t / "_delta_log" / "_last_checkpoint" for t in TABLES},  # type: ignore[misc]
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


def flip_page(path: Path) -> None:
    """A value of the first column."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 0x01
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = {"flipped": flip, "truncated": truncate, "emptied": empty, "deleted": Path.unlink}

NO_DAMAGE = {
    ("hint", "deleted"): "only says where to begin: found without it",
    ("journal", "deleted"): "as if the worker had been killed before it noted: sent again, or unknown",
    ("command", "deleted"): "as if it had never been given",
    ("data", "flipped"): "found by who reads it: fsck, or a run that needs it",
}
"""What ``take`` cannot know, and why that does no harm: (end of the kind, damage)."""


def expected(kind: str, how: str) -> bool:
    """Is this refused before a run begins?"""
    return not any(how == h and (kind.endswith(k) or f" {k} of" in kind) for k, h in NO_DAMAGE)


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file and folder, but for who holds the lock."""
    return {
        str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*") if p.name != "lock"
    }


def refusal(trial: Trial, kind: type[Exception]) -> Any:
    """What a run raises; it changes nothing."""
    before = tree(trial.root)
    with pytest.raises(kind) as error:
        trial.run(checked=False)
    assert tree(trial.root) == before
    return error.value


CASES = [(kind, how) for kind in KINDS for how in DAMAGES]


# --- tests ----------------------------------------------------------------------------------------------


def test_the_state_is_as_it_is_meant_to_be(damaged: Trial) -> None:
    """Undamaged, it has a file of every kind, and the next run recovers it."""
    state = State(damaged.root, damaged.plan)
    assert all(find(state).is_file() for find in KINDS.values())
    assert check(damaged.root) == []
    watch = Watch()
    damaged.run(observer=watch, wait=0)
    assert any("recovered: settled wave 3" in m for m in watch.messages)
    assert any("took up `retry`" in m for m in watch.messages)
    assert damaged.counts() == {"delivered": 3, "failed": 1, "rejected": 1, "pending": 1}


@pytest.mark.parametrize(("kind", "how"), CASES, ids=[f"{k}-{h}" for k, h in CASES])
def test_damage_is_refused_by_name(damaged: Trial, kind: str, how: str) -> None:
    """The very file is named, before Spark would start; nothing is overwritten; fsck names it too."""
    path = KINDS[kind](State(damaged.root, damaged.plan))
    DAMAGES[how](path)
    if expected(kind, how):
        error = refusal(damaged, StateDamaged)
        assert error.path == str(path), error
        assert str(path) in str(error)
        assert "Nothing was overwritten" in str(error)
        assert error.exit_code == 1
    findings = [f.path for f in check(damaged.root)]
    assert findings == ([] if how == "deleted" and not expected(kind, how) else [str(path)])


@pytest.mark.parametrize("kind", ["hint", "journal", "command"])
def test_what_may_be_missing_does_no_harm(damaged: Trial, kind: str) -> None:
    """The run goes on; what was not noted at all is sent again."""
    find = KINDS.get(kind) or KINDS[f"ledger {kind}"]
    path = find(State(damaged.root, damaged.plan))
    path.unlink()
    if kind == "journal":
        path.with_suffix(".sent").unlink()
    damaged.run(wait=0)
    assert damaged.counts() == {"delivered": 3, "failed": 1, "rejected": 1, "pending": 1}
    times = damaged.out.counted()["b"]
    assert times == (3 if kind == "journal" else 2)


@pytest.mark.parametrize("kind", DATA)
def test_a_run_that_reads_a_flipped_byte_stops_by_name(damaged: Trial, kind: str) -> None:
    """Whoever reads it, a task or a query: the very file is named, and the next start says the same."""
    path = DATA[kind](State(damaged.root, damaged.plan))
    flip_page(path)
    for _ in range(2):
        with pytest.raises(StateDamaged) as error:
            damaged.run(wait=0, checked=False)
        assert error.value.path == str(path)


def test_a_question_that_meets_a_flipped_byte_names_the_file(damaged: Trial) -> None:
    """``status`` and ``history`` too; they change nothing."""
    path = live(State(damaged.root, damaged.plan), "ledger")
    flip_page(path)
    before = tree(damaged.root)
    for ask in (damaged.status, lambda: damaged.history("bad"), damaged.docs):
        with pytest.raises(StateDamaged) as error:
            ask()
        assert error.value.path == str(path)
    assert tree(damaged.root) == before


@pytest.mark.parametrize(
    "folder", ["outbox", "documents", "ledger", "journal", "journal/closed", "commands", "staging"]
)
def test_a_missing_folder_is_refused_by_name(damaged: Trial, folder: str) -> None:
    """A folder that is gone is no empty one."""
    shutil.rmtree(damaged.root / folder)
    error = refusal(damaged, StateDamaged)
    assert error.path == str(damaged.root / folder)
    assert str(damaged.root / folder) in [f.path for f in check(damaged.root)]


def test_a_missing_close_mark_is_refused_by_name(damaged: Trial) -> None:
    """``journal/closed/<pass>`` is what stops late workers of an old driver."""
    (damaged.root / "journal" / "closed" / "2").unlink()
    assert refusal(damaged, StateDamaged).path == str(damaged.root / "journal" / "closed" / "2")


def test_a_damaged_ledger_file_of_a_worker_is_refused_by_name(damaged: Trial) -> None:
    """A result in the journal names the file with its events: it is verified before it becomes part of the ledger."""
    state = State(damaged.root, damaged.plan)
    state.load()
    [part] = [result.part for result in state.journal.results(3) if result.part is not None]
    path = state.ledger.folder / part[0]
    data = path.read_bytes()
    for how in (truncate, Path.unlink):
        how(path)
        assert refusal(damaged, StateDamaged).path == str(path)
        assert [f.path for f in check(damaged.root)] == [str(path)]
        path.write_bytes(data)
    flip(path)
    assert [f.path for f in check(damaged.root)] == [str(path)]


def test_a_lost_name_does_not_make_a_new_state(damaged: Trial) -> None:
    """Without ``state.json`` there is still a state in the folder: it is not begun anew over it."""
    (damaged.root / "state.json").unlink()
    error = refusal(damaged, StateDamaged)
    assert "missing" in error.what
    assert not (damaged.root / "state.json").exists()


def test_a_table_that_somebody_else_wrote_to_is_refused_by_name(damaged: Trial) -> None:
    """An OPTIMIZE from outside is no commit of ours."""
    from deltalake import DeltaTable

    DeltaTable(str(damaged.root / "ledger")).optimize.compact()
    last = entry(State(damaged.root, damaged.plan), "ledger", -1)
    error = refusal(damaged, StateDamaged)
    assert (error.path, error.what) == (str(last), "it was not written by Ferryman")


# --- fsck -----------------------------------------------------------------------------------------------


def test_fsck_lists_all_damaged_files_at_once(damaged: Trial) -> None:
    """Not the first only: one of every kind, each told once, with what can be done."""
    state = State(damaged.root, damaged.plan)
    kinds = ["documents middle log entry", "outbox mark", "ledger data", "ledger data of wave 3", "journal", "command"]
    paths = [KINDS[k](state) for k in kinds]
    for path in paths:
        flip(path)
    before = tree(damaged.root)
    findings = check(damaged.root)
    assert sorted(f.path for f in findings) == sorted(str(p) for p in paths)
    assert all("restore this file from a copy" in f.remedy for f in findings)
    assert tree(damaged.root) == before


def test_fsck_verifies_data_files_also_where_the_log_is_damaged(damaged: Trial) -> None:
    """Their names hold their checksums: a damaged log does not hide a damaged file."""
    state = State(damaged.root, damaged.plan)
    data = live(state, "ledger")
    logs = [entry(state, "ledger", 0), entry(state, "ledger", -1), state.root / "state.json"]
    for path in (data, *logs):
        flip(path)
    assert {f.path for f in check(damaged.root)} >= {str(p) for p in (data, *logs)}


def test_fsck_of_nothing_is_a_mistake(place: Path) -> None:
    """No state there: the person is told to give the right --state."""
    with pytest.raises(UsageError, match="there is no state here"):
        check(place / "nothing-v1")


PLAN_FILE = """
from ferryman import Plan
from ferryman.sources import Memory
from tests.support.recorder import Recorder

plan = Plan("small", version=1)
plan.source("docs", Memory([{"id": "a", "raw": b"one"}])).destination("out", Recorder("/dev/null"))
"""


def test_exit_codes_of_check(place: Path) -> None:
    """``ferryman fsck``: 0 all well, 1 damage, with every file on a line; 2 no state there."""
    (place / "plan.py").write_text(PLAN_FILE)
    trial = make(place)
    trial.run(wait=0)
    repository = Path(__file__).parents[2]

    def command(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
        arguments = [
            sys.executable,
            "-m",
            "ferryman.cli",
            "fsck",
            str(place / "plan.py"),
            "--state",
            str(state),
            *options,
        ]
        return subprocess.run(arguments, capture_output=True, text=True, cwd=repository, check=False)

    shutil.copytree(trial.root, place / "other" / "small-v1")
    name = place / "other" / "small-v1" / "state.json"
    found: Any = files.unseal(name)
    name.write_bytes(files.sealed({**found, "plan": "small"}))  # the same state, under the name of the plan file's plan
    done = command(place / "other")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all well" in done.stdout
    paths = [live(State(name.parent, trial.plan), t) for t in ("ledger", "documents")]
    for path in paths:
        flip(path)
    done = command(place / "other", "--json")
    assert done.returncode == 1
    assert sorted(f["path"] for f in msgspec.json.decode(done.stdout)) == sorted(map(str, paths))
    assert command(place / "nowhere").returncode == 2


# --- foreign --------------------------------------------------------------------------------------------


def reseal(root: Path, **changes: object) -> None:
    path = root / "state.json"
    found: Any = files.unseal(path)
    path.write_bytes(files.sealed({**found, **changes}))


def test_a_newer_format_is_refused(damaged: Trial) -> None:
    """What a newer Ferryman wrote is left to it; a question is refused too."""
    reseal(damaged.root, format=limits.FORMAT + 1)
    error = refusal(damaged, StateForeign)
    assert f"format {limits.FORMAT + 1}" in str(error)
    assert "Use the newer Ferryman" in str(error)
    with pytest.raises(StateForeign):
        damaged.status()
    assert [f.remedy for f in check(damaged.root)] == ["use the Ferryman and the plan that wrote it"]


@pytest.mark.parametrize("other", [Plan("other", 1), Plan("trial", 2)])
def test_the_state_of_another_plan_is_refused(damaged: Trial, other: Plan) -> None:
    """Name and version; both are said."""
    before = tree(damaged.root)
    with pytest.raises(
        StateForeign, match=f"state of plan trial version 1, not of {other.name} version {other.version}"
    ):
        State.take(damaged.root, other)
    assert tree(damaged.root) == before


@pytest.mark.parametrize(
    "strange",
    ["thesis.txt", "documents/thesis.txt", "outbox/old/thesis.txt", "journal/monday.md", "staging/thesis.txt"],
)
def test_a_foreign_folder_is_not_made_a_state(trial: Trial, strange: str) -> None:
    """Folders may have the names that ours have, and a person's files in them: nothing is made, nothing removed."""
    path = trial.root / strange
    path.parent.mkdir(parents=True)
    path.write_text("five years of work")
    trial.put("a")
    error = refusal(trial, StateForeign)
    assert "thesis.txt" in str(error) or "monday.md" in str(error)
    assert "Nothing was touched" in str(error)
    assert not (trial.root / "lock").exists()


def test_a_file_in_place_of_the_folder_is_refused(trial: Trial) -> None:
    """In words, not with a stack trace."""
    trial.root.parent.mkdir(parents=True)
    trial.root.write_text("a file")
    with pytest.raises(StateForeign):
        trial.run(checked=False)
    assert trial.root.read_text() == "a file"


def test_an_empty_folder_is_made_a_state(trial: Trial) -> None:
    """And so is one that a crash left half made."""
    trial.root.mkdir(parents=True)
    for name in ("commands", "staging", "journal/closed", "outbox/_delta_log"):
        (trial.root / name).mkdir(parents=True)
    (trial.root / "lock").write_bytes(b"")
    (trial.root / ".tmp-0123").write_bytes(b"half")
    (trial.root / "outbox" / "_delta_log" / f"{0:020d}.json#1").write_bytes(b"half")
    trial.put("a")
    assert trial.run().delivered == 1
