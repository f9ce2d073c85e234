"""The store: one caller for each input, what is kept and for how long, damage, and other readers."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ferryman import Document, Remember, limits
from ferryman.records.rows import now_us
from ferryman.remembered import log, table, upkeep
from ferryman.remembered.answers import Input, RememberedAnswer, answer_of, key_of, make_input
from ferryman.remembered.log import LogName
from ferryman.remembered.store import AnswerStore
from ferryman.remembered.upkeep import StoreKeeper
from ferryman.storage.files import StatePath, path_of
from tests.servers.faulty_s3 import FaultyS3
from tests.support.in_store import faulty, states

__all__ = ["faulty", "states"]

V1 = Remember("v1", reads=["words"])


@pytest.fixture(params=["disk", "store"])
def folder(request: pytest.FixtureRequest, place: Path) -> StatePath:
    """The folder of a store, on a disk and in an object store."""
    return path_of(request.getfixturevalue("states") if request.param == "store" else place) / "remembered" / "embed"


def given(words: str, id: str = "d", remember: Remember = V1) -> Input:
    made = make_input("embed", remember, Document(id, words=words))
    assert made is not None
    return made


def answer(given: Input, vector: list[float] | None = None) -> RememberedAnswer:
    document = given.copy()
    document["vector"] = vector or [0.5 + len(given["words"])] * 16
    made = answer_of("embed", given, document, None, now_us())
    assert isinstance(made, RememberedAnswer)
    return made


def open_store(folder: StatePath, wave: int = 1, remember: Remember = V1, plan: str = "p-v1") -> AnswerStore:
    return AnswerStore(folder, remember, LogName.new(plan, wave))


def remember_all(folder: StatePath, words: list[str], wave: int = 1, **options: Any) -> None:
    """Have one task call for these."""
    store = open_store(folder, wave, **options)
    inputs = [given(each, f"doc-{each}") for each in words]
    taken = store.begin(inputs)
    store.end([(each, answer(each)) for each in inputs if each.key in taken])
    store.close()


def recalled(folder: StatePath, words: list[str], remember: Remember = V1) -> list[str]:
    """Which of these are answered from memory."""
    store = AnswerStore(folder, remember, None)
    return [each for each in words if store.recall(given(each, remember=remember)) is not None]


def fold(folder: StatePath, **options: Any) -> None:
    StoreKeeper(folder).fold(lambda name: True, **options)


@pytest.mark.rule("remember.one-caller")
def test_one_task_calls_and_the_others_wait(folder: StatePath) -> None:
    """Of two tasks that need an answer one calls; the other one finds it, or calls when the first has failed."""
    one, two = open_store(folder), open_store(folder)
    x, y, z = given("x"), given("y"), given("z")
    assert one.begin([x, y]) == {x.key, y.key}
    assert two.begin([x, y, z]) == {z.key}
    one.end([(x, answer(x))], [y])
    assert two.begin([x, y]) == {y.key}
    assert two.recall(x) == answer(x).__class__(*_fields(two.recall(x)))
    two.end([(y, answer(y)), (z, answer(z))])
    assert one.begin([x, y, z]) == set()
    assert one.recall(z) is not None
    assert (one.in_doubt, two.in_doubt) == (0, 0)
    one.close()
    two.close()


def _fields(answer: RememberedAnswer | None) -> tuple[Any, ...]:
    assert answer is not None
    return tuple(getattr(answer, name) for name in answer.__struct_fields__)


@pytest.mark.rule("remember.one-caller")
def test_many_tasks_at_once(folder: StatePath) -> None:
    """Threads with stores of their own call for the same inputs in other orders: each input is called for once."""
    called: list[bytes] = []
    inputs = [given(f"w{n}") for n in range(12)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store = open_store(folder)
            left = inputs[number:] + inputs[:number]
            tries = 0
            while left:
                taken = store.begin(left[:3])
                mine = [each for each in left if each.key in taken]
                called.extend(taken)
                store.end([(each, answer(each)) for each in mine])
                left = [each for each in left if each.key not in taken and store.recall(each) is None]
                threading.Event().wait(store.wait_s(tries) if not taken else 0)
                tries += 1
            store.close()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n * 3,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(called) == sorted(each.key for each in inputs)


@pytest.mark.parametrize("at_end", [False, True])
def test_what_is_remembered_is_found(folder: StatePath, at_end: bool) -> None:
    """In the logs of tasks, and in the table."""
    words = [f"w{n}" for n in range(300)]
    remember_all(folder, words[:200])
    if at_end:
        fold(folder)
    remember_all(folder, words[150:], wave=2)
    if at_end:
        fold(folder)
    assert recalled(folder, [*words, "other"]) == words
    store = AnswerStore(folder, V1, None)
    document = Document("another", words="w7", title="kept")
    made = store.recall(given("w7"))
    assert made is not None
    assert made.apply(document) is document
    assert document.fields == {"words": "w7", "title": "kept", "vector": [2.5] * 16}
    totals = StoreKeeper(folder).totals()
    assert (totals.answers, totals.calls, totals.hits) == (300, 300, 0)


def test_waves_that_are_not_settled_keep_their_logs(folder: StatePath) -> None:
    remember_all(folder, ["a"], wave=1)
    remember_all(folder, ["b"], wave=2)
    StoreKeeper(folder).fold(lambda name: name.wave <= 1)
    assert [LogName.parse(name) and LogName.parse(name).wave for name in log.log_names(folder / "log")] == [2]  # type: ignore[union-attr]
    assert recalled(folder, ["a", "b"]) == ["a", "b"]


def test_another_program_reads_the_table(place: Path) -> None:
    """Delta Lake's own reader finds keys, versions and vectors."""
    folder = place / "remembered" / "embed"
    remember_all(folder, ["a", "bb"])
    fold(folder)
    rows = DeltaTable(str(folder / "answers")).to_pyarrow_table().sort_by("key").to_pylist()
    assert {row["key"]: row["numbers"] for row in rows} == {
        given(words).key.hex(): [0.5 + len(words)] * 16 for words in ("a", "bb")
    }
    assert {(row["version"], row["kind"], row["fields"], row["vectors"]) for row in rows} == {
        ("v1", "written", '{"vector":null}', '[[["vector"],16]]')
    }


