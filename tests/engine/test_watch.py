"""A run that watches: what it looks at after an event, when it lists everything, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits, operations
from ferryman.destinations import Memory
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine.flow import FlowRun, take_plans
from ferryman.engine.results import Look
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.engine.watch import EventWatch
from ferryman.errors import TransientError, Unavailable
from ferryman.plan import Flow, Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Csv, Files, Queue
from ferryman.sources import Memory as InMemory
from ferryman.sources.base import TouchedFiles
from ferryman.sources.inotify import CannotWatch
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support import invariants
from tests.support.plan_world import Watch
from tests.support.recorder import Recorder

LONG_S = 300.0


class Watched:
    """A run that watches, which goes on step by step: ``wait`` for what happens, then ``look`` at it."""

    def __init__(self, place: Path, plan: Plan, run: Run, watch: EventWatch, messages: list[str]) -> None:
        self.place = place
        self.plan = plan
        self.run = run
        self.watch = watch
        self.messages = messages

    def wait(self, at_most_s: float = LONG_S) -> Look | None:
        """What is to be listed; None: everything, since the time is up."""
        found = self.watch.wait(time.monotonic() + at_most_s, self.run.has_work)
        return None if found is None else found.get("", {})

    def look(self) -> Look:
        """Wait for what happens, and process it."""
        found = self.wait()
        assert found is not None
        self.run.turn(scan=found)
        return found

    def there(self) -> dict[str, str]:
        """Documents at the destination -> their newest text."""
        found: dict[str, str] = {}
        for line in Recorder(self.place / "out").lines():
            if line["op"] == "delete":
                found.pop(line["id"], None)
            else:
                found[line["id"]] = line["text"]
        return found

    def until(self, expected: dict[str, str]) -> list[Look]:
        """Look at what happens until this is at the destination; return what was looked at."""
        looks = []
        while self.there() != expected:
            looks.append(self.look())
        return looks

    def arrived(self) -> list[str]:
        return Recorder(self.place / "out").arrived()


@contextlib.contextmanager
def watching(place: Path, plan: Plan, **settings: Any) -> Iterator[Watched]:
    """A run of the plan after its first full scan; all invariants hold at its end."""
    messages: list[str] = []
    plan.freeze()
    root = state_root(plan, place / "state")
    observer = Watch(most=10_000)
    with (
        EventWatch({"": plan}, 600.0, lambda _, message: messages.append(message)) as watch,
        State.take(root, plan) as s,
    ):
        run = Run(s, InProcess(), observer, RunSettings(wait=0, **settings))
        run.recover()
        run.turn()
        watch.wait(time.monotonic() + LONG_S, lambda: True)  # it takes note that nothing is listed any more
        yield Watched(place, plan, run, watch, messages)
        summary = run.finish()
    messages += observer.messages
    invariants.check(root, plan, summary)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls and looks for what has gone without long pauses."""
    for name, value in {"WATCH_POLL_S": 0.05, "WATCH_POLL_SHARE": 1, "WATCH_GONE_S": 0.3}.items():
        monkeypatch.setattr(limits, name, value)


@pytest.fixture
def corpus(place: Path) -> Path:
    folder = place / "corpus"
    folder.mkdir()
    return folder


def plan_of(place: Path, *sources: Any, step: Any = None) -> Plan:
    plan = Plan("watched", version=1)
    out = Recorder(place / "out")
    for number, source in enumerate(sources):
        node = plan.source(f"s{number}", source)
        node = node.step("step", step) if step is not None else node
        node.destination(f"out{number}", Memory(), backoff=0) if number else node.destination("out", out, backoff=0)
    return plan


def only(*files: str, folders: tuple[str, ...] = ()) -> Look:
    return {"s0": TouchedFiles(frozenset(files), frozenset(folders))}


@pytest.mark.rule("watch.events")
def test_only_the_changed_file_is_listed(place: Path, corpus: Path) -> None:
    for name in "abc":
        (corpus / name).write_text("1")
    with watching(place, plan_of(place, Files(corpus))) as w:
        assert w.there() == dict.fromkeys("abc", "1")
        (corpus / "b").write_text("2")
        assert w.look() == only("b")
        (corpus / "d").write_text("1")
        assert w.look() == only("d")
        assert w.arrived() == ["a", "b", "c", "b", "d"]


