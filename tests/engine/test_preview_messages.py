"""What a preview tells of that a run would tell of: deletes that wait, a changed plan, documents that kill."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.engine.migration import migrate
from ferryman.engine.preview import Preview
from ferryman.errors import StateForeign
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld
from tests.support.previewed import previewed
from tests.support.previewing import filled, ids, look, moody, with_reasons
from tests.support.snapshot import snapshot


def test_too_many_deletes_are_told(net: PlanWorld) -> None:
    """A run would say the same, and not delete them."""
    net.source(max_deleted=0.5).destination("out", net.out("out"))
    net.put("a", "b", "c")
    net.run()
    net.drop("a", "b")
    found = look(net)
    [told] = found.messages
    assert told.startswith("source docs: 2 of 3 documents are missing, more than max_deleted=0.5 allows.")
    assert with_reasons(found) == {}


def test_a_changed_plan_is_told_and_shown(net: PlanWorld) -> None:
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


def test_a_state_that_a_new_version_took_over_is_refused(net: PlanWorld) -> None:
    """As a run would refuse it. What the new version would do is shown; that it does more at first is told."""
    net.source().destination("out", net.out("out"))
    net.put("a")
    net.run()
    net.plan.freeze()
    newer = Plan("network", version=2)
    newer.source("docs", Memory(net.documents)).destination("out", net.out("out"))
    newer.freeze()
    migrate(net.root.with_name(newer.key), newer, 1)
    before = snapshot(net.folder)
    with pytest.raises(StateForeign, match="version 2 of this plan continues from this state"):
        look(net)
    found = previewed(newer, net.state)
    assert ids(found) == []
    assert found.messages[0].startswith("The run first migrates the state of an older version.")
    assert snapshot(net.folder) == before


class Half(Memory):
    """Its second half cannot be listed."""

    def listing(self, piece: Any) -> Iterator[Any]:
        yield from super().listing(piece)
        raise OSError("the line went dead")


def test_an_incomplete_listing_is_told(trial: PlanWorld) -> None:
    """Nothing of it is deleted."""
    trial.put("a", "b")
    trial.run()
    trial.build(source=Half([{"id": "c"}]))
    found = previewed(trial.plan, trial.state)
    assert (found.complete, with_reasons(found)) == (False, {"c": "new"})
    message = found.messages[0]
    assert message.startswith("source docs: incomplete listing, nothing of it is deleted: ")


def test_duplicate_ids_are_told(trial: PlanWorld) -> None:
    trial.documents += [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    found = previewed(trial.plan, trial.state)
    assert found.messages == ["source docs: 1 duplicate ids, the last of each is kept: a"]
    assert [row["fields"] for row in found.destinations["out"].gets] == [{"n": 2}]


def killer(doc: Document) -> Document:
    if doc.id == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return doc


@pytest.mark.parametrize("document", [None, "3"])
def test_a_document_that_kills_is_named(net: PlanWorld, document: str | None) -> None:
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


def test_what_is_no_text_has_a_size(net: PlanWorld) -> None:
    """Bytes that are not UTF-8 are not shown."""
    net.source().destination("out", net.out("out"))
    net.documents.append({"id": "a", "raw": b"\xff\xfe", "n": 1})
    net.documents.append({"id": "b"})
    assert [(r["text"], r["bytes"], r["fields"]) for r in look(net).destinations["out"].gets] == [
        (None, 2, {"n": 1}),
        (None, None, {}),
    ]


def test_it_can_be_written_as_json(net: PlanWorld) -> None:
    """``as_dict`` has the fields' names."""
    filled(net)
    found = look(net)
    assert list(found.as_dict()) == [f.name for f in dataclasses.fields(Preview)]
    columns = {"gets", "dropped", "refused", "errors", "waiting", "uncalled"}
    assert set(found.as_dict()["destinations"]["out"]) == columns