def test_the_store_is_hardly_larger_than_its_vectors(place: Path) -> None:
    """At most 1.2 times the raw numbers, in the table and in the logs."""
    folder, chance = place / "remembered" / "embed", np.random.default_rng(0)
    store = open_store(folder)
    inputs = [given(f"w{n}") for n in range(2000)]
    store.begin(inputs)
    store.end([(each, answer(each, chance.normal(size=256).tolist())) for each in inputs])
    store.close()
    raw = 2000 * 256 * 4
    assert StoreKeeper(folder).size() <= 1.2 * raw
    fold(folder)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 1.2 * raw


@pytest.mark.rule("remember.damage")
@pytest.mark.parametrize("where", ["log", "answers", "index"])
@pytest.mark.parametrize("seed", range(8))
def test_damage_is_called_for_again(place: Path, where: str, seed: int) -> None:
    """An entry that is not what was written is not believed; no other one is lost but those read together with it."""
    folder, chance = place / "remembered" / "embed", np.random.default_rng(seed)
    words = [f"w{n}" for n in range(40)]
    remember_all(folder, words[:20])
    if where != "log":
        fold(folder)
    remember_all(folder, words[20:], wave=2)
    if where != "log":
        fold(folder)
    paths = sorted(path for path in (folder / where).iterdir() if path.is_file())
    path = paths[seed % len(paths)]
    data = bytearray(path.read_bytes())
    for at in chance.integers(0, len(data), 1 + seed % 3):
        data[at] ^= 1 << int(chance.integers(8))
    path.write_bytes(data)
    store = open_store(folder, 3)
    for each in words:
        found = store.recall(given(each))
        assert found is None or found.apply(Document("d", words=each)).fields["vector"] == [0.5 + len(each)] * 16  # type: ignore[union-attr]
    left = [given(each) for each in words if store.recall(given(each)) is None]
    assert len(left) <= 20, "the other file is whole"
    taken = store.begin(left)
    store.end([(each, answer(each)) for each in left if each.key in taken])
    store.close()
    assert recalled(folder, words) == words
    fold(folder)
    assert recalled(folder, words) == words