@pytest.mark.rule("watch.rename")
def test_saved_by_renaming_is_one_new_version(place: Path, corpus: Path) -> None:
    """By an editor that renames over it, and by one that moves it away first."""
    (corpus / "a").write_text("1")
    with watching(place, plan_of(place, Files(corpus))) as w:
        (corpus / "a.new").write_text("2")
        (corpus / "a.new").rename(corpus / "a")
        assert w.look() == only("a")
        (corpus / "a").rename(corpus / "a~")
        (corpus / "a").write_text("3")
        (corpus / "a~").unlink()
        assert w.look() == only("a")
        assert w.arrived() == ["a", "a", "a"]
        assert w.wait(limits.WATCH_GONE_S + 1) is None  # nothing is thought to be deleted
        assert w.there() == {"a": "3"}


@pytest.mark.rule("watch.deletes")
def test_only_a_full_listing_deletes(place: Path, corpus: Path) -> None:
    """One comes soon after a file has gone."""
    for name in "abc":
        (corpus / name).write_text("1")
    with watching(place, plan_of(place, Files(corpus, max_deleted=1.0))) as w:
        (corpus / "a").unlink()
        (corpus / "b").write_text("2")
        assert w.look() == only("b")
        assert w.there() == {"a": "1", "b": "2", "c": "1"}
        assert w.look() == {"s0": None}
        assert w.there() == {"b": "2", "c": "1"}


def test_too_many_deletes_wait_also_here(place: Path, corpus: Path) -> None:
    for name in "abcd":
        (corpus / name).write_text("1")
    with watching(place, plan_of(place, Files(corpus, max_deleted=0.3))) as w:
        for name in "abc":
            (corpus / name).unlink()
        assert w.look() == {"s0": None}
        (corpus / "e").write_text("1")
        w.look()
        assert sorted(w.there()) == ["a", "b", "c", "d", "e"]
        assert w.run.finish().exit == 2  # a look at one file does not make the deletes forgotten


@pytest.mark.rule("watch.folders")
def test_a_folder_that_appears_is_listed_and_watched(place: Path, corpus: Path) -> None:
    new = place / "elsewhere"
    (new / "deep").mkdir(parents=True)
    for name in "x", "deep/y":
        (new / name).write_text("1")
    with watching(place, plan_of(place, Files(corpus))) as w:
        new.rename(corpus / "new")
        assert w.look() == only(folders=("new",))
        assert w.there() == {"new/x": "1", "new/deep/y": "1"}
        (corpus / "new" / "deep" / "z").write_text("1")
        assert w.look() == only("new/deep/z")
        (corpus / "made" / "here").mkdir(parents=True)
        (corpus / "made" / "here" / "too").write_text("1")
        w.until({"new/x": "1", "new/deep/y": "1", "new/deep/z": "1", "made/here/too": "1"})


def test_a_folder_is_renamed(place: Path, corpus: Path) -> None:
    (corpus / "old").mkdir()
    (corpus / "old" / "x").write_text("1")
    with watching(place, plan_of(place, Files(corpus, max_deleted=1.0))) as w:
        (corpus / "old").rename(corpus / "new")
        assert w.until({"new/x": "1"})[-1] == {"s0": None}


def test_a_folder_is_swapped_for_another(place: Path, corpus: Path) -> None:
    """As a site is deployed: what only the old one had is deleted, though no event names its files."""
    (corpus / "site").mkdir()
    (place / "next").mkdir()
    for name in "site/a", "site/b":
        (corpus / name).write_text("1")
    (place / "next" / "a").write_text("2")
    with watching(place, plan_of(place, Files(corpus, max_deleted=1.0))) as w:
        (corpus / "site").rename(place / "previous")
        (place / "next").rename(corpus / "site")
        assert w.wait(60.0) == only(folders=("site",))
        assert w.wait(60.0) == {"s0": None}
        w.run.turn()
        assert w.there() == {"site/a": "2"}


