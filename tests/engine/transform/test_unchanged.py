"""Children that are sent only if they have changed: what is there as it is is not sent again with a new version."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, steps
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.routers import Duplicate
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.plan_world import PlanWorld
from tests.support.previewed import previewed


def words(doc: Document) -> Iterator[Document]:
    """A child for each word, sent only if it has changed; ``name=3`` is the word ``name`` with another content."""
    for word in doc.text().split():
        key, _, value = word.partition("=")
        child = doc.child(key, raw=value.encode(), by=doc.get("by"))
        child.only_if_changed = True
        yield child


def build(net: PlanWorld, **policy: Any) -> PlanWorld:
    net.source().step("words", words).destination("out", net.out("out"), **{"backoff": 0, **policy})
    return net


def sent(net: PlanWorld, name: str = "out") -> list[str]:
    """What was sent since the last time it was asked, by id; deletes with a minus before them."""
    found = sorted(net.out(name).arrived())
    net.out(name).forget()
    return found


def busy(_: Any) -> Outcome:
    return Outcome.transient("busy")


@pytest.mark.rule("child.unchanged")
def test_only_what_changed_is_sent(net: PlanWorld) -> None:
    """New, changed and vanished ones are; of the others the ledger says that they are there."""
    build(net).put("d", text="a b c d")
    net.run()
    assert sent(net) == ["d#a", "d#b", "d#c", "d#d"]
    net.put("d", text="a new b=2 d")
    assert net.run().exit == 0
    assert sent(net) == ["-d#c", "d#b", "d#new"]
    assert net.counts("out") == {"delivered": 4, "deleted": 1}
    last = account.history(net.root, "d#a", net.plan)[-1]
    message = "unchanged: the destination already has it"
    assert (last["status"], last["message"], last["revision"]) == ("INDEXED", message, 2)
    net.run()
    assert sent(net) == []


def test_a_field_is_content_too(net: PlanWorld) -> None:
    build(net).put("d", text="a b", by="me")
    net.run()
    sent(net)
    net.put("d", text="a b", by="you")
    net.run()
    assert sent(net) == ["d#a", "d#b"]


@pytest.mark.rule("child.unchanged")
def test_what_is_owed_is_not_taken_for_there(net: PlanWorld) -> None:
    """While a row of the family waits, nobody knows what is there: all of it is sent."""
    build(net, backoff=NOT_SOON_S).put("d", text="a b")
    net.run()
    sent(net)
    net.out("out").answer = busy
    net.put("d", text="a b=2")
    net.run(wait=0)
    net.out("out").answer = None
    sent(net)
    net.put("d", text="a b")
    net.run(wait=0)
    assert sorted(set(sent(net))) == ["d#a", "d#b"]


def test_what_died_is_not_taken_for_there(net: PlanWorld) -> None:
    build(net, attempts=1).put("d", text="a b")
    net.out("out").answer = lambda d: Outcome.permanent("no") if d.id == "d#b" else Outcome.ok()
    assert net.run().exit == 3
    net.out("out").answer = None
    sent(net)
    net.put("d", text="a b c")
    assert net.run().exit == 0
    assert sent(net) == ["d#a", "d#b", "d#c"]
    net.put("d", text="a b c d")
    net.run()
    assert sent(net) == ["d#d"]


def test_a_person_has_all_sent(net: PlanWorld) -> None:
    """With force; a retry of what failed sends what is owed."""
    build(net).put("d", text="a b")
    net.run()
    sent(net)
    net.retry(force=True)
    net.run()
    assert sent(net) == ["d#a", "d#b"]


def test_what_was_taken_out_is_sent_when_it_comes_back(net: PlanWorld) -> None:
    """The child, and the whole document."""
    build(net).put("d", text="a b")
    net.run()
    net.put("d", text="a")
    net.run()
    sent(net)
    net.put("d", text="a b")
    net.run()
    assert sent(net) == ["d#b"]
    net.drop("d")
    net.run()
    assert sent(net) == ["-d#a", "-d#b"]
    net.put("d", text="a b")
    net.run()
    assert sent(net) == ["d#a", "d#b"]


def test_where_a_destination_keeps_what_is_gone_it_is_still_there(net: PlanWorld) -> None:
    build(net, deletes=False).put("d", text="a b")
    net.run()
    net.put("d", text="a")
    net.run()
    sent(net)
    net.put("d", text="a b")
    net.run()
    assert sent(net) == []
    assert net.counts("out") == {"delivered": 2}


@pytest.mark.rule("child.unchanged")
def test_several_ways_to_one_place_are_all_gone(net: PlanWorld) -> None:
    """The last to arrive is what is there: each goes again, as without the mark."""
    fork = net.source().step("words", words).route("twice", Duplicate())
    left = fork.step("left", lambda doc: doc)
    right = fork.step("right", lambda doc: doc)
    net.plan.destination("out", net.out("out"), after=[left, right], backoff=0)
    net.put("d", text="a b")
    net.run()
    sent(net)
    net.put("d", text="a b c")
    net.run()
    assert sent(net) == ["d#a", "d#a", "d#b", "d#b", "d#c", "d#c"]


def test_a_step_that_failed_sends_what_it_owes(net: PlanWorld) -> None:
    """The children that were there are, once the retry has made them, and none of them twice."""
    broken: list[str] = []

    def moody(doc: Document) -> Document:
        if doc.id in broken:
            broken.remove(doc.id)
            raise TransientError("not yet")
        return doc

    net.source().step("words", words).step("moody", moody).destination("out", net.out("out"), backoff=0)
    net.put("d", text="a b")
    net.run()
    sent(net)
    broken += ["d#a", "d#new"]
    net.put("d", text="a b new")
    assert net.run().exit == 0
    assert sent(net) == ["d#a", "d#new"]
    assert net.counts("out") == {"delivered": 3}


def test_in_careful_mode_too(net: PlanWorld) -> None:
    """A killer beside it; what a child process says is what is staged."""

    def killer(doc: Document) -> Document:
        if doc.id == "killer":
            os.abort()
        return doc

    net.source().step("killer", killer).step("words", words).destination("out", net.out("out"), backoff=0)
    net.put("d", text="a b")
    net.run(runner=InProcess(fork=True, failures=1))
    sent(net)
    net.put("d", text="a b c")
    net.put("killer", text="x")
    assert net.run(runner=InProcess(fork=True, failures=1)).exit == 3
    assert sent(net) == ["d#c"]


def test_a_preview_says_so(net: PlanWorld) -> None:
    build(net).put("d", text="a b")
    net.run()
    net.put("d", text="a b c")
    found = previewed(net.plan, net.state).destinations["out"]
    assert [row["document"] for row in found.gets] == ["d#c"]
    assert [(row["document"], row["status"]) for row in found.dropped] == [("d#a", "INDEXED"), ("d#b", "INDEXED")]


def test_parts_of_a_text_that_were_not_changed_are_not_sent(net: PlanWorld) -> None:
    """``split_text(key="content")``: a paragraph in the middle is one delivery; with numbers each that follows is."""
    net.source().step("split", steps.split_text(key="content")).destination("out", net.out("out"), backoff=0)
    net.put("d", text="one\n\ntwo\n\nthree")
    net.run()
    assert len(sent(net)) == 3
    net.put("d", text="one\n\nnew\n\ntwo\n\nthree")
    net.run()
    assert len(sent(net)) == 1


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 2 else [pytest.mark.slow]) for n in range(25)])
def test_the_destination_has_what_it_would_have_had(seed: int) -> None:
    """Whatever changed, failed and was asked for in between: in the end all that is there is what the documents say."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        net = build(PlanWorld.empty(Path(folder)), attempts=2)
        texts: dict[str, str] = {}
        for _ in range(8):
            for id in chance.sample("xyz", chance.randint(0, 3)):
                if chance.random() < 0.2:
                    texts.pop(id, None)
                    net.drop(id)
                else:
                    names = chance.sample("abcd", chance.randint(0, 4))
                    texts[id] = " ".join(f"{name}={chance.randint(0, 1)}" for name in names)
                    net.put(id, text=texts[id])
            moods = {f"{id}#{name}": chance.random() for id in "xyz" for name in "abcd"}
            net.out("out").answer = lambda d, moods=moods: (
                busy(d)
                if moods[d.id] < 0.15
                else Outcome.permanent("no")
                if moods[d.id] < 0.25
                else Outcome.unavailable("down")
                if moods[d.id] < 0.3
                else Outcome.ok()
            )
            if net.root.exists() and chance.random() < 0.2:
                net.retry(force=chance.random() < 0.5)
            net.run(wait=0)
        net.out("out").answer = None
        net.run()
        net.retry()
        assert net.run().exit == 0
        held: dict[str, str] = {}
        for line in sorted(net.out("out").lines(), key=lambda line: line["seq"]):
            if line["said"] == "ok":
                held.pop(line["id"], None) if line["op"] == "delete" else held.update({line["id"]: line["text"]})
        assert held == {
            f"{id}#{name}": value for id, text in texts.items() for name, value in (w.split("=") for w in text.split())
        }
