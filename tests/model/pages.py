"""The tables of ``docs/model.md``: what was explored, and what each mutation breaks."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.model.configurations import CONFIGURATIONS
from tests.model.explore import Explorer, Report
from tests.model.mutations import MUTATIONS
from tests.model.state import Config

PAGE: Final = Path(__file__).parents[2] / "docs" / "model.md"

_THINGS: Final = ("kill", "second driver", "second attempt", "late worker", "bad answer")
"""Fields of ``Budget``, as people call them."""

_BLOCK = re.compile(r"(<!-- explored: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@functools.cache
def explored(config: Config) -> Report:
    """What exploring a configuration came to; explored once a process."""
    return Explorer(config).explore()


def configurations() -> str:
    """Markdown: each configuration, and its size."""
    lines = [
        "| configuration | documents × destinations | what may go wrong | states | transitions | ends | kills |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    sums = [0, 0, 0, 0]
    for config in CONFIGURATIONS:
        sums = [a + b for a, b in zip(sums, _numbers(config), strict=True)]
        lines.append(line(config))
    lines.append(f"| all | | | {_cells(sums)} |")
    return "\n".join(lines)


def line(config: Config) -> str:
    """A configuration's line of the table."""
    size = f"{len(config.histories)} × {len(config.destinations)}"
    return f"| {config.name} | {size} | {troubles(config)} | {_cells(_numbers(config))} |"


def _numbers(config: Config) -> tuple[int, int, int, int]:
    report = explored(config)
    return report.states, report.transitions, report.rests, report.recoveries


def _cells(numbers: Iterable[int]) -> str:
    return " | ".join(f"{n:,}".replace(",", " ") for n in numbers)


def troubles(config: Config) -> str:
    """What may go wrong, in words."""
    found = [_count(n, thing) for n, thing in zip(config.budget, _THINGS, strict=True) if n]
    changes = sum(len(history) - 1 for history in config.histories)
    if changes:
        found.append(_count(changes, "change"))
    if config.answers:
        found[-1 - bool(changes)] += f" ({', '.join(config.answers)})"
    return ", ".join(found)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def mutations() -> str:
    """Markdown: each mutation, what it breaks, and in how many steps."""
    lines = ["| mutation | breaks | because | after steps |", "|---|---|---|--:|"]
    for mutation in MUTATIONS:
        violation = explored(mutation.config).violation
        assert violation is not None
        lines.append(f"| {mutation.name} | {violation.invariant} | {violation.why} | {len(violation.trace)} |")
    return "\n".join(lines)


def made(text: str) -> str:
    """The page's text with its tables as an exploration makes them now."""
    tables = {"configurations": configurations, "mutations": mutations}
    return _BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n\n{found[3]}", text)
