"""The comparison: the README's table is the short form of the page's, where every cell has its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNKNOWN = "not documented"


def table(page: str) -> dict[str, dict[str, str]]:
    """Tool -> column -> cell, of the table that begins with Ferryman."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    [first] = [n for n, line in enumerate(lines) if re.match(r"\| \*{0,2}Ferryman\*{0,2} \|", line)]
    columns = [cell.strip() for cell in lines[first - 2].strip("|").split("|")]
    found = {}
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        name, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        found[name] = dict(zip(columns[1:], cells, strict=True))
    return found


SHORT, FULL = table("README.md"), table("docs/comparison.md")


def test_both_tables_have_the_same_tools_and_columns() -> None:
    assert {name: [*cells] for name, cells in SHORT.items()} == {name: [*cells] for name, cells in FULL.items()}
    assert len(FULL) == 7


@pytest.mark.parametrize("tool", FULL)
def test_every_cell_has_its_source(tool: str) -> None:
    """Or says that none was found; the README says so of the same cells."""
    for column, cell in FULL[tool].items():
        sourced = re.search(r"\]\((https://|[a-z/]+\.md)", cell) is not None
        assert sourced or cell == UNKNOWN, f"{tool}, {column}"
        assert (SHORT[tool][column] == UNKNOWN) == cell.startswith(UNKNOWN), f"{tool}, {column}"
