"""Csv: rows as documents, as Python's own csv module reads them; and what becomes of bad ones."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import documents, refusals, told

from ferryman.sources import Csv
from ferryman.sources.records import RecordRow, physical_lines


def fields_of(folder: Path, data: str, **options: Any) -> dict[str, Any]:
    (folder / "f").write_bytes(data.encode(options.get("encoding", "utf-8")))
    return {id: doc.fields for id, doc in documents(Csv(folder, **options)).items()}


# --- documents and ids ------------------------------------------------------------------------------------------------


def test_a_row_is_a_document(tmp_path: Path) -> None:
    """Columns are fields, all of them text; a row is called as in a spreadsheet."""
    data = 'sku,name,price\n007,"Skull, Yorick\'s",1.50\n8,"two\nlines ""quoted""",\n'

    assert fields_of(tmp_path, data) == {
        "f#row=2": {"sku": "007", "name": "Skull, Yorick's", "price": "1.50"},
        "f#row=3": {"sku": "8", "name": 'two\nlines "quoted"', "price": ""},
    }


def test_a_cell_of_several_lines_shifts_no_ids(tmp_path: Path) -> None:
    """A line more in one cell is one changed document."""
    before = fields_of(tmp_path, 'a,b\n1,"x"\n2,y\n')
    after = fields_of(tmp_path, 'a,b\n1,"x\n\nx"\n2,y\n')

    assert before.keys() == after.keys()
    assert before["f#row=3"] == after["f#row=3"]


def test_blank_rows_count_and_are_no_documents(tmp_path: Path) -> None:
    """Also before the header."""
    assert list(fields_of(tmp_path, "\na,b\n\n1,2\n\n")) == ["f#row=4"]


def test_files_without_a_header(tmp_path: Path) -> None:
    """Names are given."""
    assert fields_of(tmp_path, "1,2\n", columns=["a", "b"]) == {"f#row=1": {"a": "1", "b": "2"}}


@pytest.mark.parametrize(
    "data",
    [
        "sep=;\na;b\n1,5;x\n",
        "\ufeffsep=;\r\na;b\r\n1,5;x\r\n",
        'SEP=\t\na\tb\n"1,5"\tx\n',
        '"sep=|"\na|b\n1,5|x',
    ],
)
def test_the_separator_that_excel_states_is_that_of_its_file(tmp_path: Path, data: str) -> None:
    """Its line is no row, as spreadsheets show it; the next file has its own."""
    (tmp_path / "other").write_text("a,b\nsep=;,y\n")

    assert fields_of(tmp_path, data) == {
        "f#row=2": {"a": "1,5", "b": "x"},
        "other#row=2": {"a": "sep=;", "b": "y"},
    }
    assert refusals(Csv(tmp_path)) == {}


def test_columns_without_a_name(tmp_path: Path) -> None:
    """As pandas writes its index."""
    assert fields_of(tmp_path, ",a,\n0,1,2\n") == {"f#row=2": {"column_1": "0", "a": "1", "column_3": "2"}}


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("a\tb\n1\t2\n", {"delimiter": "\t"}),
        ("a,b\r\n1,2\r\n", {}),
        ("a,b\n'1',2", {"quote": "'"}),
        ("a,b\n1,2\n", {"quote": None}),
        ("\ufeffa,b\n1,2\n", {}),
        ("a,b\n1,2\n", {"encoding": "utf-16"}),
        ("a|b\n1|2\n", {"delimiter": "|", "escape": "\\"}),
    ],
)
def test_dialects(tmp_path: Path, data: str, options: dict[str, Any]) -> None:
    """Delimiters, quotes, line ends, byte order marks."""
    assert fields_of(tmp_path, data, **options) == {"f#row=2": {"a": "1", "b": "2"}}


def test_an_escape(tmp_path: Path) -> None:
    """It makes the next character mean itself."""
    data = 'a,b\n"x\\"y",1\\,2\n'

    assert fields_of(tmp_path, data, escape="\\") == {"f#row=2": {"a": 'x"y', "b": "1,2"}}


@pytest.mark.parametrize("data", ["", "\n\n", "a,b\n", "\ufeff"])
def test_a_file_without_rows_has_no_documents(tmp_path: Path, data: str) -> None:
    """And is no error."""
    assert fields_of(tmp_path, data, id="a") == {}


cells = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ['"', '""', "\n", "\r\n", ",", "a\rb", "\0"]
)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=6)
)


