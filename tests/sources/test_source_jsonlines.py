"""JsonLines: objects as documents, JSON pointers, and what becomes of bad lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import documents, refusals, told

from ferryman.sources import JsonLines
from ferryman.sources.records import Pointer

# The example of RFC 6901, section 5.
RFC = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


def write(folder: Path, *lines: str) -> None:
    (folder / "f").write_text("\n".join(lines))


def test_a_line_is_a_document(tmp_path: Path) -> None:
    """Its members are the fields; blank lines count and are none."""
    write(tmp_path, '{"a": 1, "b": [true, null, "é"]}', "", ' {"a": {"x": 1.5}} ')

    assert {id: (d.fields, d.raw) for id, d in documents(JsonLines(tmp_path)).items()} == {
        "f#line=1": ({"a": 1, "b": [True, None, "é"]}, None),
        "f#line=3": ({"a": {"x": 1.5}}, None),
    }


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    """JSON is UTF-8, but not everywhere."""
    (tmp_path / "f").write_bytes('{"a": "é"}\n'.encode(encoding))

    [doc] = documents(JsonLines(tmp_path, encoding=encoding)).values()
    assert doc["a"] == "é"


def test_numbers_keep_every_digit(tmp_path: Path) -> None:
    """Also those of more than 64 bit."""
    write(tmp_path, '{"a": 123456789012345678901234567890}')

    [doc] = documents(JsonLines(tmp_path)).values()
    assert doc["a"] == 123456789012345678901234567890


@pytest.mark.parametrize("id", ["", "null", "true", "[1]", '{"x": 1}', '""', '"a\\nb"'])
def test_a_line_whose_id_is_not_known_deletes_nothing(tmp_path: Path, id: str) -> None:
    """Whose it is is not known, and whoever it is must not be taken for gone."""
    write(tmp_path, f'{{"id": {id}}}' if id else "{}", '{"id": "x"}')
    source = JsonLines(tmp_path, id="/id")

    assert list(documents(source, all_readable=False)) == ["x"]
    assert "id" in refusals(source)["f#line=1"]
    assert "has rows (1) whose id cannot be known" in told(source)


def test_content_that_is_no_text_is_refused_by_its_id(tmp_path: Path) -> None:
    """That is known: nothing is incomplete."""
    write(tmp_path, '{"id": "x", "body": 1}')
    source = JsonLines(tmp_path, id="id", content="body")

    assert documents(source) == {}
    assert refusals(source) == {"x": f"{tmp_path}/f, line 1: its content, at body, is not text."}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), json_values, max_size=4), max_size=4), st.booleans()
)
def test_what_python_writes_comes_back(values: list[dict[str, Any]], escaped: bool) -> None:
    """Whatever is in it."""
    source = JsonLines("x")
    lines = [(n, json.dumps(v, ensure_ascii=escaped).encode("utf-8", "replace"), "") for n, v in enumerate(values, 1)]
    for (_, line, _), row in zip(lines, source.rows_of(iter(lines)), strict=True):
        try:
            want = json.loads(line)
            json.dumps(want, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            continue  # half a surrogate pair is no text
        assert row.refused == ""
        assert row.fields == want


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("a/b", 1),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/01", None),
        ("/foo/bar", None),
        ("/none/at/all", None),
    ],
)
def test_pointers_are_those_of_the_rfc(pointer: str, value: Any) -> None:
    """RFC 6901, section 5; what is not there is None."""
    assert Pointer(pointer).of(RFC) == value
