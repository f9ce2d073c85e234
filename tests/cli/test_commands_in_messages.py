"""Every command that a message prints can be typed as it is printed."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from typing import Any

from ferryman.cli.app import root_command
from ferryman.cli.terminal import complete_commands
from tests.support.source_code import PACKAGE, trees

COMMAND = re.compile(r"(?<!`)`ferryman ([^`]+)`(?!`)")
GIVEN = "given-by-the-message"
"""Stands for what a message puts into an f-string."""


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module; of an f-string, with ``GIVEN`` in its holes."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else GIVEN for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield re.sub(r"\{[a-z]+\}", GIVEN, node.value)


@functools.cache
def commands() -> list[str]:
    found = {
        (f"{path.relative_to(PACKAGE)}", " ".join(match[1].split()))
        for path, tree in trees().items()
        for text in texts_of(tree)
        for match in COMMAND.finditer(text)
    }
    return sorted(f"{name}: {command}" for name, command in found if not command.startswith("("))


def parse(words: list[str]) -> None:
    """Parse a command line as the command does. Raises what it would print."""
    command: Any = root_command()
    context: Any = None
    while True:
        context = command.make_context(words[0] if context else "ferryman", list(words[bool(context) :]), context)
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        assert words, "a group of commands, none of them named"
        _, command, _ = command.resolve_command(context, words)


def test_commands_were_found() -> None:
    assert len(commands()) > 20


def test_commands_in_messages_parse() -> None:
    refused = {}
    for where in commands():
        words = shlex.split(where.partition(": ")[2].replace("…", "").strip())
        try:
            parse([word.replace(GIVEN, "1") if word.startswith("--") else word for word in words])
        except Exception as e:
            refused[where] = e
    assert refused == {}


def test_a_plan_and_its_state_are_filled_in() -> None:
    """``PLAN`` of a message becomes what was typed, quoted for a shell."""
    text = "changed: run `ferryman retry PLAN --force`, then `ferryman fsck PLAN`; PLAN stays"
    assert complete_commands(text, "my plan.py", "s3://b/x y") == (
        "changed: run `ferryman retry 'my plan.py' --state 's3://b/x y' --force`, "
        "then `ferryman fsck 'my plan.py' --state 's3://b/x y'`; PLAN stays"
    )
    assert complete_commands(text, "plan.py", None).startswith("changed: run `ferryman retry plan.py --force`")
    assert complete_commands(text, None, None) == text
