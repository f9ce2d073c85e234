"""The how-to guides are true: their commands are run, and what they show is what comes."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cli.test_how_to import commands_of, is_shown
from tests.docs import quick_ferryman

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
DONE = "----done----"
PAGES = [
    "recover",
    "preview-a-plan",
    "route-and-duplicate",
    "make-children",
    "what-happens-when-it-fails",
    "change-a-plan",
    "index-lines-and-csv",
    "index-pdf-and-office-files",
    "split-text-for-rag",
]
"""Of which all commands are run, in one shell a page."""


class Shell:
    """One shell for all commands of a page; stdout and stderr in one stream, as on a terminal."""

    def __init__(self, folder: Path) -> None:
        command, server = folder / "bin" / "ferryman", folder / "server"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{quick_ferryman.__file__}" "{server}" "$@"\n')
        python = command.with_name("python3")
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for each in (command, python):
            each.chmod(0o755)
        self.folder = folder
        serve = f"from tests.docs.quick_ferryman import serve; serve({str(server)!r})"
        self._server = subprocess.Popen([sys.executable, "-c", serve], cwd=ROOT)
        until(server.exists)
        self._shell = subprocess.Popen(
            ["/bin/sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"},
        )

    def run(self, line: str) -> list[str]:
        """The lines that a command shows.

        Raises:
            AssertionError: it ended with another code than 0.
        """
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\necho {DONE} $?\n")
        stdin.flush()
        shown = list(self._until_done(stdout))
        assert shown.pop() == "0", f"{line}: {shown}"
        return shown

    def _until_done(self, stdout: IO[str]) -> Iterator[str]:
        for said in stdout:
            if said.startswith(DONE):
                yield said.split()[1]
                return
            yield said.rstrip("\n")

    def close(self) -> None:
        for process in (self._shell, self._server):
            process.kill()
            process.wait()


@pytest.fixture
def shell(place: Path) -> Iterator[Shell]:
    made = Shell(place)
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def is_held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return bool(lock.read_bytes())
        return False


FILE = r"`(?P<name>[\w.]+\.py)`[^`\n]*:\n\n```python\n(?P<text>.*?)^```"
COMMANDS = r"^```console\n(?P<commands>.*?)^```"


def parts(page: Path) -> Iterator[tuple[str, str]]:
    """What a page has one type, in its order: (name, text) of a file, ("", commands with what they show)."""
    for found in re.finditer(f"{FILE}|{COMMANDS}", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        yield (found["name"], found["text"]) if found["name"] else ("", found["commands"])


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_true(shell: Shell, name: str) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    page = HOW_TO / f"{name}.md"
    for file, text in parts(page):
        if file:
            (shell.folder / file).write_text(text)
            continue
        for line, shown in commands_of(text):
            came = shell.run(line)
            if line.endswith("&"):
                until(lambda: is_held(shell.folder / "notes/.ferryman/notes-v1/lock"))
            for wanted in shown:
                assert is_shown(wanted, came), f"{line}: no line {wanted!r} in:\n" + "\n".join(came)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_left_out(name: str) -> None:
    """Every command and every file of the page is found, so that it can be run."""
    text = (HOW_TO / f"{name}.md").read_text("utf-8")
    found = list(parts(HOW_TO / f"{name}.md"))

    assert text.count("```console\n") == sum(not file for file, _ in found)
    assert text.count("```python\n") == sum(bool(file) for file, _ in found)


def test_what_a_full_disk_says() -> None:
    """The page shows the very words."""
    import errno
    from types import SimpleNamespace

    from ferryman.engine.driving import plain_errors
    from ferryman.errors import EngineError

    state = SimpleNamespace(root="…/notes-v1", bytes_owed=lambda: 1234)
    with pytest.raises(EngineError) as caught, plain_errors(state):  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, "No space left on device")

    assert f"error: {caught.value}\n" in (HOW_TO / "recover.md").read_text("utf-8")