def test_a_file_that_goes_right_after_it_was_listed(place: Path, corpus: Path) -> None:
    """It was being written when everything was listed, and went before anything was looked at again."""
    (corpus / "b").write_text("1")
    with watching(place, plan_of(place, Files(corpus, max_deleted=1.0))) as w:
        assert w.wait(0.0) is None
        with (corpus / "a").open("w") as file:
            file.write("1")
            file.flush()
            w.run.turn()
        assert w.there() == {"a": "1", "b": "1"}
        (corpus / "a").unlink()
        assert w.wait(60.0) == {"s0": None}
        w.run.turn()
        assert w.there() == {"b": "1"}


class Returning(Files):
    """One of its documents is there again just after it was listed, the first times."""

    def still_there(self, ids: Any) -> str:
        seen = Path(f"{self.root}.seen")
        with seen.open("a") as file:
            file.write("x")
        return "b was made again" if seen.stat().st_size <= 2 else super().still_there(ids)


def test_an_incomplete_listing_is_repeated(place: Path, corpus: Path) -> None:
    """What it had missed may be back by now, and what has gone since is deleted then: no event says so again."""
    for name in "abc":
        (corpus / name).write_text("1")
    with watching(place, plan_of(place, Returning(corpus, max_deleted=1.0))) as w:
        (corpus / "a").unlink()
        for _ in range(3):
            assert w.there() == dict.fromkeys("abc", "1")
            assert w.wait(60.0) == {"s0": None}
            w.run.turn()
            w.watch.list_again("", w.run.take_contradicted())
        assert w.there() == {"b": "1", "c": "1"}
        assert any("b was made again, but not in the listing" in message for message in w.run.finish().messages)


@pytest.mark.rule("watch.unfinished")
def test_files_that_are_being_worked_on_start_no_wave(place: Path, corpus: Path) -> None:
    """Nor does a full listing take them."""
    with watching(place, plan_of(place, Files(corpus))) as w:
        for name in "~$a.docx", ".a.swp", "a.part", ".~lock.a#":
            (corpus / name).write_text("1")
        assert w.wait(1) is None
        w.run.turn()
        assert w.there() == {}


def test_files_in_an_open_editor_can_be_read_by_a_run_that_does_not_watch(place: Path, corpus: Path) -> None:
    source = Files(corpus)
    (corpus / "a.part").write_text("1")
    with watching(place, plan_of(place, source)):
        pass
    assert [entry.id for piece in source.partitions() for entry in source.listing(piece)] == ["a.part"]


def test_a_file_that_grows_is_read_at_its_end(place: Path, corpus: Path) -> None:
    with watching(place, plan_of(place, Files(corpus))) as w:
        with (corpus / "a").open("w") as file:
            for number in range(5):
                file.write(str(number))
                file.flush()
                assert w.wait(0.05) is None
        assert w.look() == only("a")
        assert w.arrived() == ["a"]
        assert w.there() == {"a": "01234"}


@pytest.mark.rule("watch.bursts")
def test_a_burst_is_a_few_waves(place: Path, corpus: Path) -> None:
    with watching(place, plan_of(place, Files(corpus))) as w:
        before = w.run.finish().waves

        def write() -> None:
            for number in range(2000):
                (corpus / f"{number:04}").write_text("1")

        thread = threading.Thread(target=write)
        thread.start()
        w.until({f"{number:04}": "1" for number in range(2000)})
        thread.join()
        assert w.run.finish().waves - before <= 4
        assert len(w.arrived()) == 2000


