"""What is looked for in a full-text index, and what is found."""

from __future__ import annotations

import re
from typing import NamedTuple

SNIPPET_WORDS = 16
"""Words of a snippet: about a line."""

_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')


class Term(NamedTuple):
    """A word, or several that must follow each other."""

    phrase: str
    is_prefix: bool
    """The last word may go on."""


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    title: str | None
    """The column ``title``, if there is one."""
    snippet: str
    """Where the words stand."""
    rank: float
    """As the database gives it, turned so that the lower is the better: BM25 on SQLite, ``ts_rank`` on PostgreSQL."""


def terms_of(text: str) -> list[Term]:
    """What a user typed: words, ``"in quotes"``, ``begin*``. No other sign has a meaning, and nothing is an error."""
    terms = []
    for phrase, star, word in _TERM.findall(text):
        if word:
            phrase, star = word.rstrip("*"), "*" if word.endswith("*") else ""
        if any(character.isalnum() for character in phrase):
            terms.append(Term(phrase, bool(star)))
    return terms
