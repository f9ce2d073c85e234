"""Report of a proof: a table that a manager understands, as text and as a page of HTML that needs nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

from ferryman.limits import format_count, plural
from ferryman.proof.broken import RULES
from ferryman.proof.faults import KINDS
from ferryman.proof.proof import ProofResult, Tally

HEADINGS: Final = (
    "fault",
    "places",
    "rounds",
    "took effect",
    "lost",
    "doubled",
    "sent again",
    "in doubt",
    "calls again",
)

SHOWN: Final = 10
"""Violations, and places without a fault, that are listed."""


class Line(NamedTuple):
    """Rounds of one kind of fault, at all places.

    Attributes:
        reached: places at which it took effect.
    """

    kind: str
    title: str
    places: int
    reached: int
    total: Tally

    @property
    def cells(self) -> tuple[object, ...]:
        """Return the line of the table, in the order of ``HEADINGS``."""
        t = self.total
        return (
            self.title,
            f"{self.reached} of {self.places}",
            t.rounds,
            t.effects,
            t.lost,
            t.doubled,
            t.repeated,
            t.in_doubt,
            t.calls,
        )


def lines_of(result: ProofResult) -> list[Line]:
    """Return a line for each kind of fault that was tried."""
    lines = []
    for kind, what in KINDS.items():
        places = [tally for (each, _), tally in result.tallies.items() if each == kind]
        if places:
            total = Tally()
            for tally in places:
                for name, value in vars(tally).items():
                    setattr(total, name, getattr(total, name) + value)
            lines.append(Line(kind, what.title, len(places), sum(bool(each.effects) for each in places), total))
    return lines


def verdict(result: ProofResult) -> str:
    """Return the result as one sentence."""
    rounds = plural(result.rounds, "round", "rounds")
    if result.violations:
        return f"BROKEN: {plural(len(result.violations), 'violation', 'violations')} in {rounds}"
    if result.inconclusive:
        return f"NOT PROVEN: {plural(len(result.inconclusive), 'round', 'rounds')} of {result.rounds} showed nothing"
    if result.short:
        return f"NOT PROVEN: {plural(len(result.short), 'fault', 'faults')} of those to be tried took no effect"
    faults = sum(tally.effects for tally in result.tallies.values())
    kinds = len({kind for kind, _ in result.tallies})
    tried = "PROVEN" if kinds == len(KINDS) else f"PROVEN for {kinds} of {len(KINDS)} kinds of faults"
    return f"{tried}: {format_count(faults)} faults in {rounds}, nothing lost, nothing doubled beyond its guarantee"


def notes(result: ProofResult, replay: str) -> Iterator[str]:
    """Yield what is to be said below the table.

    Args:
        replay: command that plays a round again, up to the name of the fault.
    """
    for fault, what in result.violations[:SHOWN]:
        yield f"Broken: {what}. To see it again: {replay} {fault}"
    if (more := len(result.violations) - SHOWN) > 0:
        yield f"… and {more} more"
    for fault, why in result.inconclusive[:SHOWN]:
        yield f"Inconclusive: {why}. To try it again: {replay} {fault}"
    if result.short:
        places = ", ".join(f"{kind} at {place}" for kind, place in result.short[:SHOWN])
        more_places = f" and {len(result.short) - SHOWN} more" if len(result.short) > SHOWN else ""
        yield f"Too few faults took effect: {places}{more_places}. Give more --rounds or --documents."
    if result.broken:
        rule = RULES[result.broken].broken
        yield f"Rule {result.broken!r} was broken on purpose ({rule}): {'found' if result.exit else 'NOT FOUND'}."
    for each in result.unproved:
        yield f"Not proved: {each}."
    if result.calls:
        calls = ", ".join(f"{name} {format_count(count)}" for name, count in sorted(result.calls.items()))
        yield f"Calls of steps in all rounds: {calls}."


def describe_sample(result: ProofResult) -> str:
    """Return what was tried with what, as one line."""
    documents = ", ".join(f"{format_count(count)} of {name}" for name, count in result.documents.items())
    return (
        f"plan {result.plan}, documents {documents}, seed {result.seed}, "
        f"{plural(result.runs, 'run', 'runs')} of the command, {result.spent_s:.0f} s"
    )


_PAGE: Final = Path(__file__).with_name("page.html")
"""Template of the page, with a ``$name`` for each part."""

_TWINS: Final = {
    "embedded": "of the same kind, in a folder of the proof",
    "scratch": "a table of its own on the same server",
    "recorder": "a recorder, which behaves as the guarantee demands",
}


def as_html(result: ProofResult, replay: str) -> str:
    """Return the report as a page that needs nothing else."""
    tone = "bad" if result.violations else "open" if result.exit else "good"
    lines = lines_of(result)
    return Template(_PAGE.read_text("utf-8")).substitute(
        plan=html.escape(result.plan),
        sample=html.escape(describe_sample(result)),
        tone=tone,
        verdict=html.escape(verdict(result)),
        headings=_cells(HEADINGS, "th"),
        rows="".join(f"<tr>{_numbers(line.cells, line.reached < line.places)}</tr>" for line in lines),
        twins="".join(
            f"<tr>{_cells((name, result.guarantees.get(name, ''), _TWINS.get(kind, kind)))}</tr>"
            for name, kind in result.twins.items()
        ),
        notes="".join(f"<li>{_with_code(each)}</li>" for each in notes(result, replay)) or "<li>Nothing.</li>",
        places=plural(len(result.tallies), "kind of fault at one place", "kinds of faults at their places"),
        place_headings=_cells(("fault", "place", *HEADINGS[2:]), "th"),
        place_rows="".join(
            f"<tr>{_cells((KINDS[kind].title, place, *Line(kind, '', 1, 1, tally).cells[2:]))}</tr>"
            for (kind, place), tally in result.tallies.items()
        ),
    )


def _with_code(text: str) -> str:
    """Return a text as HTML; what is between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _cells(values: Sequence[object], tag: str = "td") -> str:
    return "".join(f"<{tag}>{html.escape(str(each))}</{tag}>" for each in values)


def _numbers(values: Sequence[object], is_short: bool) -> str:
    """Return the cells of a line; what is lost or doubled stands out, and zeros do not."""
    cells = []
    for heading, value in zip(HEADINGS, values, strict=True):
        tone = ""
        if heading in ("lost", "doubled") and value:
            tone = "bad"
        elif heading == "places" and is_short:
            tone = "open"
        elif value == 0:
            tone = "good" if heading in ("lost", "doubled") else "zero"
        cells.append(f'<td class="{tone}">{html.escape(str(value))}</td>' if tone else _cells([value]))
    return "".join(cells)
