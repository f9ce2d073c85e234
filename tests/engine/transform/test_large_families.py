"""Families of more members than are held at once: they go on while the step still makes others, and are taken back if
it fails after all."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferryman import account, limits
from ferryman.document import Document
from ferryman.engine.transform.isolation import Recorder, Spool
from ferryman.errors import Dropped, PermanentError, Unavailable
from ferryman.records.families import Published, PublishedLines, decode_published, encode_published
from ferryman.routers import Duplicate
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

HELD = 5
MANY = 40


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that forty children are many."""
    monkeypatch.setattr(limits, "HELD_CHILDREN", HELD)


def members(n: int = MANY) -> set[str]:
    return {f"a#{i}" for i in range(n)}


def children(doc: Document) -> Iterator[Document]:
    """As many as its text says."""
    for i in range(int(doc.text())):
        yield doc.child(i, raw=str(i).encode())


def torn(error: BaseException, *, at: int = 30, flag: Path | None = None) -> Callable[[Document], Iterator[Document]]:
    """The same, but it fails before the last ones are made; with a flag, as long as that is there."""

    def step(doc: Document) -> Iterator[Document]:
        for i, child in enumerate(children(doc)):
            if i == at and (flag is None or flag.exists()):
                raise error
            yield child

    return step


def asking(flag: Path, *, since: str) -> Callable[[Document], Document]:
    """A step whose service goes away when it is asked for this member, as long as the flag is there."""
    away = []

    def step(doc: Document) -> Document:
        if doc.id == since:
            away.append(doc.id)
        if away and flag.exists():
            raise Unavailable("moving")
        return doc

    return step


def note(path: Path, text: str) -> None:
    """Steps travel; what they have to say goes into a file."""
    with path.open("a") as file:
        file.write(f"{text}\n")


@pytest.mark.rule("size.family")
def test_they_go_on_while_others_are_made(net: PlanWorld) -> None:
    """The step is still at work when its first children are through the next one."""
    made = net.folder / "made"

    def noted(doc: Document) -> Iterator[Document]:
        for child in children(doc):
            note(made, child.id)
            yield child

    def look(doc: Document) -> Document:
        note(net.folder / "seen", str(len(made.read_text().splitlines())))
        return doc

    net.source().step("split", noted).step("look", look).destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    assert net.run().delivered == MANY
    assert net.arrived("out") == dict.fromkeys(members(), 1)
    seen = [int(line) for line in (net.folder / "seen").read_text().splitlines()]
    assert seen == [*[HELD] * HELD, *range(HELD + 1, MANY + 1)]


@pytest.mark.rule("size.family", "child.twins")
@pytest.mark.parametrize(
    ("error", "status"),
    [(PermanentError("page 31 is torn"), "ERROR_DOC"), (Dropped("a draft"), "DROPPED"), (RuntimeError("bug"), "DEAD")],
    ids=["permanent", "dropped", "bug"],
)
def test_a_step_that_fails_late_gives_nothing(net: PlanWorld, error: BaseException, status: str) -> None:
    """However far it came: nothing is delivered, said, or left on the disk of what it had made."""

    def odd(doc: Document) -> Document:
        if doc.id.startswith("a#") and int(doc.id[2:]) % 7 == 0:
            raise PermanentError("odd")
        return doc

    split = net.source().step("split", torn(error)).step("odd", odd)
    split.destination("out", net.out("out"), backoff=0)
    net.put("a", text=str(MANY))
    net.put("b", text="3")
    net.run()
    assert net.arrived("out") == {f"b#{i}": 1 for i in range(3)}
    assert net.events("a", "out")[-1] == status
    assert {row["document"] for row in rows(net.root, "ledger")} == {"a", "b#0", "b#1", "b#2"}
    [family] = [row for row in rows(net.root, "documents") if row["document"] == "b"]
    assert family["given"]


