"""``ferryman ledger export`` and ``ferryman import-jesterj``: the ledger in JesterJ's tables, and back."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose
from ferryman.cli.terminal import print_json, print_line, print_note
from ferryman.observe import plural

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
        typer.Option(
            "--to",
            metavar="URL|FILE",
            show_default=False,
            help="cassandra://[USER:PASSWORD@]HOST[:PORT][,HOST…]; FILE.db for SQLite; else a new folder for Parquet.",
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
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
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
            print_note(f"{e} Start it again: it goes on where it stopped.")
            raise typer.Exit(4) from None
        for each in done.refused:
            print_note(f"left out {each}")
        if json:
            print_json({"events": done.events, "documents": done.documents, "behind": done.behind})
        else:
            print_line(_sentence(done.events, done.documents, target.target()))
        if done.behind:
            print_note("Another process exports this state at this moment. Start it again if that is killed.")
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
