"""Generate the reference of the shipped sources, steps and destinations from their classes."""

from __future__ import annotations

import inspect
import re
import sqlite3
from typing import Any

from scripts.docs.folding import fold
from scripts.docs.signatures import entry, prose

import ferryman.destinations
import ferryman.sources
import ferryman.steps
from ferryman.destinations import Delivery, Destination, DestinationContext, Outcome, Sql
from ferryman.errors import TransientError
from ferryman.net import faults
from ferryman.plan.plan import default_guarantee
from ferryman.sources import Entry, Jobs, Log, Piece, Source
from ferryman.testing.destinations import DestinationSuite
from ferryman.testing.logs import LogSuite
from ferryman.testing.servers import ServerSuite
from ferryman.testing.sources import SourceSuite


def shipped(package: Any, base: type) -> list[tuple[str, type]]:
    """Return the public subclasses of a port."""
    public = [(name, getattr(package, name)) for name in package.__all__]
    return [(n, c) for n, c in public if inspect.isclass(c) and issubclass(c, base) and c is not base]


COMMON = re.compile(
    r"^- `(?:ValueError|PlanError)`: when (?:the step|it) is made: .*\n?"
    r"|^- `UsageError`: an argument that cannot be meant.*\n?"
    r"|^- `(?:prefix, detect, max_deleted`: see `Source|storage_options`: see `Files).*\n?"
    r"|^- `(?:in|ex)clude`: one glob or several.*\n?",
    re.MULTILINE,
)
"""Items of entries that a page says once, for all of them."""


def common_once(entries: str) -> str:
    """Leave out items that a page says once, and lists of errors that are empty without them."""
    return re.sub(r"\n\nRaises:\s*(?=\n###|\Z)", "\n", COMMON.sub("", entries))


def sources() -> str:
    """Return the entries of all sources but the base of logs and that of the intake queue, which is on its own page."""
    found = [(name, cls) for name, cls in shipped(ferryman.sources, Source) if cls not in (Jobs, Log)]
    return common_once("\n\n".join(entry(name, cls, of=()) for name, cls in found))


def jobs() -> str:
    return entry("Jobs", Jobs, of=())


def steps() -> str:
    return common_once("\n\n".join(entry(name, getattr(ferryman.steps, name)) for name in ferryman.steps.__all__))


def destinations() -> str:
    return common_once(
        "\n\n".join(
            entry(name, cls, of=tuple(member for member in vars(cls) if not hasattr(Destination, member)))
            for name, cls in shipped(ferryman.destinations, Destination)
        )
    )


def attributes() -> str:
    """Return a table of what each destination declares, and its default guarantee."""
    lines = [
        "| destination | effect | transactional | compares sequences | writers | rows a chunk | guarantee by default |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cls in shipped(ferryman.destinations, Destination):
        declared: Any = cls
        if isinstance(declared.single_writer, property):
            writers = "one at a time on SQLite, many on servers"
            assert Sql("sqlite:///index.db").single_writer
            assert not Sql("postgresql://host/db").single_writer
        else:
            writers = "one at a time" if declared.single_writer else "many"
        lines.append(
            f"| `{name}` | {declared.effect.name} | {_yes(declared.transactional)} | "
            f"{_yes(declared.compares_sequences)} | "
            f"{writers} | {declared.preferred_batch or 500} | "
            f"{default_guarantee(declared).value} |"
        )
    return "\n".join(lines)


def facts() -> str:
    """Return tables of what each destination stores, its limits, and the outcome of each answer of its target."""
    declared: list[tuple[str, Any]] = [
        (name, getattr(cls, "facts", None)) for name, cls in shipped(ferryman.destinations, Destination)
    ]
    lines = ["| destination | what is stored | limits | tested with |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {each.stored} | {'; '.join(each.limits) or '–'} | {', '.join(each.tested) or '–'} |"
        for name, each in declared
        if each
    ]
    parts = ["\n".join(lines), "What each is answered, and what becomes of the delivery:"]
    for name, each in declared:
        if each and each.outcomes:
            rows = [f"| {answer} | {outcome} |" for answer, outcome in each.outcomes]
            parts.append(fold(name, "\n".join(["| answer | outcome |", "|---|---|", *rows])))
    return "\n\n".join(parts)


def sqlite_errors() -> str:
    """Return a table of the outcomes of SQLite's errors."""
    written = re.findall(r"sqlite3\.(SQLITE_\w+):", inspect.getsource(faults))
    codes = {getattr(sqlite3, name): name for name in written}
    lines = ["| SQLite says | outcome | about | what to do |", "|---|---|---|---|"]
    lines += [f"| `{codes[code]}` | {_fault(fault)}" for code, fault in faults.SQLITE.items()]
    return fold("SQLite's errors", "\n".join(lines))


def postgresql_errors() -> str:
    """Return a table of the outcomes of PostgreSQL's errors."""
    lines = ["| SQLSTATE | outcome | about | what to do |", "|---|---|---|---|"]
    for state, fault in faults.POSTGRESQL.items():
        label = f"`{state}`" if len(state) == 5 else f"other `{state}…`" if _has_own(state) else f"`{state}…`"
        lines.append(f"| {label} | {_fault(fault)}")
    return fold("PostgreSQL's errors", "\n".join(lines))


def mysql_errors() -> str:
    """Return a table of the outcomes of MySQL's errors, one line for all numbers of one meaning."""
    numbers: dict[faults.Fault, list[int]] = {}
    for number, fault in faults.MYSQL.items():
        numbers.setdefault(fault, []).append(number)
    lines = ["| number | outcome | about | what to do |", "|---|---|---|---|"]
    lines += [
        f"| {', '.join(f'`{each}`' for each in sorted(some))} | {_fault(fault)}" for fault, some in numbers.items()
    ]
    return fold("MySQL's errors", "\n".join(lines))


def _has_own(state: str) -> bool:
    """Return whether some SQLSTATEs of this class have lines of their own."""
    return any(other.startswith(state) and other != state for other in faults.POSTGRESQL)


def _fault(fault: faults.Fault) -> str:
    kind, remedy = fault
    outcome = "transient" if issubclass(kind, TransientError) else "permanent"
    return f"{outcome} | {'the whole database' if kind.universal else 'this document'} | {remedy} |"


def destination_port() -> str:
    """Return the entries of the port, and of what ``write`` takes and returns."""
    pieces = [
        entry("Destination", Destination, call=False),
        entry("Delivery", Delivery, of=("fields", "text"), call=False),
        entry("Outcome", Outcome, of=("held",), call=False),
        entry("DestinationContext", DestinationContext),
    ]
    return "\n\n".join(pieces)


def log_port() -> str:
    """Return the entries of the port of logs, and of what its methods take and return."""
    of = ("identity", "nothing", "begin", "end", "pieces", "read_piece", "read", "entry", "note", "forget")
    pieces = [
        entry("Log", Log, of=of),
        entry("Piece", Piece, call=False),
        entry("Entry", Entry, call=False),
    ]
    return "\n\n".join(pieces)


def promises_of_a_log() -> str:
    return promises(LogSuite)


def promises_of_a_destination() -> str:
    return promises(DestinationSuite)


def promises_of_a_server() -> str:
    return promises(ServerSuite)


def promises_of_a_source() -> str:
    return promises(SourceSuite)


def promises(suite: type) -> str:
    """Return a folded list of what the tests of a conformance suite say."""
    tests = [test for name, test in vars(suite).items() if name.startswith("test_")]
    lines = [f"- {' '.join(prose(inspect.getdoc(test) or '').split())}" for test in tests]
    return fold(f"{len(lines)} requirements", "\n".join(lines))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
