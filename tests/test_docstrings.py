"""What a docstring lists is there: a parameter that was renamed is renamed in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def listed(text: str, section: str) -> list[str]:
    """The names in a section of a docstring: ``a, b: what they are``."""
    found = re.search(rf"^{section}:\n((?:[ ]+.*\n|\n)*)", text + "\n", re.MULTILINE)
    entries = re.findall(r"^    (\*{0,2}\w[\w, *]*):", found[1], re.MULTILINE) if found else []
    return [name.strip(" *") for entry in entries for name in entry.split(",")]


def parameters(node: ast.AST) -> set[str]:
    """Of a function, or of what makes an object of a class."""
    if isinstance(node, ast.ClassDef):
        made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        return fields.union(*map(parameters, made))
    assert isinstance(node, ast.FunctionDef)
    a = node.args
    return {each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if each is not None}


def missing() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                wrong = set(listed(text, "Args")) - parameters(node)
                yield from (f"{path.relative_to(SOURCE)}: {node.name}: {name}" for name in sorted(wrong))


def test_every_argument_that_is_described_exists() -> None:
    assert list(missing()) == []


def test_the_reading_of_docstrings() -> None:
    text = "It does.\n\nArgs:\n    one: first\n        second: line\n    two, *three: more\n\nRaises:\n    four: no"
    assert listed(text, "Args") == ["one", "two", "three"]
