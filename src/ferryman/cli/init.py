"""``ferryman init``: a commented plan file to start from, and something to try it on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ferryman.cli.options import Verbose
from ferryman.cli.terminal import program, say
from ferryman.errors import UsageError

PLAN_NAME = "my-documents"
"""The name in ``init_plan.py``, replaced by the folder's."""

SAMPLES = {
    "kill-it.md": """# What happens after kill -9

Run the plan, kill it at any moment, run it again: every document arrives, and none arrives twice.
Ferryman commits what it is going to do before it sends anything, and records what arrived.
""",
    "change-it.md": """# Change this file

Write something here and run the plan again. Only this document is sent: the others are known to be unchanged.
Touching a file without changing it sends nothing: the content counts, not the date.
""",
    "notes/delete-it.txt": """Delete this file

Then run the plan again: the document is deleted from the index, too. If more than half of all files are missing,
nothing is deleted until you allow it.
""",
}
"""Files to try the plan on; each says what can be tried with it."""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="Where to put it; created if it does not exist.")
    ],
    verbose: Verbose = False,
) -> None:
    """Write a plan file to start from.

    It is commented, comes with a few sample documents, and runs as it is. This command says what to type next. It
    overwrites nothing: a plan.py that is there is an error, and a documents/ folder that is there is taken as it is.
    """
    file = directory / "plan.py"
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name a folder, or one that is not there yet.")
    if file.exists():
        raise UsageError(f"{file} already exists; nothing was written: name another folder, or move it away.")
    documents = directory / "documents"
    with_samples = not documents.exists()
    directory.mkdir(parents=True, exist_ok=True)
    if with_samples:
        for name, text in SAMPLES.items():
            _write(documents / name, text)
    _write(file, template().replace(f'"{PLAN_NAME}"', f'"{plan_name(directory)}"'))
    say(f"{file}: a plan that indexes the files of {documents}{' (3 samples)' if with_samples else ''}.")
    say("Next:")
    for words in (
        ["preview", str(file)],
        ["run", str(file)],
        ["search", str(directory / "index.db"), "kill"],
        ["status", str(file)],
    ):
        say(f"  {program()} {shlex.join(words)}")


def template() -> str:
    """The plan file, as it is written."""
    return Path(__file__).with_name("init_plan.py").read_text("utf-8")


def plan_name(directory: Path) -> str:
    """The folder's name as a plan's: letters, digits, ``_.-``, beginning with a letter."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", directory.resolve().name).strip("-.")
    return name if re.match(r"[A-Za-z]", name) else PLAN_NAME


def _write(path: Path, text: str) -> None:
    """A new file; one that is there is never touched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
