"""``embed_text``: vectors of texts, by the model that comes in a package, and by functions of one's own."""

from __future__ import annotations

import logging
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from ferryman import Document, PermanentError, steps
from ferryman.errors import BadDocument, UsageError
from ferryman.steps.embed import Role

pytest.importorskip("wordllama")


def doc(text: str, id: str = "a", **fields: Any) -> Document:
    return Document(id, raw=text.encode(), **fields)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def embed(text: str, **options: Any) -> list[float]:
    vector: list[float] = steps.embed_text(**options)(doc(text))["vector"]
    return vector


def test_near_in_meaning_is_near() -> None:
    """Two sentences without a common word are nearer than one about something else."""
    question = embed("reduce the size of a file")

    assert cosine(question, embed("compress data with gzip")) > 0.1 + cosine(question, embed("draw windows"))


@pytest.mark.parametrize("dimensions", [64, 128, 256])
def test_a_vector_has_length_one(dimensions: int) -> None:
    """And as many numbers as were asked for."""
    vector = embed("O for a Muse of fire", dimensions=dimensions)

    assert len(vector) == dimensions
    assert math.isclose(cosine(vector, vector), 1, abs_tol=1e-6)


def test_a_text_has_the_same_vector_in_whatever_batch() -> None:
    """To the last digit: else a chunk would be sent again because its neighbours changed."""
    texts = ["short", "a text of some more words than that", "word " * 2000, "Grüße, 北京, \U0001f600 and \0"]
    step = steps.embed_text()
    alone = [step(doc(text))["vector"] for text in texts]

    assert [each["vector"] for each in step([doc(text) for text in texts])] == alone  # type: ignore[index]
    assert [each["vector"] for each in step([doc(text) for text in texts[::-1]])] == alone[::-1]  # type: ignore[index]


def test_another_process_makes_the_same() -> None:
    """Question and documents are embedded in different ones."""
    script = "import ferryman as f; print(f.steps.embed_text()(f.Document('a', raw=b'O for a Muse'))['vector'])"
    script = script.replace("import ferryman as f", "import ferryman as f, ferryman.steps")
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)

    assert done.stdout.strip() == str(embed("O for a Muse"))


def test_what_loads_the_model_leaves_the_programs_logging_alone() -> None:
    """The package configures the root logger when it is imported."""
    script = """
import logging, ferryman.steps
from ferryman import Document
ferryman.steps.embed_text()(Document("a", raw=b"x"))
print(logging.root.handlers, logging.root.level == logging.WARNING)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)

    assert (done.stdout, done.stderr) == ("[] True\n", "")
    assert not logging.root.disabled


def test_context_stands_before_the_text() -> None:
    """Fields that are not there, or are empty, are left out; what is listed stands line by line."""
    seen: list[str] = []

    def model(texts: list[str], role: Role) -> list[list[float]]:
        seen.extend(texts)
        return [[1.0]] * len(texts)

    step = steps.embed_text(context=("title", "headings", "missing", "blank"), model=model)
    step(doc("Text.", title="Henry V", headings=["Act I", "Prologue"], blank=" "))

    assert seen == ["Henry V\nAct I\nPrologue\nText."]


def test_a_field_may_hold_the_text() -> None:
    """One text or several; the vector goes where it is wanted."""
    step = steps.embed_text(field="about", into="about_vector")

    done = step(Document("a", about=["One.", "Two."]))
    assert done["about_vector"] == embed("One.\nTwo.")
    assert done["about"] == ["One.", "Two."]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_is_its_documents_error(text: str) -> None:
    """And nobody else's; the message says what to do."""
    first, second = steps.embed_text()([doc(text, "empty"), doc("not empty")])  # type: ignore[misc]

    assert isinstance(first, BadDocument)
    assert str(first).startswith("empty: it has no text")
    assert "drop_if" in str(first)
    assert len(second["vector"]) == 256


def test_a_text_that_is_too_long_is_its_documents_error() -> None:
    """The context counts, too."""
    step = steps.embed_text(max_characters=20, context="title")

    assert len(step(doc("x" * 20))["vector"]) == 256
    for long in (doc("x" * 21), doc("x" * 15, title="title")):
        with pytest.raises(BadDocument, match=r"a: it has 21 characters, and .* 20 at most.*split_text"):
            step(long)


