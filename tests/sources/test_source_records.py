"""What holds for each source of lines and rows: bad ones, ids and contents of their own, wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rows import documents, refusals

from ferryman.errors import UsageError
from ferryman.sources import Csv, JsonLines, Lines
from ferryman.sources.records import Records

Kind = Callable[..., Records]

BAD_ROWS = (
    ("1", "1 cells, but there are 2 columns. Correct the row"),
    ("1,2,3", "3 cells, but there are 2 columns. Correct the row"),
    ('"1"x,2', "text after a closing quote. Double the quote if it is part of the text"),
    ("a\rb,2", "not CSV: new-line character seen in unquoted field"),
)
BAD_LINES = (
    ('{"a": 1', "not JSON: Input data was truncated"),
    (
        '{"a": "\\ud83d"}',
        "not JSON: text with half a character in it (a lone surrogate): \\ud83d stands alone. Write both",
    ),
    ('{"a": "x\\ude00 y"}', "not JSON: text with half a character in it (a lone surrogate): \\ude00 stands alone."),
    ('{"\\ud83d\\u0041": 1}', "not JSON: text with half a character in it (a lone surrogate): \\ud83d stands alone."),
    ("{'a': 1}", "not JSON: JSON is malformed"),
    ('{"a": NaN}', "not JSON: JSON is malformed: invalid character"),
    ('{"a": 1e999}', "not JSON: Number out of range"),
    ('{"a": 1} {"b": 2}', "not JSON: JSON is malformed: trailing characters"),
    ('{"a": ' + "[" * 100_000, "not JSON: it is nested more than 200 deep"),
    ('"text"', "text, not a JSON object"),
    ("[1]", "an array, not a JSON object"),
    ("1", "a number, not a JSON object"),
    ("null", "null, not a JSON object"),
    ("true", "a boolean, not a JSON object"),
)


@pytest.mark.parametrize(
    ("kind", "around", "bad", "called", "numbers", "line", "why"),
    [
        *((Csv, ('a,b\n"1\n",2\n', "\n3,4\n"), row, "f#row={}", (2, 3, 4), 4, why) for row, why in BAD_ROWS),
        *((JsonLines, ("{}\n", "\n{}"), row, "f#line={}", (1, 2, 3), 2, why) for row, why in BAD_LINES),
    ],
)
def test_a_bad_row_is_refused(
    tmp_path: Path,
    kind: Kind,
    around: tuple[str, str],
    bad: str,
    called: str,
    numbers: tuple[int, int, int],
    line: int,
    why: str,
) -> None:
    """By its file and line; the others go on."""
    (tmp_path / "f").write_bytes(bad.join(around).encode())
    source = kind(tmp_path)

    before, refused, after = (called.format(number) for number in numbers)
    assert list(documents(source)) == [before, after]
    [(id, said)] = refusals(source).items()
    assert id == refused
    assert said.startswith(f"{tmp_path}/f, line {line}: {why}")


@pytest.mark.parametrize(
    ("kind", "data", "bad", "line", "byte", "others"),
    [
        (Csv, b"a,b\n1,\xff\n3,4\n", "f#row=2", "line 2", 2, ["f#row=3"]),
        (JsonLines, b'{"a": "\xff"}\n{}\n', "f#line=1", "line 1", 7, ["f#line=2"]),
        (Lines, b"one\nb\xffd\nthree\n", "f#line=2", "line 2", 1, ["f#line=1", "f#line=3"]),
    ],
)
def test_bytes_that_are_no_text(
    tmp_path: Path, kind: Kind, data: bytes, bad: str, line: str, byte: int, others: list[str]
) -> None:
    """Named by their file, line and byte; the others go on."""
    (tmp_path / "f").write_bytes(data)

    assert list(documents(kind(tmp_path))) == others
    assert refusals(kind(tmp_path)) == {
        bad: f"{tmp_path}/f, {line}: not utf-8 text: byte {byte} of the line (0xff). "
        "Save the file in this encoding, or give its own: encoding='latin-1'."
    }


@pytest.mark.parametrize(
    ("kind", "id", "data", "found", "fields"),
    [
        (Csv, "sku", "name,sku\nx,A/1 #é\n", "A/1 %23é", {"name": "x", "sku": "A/1 #é"}),
        *(
            (JsonLines, id, '{"id": 7, "meta": [{"key": "k"}, 1.5]}', found, {"id": 7, "meta": [{"key": "k"}, 1.5]})
            for id, found in (("id", "7"), ("/id", "7"), ("/meta/0/key", "k"), ("/meta/1", "1.5"))
        ),
    ],
)
def test_an_id_of_its_own(tmp_path: Path, kind: Any, id: str, data: str, found: str, fields: dict[str, Any]) -> None:
    """In whatever row and file, by a column, a pointer or a name; numbers are taken by their text; fields stay as they
    are."""
    (tmp_path / "f").write_text(data)

    assert {id: doc.fields for id, doc in documents(kind(tmp_path, id=id)).items()} == {found: fields}


@pytest.mark.parametrize(
    ("kind", "options", "data", "found"),
    [
        (
            Csv,
            {"id": "id", "content": "text", "delimiter": ";", "encoding": "latin-1"},
            "id;text\n1;caf\xe9\n2;\n".encode("latin-1"),
            {"1": ("café".encode(), {"id": "1"}), "2": (b"", {"id": "2"})},
        ),
        (
            JsonLines,
            {"content": "/a/body"},
            '{"a": {"body": "café", "b": 1}}\n{"a": {"body": null}}\n{"a": 1}'.encode(),
            {
                "f#line=1": ("café".encode(), {"a": {"b": 1}}),
                "f#line=2": (None, {"a": {}}),
                "f#line=3": (None, {"a": 1}),
            },
        ),
    ],
)
def test_content_is_raw(
    tmp_path: Path,
    kind: Any,
    options: dict[str, Any],
    data: bytes,
    found: dict[str, tuple[bytes | None, dict[str, Any]]],
) -> None:
    """In UTF-8, and no field; where there is none, there is no raw."""
    (tmp_path / "f").write_bytes(data)

    assert {id: (doc.raw, doc.fields) for id, doc in documents(kind(tmp_path, **options)).items()} == found


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        *(
            (Csv, wrong, "Csv")
            for wrong in (
                {"delimiter": ""},
                {"delimiter": ";;"},
                {"quote": "''"},
                {"delimiter": "\n"},
                {"columns": ["a", "a"]},
                {"columns": ["a"], "id": "b"},
                {"columns": ["a"], "content": "b"},
                {"columns": []},
                {"encoding": "none"},
            )
        ),
        *((JsonLines, {name: pointer}, "JsonLines") for pointer in ("", "/a~2", "/~", 7) for name in ("id", "content")),
        *(
            (Lines, wrong, None)
            for wrong in (
                {"id": "number"},
                {"blank": "count"},
                {"encoding": "utf-9"},
                {"encoding": "base64"},
                {"max_bytes": 0},
                {"include": "../*"},
                {"root": ""},
                {"storage_options": {"key": "k"}},
                {"detect": "always"},
            )
        ),
    ],
)
def test_arguments_that_cannot_be_meant(kind: Any, wrong: dict[str, Any], says: str | None) -> None:
    """Told when the plan is built, those of its own by the name of the class."""
    with pytest.raises(UsageError, match=says):
        kind(**{"root": "x", **wrong})
