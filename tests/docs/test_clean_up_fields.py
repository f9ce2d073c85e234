"""docs/how-to/clean-up-fields.md: its plan is run, and what it shows is what comes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account
from ferryman.destinations import Memory
from ferryman.state.state import state_root
from tests.support.plan_world import run_plan

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "clean-up-fields.md").read_text("utf-8")
BOOKS, MISTAKE, WEB, OWN = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REFUSED, SAID = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(text: str) -> dict[str, Any]:
    """What a block of the page defines."""
    made: dict[str, Any] = {"__name__": "clean_up_fields"}
    exec(compile(text, "clean-up-fields.md", "exec"), made)
    return made


def test_the_books_come_out_as_shown(place: Path) -> None:
    """Those that are delivered with their fields, the others with the reason."""
    plan = run(BOOKS)["plan"]
    Memory.clear("cards")
    run_plan(plan, place)

    [shown] = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert {d.id: d.fields for d in Memory.of("cards")} == json.loads(shown)
    rows = account.deliveries(state_root(plan, place))
    ended = [f"{r['status']}  {r['message']}" for r in rows if r["status"] != "INDEXED"]
    assert sorted(ended) == REFUSED.splitlines()


def test_a_mistake_is_told_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """By the plan file itself."""
    run(MISTAKE)

    assert capsys.readouterr().out == SAID


def test_the_other_plans_are_in_order() -> None:
    """The one that fetches can run; the step of one's own does what it says."""
    assert run(WEB)["plan"].check() == []

    assert run(OWN)["initials"](Document("i", author="Jane Austen"))["initials"] == "JA"
