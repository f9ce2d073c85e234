"""Scan: what is new, changed, gone or owed, and how it is cut into waves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.plan import Plan
from ferryman.records.reasons import reason_of
from ferryman.sources import Files, Listed, Memory, Source
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.recorder import Recorder
from tests.support.trial import Trial, Watch, run_plan

LONG_AGO = time.time() - 3600


def write(path: Path, text: str, mtime: float = LONG_AGO) -> None:
    """A file that has not changed for long, whatever is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (mtime, mtime))


def over_files(place: Path, **options: Any) -> tuple[Trial, Path]:
    folder = place / "corpus"
    for name in "abcd":
        write(folder / name, f"{name} one")
    trial = Trial(place).build(source=Files(str(folder), **options))
    trial.run()
    assert trial.out.counted() == dict.fromkeys("abcd", 1)
    trial.out.forget()
    return trial, folder


def seen(trial: Trial) -> dict[str, int]:
    """What the next run delivers."""
    trial.out.forget()
    trial.run()
    return dict(trial.out.counted())


# --- change detection -----------------------------------------------------------------------------------


@pytest.mark.rule("change.content")
def test_content_finds_an_edit_that_leaves_size_and_time_as_they_were(place: Path) -> None:
    """The hash decides, not the file's date."""
    trial, folder = over_files(place)
    write(folder / "b", "b two")
    assert seen(trial) == {"b": 1}
    assert seen(trial) == {}


@pytest.mark.rule("change.content")
def test_content_is_not_fooled_by_a_new_date(place: Path) -> None:
    """Touched and unchanged is unchanged."""
    trial, folder = over_files(place)
    write(folder / "b", "b one", mtime=LONG_AGO + 60)
    assert seen(trial) == {}
    assert trial.statuses("b") == ["INDEXED"]


@pytest.mark.rule("change.fingerprint")
@pytest.mark.parametrize(
    ("text", "mtime", "found"),
    [
        ("b two", LONG_AGO, {}),  # the same size and time: that is the price
        ("b two", LONG_AGO + 60, {"b": 1}),
        ("b two!", LONG_AGO, {"b": 1}),
        ("b one", LONG_AGO + 60, {}),  # read, and the hash says that it is the same
    ],
    ids=["same size and time", "another time", "another size", "another time, the same text"],
)
def test_fingerprint_looks_at_size_and_time(place: Path, text: str, mtime: float, found: dict[str, int]) -> None:
    """The content is read only where one of them is another; then its hash decides."""
    trial, folder = over_files(place, detect="fingerprint")
    write(folder / "b", text, mtime)
    assert seen(trial) == found


