"""No message has a doubled full stop, although many quote another one, which may end in a stop of its own."""

from __future__ import annotations

import ast
import inspect
import io
import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from ferryman.cli import terminal
from ferryman.errors import FerrymanError, TransientError, message_of, single_stops
from ferryman.observe import Bar, JsonLog, LineProgress
from tests.support.source_code import nodes

ENDED = "the store is away. Run again."


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the package, with its module's name; in place of what an f-string inserts, a word."""
    for path, node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield path.name, node.value
        elif isinstance(node, ast.JoinedStr):
            words = (str(part.value) if isinstance(part, ast.Constant) else "word" for part in node.values)
            yield path.name, "".join(words)


def test_no_text_of_ours_has_one() -> None:
    assert [(name, text) for name, text in texts() if single_stops(text) != text] == []


def test_numbers_are_grouped_in_one_way() -> None:
    """Digits have spaces between their groups, everywhere; commas are only in amounts of money."""
    found = [
        path.name
        for path, node in nodes()
        if isinstance(node, ast.FormattedValue)
        and node.format_spec is not None
        and "," in ast.unparse(node.format_spec)
    ]
    assert sorted(found) == ["bill.py", "limits.py"]


def errors(base: type[FerrymanError] = FerrymanError) -> Iterator[type[FerrymanError]]:
    yield base
    for each in base.__subclasses__():
        if each.__module__.startswith("ferryman"):
            yield from errors(each)


def made(kind: type[FerrymanError]) -> FerrymanError:
    """An error of this kind, each of whose texts ends in a stop."""
    values: dict[Any, Any] = {int: 1, float: 1.0, bool: False}
    hints = typing.get_type_hints(kind.__init__)
    parameters = [each for each in inspect.signature(kind).parameters.values() if each.default is each.empty]
    if not [each for each in parameters if each.kind is not each.VAR_POSITIONAL]:
        return kind(f"{ENDED}. Nothing was done.")
    given = {}
    for each in parameters:
        hint = hints.get(each.name, str)
        given[each.name] = [ENDED] if typing.get_origin(hint) is list else values.get(hint, ENDED)
    return kind(**given)


KINDS = {each.__name__: each for each in errors()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_no_error_says_one(kind: type[FerrymanError]) -> None:
    """Whatever it quotes."""
    said = message_of(made(kind))
    assert said
    assert ".." not in said


def test_none_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, by each observer, in the log."""
    message = f"destination out: {ENDED}. Its documents are kept."
    stream, log, bar = io.StringIO(), io.StringIO(), io.StringIO()
    LineProgress(stream).message(message)
    JsonLog(log).message(message)
    with Progress(console=Console(file=bar, width=200)) as progress:
        Bar(progress).message(message)
    terminal.print_error(message)
    reported = [stream.getvalue(), json.loads(log.getvalue())["text"], bar.getvalue(), capsys.readouterr().err]
    assert all("Run again. Its documents are kept." in each for each in reported), reported


def test_other_dots_stay() -> None:
    for text in (
        "../a.. and b",
        "1..1000",
        "give a..b",
        'other than "." and ".."',
        "wait…",
        "a...",
        "..",
        "cd .. Then",
    ):
        assert single_stops(text) == text
    assert str(TransientError("asked again.. Every one. It ended..")) == "asked again. Every one. It ended."
    assert TransientError("ended..").why == "ended."
