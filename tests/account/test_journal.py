"""The journal: one owner a chunk, one result a chunk, and nothing unclaimed is sent after a pass is closed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferryman.errors import StateDamaged
from ferryman.records.rows import Result, RowResult, RowSpan
from ferryman.state.journal import Journal
from ferryman.storage import processes

ROWS = RowSpan(100, 0, 5)


@pytest.fixture
def journal(place: Path) -> Journal:
    made = Journal(place / "journal")
    made.create()
    made.begin(1)
    return made


def noted(rows: RowSpan = ROWS, part: tuple[str, int, int] | None = None, message: str = "") -> Result:
    exceptions = [RowResult(rows.first, "ERROR", message, 1, 5)] if message else []
    count = rows.end - rows.first
    return Result(*rows, sent=count, leave=count - len(exceptions), part=part, rows=exceptions)


# --- claims ---------------------------------------------------------------------------------------------


def test_a_chunk_is_claimed_once(journal: Journal) -> None:
    """Never again, not by the one who has it either: it may have sent it before it was killed."""
    assert journal.claim(1, ROWS)
    assert not journal.claim(1, ROWS)
    assert journal.claims(1) == [ROWS]


def test_a_claim_is_of_one_pass_and_one_range(journal: Journal) -> None:
    """The same rows in another pass, other rows in the same: other claims."""
    journal.begin(2)
    others = [(2, ROWS), (1, RowSpan(100, 5, 10)), (1, RowSpan(101, 0, 5)), (1, RowSpan(100, 0, 6))]
    assert journal.claim(1, ROWS)
    assert all(journal.claim(pass_, rows) for pass_, rows in others)
    assert journal.claims(1) == sorted([ROWS, *(r for p, r in others if p == 1)])
    assert journal.claims(1, 101) == [RowSpan(101, 0, 5)]


def _claim_all(folder: Path, go: object, won: object) -> None:
    go.wait()  # type: ignore[attr-defined]
    journal = Journal(folder)
    won.put([i for i in range(40) if journal.claim(1, RowSpan(7, i, i + 1))])  # type: ignore[attr-defined]


def test_of_many_processes_each_chunk_has_one_owner(journal: Journal) -> None:
    """Four workers want the same forty chunks: every chunk is claimed, none twice."""
    fork = multiprocessing.get_context("fork")
    go, won = fork.Event(), fork.Queue()
    workers = [fork.Process(target=_claim_all, args=(journal.folder, go, won)) for _ in range(4)]
    for worker in workers:
        worker.start()
    go.set()
    claimed = [i for _ in workers for i in won.get(timeout=300)]
    for worker in workers:
        worker.join(300)
    assert sorted(claimed) == list(range(40))


def test_a_claim_says_which_rows_it_means(journal: Journal) -> None:
    """Where some of the range are not due or held: those are not claimed."""
    journal.claim(1, ROWS, [0, 2, 4])
    journal.claim(1, RowSpan(100, 5, 10))
    assert journal.claimed_rows(1, ROWS) == [0, 2, 4]
    assert journal.claimed_rows(1, RowSpan(100, 5, 10)) is None


def test_a_live_owner_is_told_from_a_dead_one(journal: Journal) -> None:
    """A process that is gone answers no more; neither do we for ourselves. Another host's may live."""
    fork = multiprocessing.get_context("fork")
    end = fork.Event()

    def claim(rows: RowSpan) -> None:
        journal.claim(1, rows)
        end.wait()

    alive = fork.Process(target=claim, args=(RowSpan(1, 0, 1),))
    dead = fork.Process(target=journal.claim, args=(1, RowSpan(2, 0, 1)))
    alive.start()
    dead.start()
    dead.join()
    while not journal.claims(1, 1):
        pass
    journal.claim(1, RowSpan(3, 0, 1))
    assert journal.owner_alive(1, RowSpan(1, 0, 1))
    assert not journal.owner_alive(1, RowSpan(2, 0, 1))
    assert not journal.owner_alive(1, RowSpan(3, 0, 1))
    end.set()
    alive.join()
    assert not journal.owner_alive(1, RowSpan(1, 0, 1))


