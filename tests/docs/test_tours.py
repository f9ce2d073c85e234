"""The two tours of the code: each module, class and function that they name exists, and they fit on a page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ferryman"
TOURS = ("tour-of-a-document.md", "tour-of-a-message.md")
NAMED = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`")
PARTS = {path.stem for path in SOURCE.iterdir()}


def exists(name: str) -> bool:
    """Return whether this dotted name means something below the package, by its source alone."""
    parts, place = name.split("."), SOURCE
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if not parts:
        return True
    module = place / f"{parts.pop(0)}.py"
    if not module.exists():
        return False
    body: list[ast.stmt] = ast.parse(module.read_text("utf-8")).body
    for part in parts:
        found = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize("page", TOURS)
def test_everything_that_it_names_exists(page: str) -> None:
    """If this fails: the code has changed, and so has the life that the page tells."""
    names = NAMED.findall((ROOT / "docs" / page).read_text("utf-8"))
    named = [name for name in names if name.split(".")[0] in PARTS]
    assert len(named) > 20
    assert [name for name in named if not exists(name)] == []
    assert [name for name in names if name not in named] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert exists("engine.settle.settle")
    assert not exists("engine.settle.unsettle")
    assert not exists("engine.nowhere.settle")
    assert not exists("engine.run.Run.fly")


@pytest.mark.parametrize("page", TOURS)
def test_it_fits_on_a_page(page: str) -> None:
    words = (ROOT / "docs" / page).read_text("utf-8").split()
    assert len(words) <= 700
