"""What cannot be sent to the workers is found by ``plan check``, by name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.cli.app import start
from ferryman.destinations import Null
from ferryman.errors import PlanError
from ferryman.sources import Memory

FILE = """
import threading
from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

LOCK = threading.Lock()


def guarded(doc):
    with LOCK:
        return doc


def step(doc):
    return guarded(doc)


plan = Plan("locks", version=1)
plan.source("docs", Memory([Document("a")])).step("work", step).destination("out", Null())
"""


def refused(step: Any) -> str:
    plan = Plan("locks", version=1)
    plan.source("docs", Memory([])).step("work", step).destination("out", Null())
    with pytest.raises(PlanError) as error:
        plan.check()
    return str(error.value)


@pytest.mark.rule("plan.pickled")
def test_a_plan_file_says_which_global(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the function that uses it; Spark was not started for that."""
    (tmp_path / "plan.py").write_text(FILE)
    assert start(["plan", "check", str(tmp_path / "plan.py")]) == 2
    told = capsys.readouterr().err
    assert "work: cannot be sent to the workers: it uses the global LOCK of the global guarded" in told
    assert "Make it in the workers" in told


def test_what_a_step_closes_over_is_named() -> None:
    """A session, a lock, a connection of the program."""
    lock = threading.Lock()

    def step(doc: Document) -> Document:
        with lock:
            return doc

    assert "it uses the variable lock, and that cannot be pickled" in refused(step)


def test_an_object_is_searched_too() -> None:
    """Its attributes."""

    class Step:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, doc: Document) -> Document:
            return doc

    assert "it uses the attribute lock" in refused(Step())


def test_what_refuses_by_itself_is_said_in_its_own_words() -> None:
    """As Spark's sessions do."""

    class Session:
        def __reduce__(self) -> Any:
            raise RuntimeError("only on the driver.")

    session = Session()

    def step(doc: Document) -> Document:
        doc["session"] = str(session)
        return doc

    assert "the variable session, and that cannot be pickled: only on the driver. Make" in refused(step)


def test_a_step_that_refers_to_itself_is_fine() -> None:
    """No circle, no finding."""

    def step(doc: Document) -> Document:
        return step(doc) if doc.get("again") else doc

    plan = Plan("circle", version=1)
    plan.source("docs", Memory([])).step("work", step).destination("out", Null())
    assert plan.check() == []
