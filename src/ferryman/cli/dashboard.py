"""``ferryman dashboard``: web pages over plans, queues and intake queues."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from ferryman.cli.options import Verbose, argument, option
from ferryman.cli.terminal import print_line, print_note
from ferryman.errors import UsageError

TOKEN_VARIABLE: Final = "FERRYMAN_DASHBOARD_TOKEN"
"""Environment variable with a token, which no list of processes shows."""


def dashboard(
    folders: Annotated[
        list[str] | None,
        argument(
            "[FOLDER]...",
            "Folders of states and queues; also plan files, for flows, and URLs of intake queues. "
            "Default: the current folder.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port to listen on; 0: any.")
    ] = 8440,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        list[str] | None,
        option(
            "--token",
            "TOKEN",
            "A secret, NAME:reader:SECRET, NAME:operator:SECRET, or @FILE with one a line. Repeatable. "
            f"Or in {TOKEN_VARIABLE}.",
        ),
    ] = None,
    base_path: Annotated[str, option("--base-path", "PATH", "Path under which a proxy serves it.")] = "",
    user_header: Annotated[
        str, option("--user-header", "NAME", "Header in which a trusted proxy says who it is.")
    ] = "",
    operator: Annotated[
        list[str] | None, option("--operator", "NAME", "With --user-header: who may act; '*': all. Repeatable.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("--allow-host", "NAME", "Another host name that it answers to. Repeatable.")
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let operators retry, resolve, hold and release from its pages.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Show plans, failures, documents, queues and the intake in a browser.

    Searches the folders for states, queues and intake queues, and serves pages about them until it is interrupted.
    Reads what status, deliveries and history read, starts no Spark, and runs no plan file but those that are named. It
    changes nothing without --allow-actions.

    Only this machine can reach it, unless --host says otherwise; then a token is needed. Each page shows the command
    that says the same. Needs pip install 'ferryman[dashboard]'.
    """
    try:
        from ferryman.dashboard.app import make_app, serve
        from ferryman.dashboard.guard import Settings, allowed_hosts, parse_tokens
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] == "ferryman":
            raise
        raise UsageError(f"ferryman dashboard needs {e.name}: pip install 'ferryman[dashboard]'.") from None

    tokens = [*(token or []), *filter(None, [os.environ.get(TOKEN_VARIABLE)])]
    settings = Settings(
        host=host,
        port=port,
        tokens=parse_tokens(tokens),
        base_path=base_path,
        user_header=user_header,
        operators=frozenset(operator or []),
        allow_actions=allow_actions,
        allowed_hosts=allowed_hosts(allow_host or []),
    )
    app = make_app(folders or [], settings)

    def announce(url: str) -> None:
        print_line(url)
        what = "operators may act" if allow_actions else "it only shows: --allow-actions lets operators act"
        print_note(f"The dashboard is there; {what}. Ctrl-C ends it.")

    serve(app, announce)