@pytest.mark.rule("watch.lost-events")
def test_events_that_the_kernel_drops(place: Path, corpus: Path) -> None:
    """The source is listed whole, and the setting is named, once."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    names = [corpus / "a", corpus / "b"]
    with watching(place, plan_of(place, Files(corpus))) as w:
        for _ in range(2):
            names[0].write_text("1")
            with w.watch.lock:  # the thread that reads events is held up
                for number in range(limit // 2 + 100):
                    names[number % 2].rename(names[1 - number % 2])
                (corpus / "sub").mkdir(exist_ok=True)  # of which no event tells
                (corpus / "sub" / "lost").write_text("1")
            assert w.look() == {"s0": None}
        assert "sub/lost" in w.there()
        (corpus / "sub" / "later").write_text("1")
        looks = w.until({**w.there(), "sub/later": "1"})
        assert only("sub/later") in looks  # the folder is watched since
        assert sum("max_queued_events" in message for message in w.messages) == 1


@pytest.mark.rule("watch.polls")
def test_where_there_are_no_events_it_is_listed_again(
    place: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, once. As soon as it can be watched, it is."""
    monkeypatch.setattr("ferryman.sources.inotify.remote_kind", lambda device: "nfs4")
    with watching(place, plan_of(place, Files(corpus))) as w:
        for number in range(3):
            (corpus / str(number)).write_text("1")
            assert w.look() == {"s0": None}
        assert w.there() == {"0": "1", "1": "1", "2": "1"}
        assert [message for message in w.messages if "is on nfs4" in message] == [
            (
                f"warning: source s0: {corpus} is on nfs4, where changes by others are not reported to this machine. "
                "Its changes are found by listing all of it, every 0.05 s or more"
            )
        ]
        monkeypatch.setattr("ferryman.sources.inotify.remote_kind", lambda device: "")
        w.look()
        (corpus / "seen").write_text("1")
        while w.look() == {"s0": None}:
            pass
        assert "seen" in w.there()


def test_the_root_is_made_again(place: Path, corpus: Path) -> None:
    """While it is away nothing is deleted; when it is back it is watched again."""
    (corpus / "a").write_text("1")
    with watching(place, plan_of(place, Files(corpus), InMemory([Document("m")]))) as w:
        corpus.rename(place / "away")
        assert w.look() == {"s0": None}
        assert w.there() == {"a": "1"}
        (place / "away").rename(corpus)
        (corpus / "b").write_text("1")
        w.until({"a": "1", "b": "1"})
        while w.watch.sources[0].events is None:
            w.look()
        (corpus / "c").write_text("1")
        assert w.until({"a": "1", "b": "1", "c": "1"})[-1] == only("c")
        assert sum("was removed or moved" in message for message in w.messages) == 1


def test_a_file_of_rows_is_read_whole(place: Path) -> None:
    """So that rows that are missing are deleted at once."""
    rows = place / "rows.csv"
    rows.write_text("id,n\na,1\nb,1\n")
    with watching(place, plan_of(place, Csv(rows, id="id", max_deleted=1.0))) as w:
        rows.write_text("id,n\nb,2\nc,1\n")
        assert w.look() == {"s0": None}
        assert w.arrived() == ["a", "b", "b", "c", "-a"]


class Counted(Files):
    """Writes down each listing of everything."""

    def __init__(self, root: Path, notes: Path) -> None:
        super().__init__(root)
        self.notes = notes

    def partitions(self) -> list[Any]:
        with self.notes.open("a") as file:
            file.write(f"{self.root}\n")
        return super().partitions()


def test_other_sources_are_not_listed(place: Path) -> None:
    sources = []
    for name in "ab":
        (place / name).mkdir()
        sources.append(Counted(place / name, place / "listings"))
    with watching(place, plan_of(place, *sources)) as w:
        for number in range(3):
            (place / "a" / str(number)).write_text("1")
            w.look()
    assert (place / "listings").read_text().split() == [str(place / "a"), str(place / "b")]


def test_it_is_said_that_nothing_reports_changes(place: Path) -> None:
    with watching(place, plan_of(place, InMemory([Document("a")]))) as w:
        assert w.messages == ["source s0: nothing reports its changes; it is listed every 600 s"]
        assert w.wait(0.01) is None


