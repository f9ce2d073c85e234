"""``ferryman demo``: real files, some of them broken on purpose, indexed and searched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import Conf, Master, Verbose, spark_settings
from ferryman.cli.search import found, show
from ferryman.cli.terminal import command, note, program, say
from ferryman.errors import UsageError
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.wave import Summary
    from ferryman.plan import Plan

SEARCHES = ("regular expression", "parse json")
SHOWN = 3
"""Hits told of each search."""
BROKEN = "broken"
"""Source (and folder) of the files that are broken on purpose."""


def demo(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Working directory.")] = Path("ferryman-demo"),
    master: Master = "local[*]",
    conf: Conf = None,
    verbose: Verbose = False,
) -> None:
    """Index and search Python's standard library.

    That of the Python which runs Ferryman, and a few files that are broken on purpose, go into a SQLite database.
    Ends with 0 when no other files than those were refused. Run it twice, kill it, change its plan: see what happens.
    """
    from ferryman.cli.run import carried
    from ferryman.plan.load import load_plan

    prepare(directory)
    file, state = directory / "plan.py", directory / "state"
    say(f"The plan is {file}: it indexes the standard library of this Python.")
    plan = load_plan(str(file))
    began = time.monotonic()
    root, summary = carried(
        plan,
        file.absolute(),
        str(state),
        verbose=verbose,
        master=master,
        conf=spark_settings(conf),
    )
    code = _told(summary, root, plan, time.monotonic() - began)
    _searched(directory / "index.db")
    _next(directory)
    raise typer.Exit(code)


def prepare(directory: Path) -> None:
    """The plan file and the broken files. What is there stays as it is.

    Raises:
        UsageError: the folder's name is taken by a file.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name another folder with --dir.")
    broken = directory / BROKEN
    if not broken.exists():
        (broken / "folder.txt").mkdir(parents=True)
        (broken / "folder.txt" / "inside.txt").write_text("This file is in order. Its folder is named like a file.\n")
        (broken / "empty.txt").touch()
        (broken / "undecodable.txt").write_bytes("This café is Latin-1, and not UTF-8.\n".encode("latin-1"))
        (broken / "dangling.txt").symlink_to("there-is-no-such-file.txt")
        (broken / "loop.txt").symlink_to("loop.txt")
    file = directory / "plan.py"
    text = Path(__file__).with_name("demo_plan.py").read_text("utf-8")
    if not file.exists():
        file.write_text(text, "utf-8")
    elif file.read_text("utf-8") != text:
        note(f"{file} has been changed: your version is run. Remove it to get the demo's version back.")


def _told(summary: Summary, root: StatePath, plan: Plan, seconds: float) -> int:
    """What was indexed and what was refused; the demo's exit code."""
    from ferryman import account
    from ferryman.observe.progress import plural

    if summary.waves:
        say(f"{plural(summary.delivered, 'document', 'documents')} delivered to the index in {seconds:.0f} s.")
    else:
        say("Nothing has changed since the last run: nothing was sent.")
    refused: list[dict[str, Any]] = account.deliveries(root, status="rejected", plan=plan)
    on_purpose = [row for row in refused if row["source"] == BROKEN]
    if on_purpose:
        say(f"{len(on_purpose)} files were rejected. They are broken on purpose; each is listed with its reason:")
    for row in on_purpose:
        say(f"  {row['document']}: {row['message'].removeprefix(row['document'] + ': ')}")
    for row in refused:
        if row["source"] != BROKEN:
            say(f"NOT EXPECTED: {row['document']} was rejected: {row['message']}")
    as_it_should = len(on_purpose) == len(refused) and not (summary.failed or summary.pending or summary.in_doubt)
    return 0 if as_it_should and summary.exit in (0, 3) else summary.exit


def _searched(index: Path) -> None:
    for text in SEARCHES:
        say()
        say(f"$ {program()} search {index} '{text}' --limit {SHOWN}")
        show(found(str(index), text, limit=SHOWN))


def _next(directory: Path) -> None:
    file, state, index = str(directory / "plan.py"), str(directory / "state"), directory / "index.db"
    where = f" --dir {directory}" if directory != Path("ferryman-demo") else ""
    demo_again = f"{program()} demo{where}"
    say()
    say("Try next:")
    say(f"  {program()} search {index} 'your words'")
    say(f"  {command('status', file, state=state)}")
    say(f"  {command('history', file, 'broken/undecodable.txt', state=state)}")
    say(f"  {demo_again}    # again: nothing has changed")
    say(f"  rm -r {directory}; {demo_again} & sleep 15; kill -9 $!; {demo_again}    # killed: nothing is lost")
