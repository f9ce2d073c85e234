"""`ferryman deliveries --family`, `--incomplete` and `history` say whether a file is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.errors import UsageError
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from tests.support.plan_world import run_plan

PLAN = """
    from ferryman import Plan
    from ferryman.destinations import Destination, Effect, Outcome
    from ferryman.errors import BadDocument
    from ferryman.sources import Csv

    def priced(doc):
        if doc["name"] == "priceless":
            raise BadDocument("it has no price")
        return doc

    class Shop(Destination):
        effect = Effect.IDEMPOTENT

        def write(self, chunk):
            return [self.answer(d.fields["name"]) for d in chunk]

        def answer(self, name):
            match name:
                case "later":
                    return Outcome.transient("the shop is closed")
                case "never":
                    return Outcome.permanent("not sold here")
            return Outcome.ok()

    plan = Plan("goods", version=1)
    plan.source("rows", Csv("in")).step("priced", priced).destination("shop", Shop(), backoff=3600)
"""


@pytest.fixture
def plan_path(write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    write("in/whole.csv", "name\nhat\nshoe\n")
    write("in/part.csv", "name\nhat\nlater\nnever\n")
    path = write("plan.py", PLAN)
    monkeypatch.chdir(path.parent)
    plan: Plan = load_plan(str(path))
    run_plan(plan, path.parent / ".ferryman", wait=0)
    return path


def test_deliveries_of_a_family(ferryman: Callable[..., Any], plan_path: Path) -> None:
    """Its rows, then whether it is whole, and how the others are found."""
    whole = ferryman("deliveries", plan_path, "--family", "whole.csv")
    part = ferryman("deliveries", plan_path, "--family", "part.csv")

    assert whole.out.splitlines()[-1] == "whole.csv of source rows is complete: 2 of 2 deliveries have ended"
    assert "part.csv" not in whole.out
    assert "part.csv of source rows is incomplete: 2 of 3 deliveries have ended; 1 pending; 1 failed" in part.out
    assert f"Which are pending: ferryman deliveries {plan_path} --family part.csv --status pending" in part.out
    pending = ferryman("deliveries", plan_path, "--family", "part.csv", "--status", "pending", "--json")
    assert [row["document"] for row in json.loads(pending.out)] == ["part.csv#row=3"]


def test_incomplete(ferryman: Callable[..., Any], plan_path: Path) -> None:
    """Families of which something is pending; a script gets their counts."""
    expected = {
        "source": "rows",
        "family": "part.csv",
        "deliveries": 3,
        "ended": 2,
        "pending": 1,
        "in_doubt": 0,
        "failed": 1,
        "rejected": 0,
    }

    assert json.loads(ferryman("deliveries", plan_path, "--incomplete", "--json").out) == [expected]
    listed = ferryman("deliveries", plan_path, "--incomplete").out
    assert [line.split()[-1] for line in listed.splitlines()[:2]] == ["outcome", "incomplete"]
    assert "part.csv" in listed
    assert json.loads(ferryman("deliveries", plan_path, "--incomplete", "--family", "whole.csv", "--json").out) == []
    refused = ferryman("deliveries", plan_path, "--incomplete", "--status", "failed")
    assert (refused.code, refused.err) == (2, "error: --incomplete goes with --source and --family only.\n")


def test_families_that_ended_with_rejected_rows(ferryman: Callable[..., Any], plan_path: Path) -> None:
    """They are listed as ended, with both numbers, and with the commands that list each kind."""
    (plan_path.parent / "in" / "one.csv").write_text("name\nhat\npriceless\n")
    (plan_path.parent / "in" / "three.csv").write_text("name\nnever\npriceless\npriceless\n")
    run_plan(load_plan(str(plan_path)), plan_path.parent / ".ferryman", wait=0)

    listed = ferryman("deliveries", plan_path, "--incomplete").out
    assert re.search(r"^rows +one\.csv .* ended, 1 rejected$", listed, re.MULTILINE)
    assert re.search(r"^rows +three\.csv .* ended, 1 failed, 2 rejected$", listed, re.MULTILINE)
    one = ferryman("deliveries", plan_path, "--family", "one.csv").out
    assert "one.csv of source rows has ended, 1 rejected: 2 of 2 deliveries have ended" in one
    three = ferryman("deliveries", plan_path, "--family", "three.csv").out
    assert "three.csv of source rows has ended, 1 failed, 2 rejected: 3 of 3 deliveries have ended" in three
    assert f"Which are rejected: ferryman deliveries {plan_path} --family three.csv --status rejected" in three
    rejected = ferryman("deliveries", plan_path, "--family", "three.csv", "--status", "rejected", "--json").out
    assert [row["document"] for row in json.loads(rejected)] == ["three.csv#row=3", "three.csv#row=4"]


def test_history_has_pages(ferryman: Callable[..., Any], plan_path: Path) -> None:
    """The newest events, oldest first; the pages before them; all, for a script."""
    events = json.loads(ferryman("history", plan_path, "part.csv", "--json").out)
    assert len(events) == 3
    pages = [
        json.loads(ferryman("history", plan_path, "part.csv", "--json", "--limit", "2", "--page", page).out)
        for page in ("1", "2")
    ]
    assert pages == [events[1:], events[:1]]
    first, last = (ferryman("history", plan_path, "part.csv", "--limit", "2", "--page", page) for page in ("1", "2"))
    assert "There are earlier events: --page 2 shows them, --json all." in first.out + first.err
    assert "earlier events" not in last.out + last.err
    beyond = ferryman("history", plan_path, "part.csv", "--limit", "2", "--page", "3")
    assert (beyond.code, beyond.err) == (2, "error: part.csv: page 3 is empty: it has 3 events.\n")
    for command in (("history", plan_path, "part.csv", "--limit"), ("deliveries", plan_path, "--limit")):
        assert ferryman(*command, "9" * 20).code == 0, "a number that no query takes"
    assert "page 2147483647 is empty" in ferryman("history", plan_path, "part.csv", "--page", "9" * 20).err


def test_history_of_a_file_of_rows(ferryman: Callable[..., Any], plan_path: Path) -> None:
    """All events of its rows; of a row its own, and whether that is whole."""
    file = ferryman("history", plan_path, "part.csv")
    row = ferryman("history", plan_path, "part.csv#row=2")

    assert "part.csv of source rows is incomplete: 2 of 3" in file.out
    assert "part.csv#row=2 of source rows is complete: 1 of 1 delivery has ended" in row.out
    assert "part.csv#row=4" in file.out
    assert "part.csv#row=4" not in row.out


def test_from_python(plan_path: Path) -> None:
    """The same as of the command line."""
    plan = load_plan(str(plan_path))
    state = plan_path.parent / ".ferryman"

    assert [each["family"] for each in ferryman.deliveries(plan, state=state, incomplete=True)] == ["part.csv"]
    assert len(ferryman.deliveries(plan, state=state, family="part.csv")) == 3
    with pytest.raises(UsageError, match="goes with"):
        ferryman.deliveries(plan, state=state, incomplete=True, status="failed")
