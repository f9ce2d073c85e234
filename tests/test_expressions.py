"""Regular expressions of the package take linear time, whatever text they meet.

The expressions are found in the code. Hostile texts are made of each one: what its repeated parts match, many times,
behind what leads to them, and followed by what it does not match. Four times as much text may take eight times as long;
a quadratic expression takes sixteen times, an exponential one never ends.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import pytest

import ferryman

PACKAGE = Path(ferryman.__file__).parent
METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")

BOUNDED = {
    "steps/formats/__init__.py:_REQUEST": 4096,
    "steps/formats/markup.py:_STATED_CHARSET": 4096,
    "steps/formats/markup.py:_UNMARKED": 1024,
}
"""Expressions that only ever meet the first so many characters of a text."""


class Expression(NamedTuple):
    """A regular expression of the package, where it is, and the methods that are called on it."""

    name: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


def expressions() -> Iterator[Expression]:
    """Yield every expression that the code compiles or uses, but those made of what a user gives."""
    for path in sorted(PACKAGE.rglob("*.py")):
        code = path.read_text()
        if not re.search(r"\bre\.[a-z]", code):  # to parse the others takes seconds
            continue
        nodes = [*ast.walk(ast.parse(code))]
        names = {
            call: target.id
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign) and (call := node.value) is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        uses: dict[str, set[str]] = {}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
                uses.setdefault(node.value.id, set()).add(node.attr)
        for node in nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
                continue
            if node.func.attr not in (*METHODS, "compile"):
                continue
            name = names.get(node) or f"line {node.lineno}"
            pattern = compiled(path, node)
            if pattern is not None:
                used = uses.get(name, {"search"}) if node.func.attr == "compile" else {node.func.attr}
                yield Expression(f"{path.relative_to(PACKAGE)}:{name}", pattern, frozenset(used))


def compiled(path: Path, call: ast.Call) -> re.Pattern[Any] | None:
    """Return the pattern of a call of ``re``; None if it is made of what a user gives."""
    module = ".".join(("ferryman", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    flags = next((keyword.value for keyword in call.keywords if keyword.arg == "flags"), None)
    at = 1 if call.func.attr == "compile" else 3 if call.func.attr == "sub" else 2  # type: ignore[attr-defined]
    if flags is None and len(call.args) > at:
        flags = call.args[at]
    try:
        scope = vars(importlib.import_module(module))
        pattern = eval(ast.unparse(call.args[0]), scope)
        return re.compile(pattern, eval(ast.unparse(flags), scope) if flags is not None else 0)
    except NameError:
        return None


ENDS = ("\x7f", "''\"\"<>")
"""What ends a hostile text: what hardly an expression names, and what those leave out that take all else."""

CANDIDATES = list(" a1\n\t\\\"'<-;A[(*:/.={\0")
CANDIDATES += [chr(code) for code in [*range(1, 256), 0xFDD3, 0xFDD6, 0xFDD9, 0x2028, 0x300, 0xFFFE, 0xD800]]


def tried(item: Any, state: Any) -> re.Pattern[str]:
    """Return a pattern of one item of a parsed expression."""
    return _compiler.compile(_parser.SubPattern(state, [item]), state.flags)  # type: ignore[no-any-return]


def sample(items: Any) -> str:
    """Return a short text that the items of a parsed expression match."""
    text = ""
    for op, value in items:
        if op is _constants.LITERAL:
            text += chr(value)
        elif op in (_constants.IN, _constants.NOT_LITERAL, _constants.ANY):
            fits = tried((op, value), items.state)
            text += next((character for character in CANDIDATES if fits.fullmatch(character)), "")
        elif op in REPEATS:
            text += sample(value[2]) * max(value[0], 1)
        elif op is _constants.SUBPATTERN:
            text += sample(value[3])
        elif op is _constants.BRANCH:
            text += sample(value[1][0])
        elif op is _constants.ATOMIC_GROUP:
            text += sample(value)
    return text


REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def hostile(items: Any, before: str = "", ends: tuple[str, ...] = ENDS) -> Iterator[tuple[str, str, str]]:
    """Yield what begins a hostile text, what it repeats, and what ends it: one of ``ends``."""
    for at, (op, value) in enumerate(items):
        if op in REPEATS:
            least, most, body = value
            if most > 100:
                fits = _compiler.compile(body, items.state.flags)
                for fill in {*[c for c in CANDIDATES[:21] if fits.fullmatch(c)][:3], sample(body)} - {""}:
                    for end in ends:
                        yield before, fill, end
                        if before:
                            yield "", before + fill, end
            yield from hostile(body, before, ends)
            before += sample(body) * max(least, 1)
        elif op is _constants.SUBPATTERN:
            yield from hostile(value[3], before, ends)
            before += sample(value[3])
        elif op is _constants.ATOMIC_GROUP:
            yield from hostile(value, before, ends)
            before += sample(value)
        elif op is _constants.BRANCH:
            for branch in value[1]:
                yield from hostile(branch, before, ends)
            before += sample(value[1][0])
        else:
            before += sample(_parser.SubPattern(items.state, [items[at]]))


def seconds(expression: Expression, text: Any) -> float:
    """Return how long the methods that are called on an expression take."""
    start = time.thread_time()
    for method in sorted(expression.methods & {"match", "fullmatch", "search"}):
        getattr(expression.pattern, method)(text)
    if expression.methods - {"match", "fullmatch", "search"}:
        sum(1 for _ in expression.pattern.finditer(text))
    return time.thread_time() - start


FOUND = list(expressions())
SIZES = (16, 24, 32, 40, 48, 64, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 20)
NOTICED_S = 0.02
"""Time below which the clock and the machine say more than the expression."""


def test_every_expression_is_found() -> None:
    """Those that are read from the code are those that are there."""
    names = {each.name for each in FOUND}
    assert len(FOUND) > 100
    assert {"steps/formats/__init__.py:_HTML", "steps/formats/rtf.py:_TOKEN", "sources/globs.py:_BRACES"} <= names
    assert set(BOUNDED) <= names


@pytest.mark.parametrize("expression", FOUND, ids=[each.name for each in FOUND])
def test_expressions_take_linear_time(expression: Expression) -> None:
    pattern = expression.pattern
    parsed = _parser.parse(pattern.pattern, pattern.flags)
    most = BOUNDED.get(expression.name, SIZES[-1])
    ends = ENDS if "[^" in str(pattern.pattern) else ENDS[:1]
    for before, body, after in dict.fromkeys(hostile(parsed, ends=ends)):
        previous: tuple[int, float] | None = None
        for size in (size for size in SIZES if size <= most):
            text: Any = before + body * (size // len(body)) + after
            if isinstance(pattern.pattern, bytes):
                text = text.encode("latin-1", "replace")
            took = seconds(expression, text)
            if previous is not None and took > NOTICED_S:
                grown = size / previous[0]
                # between linear and quadratic: a repeated group takes memory, whose pages are slow at first
                allowed = grown**1.75 * max(previous[1], NOTICED_S / grown)
                if took > allowed:  # perhaps the machine was busy
                    took = min(took, seconds(expression, text), seconds(expression, text))
                assert took <= allowed, f"{expression.name}: {before!r}, {body!r} * n: {previous} -> {(size, took)}"
            previous = (size, took)


@pytest.mark.parametrize("pattern", [r"(a|aa)*b", r"\s*;", r"<!--.*?-->x", r"(?:\s|<!--.*?-->)*<html", r"\[[^\]]*\]"])
def test_the_test_finds_what_runs_away(pattern: str) -> None:
    """So that it can fail."""
    runaway = Expression("it", re.compile(pattern, re.DOTALL), frozenset({"search"}))
    with pytest.raises(AssertionError):
        test_expressions_take_linear_time(runaway)
