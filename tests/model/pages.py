"""The tables of ``docs/model.md``: what was explored, and what each mutation breaks."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scripts.docs.folding import fold

from tests.model.configurations import CONFIGURATIONS
from tests.model.doubts import DoubtConfig
from tests.model.doubts_explored import DOUBT_CONFIGURATIONS, DOUBT_MUTATIONS, DOUBT_RULES
from tests.model.explore import DOCUMENTS, Explorer, Report
from tests.model.keyed.explored import KEYED_CONFIGURATIONS, KEYED_MUTATIONS, KEYED_RULES
from tests.model.keyed.world import KeyedConfig
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.queues.configurations import QUEUE_CONFIGURATIONS
from tests.model.queues.mutations import QUEUE_MUTATIONS, QueueMutation
from tests.model.queues.once import OnceConfig
from tests.model.queues.once_explored import ONCE_CONFIGURATIONS, ONCE_MUTATIONS, ONCE_RULES
from tests.model.queues.protocol import RULES
from tests.model.queues.world import QueueConfig
from tests.model.state import Budget, Config

AnyConfig = Config | QueueConfig | OnceConfig | KeyedConfig | DoubtConfig

PAGE: Final = Path(__file__).parents[2] / "docs" / "model.md"

_THINGS: Final = ("kill", "second driver", "second attempt", "late worker", "bad answer")
"""Fields of ``Budget``, as people call them."""

_BLOCK = re.compile(r"(<!-- explored: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@functools.cache
def explored(config: AnyConfig) -> Report:
    """What exploring a configuration came to; explored once a process."""
    return explorer(config).explore()


def explorer(config: AnyConfig) -> Explorer:
    """Of the protocol that a configuration is for."""
    rules = {Config: DOCUMENTS, QueueConfig: RULES, OnceConfig: ONCE_RULES, KeyedConfig: KEYED_RULES}
    return Explorer(config, {**rules, DoubtConfig: DOUBT_RULES}[type(config)])


def configurations() -> str:
    """Markdown: each configuration of documents, and its size."""
    return _sizes("documents × destinations", CONFIGURATIONS)


def queue_configurations() -> str:
    """The same of a plan between queues."""
    return _sizes("entries", QUEUE_CONFIGURATIONS)


def once_configurations() -> str:
    """The same of an at-most-once plan."""
    return _sizes("entries", ONCE_CONFIGURATIONS)


def keyed_configurations() -> str:
    """The same of a plan that keeps state by key."""
    return _sizes("entries", KEYED_CONFIGURATIONS)


def doubt_configurations() -> str:
    """The same of a destination that breaks connections."""
    return _sizes("rows", DOUBT_CONFIGURATIONS)


def _sizes(measure: str, configs: Iterable[AnyConfig]) -> str:
    lines = [
        f"| configuration | {measure} | what may go wrong | states | kills |",
        "|---|---|---|--:|--:|",
    ]
    sums = [0, 0]
    for config in configs:
        sums = [a + b for a, b in zip(sums, _numbers(config), strict=True)]
        lines.append(line(config))
    states, kills = sums
    return fold(f"{len(lines) - 2} configurations, {states:,} states, {kills:,} kills", "\n".join(lines))


def line(config: AnyConfig) -> str:
    """A configuration's line of the table."""
    if isinstance(config, OnceConfig):
        size, wrong = str(config.entries), ", ".join(_spendable(config.budget))
    elif isinstance(config, DoubtConfig):
        bad = _count(len(config.poison), "bad row")
        size, wrong = str(config.entries), ", ".join([bad, *_spendable(config.budget)])
    elif isinstance(config, QueueConfig | KeyedConfig):
        size, wrong = str(config.entries), _queue_troubles(config)
    else:
        size, wrong = f"{len(config.histories)} × {len(config.destinations)}", troubles(config)
    return f"| {config.name} | {size} | {wrong} | {_cells(_numbers(config))} |"


def _numbers(config: AnyConfig) -> tuple[int, int]:
    report = explored(config)
    return report.states, report.recoveries


def _cells(numbers: Iterable[int]) -> str:
    return " | ".join(f"{n:,}" for n in numbers)


def _queue_troubles(config: QueueConfig | KeyedConfig) -> str:
    found = _spendable(config.budget)
    if config.answers:
        found[-1] += f" ({', '.join(config.answers)})"
    if isinstance(config, QueueConfig) and config.refused:
        found.append("1 refusal")
    if config.late:
        found.append("1 late entry")
    return ", ".join(found)


def _spendable(budget: Budget) -> list[str]:
    return [_count(n, thing) for n, thing in zip(budget, _THINGS, strict=True) if n]


def troubles(config: Config) -> str:
    """What may go wrong, in words."""
    found = _spendable(config.budget)
    changes = sum(len(history) - 1 for history in config.histories)
    if changes:
        found.append(_count(changes, "change"))
    if config.answers:
        found[-1 - bool(changes)] += f" ({', '.join(config.answers)})"
    return ", ".join(found)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def mutations() -> str:
    """Markdown: each mutation, which invariant it breaks, and in how many steps."""
    return _findings(MUTATIONS)


def queue_mutations() -> str:
    """The same of a plan between queues."""
    return _findings(QUEUE_MUTATIONS)


def once_mutations() -> str:
    """The same of an at-most-once plan."""
    return _findings(ONCE_MUTATIONS)


def keyed_mutations() -> str:
    """The same of a plan that keeps state by key."""
    return _findings(KEYED_MUTATIONS)


def doubt_mutations() -> str:
    """The same of a destination that breaks connections."""
    return _findings(DOUBT_MUTATIONS)


def _findings(faults: Iterable[Mutation | QueueMutation]) -> str:
    lines = ["| mutation | breaks | after steps |", "|---|---|--:|"]
    for mutation in faults:
        violation = explored(mutation.config).violation
        assert violation is not None
        lines.append(f"| {mutation.name} | {violation.invariant} | {len(violation.trace)} |")
    return fold(f"{len(lines) - 2} faults", "\n".join(lines))


def made(text: str) -> str:
    """The page's text with its tables as an exploration makes them now."""
    tables = {
        "configurations": configurations,
        "mutations": mutations,
        "queue_configurations": queue_configurations,
        "queue_mutations": queue_mutations,
        "once_configurations": once_configurations,
        "once_mutations": once_mutations,
        "keyed_configurations": keyed_configurations,
        "keyed_mutations": keyed_mutations,
        "doubt_configurations": doubt_configurations,
        "doubt_mutations": doubt_mutations,
    }
    return _BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]]()}\n\n{found[3]}", text)
