"""docs/reference/guarantees.md: every rule has a test that names it, and every test on it is run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from scripts.docs import guarantees, tried

ROOT = Path(__file__).parents[2]
RULES = Counter(rule for rules in guarantees.groups().values() for rule in rules)


def test_every_rule_has_a_test() -> None:
    """If this fails: mark the test that proves it with ``@pytest.mark.rule(id)``, or write one."""
    assert set(RULES) - {rule for proof in guarantees.proofs() for rule in proof.rules} == set()


def test_every_marker_names_a_rule() -> None:
    """If this fails: correct the marker, or add the rule to docs/reference/rules.toml."""
    unknown = [(p.path, p.name, rule) for p in guarantees.proofs() for rule in p.rules if rule not in RULES]

    assert unknown == []


def test_every_group_says_what_it_is_for() -> None:
    """In one or two sentences, none of which is long."""
    for heading, text in guarantees.introductions().items():
        sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
        assert 1 <= len(sentences) <= 2, heading
        assert max(len(sentence.split()) for sentence in sentences) <= 30, heading


def test_ids_and_sentences() -> None:
    """An id is there once and short, a sentence is one."""
    assert set(RULES.values()) == {1}
    for rules in guarantees.groups().values():
        for rule, sentence in rules.items():
            assert re.fullmatch(r"[a-z]+\.[a-z-]+", rule)
            assert re.fullmatch(r"[^|\n]+\.", sentence), rule


def test_every_test_of_a_rule_is_run() -> None:
    """By pytest's rules of names; skipped and expected to fail is no proof."""
    proofs = [(proof.path, proof.name) for proof in guarantees.proofs()]
    assert len(proofs) >= len(RULES)
    parsed = {path: ast.parse((ROOT / path).read_text("utf-8")).body for path in {path for path, _ in proofs}}
    for path, name in set(proofs):
        assert Path(path).name.startswith("test_"), path
        body = parsed[path]
        for part in name.split("::"):
            assert part.startswith(("test_", "Test")), name
            [node] = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part]
            body = node.body
    assert not [p for p in guarantees.proofs() if p.marks & {"skip", "skipif", "xfail"}]


def test_every_rule_is_proved_by_make_test() -> None:
    """Not only by tests that take minutes, nor only where there is a Java runtime."""
    quick = {rule for p in guarantees.proofs() if not p.marks & {"slow", "spark"} for rule in p.rules}

    assert set(RULES) - quick == set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pytestmark = pytest.mark.rule('a.b')", "put the marker on a test"),
        ("CASES = [pytest.param(1, marks=pytest.mark.rule('a.b'))]", "put the marker on a test"),
        ("def test():\n    @pytest.mark.rule('a.b')\n    def inner(): ...", "put the marker on a test"),
        ("@pytest.mark.rule\ndef test_x(): ...", "name rules by their ids"),
        ("@pytest.mark.rule()\ndef test_x(): ...", "name rules by their ids"),
        ("@pytest.mark.rule(NAME)\ndef test_x(): ...", "name rules by their ids"),
    ],
)
def test_a_marker_that_would_not_be_seen_is_refused(text: str, says: str) -> None:
    """No rule is thought to have a test that it has not."""
    with pytest.raises(ValueError, match=says):
        list(guarantees.proofs_in(text, "tests/test_x.py"))


def test_markers_are_found() -> None:
    """On functions and classes, several at once; other markers of the test are known."""
    text = (
        "pytestmark = [pytest.mark.spark]\n"
        "@pytest.mark.slow\n@pytest.mark.rule('a.b', 'a.c')\ndef test_x(): ...\n"
        "@pytest.mark.rule('a.d')\nclass TestY:\n    @pytest.mark.rule('a.e')\n    def test_z(self): ...\n"
    )

    assert [(p.name, p.rules, p.marks) for p in guarantees.proofs_in(text, "tests/test_x.py")] == [
        ("test_x", ("a.b", "a.c"), {"slow", "spark"}),
        ("TestY", ("a.d",), {"spark"}),
        ("TestY::test_z", ("a.e",), {"spark"}),
    ]


def test_a_row_of_what_was_tried_names_tests_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that was renamed is not counted as none."""
    rows = tmp_path / "tried.toml"
    rows.write_text(
        '[[tried]]\nwhat = "a kill"\nwhere = "here"\ntests = ["tests/docs/test_guarantees.py::test_gone"]\n'
    )
    monkeypatch.setattr(tried, "ROWS", rows)

    with pytest.raises(ValueError, match=r"finds no test .*test_gone"):
        tried.table()


def test_cases_are_counted_by_what_runs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow cases are of `make prove` only."""
    rows = tmp_path / "tried.toml"
    rows.write_text('[[tried]]\nwhat = "kills"\nwhere = "disk"\ntests = ["tests/crash/test_matrix.py"]\n')
    monkeypatch.setattr(tried, "ROWS", rows)

    short, every = tried.table().splitlines()[-1].split(" | ")[2:4]
    assert 0 < int(short.replace(",", "")) < int(every.replace(",", ""))
