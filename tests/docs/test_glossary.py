"""docs/glossary.md has every status, every phase and every table."""

from __future__ import annotations

import re
from pathlib import Path

from ferryman.records.rows import TERMINAL, Status
from ferryman.state.state import FOLDERS

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text("utf-8")
WORDS = [word for cell in re.findall(r"^\| ([^|]+?) \|", PAGE, re.MULTILINE) for word in cell.split(", ")]


def test_each_word_is_there_once() -> None:
    """A word has one meaning."""
    words = [word for word in WORDS if word not in ("word", "status")]

    assert sorted(words) == sorted(set(words))


def test_statuses() -> None:
    """All of them; the terminal ones say that they are, or until when."""
    section = PAGE.partition("## Statuses")[2]
    rows = dict(re.findall(r"^\| ([A-Z_]+) \|.*\| (.+?) \|$", section, re.MULTILINE))

    assert set(rows) == {status.value for status in Status}
    assert {name for name, after in rows.items() if after.startswith("Nothing")} == {s.value for s in TERMINAL}


def test_phases_and_tables() -> None:
    """What a wave does, and where it is kept."""
    assert {"scan", "transform", "commit", "deliver", "settle"} <= set(WORDS)
    assert {"outbox", "documents", "ledger", "journal"} <= set(WORDS) & set(FOLDERS)
