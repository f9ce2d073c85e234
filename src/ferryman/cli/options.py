"""Arguments and options that several verbs share, and the parsing of their texts."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.plan import nodes
from ferryman.storage.files import StatePath, exists

if TYPE_CHECKING:
    from ferryman.plan import Plan


@dataclass
class GlobalOptions:
    """Options of the whole command, whatever the verb."""

    verbose: bool = False
    plan: str | None = None
    """The PLAN argument, for commands in messages."""
    state: str | None = None


def _note_plan(ctx: typer.Context, value: str) -> str:
    options = ctx.find_root().obj
    if isinstance(options, GlobalOptions):
        options.plan = value
    return value


def _note_state(ctx: typer.Context, value: str | None) -> str | None:
    options = ctx.find_root().obj
    if isinstance(options, GlobalOptions):
        options.state = value
    return value


def _verbose(ctx: typer.Context, value: bool) -> bool:
    options = ctx.find_root().obj
    if isinstance(options, GlobalOptions):
        options.verbose = options.verbose or value
    return value


def option(name: str, metavar: str, help: str, **settings: Any) -> Any:  # noqa: A002 - typer's name
    """Return an option with a value, whose help shows no default."""
    return typer.Option(name, metavar=metavar, show_default=False, help=help, **settings)


def argument(metavar: str, help: str, **settings: Any) -> Any:  # noqa: A002 - typer's name
    """Return an argument whose help shows no default."""
    return typer.Argument(metavar=metavar, show_default=False, help=help, **settings)


_LARGEST = 2**31 - 1


def bounded(number: int | None) -> int | None:
    """Return an option's number, or the largest one that queries can add to and multiply: nothing has more rows."""
    return None if number is None else min(number, _LARGEST)


PlanSpec = Annotated[
    str, argument("PLAN", "plan.py, plan.py:name (one of several), or package.module:name.", callback=_note_plan)
]
FlowSpec = Annotated[
    str,
    argument(
        "PLAN",
        "plan.py, plan.py:name (one of several), or package.module:name: a plan, or a flow.",
        callback=_note_plan,
    ),
]
StateDir = Annotated[
    str | None,
    option(
        "--state",
        "DIR",
        "Where the state lives: a folder, or s3://BUCKET/PREFIX, gs://…, abfss://…. "
        "Default: .ferryman/ beside the plan file.",
        callback=_note_state,
    ),
]
DocumentFilter = Annotated[str | None, option("--doc", "ID", "Only this document.")]
Why = Annotated[str, option("--why", "TEXT", "Stored in the ledger.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", callback=_verbose, help="Print more, and tracebacks of errors.")
]


class LogFormat(enum.StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


LogFile = Annotated[Path | None, option("--log-file", "FILE", "Append progress and messages to this file, too.")]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Of the log file, or else of stderr: lines, or one JSON object per line."),
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark's master: local[4], spark://host:7077, yarn, ….")
]
Has = Annotated[
    list[str] | None, option("--has", "NAME", "What this machine has that steps may need: gpu. Repeatable.")
]
Preflight = Annotated[
    bool,
    typer.Option(
        "--preflight/--no-preflight",
        help="On a cluster, see first whether each executor sees the folders that the driver sees.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Of a state in an object store: go on at once, although a run that you know to be dead seems to hold it.",
    ),
]
CacheDir = Annotated[
    Path | None,
    option(
        "--cache",
        "DIR",
        "Of a state in an object store: where this machine keeps copies of its files. "
        "Default: in the system's temporary folder. For executors: FERRYMAN_CACHE.",
    ),
]
Conf = Annotated[list[str] | None, option("--conf", "KEY=VALUE", "A Spark setting. Repeatable.")]


StatusFilter = Annotated[str | None, option("--status", "STATUS", "Only of this status: failed, rejected, pending, ….")]
DestinationFilter = Annotated[str | None, option("--destination", "NAME", "Only of this destination.")]
SourceFilter = Annotated[str | None, option("--source", "NAME", "Only of this source.")]
ReasonFilter = Annotated[
    str | None, option("--reason", "TEXT", "Only with this reason, as --by reason prints it, whatever its numbers.")
]


