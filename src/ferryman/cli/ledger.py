"""``ferryman ledger export`` and ``ferryman import-jesterj``: the ledger in JesterJ's tables, and back."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose, load_with_state, option
from ferryman.cli.terminal import next_command, print_json, print_line, print_note
from ferryman.limits import format_count, plural

app = typer.Typer(
    name="ledger",
    help="The ledger for other programs: export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class LedgerFormat(enum.StrEnum):
    """Tables that the ledger can be written as."""

    JESTERJ = "jesterj"


@app.callback()
def _ledger() -> None:
    """Keep ``export`` a command of its own."""


@app.command("export")
def export(
    plan: PlanSpec,
    to: Annotated[
        str,
        option(
            "--to",
            "PLACE",
            "cassandra://[USER:PASSWORD@]HOST[:PORT][,HOST…]; FILE.db for SQLite; else a new folder for Parquet.",
        ),
    ],
    tables: Annotated[
        LedgerFormat, typer.Option("--format", help="The tables: those that JesterJ keeps.")
    ] = LedgerFormat.JESTERJ,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write the ledger into tables that other programs know.

    Into Cassandra: everything that is not there yet, from where the last export or run stopped; doing it again, or
    beside a run, changes nothing. Into a file: all of it, into a new one. Starts no Spark.

    Exit codes: 0 all is there; 4 Cassandra is away, or another process exports at this moment.
    """

    loaded, root = load_with_state(plan, state)
    if "://" in to:
        from ferryman.destinations.cassandra import Cassandra
        from ferryman.errors import TransientError, UsageError
        from ferryman.mirror.mirror import Mirror

        target = Cassandra.from_url(to)
        if target.keyspace is not None:
            raise UsageError(
                f"--to {target.target()}: leave the keyspace out: each source and destination has its own."
            )
        try:
            done = Mirror(root, loaded, target).catch_up()
        except (TransientError, ConnectionError) as e:
            print_note(f"{e} Run it again: it continues where it stopped.")
            raise typer.Exit(4) from None
        for each in done.refused:
            print_note(f"left out {each}")
        if json:
            print_json({"events": done.events, "documents": done.documents, "behind": done.behind})
        else:
            print_line(_sentence(done.events, done.documents, target.target()))
        if done.behind:
            print_note("Another process is exporting this state. Run this again if that one is killed.")
            raise typer.Exit(4)
        return
    from ferryman.mirror.files import export as export_file

    exported = export_file(root, loaded, Path(to))
    if json:
        print_json(exported._asdict())
    else:
        print_line(_sentence(exported.events, exported.documents, to))


def _sentence(events: int, documents: int, place: str) -> str:
    hashes = plural(documents, "hash of a document", "hashes of documents")
    return f"{plural(events, 'event', 'events')} and {hashes} written to {place}."


def _pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Parse ``["files=Scanner"]`` into a dict.

    Raises:
        UsageError: a text is not NAME=NAME.
    """
    from ferryman.errors import UsageError

    pairs = {}
    for text in texts or []:
        ours, equals, theirs = text.partition("=")
        if not ours or not equals or not theirs:
            raise UsageError(f"{option} {text}: give OURS=JESTERJS, as in {option} files=Scanner.")
        pairs[ours] = theirs
    return pairs


def import_jesterj(
    plan: PlanSpec,
    source: Annotated[
        str, option("--from", "URL", "The Cassandra that JesterJ wrote to: cassandra://[USER:PASSWORD@]HOST[:PORT].")
    ],
    plan_name: Annotated[str | None, option("--plan-name", "NAME", "The plan's name in JesterJ.")] = None,
    plan_version: Annotated[int | None, option("--plan-version", "N", "Its version in JesterJ.")] = None,
    scanner: Annotated[list[str] | None, option("--scanner", "SOURCE=NAME", "The name of a source's scanner.")] = None,
    step: Annotated[list[str] | None, option("--step", "DEST=NAME", "The output step of a destination.")] = None,
    strip: Annotated[
        str, option("--strip", "TEXT", "Beginning of JesterJ's ids that the plan's do not have: file:///data/corpus/.")
    ] = "",
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Take what JesterJ delivered for unchanged, also where nobody can tell."),
    ] = False,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Take over a plan that was run in JesterJ, so that the first run sends only what is not there.

    Makes the plan's state from JesterJ's tables, and reads the plan's sources once to see what has changed since.
    Stop JesterJ first. Nothing in Cassandra is changed. JesterJ's rows are gone after 90 days: what ended before is as
    good as new. Starts no Spark.
    """
    from ferryman.engine.jesterj import Names
    from ferryman.engine.jesterj import import_jesterj as import_state
    from ferryman.net.cassandra import CassandraServers

    if "://" not in source:
        from ferryman.errors import UsageError

        raise UsageError(
            f"--from {source}: give the URL of a running Cassandra. To read JesterJ's own data folder, copy it, start "
            "Cassandra 4.1 on the copy (it writes to the folder), and give cassandra://127.0.0.1."
        )
    loaded, root = load_with_state(plan, state)
    servers, _ = CassandraServers.from_url(source)
    names = Names(
        plan_name or loaded.name,
        loaded.version if plan_version is None else plan_version,
        _pairs(scanner, "--scanner"),
        _pairs(step, "--step"),
        strip,
    )
    found = import_state(loaded, root, servers, names, trust=trust)
    if json:
        print_json(found._asdict())
        return
    for number, what in (
        (found.unchanged, "have ended everywhere, and are not sent again"),
        (found.failed, "are failed or rejected, as they were in JesterJ"),
        (found.unfinished, "were not finished everywhere: the first run sends them there"),
        (found.changed, "were modified since, or nobody can tell: the first run sends them again (see --trust)"),
        (found.families, "have children, whose ids mean something else here: the first run sends them again"),
        (found.unlisted, "are not at their source any more: the first run deletes them"),
        (found.unknown, "are not in JesterJ's tables, or not any more: the first run sends them"),
        (found.unreadable, "could not be read now: the first run tries again"),
    ):
        if number:
            print_line(f"{format_count(number)} {what}.")
    if found.unlisted and found.example:
        print_note(f"JesterJ's id {found.example} is not listed by the plan: if it should be, see --strip.")
    print_line(f"Next: {next_command('run', plan, state=state)}")
