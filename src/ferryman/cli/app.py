"""The command line: its verbs, and the one place where an error becomes a text and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, cast

import typer

from ferryman.cli import (
    demo,
    documents,
    fsck,
    init,
    plan,
    preview,
    queue,
    resolve,
    retry,
    run,
    search,
    state,
    status,
    warm_up,
)
from ferryman.cli.intake import app as intake_app
from ferryman.cli.options import Asked
from ferryman.cli.terminal import error, tolerate_any_text
from ferryman.errors import FerrymanError, PlanError
from ferryman.memory import is_failed_allocation, why_no_memory

BadUsage = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What typer raises for options and arguments that are wrong; it carries a click of its own, so no import names it."""

FAULT, USAGE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="ferryman",
    help="Index documents with Spark into search engines and other destinations, and account for every one of them.",
    epilog="`ferryman init DIR` writes a plan to start from; `ferryman demo` shows it all at work.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same on a terminal and in a pipe, and in half the time
    pretty_exceptions_enable=False,  # this module tells of errors
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"ferryman {version('ferryman')}")
        except PackageNotFoundError:
            print("ferryman (not installed: run from its source)")
        raise typer.Exit


@app.callback()
def ferryman(
    _: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")] = False,
) -> None:
    """Options of the command itself."""


app.command()(init.init)
app.command()(demo.demo)
app.command(cls=run.RunCommand)(run.run)
app.command()(preview.preview)
app.command()(status.status)
app.command()(documents.deliveries)
app.command()(documents.history)
app.command()(retry.retry)
app.command()(resolve.resolve)
app.command()(search.search)
app.command()(fsck.fsck)
app.command()(warm_up.warm_up)
app.add_typer(plan.app)
app.add_typer(queue.app)
app.add_typer(state.app)
app.add_typer(intake_app)


def start(args: list[str]) -> int:
    """Run one command. Returns its exit code."""
    tolerate_any_text(sys.stdout, sys.stderr)
    asked = Asked()
    try:
        code = typer.main.get_command(app).main(args, prog_name="ferryman", standalone_mode=False, obj=asked)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough: `ferryman deliveries … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except Exception as e:
        return _told(e, asked.verbose)


def _told(raised: Exception, verbose: bool) -> int:
    """Say what went wrong in the way that suits it; the exit code."""
    from ferryman.storage.folder import in_words  # most commands do without

    code = FAULT
    match raised:
        case PlanError():
            for finding in raised.findings:
                error(finding)
            code = raised.exit_code
        case FerrymanError():
            error(raised)
            code = raised.exit_code
        case _ if is_failed_allocation(raised):
            error(f"{why_no_memory(raised)}. It was the command's own process; nothing is lost: run it with more.")
        case _ if isinstance(said := in_words("the command", raised), FerrymanError):
            error(said)
            code = said.exit_code
        case _ if isinstance(raised, BadUsage):
            _usage(raised)
            code = USAGE
        case _:
            first = (str(raised).strip().splitlines() or [""])[0]
            error(f"{type(raised).__name__}: {first}. This is a bug in Ferryman; -v shows where it happened.")
    if verbose and not isinstance(raised, BadUsage):
        traceback.print_exception(raised, file=sys.stderr)
    return code


def _usage(raised: Exception) -> None:
    """Wrong options: what is wrong, and where the right ones are listed."""
    message = getattr(raised, "format_message", lambda: str(raised))()
    context = getattr(raised, "ctx", None)
    path = context.command_path if context is not None else "ferryman"
    if type(raised).__name__ == "NoArgsIsHelpError":  # `ferryman` alone: the message is the help
        print(message, file=sys.stderr)
        return
    told = message.replace(": Value error, ", ": ")  # pydantic's, by which typer checks
    error(f"{told} `{path} --help` lists what it accepts.")