def test_an_incomplete_record_is_not_read(place: Path) -> None:
    """What a kill has cut off in the middle of a write is as if it had never been begun."""
    folder = place / "remembered" / "embed"
    remember_all(folder, ["a", "b"])
    [path] = (folder / "log").iterdir()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert set(recalled(folder, ["a", "b"])) <= {"a", "b"}
    path.write_bytes(whole[:-1])
    assert recalled(folder, ["a", "b"]) == ["a"]


def test_a_write_that_fails_in_the_middle_costs_no_other_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays in the log, where readers would take what follows for its rest."""
    folder = place / "remembered" / "embed"
    store, (a, b, c) = open_store(folder), [given(each) for each in "abc"]
    write = os.write

    def run_out_of_space(fd: int, data: bytes | memoryview) -> int:
        write(fd, memoryview(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", run_out_of_space)
    with pytest.raises(OSError, match="No space"):
        store.begin([a, b, c])
    monkeypatch.undo()
    assert store.begin([a, b, c]) == {a.key, b.key, c.key}
    store.end([(a, answer(a))])
    monkeypatch.setattr(os, "write", run_out_of_space)
    with pytest.raises(OSError, match="No space"):
        store.end([(b, answer(b))])
    monkeypatch.undo()
    store.end([(c, answer(c))])
    store.close()
    assert recalled(folder, ["a", "b", "c"]) == ["a", "c"]
    fold(folder)
    assert {row.version for row in StoreKeeper(folder).rows()} == {"v1"}


@pytest.mark.rule("remember.forget")
def test_forgetting(folder: StatePath) -> None:
    """By version, by age, by document, by input; at once, in logs and table, and for good."""
    v2 = Remember("v2", reads=["words"])
    remember_all(folder, ["a", "b"])
    fold(folder)
    remember_all(folder, ["c"], wave=2)
    store = open_store(folder, 2, v2)
    inputs = [given("a", remember=v2)]
    store.begin(inputs)
    store.end([(inputs[0], answer(inputs[0]))])
    store.close()
    keeper = StoreKeeper(folder)
    reader = AnswerStore(folder, V1, None)
    assert reader.recall(given("a")) is not None
    assert keeper.forget(keeper.keys_where("v2")) == 1
    assert (recalled(folder, ["a"], v2), recalled(folder, ["a", "b", "c"])) == ([], ["a", "b", "c"])
    assert keeper.forget(keeper.keys_of_documents(["doc-a"])) == 1
    assert recalled(folder, ["a", "b", "c"]) == ["b", "c"]
    assert keeper.forget(keeper.keys_of_input({"words": "c"}, None)) == 1
    assert recalled(folder, ["a", "b", "c"]) == ["b"]
    assert not keeper.remove_forgotten() or not log.log_names(folder / "log")
    fold(folder)
    assert log.log_names(folder / "log") == []
    assert [row.key for row in keeper.rows()] == [given("b").key], "it is gone from the files"
    remember_all(folder, ["a"], wave=3)
    assert recalled(folder, ["a", "b", "c"]) == ["a", "b"]
    assert keeper.forget(keeper.keys_where(None, now_us() + 1)) == 2
    fold(folder)
    assert list(keeper.rows()) == []


@pytest.mark.rule("remember.forget")
def test_what_is_forgotten_stays_forgotten_while_a_wave_is_not_settled(folder: StatePath) -> None:
    """A log that goes into the table later does not bring it back."""
    remember_all(folder, ["a"], wave=5)
    keeper = StoreKeeper(folder)
    assert keeper.forget(keeper.keys_of_documents(["doc-a"])) == 1
    assert not keeper.remove_forgotten()
    keeper.fold(lambda name: name.wave <= 4)
    keeper.fold(lambda name: name.wave <= 5)
    assert recalled(folder, ["a"]) == []
    assert list(keeper.rows()) == []


@pytest.mark.rule("remember.doubt")
def test_a_call_without_an_answer_is_in_doubt(folder: StatePath) -> None:
    """It is made again, and counted, also after its log has gone into the table; a noted error is no doubt."""
    x, y = given("x"), given("y")
    pid = os.fork()
    if pid == 0:
        killed = open_store(folder)
        killed.begin([x, y])
        killed.end([], [y])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    fold(folder)
    again = open_store(folder, 2)
    assert again.begin([x, y]) == {x.key, y.key}
    assert again.in_doubt == 1
    again.end([(x, answer(x)), (y, answer(y))])
    again.close()
    fold(folder)
    totals = StoreKeeper(folder).totals()
    begun = 2 if isinstance(folder, Path) else 0  # in a store what is appended and not durable is lost
    assert (totals.calls, totals.in_doubt, totals.answers) == (2 + begun, 1, 2)


@pytest.mark.rule("remember.limit")
def test_the_store_is_kept_below_its_size(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not used for longest goes, but nothing that a wave needs which is not settled."""
    folder, chance = place / "remembered" / "embed", np.random.default_rng(0)
    clock = [1_000_000.0]
    monkeypatch.setattr(upkeep.time, "time", lambda: clock[0])
    words = [f"w{n}" for n in range(600)]

    def remember_some(some: list[str], wave: int) -> None:
        store = open_store(folder, wave)
        inputs = [given(each) for each in some]
        taken = store.begin(inputs)
        store.end([(i, answer(i, chance.normal(size=512).tolist())) for i in inputs if i.key in taken])
        for each in inputs:
            store.recall(each)
        store.close()

    limit = 1 << 20
    for wave, some in enumerate((words[:200], words[200:400], words[:100]), 1):
        clock[0] += 100
        remember_some(some, wave)
        fold(folder, max_bytes=limit)
    remember_some(words[200:220], 9)  # not settled
    clock[0] += 100
    remember_some(words[400:], 4)
    StoreKeeper(folder).fold(lambda name: name.wave <= 4, max_bytes=limit)
    left = {*recalled(folder, words)}
    assert StoreKeeper(folder).size() < 1.1 * limit
    assert {*words[400:]} <= left, "just used"
    assert {*words[200:220]} <= left, "needed by a wave that is not settled"
    assert {*words[:100]} <= left, "used later than the others"


