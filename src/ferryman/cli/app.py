"""The command line: its verbs, and the one place where an error becomes a text and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Annotated, cast

import typer

from ferryman.cli import account, decide, plan, queue, run
from ferryman.cli import plan as preview
from ferryman.cli import start as demo
from ferryman.cli import start as init
from ferryman.cli import start as search
from ferryman.cli.intake import app as intake_app
from ferryman.cli.options import Asked, Verbose
from ferryman.cli.terminal import error, note, say, tolerate_any_text
from ferryman.errors import FerrymanError, PlanError
from ferryman.memory import describe_memory_error, is_failed_allocation

# ``ferryman warm-up``: let Spark start in half the time, before the first run.


def warm_up(verbose: Verbose = False) -> None:
    """Prepare this machine, so that Spark starts in half the time.

    Writes an archive of Spark's classes, 170 MB, into your cache folder (~/.cache/ferryman), in some 20 s. A first run
    does it too, in the background after its end; a container's image needs this command. Does nothing if the archive is
    there. Ends with 1 if it cannot be made: Spark then starts without it.
    """
    from ferryman.engine.runner.class_sharing import ClassArchive

    archive = ClassArchive.of_machine()
    if archive is None:
        note("There is no Java, or no cache folder of your own for an archive of Spark's classes. Spark starts so.")
        raise typer.Exit(1)
    if archive.find() is None:
        note("starting Spark once, and writing its classes to an archive; this takes some 20 s")
    made = archive.make()
    if made is None:
        note(f"There is no archive of Spark's classes in {archive.folder}: it cannot be made. Spark starts without.")
        raise typer.Exit(1)
    say(made)


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
app.command()(account.status)
app.command()(account.deliveries)
app.command()(account.history)
app.command()(decide.retry)
app.command()(decide.resolve)
app.command()(search.search)
app.command()(account.fsck)
app.command()(warm_up)
app.add_typer(plan.app)
app.add_typer(queue.app)
app.add_typer(account.app)
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
    from ferryman.storage.files import explain_error  # most commands do without

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
            error(
                f"{describe_memory_error(raised)}. It was the command's own process; nothing is lost: run it with more."
            )
        case _ if isinstance(said := explain_error("the command", raised), FerrymanError):
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


# A quick start for verbs that only ask the ledger.

ASKING = {
    **dict.fromkeys(("status", "deliveries", "history", "retry", "fsck"), "ferryman.account.questions"),
    "queue": "ferryman.queues",
}
"""Verbs that need no Spark -> what they need."""


class _NoPandas(MetaPathFinder):
    """Finds pandas nowhere."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is not needed here, and takes a second to load", name=name)


def load_ledger(args: list[str]) -> None:
    """If this is one of those verbs, import the ledger now, and pandas not.

    pyarrow imports pandas on its way wherever it is installed, which is half of all the time that `status` takes. What
    it once failed to import it never looks for again: so this is for a process that does nothing else. A plan file may
    import pandas itself, as ever.
    """
    if args[:1] and args[0] in ASKING and "--help" not in args:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module(ASKING[args[0]])
        finally:
            sys.meta_path.remove(finder)
