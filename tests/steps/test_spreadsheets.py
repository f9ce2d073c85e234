"""``extract_text`` of spreadsheets: numbers as their formats show them, errors, and sheets with cells far away."""

from __future__ import annotations

import struct

import pytest

from ferryman import limits, steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps.formats import Unreadable
from ferryman.steps.formats.spreadsheets import format_value, xls, xlsb, xlsx
from tests.steps import corpus
from tests.steps.test_office import SHEET, content_of, package, relations
from tests.steps.test_office import xlsx as xlsx_of
from tests.steps.test_outlook import record

ACCOUNTING = '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)'
SCALED = '[>=1000000]0.0,,"M";[>=1000]0.0,"K";0'


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.5, "0%", "50%"),
        (0.12345, "0.00%", "12.35%"),
        (1234.5, "#,##0.00", "1,234.50"),
        (1234567.891, "#,##0.0#", "1,234,567.89"),
        (-1234.5, "#,##0.00;[Red](#,##0.00)", "(1,234.50)"),
        (-1234.5, "#,##0.00", "-1,234.50"),
        (12.3, ACCOUNTING, "$12.30"),
        (-12.3, ACCOUNTING, "$(12.30)"),
        (0, ACCOUNTING, "$-"),
        (1234.5, "#,##0.00\\ [$€-407]", "1,234.50 €"),
        (12, '0.0" kg"', "12.0 kg"),
        (7, "00000", "00007"),
        (5551234567, "(000) 000-0000", "(555) 123-4567"),
        (1234567, SCALED, "1.2M"),
        (1234, SCALED, "1.2K"),
        (12, SCALED, "12"),
        (12345.678, "0.00E+00", "1.23E+04"),
        (2.5, "0", "3"),
        (0.125, "0.00", "0.13"),
        (1.5, "0.###", "1.5"),
        (0.5, "#.0", ".5"),
        (5, "0,000", "0,005"),
        (3, '"Item "0', "Item 3"),
        (1, '"yes";"no"', "yes"),
        (-1, '"yes";"no"', "no"),
        (1e300, "0", "1" + "0" * 300),
        (3, "General", None),
        (3, "@", None),
        (1, ";;;", None),
        (0.5, "# ?/?", None),
        (45413, "yyyy-mm-dd", None),
        (1.5, "[h]:mm:ss", None),
        (float("nan"), "0", None),
        (float("inf"), "0.0", None),
        (1, "0" * 300, None),
        (1, '0"', '1"'),
        (1, "[", "["),
        (3, "0.0 0", None),
    ],
)
def test_numbers_are_shown_by_their_formats(value: float, code: str, shown: str | None) -> None:
    """As Excel shows them in English; None where the number itself is as good, and of dates."""
    assert format_value(value, code) == shown


CODES = ("", "0.0%", "#,##0.00", "yyyy-mm-dd")
"""Formats of the styles 0 to 3 in the workbooks below."""
STYLES = (
    f"<styleSheet {SHEET}><numFmts>"
    + "".join(f'<numFmt numFmtId="{164 + n}" formatCode="{code}"/>' for n, code in enumerate(CODES) if code)
    + '</numFmts><cellStyleXfs><xf numFmtId="9"/></cellStyleXfs><cellXfs>'
    + "".join(f'<xf numFmtId="{164 + n if code else 0}"/>' for n, code in enumerate(CODES))
    + "</cellXfs></styleSheet>"
)


def xml_book(rows: str, styles: str = STYLES) -> bytes:
    return xlsx_of(rows, book=[("st", "styles", "styles.xml")], more={"xl/styles.xml": styles})


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (
            '<c r="A1" s="1"><v>0.075</v></c><c r="B1" s="2"><v>1234.5</v></c><c r="C1"><v>0.5</v></c>',
            "7.5%\t1,234.50\t0.5",
        ),
        ('<c r="A1" s="3"><v>45413</v></c><c r="B1" s="0"><v>45413</v></c>', "2024-05-01\t45413"),
        ('<c r="A1" s="1" t="str"><v>0.075</v></c><c r="B1" t="n" s="1"><v>1</v></c>', "0.075\t100.0%"),
        ('<c r="A1" s="1"> <f t="shared" si="0"/> <v>1</v></c>', "100.0%"),
        ('<c r="A1" s="1"><f>"&lt;c s=""1"">"&amp;B1</f><v>1</v></c>', "100.0%"),
        ('<c r="A1" s="1" t="b"><v>1</v></c><c r="B1" s="1" t="e"><v>#N/A</v></c>', "TRUE\t#N/A"),
        ('<c s="1"><v>1</v></c><c s="99"><v>2</v></c><c s="x"><v>3</v></c>', "100.0%\t2\t3"),
        ('<c r="A1"><v>0.30000000000000004</v></c><c r="B1"><v>1E+300</v></c>', "0.3\t1e+300"),
    ],
    ids=["formats", "dates", "types", "formula", "tricky formula", "truth and error", "without places", "no noise"],
)
def test_cells_of_a_workbook_show_their_formats(cells: str, text: str) -> None:
    """Numbers only; with or without a formula."""
    for opened, closed in (("<row r='1'>", "</row>"), ("<row>", "</row>")):
        assert content_of(xml_book(f"{opened}{cells}{closed}")).text == f"One\n{text}"


