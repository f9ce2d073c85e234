"""Search by meaning: the plan's own step embeds the question, the plan's destination is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import ferryman
from ferryman import Document, Plan, Unavailable, steps
from ferryman.destinations import JsonLines, Sql
from ferryman.destinations.vectors import VectorField
from ferryman.errors import UsageError
from ferryman.retrieval.search import embed_question, find_destination, find_step
from ferryman.sources import Memory
from ferryman.testing.vectors import MemoryVectors, vector_delivery


class CountingVectors(MemoryVectors):
    """Says so when it is asked."""

    asked: ClassVar[list[tuple[str, Any, int, Any]]] = []

    def nearest(self, field: str, vector: Any, limit: int = 10, where: Any = None) -> Any:
        self.asked.append((field, list(vector), limit, where))
        return super().nearest(field, vector, limit, where)

    def target(self) -> str:
        return f"memory://{self.name}"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    MemoryVectors.stores.clear()
    CountingVectors.asked.clear()
    yield
    MemoryVectors.stores.clear()


def encode(texts: list[str], role: str) -> list[list[float]]:
    """East for "right", north for "up", the sum for both; a question is a little turned."""
    turn = 0.1 if role == "query" else 0.0
    return [[float("right" in text) + turn, float("up" in text) + 2 * turn] for text in texts]


def make_plan(step: Any = None, vectors: Any = None, **options: Any) -> Plan:
    plan = Plan("compass", version=1)
    read = plan.source("texts", Memory([]))
    embedded = read.step("embed", step or steps.embed_text(model=encode), **options)
    embedded.destination("index", CountingVectors("compass", vectors or {"vector": 2}))
    return plan


def fill() -> None:
    store = CountingVectors("compass", {"vector": 2})
    store.write(
        [
            vector_delivery("right.txt", 1, [1.0, 0.0], team="a", title="To the right"),
            vector_delivery("up.txt", 2, [0.0, 1.0], team="b", year=2024),
            vector_delivery("both.txt", 3, [1.0, 1.0], team=["a", "b"]),
        ]
    )


def test_the_question_is_embedded_by_the_plans_step_in_its_role() -> None:
    """And the rows come with scores, the best first."""
    fill()

    hits = ferryman.search("index", "go up", plan=make_plan(), embed="embed", limit=2)

    assert [hit.id for hit in hits] == ["up.txt", "both.txt"]
    assert hits[0].score is not None
    assert hits[1].score is not None
    assert 1 > hits[0].score > hits[1].score
    [(field, vector, limit, where)] = CountingVectors.asked
    assert (field, limit, where) == ("vector", 2, None)
    assert vector == pytest.approx([0.1 / 1.2041595, 1.2 / 1.2041595], abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"batch": 8}, {"rate": "1000/s"}, {"timeout": 60.0}, {"concurrency": 2}])
def test_the_step_is_called_as_the_plan_says(options: dict[str, Any]) -> None:
    """With a list, where the plan gives it lists."""
    fill()

    assert ferryman.search("index", "right", plan=make_plan(**options), embed="embed")[0].id == "right.txt"


def test_a_filter_leaves_out_all_others() -> None:
    """One value, or several of which one is enough."""
    fill()
    plan = make_plan()

    def ids(where: Any) -> list[str]:
        return [hit.id for hit in ferryman.search("index", "right", plan=plan, embed="embed", where=where)]

    assert ids({"team": "b"}) == ["both.txt", "up.txt"]
    assert ids({"team": "b", "year": 2024}) == ["up.txt"]
    assert ids({"year": [2023, 2024]}) == ["up.txt"]
    assert ids({"team": "c"}) == []


def a_function(doc: Document) -> Document:
    doc["vector"] = encode([doc.text()], "document")[0]
    return doc


def of_lists(docs: list[Document]) -> list[Document]:
    return [a_function(doc) for doc in docs]


async def later(doc: Document) -> Document:
    return a_function(doc)


def by_field(doc: Document) -> list[Document]:
    doc["vector"] = encode([doc["text"]], "document")[0]
    return [doc.child("1"), doc]


def with_key(doc: Document) -> Document:
    assert len(doc.idempotency_key) == 32
    return a_function(doc)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (a_function, {}),
        (of_lists, {"batch": 4}),
        (later, {}),
        (later, {"concurrency": 3}),
        (by_field, {}),
        (with_key, {}),
    ],
)
def test_any_step_embeds_a_question(function: Any, options: dict[str, Any]) -> None:
    """A document with the question as ``raw`` and in its field ``text``; children do not matter."""
    fill()

    assert ferryman.search("index", "right", plan=make_plan(function, **options), embed="embed")[0].id == "right.txt"


def test_a_function_may_have_another_for_questions() -> None:
    """As models have that know questions from documents."""
    fill()

    def embed(doc: Document) -> Document:
        raise AssertionError("this one is for documents")

    embed.for_question = a_function  # type: ignore[attr-defined]
    assert ferryman.search("index", "right", plan=make_plan(embed), embed="embed")[0].id == "right.txt"


def test_a_step_that_was_given_as_a_class_has_its_role_too() -> None:
    """``plan.step("embed", embed_text)`` is ``embed_text()``."""
    pytest.importorskip("wordllama")
    plan = make_plan(steps.embed_text, {"vector": 256})

    assert len(embed_question(find_step(plan, "embed"), "go up")["vector"]) == 256


def drops(doc: Document) -> None:
    return None


def fails(doc: Document) -> Document:
    raise KeyError("secret")


def is_away(doc: Document) -> Document:
    raise Unavailable("the model's service answers 503")


def sets_nothing(doc: Document) -> Document:
    return doc


def sets_another(doc: Document) -> Document:
    doc["embedding"] = [1.0, 2.0]
    return doc


def three(doc: Document) -> Document:
    doc["vector"] = [1.0, 2.0, 3.0]
    return doc


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (drops, "does not return the question"),
        (fails, "cannot embed the question: KeyError"),
        (is_away, "cannot embed the question: the model's service answers 503"),
        (sets_nothing, "it has set nothing, and the vectors there are vector"),
        (sets_another, "it has set embedding, and the vectors there are vector"),
        (three, "has 3 dimensions, the plan says 2"),
    ],
)
def test_a_step_that_does_not_embed_is_named(function: Any, why: str) -> None:
    """With what it did, and what to do."""
    fill()

    with pytest.raises(UsageError, match=why):
        ferryman.search("index", "right", plan=make_plan(function), embed="embed")


def test_what_there_is_not_is_said() -> None:
    """A step, a destination, vectors, the one without the other; each with what there is."""
    plan = make_plan()
    plain = Plan("plain")
    plain.source("texts", Memory([])).step("embed", a_function).destination("lines", JsonLines("out.jsonl"))

    def error(index: str = "index", text: str = "right", **options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            ferryman.search(index, text, **options)
        return str(caught.value)

    assert error(plan=plan, embed="vectors") == "plan compass has no step 'vectors'; it has embed."
    assert "it has index (memory://compass)" in error("other.db", plan=plan, embed="embed")
    assert "lines has no vectors" in error("lines", plan=plain, embed="embed")
    assert "needs both" in error(plan=plan)
    assert "needs both" in error(embed="embed")
    assert "a filter needs" in error(where={"team": "a"})
    assert "the question is empty" in error(text=" \n", plan=plan, embed="embed")
    assert "40 000 characters" in error(text="x" * 40_000, plan=plan, embed="embed")
    assert "the filter" in error(plan=plan, embed="embed", where={"team": None})


@pytest.mark.parametrize(
    "text", ["right'; DROP TABLE documents; --", 'right "" OR AND ( * ^ ~ \\', "right \0 \ud800 \u202e"]
)
def test_hostile_characters_are_words_like_others(text: str) -> None:
    """None of them has a meaning."""
    fill()

    assert ferryman.search("index", text, plan=make_plan(), embed="embed")[0].id == "right.txt"


def test_two_vectors_of_a_step_are_both_asked() -> None:
    """What both find comes first."""
    declared = {"title_vector": VectorField(2), "vector": VectorField(2)}

    def both(doc: Document) -> Document:
        doc["title_vector"], doc["vector"] = [1.0, 0.0], [0.0, 1.0]
        return doc

    CountingVectors("compass", declared).write(
        [
            vector_delivery("title.txt", 1, [0.9, -0.2], title_vector=[1.0, 0.0]),
            vector_delivery("text.txt", 2, [0.0, 1.0], title_vector=[-1.0, 0.1]),
            vector_delivery("both.txt", 3, [0.1, 1.0], title_vector=[1.0, 0.1]),
            vector_delivery("other.txt", 4, [0.9, 0.2], title_vector=[0.2, 1.0]),
        ]
    )
    hits = ferryman.search("index", "x", plan=make_plan(both, declared), embed="embed")

    assert hits[0].id == "both.txt"
    assert {hit.id for hit in hits} == {"title.txt", "text.txt", "both.txt", "other.txt"}


def test_a_destination_is_found_by_its_name_or_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the path that a shell completes, by the URL of the plan, by its target; of several by name only."""
    monkeypatch.chdir(tmp_path)
    plan = Plan("places")
    source = plan.source("texts", Memory([]))
    source.destination("chunks", Sql("sqlite:///index.db", table="chunks"))
    source.destination("pages", Sql("sqlite:///pages.db"))
    file = tmp_path / "index.db"
    for place in ("chunks", "index.db", "./index.db", str(file), f"sqlite:///{file}", f"sqlite:///{file}#chunks"):
        assert find_destination(plan, place).name == "chunks", place
    source.destination("more", Sql("sqlite:///index.db", table="more"))
    with pytest.raises(UsageError, match="has 2 destinations there: say by its name"):
        find_destination(plan, "index.db")
    with pytest.raises(UsageError, match="no destination with vectors"):
        find_destination(plan)
    with pytest.raises(UsageError) as caught:
        find_destination(plan, "postgresql://me:secret@host/db")
    assert "secret" not in str(caught.value)
