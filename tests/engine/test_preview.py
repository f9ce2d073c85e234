"""A preview says what the next run does, and writes nothing, whatever state it finds."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.preview.preview import Preview, scratch
from ferryman.engine.wave import Run
from ferryman.errors import (
    Dropped,
    EngineError,
    PermanentError,
    PlanError,
    StateDamaged,
    StateForeign,
    TransientError,
    UsageError,
)
from ferryman.observe.progress import Silent
from ferryman.operations.migrate import migrate
from ferryman.plan import Plan
from ferryman.routers import ByField, Duplicate, Router
from ferryman.sources import Files, Memory
from ferryman.state.state import State
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.network import Network
from tests.support.previewed import previewed
from tests.support.snapshot import snapshot
from tests.support.tiers import sampled
from tests.support.trial import Interrupted, Trial, Until, run_plan


@pytest.fixture
def net(place: Path) -> Network:
    return Network(place)


def look(net: Network, **options: Any) -> Preview:
    return previewed(net.plan, net.state, **options)


def ids(found: Preview) -> list[str]:
    return [each["document"] for each in found.documents]


def with_reasons(found: Preview) -> dict[str, str]:
    return {each["document"]: each["reason"] for each in found.documents}


# --- it writes nothing ---------------------------------------------------------------------------------------------


def refusing(delivery: Any) -> Outcome:
    """Each kind of row that can stay in an outbox."""
    match delivery.id:
        case "dead":
            return Outcome.permanent("no")
        case "busy":
            return Outcome.transient("busy")
        case _:
            return Outcome.ok()


def moody(doc: Document) -> Document:
    if doc.id == "failing":
        raise TransientError("not yet")
    if doc.id == "bad":
        raise PermanentError("bad")
    if doc.id == "let-go":
        raise Dropped("let go")
    return doc


ALL = ("a", "b", "c", "dead", "busy", "failing", "bad", "let-go")


def filled(net: Network) -> None:
    net.source().step("moody", moody).destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.out("out").answer = refusing
    net.put(*ALL)


def changed(net: Network) -> None:
    """One of each kind of change."""
    net.put("a", text="two")
    net.drop("b")
    net.put("new")


def nothing(net: Network) -> None:
    """No state, not even a folder."""


def empty_folder(net: Network) -> None:
    net.root.mkdir(parents=True)


def fresh(net: Network) -> None:
    net.plan.freeze()
    State.take(net.root, net.plan).release()


def settled(net: Network) -> None:
    net.run(wait=0)
    changed(net)


def owed_failed_parked(net: Network) -> None:
    settled(net)
    net.put("d", "failing", text="three")
    net.run(wait=0)
    net.put("e")


def with_requests(net: Network) -> None:
    """Of people, which no run has taken up."""
    settled(net)
    with State.take(net.root, net.plan):
        assert net.retry(force=True, document="a").queued
        assert net.retry().queued


def killed_after_commit(net: Network) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "deliver"), checked=False)


def killed_after_delivery(net: Network) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "settle"), checked=False)


def killed_before_commit(net: Network) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "commit"), checked=False)


def torn(net: Network) -> None:
    """A power cut within the last entry of a log."""
    settled(net)
    with State.take(net.root, net.plan) as state:
        state.documents.commit("compact")
        log, last = state.documents.log, state.documents.version
    log.path(last).write_bytes(log.path(last).read_bytes()[:50])
    (log.marks / f"{last:020d}").unlink()


def read_only(net: Network) -> None:
    settled(net)
    for path in [net.state, *net.state.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


STATES = [nothing, empty_folder, fresh, settled, owed_failed_parked, with_requests, killed_after_commit,
          killed_after_delivery, killed_before_commit, torn, read_only]  # fmt: skip


@pytest.mark.parametrize("document", sampled([None, "a", "failing"], 3), ids=["some", "one", "one-that-failed"])
@pytest.mark.parametrize("state", STATES, ids=lambda f: f.__name__)
def test_nothing_is_written(net: Network, state: Callable[[Network], None], document: str | None) -> None:
    """Not a byte, a name, a time or a mode in the state, nor beside it; the destination is not called."""
    filled(net)
    state(net)
    net.put("newest")
    before = snapshot(net.folder)
    found = look(net, document=document)
    assert document in ids(found) or "newest" in ids(found)
    assert snapshot(net.folder) == before


def test_a_state_that_is_held_is_read_all_the_same(net: Network) -> None:
    """By a driver in the middle of a wave, which notices nothing."""
    filled(net)
    settled(net)
    with State.take(net.root, net.plan) as held:
        before = snapshot(net.folder)
        assert look(net).documents
        assert snapshot(net.folder) == before
        Run(held, InProcess(), Silent(), wait=0).go()
    assert net.arrived("out")["a"] == 2


AS_NOBODY = """
import os, sys
from pathlib import Path
import deltalake, pyarrow.dataset
from tests.engine import test_preview as tests