def test_styles_that_are_broken_are_left_out() -> None:
    """Numbers are read as they are."""
    for styles in ("<styleSheet/>", STYLES.replace("numFmtId", "other"), STYLES.replace("formatCode", "x")):
        assert content_of(xml_book('<row r="1"><c r="A1" s="1"><v>0.5</v></c></row>', styles)).text == "One\n0.5"


STRAY = (
    '<row r="1"><c r="A1"><v>1</v></c><c r="C1"><v>2</v></c></row><row r="{0}"><c r="A{0}" s="1"><v>1</v></c>{1}</row>'
)


@pytest.mark.parametrize(
    ("row", "far", "text"),
    [
        (1_048_576, '<c r="XFD1048576"><v>3</v></c>', "1\t2\n100.0%\t\t3"),
        (1_048_576, "", "1\t2\n100.0%"),
        (2, '<c r="XFD2"><v>3</v></c>', "1\t\t2\n100.0%" + "\t" * 16383 + "3"),
        (3, '<c r="XFD1048576"><v>3</v></c>', "1\t2\n100.0%\n\t\t3"),
    ],
)
def test_a_cell_far_away_takes_no_grid(row: int, far: str, text: str) -> None:
    """A sheet of kilobytes takes as much memory; rows and columns without cells are left out where they would not fit.
    A cell may state another row than the one that it is in."""
    assert content_of(xml_book(STRAY.format(row, far))).text == f"One\n{text}"


