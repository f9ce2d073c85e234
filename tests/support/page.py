"""A page of docs/ is true: what it has one type is typed, and each line that it shows is a line of what comes."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self

from tests.support import quick_ferryman

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
DONE = "----done----"

FILE = r"`(?P<name>[\w.]+\.py)`[^`\n]*:\n\n```python\n(?P<text>.*?)^```"
COMMANDS = r"^```console\n(?P<commands>.*?)^```"


def parts(page: Path) -> Iterator[tuple[str, str]]:
    """What a page has one type, in its order: (name, text) of a file, ("", commands with what they show)."""
    for found in re.finditer(f"{FILE}|{COMMANDS}", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        yield (found["name"], found["text"]) if found["name"] else ("", found["commands"])


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


class Shell:
    """One shell for all commands of a page; stdout and stderr in one stream, as on a terminal.

    Args:
        folder: where it begins.
        replaced: what the page says -> what it is here (a port).
        python: arguments of the Python that is ``ferryman`` here.
    """

    def __init__(self, folder: Path, replaced: dict[str, str] | None = None, python: str = "-m ferryman.cli") -> None:
        self.folder = folder
        self.replaced = replaced or {}
        (folder / "bin").mkdir()
        self.add("ferryman", python)
        self.add("python", "")
        self.add("python3", "")
        self._shell = subprocess.Popen(
            ["/bin/sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        )

    def add(self, name: str, python: str) -> None:
        """A command of the shell: this Python with these arguments before the command's own."""
        command = self.folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {python} "$@"\n')
        command.chmod(0o755)

    def follow(self, page: Path) -> list[str]:
        """Type the whole page; all that it said.

        Raises:
            AssertionError: a command ended with another code than 0, or said something else than is shown.
        """
        said: list[str] = []
        for file, text in parts(page):
            if file:
                (self.folder / file).write_text(self._here(text))
                continue
            for line, shown in commands_of(self._here(text)):
                came = self.run(line)
                said += came
                if line.endswith("&"):
                    until(lambda: any(map(is_held, self.folder.glob("**/.ferryman/*/lock"))))
                elif line.startswith("kill "):  # who types the next line is slower than a process ends
                    until(lambda: not any(map(is_held, self.folder.glob("**/.ferryman/*/lock"))))
                for wanted in shown:
                    assert is_shown(wanted, came), f"{line}: no line {wanted!r} in:\n" + "\n".join(came)
        assert said, f"{page.name} has nothing to type"
        return said

    def run(self, line: str) -> list[str]:
        """The lines that a command shows.

        Raises:
            AssertionError: it ended with another code than 0.
        """
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\nprintf '\\n%s %s\\n' {DONE} $?\n")  # not all that is said ends with its line
        stdin.flush()
        shown = list(self._until_done(stdout))
        assert shown.pop() == "0", f"{line}: {shown}"
        return shown

    def _here(self, text: str) -> str:
        for there, here in self.replaced.items():
            text = text.replace(there, here)
        return text

    def _until_done(self, stdout: IO[str]) -> Iterator[str]:
        for said in stdout:
            if said.startswith(DONE):
                yield said.split()[1]
                return
            yield said.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.wait()


class QuickShell(Shell):
    """Its ``ferryman`` starts nothing and runs tasks in forked processes: see tests/support/quick_ferryman.py."""

    def __init__(self, folder: Path, replaced: dict[str, str] | None = None) -> None:
        replaced = {"starting Spark\n": "", **(replaced or {})}
        super().__init__(folder, replaced, f'-SE "{quick_ferryman.__file__}" "{_server()}"')


@functools.cache
def _server() -> Path:
    """One for all pages of this process: it loads for two seconds."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-pages-"))
    serve = f"from tests.support.quick_ferryman import serve; serve({str(folder / 'server')!r})"
    server = subprocess.Popen([sys.executable, "-c", serve], cwd=ROOT)

    def stop() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(stop)
    until(lambda: (folder / "server").exists() or server.poll() is not None)
    assert server.poll() is None, "it has ended: see what it wrote above"
    return folder / "server"


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def is_held(lock: Path) -> bool:
    """Does a driver that has written its name hold it?"""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return bool(lock.read_bytes())
        return False
