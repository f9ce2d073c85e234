"""The tables of ``docs/model-jobs.md``.

.venv/bin/python -m tests.model.jobs_pages            what each fault breaks, and the shortest way there
.venv/bin/python -m tests.model.jobs_pages --write    and write the tables
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from scripts.docs.folding import fold

from tests.model.jobs import Budget, Config
from tests.model.jobs_explored import PROMISES, explored
from tests.model.jobs_faults import CONFIGURATIONS, FAULTS

PAGE: Final = Path(__file__).parents[2] / "docs" / "model-jobs.md"

_THINGS: Final = Budget(  # type: ignore[arg-type]
    kills="kill",
    sessions="lost session",
    unlocks="unlock by an operator",
    fails="fail by an operator",
    others="change by an object without the lock",
    tools="lock removed by another tool",
    strays="move by another tool",
)

_BLOCK = re.compile(r"(<!-- explored: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def promises() -> str:
    """Markdown: what always holds."""
    return "\n".join(["| | what always holds |", "|---|---|", *(f"| {n} | {text} |" for n, text in PROMISES.items())])


def configurations() -> str:
    """Markdown: each configuration, and its size."""
    head = ["| configuration | threads | what may go wrong | worlds |", "|---|---|---|--:|"]
    lines = [line(config) for config in CONFIGURATIONS]
    worlds = sum(explored(config).worlds for config in CONFIGURATIONS)
    return fold(f"{len(lines)} configurations, {worlds:,} worlds", "\n".join([*head, *lines]))


def line(config: Config) -> str:
    """A configuration's line of the table."""
    found = explored(config)
    threads = "of one process" if len(set(config.processes)) == 1 else f"of {len(set(config.processes))} processes"
    return f"| {config.name} | {len(config.processes)} {threads} | {_troubles(config.budget)} | {found.worlds:,} |"


def _troubles(budget: Budget) -> str:
    return ", ".join(f"{n} × {thing}" for n, thing in zip(budget, _THINGS, strict=True) if n) or "nothing"


def faults() -> str:
    """Markdown: each fault, and what it breaks."""
    lines = ["| fault | breaks | after steps |", "|---|---|--:|"]
    for fault in FAULTS:
        found = explored(fault.config).found
        assert found is not None, fault.name
        lines.append(f"| {fault.name} | {found.promise} | {len(found.trace)} |")
    return fold(f"{len(lines) - 2} faults", "\n".join(lines))


def made(text: str) -> str:
    """The page's text with its tables as an exploration makes them now."""
    tables = {"promises": promises, "configurations": configurations, "faults": faults}
    return _BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    for fault in FAULTS:
        print(f"{fault.name}\n{explored(fault.config).found}\n")
    if "--write" in sys.argv:
        PAGE.write_text(made(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
