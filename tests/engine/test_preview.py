"""A preview says what the next run does, and about which documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.routers import ByField, Duplicate, Router
from ferryman.sources import Files
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld
from tests.support.previewed import previewed
from tests.support.previewing import (
    done,
    filled,
    ids,
    killed_after_commit,
    look,
    moody,
    promised,
    settled,
    some_fail,
    with_reasons,
    with_requests,
)
from tests.support.tiers import sampled

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


def straight(net: PlanWorld) -> None:
    net.source().step("some-fail", some_fail).destination("out", net.out("out"))


def by_field(net: PlanWorld) -> None:
    kind = net.source().route("by-kind", ByField("kind"))
    kind.step("comedy", some_fail).destination("comedies", net.out("comedies"))
    kind.destination("tragedy", net.out("tragedies"), deletes=False)


def diamond(net: PlanWorld) -> None:
    twice = net.source().route("twice", Duplicate())
    left, right = twice.step("left", some_fail), twice.step("right", letters)
    net.plan.step("join", some_fail, after=[left, right])
    net.plan.destination("out", net.out("out"), after="join")


def families(net: PlanWorld) -> None:
    below = net.source().step("words", words).step("letters", letters).route("both", Both())
    below.step("left", some_fail).destination("one", net.out("one"), attempts=1)
    below.step("right", some_fail).destination("two", net.out("two"))


def teed(net: PlanWorld) -> None:
    tee = net.source().tee("seen", net.out("seen"))
    tee.step("some-fail", some_fail).destination("out", net.out("out"), attempts=2)


def joined(net: PlanWorld) -> None:
    docs, more = net.source(), net.source("more", prefix="more/")
    net.put("x", "y", source="more")
    net.plan.step("join", some_fail, after=[docs, more])
    net.plan.destination("out", net.out("out"), after="join")


SHAPES = [straight, by_field, diamond, families, teed, joined]


def shaken(net: PlanWorld, dice: random.Random) -> None:
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
    net: PlanWorld, shape: Callable[[PlanWorld], None], seed: int, monkeypatch: pytest.MonkeyPatch
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


def net_wave(net: PlanWorld) -> int:
    return max((e["wave"] for e in rows(net.root, "documents")), default=0)


def test_what_is_due_again_is_told_as_a_retry(net: PlanWorld) -> None:
    """With the attempt that it would be; what is not due is left alone, unless it is asked for."""
    net.source().step("moody", moody).destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.put("failing", "a")
    net.run(wait=0)
    assert ids(look(net)) == []
    later = look(net, document="failing")
    assert with_reasons(later) == {"failing": "later"}
    assert later.messages == ["failing of source docs has failed and is not due yet: a run would not process it now."]
    net.retry()
    found = look(net)
    assert with_reasons(found) == {"failing": "retry"}
    [row] = found.destinations["out"].errors
    assert (row["status"], row["attempt"], row["attempts"]) == ("ERROR", 1, 3)
    assert later.destinations["out"].errors[0]["attempt"] == 2


def test_what_waits_is_counted(net: PlanWorld) -> None:
    """Rows of earlier waves that the destination has not got; parked ones are not owed."""
    filled(net)
    settled(net)
    assert look(net).destinations["out"].waiting == 1  # busy, and not dead


def test_requests_that_wait_are_told(net: PlanWorld) -> None:
    """They are not carried out."""
    filled(net)
    with_requests(net)
    [message] = look(net).messages
    assert message.startswith("2 requests are waiting (`retry`, `resolve`)")


def test_of_a_committed_wave_nothing_is_taken_up_again(net: PlanWorld) -> None:
    """Also if it was killed before it was settled."""
    filled(net)
    killed_after_commit(net)
    found = look(net)
    assert ids(found) == []
    assert found.destinations["out"].waiting == 4  # busy, and what wave 2 has committed


# --- which documents -----------------------------------------------------------------------------------------------


def test_so_many_and_no_more(net: PlanWorld) -> None:
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


def test_each_source_has_its_share(net: PlanWorld) -> None:
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
def folder(trial: PlanWorld) -> Path:
    """Files, which must be read to be known; all of them are."""
    folder = trial.folder / "files"
    folder.mkdir()
    for n in range(300):
        (folder / f"{n:03}.txt").write_text(str(n))
    trial.build(source=Files(folder, max_deleted=1.0))
    trial.run()
    return folder


def test_what_must_be_read_to_be_compared_is_read(trial: PlanWorld, folder: Path) -> None:
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


def test_one_document_is_shown_also_if_it_is_unchanged(trial: PlanWorld, folder: Path) -> None:
    """And that it is, is told."""
    found = previewed(trial.plan, trial.state, document="007.txt")
    assert with_reasons(found) == {"007.txt": "unchanged"}
    assert found.messages == ["007.txt of source docs is unchanged: a run would not process it now."]
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


def test_one_document_may_be_of_several_sources(net: PlanWorld) -> None:
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


def test_a_document_that_nobody_has_is_an_error(net: PlanWorld) -> None:
    filled(net)
    with pytest.raises(UsageError, match="nowhere: no source of plan network has a document of this id"):
        look(net, document="nowhere")
    with pytest.raises(UsageError, match="one document at least"):
        look(net, limit=0)