def test_what_is_taken_back_leaves_no_files(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where files closed in the middle of it."""
    monkeypatch.setattr(limits, "GROUP_BYTES", 600)
    monkeypatch.setattr(limits, "PART_BYTES", 1200)
    there, root = net.folder / "there", net.root

    def late(doc: Document) -> Iterator[Document]:
        yield from children(doc)
        for path in root.glob("*/*.parquet"):
            note(there, path.name)
        raise PermanentError("torn")

    net.source().step("split", late).destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    net.run()
    before = set(there.read_text().splitlines())
    assert len(before) > 3, "it had files"
    assert not before & {path.name for path in root.glob("*/*.parquet")}
    assert net.events("a", "out") == ["ERROR_DOC"]


def test_a_step_that_works_the_second_time(net: PlanWorld, place: Path) -> None:
    """Each child is delivered once."""
    flag = place / "flag"
    flag.touch()
    split = net.source().step("split", torn(RuntimeError("not yet"), flag=flag))
    split.destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.put("a", text=str(MANY))
    assert net.run(wait=0).exit == 4
    assert net.arrived("out") == {}
    flag.unlink()
    net.retry()
    assert net.run().delivered == MANY
    assert net.arrived("out") == dict.fromkeys(members(), 1)
    assert net.run().waves == 0


@pytest.mark.rule("child.twins")
def test_twins_far_apart(net: PlanWorld) -> None:
    """The last child has the key of the first."""

    def twins(doc: Document) -> Iterator[Document]:
        yield from children(doc)
        yield doc.child(0)

    net.source().step("split", twins).destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    net.run()
    assert net.arrived("out") == {}
    assert net.events("a", "out") == ["ERROR_DOC"]


def test_many_children_of_many_children(net: PlanWorld, place: Path) -> None:
    """Of the pages of a book, one is torn: it alone has no words, and a retry makes only its."""
    flag = place / "flag"
    flag.touch()

    def words(doc: Document) -> Iterator[Document]:
        for i in range(MANY):
            if doc.id == "a#7" and i == 20 and flag.exists():
                raise RuntimeError("torn")
            yield doc.child(i)

    pages = net.source().step("pages", children).step("words", words)
    pages.destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.put("a", text="12")
    assert net.run(wait=0).exit == 4
    expected = {f"a#{page}#{i}" for page in range(12) for i in range(MANY)}
    missing = {id for id in expected if id.startswith("a#7#")}
    assert net.arrived("out") == dict.fromkeys(expected - missing, 1)
    flag.unlink()
    net.retry()
    assert net.run().exit == 0
    assert net.arrived("out") == dict.fromkeys(expected, 1)


def test_the_document_itself_goes_last(net: PlanWorld) -> None:
    """Its step may have something to say of it when all are made."""

    def counted(doc: Document) -> Iterator[Document]:
        yield doc
        yield from children(doc)
        doc["children"] = MANY

    net.source().step("split", counted).destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    assert net.run().delivered == MANY + 1
    [line] = [line for line in net.out("out").lines() if line["id"] == "a"]
    assert line["fields"] == {"children": MANY}


def test_a_new_version_with_fewer_children(net: PlanWorld) -> None:
    """The others are deleted; what has not changed is not sent again."""

    def careful(doc: Document) -> Iterator[Document]:
        for child in children(doc):
            child.only_if_changed = True
            yield child

    net.source().step("split", careful).destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    net.run()
    net.put("a", text="30")
    net.run()
    gone = {f"-a#{i}": 1 for i in range(30, MANY)}
    assert net.arrived("out") == {**dict.fromkeys(members(), 1), **gone}
    net.drop("a")
    net.run()
    assert net.arrived("out") == {**dict.fromkeys(members(), 1), **{f"-a#{i}": 1 for i in range(MANY)}}


def test_some_members_fail_further_on(net: PlanWorld) -> None:
    """A retry makes the family again, and goes on with those alone."""
    calls: Counter[str] = Counter()

    def odd(doc: Document) -> Document:
        calls[doc.id] += 1
        if doc.id in ("a#3", "a#33") and calls[doc.id] == 1:
            raise RuntimeError("not yet")
        return doc

    split = net.source().step("split", children).step("calls", net.counting("calls"))
    split.step("odd", odd).destination("out", net.out("out"), backoff=0)
    net.put("a", text=str(MANY))
    assert net.run().exit == 0
    assert net.arrived("out") == dict.fromkeys(members(), 1)
    assert net.calls("calls") == {**dict.fromkeys(members(), 1), "a#3": 2, "a#33": 2}


@pytest.mark.rule("size.family")
@pytest.mark.parametrize("waiting", [10, 1000])
def test_a_step_below_goes_away_in_the_middle(
    net: PlanWorld, place: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """Where more of them wait than can be remembered, the family waits as a whole. Nothing is doubled, no attempt is
    spent."""
    monkeypatch.setattr(limits, "WAITING_MEMBERS", waiting)
    flag = place / "flag"
    flag.touch()
    split = net.source().step("split", children)
    split.step("ask", asking(flag, since="a#8")).destination("out", net.out("out"), attempts=1)
    net.put("a", text=str(MANY))
    for _ in range(3):
        assert net.run(wait=0).exit == 4
    assert net.arrived("out") == ({} if waiting < MANY else {f"a#{i}": 1 for i in range(8)})
    flag.unlink()
    assert net.run().exit == 0
    assert net.arrived("out") == dict.fromkeys(members(), 1)


def test_by_several_ways(net: PlanWorld) -> None:
    """Copies of the document split on each branch: no two children are the same delivery."""
    copies = net.source().route("both", Duplicate())
    for name in ("left", "right"):
        copies.step(f"split-{name}", children).destination(name, net.out(name))
    net.put("a", text=str(MANY))
    assert net.run().delivered == 2 * MANY
    for name in ("left", "right"):
        assert sum(net.arrived(name).values()) == MANY


def test_only_the_time_in_which_it_works_counts(net: PlanWorld) -> None:
    """While what it has made goes on, no timer of ``timeout=`` runs."""
    armed = net.folder / "armed"

    def look(doc: Document) -> Document:
        note(armed, str(signal.getitimer(signal.ITIMER_REAL)[0]))
        return doc

    split = net.source().step("split", children, timeout=60).step("look", look)
    split.destination("out", net.out("out"))
    net.put("a", text=str(MANY))
    assert net.run().delivered == MANY
    assert armed.read_text().splitlines() == ["0.0"] * MANY


def test_what_a_large_family_was_given_is_kept_in_lines() -> None:
    """A thousand a line; the text of a small one is as it was."""
    given = [Published(f"#{i}", "", "out", "=x" if i % 2 else "") for i in range(2500)]
    text = encode_published(given)
    assert text.count("\n") == 2
    assert list(decode_published(text)) == given
    assert json.loads(text) == [[*each] if each.content else [*each.place] for each in given], "readers need JSON alone"
    assert encode_published(decode_published(text)) == text
    assert "\n" not in encode_published(given[:1000])
    lines = PublishedLines(given[:1500])
    mark = lines.mark()
    for each in given[1500:]:
        lines.append(each)
    lines.cut(mark)
    assert list(lines) == given[:1500]
    assert given[7] in lines
    assert len(lines) == 1500


# -- where documents kill --------------------------------------------------------------------------


def killing(seen: Path, *, at: int) -> Callable[[Document], Iterator[Document]]:
    """Makes children, a line in the file for each; ends its process in the middle of ``kills``, and fails in that of
    ``torn``."""

    def split(doc: Document) -> Iterator[Document]:
        limits.HELD_CHILDREN = HELD  # type: ignore[misc] # in a child process as well
        for i, child in enumerate(children(doc)):
            if i == at and doc.id == "kills":
                os._exit(3)
            if i == at and doc.id == "torn":
                raise PermanentError("page 31 is torn")
            note(seen, f"made {child.id}")
            yield child

    return split


@pytest.mark.rule("size.family")
def test_in_isolation_too(net: PlanWorld) -> None:
    """A worker died: each family is walked in a child process. There its members go on while others are made, too; what
    dies or fails in the middle gives nothing, and is known by its step."""
    seen = net.folder / "seen"

    def look(doc: Document) -> Document:
        note(seen, f"seen {doc.id}")
        return doc

    net.source().step("split", killing(seen, at=30)).step("look", look).destination("out", net.out("out"))
    net.put("kills", "torn", "a", "b", text=str(MANY))

    assert net.run(runner=InProcess(fork=True, failures=1)).exit == 3

    assert net.arrived("out") == {f"{origin}#{i}": 1 for origin in "ab" for i in range(MANY)}
    assert net.counts("out") == {"delivered": 2 * MANY, "rejected": 2}
    (message,) = {
        each["message"] for each in account.history(net.root, "kills", net.plan) if each["status"] == "ERROR_DOC"
    }
    assert message.startswith("step split: PermanentError: it ended its process in each of 3 tries: exit code 3")
    of_a = [line for line in seen.read_text().splitlines() if " a#" in line]
    assert of_a.index("seen a#0") < of_a.index(f"made a#{MANY - 1}"), "all were made before the first went on"


def test_a_spool_is_written_and_cut() -> None:
    """What is taken back is not read again, wherever it lay; no more than a few calls are held."""
    spool = Spool(shared=True)
    recorder = Recorder(spool)

    def say(*ids: int) -> None:
        for n in ids:
            recorder.drop(Document(str(n)), ("out", ""), "", "why", 1)
            assert len(recorder.calls) < HELD

    for taken_back in (False, True):
        recorder.begin()
        assert not recorder.spooled
        say(*range(3))
        savepoint = recorder.savepoint()
        say(*range(3, 20))
        if taken_back:
            recorder.roll_back(savepoint)
        say(20)
        said = [args[0].id if args else name for name, args in [*spool.read(), *recorder.calls]]
        between = [] if taken_back else ["savepoint", *map(str, range(3, 20))]
        assert said == ["0", "1", "2", *between, "20"]
    spool.close()