@pytest.mark.rule("watch.logs")
def test_messages_of_a_queue_start_a_wave(place: Path, corpus: Path) -> None:
    queue = DurableQueue("in", place)
    plan = Plan("watched", version=1)
    plan.source("queue", Queue("in", place)).destination("copy", ToQueue("copy", place))
    plan.source("files", Files(corpus)).destination("out", Memory())
    with watching(place, plan) as w:
        for number in range(3):
            queue.append([{"n": number}])
            assert w.look() == {}
        assert [message.body["n"] for message in DurableQueue("copy", place).read(1, 10)] == [0, 1, 2]


def test_a_log_that_cannot_be_asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, and left alone as long as the breaker says so."""
    plan = Plan("watched", version=1)
    log = Queue("in", place)
    DurableQueue("in", place).append([{"n": 0}])
    plan.source("queue", log).destination("copy", ToQueue("copy", place))
    with watching(place, plan) as w:
        with monkeypatch.context() as away:
            away.setattr(Queue, "end", lambda self: (_ for _ in ()).throw(Unavailable("the disk is away")))
            assert w.look() == {}
            assert w.wait(0.6) is None
        DurableQueue("in", place).append([{"n": 1}])
        while len(DurableQueue("copy", place).read(1, 10)) < 2:
            w.look()
    assert any("the disk is away" in message for message in w.messages)


def test_an_interrupt_that_a_library_has_lost(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer raises it again, also while nothing happens."""
    plan = Plan("watched", version=1)
    plan.source("queue", Queue("in", place)).destination("copy", ToQueue("copy", place))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with watching(place, plan) as w, monkeypatch.context() as interrupted:
        interrupted.setattr(Watch, "waits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            w.wait(1.0)


def test_what_comes_due_is_done(place: Path, corpus: Path) -> None:
    """A failed step is tried again when it is due, also if no file changes."""

    def step(doc: Document) -> Document:
        tried = place / "tried"
        if not tried.exists():
            tried.touch()
            raise TransientError("not yet")
        return doc

    plan = Plan("watched", version=1)
    plan.source("s0", Files(corpus)).step("step", step).destination("out", Recorder(place / "out"))
    with watching(place, plan) as w:
        (corpus / "a").write_text("1")
        looks = w.until({"a": "1"})
        assert looks[0] == only("a")
        assert all(look == {} for look in looks[1:])


def test_a_pending_document_that_is_away_does_not_keep_it_busy(place: Path, corpus: Path) -> None:
    """It is due and no listing names it, since its file has gone, and too many have to be deleted."""

    def step(doc: Document) -> Document:
        raise TransientError("never")

    (corpus / "a").write_text("1")
    with watching(place, plan_of(place, Files(corpus, max_deleted=0.0), step=step)) as w:
        (corpus / "a").unlink()
        until, turns = time.monotonic() + 4, 0
        while (found := w.watch.wait(until, w.run.has_work)) is not None:
            w.run.turn(scan=found.get("", {}))
            turns += 1
        assert turns < 10
        assert w.run.finish().pending == 1


def test_a_name_that_is_gone_by_then(place: Path, corpus: Path) -> None:
    with watching(place, plan_of(place, Files(corpus))) as w:
        (corpus / "a").write_text("1")
        found = w.wait()
        (corpus / "a").unlink()
        w.run.turn(scan=found or {})
        assert w.there() == {}


def test_an_id_that_another_source_has(place: Path) -> None:
    """It is refused, as in a full scan: what is listed is compared with what is known of the other source."""
    plan = Plan("watched", version=1)
    out = Recorder(place / "out")
    out.place, out.keyed_by_id = "one", True
    for name in "ab":
        (place / name).mkdir()
        plan.source(name, Files(place / name))
    plan.destination("out", out, after=["a", "b"], backoff=0)
    with watching(place, plan) as w:
        for name in "ab":
            (place / name / "x").write_text(name)
            assert w.look() == {name: TouchedFiles(frozenset({"x"}))}
        assert w.there() == {"x": "a"}
        assert w.run.finish().rejected == 1


@pytest.mark.rule("watch.leaks")
def test_many_waves_leave_nothing(place: Path, corpus: Path) -> None:
    leave_nothing(place, corpus, 12)


@pytest.mark.slow
def test_hundreds_of_waves_leave_nothing(place: Path, corpus: Path) -> None:
    leave_nothing(place, corpus, 500)


def leave_nothing(place: Path, corpus: Path, waves: int) -> None:
    """As many open files and threads after many waves as after a few, and none at the end."""

    def open_things() -> list[str]:
        gc.collect()
        threads = [thread.name for thread in threading.enumerate()]
        return sorted([*threads, *(os.path.realpath(f"/proc/self/fd/{number}") for number in range(100))])

    before = open_things()
    with watching(place, plan_of(place, Files(corpus, max_deleted=1.0))) as w:
        for number in range(waves):
            folder = corpus / str(number % 3)
            if folder.exists():
                shutil.rmtree(folder)
            else:
                folder.mkdir()
                (folder / "x").write_text(str(number))
            (corpus / "a").write_text(str(number))
            w.look()
            if number == 5:
                early = open_things()
        assert open_things() == early
        kernel = Path(f"/proc/self/fdinfo/{w.watch.sources[0].events.fileno()}").read_text()  # type: ignore[union-attr]
        assert kernel.count("inotify wd:") <= 4
    assert open_things() == before


def test_nothing_is_left_of_a_watch_that_could_not_begin(place: Path, corpus: Path) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()

    class Broken(Files):
        def watch(self) -> Any:
            raise RuntimeError("a bug of a source")

    with (
        pytest.raises(RuntimeError, match="a bug of a source"),
        EventWatch({"": plan_of(place, Files(corpus), Broken(corpus))}, 600, lambda *_: None),
    ):
        pass
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_cannot_watch_is_no_reason_to_stop(place: Path, corpus: Path) -> None:
    class Away(Files):
        def watch(self) -> Any:
            raise CannotWatch("this folder is odd")

    with watching(place, plan_of(place, Away(corpus))) as w:
        assert any("this folder is odd" in message for message in w.messages)


class Enough(Exception):
    """All has arrived."""


@pytest.mark.parametrize("of", ["plan", "flow"])
def test_a_run_goes_on_by_itself(place: Path, corpus: Path, of: str) -> None:
    """A change goes through both plans of a flow: what the first appends to a queue wakes the second."""
    first, second = Plan("first", version=1), Plan("second", version=1)
    first.source("files", Files(corpus)).destination("queue", ToQueue("between", place))
    second.source("queue", Queue("between", place)).destination("copy", ToQueue("copy", place))
    plans = {"": first} if of == "plan" else {"first": first, "second": second}
    last = DurableQueue("between" if of == "plan" else "copy", place)

    class Ending(EventWatch):
        saved = 0

        def wait(self, until: float, has_work: Any) -> Any:
            if len(last.read(1, 10)) == self.saved == 3:
                raise Enough
            if len(last.read(1, 10)) == self.saved:
                (corpus / str(self.saved)).write_text("1")
                self.saved += 1
            return super().wait(until, has_work)

    with Ending(plans, 600.0, lambda *_: None) as watch, contextlib.suppress(Enough):
        if of == "plan":
            first.freeze()
            with State.take(state_root(first, place / "state"), first) as state:
                Run(state, InProcess(), Watch(), RunSettings(wait=0)).run(600.0, watch)
        else:
            with take_plans(Flow("both", [first, second]), place / "state") as taken:
                FlowRun("both", taken, InProcess(), Watch(), RunSettings(wait=0)).run(600.0, watch)
    assert len(last.read(1, 10)) == 3


@pytest.mark.parametrize("options", [{"watch": True}, {"watch": True, "every": 0.2}])
def test_the_public_function_takes_it(place: Path, corpus: Path, options: dict[str, Any], monkeypatch: Any) -> None:
    """``every`` is ten minutes unless it is given."""
    seen: list[float] = []

    def run(self: Run, every: float | None, watch: EventWatch | None) -> Any:
        assert every is not None
        assert watch is not None
        assert watch.sources[0].events is not None
        seen.append(every)

    monkeypatch.setattr(Run, "run", run)
    operations.run(plan_of(place, Files(corpus)), state=place / "state", **options)
    assert seen == [options.get("every", 600.0)]