def spark_settings(texts: list[str] | None) -> dict[str, str]:
    """Parse ``["spark.ui.enabled=false"]`` into a dict.

    Raises:
        UsageError: a text is not KEY=VALUE.
    """
    settings = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--conf {text}: give KEY=VALUE, as in --conf spark.driver.memory=4g.")
        settings[key.strip()] = value.strip()
    return settings


def cache_settings(cache: Path | None) -> dict[str, str]:
    """Return the Spark settings for the cache, which this process and its children use, see ``CacheDir``."""
    from ferryman.storage.objects import CACHE_VARIABLE

    if cache is None:
        return {}
    os.environ[CACHE_VARIABLE] = str(cache.absolute())
    return {f"spark.executorEnv.{CACHE_VARIABLE}": str(cache.absolute())}


def resource_settings(has: list[str] | None) -> dict[str, str]:
    """Put the resources that ``--has`` names into this process's environment, which the workers of a local Spark
    inherit; return them as Spark settings for the executors of a cluster.

    Raises:
        UsageError: a text is not a name.
    """
    names = [name.strip() for text in has or [] for name in text.split(",")]
    for name in names:
        if not nodes.is_capability_name(name):
            raise UsageError(f"--has {name}: give a name of letters, digits and -_. as in --has gpu.")
    if not names:
        return {}
    joined = ",".join(sorted({*nodes.local_capabilities(), *names}))
    os.environ[nodes.CAPABILITIES_VARIABLE] = joined
    return {f"spark.executorEnv.{nodes.CAPABILITIES_VARIABLE}": joined}


def notify_targets(texts: list[str] | None) -> list[str]:
    """Check the targets of ``--notify``.

    Raises:
        UsageError: nothing can ever be sent to a target.
    """
    from ferryman.plan import NotifyTarget

    if findings := [finding for text in texts or [] for finding in NotifyTarget(text).findings()]:
        raise UsageError("\n".join(f"--{finding}" for finding in findings))
    return texts or []


def seconds(option: str, text: str | None) -> float | None:
    """Parse ``60``, ``60s``, ``1.5m``, ``2h``, ``1d`` or ``500ms`` into seconds; None stays None.

    Raises:
        UsageError: not a duration.
    """
    if text is None:
        return None
    try:
        return limits.seconds(text)
    except ValueError:
        raise UsageError(f"{option} {text}: give seconds, or a number with ms, s, m, h or d: 60, 60s, 2m.") from None


def size_bytes(option: str, text: str | None) -> int | None:
    """Parse ``500MB``, ``4 GiB`` or ``1000`` into bytes; K, M, G and T are powers of 1024. None stays None.

    Raises:
        UsageError: not a size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise UsageError(f"{option} {text}: give bytes, or a number with K, M, G or T: 500M, 4GB.")
    return int(float(match[1]) * 1024 ** ("kmgt".index(match[2]) + 1 if match[2] else 0))


def status_name(text: str | None) -> str | None:
    """Check that the text of ``--status`` names a status, and return it.

    Raises:
        UsageError: there is no such status; the message lists all.
    """
    from ferryman.records.rows import parse_status

    try:
        if text is not None:
            parse_status(text)
    except ValueError as e:
        raise UsageError(f"--status {text}: {e}.") from None
    return text


def load_with_state(plan: str, state: str | None) -> tuple[Plan, StatePath]:
    """Load a plan; return it with the root of its state.

    Args:
        plan, state: as they were typed.
    """
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    return loaded, state_root(loaded, state, plan_file(plan))


def has_run(root: StatePath) -> bool:
    """Return whether there is a state. A run that was killed while it created one leaves none."""
    return exists(root / "state.json")


def drop_unset(**filters: Any) -> dict[str, Any]:
    """Return the filters that are not None."""
    return {name: value for name, value in filters.items() if value is not None}
