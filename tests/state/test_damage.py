"""A damaged state is refused by name, and not a byte of it is changed by the refusal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman.errors import StateDamaged
from ferryman.operations import check
from ferryman.state.state import State
from tests.support import invariants
from tests.support.damage import DATA, KINDS, TABLES, damaged, entry, flip, live, made, make, refusal, tree
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch

__all__ = ["damaged", "made"]


# --- the files, by kind ---------------------------------------------------------------------------------


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
    ("journal", "deleted"): "as if the worker had been killed before it noted: sent again, or unknown",
    ("command", "deleted"): "as if it had never been given",
    ("ledger last log entry", "deleted"): "as if the driver had been killed before it announced itself there",
    ("data", "flipped"): "found by who reads it: fsck, or a run that needs it",
}
"""What ``take`` cannot know, and why that does no harm: (end of the kind, damage)."""


def expected(kind: str, how: str) -> bool:
    """Is this refused before a run begins?"""
    return not any(how == h and (kind.endswith(k) or f" {k} of" in kind) for k, h in NO_DAMAGE)


CASES = [(kind, how) for kind in KINDS for how in DAMAGES]


# --- tests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_delta_rs_reads_what_the_invariants_read(damaged: PlanWorld, name: str) -> None:
    """Files, rows, partitions and numbers, from a checkpoint and the entries after it."""
    from deltalake import DeltaTable  # starts a thread

    folder = damaged.root / name
    theirs, ours = DeltaTable(str(folder)), invariants.Files(damaged.root, name)
    added = pa.table(theirs.get_add_actions(flatten=True)).to_pylist()
    partitions = {
        each["path"]: {k.removeprefix("partition."): v for k, v in each.items() if k.startswith("partition.")}
        for each in added
    }
    assert any(path.name.endswith(".checkpoint.parquet") for path in (folder / "_delta_log").iterdir())
    assert ours.paths == set(partitions)
    assert ours.partitions == partitions
    assert ours.transactions == {number: theirs.transaction_version(number) for number in ours.transactions}
    assert len(ours.rows()) == sum(each["num_records"] for each in added)


def test_the_state_is_as_it_is_meant_to_be(damaged: PlanWorld) -> None:
    """Undamaged, it has a file of every kind, and the next run recovers it."""
    state = State(damaged.root, damaged.plan)
    assert all(find(state).is_file() for find in KINDS.values())
    assert check(damaged.root) == []
    watch = Watch()
    damaged.run(observer=watch, wait=0)
    assert any("recovered: settled wave 3" in m for m in watch.messages)
    assert any("applied `retry`" in m for m in watch.messages)
    assert damaged.counts() == {"delivered": 3, "failed": 1, "rejected": 1, "pending": 1}


@pytest.mark.parametrize(("kind", "how"), CASES, ids=[f"{k}-{h}" for k, h in CASES])
def test_damage_is_refused_by_name(damaged: PlanWorld, kind: str, how: str) -> None:
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


@pytest.mark.parametrize("kind", ["journal", "command"])
def test_what_may_be_missing_does_no_harm(damaged: PlanWorld, kind: str) -> None:
    """The run goes on; what was not noted at all is sent again."""
    find = KINDS.get(kind) or KINDS[f"ledger {kind}"]
    path = find(State(damaged.root, damaged.plan))
    path.unlink()
    if kind == "journal":
        path.with_suffix(".sent").unlink()
    damaged.run(wait=0)
    assert damaged.counts() == {"delivered": 3, "failed": 1, "rejected": 1, "pending": 1}
    times = damaged.out().counted()["b"]
    assert times == (3 if kind == "journal" else 2)


@pytest.mark.parametrize("kind", DATA)
def test_a_run_that_reads_a_flipped_byte_stops_by_name(damaged: PlanWorld, kind: str) -> None:
    """Whoever reads it, a task or a query: the very file is named, and the next start says the same."""
    path = DATA[kind](State(damaged.root, damaged.plan))
    flip_page(path)
    for _ in range(2):
        with pytest.raises(StateDamaged) as error:
            damaged.run(wait=0, checked=False)
        assert error.value.path == str(path)


def test_a_question_that_meets_a_flipped_byte_names_the_file(damaged: PlanWorld) -> None:
    """``status`` and ``history`` too; they change nothing."""
    path = live(State(damaged.root, damaged.plan), "ledger")
    flip_page(path)
    before = tree(damaged.root)
    for ask in (damaged.status, lambda: damaged.history("bad"), damaged.deliveries):
        with pytest.raises(StateDamaged) as error:
            ask()
        assert error.value.path == str(path)
    assert tree(damaged.root) == before


@pytest.mark.parametrize(
    "folder", ["outbox", "documents", "ledger", "journal", "journal/closed", "commands", "staging"]
)
def test_a_missing_folder_is_refused_by_name(damaged: PlanWorld, folder: str) -> None:
    """A folder that is gone is no empty one."""
    shutil.rmtree(damaged.root / folder)
    error = refusal(damaged, StateDamaged)
    assert error.path == str(damaged.root / folder)
    assert str(damaged.root / folder) in [f.path for f in check(damaged.root)]


def test_a_missing_close_mark_is_refused_by_name(damaged: PlanWorld) -> None:
    """``journal/closed/<pass>`` is what stops late workers of an old driver."""
    (damaged.root / "journal" / "closed" / "2").unlink()
    assert refusal(damaged, StateDamaged).path == str(damaged.root / "journal" / "closed" / "2")


def test_a_damaged_ledger_file_of_a_worker_is_refused_by_name(damaged: PlanWorld) -> None:
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


def test_a_lost_name_does_not_make_a_new_state(damaged: PlanWorld) -> None:
    """Without ``state.json`` there is still a state in the folder: it is not begun anew over it."""
    (damaged.root / "state.json").unlink()
    error = refusal(damaged, StateDamaged)
    assert "missing" in error.what
    assert not (damaged.root / "state.json").exists()


def test_a_table_that_somebody_else_wrote_to_is_refused_by_name(damaged: PlanWorld) -> None:
    """An OPTIMIZE from outside is no commit of ours."""
    from deltalake import DeltaTable

    DeltaTable(str(damaged.root / "ledger")).optimize.compact()
    last = entry(State(damaged.root, damaged.plan), "ledger", -1)
    error = refusal(damaged, StateDamaged)
    assert (error.path, error.what) == (str(last), "it was not written by Ferryman")
    [finding] = [each for each in check(damaged.root) if each.path == str(last)]
    assert finding.remedy == "Another program added it: remove it, and keep that program away"


def interrupted_in(place: Path, phase: str) -> PlanWorld:
    """Wave 1 is settled; wave 2 has come to the beginning of this phase."""
    trial = make(place)
    trial.run(wait=0)
    trial.put("a", text="two")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, phase), checked=False)
    return trial


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_last_entry_is_noticed(place: Path, table: str) -> None:
    """Another table or the journal has seen it."""
    trial = interrupted_in(place, "settle")
    last = entry(State(trial.root, trial.plan), table, -1)
    data = last.read_bytes()
    last.unlink()
    assert refusal(trial, StateDamaged).path == str(last)
    last.write_bytes(data)
    trial.run(wait=0)
    assert trial.out().counted()["a"] == 2


def test_a_missing_last_entry_that_nobody_has_seen(place: Path) -> None:
    """It is as if the driver had been killed before it wrote it: nothing was sent."""
    trial = interrupted_in(place, "deliver")
    entry(State(trial.root, trial.plan), "outbox", -1).unlink()
    trial.run(wait=0)
    assert trial.out().counted()["a"] == 2
