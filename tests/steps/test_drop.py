"""Letting documents go, with a reason."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from ferryman.document import Document
from ferryman.errors import Dropped
from ferryman.steps import drop_if


def test_what_the_condition_is_true_of_is_dropped() -> None:
    """With the reason; anything that Python takes for true will do."""
    step = drop_if(lambda doc: doc.get("tags"), "has tags")

    with pytest.raises(Dropped, match=r"^has tags$"):
        step(Document("i", tags=["x"]))


def test_others_go_on() -> None:
    """The very document."""
    doc = Document("i", tags=[])

    assert drop_if(lambda doc: doc.get("tags"), "has tags")(doc) is doc


def test_a_condition_of_a_plan_file_travels_with_it() -> None:
    """A lambda too, by value."""
    copy = cloudpickle.loads(cloudpickle.dumps(drop_if(lambda doc: "x" in doc, "has x")))

    with pytest.raises(Dropped, match="has x"):
        copy(Document("i", x=1))


def test_what_the_condition_raises_is_the_documents_error() -> None:
    """It is not taken for an answer."""
    with pytest.raises(KeyError, match="year"):
        drop_if(lambda doc: doc["year"] < 1900, "old")(Document("i"))


@pytest.mark.parametrize(("condition", "why"), [(None, "x"), ("draft", "x"), (bool, ""), (bool, " "), (bool, None)])
def test_mistakes_are_found_when_the_step_is_made(condition: Any, why: Any) -> None:
    """A condition is a function, and a reason is words."""
    with pytest.raises(ValueError, match=r"condition=|why="):
        drop_if(condition, why)