@pytest.mark.rule("change.fingerprint")
def test_fingerprint_reads_nothing_that_has_not_changed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even once, also after a touch was looked at."""
    trial, folder = over_files(place, detect="fingerprint")
    read: list[str] = []
    real = Files.read
    monkeypatch.setattr(Files, "read", lambda self, listed: (read.append(listed.id), real(self, listed))[1])
    write(folder / "b", "b one", mtime=LONG_AGO + 60)
    trial.run()
    assert read == ["b"]
    trial.run()
    assert read == ["b"]


@pytest.mark.rule("change.trust")
def test_fingerprint_does_not_trust_a_file_that_was_just_written(place: Path) -> None:
    """It may be written again within the tick of its clock: it is read, this time and the next."""
    folder = place / "corpus"
    now = time.time()
    write(folder / "a", "a one", now)
    trial = Trial(place).build(source=Files(str(folder), detect="fingerprint"))
    trial.run()
    write(folder / "a", "a two", now)
    assert seen(trial) == {"a": 1}


@pytest.mark.rule("change.none")
def test_none_feeds_everything_again(place: Path) -> None:
    """Each scan is a new revision of each document, with a hash of its own."""
    trial, _ = over_files(place, detect="none")
    assert seen(trial) == dict.fromkeys("abcd", 1)
    assert seen(trial) == dict.fromkeys("abcd", 1)
    assert [e["revision"] for e in trial.history("a")] == [1, 2, 3]
    assert len({e["delivery_hash"] for e in trial.history("a")}) == 3
    assert len({e["version"] for e in trial.history("a")}) == 1


def test_fields_count_as_content(trial: Trial) -> None:
    """Of a document that is fields only, in whatever order they are given."""
    trial.documents.append({"id": "a", "x": 1, "y": 2})
    trial.run()
    trial.documents[0] = {"y": 2, "x": 1, "id": "a"}
    assert seen(trial) == {}
    trial.documents[0] = {"id": "a", "x": 1, "y": 3}
    assert seen(trial) == {"a": 1}


def test_back_to_what_it_was_is_a_revision_of_its_own(trial: Trial) -> None:
    """A → B → A: the third delivery is not mistaken for the first."""
    for text in ("A", "B", "A"):
        trial.put("doc", text=text)
        trial.run()
    lines = trial.out.lines()
    assert [line["text"] for line in lines] == ["A", "B", "A"]
    assert len({line["hash"] for line in lines}) == 3
    assert [e["revision"] for e in trial.history("doc")] == [1, 2, 3]


@pytest.mark.rule("retry.indexed")
def test_nothing_changed_is_no_wave(trial: Trial) -> None:
    """A run that finds nothing to do commits nothing."""
    trial.put("a")
    trial.run()
    summary = trial.run()
    assert (summary.exit, summary.waves, summary.delivered) == (0, 0, 0)
    assert trial.status()["waves"] == 1


# --- gone and back --------------------------------------------------------------------------------------


def test_what_vanished_is_deleted_once(trial: Trial) -> None:
    """No step runs; the delete has a hash of its own."""
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    assert seen(trial) == {"-a": 1}
    assert seen(trial) == {}
    assert [(e["operation"], e["status"]) for e in trial.history("a")] == [
        ("upsert", "INDEXED"),
        ("delete", "INDEXED"),
    ]
    assert len({e["delivery_hash"] for e in trial.history("a")}) == 2


def test_what_returns_is_a_new_revision(trial: Trial) -> None:
    """Also with the content it had."""
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    trial.put("a")
    assert seen(trial) == {"a": 1}
    assert [e["revision"] for e in trial.history("a")] == [1, 2, 3]
    trial.drop("a")
    assert seen(trial) == {"-a": 1}
    assert trial.counts() == {"delivered": 1, "deleted": 1}


@pytest.mark.rule("delete.guard")
@pytest.mark.parametrize("allowed", [0.5, 0.3, 0.0])
def test_too_many_deletes_wait_for_a_word(trial: Trial, allowed: float) -> None:
    """Exit 2, how many and of which source are told; all else is delivered. With --allow-deletes they are deleted."""
    ids = [f"d{i}" for i in range(12)]
    trial.put(*ids, "stays")
    trial.build(max_deleted=allowed)
    trial.run()
    trial.out.forget()
    trial.put("new")
    trial.drop(*ids[:8])
    for _ in range(2):
        summary = trial.run()
        assert summary.exit == 2
        [why] = summary.messages
        assert why.startswith(("source docs: 8 of 13", "source docs: 8 of 14"))
        assert why.endswith("run again with --allow-deletes.")
        assert trial.out.counted() == {"new": 1}
    summary = trial.run(allow_deletes=True)
    assert summary.exit == 0
    assert trial.out.counted() == {"new": 1, **{f"-{i}": 1 for i in ids[:8]}}


def test_as_many_as_allowed_are_deleted(trial: Trial) -> None:
    """Half of them, by default, is not too much."""
    trial.put("a", "b", "c", "d")
    trial.build(max_deleted=0.5)
    trial.run()
    trial.drop("a", "b")
    assert seen(trial) == {"-a": 1, "-b": 1}
    trial.drop("c")
    assert seen(trial) == {"-c": 1}, "of what is there now, not of what ever was"


@pytest.mark.rule("delete.guard")
def test_the_guard_is_per_source(trial: Trial) -> None:
    """One source that is emptied deletes nothing, however much the other one has; the other one goes on."""
    plan = trial.build(max_deleted=0.5).plan
    few = [{"id": "x"}]
    out = Recorder(trial.folder / "few.jsonl")
    plan.source("few", Memory(few, max_deleted=0.5)).destination("few-out", out)
    trial.put(*(f"d{i}" for i in range(10)))
    run_plan(plan, trial.state)
    few.clear()
    trial.drop("d0")
    trial.put("new")
    trial.out.forget()
    summary = run_plan(plan, trial.state)
    assert summary.exit == 2
    assert any(message.startswith("source few: 1 of 1") for message in summary.messages)
    assert trial.out.counted() == {"new": 1, "-d0": 1}
    assert out.arrived() == ["x"]


class Broken(Memory):
    """Lists some of its documents, then breaks."""

    def __init__(self, documents: list[Any], flag: Path) -> None:
        super().__init__(documents, max_deleted=1)
        self.flag = flag

    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        for number, entry in enumerate(super().listing(partition)):
            if number == 2 and self.flag.exists():
                raise OSError("the share is gone")
            yield entry


@pytest.mark.rule("delete.incomplete")
def test_an_incomplete_listing_deletes_nothing(trial: Trial) -> None:
    """What was listed is delivered; the rest is left alone; the run says so and exits 4."""
    flag = trial.folder / "broken"
    trial.put("a", "b", "c", "d")
    trial.build(source=Broken(trial.documents, flag))
    trial.run()
    trial.out.forget()
    flag.touch()
    trial.documents.insert(0, {"id": "new"})
    watch = Watch()
    summary = trial.run(observer=watch)
    assert summary.exit == 4
    assert trial.out.counted() == {"new": 1}
    assert any("incomplete listing, nothing of it is deleted: OSError: the share is gone" in m for m in watch.messages)
    flag.unlink()
    trial.drop("d")
    assert seen(trial) == {"-d": 1}


def test_a_listing_that_breaks_while_a_step_error_is_owed_ends(trial: Trial) -> None:
    """What cannot be listed cannot be tried again: the run does not go round in circles."""
    flag = trial.folder / "broken"

    def fail(doc: Document) -> Document:
        if doc.id == "d":
            raise RuntimeError("not yet")
        return doc

    trial.put("a", "b", "c", "d")
    trial.build(fail, source=Broken(trial.documents, flag), backoff=NOT_SOON_S)
    trial.run(wait=0)
    flag.touch()
    trial.build(fail, source=Broken(trial.documents, flag))
    trial.retry(document="d")
    summary = trial.run(wait=0)
    assert summary.exit == 4
    assert trial.counts() == {"delivered": 3, "pending": 1}


def test_a_source_that_is_not_there_is_a_mistake(place: Path) -> None:
    """An empty listing would delete everything."""
    trial, folder = over_files(place)
    folder.rename(place / "elsewhere")
    with pytest.raises(UsageError):
        trial.run(checked=False)
    assert trial.counts() == {"delivered": 4}


# --- duplicates -----------------------------------------------------------------------------------------


@pytest.mark.rule("doc.duplicates")
def test_of_duplicate_ids_the_last_is_kept_and_told(trial: Trial) -> None:
    """By the source's own order, over its pieces too; the run goes on."""
    trial.documents += [{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2}]
    trial.documents += [{"id": f"x{i}"} for i in range(1100)]  # so that there is a second piece
    trial.documents.append({"id": "b", "n": 2})
    watch = Watch()
    trial.run(observer=watch)
    found = {line["id"]: line["fields"] for line in trial.out.lines()}
    assert (found["a"], found["b"]) == ({"n": 2}, {"n": 2})
    assert trial.out.counted()["a"] == trial.out.counted()["b"] == 1
    assert any("source docs: 2 duplicate ids, of each the last is kept: a, b" in m for m in watch.messages)


