"""What a run says of mistakes in a plan's own code: where they are, and what was forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Dropped, PermanentError, Plan, account
from ferryman.destinations import Null
from ferryman.engine import preview
from ferryman.plan.calls import always_returns_none
from ferryman.records import rows
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import run_plan


def forgetful(doc: Document) -> None:
    doc["title"] = doc.text()


def sometimes(doc: Document) -> Document | None:
    return doc if doc.id == "d2" else None


def on_purpose(doc: Document) -> Document:
    raise Dropped(f"not {doc.id}")


def never_here(doc: Document) -> Document | None:
    return doc if doc.text() == "never" else None


def broken(doc: Document) -> Document:
    doc["title"] = deeper(doc)
    return doc


def deeper(doc: Document) -> Any:
    return dict(doc)["title"]


def plan_of(step: Callable[..., Any], number: int = 4) -> Plan:
    plan = Plan("trial")
    documents = [{"id": f"d{n}", "raw": b"text"} for n in range(number)]
    plan.source("docs", Memory(documents)).step("title", step).destination("out", Null())
    return plan


def messages_of(plan: Plan, state: Path) -> list[str]:
    return run_plan(plan, state, wait=0).messages


@pytest.mark.parametrize(("step", "number"), [(forgetful, 4), (forgetful, 1), (never_here, 4)])
def test_a_forgotten_return_is_named(tmp_path: Path, step: Callable[..., Any], number: int) -> None:
    """A step that returned None for every document."""
    [hint] = messages_of(plan_of(step, number), tmp_path)
    assert hint.startswith("step title returned None for ")
    assert "must return its document" in hint


@pytest.mark.parametrize(("step", "number"), [(sometimes, 4), (on_purpose, 4), (never_here, 1)])
def test_a_filter_gets_no_hint(tmp_path: Path, step: Callable[..., Any], number: int) -> None:
    """One that lets some pass, that says why, or that met a single document."""
    assert messages_of(plan_of(step, number), tmp_path) == []


def test_plan_check_sees_code_that_never_returns_a_document() -> None:
    """Before anything runs."""
    [warning] = plan_of(forgetful).check()
    assert warning.startswith("title: its function always returns None")
    assert plan_of(never_here).check() == []


class Called:
    def __call__(self, doc: Document) -> None:
        doc["title"] = 1


class Returns(Called):
    def __call__(self, doc: Document) -> Any:
        return doc


def makes(doc: Document) -> Any:
    yield doc


@pytest.mark.parametrize(
    ("function", "nothing"),
    [
        (forgetful, True),
        (Called(), True),
        (Called().__call__, True),
        (lambda doc: None, True),
        (lambda doc: doc, False),
        (Returns(), False),
        (makes, False),
        (on_purpose, False),
        (never_here, False),
        (print, False),
    ],
)
def test_what_a_function_returns(function: Any, nothing: bool) -> None:
    """As far as its code shows it."""
    assert always_returns_none(function) is nothing


def test_preview_gives_the_same_hint(tmp_path: Path) -> None:
    """So it is seen before the first run."""
    plan = plan_of(forgetful)
    plan.freeze()
    with preview.scratch_folder() as folder:
        found = preview.PreviewRun(plan, tmp_path / "trial-v0", folder, InProcess(), preview.Silent()).run(20)
    assert any("must return its document" in message for message in found.messages)


def test_an_error_says_where_it_is(tmp_path: Path) -> None:
    """The innermost line of the user's own code, in the message; the traceback after it."""
    plan = plan_of(broken, 1)
    messages_of(plan, tmp_path)
    [delivery] = account.deliveries(tmp_path / "trial-v0", plan=plan)
    line = deeper.__code__.co_firstlineno + 1
    assert rows.reason_of(delivery["message"]) == f"step title: KeyError: 'title' ({__file__}:{line})"
    trace = rows.traceback_of(delivery["message"])
    assert trace.startswith("Traceback (most recent call last):")
    assert "in broken" in trace
    assert trace.endswith("KeyError: 'title'")
    assert "ferryman/engine" not in trace


def test_tracebacks_are_kept_of_some(tmp_path: Path) -> None:
    """Of many documents that fail on one line, the first ones have it."""
    plan = plan_of(broken, 30)
    messages_of(plan, tmp_path)
    found = account.deliveries(tmp_path / "trial-v0", plan=plan)
    assert sum(bool(rows.traceback_of(row["message"] or "")) for row in found) == 20


def test_words_chosen_on_purpose_stand_alone(tmp_path: Path) -> None:
    """Whoever raises a PermanentError says what is wrong."""

    def refuse(doc: Document) -> Document:
        raise PermanentError("it has no title")

    plan = plan_of(refuse, 1)
    messages_of(plan, tmp_path)
    [delivery] = account.deliveries(tmp_path / "trial-v0", plan=plan)
    assert delivery["message"] == "step title: PermanentError: it has no title"


def test_a_long_traceback_is_cut(tmp_path: Path) -> None:
    """What a ledger keeps of it has a bound."""

    def endless(doc: Document) -> Document:
        raise ValueError("x" * 100_000)

    plan = plan_of(endless, 1)
    messages_of(plan, tmp_path)
    [delivery] = account.deliveries(tmp_path / "trial-v0", plan=plan)
    assert len(rows.traceback_of(delivery["message"])) < rows.LONGEST + 100
