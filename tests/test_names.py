"""One name, one thing: class names, and words that the project has given up (docs/glossary.md)."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.source_code import nodes

ROOT = Path(__file__).parents[1]

PORTS = {"Csv", "Elasticsearch", "JsonLines", "Kafka", "Lines", "Memory", "OpenSearch", "Queue", "Solr", "Sql"}
"""What is a source is a destination too, under the same name. The queue of messages and the intake's of batches are two
things that people know by one word: each is the only one in its package."""

RETIRED = {
    r"\btap(s|ped)?\b": "a tee: `plan.tee`",
    r"\bsources\.Table\b": "sources.DataFrame",
    r"\bferryman docs\b": "ferryman deliveries",
    r"\bferryman[./]consumers\b": "ferryman.intake.service",
    r"\bferryman[./]settings\b": "ferryman.limits",
    r"universal=": "Unavailable or Misconfigured",
}

RETIRED_IN_TEXTS = {
    r"(?<!there )\bis no (?!longer |more )\w": "is not a …",
    r"\b(mend|mends|mended|mending)\b(?!`|\()": "fix or repair",
    r"\banew\b(?!:)": "again, or from scratch",
    r"\btaken up\b": "processed, or applied",
    r"\b(is|are|was|stays|what) owed\b": "pending",
    r"\bparked\b": "held for review",
    r"\bfor ever\b": "permanently, or until something named happens",
}
"""Not in messages and docstrings. ``owed`` alone is a column of the ledger."""


@functools.cache
def texts() -> list[tuple[Path, list[str]]]:
    """All files with words that people read, as lines."""
    return [
        (path, path.read_text("utf-8").splitlines())
        for folder in ("src", "docs", "bench", "scripts", "README.md")
        for path in ([ROOT / folder] if folder.endswith(".md") else (ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".toml")
    ]


def test_a_class_name_stands_once() -> None:
    """Ports aside: a reader who looks for a class finds one."""
    places = defaultdict(list)
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in PORTS} == {}


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_are_not_used(word: str) -> None:
    """Neither in code nor in docs; of old names only the changelog may speak."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, lines in texts()
        for number, line in enumerate(lines, 1)
        if re.search(word, line)
    ]
    assert found == [], f"say {RETIRED[word]}"


@pytest.mark.parametrize("words", RETIRED_IN_TEXTS)
def test_retired_phrases_are_not_in_texts(words: str) -> None:
    """String literals of the package: what the program says, and what the reference pages quote."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {match[0]}"
        for path, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in re.finditer(words, node.value, re.IGNORECASE)
    ]
    assert found == [], f"say {RETIRED_IN_TEXTS[words]}"
