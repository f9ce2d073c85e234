"""Rules of the protocol that a proof can break on purpose, to show that it would find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ferryman.errors import UsageError


class Rule(NamedTuple):
    """A rule, and how it is broken.

    Attributes:
        broken: what happens when it is broken.
        kinds: faults that show it.
        break_it: breaks it for the rest of this process.
    """

    broken: str
    kinds: tuple[str, ...]
    break_it: Callable[[], None]


def _nothing() -> None:
    """Leave the program as it is."""


DISARMED: Final = "no-faults"

RULES: Final[dict[str, Rule]] = {
    DISARMED: Rule("no fault takes effect, so the proof must say that it proves nothing", (), _nothing),
}


def check_rule(name: str) -> None:
    """Raise ``UsageError`` if there is no such rule."""
    if name and name not in RULES:
        raise UsageError(f"--break {name}: there is no such rule; there are {', '.join(RULES)}.")


def disarms(rule: str) -> bool:
    """Return whether this rule is that no fault takes effect."""
    return rule == DISARMED


def preferred_kinds(rule: str) -> tuple[str, ...]:
    """Return the kinds of faults that show that a rule is broken."""
    return RULES[rule].kinds if rule else ()


def break_rule(rule: str) -> None:
    """Break a rule for the rest of this process."""
    if rule:
        RULES[rule].break_it()