@pytest.mark.parametrize("context", ["", "title"])
def test_a_text_that_cannot_be_stored_is_refused(context: str) -> None:
    """Half a character, which a field may hold until it is encoded."""
    step = steps.embed_text(field="a", context=context or ())
    with pytest.raises(BadDocument, match="half a character"):
        step(Document("i", a="x" if context else "\ud800", title="\ud800"))


def test_raw_that_is_no_text_is_refused() -> None:
    """By its own error, beside others that are in order."""
    first, second = steps.embed_text()([Document("x", raw=b"\xff"), doc("y")])  # type: ignore[misc]

    assert isinstance(first, BadDocument)
    assert "vector" in second


def test_a_question_has_no_context_and_another_role() -> None:
    """A model may embed it in another way."""
    roles: list[tuple[str, Role]] = []

    def model(texts: list[str], role: Role) -> list[list[float]]:
        roles.extend((text, role) for text in texts)
        return [[3.0, 4.0]] * len(texts)

    step = steps.embed_text(model=model, context="title", field="body")
    step(Document("a", body="text", title="t"))
    asked = step.for_question(doc("what?", title="t"))

    assert roles == [("t\ntext", "document"), ("what?", "query")]
    assert asked["vector"] == [0.6, 0.8]


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        ([math.nan, 1.0], "NaN or an infinite number"),
        ([math.inf, 1.0], "NaN or an infinite number"),
        ([0.0, 0.0], "zeros only"),
        ([], "0 numbers"),
        ([1.0], "1 numbers, and dimensions=2"),
        ([1.0, 2.0, 3.0], "3 numbers"),
        (["a", "b"], "not a list of numbers"),
        (None, "not a list of numbers"),
        ([[1.0, 2.0]], "not a list of numbers"),
    ],
)
def test_an_answer_that_is_no_vector_is_its_documents_error(vector: Any, why: str) -> None:
    """The other answers are matched by place, and stay."""
    step = steps.embed_text(model=lambda texts, role: [[1, 0], vector, [0, 1]], dimensions=2)
    one, two, three = step([doc("x", "1"), doc("y", "2"), doc("z", "3")])  # type: ignore[misc]

    assert (one["vector"], three["vector"]) == ([1.0, 0.0], [0.0, 1.0])
    assert isinstance(two, PermanentError)
    assert why in str(two)
    assert str(two).startswith("2: ")


@pytest.mark.parametrize("number", [0, 1, 3])
def test_another_number_of_answers_is_believed_of_none(number: int) -> None:
    """It cannot be known which text has none."""
    step = steps.embed_text(model=lambda texts, role: [[1.0, 0.0]] * number)
    documents = [doc("x"), doc("y")]

    with pytest.raises(PermanentError, match=f"{number} vectors for 2 texts"):
        step(documents)
    assert not any("vector" in each for each in documents)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"model": "gpt-5"}, "or a function"),
        ({"dimensions": 100}, "256, 128, 64"),
        ({"dimensions": 0, "model": len}, "give 1 or more"),
        ({"into": ""}, "name of a field"),
        ({"context": ["title", ""]}, "name of a field"),
        ({"max_characters": 0}, "give 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_step_is_made(options: dict[str, Any], why: str) -> None:
    """So `ferryman plan check` finds it."""
    with pytest.raises(ValueError, match=why):
        steps.embed_text(**options)


def test_without_its_package_the_plan_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of one's own needs none."""
    monkeypatch.setattr("ferryman.steps.embed.find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"pip install 'ferryman\[embed\]'"):
        steps.embed_text()
    steps.embed_text(model=lambda texts, role: [])


def test_it_travels_after_it_was_used() -> None:
    """The model is not part of the step: workers load their own."""
    step = steps.embed_text()
    step(doc("x"))

    assert len(pickle.dumps(step)) < 1000
    assert pickle.loads(pickle.dumps(step)) == step
