"""Steps that move whole fields."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.document import Document
from ferryman.steps import copy_field, drop_fields, rename_field, set_field


def test_a_copy_is_one_of_its_own() -> None:
    """What is done to the one does not show in the other; what was there is replaced."""
    doc = copy_field("tags", "all")(Document("i", tags=["x"], all="old"))
    doc["all"].append("y")

    assert doc.fields == {"tags": ["x"], "all": ["x", "y"]}


def test_renaming_replaces_what_is_there() -> None:
    """The old name is gone. Nothing is gone where there is no such field."""
    assert rename_field("Title", "title")(Document("i", Title="new", title="old")).fields == {"title": "new"}
    assert rename_field("Title", "title")(Document("i", title="old")).fields == {"title": "old"}


def test_null_is_a_value_that_moves() -> None:
    """Copies and renames look at the name only."""
    assert rename_field("a", "b")(Document("i", a=None)).fields == {"b": None}
    assert copy_field("a", "b")(Document("i", a=None)).fields == {"a": None, "b": None}


def test_dropping_keeps_the_others() -> None:
    """One name or several."""
    assert drop_fields("a")(Document("i", a=1, b=2)).fields == {"b": 2}
    assert drop_fields(["a", "c"])(Document("i", a=1, b=2)).fields == {"b": 2}


@pytest.mark.parametrize(
    ("held", "value", "becomes"),
    [
        (None, "x", ["x"]),
        ("a", "x", ["a", "x"]),
        (["a", "b"], "x", ["a", "b", "x"]),
        (["a"], ["x", "y"], ["a", "x", "y"]),
        ("", "x", ["", "x"]),
        (0, 1, [0, 1]),
        ([], [], []),
        ({"k": 1}, "x", [{"k": 1}, "x"]),
    ],
)
def test_appending_makes_a_list(held: Any, value: Any, becomes: Any) -> None:
    """Of whatever is there."""
    assert set_field("a", value, how="append")(Document("i", a=held))["a"] == becomes


@pytest.mark.parametrize("held", [None, "", [], {}])
def test_what_is_empty_is_filled(held: Any) -> None:
    """A missing field is empty too."""
    step = set_field("a", "x", how="if-empty")

    assert step(Document("i", a=held))["a"] == "x"
    assert step(Document("i"))["a"] == "x"


@pytest.mark.parametrize("held", [0, False, 0.0, " ", [None], "x"])
def test_a_value_is_not_empty(held: Any) -> None:
    """Nor is white space: trim it before."""
    assert set_field("a", "new", how="if-empty")(Document("i", a=held))["a"] == held


def test_each_document_gets_its_own_value() -> None:
    """What later steps do to it does not show in the next document, nor in the plan."""
    given = ["x"]
    step = set_field("a", given)
    given.append("changed after the plan was made")
    step(Document("i"))["a"].append("y")

    assert step(Document("j"))["a"] == ["x"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: copy_field("a", "a"), "field and to are both 'a'"),
        (lambda: rename_field("a", "a"), "field and to are both 'a'"),
        (lambda: rename_field("", "a"), "field='': give the name of a field"),
        (lambda: copy_field("a", None), "to=None: give the name of a field"),  # type: ignore[arg-type]
        (lambda: set_field("a", object()), "value: field 'a' holds a object that JSON cannot hold"),
        (lambda: set_field("a", 1, how="add"), "how='add': choose one of replace, append, if-empty"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_found_when_the_step_is_made(make: Any, says: str) -> None:
    """In the plan file."""
    with pytest.raises(ValueError, match=says):
        make()
