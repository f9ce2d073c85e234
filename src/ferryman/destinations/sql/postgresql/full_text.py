"""The full-text index of one PostgreSQL table: a generated column with its words, and a GIN index over it.

``fts`` is made by the server from the columns that are searched, whoever writes the row. Its words are as FTS5 cuts
them: letters and digits of any script, without case (as far as the database's locale knows it) or accents; every other
sign parts words, also those that PostgreSQL's parser would keep together (paths, hosts, hyphens). A comment on the
column names what it was made of.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from ferryman.destinations.sql.searching import SNIPPET_WORDS, Hit, Term

COLUMN: Final = "fts"

SUFFIX: Final = "_fts"
"""Of the index."""

_MADE_OF: Final = "ferryman full text: "
"""The comment's beginning; a JSON list of columns follows."""

_JOINTS: Final = "./@_:-&=?<>+~#"
"""What the parser would take for parts of words, hosts, paths, tags or numbers."""

_SNIPPET_CHARACTERS: Final = 1_000_000
"""Of a document, where a snippet is looked for: ten hits are shown at once."""

_MARKS: Final = ("\x02", "\x03")
"""Around found words, until Python puts in what is asked for: nothing has to be escaped."""


def columns_of(connection: sa.Connection, table: str) -> tuple[str, ...] | None:
    """The columns that this table's index is made of; None if it has none."""
    comment = connection.execute(
        sa.text(
            "SELECT col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = to_regclass(:table) AND attname = :name AND NOT attisdropped"
        ),
        {"table": quoted(table), "name": COLUMN},
    ).scalar()
    if comment is None or not comment.startswith(_MADE_OF):
        return None
    return tuple(json.loads(comment.removeprefix(_MADE_OF)))


def create(connection: sa.Connection, table: str, columns: Sequence[str]) -> None:
    """Make column and index, with all rows that the table has already; it is locked meanwhile."""
    text = " || ' ' || ".join(f"coalesce({quoted(name)}::text, '')" for name in columns)
    name = quoted(table)
    comment = (_MADE_OF + json.dumps(list(columns), ensure_ascii=False)).replace("'", "''")
    words = f"to_tsvector('pg_catalog.simple', {_folded(text)})"
    for statement in (
        f"ALTER TABLE {name} ADD COLUMN {COLUMN} tsvector GENERATED ALWAYS AS ({words}) STORED",
        f"CREATE INDEX {quoted(table + SUFFIX)} ON {name} USING gin ({COLUMN})",
        f"COMMENT ON COLUMN {name}.{COLUMN} IS '{comment}'",
    ):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def find(connection: sa.Connection, table: str, terms: list[Term], limit: int, mark: tuple[str, str]) -> list[Hit]:
    """The best rows that have all of the terms."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table)}
    shown = ", ".join(f"{_in_text(name)}::text" for name in columns_of(connection, table) or ())
    title = quoted("title") + "::text" if "title" in there else "NULL"
    query, values = _query(terms)
    rows = connection.execute(
        sa.text(
            f"""
            WITH asked AS (SELECT {query} AS query, {query.replace("folded_", "typed_")} AS typed),
            found AS (
                SELECT id, {title} AS title, left(concat_ws(' … ', {shown}), {_SNIPPET_CHARACTERS}) AS text,
                    ts_rank({COLUMN}, query) AS rank
                FROM {_in_text(table)}, asked WHERE {COLUMN} @@ query ORDER BY rank DESC, id LIMIT :limit
            )
            SELECT id, title, ts_headline('simple', text, query || typed, :options), rank FROM found, asked
            ORDER BY rank DESC, id
            """
        ),
        values | {"limit": limit, "options": _options()},
    )
    return [Hit(id, title, _marked(snippet, mark), -rank) for id, title, snippet, rank in rows]


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _in_text(name: str) -> str:
    """The same in ``sa.text``, where a colon begins a parameter."""
    return quoted(name).replace(":", r"\:")


def _folded(text: str) -> str:
    """SQL that takes accents and joints from an SQL expression. Text that is all ASCII has no accents, and most is."""
    plain = f"CASE WHEN octet_length({text}) = char_length({text}) THEN {text} ELSE {_without_accents(text)} END"
    return f"translate({plain}, '{_JOINTS}', '{' ' * len(_JOINTS)}')"


def _without_accents(text: str) -> str:
    return rf"regexp_replace(normalize({text}, NFD), '[\u0300-\u036F]', '', 'g')"


def _query(terms: list[Term]) -> tuple[str, dict[str, Any]]:
    """SQL of a tsquery, with the values of its parameters: ``folded_…`` without accents, ``typed_…`` as they are."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, (phrase, is_prefix) in enumerate(terms):
        head, last = phrase, ""
        if is_prefix:
            head, last = " ".join(phrase.split()[:-1]), re.sub(r"['\\\0]", " ", phrase.split()[-1])
        part = f"phraseto_tsquery('simple', :folded_{number})"
        values |= _both(number, head)
        if is_prefix:
            part += f" <-> to_tsquery('simple', '''' || :folded_{number}_last || ''':*')"
            values |= _both(f"{number}_last", last)
        parts.append(f"({part})")
    return " && ".join(parts), values


def _both(name: int | str, text: str) -> dict[str, str]:
    text = text.replace("\0", " ").translate(dict.fromkeys(map(ord, _JOINTS), " "))
    decomposed = unicodedata.normalize("NFD", text)
    return {f"folded_{name}": re.sub("[\u0300-\u036f]", "", decomposed), f"typed_{name}": text}


def _options() -> str:
    start, stop = _MARKS
    return f"StartSel={start}, StopSel={stop}, MaxWords={SNIPPET_WORDS}, MinWords={SNIPPET_WORDS // 2}"


def _marked(snippet: str, mark: tuple[str, str]) -> str:
    for sign, text in zip(_MARKS, mark, strict=True):
        snippet = snippet.replace(sign, text)
    return snippet
