"""The command line: its verbs, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from ferryman.cli import account, decide, ledger, plan, queue, remembered, run, terminal
from ferryman.cli.dashboard import dashboard
from ferryman.cli.decide import adopt
from ferryman.cli.intake import app as intake_app
from ferryman.cli.options import GlobalOptions, Verbose
from ferryman.cli.prove import prove
from ferryman.cli.search import evaluate, mcp, search
from ferryman.cli.start import demo, init
from ferryman.cli.terminal import complete_commands, print_error, print_line, print_note, tolerate_any_text
from ferryman.cli.verify import verify
from ferryman.errors import FerrymanError, PlanError
from ferryman.memory import describe_memory_error, is_failed_allocation

# --- ferryman warm-up ---


def warm_up(verbose: Verbose = False) -> None:
    """Prepare this machine, so that Spark starts in half the time.

    Writes an archive of Spark's classes, 170 MB, into your cache folder (~/.cache/ferryman), in some 20 s. A first run
    does it too, in the background after its end; a container's image needs this command. Does nothing if the archive is
    there. Ends with 1 if it cannot be made: Spark then starts without it.
    """
    from ferryman.engine.runner.class_sharing import ClassArchive

    archive = ClassArchive.of_machine()
    if archive is None:
        print_note(
            "There is no Java, or no cache folder of your own for an archive of Spark's classes: Spark starts "
            "without one."
        )
        raise typer.Exit(1)
    if archive.find() is None:
        print_note("starting Spark once, and writing its classes to an archive; this takes some 20 s")
    made = archive.make()
    if made is None:
        print_note(
            f"There is no archive of Spark's classes in {archive.folder}: it cannot be made. Spark starts without it."
        )
        raise typer.Exit(1)
    print_line(made)


BadUsage = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The exception typer raises for wrong options and arguments. It comes from the click that typer bundles, so it cannot
be imported by name."""

FAULT, USAGE, INTERRUPTED = 1, 2, 130


def _make_app() -> typer.Typer:
    return typer.Typer(
        name="ferryman",
        help="Index documents with Spark into search engines and other destinations, and account for every one of "
        "them.",
        epilog="`ferryman init DIR` writes a plan to start from; `ferryman demo` shows it all at work.",
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help: the same on a terminal and in a pipe, and in half the time
        pretty_exceptions_enable=False,  # this module reports errors
    )


app = _make_app()


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


app.command()(init)
app.command()(demo)
app.command(cls=run.RunCommand)(run.run)
app.command()(plan.preview)
app.command()(run.rollback)
app.command()(account.status)
app.command()(account.deliveries)
app.command()(account.history)
app.command()(decide.retry)
app.command()(decide.resolve)
app.command()(verify)
app.command()(adopt)
app.command()(prove)
app.command()(search)
app.command()(evaluate)
app.command()(mcp)
app.command()(dashboard)
app.command()(account.fsck)
app.command()(warm_up)
app.command("import-jesterj")(ledger.import_jesterj)
app.add_typer(plan.app)
app.add_typer(queue.app)
app.add_typer(remembered.app)
app.add_typer(account.app)
app.add_typer(ledger.app)
app.add_typer(intake_app)


@functools.cache
def root_command() -> Any:
    """Return the command with all its verbs, made once a process: it takes longer than most verbs."""
    return typer.main.get_command(app)


@functools.cache
def command_with(verb: str) -> Any:
    """Return the command with this verb alone, which a run of it needs; with all of them if there is no such verb."""
    commands = [c for c in app.registered_commands if c.name == verb or _name_of(c.callback) == verb]
    groups = [g for g in app.registered_groups if g.typer_instance is not None and g.typer_instance.info.name == verb]
    if not commands and not groups:
        return root_command()
    own = _make_app()
    own.registered_callback = app.registered_callback
    own.registered_commands, own.registered_groups = commands, groups
    return typer.main.get_command(own)


def _name_of(function: Callable[..., Any] | None) -> str:
    return "" if function is None else typer.main.get_command_name(function.__name__)


def start(args: list[str]) -> int:
    """Run one command and return its exit code."""
    tolerate_any_text(sys.stdout, sys.stderr)
    options = GlobalOptions()
    try:
        command = command_with(args[0]) if args else root_command()
        code = command.main(args, prog_name="ferryman", standalone_mode=False, obj=options)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe: `ferryman deliveries … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except Exception as e:
        return _report_error(e, options)


def _report_error(raised: Exception, options: GlobalOptions) -> int:
    """Print the error's message and return the exit code."""
    from ferryman.storage.files import explain_error  # most commands do without

    def print_error(text: object) -> None:
        terminal.print_error(complete_commands(str(text), options.plan, options.state))

    code = FAULT
    match raised:
        case PlanError():
            for finding in raised.findings:
                print_error(finding)
            code = raised.exit_code
        case FerrymanError():
            print_error(raised)
            code = raised.exit_code
        case _ if is_failed_allocation(raised):
            print_error(
                f"{describe_memory_error(raised)}. It was the command's own process; nothing is "
                "lost: run it with more memory."
            )
        case _ if isinstance(explained := explain_error("the command", raised), FerrymanError):
            print_error(explained)
            code = explained.exit_code
        case _ if isinstance(raised, BadUsage):
            _report_usage(raised)
            code = USAGE
        case _:
            first_line = (str(raised).strip().splitlines() or [""])[0]
            print_error(
                f"{type(raised).__name__}: {first_line}. This is a bug in Ferryman; -v shows where it happened."
            )
    if options.verbose and not isinstance(raised, BadUsage):
        traceback.print_exception(raised, file=sys.stderr)
    return code


def _report_usage(raised: Exception) -> None:
    """Print what is wrong with the options, and where the right ones are listed."""
    message = getattr(raised, "format_message", lambda: str(raised))()
    context = getattr(raised, "ctx", None)
    path = context.command_path if context is not None else "ferryman"
    if type(raised).__name__ == "NoArgsIsHelpError":  # `ferryman` alone: the message is the help
        print(message, file=sys.stderr)
        return
    message = message.replace(": Value error, ", ": ")  # pydantic's prefix, by which typer checks
    print_error(f"{message.rstrip('.')}. `{path} --help` lists what it accepts.")