net = tests.Network(Path(sys.argv[1]))
tests.filled(net)
net.put("newest")
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    (net.root / "mine").touch()
except OSError:
    print(*tests.ids(tests.look(net)))
"""


def test_who_may_only_read_may_preview(net: Network) -> None:
    """Another user, to whom every file of the state is read-only; where tests are run by root, by becoming one."""
    filled(net)
    read_only(net)
    net.folder.chmod(0o755)
    before = snapshot(net.folder)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(net.folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "newest" in done.stdout.split(), done.stdout
    assert snapshot(net.folder) == before


def test_a_driver_at_work_is_not_disturbed(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """It merges files and folds logs all the time; previews beside it find no damage, and it finds its state whole."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 3)
    trial.put("a", "b")
    trial.run()
    done = threading.Event()

    def change(_pause: float) -> None:
        if done.is_set():
            raise Interrupted
        trial.put("a", text=str(random.random()))

    def drive() -> None:
        with pytest.raises(Interrupted):
            trial.run(every=0, sleep=change, observer=Silent(), checked=False)

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        seen = [previewed(trial.plan, trial.state, document="b") for _ in range(15)]
    finally:
        done.set()
        driver.join()
    assert {each["reason"] for found in seen for each in found.documents} == {"unchanged"}
    trial.run()
    assert trial.out.arrived().count("b") == 1


def no_identity(root: Path) -> Path:
    (root / "state.json").unlink()
    return root / "state.json"


def no_log_entry(root: Path) -> Path:
    path = min((root / "ledger" / "_delta_log").glob("*.json"))
    path.unlink()
    return path


def no_documents(root: Path) -> Path:
    path = next((root / "documents").glob("*.parquet"))
    path.unlink()
    return path


