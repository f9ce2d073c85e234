"""Scan: which documents are new or changed, and how it is divided into waves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import Files, Listed, Memory, Source
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder
from tests.support.scanning import LONG_AGO, over_files, seen, write

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
    trial = PlanWorld(place).build(source=Files(str(folder), detect="fingerprint"))
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


def test_fields_count_as_content(trial: PlanWorld) -> None:
    """Of a document that is fields only, in whatever order they are given."""
    trial.documents.append({"id": "a", "x": 1, "y": 2})
    trial.run()
    trial.documents[0] = {"y": 2, "x": 1, "id": "a"}
    assert seen(trial) == {}
    trial.documents[0] = {"id": "a", "x": 1, "y": 3}
    assert seen(trial) == {"a": 1}


def test_back_to_what_it_was_is_a_revision_of_its_own(trial: PlanWorld) -> None:
    """A → B → A: the third delivery is not mistaken for the first."""
    for text in ("A", "B", "A"):
        trial.put("doc", text=text)
        trial.run()
    lines = trial.out().lines()
    assert [line["text"] for line in lines] == ["A", "B", "A"]
    assert len({line["hash"] for line in lines}) == 3
    assert [e["revision"] for e in trial.history("doc")] == [1, 2, 3]


@pytest.mark.rule("retry.indexed")
def test_nothing_changed_is_no_wave(trial: PlanWorld) -> None:
    """A run that finds nothing to do commits nothing."""
    trial.put("a")
    trial.run()
    summary = trial.run()
    assert (summary.exit, summary.waves, summary.delivered) == (0, 0, 0)
    assert trial.status()["waves"] == 1


# --- duplicates -----------------------------------------------------------------------------------------


@pytest.mark.rule("doc.duplicates")
def test_of_duplicate_ids_the_last_is_kept_and_told(trial: PlanWorld) -> None:
    """By the source's own order, over its pieces too; the run goes on."""
    trial.documents += [{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2}]
    trial.documents += [{"id": f"x{i}"} for i in range(1100)]  # so that there is a second piece
    trial.documents.append({"id": "b", "n": 2})
    watch = Watch()
    trial.run(observer=watch)
    found = {line["id"]: line["fields"] for line in trial.out().lines()}
    assert (found["a"], found["b"]) == ({"n": 2}, {"n": 2})
    assert trial.out().counted()["a"] == trial.out().counted()["b"] == 1
    assert any("source docs: 2 duplicate ids, the last of each is kept: a, b" in m for m in watch.messages)


def test_duplicates_are_stable(trial: PlanWorld) -> None:
    """The same listing again is nothing new; another last one is a change."""
    trial.documents += [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    trial.run()
    assert seen(trial) == {}
    trial.documents.reverse()
    assert seen(trial) == {"a": 1}
    assert trial.out().lines()[0]["fields"] == {"n": 1}


@pytest.mark.rule("doc.two-sources")
def test_the_same_id_of_two_sources_is_two_documents(trial: PlanWorld) -> None:
    """Each with its own history."""
    plan = trial.build().plan
    more = [{"id": "a", "n": 2}]
    out = Recorder(trial.folder / "more.jsonl")
    plan.source("more", Memory(more, max_deleted=1)).destination("more-out", out)
    trial.put("a")
    run_plan(plan, trial.state)
    more.clear()
    run_plan(plan, trial.state)
    assert (trial.out().arrived(), out.arrived()) == (["a"], ["a", "-a"])


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


KIB = 1024


# --- waves ----------------------------------------------------------------------------------------------


def test_a_scan_is_cut_by_listed_bytes(trial: PlanWorld) -> None:
    """As many waves as it needs, none larger than asked for (but for a single document); the order is the source's."""
    trial.put(*(f"d{i}" for i in range(6)), text="x" * (600 * KIB))
    summary = trial.run(wave_bytes=1300 * KIB)
    assert summary.waves == 3
    assert trial.out().arrived() == [f"d{i}" for i in range(6)]
    by_wave = {(e["document"], e["wave"]) for e in rows(trial.root, "ledger")}
    assert by_wave == {(f"d{i}", 1 + i // 2) for i in range(6)}


@pytest.mark.parametrize("slots", [1, 8])
def test_small_documents_of_a_listing_are_one_wave(trial: PlanWorld, slots: int) -> None:
    """However many tasks they make: a wave ends for its bytes alone, and no first wave is smaller than the others."""
    trial.put(*(f"d{n}" for n in range(3000)))
    watch = Watch()
    summary = trial.run(runner=InProcess(slots=slots), observer=watch)
    assert (summary.waves, summary.delivered) == (1, 3000)
    assert [wave for wave, phase in watch.phases if phase == "transform"] == [1]
    assert {event["wave"] for event in rows(trial.root, "ledger")} == {1}


def test_a_document_larger_than_a_wave_is_a_wave(trial: PlanWorld) -> None:
    """It cannot be cut."""
    trial.put("large", text="x" * (3 * KIB * KIB))
    trial.put("small")
    assert trial.run(wave_bytes=KIB * KIB).waves == 2
    assert trial.out().counted() == {"large": 1, "small": 1}


def test_what_vanished_comes_last(trial: PlanWorld) -> None:
    """What replaces it elsewhere is delivered first: a renamed file is never missing."""
    trial.put("old")
    trial.put(*(f"d{i}" for i in range(4)), text="x" * (600 * KIB))
    trial.run()
    trial.drop("old")
    trial.put(*(f"e{i}" for i in range(4)), text="y" * (600 * KIB))
    trial.out().forget()
    assert trial.run(wave_bytes=1300 * KIB).waves >= 2
    assert trial.out().arrived() == ["e0", "e1", "e2", "e3", "-old"]


def test_a_crash_between_two_waves_of_a_scan_loses_nothing(trial: PlanWorld) -> None:
    """The rest is listed again; what was committed is not fed again."""
    from tests.support.plan_world import Interrupted, Until

    trial.put(*(f"d{i}" for i in range(4)), text="x" * (600 * KIB))
    with pytest.raises(Interrupted):
        trial.run(wave_bytes=700 * KIB, observer=Until(3, "transform"), checked=False)
    trial.run(wave_bytes=700 * KIB)
    assert trial.out().counted() == {f"d{i}": 1 for i in range(4)}


@pytest.mark.rule("doc.prefix")
def test_ids_with_a_prefix(place: Path) -> None:
    """The prefix is part of the id, everywhere."""
    trial = PlanWorld(place)
    documents = [{"id": "a"}, {"id": "b"}]
    trial.build(source=Memory(documents, prefix="left/", max_deleted=1))
    trial.run()
    del documents[0]
    trial.run()
    assert trial.out().arrived() == ["left/a", "left/b", "-left/a"]


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
    trial = PlanWorld(place).build(source=Moody(mood), attempts=2)
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
    trial = PlanWorld(place).build(source=Moody(mood), attempts=1)
    for _ in range(3):
        trial.run()
    assert trial.statuses("moody") == ["DEAD"]
