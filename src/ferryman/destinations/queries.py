"""Queries that a user types, and what they find: the same for every destination that can be searched."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SNIPPET_WORDS: Final = 16
"""Words of a snippet: about a line."""

SNIPPET_CHARACTERS: Final = 100
"""Characters of a snippet, where words are not counted."""

_TERM: Final = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')

_LIGATURES: Final = (("ß", "ss"), ("æ", "ae"), ("œ", "oe"))
"""Letters that are also written as two, which no index takes for the same by itself."""

_MOST_PLACES: Final = 4
"""Places of a word at which both spellings are tried: with each the number of spellings doubles."""


class Term(NamedTuple):
    """A word, or several consecutive words.

    Attributes:
        is_prefix: whether the last word is only the beginning of a word.
    """

    phrase: str
    is_prefix: bool

    def spellings(self) -> list[str]:
        """Return the phrase as it was typed, then in other spellings: "strasse" is also "straße"."""
        found = {self.phrase: None}
        for letter, letters in _LIGATURES:
            for phrase in list(found):
                parts = re.split(f"({letter}|{letters})", phrase, flags=re.IGNORECASE)
                places = range(1, min(len(parts), 2 * _MOST_PLACES), 2)
                for chosen in itertools.product((letter, letters), repeat=len(places)):
                    spelled = parts.copy()
                    spelled[1 : 2 * len(places) : 2] = chosen
                    if places:
                        found["".join(spelled)] = None
                if self.is_prefix and phrase.lower().endswith(letters[0]):  # of "stras*" the word may go on in two ways
                    found[phrase[:-1] + letter] = None
        return list(found)


Query = list[list[Term]]
"""Alternatives, of which each needs all its terms."""


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    title: str | None
    """The field ``title``, if there is one."""
    snippet: str
    """Where the words stand."""
    rank: float
    """Rank as the server gives it, signed so that lower is better: BM25, or ``ts_rank`` on PostgreSQL; of a vector its
    distance."""
    score: float | None = None
    """Likeness to a question with a vector, higher is better; see ``ferryman.destinations.vectors``."""
    fields: Mapping[str, Any] | None = None
    """Fields of the document, without vectors; None: they were not read."""
    text: str | None = None
    """Text of the document, where it was read and there is one."""


def parse_query(text: str) -> Query:
    """Parse a user's query: words, ``"in quotes"``, ``begin*``, and ``OR`` in capitals between alternatives. No other
    sign has a meaning, and nothing is an error."""
    alternatives: Query = [[]]
    for phrase, star, word in _TERM.findall(text):
        if word == "OR":
            alternatives.append([])
            continue
        if word:
            phrase, star = word.rstrip("*"), "*" if word.endswith("*") else ""
        if any(character.isalnum() for character in phrase):
            alternatives[-1].append(Term(phrase, bool(star)))
    return [terms for terms in alternatives if terms]
