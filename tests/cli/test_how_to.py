"""The how-to guides are true: their commands are run, and what they show is what comes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def console(page: Path) -> list[tuple[str, list[str]]]:
    """(command, shown lines of its output), in order."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [command for block in blocks for command in commands_of(block)]


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """(command, shown lines of its output) of one block."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def is_shown(wanted: str, lines: list[str]) -> bool:
    """Is there a line like this? ``...`` stands for anything."""
    pattern = re.compile(".*".join(map(re.escape, wanted.split("..."))))
    return any(pattern.fullmatch(line) for line in lines)


@pytest.mark.spark
def test_index_a_folder(tmp_path: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    command = tmp_path / "bin" / "ferryman"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ferryman.cli "$@"\n')
    command.chmod(0o755)
    commands = console(HOW_TO / "index-a-folder.md")
    assert len(commands) > 10

    for line, shown in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"},
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        for wanted in shown:
            assert is_shown(wanted, done.stdout.splitlines()), f"{line}: no line {wanted!r} in:\n{done.stdout}"
