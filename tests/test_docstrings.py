"""What a docstring lists is there: a parameter that was renamed is renamed in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source_code import PACKAGE, nodes, trees


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
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            wrong = set(listed(text, "Args")) - parameters(node)
            yield from (f"{path.relative_to(PACKAGE)}: {node.name}: {name}" for name in sorted(wrong))


def test_every_argument_that_is_described_exists() -> None:
    assert list(missing()) == []


def test_the_reading_of_docstrings() -> None:
    text = "It does.\n\nArgs:\n    one: first\n        second: line\n    two, *three: more\n\nRaises:\n    four: no"
    assert listed(text, "Args") == ["one", "two", "three"]


FIRST_WORDS = re.compile(r"(?:Of|What|The same|See|Those|Its|Is|As|So)\b")
"""A docstring that begins with one of these needs its name, or its neighbour, to be understood."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes and functions, and those below attributes and constants."""
    for node in ast.walk(tree):
        statements = getattr(node, "body", None)
        for i, each in enumerate(statements if isinstance(statements, list) else ()):
            text = each.value if isinstance(each, ast.Expr) else None
            documented = i == 0 or isinstance(statements[i - 1], ast.Assign | ast.AnnAssign)
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and documented:
                yield text


def test_a_docstring_stands_alone() -> None:
    """It begins with a verb or a noun."""
    assert [
        f"{path.relative_to(PACKAGE)}:{each.lineno}: {str(each.value).strip()[:60]}"
        for path, tree in trees().items()
        for each in docstrings(tree)
        if FIRST_WORDS.match(str(each.value).strip())
    ] == []


def test_docstrings_of_all_kinds_are_found() -> None:
    tree = ast.parse('"""One."""\nx = 1\n"""Two."""\nclass A:\n    """Three."""\n    def f(self):\n        """Four."""')
    assert [each.value for each in docstrings(tree)] == ["One.", "Two.", "Three.", "Four."]