def test_duplicates_are_stable(trial: Trial) -> None:
    """The same listing again is nothing new; another last one is a change."""
    trial.documents += [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    trial.run()
    assert seen(trial) == {}
    trial.documents.reverse()
    assert seen(trial) == {"a": 1}
    assert trial.out.lines()[0]["fields"] == {"n": 1}


@pytest.mark.rule("doc.two-sources")
def test_the_same_id_of_two_sources_is_two_documents(trial: Trial) -> None:
    """Each with its own history."""
    plan = trial.build().plan
    more = [{"id": "a", "n": 2}]
    out = Recorder(trial.folder / "more.jsonl")
    plan.source("more", Memory(more, max_deleted=1)).destination("more-out", out)
    trial.put("a")
    run_plan(plan, trial.state)
    more.clear()
    run_plan(plan, trial.state)
    assert (trial.out.arrived(), out.arrived()) == (["a"], ["a", "-a"])


@pytest.mark.parametrize("names", [("one", "two"), ("a.b", "a-b"), ("docs", "Docs")])
def test_sources_of_similar_names_are_not_mixed_up(place: Path, names: tuple[str, str]) -> None:
    """What one lists is not what the other one knew."""
    plan = Plan("similar", 1)
    outs = [Recorder(place / f"{i}.jsonl") for i in range(2)]
    for name, out in zip(names, outs, strict=True):
        documents = [{"id": f"{name} {i}"} for i in range(3)]
        plan.source(name, Memory(documents, max_deleted=1)).destination(f"to-{name}", out)
    for _ in range(3):
        run_plan(plan, place / "state")
    for name, out in zip(names, outs, strict=True):
        assert out.arrived() == [f"{name} {i}" for i in range(3)]


# --- waves ----------------------------------------------------------------------------------------------

KIB = 1024


def test_a_scan_is_cut_by_listed_bytes(trial: Trial) -> None:
    """As many waves as it needs, none larger than asked for (but for a single document); the order is the source's."""
    trial.put(*(f"d{i}" for i in range(6)), text="x" * (600 * KIB))
    summary = trial.run(wave_bytes=1300 * KIB)
    assert summary.waves == 3
    assert trial.out.arrived() == [f"d{i}" for i in range(6)]
    by_wave = {(e["document"], e["wave"]) for e in rows(trial.root, "ledger")}
    assert by_wave == {(f"d{i}", 1 + i // 2) for i in range(6)}


def test_a_document_larger_than_a_wave_is_a_wave(trial: Trial) -> None:
    """It cannot be cut."""
    trial.put("large", text="x" * (3 * KIB * KIB))
    trial.put("small")
    assert trial.run(wave_bytes=KIB * KIB).waves == 2
    assert trial.out.counted() == {"large": 1, "small": 1}


def test_what_vanished_comes_last(trial: Trial) -> None:
    """What replaces it elsewhere is delivered first: a renamed file is never missing."""
    trial.put("old")
    trial.put(*(f"d{i}" for i in range(4)), text="x" * (600 * KIB))
    trial.run()
    trial.drop("old")
    trial.put(*(f"e{i}" for i in range(4)), text="y" * (600 * KIB))
    trial.out.forget()
    assert trial.run(wave_bytes=1300 * KIB).waves >= 2
    assert trial.out.arrived() == ["e0", "e1", "e2", "e3", "-old"]


def test_a_crash_between_two_waves_of_a_scan_loses_nothing(trial: Trial) -> None:
    """The rest is listed again; what was committed is not fed again."""
    from tests.support.trial import Interrupted, Until

    trial.put(*(f"d{i}" for i in range(4)), text="x" * (600 * KIB))
    with pytest.raises(Interrupted):
        trial.run(wave_bytes=700 * KIB, observer=Until(3, "transform"), checked=False)
    trial.run(wave_bytes=700 * KIB)
    assert trial.out.counted() == {f"d{i}": 1 for i in range(4)}


@pytest.mark.rule("doc.prefix")
def test_ids_with_a_prefix(place: Path) -> None:
    """The prefix is part of the id, everywhere."""
    trial = Trial(place)
    documents = [{"id": "a"}, {"id": "b"}]
    trial.build(source=Memory(documents, prefix="left/", max_deleted=1))
    trial.run()
    del documents[0]
    trial.run()
    assert trial.out.arrived() == ["left/a", "left/b", "-left/a"]


# --- reading --------------------------------------------------------------------------------------------


class Moody(Source):
    """One document that can be read when it is in the mood."""

    def __init__(self, mood: Path) -> None:
        super().__init__(max_deleted=1)
        self.mood = mood

    def partitions(self) -> list[int]:
        return [0]

    def listing(self, partition: int) -> Iterator[Listed]:
        yield Listed("moody", 10)

    def read(self, listed: Listed) -> Document:
        text = self.mood.read_text()
        if text.startswith("raise "):
            raise OSError(text)
        return Document(listed.id, raw=text.encode())


def test_a_document_that_cannot_be_read_now_is_tried_again(place: Path) -> None:
    """An OSError is transient: ERROR, tried again when due, DEAD after its attempts; a change begins anew."""
    mood = place / "mood"
    mood.write_text("raise not now")
    trial = Trial(place).build(source=Moody(mood), attempts=2)
    summary = trial.run()
    assert (summary.exit, summary.failed) == (3, 1)
    assert trial.statuses("moody") == ["ERROR", "DEAD"]
    assert "reading it" in trial.history("moody")[0]["message"]
    mood.write_text("content")
    trial.run()
    assert trial.counts() == {"delivered": 1}


def test_a_dead_unreadable_document_is_not_read_to_death(place: Path) -> None:
    """As unreadable as it was is no change: no new events, scan after scan."""
    mood = place / "mood"
    mood.write_text("raise not now")
    trial = Trial(place).build(source=Moody(mood), attempts=1)
    for _ in range(3):
        trial.run()
    assert trial.statuses("moody") == ["DEAD"]


# --- steps ----------------------------------------------------------------------------------------------


def counting(path: Path, name: str) -> Callable[[Document], Document]:
    """A step that writes down each call, whoever makes it."""

    def step(doc: Document) -> Document:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{name} {doc.id}\n".encode())
        os.close(fd)
        return doc

    step.__name__ = name
    return step


@pytest.mark.rule("retry.calls")
def test_every_step_sees_every_document_once(place: Path) -> None:
    """In the plan's order, over several waves."""
    calls = place / "calls"
    trial = Trial(place).build(counting(calls, "first"), counting(calls, "second"), counting(calls, "third"))
    ids = [f"d{i}" for i in range(8)]
    trial.put(*ids, text="x" * (300 * KIB))
    trial.run(wave_bytes=KIB * KIB)
    lines = calls.read_text().splitlines()
    assert sorted(lines) == sorted(f"{step} {id}" for step in ("first", "second", "third") for id in ids)
    for id in ids:
        assert [line.split()[0] for line in lines if line.endswith(f" {id}")] == ["first", "second", "third"]
    trial.run()
    assert len(calls.read_text().splitlines()) == len(lines)


@pytest.mark.spark
def test_every_step_sees_every_document_once_on_spark(place: Path, spark: Any) -> None:
    """Two slots, several tasks and waves: each call is made once."""
    calls = place / "calls"
    trial = Trial(place).build(counting(calls, "first"), counting(calls, "second"))
    ids = [f"d{i:04}" for i in range(1500)]
    trial.put(*ids)
    summary = trial.run(runner=spark, wave_bytes=2000)
    assert summary.waves > 1
    assert sorted(calls.read_text().splitlines()) == sorted(f"{s} {id}" for s in ("first", "second") for id in ids)
    assert trial.out.counted() == dict.fromkeys(ids, 1)


def fragile(doc: Document) -> Document:
    """Fails for what says so, with what it says."""
    if doc.text().startswith("fail"):
        raise LookupError(doc.text())
    return doc


@pytest.mark.rule("step.raises")
def test_a_step_error_names_step_type_and_message(trial: Trial) -> None:
    """And harms only its own document."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", "c")
    trial.put("b", text="fail: no such word")
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 2, "pending": 1}
    [event] = trial.history("b")
    assert event["status"] == "ERROR"
    place = f"{__file__}:{fragile.__code__.co_firstlineno + 3}"
    assert reason_of(event["message"]) == f"step fragile: LookupError: fail: no such word ({place})"
    assert event["attempt"] == 1


@pytest.mark.rule("retry.calls")
def test_a_step_error_is_tried_again_when_due_and_dead_at_the_end(place: Path) -> None:
    """Each attempt calls the step once; the last one says so."""
    calls = place / "calls"
    trial = Trial(place).build(counting(calls, "counted"), fragile, attempts=3)
    trial.put("a", text="fail")
    trial.put("b")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD"]
    assert [e["attempt"] for e in trial.history("a")] == [1, 2, 3]
    assert "(attempt 3, the last)" in trial.history("a")[-1]["message"]
    assert sorted(calls.read_text().splitlines()) == ["counted a"] * 3 + ["counted b"]
    assert trial.counts() == {"delivered": 1, "failed": 1}
    trial.run()
    assert len(trial.history("a")) == 3, "dead is not tried again by itself"


@pytest.mark.rule("retry.due")
def test_a_step_error_is_not_tried_before_it_is_due(trial: Trial) -> None:
    """Its due time outlives the run; other scans leave it alone."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    for _ in range(3):
        trial.run(wait=0)
    assert trial.statuses("a") == ["ERROR"]
    assert [r["owed"] for r in rows(trial.root, "documents")] == [1]


def test_a_step_that_recovers_delivers_the_same_delivery(trial: Trial) -> None:
    """The hash of the first attempt, attempt number two."""
    flag = trial.folder / "once"

    def once(doc: Document) -> Document:
        if not flag.exists():
            flag.touch()
            raise RuntimeError("not the first time")
        return doc

    trial.build(once)
    trial.put("a")
    trial.run()
    assert trial.statuses("a") == ["ERROR", "INDEXED"]
    error, indexed = trial.history("a")
    assert error["delivery_hash"] == indexed["delivery_hash"] == trial.out.lines()[0]["hash"]
    assert trial.out.lines()[0]["attempt"] == 2


@pytest.mark.rule("retry.way")
def test_only_what_is_owed_is_fed_again(place: Path) -> None:
    """A retry within a run looks for its documents only: what was delivered is not walked again."""
    calls = place / "calls"
    trial = Trial(place).build(counting(calls, "counted"), fragile, attempts=2, detect="none")
    trial.put("a", "b", "c")
    trial.put("d", text="fail")
    trial.run()
    assert sorted(calls.read_text().splitlines()) == ["counted a", "counted b", "counted c", "counted d", "counted d"]


def test_a_step_error_is_superseded_by_a_newer_version(trial: Trial) -> None:
    """It ends DROPPED when the new one is committed."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    trial.run(wait=0)
    trial.put("a", text="fine")
    trial.run(wait=0)
    events = trial.history("a")
    assert [(e["revision"], e["status"]) for e in events] == [(1, "ERROR"), (1, "DROPPED"), (2, "INDEXED")]
    assert "superseded" in events[1]["message"]
    assert trial.counts() == {"delivered": 1}


def test_a_step_error_is_superseded_by_a_delete(trial: Trial) -> None:
    """Nothing was ever given, so nothing is sent."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    trial.put("b")
    trial.run(wait=0)
    trial.drop("a")
    assert trial.run(wait=0).exit == 0
    assert trial.statuses("a") == ["ERROR", "DROPPED"]
    assert trial.counts() == {"delivered": 1}
    assert trial.out.counted() == {"b": 1}


@pytest.mark.rule("child.kept")
def test_a_failing_new_version_leaves_the_old_one_where_it_is(trial: Trial) -> None:
    """The destination keeps what it has until something better comes; when the document goes, it is deleted there."""
    trial.build(fragile, attempts=1)
    trial.put("a")
    trial.run()
    trial.put("a", text="fail")
    trial.run()
    assert trial.counts() == {"failed": 1}
    assert trial.out.counted() == {"a": 1}
    trial.drop("a")
    trial.run()
    assert trial.out.counted() == {"a": 1, "-a": 1}
    assert trial.counts() == {"deleted": 1}


def another(doc: Document) -> Document:
    return Document("another", raw=doc.raw)


def copy(doc: Document) -> Document:
    return Document.of(doc.id, {**doc.fields, "copied": True}, doc.raw)


def renamed(doc: Document) -> Document:
    doc.id = "renamed"
    return doc


RETURNS: dict[str, tuple[Any, dict[str, int], str]] = {
    "nothing": (lambda doc: None, {"dropped": 1, "delivered": 1}, "dropped by step"),
    "a number": (lambda doc: 42, {"rejected": 1, "delivered": 1}, "returned a int"),
    "another document": (another, {"rejected": 1, "delivered": 1}, "another id, 'another'"),
    "the class": (lambda doc: Document, {"rejected": 1, "delivered": 1}, "not the document, None, or an iterable"),
}


@pytest.mark.rule("step.returns")
@pytest.mark.parametrize("what", RETURNS)
def test_what_a_step_may_return(trial: Trial, what: str) -> None:
    """The document, or nothing; all else is this document's error, in words."""
    fn, counts, message = RETURNS[what]

    def step(doc: Document) -> Any:
        return fn(doc) if doc.id == "a" else doc

    trial.build(step)
    trial.put("a", "b")
    trial.run()
    assert trial.counts() == counts
    assert message in trial.history("a")[0]["message"]


def test_a_step_may_return_a_copy(trial: Trial) -> None:
    """Of the same id."""
    trial.build(copy)
    trial.put("a")
    trial.run()
    assert trial.out.lines()[0]["fields"] == {"copied": True}


def test_a_step_cannot_rename_a_document(trial: Trial) -> None:
    """Its id is the source's; what was done to the object does not move it."""
    trial.build(renamed)
    trial.put("a")
    trial.run()
    assert set(trial.out.counted()) <= {"a"}
    assert trial.statuses("renamed") == []


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: Callable[[], BaseException]) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id == "a":
            raise error()
        return doc

    return step


EVIL: dict[str, Any] = {
    "a message without words": raising(Unspeakable),
    "a message that is no text": raising(lambda: ValueError("caf\udce9.txt")),
    "a message of a megabyte": raising(lambda: ValueError("x" * KIB * KIB)),
    "a message with NUL and line breaks": raising(lambda: ValueError("a\0b\n\n\tc")),
    "the end of the program": raising(lambda: SystemExit(0)),
    "an endless recursion": raising(lambda: RecursionError("maximum recursion depth exceeded")),
    "no memory": raising(MemoryError),
}


@pytest.mark.rule("step.raises")
@pytest.mark.parametrize("what", EVIL)
def test_whatever_a_step_raises_harms_only_its_document(trial: Trial, what: str) -> None:
    """The others go on (I8)."""
    step = EVIL[what]
    step.__name__ = "step"
    trial.build(step, attempts=1)
    trial.put("a", "b", "c")
    try:
        trial.run()
    except SystemExit:
        pytest.fail("the run was ended")
    assert trial.counts() == {"delivered": 2, "failed": 1}


def setting(value: Any) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id == "a":
            if isinstance(value, dict):
                doc.fields.update(value)
            else:
                doc.raw = value
        return doc

    return step


LEAVES: dict[str, Any] = {
    "a field that JSON cannot hold": {"x": 1j},
    "a field with half a character": {"x": "\ud800"},
    "a field of its own": {"x": None},
    "text in place of bytes": "text",
    "a number in place of bytes": 5,
    "a list in place of bytes": [1, 2],
}
LEAVES["a field of its own"]["x"] = LEAVES["a field of its own"]


@pytest.mark.parametrize("what", LEAVES)
def test_whatever_a_step_leaves_in_a_document_harms_only_this_one(trial: Trial, what: str) -> None:
    """What cannot be written down is this document's error (I8)."""
    step = setting(LEAVES[what])
    step.__name__ = "step"
    trial.build(step, attempts=1)
    trial.put("a", "b", "c")
    trial.run()
    counts = trial.counts()
    assert counts["delivered"] in (2, 3)
    assert sum(counts.values()) == 3


@pytest.mark.rule("timeout.interrupted")
def test_a_step_that_takes_too_long_is_interrupted(trial: Trial) -> None:
    """``timeout=``: a transient error of its document, in words."""

    def sleepy(doc: Document) -> Document:
        if doc.id == "a":
            time.sleep(30)
        return doc

    plan = Plan("sleepy", 1)
    trial.put("a", "b")
    node = plan.source("docs", Memory(trial.documents)).step("sleepy", sleepy, timeout=0.2)
    node.destination("out", trial.out, attempts=1)
    began = time.monotonic()
    summary = run_plan(plan, trial.state)
    assert time.monotonic() - began < 15
    assert (summary.exit, summary.delivered, summary.failed) == (3, 1, 1)
    trial._plan = plan
    assert "step sleepy took longer than timeout=0.2 s" in trial.history("a")[0]["message"]


@pytest.mark.rule("doc.version")
def test_a_document_reaches_the_destination_as_the_steps_left_it(trial: Trial) -> None:
    """Fields and bytes; its version stays that of the source."""

    def shout(doc: Document) -> Document:
        doc.raw = doc.text().upper().encode()
        doc["length"] = len(doc.raw)
        return doc

    trial.build(shout)
    trial.put("a", text="quiet")
    trial.run()
    [line] = trial.out.lines()
    assert (line["text"], line["fields"]) == ("QUIET", {"length": 5})
    assert line["version"] == trial.history("a")[0]["version"]


def test_a_source_that_cannot_be_asked_deletes_nothing(trial: Trial) -> None:
    """Its error is told with its name; the other sources, and what is owed, go on."""

    def documents() -> list[Any]:
        if (trial.folder / "gone").exists():
            raise TransientError("the database closed the connection")
        return [{"id": "a"}]

    trial.build(source=Memory(documents))
    trial.run()
    (trial.folder / "gone").touch()
    summary = trial.run()
    assert summary.exit == 4
    assert summary.messages == [
        "source docs: incomplete listing, nothing of it is deleted: the database closed the connection"
    ]
    assert trial.counts() == {"delivered": 1}
