"""Measures of an index: read from questions, computed by ir-measures, side by side for two versions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.errors import UsageError
from ferryman.retrieval import evaluation
from ferryman.retrieval.evaluation import Question, measures, read_questions
from ferryman.testing.vectors import MemoryVectors, vector_delivery

pytest.importorskip("ir_measures")

PLAN = """
from ferryman import Plan, steps
from ferryman.sources import Memory
from ferryman.testing.vectors import MemoryVectors

class Vectors(MemoryVectors):
    def target(self):
        return f"memory://{self.name}"

def encode(texts, role):
    return [[float("right" in text), float("up" in text) + 0.01] for text in texts]

plan = Plan("compass", version=2)
embedded = plan.source("texts", Memory([])).step("embed", steps.embed_text(model=encode))
embedded.destination("index", Vectors(f"compass-v{plan.version}", {"vector": 2}))
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan whose version 2 finds, and whose version 1 has everything in the wrong place."""
    monkeypatch.chdir(tmp_path)
    MemoryVectors.stores.clear()
    for version, right, up in (("compass-v2", [1.0, 0.0], [0.0, 1.0]), ("compass-v1", [-1.0, 0.0], [0.1, 1.0])):
        store = MemoryVectors(version, {"vector": 2})
        store.write(
            [
                vector_delivery("right.txt#1", 1, right, team="a"),
                vector_delivery("right.txt#2", 2, right, team="a"),
                vector_delivery("up.txt#1", 3, up, team="b"),
            ]
        )
    (tmp_path / "plan.py").write_text(PLAN)
    return tmp_path / "plan.py"


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_the_measures_are_those_of_the_textbook() -> None:
    """By hand: the first question's only id is at rank 2 of 3; of the second's two one is at rank 1."""
    questions = [Question("a", {"x": 1}), Question("b", {"y": 1, "z": 1})]
    found = measures(questions, [[None, "x", None], ["y", None]], 10)

    ideal = 1 + 1 / math.log2(3)
    assert found == {
        "recall@10": pytest.approx((1 + 0.5) / 2),
        "MRR@10": pytest.approx((0.5 + 1) / 2),
        "nDCG@10": pytest.approx((1 / math.log2(3) + 1 / ideal) / 2),
    }


def test_grades_make_a_better_order_better() -> None:
    """Two ids that are both found: nDCG is 1 only if the better one comes first."""
    questions = [Question("a", {"good": 3, "fair": 1})]

    assert measures(questions, [["good", "fair"]], 5)["nDCG@5"] == pytest.approx(1)
    assert 0.5 < measures(questions, [["fair", "good"]], 5)["nDCG@5"] < 0.9


def test_what_is_beyond_k_or_not_found_counts_as_nothing() -> None:
    """A question without any hit is a zero, not one question less."""
    questions = [Question("a", {"x": 1}), Question("b", {"y": 1})]

    assert measures(questions, [[None, "x"], []], 1) == {"recall@1": 0, "MRR@1": 0, "nDCG@1": 0}


def test_a_document_stands_for_its_chunks_and_counts_once(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two chunks of it are no two hits; a chunk may be named itself; a filter is the question's own."""
    questions = write(
        plan.with_name("q.jsonl"),
        {"question": "right", "ids": ["right.txt"]},
        {"question": "right", "ids": ["right.txt", "up.txt#1"]},
        "",
        {"question": "right", "ids": "up.txt", "where": {"team": "b"}},
    )

    assert start(["evaluate", str(plan), str(questions), "--k", "3", "--json"]) == 0
    [measured] = json.loads(capsys.readouterr().out)
    assert measured["index"] == "compass-v2 index"
    assert measured["measures"] == {"recall@3": 1.0, "MRR@3": 1.0, "nDCG@3": 1.0}
    assert [each["found"] for each in measured["questions"]] == [["right.txt"], ["right.txt", "up.txt#1"], ["up.txt"]]


def test_two_versions_stand_side_by_side(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same plan file read as version 1, or another file; and of each what it has not found."""
    questions = write(plan.with_name("q.jsonl"), {"question": "go right", "ids": ["right.txt"]})

    assert start(["evaluate", str(plan), str(questions), "-k", "1", "--against", "v1"]) == 0
    by_version = capsys.readouterr().out
    assert by_version.splitlines() == [
        "1 question  compass-v2 index  compass-v1 index",
        "recall@1    1.000             0.000",
        "MRR@1       1.000             0.000",
        "nDCG@1      1.000             0.000",
        "Not found by compass-v1 index: go right (expected right.txt)",
    ]
    older = plan.with_name("older.py")
    older.write_text(PLAN.replace("version=2", "version=1"))
    assert start(["evaluate", str(plan), str(questions), "-k", "1", "--against", str(older)]) == 0
    assert capsys.readouterr().out == by_version


def test_versions_that_share_an_index_cannot_be_compared(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says how each gets its own."""
    plan.write_text(PLAN.replace("v{plan.version}", "v2"))
    questions = write(plan.with_name("q.jsonl"), {"question": "go right", "ids": ["right.txt"]})

    assert start(["evaluate", str(plan), str(questions), "--against", "v1"]) == 2
    assert "both versions write to memory://compass-v2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "q.jsonl:2: this is not JSON"),
        ("[]", "q.jsonl:2: give an object"),
        ({"ids": ["a"]}, 'q.jsonl:2: "question" is None'),
        ({"question": " ", "ids": ["a"]}, '"question" is'),
        ({"question": "a"}, '"ids" is None'),
        ({"question": "a", "ids": []}, '"ids" is'),
        ({"question": "a", "ids": [1]}, '"ids" is'),
        ({"question": "a", "ids": {"a": 0}}, '"ids" is'),
        ({"question": "a", "ids": ["a"], "filter": {}}, "'filter' is not known"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: Any, why: str) -> None:
    """By file and number, with what it should be."""
    path = write(tmp_path / "q.jsonl", {"question": "a", "ids": ["a"]}, line)

    with pytest.raises(UsageError) as caught:
        read_questions(path)
    assert why in str(caught.value)


def test_a_question_may_have_any_character(tmp_path: Path) -> None:
    """Also those that end a line for Unicode, and not for JSON."""
    text = "a\u2028b\x85c"
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": text, "ids": ["a"]}, ensure_ascii=False) + "\r\n", "utf-8", newline="")
    assert read_questions(path) == [Question(text, {"a": 1})]


@pytest.mark.parametrize(("content", "why"), [(b"", "no question"), (b"\xff\n", "not UTF-8"), (None, "No such file")])
def test_a_file_without_questions_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    """As is one that is not there."""
    path = tmp_path / "q.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=why):
        read_questions(path)


def test_without_its_package_it_says_what_to_install(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any question is asked."""
    questions = write(plan.with_name("q.jsonl"), {"question": "a", "ids": ["a"]})
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)

    assert start(["evaluate", str(plan), str(questions)]) == 2