def test_an_owner_on_another_host_counts_as_alive(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """We cannot see its processes."""
    monkeypatch.setattr(processes, "machine_id", lambda: "elsewhere")
    journal.claim(1, ROWS)
    monkeypatch.undo()
    assert journal.owner_alive(1, ROWS)


def test_an_owner_in_another_container_of_this_machine_counts_as_alive(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot is the same, and process ids mean other processes there: one that is nobody's here may be at work."""
    here = processes.machine_id()
    boot, space = here.split(" ")
    may_end = multiprocessing.get_context("fork").Event()
    dead = multiprocessing.get_context("fork").Process(target=may_end.wait)
    dead.start()
    pid, started = dead.pid, processes.start_time_of(dead.pid or 0)
    may_end.set()
    dead.join()
    assert pid is not None
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(processes, "start_time_of", lambda _: started)
    journal.claim(1, ROWS)
    monkeypatch.setattr(processes, "machine_id", lambda: f"{boot} {space}0")
    journal.claim(1, RowSpan(1, 0, 1))
    monkeypatch.undo()
    assert processes.machine_id() == here
    assert not journal.owner_alive(1, ROWS), "a process of this machine that has ended"
    assert journal.owner_alive(1, RowSpan(1, 0, 1))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs util-linux")
def test_a_new_process_namespace_is_another_machine(journal: Journal) -> None:
    """As a container is: the first process there has the id 1, as another one has here."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--user", "--map-root-user"]
    code = "import sys; from ferryman.storage import processes as p; print(p.Process.current())"
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no process namespace may be made here: {done.stderr.strip()[-200:]}")
    assert "pid=1," in done.stdout
    boot, space = processes.machine_id().split(" ")
    assert boot in done.stdout
    assert space not in done.stdout


# --- results --------------------------------------------------------------------------------------------


def test_results_come_back(journal: Journal) -> None:
    """With what differs from delivered, and the file that holds the events."""
    bare = noted(message="busy")
    with_file = noted(RowSpan(100, 5, 9), part=("abc.parquet", 10, 4))
    assert journal.publish(1, bare)
    assert journal.publish(1, with_file)
    assert journal.notes(1) == [bare]
    assert journal.results(1) == [with_file]
    assert with_file.ledger_part is not None
    assert journal.answered(1) == journal.answered(1, 100) == {bare.range, with_file.range}
    assert journal.answered(1, 101) == journal.answered(2) == set()
    assert journal.notes(2) == journal.results(2) == []


def test_notes_that_nobody_wants_stay_unread(journal: Journal) -> None:
    """Each row of a chunk may be named in them, and the driver of a million refused documents would hold them all."""
    journal.publish(1, noted())
    journal.publish(1, noted(RowSpan(100, 5, 9)))
    [unwanted] = journal.folder.glob(f"1/{ROWS.name}.sent")
    unwanted.write_bytes(b"unreadable")
    assert [note.range for note in journal.notes(1, {RowSpan(100, 5, 9)}.__contains__)] == [RowSpan(100, 5, 9)]


def test_the_first_result_of_a_chunk_counts(journal: Journal) -> None:
    """A second worker's word on the very same rows is refused; a result with a file is another kind than a note."""
    first, second = noted(), noted(message="busy")
    assert journal.publish(1, first)
    assert not journal.publish(1, second)
    assert journal.notes(1) == [first]
    assert journal.publish(1, noted(part=("abc.parquet", 10, 5)))
    assert len(journal.notes(1)) == len(journal.results(1)) == 1


def test_results_are_in_the_order_of_their_rows(journal: Journal) -> None:
    """By file, then row, the longer one first; numbers, not text."""
    ranges = [
        RowSpan(9, 0, 3),
        RowSpan(10, 0, 9),
        RowSpan(10, 0, 4),
        RowSpan(10, 4, 9),
        RowSpan(100, 10, 11),
        RowSpan(100, 9, 10),
    ]
    for rows in reversed(ranges):
        journal.publish(1, noted(rows))
    expected = [*ranges[:4], RowSpan(100, 9, 10), RowSpan(100, 10, 11)]
    assert [r.range for r in journal.notes(1)] == expected


@pytest.mark.parametrize("kind", ["claim", "sent", "result"])
def test_a_damaged_note_is_named(journal: Journal, kind: str) -> None:
    """A journal file that is not what was written is no claim and no result, but damage."""
    journal.claim(1, ROWS)
    journal.publish(1, noted())
    journal.publish(1, noted(part=("a", 1, 5)))
    [path] = (journal.folder / "1").glob(f"*.{kind}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    read = {"claim": lambda: journal.claimed_rows(1, ROWS), "sent": lambda: journal.notes(1)}
    with pytest.raises(StateDamaged) as error:
        read.get(kind, lambda: journal.results(1))()
    assert error.value.path == str(path)


def test_half_written_notes_are_not_seen(journal: Journal) -> None:
    """A file that a killed worker had not finished is neither claim nor result."""
    (journal.folder / "1" / ".tmp-123").write_bytes(b"half")
    assert journal.claims(1) == journal.results(1) == journal.notes(1) == []


# --- closing --------------------------------------------------------------------------------------------


def test_a_pass_is_open_until_it_or_a_later_one_is_closed(journal: Journal) -> None:
    """Closing 5 closes all before it, and not 6. One that nobody has begun is not open."""
    assert journal.highest_closed() == 0
    assert not journal.open_for(7)
    for number in (1, 5, 6):
        journal.begin(number)
    assert all(journal.open_for(n) for n in (1, 5, 6))
    journal.close(5)
    assert [journal.open_for(n) for n in (1, 5, 6)] == [False, False, True]
    journal.close(5)
    assert journal.highest_closed() == 5


@pytest.mark.parametrize("number", [3, 5])
def test_what_is_closed_is_not_opened(journal: Journal, number: int) -> None:
    """By a driver that slept between its commit and its deliver phase, and was overtaken."""
    journal.close(5)
    journal.begin(number)
    assert not journal.open_for(number)
    assert [p.name for p in (journal.folder / "closed").iterdir()] == ["5"]


def test_closing_never_opens_again(journal: Journal) -> None:
    """Closing a lower pass afterwards, or after a kill between making the new mark and removing the old one."""
    journal.close(9)
    journal.close(10)
    journal.close(3)
    assert journal.highest_closed() == 10
    assert [p.name for p in (journal.folder / "closed").iterdir()] == ["10"]
    (journal.folder / "closed" / "4").touch()
    assert journal.highest_closed() == 10
    journal.close(11)
    assert [p.name for p in (journal.folder / "closed").iterdir()] == ["11"]


def orders(*threads: list[str]) -> Iterator[list[str]]:
    """Every way in which the steps of several parties may follow one another."""
    steps = [(i, s) for i, thread in enumerate(threads) for s in thread]
    positions = set(itertools.permutations([i for i, _ in steps]))
    for owners in positions:
        waiting = [iter(thread) for thread in threads]
        yield [next(waiting[i]) for i in owners]


def test_whatever_the_order_nothing_is_sent_unseen(place: Path) -> None:
    """A worker claims, looks, sends; a driver closes, reads. In every order: what was sent was seen as claimed."""
    seen_without_sent = 0
    for number, order in enumerate(orders(["claim", "look", "send"], ["close", "read"])):
        journal = Journal(place / str(number))
        journal.create()
        journal.begin(1)
        may_send = sent = False
        read: list[RowSpan] = []
        for step in order:
            match step:
                case "claim":
                    journal.claim(1, ROWS)
                case "look":
                    may_send = journal.open_for(1)
                case "send":
                    sent = may_send
                case "close":
                    journal.close(1)
                case "read":
                    read = journal.claims(1)
        assert not sent or read == [ROWS], order
        seen_without_sent += bool(read) and not sent
    assert seen_without_sent, "unknown, though it was not sent: that is the price"


def test_looking_before_claiming_would_not_do(place: Path) -> None:
    """The order of the two is what makes it sound: the other way there is a way to send unseen."""
    bad = []
    for number, order in enumerate(orders(["look", "claim", "send"], ["close", "read"])):
        journal = Journal(place / str(number))
        journal.create()
        journal.begin(1)
        steps: dict[str, Callable[[], object]] = {
            "look": lambda journal=journal: journal.open_for(1),  # type: ignore[misc]
            "claim": lambda journal=journal: journal.claim(1, ROWS),  # type: ignore[misc]
            "send": lambda: None,
            "close": lambda journal=journal: journal.close(1),  # type: ignore[misc]
            "read": lambda journal=journal: journal.claims(1),  # type: ignore[misc]
        }
        found = {step: steps[step]() for step in order}
        bad += [order] if found["look"] and not found["read"] else []
    assert bad


# --- trimming -------------------------------------------------------------------------------------------


def test_trimming_removes_a_pass_with_all_that_is_in_it(journal: Journal) -> None:
    """Half-written files too; a pass that is gone can be trimmed again."""
    journal.claim(1, ROWS)
    journal.publish(1, noted())
    (journal.folder / "1" / ".tmp-1").write_bytes(b"")
    journal.trim(1, set())
    assert journal.passes() == []
    journal.trim(1, set())


def test_trimming_keeps_what_may_still_be_answered(journal: Journal) -> None:
    """Claims without a result stay, until the next pass has looked at them again."""
    kept = RowSpan(100, 5, 10)
    journal.claim(1, ROWS)
    journal.publish(1, noted())
    journal.claim(1, kept)
    journal.trim(1, {kept})
    assert journal.passes() == [1]
    assert journal.claims(1) == [kept]
    assert journal.results(1) == []
    assert journal.publish(1, noted(kept)), "a late worker can answer it"


def test_passes_are_in_the_order_of_their_numbers(journal: Journal) -> None:
    """10 comes after 9; what is no pass is none."""
    for number in (10, 9, 2):
        journal.begin(number)
    assert journal.passes() == [1, 2, 9, 10]


def test_beginning_a_pass_twice_is_no_error(journal: Journal) -> None:
    """The next driver goes on with the pass of the one that was killed."""
    journal.claim(1, ROWS)
    assert journal.begin(1) == journal.folder / "1"
    assert journal.claims(1) == [ROWS]
    assert os.listdir(journal.folder / "1") == [f"{ROWS.name}.claim"]


def test_a_late_result_does_not_disturb_trimming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late worker publishes into the folder of a pass while the driver removes it."""
    journal = Journal(tmp_path / "journal")
    journal.create()
    journal.begin(1)
    rmdir = Path.rmdir

    def late(folder: Path) -> None:
        monkeypatch.setattr(Path, "rmdir", rmdir)
        assert journal.publish(1, Result(0, 0, 1, sent=1, leave=1, part=("x", 1, 1)))
        folder.rmdir()

    monkeypatch.setattr(Path, "rmdir", late)
    journal.trim(1, set())
    assert journal.passes() == []
