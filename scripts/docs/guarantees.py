"""Generate the rules of docs/reference/guarantees.md: every rule, and how many tests prove those of a topic.

Rules are data, in docs/reference/rules.toml. A test names the rules it proves, as in
``@pytest.mark.rule("router.no-branch")``. Test files are parsed, not imported.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scripts.docs.folding import fold

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "reference" / "rules.toml"


class Proof(NamedTuple):
    """A test that names rules."""

    path: str
    """Path from the repository's root."""
    name: str
    """``function``, ``Class`` or ``Class::function``."""
    rules: tuple[str, ...]
    marks: frozenset[str]
    """Names of the test's other markers."""


WHY = "why"
"""Key of a group's introduction, beside the ids of its rules."""


def groups() -> dict[str, dict[str, str]]:
    """Return heading -> id -> sentence, in the order of the file."""
    return {heading: {id: text for id, text in rules.items() if id != WHY} for heading, rules in _file().items()}


def introductions() -> dict[str, str]:
    """Return heading -> what its rules are for."""
    return {heading: rules[WHY] for heading, rules in _file().items()}


def _file() -> dict[str, dict[str, str]]:
    rules: dict[str, dict[str, str]] = tomllib.loads(RULES.read_text("utf-8"))
    return rules


@cache
def proofs() -> tuple[Proof, ...]:
    """Return every test that names a rule."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return tuple(proof for file in files for proof in proofs_in(file.read_text("utf-8"), _relative_path(file)))


def proofs_in(text: str, path: str) -> Iterator[Proof]:
    """Yield the marked tests of one file.

    Raises:
        ValueError: a marker is not on a function or class, or its ids are not string literals.
    """
    if "rule" not in text:
        return  # to parse all tests takes seconds
    tree = ast.parse(text)
    used = sum(_marker_name(node) == "rule" for node in ast.walk(tree))
    file_marks = {
        mark for node in tree.body if _sets_marks(node) for each in ast.walk(node) if (mark := _marker_name(each))
    }
    for name, node in _definitions(tree.body, ""):
        rules: list[str] = []
        marks = set(file_marks)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            mark = _marker_name(called)
            if mark == "rule":
                used -= 1
                rules += _ids(decorator, f"{path}::{name}")
            elif mark is not None:
                marks.add(mark)
        if rules:
            yield Proof(path, name, tuple(rules), frozenset(marks))
    if used:
        raise ValueError(f"{path}: a rule is named where no test begins: put the marker on a test")


def sections() -> str:
    """Return a section for each group: what its rules are for, and its rules, folded."""
    proved: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for proof in proofs():
        for rule in proof.rules:
            proved[rule].add((proof.path, proof.name))
    parts = []
    why = introductions()
    for heading, rules in groups().items():
        rows = [f"- `{rule}`: {sentence}" for rule, sentence in rules.items()]
        tests = len(set().union(*(proved[rule] for rule in rules)))
        parts += [f"## {heading}", why[heading], fold(f"{len(rules)} rules, {tests} tests", "\n".join(rows))]
    return "\n\n".join(parts)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(body: list[ast.stmt], above: str) -> Iterator[tuple[str, _Definition]]:
    for node in body:
        if isinstance(node, _Definition):
            yield above + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{above}{node.name}::")


def _sets_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _marker_name(node: ast.AST) -> str | None:
    """Return the X of ``pytest.mark.X``, else None."""
    return node.attr if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark" else None


def _ids(decorator: ast.expr, where: str) -> list[str]:
    given = decorator.args if isinstance(decorator, ast.Call) and not decorator.keywords else []
    ids = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if not ids or len(ids) < len(given):
        raise ValueError(f'{where}: name rules by their ids: @pytest.mark.rule("router.no-branch")')
    return ids


def _relative_path(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()
