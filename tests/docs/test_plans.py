"""docs/reference/plan.md: its plan is the example's, its picture is the command's, and no finding is missing.

That the page shows what is said now is tested with all blocks.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.docs import blocks, plans

from ferryman.plan import check

PAGE = (blocks.DOCS / "reference" / "plan.md").read_text("utf-8")
NOT_BUILT = ("a source follows nothing", "the destination of errors follows nothing")
"""Findings of plans that nobody can write with ``Plan``, or with the sources that are shipped."""


@pytest.mark.parametrize("form", ["svg", "text", "mermaid"])
def test_the_picture_is_what_the_command_shows(form: str, tmp_path: Path) -> None:
    """From any folder: nothing in it depends on the machine."""
    done = subprocess.run(
        [sys.executable, "-m", "ferryman.cli", "plan", "show", plans.EXAMPLE, "--format", form],
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode("utf-8")
    if form == "svg":
        assert shown == (blocks.DOCS / "pictures" / "plan-plays.svg").read_text("utf-8")
    else:
        assert shown in PAGE


def test_the_example_is_in_order() -> None:
    """It can run; what it is warned of is what destinations without sequences are warned of."""
    warnings = plans.load_plan(str(plans.EXAMPLE)).check()

    assert all("does not compare sequences" in text for text in warnings)


@pytest.mark.parametrize("case", plans.FINDINGS, ids=lambda case: case.mistake)
def test_each_plan_makes_one_mistake(case: plans.Case) -> None:
    """The finding stands alone, and names what is to be changed."""
    assert len(plans.findings_of(case)) == 1


@pytest.mark.parametrize("case", plans.WARNINGS, ids=lambda case: case.mistake)
def test_each_plan_has_one_warning(case: plans.Case) -> None:
    """And can run."""
    assert len(plans.build(case.code).check()) == 1


def test_no_finding_is_missing() -> None:
    """Every text that plan/check.py can say is on the page, by its longest part that is always the same."""
    page = " ".join(PAGE.split())
    texts = [
        max((str(part.value) for part in node.values if isinstance(part, ast.Constant)), key=len, default="")
        for node in ast.walk(ast.parse(inspect.getsource(check)))
        if isinstance(node, ast.JoinedStr)
    ]
    said = [" ".join(text.split()) for text in texts if len(text) > 20]
    assert len(said) > 20

    missing = [text for text in said if text not in page and not any(part in text for part in NOT_BUILT)]
    assert not missing


def test_what_the_page_says_of_formats() -> None:
    """All that the command knows, and no others."""
    from ferryman.cli.plan import Format

    section = PAGE.partition("| `--format` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [known.value for known in Format]
