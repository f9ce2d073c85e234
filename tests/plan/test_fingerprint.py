"""A plan's fingerprint changes with what its steps do, and with nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan, steps
from ferryman.sources import Memory


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    value: Any


@dataclass(frozen=True)
class Step:
    value: Any
    cache: Any = field(default=None, compare=False)

    def __call__(self, doc: Document) -> Document:
        return doc


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, doc: Document) -> Document:
        return doc


def one(doc: Document) -> Any:
    return doc["one"]


def two(doc: Document) -> Any:
    return doc["two"]


def mark(name: str, doc: Document, *, value: Any = None) -> Document:
    doc[name] = value
    return doc


def fingerprint(step: Callable[..., Any]) -> str:
    plan = Plan("p")
    plan.source("s", Memory([])).step("step", step)
    return plan.fingerprint


@pytest.mark.rule("plan.fingerprint")
@pytest.mark.parametrize(
    ("this", "that"),
    [
        ("a", "b"),
        (1, 2),
        (1, "1"),
        (1, 1.0),
        (1, True),
        (None, "None"),
        (b"a", "a"),
        (["a", "b"], ["ab"]),
        ([["a"], "b"], ["a", ["b"]]),
        (["a"], ("a",)),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a"}, {"b"}),
        (Colour.RED, Colour.BLUE),
        (Decimal("1.0"), Decimal("1.00")),
        (Path("a"), Path("b")),
        (re.compile("x" * 300 + "a"), re.compile("x" * 300 + "b")),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (Inner("a"), Inner("b")),
        (one, two),
        (lambda doc: doc["one"], lambda doc: doc["two"]),
        (partial(mark, "a"), partial(mark, "b")),
        (len, max),
        (str.upper, str.lower),
        (Colour, Inner),
    ],
)
def test_what_a_step_was_made_with_counts(this: Any, that: Any) -> None:
    """The fields of a dataclass: values, and functions by their code."""
    assert fingerprint(Step(this)) != fingerprint(Step(that))
    assert fingerprint(Step(this)) == fingerprint(Step(this))


def test_arguments_that_are_bound_count() -> None:
    """By position and by name."""
    bound = [partial(mark, "a"), partial(mark, "b"), partial(mark, "a", value=1), partial(mark, "a", value=2), mark]

    assert len({fingerprint(step) for step in bound}) == len(bound)
    assert fingerprint(partial(mark, "a")) == fingerprint(partial(mark, "a"))


def test_what_does_not_make_it_another_step_does_not_count() -> None:
    """A field that is left out of comparisons; the order of a set."""
    assert fingerprint(Step("a", cache=1)) == fingerprint(Step("a", cache=2))
    assert fingerprint(Step(frozenset("abc"))) == fingerprint(Step(frozenset("cba")))


def test_an_address_does_not_count() -> None:
    """Of what has no lasting text only the class counts, so that the fingerprint is the same tomorrow."""
    assert fingerprint(Step(threading.Lock())) == fingerprint(Step(threading.Lock()))
    assert fingerprint(Step(Plain(threading.Lock()))) == fingerprint(Step(Plain(threading.Lock())))


def test_attributes_of_an_object_of_the_users_own_class_count() -> None:
    """Whether it is the step, or an argument of one."""
    assert fingerprint(Step(Plain(1))) == fingerprint(Step(Plain(1))) != fingerprint(Step(Plain(2)))
    assert fingerprint(Plain(1)) == fingerprint(Plain(1)) != fingerprint(Plain(2))
    assert fingerprint(Plain(1)) != fingerprint(Step(1))


def test_ready_made_steps() -> None:
    """Their names and their arguments count, however these are written."""
    made = [
        steps.trim("a"),
        steps.trim("b"),
        steps.trim(["a", "b"]),
        steps.url_encode("a"),
        steps.copy_field("a", "b"),
        steps.rename_field("a", "b"),
        steps.replace_matches("a", "x", "y"),
        steps.replace_matches("a", "x", "z"),
        steps.drop_if(one, "why"),
        steps.drop_if(two, "why"),
    ]

    assert len({fingerprint(step) for step in made}) == len(made)
    assert fingerprint(steps.trim("a")) == fingerprint(steps.trim(fields=["a"], characters=None))