def test_a_grid_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows and columns that have cells."""
    monkeypatch.setattr(limits, "EXTRACT_CELLS", 3)
    with pytest.raises(Unreadable, match="has cells in 2 rows and 3 columns, more than 3 cells"):
        xlsx(xml_book(STRAY.format(1_048_576, '<c r="XFD1048576"><v>3</v></c>')))
    with pytest.raises(Unreadable, match="has cells in 2 rows and 2 columns, more than 3 cells"):
        xlsb(binary_book(row_of(0) + cell(6, 0, 0, wide("x")) + row_of(1_048_575) + cell(5, 16_383, 0, bytes(8))))


# -- XLSB --------------------------------------------------------------------------------------------------------------


def binary(number: int, content: bytes = b"") -> bytes:
    """A record of less than 16 KiB."""
    head = bytes([number] if number < 128 else [number & 0x7F | 0x80, number >> 7])
    size = len(content)
    return head + bytes([size] if size < 128 else [size & 0x7F | 0x80, size >> 7]) + content


def wide(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode("utf-16-le")


def row_of(number: int) -> bytes:
    return binary(0, struct.pack("<I", number) + bytes(20))


def cell(kind: int, column: int, style: int, value: bytes) -> bytes:
    return binary(kind, struct.pack("<II", column, style) + value)


def short(value: int, is_hundredth: bool = False) -> bytes:
    """A whole number in the four bytes that Excel shortens some to."""
    return struct.pack("<i", value << 2 | 2 | is_hundredth)


def double(value: float) -> bytes:
    return struct.pack("<d", value)


def binary_book(cells: bytes, **more: bytes) -> bytes:
    """A workbook of one sheet, with ``CODES``."""
    sheet = binary(156, struct.pack("<II", 0, 1) + wide("r1") + wide("One"))
    formats = b"".join(binary(44, struct.pack("<H", 164 + n) + wide(code)) for n, code in enumerate(CODES) if code)
    styles = b"".join(
        binary(47, struct.pack("<HH", 0, 164 + n if code else 0) + bytes(12)) for n, code in enumerate(CODES)
    )
    parts = {
        "xl/workbook.bin": binary(131) + binary(143) + sheet + binary(144) + binary(132),
        "xl/_rels/workbook.bin.rels": relations(("r1", "worksheet", "worksheets/sheet1.bin")),
        "xl/worksheets/sheet1.bin": binary(129)
        + binary(148, bytes(16))
        + binary(145)
        + cells
        + binary(146)
        + binary(130),
        "xl/styles.bin": binary(615, struct.pack("<I", len(CODES) - 1))
        + formats
        + binary(616)
        + binary(626)
        + binary(47, bytes(16))
        + binary(627)
        + binary(617, struct.pack("<I", len(CODES)))
        + styles
        + binary(618),
    }
    return package("xlsb", "xl/workbook.bin", parts | more)


def test_cells_of_a_binary_workbook() -> None:
    """Texts, formats, truth values, and errors, which calamine leaves out."""
    cells = row_of(0) + cell(6, 0, 0, wide("Muse")) + cell(5, 1, 1, double(0.075)) + cell(2, 2, 2, short(123450, True))
    cells += row_of(1) + cell(3, 0, 0, b"\x2a") + cell(4, 1, 0, b"\1") + cell(9, 2, 1, double(0.5) + bytes(8))
    cells += row_of(2) + cell(11, 0, 0, b"\x07") + cell(5, 1, 3, double(45413)) + cell(3, 2, 0, b"\x63")
    content = xlsb(binary_book(cells))
    assert content.text == "One\nMuse\t7.5%\t1,234.50\n#N/A\tTRUE\t50.0%\n#DIV/0!\t2024-05-01\t#ERROR!"
    assert content.fields == {"pages": 1}


def test_a_cell_far_away_in_a_binary_workbook() -> None:
    """It would take 500 GB."""
    cells = row_of(0) + cell(6, 0, 0, wide("Muse")) + row_of(1_048_575) + cell(5, 16_383, 1, double(0.5))
    assert xlsb(binary_book(cells)).text == "One\nMuse\n\t50.0%"


@pytest.mark.parametrize(
    ("part", "unread"),
    [
        ("xl/comments1.bin", ["comments"]),
        ("xl/drawings/drawing1.xml", ["drawings"]),
        ("xl/embeddings/a.docx", ["embedded files"]),
        ("xl/worksheets/sheet2.bin", None),
    ],
)
def test_parts_of_binary_workbooks_that_are_not_read_are_named(part: str, unread: list[str] | None) -> None:
    """Comments and shapes are binary there, too. A record that breaks off harms nothing."""
    content = content_of(binary_book(row_of(0) + cell(6, 0, 0, wide("Muse")), **{part: b"\x03\x05abcde\x0b\x80\x01"}))
    assert (content.text, content.fields.get("unread")) == ("One\nMuse", unread)


# -- XLS ---------------------------------------------------------------------------------------------------------------


def old_book(*records: bytes) -> bytes:
    """A workbook of one sheet, with ``CODES``."""
    formats = b"".join(
        record(0x41E, struct.pack("<HHB", 164 + n, len(code), 0) + code.encode())
        for n, code in enumerate(CODES)
        if code
    )
    styles = b"".join(
        record(0xE0, struct.pack("<HH", 0, 164 + n if code else 0) + bytes(16)) for n, code in enumerate(CODES)
    )
    start = record(0x809, struct.pack("<HHHHII", 0x600, 5, 0, 0, 0, 6)) + formats + styles
    sheet = record(0x809, struct.pack("<HHHHII", 0x600, 0x10, 0, 0, 0, 6)) + b"".join(records) + record(0x0A, b"")
    listed = record(0x85, struct.pack("<IBBBB", len(start) + 19, 0, 0, 3, 0) + b"One")
    return corpus.compound({"Workbook": (start + listed + record(0x0A, b"") + sheet).ljust(4096, b"\0")})


def at(row: int, column: int, style: int, value: bytes, number: int = 0x203) -> bytes:
    return record(number, struct.pack("<HHH", row, column, style) + value)


CHART = record(0x809, struct.pack("<HHHHII", 0x600, 0x20, 0, 0, 0, 6)) + at(0, 1, 1, double(9)) + record(0x0A, b"")


def test_cells_of_an_old_workbook() -> None:
    """Formats and errors; a chart on the sheet has cells of its own, which are not those of the sheet."""
    several = struct.pack("<HH", 2, 1) + b"".join(
        struct.pack("<H", style) + short(value) for style, value in ((1, 1), (0, 5), (2, 6))
    )
    records = [
        *(at(0, 1, 1, double(0.075)), at(1, 1, 2, short(1234), 0x27E), record(0xBD, several + struct.pack("<H", 3))),
        *(at(3, 1, 1, double(0.5) + bytes(8), 0x06), at(3, 2, 0, b"\x2a\1", 0x205)),
        at(3, 3, 0, b"\2\0\7\0\0\0\xff\xff" + bytes(8), 0x06),
        *(at(4, 1, 3, double(45413)), CHART, at(4, 2, 0, b"\1\0", 0x205)),
    ]
    content = xls(old_book(*records))
    assert content.text.strip() == ("One\n7.5%\n1,234.00\n100.0%\t5\t6.00\n50.0%\t#N/A\t#DIV/0!\n2024-05-01\tTRUE")
    assert content.fields == {"pages": 1}


def test_a_cell_far_away_in_an_old_workbook() -> None:
    """Rows without cells are left out: it would take half a gigabyte."""
    records = [at(0, 0, 1, double(0.5)), at(65535, 255, 1, double(0.25)), at(65535, 0, 0, b"\x2a\1", 0x205)]
    assert xls(old_book(*records)).text.strip() == "One\n50.0%\n#N/A" + "\t" * 255 + "25.0%"


# -- bytes that are made to take long ------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece", ['<c s="1">', '<c s="1"', "<c ", '<c s="1"><f>', '<c s="1"> ', '<c r="A1" s="1"><v>1']
)
def test_cells_that_are_made_to_take_long(piece: str) -> None:
    """A megabyte of the beginnings of a cell takes no longer than any other megabyte."""
    with pytest.raises(BadDocument, match="it is broken"):
        steps.extract_text()(Document("a.xlsx", raw=xml_book(piece * (1_000_000 // len(piece)))))
