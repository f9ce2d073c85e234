"""A plan's picture with counts: ``status --svg``, ``plan show --format svg --counts``, and in a notebook."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ferryman import Document, Plan
from ferryman.cli.app import start
from ferryman.destinations import Null
from ferryman.errors import PermanentError
from ferryman.plan import picture
from ferryman.sources import Memory
from tests.support.plan_world import run_plan

SVG = "{http://www.w3.org/2000/svg}"
PLAN = """
from tests.cli.test_svg import plan_of

plan = plan_of()
"""


def choose(doc: Document) -> Document | None:
    """Three ways."""
    number = int(doc.id)
    if number % 4 == 0:
        raise PermanentError("no")
    return doc if number % 4 < 3 else None


def plan_of() -> Plan:
    plan = Plan("shapes", version=1)
    documents = [{"id": str(n), "raw": b"x"} for n in range(2000)]
    plan.source("docs", Memory(documents)).step("choose", choose).destination("out", Null())
    return plan


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    (tmp_path / "plan.py").write_text(PLAN)
    return str(tmp_path / "plan.py")


def counts_in(drawn: str) -> dict[str, list[str]]:
    """Node -> its counts; "" -> below the title."""
    root = ElementTree.fromstring(drawn)
    found = {}
    for group in root.iter(f"{SVG}g"):
        if "node" in group.get("class", "").split():
            texts = {(t.get("class") or ""): t.text or "" for t in group.iter(f"{SVG}text")}
            found[texts["name"]] = [texts[look] for look in ("count", "count bad") if look in texts]
    return found


@pytest.mark.rule("plan.counts")
def test_status_draws_the_counts(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each source, destination and step."""
    run_plan(plan_of(), tmp_path / ".ferryman")
    drawn = tmp_path / "plan.svg"
    assert start(["status", plan_file, "--svg", str(drawn)]) == 0
    assert counts_in(drawn.read_text("ascii")) == {
        "docs": ["2 000 documents"],
        "choose": ["500 dropped", "500 rejected"],
        "out": ["1 000 delivered, 500 dropped", "500 rejected"],
    }
    assert "1 wave, balanced" in drawn.read_text("ascii")
    capsys.readouterr()
    assert start(["plan", "show", plan_file, "--format", "svg", "--counts"]) == 0
    assert capsys.readouterr().out == drawn.read_text("ascii")


def test_before_anything_has_run(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The picture says so."""
    assert start(["plan", "show", plan_file, "--format", "svg", "--counts"]) == 0
    assert "nothing has run yet" in capsys.readouterr().out


def test_counts_are_for_svg(plan_file: str) -> None:
    """A tree of lines has no room for them."""
    assert start(["plan", "show", plan_file, "--counts"]) == 2


def test_a_notebook_shows_the_plan() -> None:
    """As its picture."""
    plan = plan_of()
    assert plan._repr_svg_() == picture.svg(plan)
    assert counts_in(plan._repr_svg_()) == {"docs": [], "choose": [], "out": []}


def test_counts_stay_in_their_box() -> None:
    """However long they are."""
    plan = plan_of()
    long = picture.BoxCounts("1 000 000 000 delivered, 1 000 000 000 deleted, 1 000 000 dropped", "1 failed")
    root = ElementTree.fromstring(picture.svg(plan, {"out": long}))
    [box] = [g for g in root.iter(f"{SVG}g") if "destination" in g.get("class", "") and "node" in g.get("class", "")]
    shape = next(e for e in box if e.get("class") == "shape")
    top, height = float(shape.get("y", 0)), float(shape.get("height", 0))
    assert all(top < float(t.get("y", 0)) < top + height for t in box.iter(f"{SVG}text"))
    assert float(shape.get("width", 0)) > picture.drawing.text_width(long.good, 11.5)  # type: ignore[attr-defined]
