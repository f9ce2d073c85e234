"""Why deliveries have not arrived, counted by reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman import Document, Dropped, PermanentError, Plan
from ferryman.cli.app import start
from ferryman.destinations import Null
from ferryman.errors import BadDocument, UsageError
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