def other_documents(root: Path) -> Path:
    path = next((root / "documents").glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def no_outbox_file(root: Path) -> Path:
    path = next((root / "outbox").glob("*.parquet"))
    path.unlink()
    return path


def no_folder(root: Path) -> Path:
    shutil.rmtree(root / "journal")
    return root / "journal"


@pytest.mark.parametrize(
    "damage",
    [no_identity, no_log_entry, no_documents, other_documents, no_outbox_file, no_folder],
    ids=lambda f: f.__name__,
)
def test_a_damaged_state_is_refused_by_name(net: Network, damage: Callable[[Path], Path]) -> None:
    """And left as it is."""
    filled(net)
    owed_failed_parked(net)
    path = damage(net.root)
    before = snapshot(net.folder)
    with pytest.raises(StateDamaged, match=path.name):
        look(net)
    assert snapshot(net.folder) == before


def test_a_folder_of_something_else_is_refused(net: Network) -> None:
    """As a run would refuse it."""
    filled(net)
    net.root.mkdir(parents=True)
    (net.root / "thesis.tex").touch()
    before = snapshot(net.folder)
    with pytest.raises(StateForeign, match=r"thesis\.tex"):
        look(net)
    assert snapshot(net.folder) == before


def test_a_plan_that_cannot_run_is_refused(net: Network) -> None:
    net.source()
    with pytest.raises(PlanError):
        look(net)
    assert not net.state.exists()


def test_scratch_files_are_removed_after_an_error_too(net: Network) -> None:
    """``previewed`` looks; and the state is not made."""

    def away() -> list[Any]:
        raise UsageError("no list today")

    plan = Plan("network", version=1)
    plan.source("docs", Memory(away)).destination("out", net.out("out"))
    with pytest.raises(UsageError):
        previewed(plan, net.state)
    assert not net.state.exists()


def test_a_full_disk_is_told_by_its_folder() -> None:
    """Whose it is: the scratch folder's, which TMPDIR says."""
    with pytest.raises(EngineError, match=r"ferryman-preview-.*: the disk is full\. .*set TMPDIR"), scratch() as folder:
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not folder.exists()
    with pytest.raises(OSError, match="denied"), scratch():
        raise OSError(errno.EACCES, "Permission denied")


# --- it says what the run does -------------------------------------------------------------------------------------


class Both(Router):
    copies = True

    def choose(self, document: Document) -> list[str]:
        return ["left", "right"] if document.get("both") else ["left"]


def words(doc: Document) -> Iterator[Document]:
    for word in doc.text().split():
        yield doc.child(word, raw=word.encode(), first=word[0])


def letters(doc: Document) -> list[Document]:
    return [doc, *(doc.child(raw=letter.encode()) for letter in doc.text()[:3])]


def some_fail(doc: Document) -> Document | None:
    """By content alone, so that every try of it ends the same way."""
    number = len(doc.text()) + len(doc.id)
    if number % 7 == 0:
        raise TransientError("a bad moment")
    if number % 11 == 0:
        raise PermanentError("a bad document")
    if number % 5 == 0:
        return None
    doc["length"] = len(doc.text())
    return doc


def straight(net: Network) -> None:
    net.source().step("some-fail", some_fail).destination("out", net.out("out"))


def by_field(net: Network) -> None:
    kind = net.source().route("by-kind", ByField("kind"))
    kind.step("comedy", some_fail).destination("comedies", net.out("comedies"))
    kind.destination("tragedy", net.out("tragedies"), deletes=False)


def diamond(net: Network) -> None:
    twice = net.source().route("twice", Duplicate())
    left, right = twice.step("left", some_fail), twice.step("right", letters)
    net.plan.step("join", some_fail, after=[left, right])
    net.plan.destination("out", net.out("out"), after="join")


def families(net: Network) -> None:
    below = net.source().step("words", words).step("letters", letters).route("both", Both())
    below.step("left", some_fail).destination("one", net.out("one"), attempts=1)
    below.step("right", some_fail).destination("two", net.out("two"))


def teed(net: Network) -> None:
    tee = net.source().tee("seen", net.out("seen"))
    tee.step("some-fail", some_fail).destination("out", net.out("out"), attempts=2)


def joined(net: Network) -> None:
    docs, more = net.source(), net.source("more", prefix="more/")
    net.put("x", "y", source="more")
    net.plan.step("join", some_fail, after=[docs, more])
    net.plan.destination("out", net.out("out"), after="join")


SHAPES = [straight, by_field, diamond, families, teed, joined]

_SAME = ("source", "document", "parent", "origin", "version", "revision", "operation", "route", "branches",
         "destination", "delivery_hash", "status", "message", "attempt")  # fmt: skip


def promised(found: Preview) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(deliveries, events) of a preview."""
    deliveries, events = [], []
    for name, expected in found.destinations.items():
        for d in expected.gets:
            deliveries.append(
                (name, d["document"], d["parent"], d["origin"], d["source"], d["version"], d["operation"], d["route"],
                 d["delivery_hash"], d["attempt"], str(d["fields"] or {}), d["text"] or "")
            )  # fmt: skip
        for e in [*expected.dropped, *expected.refused, *expected.errors]:
            events.append(tuple({**e, "destination": name}[column] for column in _SAME))
    return sorted(deliveries, key=str), sorted(events, key=str)


def done(net: Network, since: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(deliveries, events of steps) of the runs after this wave."""
    events = [
        tuple(e[column] for column in _SAME)
        for e in rows(net.root, "ledger")
        if e["wave"] > since and e["ordinal"] == 1
    ]
    sent = {e["delivery_hash"] for e in rows(net.root, "ledger") if e["wave"] > since and e["ordinal"] == 2}
    deliveries = [
        (_node(net, name), d["id"], d["parent"], d["origin"], d["source"], d["version"], d["op"], d["route"],
         d["hash"], d["attempt"], str(d["fields"]), d["text"])
        for name, recorder in net._outs.items() for d in recorder.lines() if d["hash"] in sent
    ]  # fmt: skip
    return sorted(deliveries, key=str), sorted(events, key=str)


def _node(net: Network, recorder: str) -> str:
    return next(n.name for n in net.plan.nodes if getattr(n, "destination", None) is net.out(recorder))


def shaken(net: Network, dice: random.Random) -> None:
    """Some documents are new, some are changed, some are gone."""
    names = [f"d{n:02}" for n in range(12)]
    for name in dice.sample(names, 7):
        text = " ".join(dice.choices(["to", "be", "or", "not", "question"], k=dice.randint(0, 4)))
        net.put(name, text=" ".join(dict.fromkeys(text.split())), kind=dice.choice(["comedy", "tragedy", "farce"]),
                both=dice.random() < 0.5)  # fmt: skip
    net.drop(*dice.sample(names, 3))


@pytest.mark.parametrize("seed", sampled(range(3), 3))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
def test_it_says_what_the_run_does(
    net: Network, shape: Callable[[Network], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same deliveries, with the same hashes, fields and texts; the same drops, refusals and errors. Three times."""
    monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 3600.0)
    shape(net)
    dice = random.Random(seed)
    wave = 0
    for _ in range(3):
        shaken(net, dice)
        said = promised(look(net, limit=1000))
        net.run(wait=0)
        assert said == done(net, wave)
        wave = net_wave(net)
    assert said != ([], [])


def net_wave(net: Network) -> int:
    return max((e["wave"] for e in rows(net.root, "documents")), default=0)


def test_what_is_due_again_is_told_as_a_retry(net: Network) -> None:
    """With the attempt that it would be; what is not due is left alone, unless it is asked for."""
    net.source().step("moody", moody).destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.put("failing", "a")
    net.run(wait=0)
    assert ids(look(net)) == []
    later = look(net, document="failing")
    assert with_reasons(later) == {"failing": "later"}
    assert later.messages == ["failing of source docs has failed and is not due yet: a run would leave it alone now."]
    net.retry()
    found = look(net)
    assert with_reasons(found) == {"failing": "retry"}
    [row] = found.destinations["out"].errors
    assert (row["status"], row["attempt"], row["attempts"]) == ("ERROR", 1, 3)
    assert later.destinations["out"].errors[0]["attempt"] == 2


def test_what_waits_is_counted(net: Network) -> None:
    """Rows of earlier waves that the destination has not got; parked ones are not owed."""
    filled(net)
    settled(net)
    assert look(net).destinations["out"].waiting == 1  # busy, and not dead


def test_requests_that_wait_are_told(net: Network) -> None:
    """They are not carried out."""
    filled(net)
    with_requests(net)
    [message] = look(net).messages
    assert message.startswith("2 requests of people wait (`retry`, `resolve`)")


def test_of_a_committed_wave_nothing_is_taken_up_again(net: Network) -> None:
    """Also if it was killed before it was settled."""
    filled(net)
    killed_after_commit(net)
    found = look(net)
    assert ids(found) == []
    assert found.destinations["out"].waiting == 4  # busy, and what wave 2 has committed


# --- which documents -----------------------------------------------------------------------------------------------


def test_so_many_and_no_more(net: Network) -> None:
    """The first ones of the listing; the others are counted, by their reasons."""
    net.source().step("calls", net.counting("calls")).destination("out", net.out("out"))
    net.put(*map(str, range(1000)))
    found = look(net, limit=7)
    assert ids(found) == [str(n) for n in range(7)]
    assert found.more == {"new": 993}
    assert (found.unread, len(found.destinations["out"].gets)) == (0, 7)
    assert sum(net.calls("calls").values()) == 7
    net.run()
    net.put("5", "500", text="two")
    net.drop("6", "7")
    net.put("1000")
    found = look(net, limit=1)
    assert (with_reasons(found), found.more) == ({"5": "changed"}, {"changed": 1, "new": 1, "gone": 2})


def test_each_source_has_its_share(net: Network) -> None:
    """What one does not need the others get."""
    for name in ("one", "two", "three"):
        net.source(name, prefix=f"{name}/").destination(f"to-{name}", net.out(name))
    net.put(*map(str, range(100)), source="one")
    net.put("x", "y", source="two")
    net.put(*map(str, range(100)), source="three")
    found = look(net, limit=12)
    counts = [sum(d["source"] == name for d in found.documents) for name in ("one", "two", "three")]
    assert counts == [5, 2, 5]
    assert found.more == {"new": 190}
    assert [len(e.gets) for e in found.destinations.values()] == counts


@pytest.fixture
def folder(trial: Trial) -> Path:
    """Files, which must be read to be known; all of them are."""
    folder = trial.folder / "files"
    folder.mkdir()
    for n in range(300):
        (folder / f"{n:03}.txt").write_text(str(n))
    trial.build(source=Files(folder, max_deleted=1.0))
    trial.run()
    return folder


def test_what_must_be_read_to_be_judged_is_read(trial: Trial, folder: Path) -> None:
    """A preview goes on until it has found enough that has changed, and counts what it has not read."""
    (folder / "250.txt").write_text("changed")
    (folder / "270.txt").write_text("changed")
    (folder / "290.txt").unlink()
    found = previewed(trial.plan, trial.state)
    assert with_reasons(found) == {"250.txt": "changed", "270.txt": "changed", "290.txt": "gone"}
    assert (found.more, found.unread) == ({}, 0)
    found = previewed(trial.plan, trial.state, limit=1)
    assert with_reasons(found) == {"250.txt": "changed"}
    assert (found.more, found.unread) == ({"gone": 1}, 48)
    assert found.destinations["out"].gets[0]["text"] == "changed"


def test_one_document_is_shown_also_if_it_is_unchanged(trial: Trial, folder: Path) -> None:
    """And that it is, is told."""
    found = previewed(trial.plan, trial.state, document="007.txt")
    assert with_reasons(found) == {"007.txt": "unchanged"}
    assert found.messages == ["007.txt of source docs is unchanged: a run would leave it alone now."]
    [row] = found.destinations["out"].gets
    assert (row["text"], row["revision"]) == ("7", 2)
    assert (found.limit, found.unread) == (None, 299)
    (folder / "007.txt").write_text("changed")
    found = previewed(trial.plan, trial.state, document="007.txt")
    assert (with_reasons(found), found.messages) == ({"007.txt": "changed"}, [])
    (folder / "007.txt").unlink()
    found = previewed(trial.plan, trial.state, document="007.txt")
    assert with_reasons(found) == {"007.txt": "gone"}
    assert found.destinations["out"].gets[0]["operation"] == "delete"


def test_one_document_may_be_of_several_sources(net: Network) -> None:
    """It is shown of each."""
    for name in ("one", "two", "three"):
        net.source(name).destination(f"to-{name}", net.out(name))
    net.put("a", "b", source="one")
    net.put("a", source="two")
    net.put("c", source="three")
    net.run()
    net.put("a", source="two", text="two")
    found = look(net, document="a")
    assert [(d["source"], d["reason"]) for d in found.documents] == [("two", "changed"), ("one", "unchanged")]
    assert found.more == {}


def test_a_document_that_nobody_has_is_an_error(net: Network) -> None:
    filled(net)
    with pytest.raises(UsageError, match="nowhere: no source of plan network has a document of this id"):
        look(net, document="nowhere")
    with pytest.raises(UsageError, match="one document at least"):
        look(net, limit=0)


# --- what a run would say ------------------------------------------------------------------------------------------


def test_too_many_deletes_are_told(net: Network) -> None:
    """A run would say the same, and not delete them."""
    net.source(max_deleted=0.5).destination("out", net.out("out"))
    net.put("a", "b", "c")
    net.run()
    net.drop("a", "b")
    found = look(net)
    [told] = found.messages
    assert told.startswith("source docs: 2 of 3 documents are gone, more than max_deleted=0.5 allows.")
    assert with_reasons(found) == {}


def test_a_changed_plan_is_told_and_shown(net: Network) -> None:
    """A run would refuse it with these words; with --accept-changes it would do this. Nothing is remembered."""
    net.source().destination("out", net.out("out"))
    net.put("a")
    net.run()
    net.plan = Plan("network", version=1)
    net.source().step("moody", moody).destination("out", net.out("out"))
    net.put("a", "failing")
    before = snapshot(net.folder)
    found = look(net)
    [stopped] = found.stopped
    assert stopped.startswith("plan network version 1 has changed since it ran: ")
    assert with_reasons(found) == {"failing": "new"}
    assert snapshot(net.folder) == before


def test_a_state_that_a_new_version_took_over_is_refused(net: Network) -> None:
    """As a run would refuse it. What the new version would do is shown; that it does more at first is told."""
    net.source().destination("out", net.out("out"))
    net.put("a")
    net.run()
    net.plan.freeze()
    newer = Plan("network", version=2)
    newer.source("docs", Memory(net.documents["docs"])).destination("out", net.out("out"))
    newer.freeze()
    migrate(net.root.with_name(newer.key), newer, 1)
    before = snapshot(net.folder)
    with pytest.raises(StateForeign, match="version 2 of this plan continues from this state"):
        look(net)
    found = previewed(newer, net.state)
    assert ids(found) == []
    assert found.messages[0].startswith("The run first takes over what an older version has done.")
    assert snapshot(net.folder) == before


class Half(Memory):
    """Its second half cannot be listed."""

    def listing(self, piece: Any) -> Iterator[Any]:
        yield from super().listing(piece)
        raise OSError("the line went dead")


def test_an_incomplete_listing_is_told(trial: Trial) -> None:
    """Nothing of it is deleted."""
    trial.put("a", "b")
    trial.run()
    trial.build(source=Half([{"id": "c"}]))
    found = previewed(trial.plan, trial.state)
    assert (found.complete, with_reasons(found)) == (False, {"c": "new"})
    message = found.messages[0]
    assert message.startswith("source docs: incomplete listing, nothing of it is deleted: ")


def test_duplicate_ids_are_told(trial: Trial) -> None:
    trial.documents += [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    found = previewed(trial.plan, trial.state)
    assert found.messages == ["source docs: 1 duplicate ids, of each the last is kept: a"]
    assert [row["fields"] for row in found.destinations["out"].gets] == [{"n": 2}]


def killer(doc: Document) -> Document:
    if doc.id == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return doc


@pytest.mark.parametrize("document", [None, "3"])
def test_a_document_that_kills_is_named(net: Network, document: str | None) -> None:
    """By the same careful mode as in a run."""
    net.source().step("killer", killer).destination("out", net.out("out"))
    net.put(*map(str, range(10)))
    before = snapshot(net.folder)
    found = look(net, runner=InProcess(fork=True, failures=1), document=document)
    [row] = found.destinations["out"].refused
    assert (row["document"], row["status"]) == ("3", "ERROR_DOC")
    assert row["message"].endswith("it ended its process in each of 3 tries: signal 9 (SIGKILL)")
    assert len(found.destinations["out"].gets) == (9 if document is None else 0)
    assert any("run again, one by one" in m for m in found.messages)
    assert snapshot(net.folder) == before


def test_what_is_no_text_has_a_size(net: Network) -> None:
    """Bytes that are not UTF-8 are not shown."""
    net.source().destination("out", net.out("out"))
    net.documents["docs"].append({"id": "a", "raw": b"\xff\xfe", "n": 1})
    net.documents["docs"].append({"id": "b"})
    assert [(r["text"], r["bytes"], r["fields"]) for r in look(net).destinations["out"].gets] == [
        (None, 2, {"n": 1}),
        (None, None, {}),
    ]


def test_it_can_be_written_as_json(net: Network) -> None:
    """``as_dict`` has the fields' names."""
    filled(net)
    found = look(net)
    assert list(found.as_dict()) == [f.name for f in dataclasses.fields(Preview)]
    assert set(found.as_dict()["destinations"]["out"]) == {"gets", "dropped", "refused", "errors", "waiting"}


@pytest.mark.spark
def test_a_table_is_previewed_on_spark(net: Network, spark: Any) -> None:
    """Rows of a DataFrame; what is said is what a run on Spark then does."""
    from ferryman.sources import DataFrame

    net.plan.source(
        "docs", DataFrame(lambda session: session.range(40).selectExpr("cast(id AS string) AS id", "id AS n"))
    )
    net.plan.step("some-fail", some_fail, after="docs").destination("out", net.out("out"))
    before = snapshot(net.folder)
    found = look(net, runner=spark, limit=1000)
    assert snapshot(net.folder) == before
    assert len(found.documents) == 40
    assert len(look(net, runner=spark, limit=3).documents) == 3
    run_plan(net.plan, net.state, runner=spark, wait=0)
    assert promised(found) == done(net, 0)