def test_merged_files_have_everything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small waves leave few files; each has a range of keys of its own."""
    monkeypatch.setattr(limits, "REMEMBERED_FILES", 3)
    monkeypatch.setattr(limits, "REMEMBERED_FILE_BYTES", 20_000)
    folder = place / "remembered" / "embed"
    words = [f"w{n}" for n in range(300)]
    for wave in range(30):
        remember_all(folder, words[10 * wave : 10 * wave + 12], wave)
        fold(folder)
    assert recalled(folder, words) == words
    files = table.AnswerTable(folder)
    files.refresh()
    assert len(files.files) < 15
    assert ds.dataset([folder / "answers" / f.path for f in files.files]).count_rows() == 300
    assert {p.name for p in (folder / "answers").glob("*.parquet")} == {f.path for f in files.files}
    for path in (folder / "answers").glob("*.parquet"):
        keys = pq.read_table(path)["key"].to_pylist()
        assert keys == sorted(keys)


def test_logs_that_go_into_a_table_that_is_merged_are_counted_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has read a log when another process moves it into the table, and merges the table's files."""
    monkeypatch.setattr(limits, "REMEMBERED_FILES", 1)
    folder = place / "remembered" / "embed"
    for wave in range(3):
        remember_all(folder, [f"w{wave}"], wave)
        fold(folder)
    remember_all(folder, ["last"], 3)
    refresh, calls = table.AnswerTable.refresh, []

    def move(self: table.AnswerTable, *, durable: bool = True) -> None:
        calls.append(durable)
        if calls == [False, False]:  # the logs were read
            fold(folder)
        refresh(self, durable=durable)

    monkeypatch.setattr(table.AnswerTable, "refresh", move)
    totals = StoreKeeper(folder).totals()
    assert (totals.answers, totals.calls) == (4, 4)
    assert len(calls) > 2


