"""``ferryman remembered``: what steps that remember have stored, and how to have it forgotten."""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import Json, StateDir, Verbose, argument, option, seconds
from ferryman.cli.terminal import format_time, print_json, print_line, print_table
from ferryman.errors import UsageError
from ferryman.limits import format_count, plural
from ferryman.observe import format_size

if TYPE_CHECKING:
    from ferryman.remembered.upkeep import StoreKeeper
    from ferryman.storage.files import StatePath

app = typer.Typer(
    name="remembered",
    help="Answers of steps that remember: list, show, forget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, argument("NAME", "The store: as `remembered list` says.")]


@app.command("list")
def list_stores(state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """List what is remembered, and what that saved.

    calls: inputs that a step was called for. remembered: inputs that were answered without a call. in doubt: calls
    that were made again because nobody knows what became of the one before. Dollars by the cost= that plans named.
    """
    from ferryman.remembered.bill import dollars
    from ferryman.remembered.upkeep import stores

    totals = [keeper.totals() for keeper in stores(folder_of_states(state))]
    if json:
        print_json([each._asdict() for each in totals])
    elif not totals:
        print_line("Nothing is remembered here.")
    else:
        print_table(
            ["name", "answers", "size", "calls", "remembered", "in doubt", "spent", "saved"],
            [
                [
                    each.name,
                    format_count(each.answers),
                    format_size(each.bytes),
                    format_count(each.calls),
                    format_count(each.hits),
                    format_count(each.in_doubt),
                    dollars(each.spent),
                    dollars(each.saved),
                ]
                for each in totals
            ],
        )


@app.command()
def show(name: Name, state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Show what a store has of each version: answers, refusals, dropped documents, and from when they are."""
    keeper = find_store(name, state)
    versions: dict[str, dict[str, Any]] = defaultdict(lambda: {"written": 0, "refused": 0, "dropped": 0})
    for row in keeper.rows():
        found = versions[row.version]
        found[row.answer.kind] += 1
        found["oldest"] = min(found.get("oldest", row.answer.created), row.answer.created)
        found["newest"] = max(found.get("newest", row.answer.created), row.answer.created)
    for found in versions.values():
        found |= {key: _time(found[key]) for key in ("oldest", "newest")}
    if json:
        print_json({**keeper.totals()._asdict(), "versions": versions})
        return
    totals = keeper.totals()
    print_line(
        f"{name}: {plural(totals.answers, 'answer', 'answers')}, {format_size(totals.bytes)}, in {keeper.folder}"
    )
    columns = ("version", "written", "refused", "dropped", "oldest", "newest")
    print_table(columns, [(version, *(found[c] for c in columns[1:])) for version, found in sorted(versions.items())])


@app.command()
def forget(
    name: Name,
    version: Annotated[str | None, option("--version", "V", "Only answers of this version.")] = None,
    older: Annotated[str | None, option("--older", "TIME", "Only older ones: 90d, 12h.")] = None,
    document: Annotated[
        str | None, option("--document", "ID", "Only what this document used, also a deleted one.")
    ] = None,
    file: Annotated[Path | None, option("--input", "FILE", "Only this input: fields in JSON, or a content.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Forget answers: their inputs are called for again when a document needs them.

    Takes effect at once, also for a run. An answer that several documents share is forgotten for all of them. With
    several options, what fits all of them. What is forgotten is removed from the files, but for what a run has in
    hand: that goes when its wave is settled.
    """
    if not everything and version is None and older is None and document is None and file is None:
        raise UsageError("Say what to forget: --version, --older, --document, --input, or --all.")
    keeper = find_store(name, state)
    wanted = [keeper.keys_of_documents([document])] if document is not None else []
    if file is not None:
        wanted.append(keeper.keys_of_input(*_read_input(file)))
    if version is not None or older is not None or not wanted:
        age_s = seconds("--older", older)
        before = None if age_s is None else time.time_ns() // 1000 - int(age_s * 1e6)
        wanted.append(keeper.keys_where(version, before))
    forgotten = keeper.forget(set.intersection(*wanted))
    removed = keeper.remove_forgotten()
    if json:
        print_json({"forgotten": forgotten, "removed": removed})
    elif not forgotten:
        print_line("Nothing matches: nothing was forgotten.")
    else:
        later = "" if removed else " What an active run is using is removed when its wave is settled."
        print_line(f"{plural(forgotten, 'answer', 'answers')} forgotten.{later}")


def folder_of_states(state: str | None) -> StatePath:
    """Return the folder of states; default: ``.ferryman`` in the current folder."""
    from ferryman.storage.files import path_of

    return path_of(Path(".ferryman") if state is None else state)


def find_store(name: str, state: str | None) -> StoreKeeper:
    """Return the store of this name.

    Raises:
        UsageError: there is none.
    """
    from ferryman.remembered.upkeep import stores

    folder = folder_of_states(state)
    found = {keeper.folder.name: keeper for keeper in stores(folder)}
    if name not in found:
        known = f"It has: {', '.join(found)}." if found else "Nothing is remembered there. Give another --state."
        raise UsageError(f"{folder}: nothing is remembered under the name {name}. {known}")
    return found[name]


def _read_input(file: Path) -> tuple[dict[str, Any], bytes | None]:
    """Return the fields or the content of an input that was written to a file."""
    import msgspec

    try:
        content = file.read_bytes()
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror}. Give a file with the input.") from e
    try:
        return msgspec.json.decode(content, type=dict[str, Any]), None
    except msgspec.DecodeError:
        return {}, content


def _time(us: int) -> str:
    return format_time(dt.datetime.fromtimestamp(us / 1e6, dt.UTC))