def rows_of(data: str, **options: Any) -> list[RecordRow]:
    stream: Any = io.BufferedReader(io.BytesIO(data.encode()))  # type: ignore[arg-type]
    return list(Csv("x", **options).rows_of(physical_lines(stream, "utf-8", 10_000, "x")))


@given(
    table=tables,
    delimiter=st.sampled_from(",;\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_python_writes_comes_back(table: list[list[str]], delimiter: str, end: str, quoting: Any) -> None:
    """Every cell, whatever is in it."""
    columns = [f"c{i}" for i in range(len(table[0]))]
    out = io.StringIO()
    if end == "\n":
        quoting = csv.QUOTE_ALL  # before 3.13, Python's writer forgets the quotes around a lone CR there
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(columns)
    writer.writerows(table)

    found = rows_of(out.getvalue(), delimiter=delimiter)

    assert [row.refused for row in found] == [""] * len(table)
    assert [list(row.fields.values()) for row in found] == table
    assert [row.name for row in found] == [f"row={n}" for n in range(2, len(table) + 2)]


@given(st.text(st.sampled_from('ab",\n\r\\;'), max_size=30))
def test_any_text_is_read_as_python_reads_it_or_refused(data: str) -> None:
    """Never an error of another kind, and never another reading of a good row."""
    from ferryman.sources.records import UnreadableRecords

    try:
        found = rows_of(data, columns=["a", "b"])
    except UnreadableRecords:
        return
    if any(row.refused for row in found):
        return
    theirs = [row for row in csv.reader(io.StringIO(data, newline="\n"), strict=True) if row]
    assert [list(row.fields.values()) for row in found] == theirs


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_header_that_is_no_text_makes_the_file_unreadable(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a,\xff\n1,2\n")
    assert told(Csv(tmp_path)).startswith(f"{tmp_path}/f, line 1: the header cannot be read: not utf-8 text")


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ('1,"never closed\n3,4\n', "a quote that is never closed"),
        ('1,"x\n3,"4"\n5,6\n', "text after a closing quote"),
        (f'1,"{"y" * 20}\n{"y" * 40}\n",2\n', "a row of more than 50 bytes. Raise max_bytes"),
        (f"1,{'y' * 60}\n3,4\n", "more than 50 bytes. Raise max_bytes"),
    ],
)
def test_after_a_quote_gone_wrong_nothing_is_believed(tmp_path: Path, rest: str, why: str) -> None:
    """The row is refused, what was before it goes on, and nothing is deleted: rows would get the ids of others."""
    (tmp_path / "f").write_text(f"a,b\n0,0\n{rest}")
    source = Csv(tmp_path, max_bytes=50)

    assert list(documents(source, all_readable=False)) == ["f#row=2"]
    assert why in refusals(source)["f#row=3"]
    assert "Where the next row begins is not known" in told(source)


def test_rows_whose_id_is_not_known_delete_nothing(tmp_path: Path) -> None:
    """A jagged row may be one that was good before: its document must not be taken for gone."""
    (tmp_path / "f").write_text("id,b\nx,1\ny\n,3\nz,4\n")
    source = Csv(tmp_path, id="id")

    assert list(documents(source, all_readable=False)) == ["x", "z"]
    assert refusals(source) == {
        "f#row=3": f"{tmp_path}/f, line 3: 1 cells, but there are 2 columns. Correct the row.",
        "f#row=4": f"{tmp_path}/f, line 4: it has no id (in column 'id').",
    }
    assert told(source) == (
        f"{tmp_path}/f has rows (2) whose id cannot be known; "
        f"the first: {tmp_path}/f, line 3: 1 cells, but there are 2 columns. Correct the row."
    )


def test_an_id_is_one_line(tmp_path: Path) -> None:
    """Else it would break everything that lists ids."""
    (tmp_path / "f").write_text('id\n"a\nb"\n')

    assert "its id has a line end in it: 'a\\nb'" in refusals(Csv(tmp_path, id="id"))["f#row=2"]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("id,a,a", "two columns are called 'a': give them names of their own"),
        ("a,b", "there is no column 'id' for id=. There are: a, b"),
        ('id,"a', "the header cannot be read: a quote that is never closed"),
    ],
)
def test_a_header_that_does_not_fit_is_incomplete(tmp_path: Path, header: str, why: str) -> None:
    """It may be another file's; its rows, if they were good before, are not taken for gone."""
    (tmp_path / "f").write_text(f"{header}\n1,2,3\n")

    assert told(Csv(tmp_path, id="id")).startswith(f"{tmp_path}/f, line 1: {why}")
