"""Why deliveries have not arrived, counted by reason; and what was not read of those that have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman import Document, Dropped, PermanentError, Plan
from ferryman.cli.app import start
from ferryman.destinations import Memory as Sent
from ferryman.destinations import Null
from ferryman.errors import BadDocument, UsageError
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from tests.support.plan_world import run_plan

PLAN = """
from tests.account.test_reasons import plan_of

plan = plan_of()
"""


def moody(doc: Document) -> Document:
    """Fails in some ways; the words differ in numbers and in what they quote."""
    number = int(doc.id)
    if number < 10:
        raise BadDocument(f"{doc.id}: not UTF-8 at byte {number}")
    if number < 14:
        raise PermanentError(f"no field 'a{number * 'x'}'")
    if number < 16:
        return {}[doc.id]  # type: ignore[no-any-return]
    if number == 16:
        raise Dropped("a draft")
    return doc


def plan_of() -> Plan:
    plan = Plan("moods", version=1)
    documents: list[Any] = [{"id": f"{n:02}", "raw": b"text"} for n in range(20)]
    plan.source("docs", Memory(documents)).step("moody", moody).destination("out", Null(), attempts=1)
    return plan


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    run_plan(plan_of(), tmp_path, wait=0)
    return tmp_path


@pytest.mark.rule("account.reasons")
def test_reasons_are_counted(ran: Path) -> None:
    """The most frequent first, with an example; those that are delivered are not there."""
    found = ferryman.deliveries(plan_of(), state=ran, by="reason")
    assert [(each["deliveries"], each["status"], each["example"]) for each in found] == [
        (10, "rejected", "00"),
        (4, "rejected", "10"),
        (2, "failed", "14"),
        (1, "dropped", "16"),
    ]
    assert found[0]["reason"] == "not UTF-8 at byte 0"
    line = moody.__code__.co_firstlineno + 8
    assert found[2]["reason"] == f"step moody: KeyError: '14' ({__file__}:{line})"


def test_reasons_of_some(ran: Path) -> None:
    """Of a status; so many at most."""
    plan = plan_of()
    assert [each["deliveries"] for each in ferryman.deliveries(plan, state=ran, by="reason", status="failed")] == [2]
    assert [each["deliveries"] for each in ferryman.deliveries(plan, state=ran, by="reason", limit=1)] == [10]
    assert ferryman.deliveries(plan, state=ran, by="reason", destination="nowhere") == []


def test_by_another_word_is_refused(ran: Path) -> None:
    """So is what does not go together."""
    with pytest.raises(UsageError, match="give 'reason'"):
        ferryman.deliveries(plan_of(), state=ran, by="status")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="incomplete"):
        ferryman.deliveries(plan_of(), state=ran, by="reason", incomplete=True)


def test_the_command_line(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, and as JSON."""
    (ran / "plan.py").write_text(PLAN)
    asked = ["deliveries", str(ran / "plan.py"), "--state", str(ran), "--by", "reason"]
    assert start(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["deliveries", "status", "example", "reason"]
    assert lines[1].split()[:3] == ["10", "rejected", "00"]
    assert start([*asked, "--json", "--limit", "1"]) == 0
    [only] = json.loads(capsys.readouterr().out)
    assert only == {"status": "rejected", "deliveries": 10, "reason": "not UTF-8 at byte 0", "example": "00"}


def test_the_summary_shows_the_most_frequent(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of the newest, where there are many."""
    from ferryman.cli.run import print_summary
    from ferryman.engine.summary import Summary

    print_summary(Summary(exit=3, rejected=14, failed=2), ran / "moods-v1", plan_of(), "plan.py", None)
    out = capsys.readouterr().out
    assert "14 rejected:\n  10: not UTF-8 at byte 0 (one of them: 00)\n  4: step moody" in out
    assert "2 failed, the newest of them:" in out


def test_of_a_large_state_the_summary_shows_the_newest(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To count all reasons there takes seconds, and nobody asked."""
    from ferryman.cli.run import print_summary
    from ferryman.engine.summary import Summary
    from ferryman.state.state import COUNTED

    (ran / "moods-v1" / COUNTED).touch()
    print_summary(Summary(exit=3, rejected=14), ran / "moods-v1", plan_of(), "plan.py", None)
    assert "14 rejected, the newest of them:" in capsys.readouterr().out


# -- what was not read of what is delivered ---------------------------------------------------------------------


UNREAD_PLAN = PLAN.replace("plan_of", "unread_plan")

UNREAD: dict[str, Any] = {
    "a.docx": ["comments", "embedded files"],
    "b.docx": ["comments"],
    "c.pdf": None,
    "d.eml": 3,  # a field of this name that is another thing
    "e.eml": ["x" * 100],
    "f.eml": [],
}


def unread_plan(fields: Mapping[str, Any] = UNREAD) -> Plan:
    plan = Plan("unread", version=1)
    documents: list[Any] = [{"id": name, "raw": b"text", "unread": unread} for name, unread in fields.items()]
    docs = plan.source("docs", Memory(documents)).route("copies", Duplicate())
    docs.destination("out", Null())
    docs.destination("exactly", Sent(), guarantee="exactly-once")
    docs.destination("once", Null(), guarantee="at-most-once")
    return plan


@pytest.mark.rule("account.not-read")
def test_what_was_not_read_is_counted_under_each_guarantee(tmp_path: Path) -> None:
    """By the words in ``unread``; a field of this name that is something else is nobody's business."""
    plan = unread_plan()
    run_plan(plan, tmp_path, wait=0)
    for destination in ("out", "exactly", "once"):
        assert ferryman.deliveries(plan, state=tmp_path, by="unread", destination=destination) == [
            {"deliveries": 2, "unread": "comments", "example": "a.docx"},
            {"deliveries": 1, "unread": "embedded files", "example": "a.docx"},
        ]
    assert [each["deliveries"] for each in ferryman.deliveries(plan, state=tmp_path, by="unread")] == [6, 3]
    listed = {
        each["document"]: each["message"] for each in ferryman.deliveries(plan, state=tmp_path, destination="out")
    }
    assert listed == {
        **dict.fromkeys(UNREAD),
        "a.docx": "not read: comments, embedded files",
        "b.docx": "not read: comments",
    }
    assert ferryman.status(plan, state=tmp_path)["destinations"]["out"]["delivered"] == len(UNREAD)
    with pytest.raises(UsageError, match="leave the status out"):
        ferryman.deliveries(plan, state=tmp_path, by="unread", status="failed")


def test_what_is_read_by_now_is_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new version of the document counts; status names the command while there is any."""
    (tmp_path / "unread.py").write_text(UNREAD_PLAN)
    spec = f"{tmp_path / 'unread.py'}:plan"
    run_plan(unread_plan(), tmp_path / ".ferryman", wait=0)
    assert start(["status", spec]) == 0
    assert f"What was not read: ferryman deliveries {spec} --by unread" in capsys.readouterr().out
    assert start(["deliveries", spec, "--by", "unread", "--destination", "out"]) == 0
    assert re.search(r"\n +2 +comments +a\.docx\n +1 +embedded files +a\.docx\n", capsys.readouterr().out)
    assert start(["deliveries", spec, "--by", "unread", "--status", "failed"]) == 2
    run_plan(unread_plan(dict.fromkeys(UNREAD)), tmp_path / ".ferryman", wait=0)
    capsys.readouterr()
    assert start(["status", spec]) == 0
    assert "What was not read" not in capsys.readouterr().out
    assert start(["deliveries", spec, "--by", "unread"]) == 0
    assert "None: everything is read." in "".join(capsys.readouterr())