def test_a_log_may_go_while_another_process_looks_at_it(place: Path) -> None:
    assert not log.is_written(place / f"p-v1~1~id{log.SUFFIX}")


@pytest.mark.usefixtures("faulty")
def test_a_store_whose_answers_are_lost(states: str, faulty: FaultyS3) -> None:
    """Requests are repeated; nothing is called for twice."""
    faulty.fail(lost=0.2, refused=0.1, seed=5)
    folder = path_of(states) / "remembered" / "embed"
    words = [f"w{n}" for n in range(30)]
    for wave in range(3):
        remember_all(folder, words[10 * wave : 10 * wave + 10], wave)
        fold(folder)
    faulty.fail()
    assert recalled(folder, words) == words
    assert StoreKeeper(folder).totals().calls == 30


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ({"a": [1, 2]}, {"a": (1, 2)}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": None}, {}, False),
        ({"a": "é"}, {"a": "e\u0301"}, False),
        ({"a": "x"}, {"a": "x "}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
    ],
)
def test_which_inputs_are_the_same(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (key_of("n", "v", one, None) == key_of("n", "v", other, None)) is same


def test_the_key_has_no_seams() -> None:
    """Name, version, fields and content cannot run into each other, and the id is no part."""
    keys = {
        key_of("n", "v", {"a": "x"}, None),
        key_of("n", "v", {"a": "x"}, b""),
        key_of("n", "v", {}, b'{"a":"x"}'),
        key_of("n", "v2", {"a": "x"}, None),
        key_of("nv", "", {"a": "x"}, None),
    }
    assert len(keys) == 5
    assert given("x", "a" * 60).key == given("x", "b").key


@pytest.mark.rule("remember.one-caller")
def test_an_answer_after_a_forgotten_one_counts(folder: StatePath) -> None:
    """Also if the clock that made the forgotten one was an hour ahead."""
    store, asked = open_store(folder), given("a")
    store.begin([asked])
    made = answer(asked)
    store.end([(asked, msgspec.structs.replace(made, created=made.created + 3_600_000_000))])
    store.close()
    assert StoreKeeper(folder).forget([asked.key]) == 1
    assert recalled(folder, ["a"]) == []
    remember_all(folder, ["a"], wave=2)
    assert recalled(folder, ["a"]) == ["a"]
    fold(folder)
    assert recalled(folder, ["a"]) == ["a"]


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("began_first", [False, True])
def test_a_call_is_in_doubt_once(folder: StatePath, folded: bool, began_first: bool) -> None:
    """Not again when its input is called for after it was answered, whichever of the two tasks began first, and whether
    or not the log of the one that was killed has gone into the table meanwhile."""
    asked = given("a")
    waiting = open_store(folder, 2) if began_first else None
    killed = open_store(folder, 1)
    killed.begin([asked])
    killed.close()  # its call has not ended
    waiting = waiting or open_store(folder, 2)
    assert waiting.begin([asked]) == {asked.key}
    assert waiting.in_doubt == 1
    keeper = StoreKeeper(folder)
    if folded:
        keeper.fold(lambda name: name.wave == 1)
    waiting.end([(asked, answer(asked))])
    waiting.close()
    if folded:
        keeper.fold(lambda name: True)
    keeper.forget([asked.key])
    later = open_store(folder, 3)
    assert later.begin([asked]) == {asked.key}
    assert later.in_doubt == 0
    later.end([(asked, answer(asked))])
    later.close()
    fold(folder)
    assert (keeper.totals().calls, keeper.totals().in_doubt) == (3, 1)
