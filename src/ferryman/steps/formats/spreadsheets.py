"""Spreadsheets of Excel: XLSX, XLSB and XLS. Their cells are read by calamine, the rest from the parts of the file.

What calamine would leave out or show otherwise is written into the sheets before it reads them: errors, and numbers as
their formats show them. So is where cells are, if it would take a grid for them that is nearly empty.
"""

from __future__ import annotations

import operator
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from html import escape, unescape
from io import BytesIO
from math import isfinite
from typing import Any, Final, NamedTuple

from ferryman import limits
from ferryman.steps.formats import Content, Unread, Unreadable, format_time
from ferryman.steps.formats.office import (
    EMBEDDED,
    OfficePart,
    Package,
    core_fields,
    each_once,
    in_row,
    letters_of,
    local_name,
    main_part,
    part_key,
    relation_id,
)

_COLUMN: Final = re.compile(rb'r="([A-Z]{1,3})\d')
_ROW: Final = re.compile(rb'r="[A-Z]{1,3}(\d{1,9})"')
_PLACE: Final = re.compile(rb'r="([A-Z]{1,3})(\d{1,9})"')
"""Places of cells: their columns, their rows, or both."""

_TAIL_BYTES: Final = limits.MIB

_ERROR_MARK: Final = b't="e"'
_ERROR_CELL: Final = re.compile(rb'(<(?:\w+:)?c\b[^<>]{0,200}?\bt=)"e"')
"""Cell that shows an error, such as #N/A: calamine would leave it empty, were it not read as text."""


def xlsx(raw: bytes) -> Content:
    """Read the values of the cells: a block for each sheet, headed by its name; a line for each row that is not empty,
    tabs between cells. Then the sheet's headers, footers, shapes and comments."""
    package, unread = Package(raw), Unread()
    book = main_part(package, "xl/workbook.xml")
    targets = {each.id: each.target for each in package.relations(book)}
    sheets = {each.get("name", ""): targets.get(relation_id(each), "") for each in package.xml(book).iter("{*}sheet")}
    in_folder = (name for name in package.names if name.startswith("xl/worksheets/") and name.endswith(".xml"))
    codes = _number_formats(package, book)
    beside = {}
    replaced: dict[str, bytes] = {}
    for part in each_once([*sheets.values(), *in_folder]):
        if part in package:
            cells = package.read(part)
            if (shown := _as_shown(part, cells, codes)) != cells:
                replaced[part_key(part)] = shown
            beside[part] = [*_printed(cells), *_beside_sheet(package, part, unread)]
    content = _workbook(
        _for_calamine(package, book, raw, replaced),
        unread,
        {name: beside.get(part, []) for name, part in sheets.items()},
    )
    content.fields = core_fields(package) | content.fields
    return content


def xlsb(raw: bytes) -> Content:
    """Read a binary workbook of Excel 2007 and later."""
    unread, package = Unread(), Package(raw)
    parts = package.names
    _check_sheets(package)
    for mark, what in (("comments", "comments"), ("/drawings/drawing", "drawings"), ("/embeddings/", "embedded files")):
        if any(mark in part for part in parts):
            unread.add(what)
    codes = _binary_formats(package.read("xl/styles.bin")) if "xl/styles.bin" in package else {}
    replaced = {}
    for part in parts:
        if part.startswith("xl/worksheets/") and part.endswith(".bin"):
            cells = package.read(part)
            if (shown := _binary_as_shown(part, cells, codes)) != cells:
                replaced[part] = shown
    return _workbook(package.replace(replaced) if replaced else raw, unread, {})


_SHEET_RECORD: Final = 156
"""Number of the record in a binary workbook that names a sheet (BrtBundleSh in [MS-XLSB])."""
_SHEET_STATE_BYTES: Final = 8


def _check_sheets(package: Package) -> None:
    """Refuse a binary workbook with records of sheets that calamine does not understand: test versions of Excel 2007
    wrote others.

    Raises:
        Unreadable: a sheet has no part.
    """
    book = main_part(package, "xl/workbook.bin")
    known = {each.id for each in package.relations(book)}
    for number, record in _records(package.read(book)):
        if number == _SHEET_RECORD:
            size = struct.unpack_from("<I", record, _SHEET_STATE_BYTES)[0] if len(record) >= 12 else 0
            start = _SHEET_STATE_BYTES + 4
            if record[start : start + 2 * size].decode("utf-16-le", "replace") not in known:
                raise Unreadable(
                    "it has a sheet without content: it is of a test version of Excel 2007, or broken. Save it again"
                )


def _records(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a part of a binary workbook: their numbers and contents."""
    at = 0
    while at + 2 <= len(stream):
        number, at = stream[at], at + 1
        if number & 0x80:
            number, at = number & 0x7F | stream[at] << 7, at + 1
        size = shift = 0
        while at < len(stream):
            byte, at = stream[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80 or shift > 21:
                break
        yield number, stream[at : at + size]
        at += size


_ROW_RECORD, _RK_RECORD, _TEXT_RECORD, _CELL_RECORDS = 0, 2, 6, range(1, 12)
"""Numbers of records in a sheet: the beginning of a row; cells with a short number (BrtCellRk), with a text
(BrtCellSt); all cells."""
_BINARY_ERRORS: Final = frozenset({3, 11})
"""Numbers of records of cells that show an error (BrtCellError, BrtFmlaError)."""
_BINARY_NUMBERS: Final = frozenset({2, 5, 9})
"""Numbers of records of cells with a number (BrtCellRk, BrtCellReal, BrtFmlaNum)."""
_CELL_BYTES: Final = 8
"""Bytes of a cell before its value: column, style."""
_FORMAT_RECORD, _STYLES_BEGIN, _STYLES_END, _STYLE_RECORD = 44, 617, 618, 47
"""Numbers of records in the part of styles."""


def _binary_as_shown(name: str, sheet: bytes, codes: Mapping[int, str]) -> bytes:
    """Return a sheet whose cells calamine reads as a person sees them.

    Args:
        codes: style -> format code of its numbers.

    Raises:
        Unreadable: its grid is too large.
    """
    out, row = bytearray(), 0
    rows, columns = set[int](), set[int]()
    for number, record in _records(sheet):
        if number == _ROW_RECORD and len(record) >= 4:
            row = struct.unpack_from("<I", record)[0]
        elif number in _CELL_RECORDS and len(record) >= _CELL_BYTES:
            rows.add(row)
            columns.add(struct.unpack_from("<I", record)[0])
            number, record = _shown_cell(number, record, codes)
        out += _record(number, record)
    if (max(rows, default=0) + 1) * (max(columns, default=0) + 1) <= max(limits.EXTRACT_EMPTY_CELLS, len(sheet)):
        return bytes(out)
    _check_grid(name, len(rows), len(columns))
    new_rows, new_columns = ({old: new for new, old in enumerate(sorted(each))} for each in (rows, columns))
    dense = bytearray()
    for number, record in _records(bytes(out)):
        renumbered = new_rows if number == _ROW_RECORD else new_columns if number in _CELL_RECORDS else None
        if renumbered and len(record) >= 4:
            old = struct.unpack_from("<I", record)[0]
            record = struct.pack("<I", renumbered.get(old, 0)) + record[4:]
        dense += _record(number, record)
    return bytes(dense)


def _record(number: int, content: bytes) -> bytes:
    """Return a record of a binary workbook."""
    head = bytearray([number] if number < 0x80 else [number & 0x7F | 0x80, number >> 7])
    size = len(content)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head + content)


def _shown_cell(number: int, cell: bytes, codes: Mapping[int, str]) -> tuple[int, bytes]:
    """Return the record of a cell with the text that it shows, if that is not its value."""
    text = None
    if number in _BINARY_ERRORS:
        text = _ERRORS.get(cell[_CELL_BYTES] if len(cell) > _CELL_BYTES else 0, _OTHER_ERROR)
    elif number in _BINARY_NUMBERS and (code := codes.get(struct.unpack_from("<I", cell, 4)[0] & 0xFFFFFF)):
        text = _shown_number(cell[_CELL_BYTES : _CELL_BYTES + (4 if number == _RK_RECORD else 8)], code)
    if text is None:
        return number, cell
    encoded = text.encode("utf-16-le")
    return _TEXT_RECORD, cell[:_CELL_BYTES] + struct.pack("<I", len(encoded) // 2) + encoded


_ERRORS: Final = {
    0x00: "#NULL!", 0x07: "#DIV/0!", 0x0F: "#VALUE!", 0x17: "#REF!", 0x1D: "#NAME?", 0x24: "#NUM!", 0x2A: "#N/A",
    0x2B: "#GETTING_DATA",
}  # fmt: skip
_OTHER_ERROR: Final = "#ERROR!"


def _shown_number(raw: bytes, code: str) -> str | None:
    """Return a number as a cell shows it; ``raw`` is a double, or the four bytes that Excel shortens some to."""
    if len(raw) == 8:
        return format_value(struct.unpack("<d", raw)[0], code)
    if len(raw) != 4:
        return None
    packed = struct.unpack("<i", raw)[0]
    value: float = packed >> 2 if packed & 2 else struct.unpack("<d", bytes(4) + struct.pack("<i", packed & ~3))[0]
    return format_value(value / 100 if packed & 1 else value, code)


def _binary_formats(styles: bytes) -> dict[int, str]:
    """Return style -> format code, as ``_number_formats`` does."""
    codes, of_styles, is_inside = dict(_KNOWN_FORMATS), list[str](), False
    for number, record in _records(styles):
        if number == _FORMAT_RECORD and len(record) > 6:
            codes[str(struct.unpack_from("<H", record)[0])] = record[6:].decode("utf-16-le", "replace")
        elif number in (_STYLES_BEGIN, _STYLES_END):
            is_inside = number == _STYLES_BEGIN
        elif number == _STYLE_RECORD and is_inside and len(record) >= 4:
            of_styles.append(str(struct.unpack_from("<H", record, 2)[0]))
    return _shown_otherwise(codes, of_styles)


def _shown_otherwise(codes: Mapping[str, str], styles: Iterable[str]) -> dict[int, str]:
    """Return style -> format code, of those styles whose numbers look other than their values."""
    found = (codes.get(each, "") for each in styles)
    return {style: code for style, code in enumerate(found) if code and _sections(code)}


def xls(raw: bytes) -> Content:
    """Read a workbook of before 2007; texts of comments and shapes follow all sheets."""
    unread = Unread()
    book, raw = _read_old_book(raw, unread)  # first: where sectors lead in a circle, calamine would never end
    content = _workbook(raw, unread, {}, book.shown)
    content.text = "\n\n".join([content.text, *each_once(book.texts)])
    return content


# Numbers of records in an XLS: a comment's place, the text of a comment or shape, more of the one before, a header or a
# footer; the beginning and end of a sheet or a chart, a sheet's place and name, the format of a number, a style.
_TEXT_OBJECT, _CONTINUE, _MARGINS = 0x1B6, 0x3C, (0x14, 0x15)
_BEGINNING, _END, _SHEET_PLACE, _FORMAT, _STYLE = 0x809, 0x0A, 0x85, 0x41E, 0xE0
_NUMBER, _SHORT_NUMBER, _SHORT_NUMBERS, _FORMULA, _VALUE = 0x203, 0x27E, 0xBD, 0x06, 0x205
_CELLS_OF_ROWS: Final = frozenset(
    {_NUMBER, _SHORT_NUMBER, _SHORT_NUMBERS, _FORMULA, _VALUE, 0x201, 0xBE, 0xD6, 0xFD, 0x204}
)
"""Numbers of records that begin with a row and a column."""
_TEXT_OBJECT_BYTES: Final = 18
_OLD_COLUMNS: Final = 256


class _OldBook:
    """Texts of an XLS that calamine does not read, or not as they are shown.

    Attributes:
        texts: those that are not in cells: comments, text boxes, headers, footers.
        shown: sheet -> row -> column -> text that the cell shows in place of its value.
    """

    def __init__(self, stream: bytearray) -> None:
        self.texts: list[str] = []
        self.shown: dict[str, dict[int, dict[int, str]]] = {}
        self._stream = stream
        self._names: dict[int, str] = {}
        """Place in the stream -> name of the sheet that begins there."""
        self._formats, self._styles, self._codes = dict(_KNOWN_FORMATS), list[str](), dict[int, str]()
        self._sheet, self._depth = "", 0
        self._places: dict[str, dict[int, list[int]]] = {}
        """Sheet -> row -> places in the stream where it is named."""
        self._text, self._awaited = "", 0

    def read(self) -> None:
        at, stream = 0, self._stream
        while at + 4 <= len(stream):
            number, size = struct.unpack_from("<HH", stream, at)
            data = bytes(stream[at + 4 : at + 4 + size])
            if number in _CELLS_OF_ROWS and len(data) >= 6 and not self._depth:
                row, column, style = struct.unpack_from("<HHH", data)
                self._places.setdefault(self._sheet, {}).setdefault(row, []).append(at + 4)
                self._cell(number, row, column, style, data)
            elif number == _BEGINNING and at in self._names:
                self._sheet, self._codes = self._names[at], _shown_otherwise(self._formats, self._styles)
                self._depth = 0
            elif number in (_BEGINNING, _END):  # of a chart on a sheet, which has cells of its own
                self._depth = max(0, self._depth + (1 if number == _BEGINNING else -1))
            elif number == _SHEET_PLACE and size > 8:
                self._names[struct.unpack_from("<I", data)[0]] = _old_text(data[7:], data[6])
            elif number == _FORMAT and size > 5:
                code = _old_text(data[4:], struct.unpack_from("<H", data, 2)[0])
                self._formats[str(struct.unpack_from("<H", data)[0])] = code
            elif number == _STYLE and size >= 4:
                self._styles.append(str(struct.unpack_from("<H", data, 2)[0]))
            else:
                self._read_text(number, data)
            at += 4 + size

    def _cell(self, number: int, row: int, column: int, style: int, data: bytes) -> None:
        """Note what a cell shows, if that is not its value."""
        is_error, error = False, 0
        if number == _VALUE:
            is_error, error = data[7:8] == b"\1", data[6] if len(data) > 6 else 0
        elif number == _FORMULA and data[12:14] == b"\xff\xff":
            is_error, error = data[6] == 2, data[8]
        cells = {column: _ERRORS.get(error, _OTHER_ERROR)} if is_error else {}
        if number == _SHORT_NUMBERS:
            for n, at in enumerate(range(4, len(data) - 7, 6)):
                style = struct.unpack_from("<H", data, at)[0]
                cells[column + n] = self._shown(data[at + 2 : at + 6], style)
        elif number in (_NUMBER, _SHORT_NUMBER) or (number == _FORMULA and data[12:14] != b"\xff\xff"):
            cells[column] = self._shown(data[6:10] if number == _SHORT_NUMBER else data[6:14], style)
        if cells := {at: text for at, text in cells.items() if text}:
            self.shown.setdefault(self._sheet, {}).setdefault(row, {}).update(cells)

    def _shown(self, raw: bytes, style: int) -> str:
        return (_shown_number(raw, self._codes[style]) or "") if style in self._codes else ""

    def _read_text(self, number: int, data: bytes) -> None:
        if number == _TEXT_OBJECT and len(data) >= _TEXT_OBJECT_BYTES:
            self._awaited, self._text = struct.unpack_from("<H", data, 10)[0], ""
        elif number == _CONTINUE and self._awaited > 0 and data:
            piece = _old_text(data, self._awaited)
            self._text, self._awaited = self._text + piece, self._awaited - len(piece)
            if self._awaited <= 0 and (line := in_row(self._text)):
                self.texts.append(line)
        elif number in _MARGINS and len(data) > 3 and (line := _margin_text(_old_text(data[2:], len(data)))):
            self.texts.append(line)

    def gather_rows(self) -> bool:
        """Number the rows of sheets whose grid is nearly empty by their order; return whether there are such."""
        sparse = [
            sheet
            for sheet, rows in self._places.items()
            if max(rows) * _OLD_COLUMNS > max(limits.EXTRACT_EMPTY_CELLS, len(self._stream))
        ]
        for sheet in sparse:
            rows = {old: new for new, old in enumerate(sorted(self._places[sheet]))}
            for old, places in self._places[sheet].items():
                for at in places:
                    struct.pack_into("<H", self._stream, at, rows[old])
            self.shown[sheet] = {rows[old]: cells for old, cells in self.shown.get(sheet, {}).items()}
        return bool(sparse)


def _old_text(data: bytes, length: int) -> str:
    """Return a text of some characters: a byte that says how wide they are, then these."""
    return data[1:].decode("utf-16-le" if data[0] & 1 else "latin-1", "replace")[:length]


def _read_old_book(raw: bytes, unread: Unread) -> tuple[_OldBook, bytes]:
    """Read what is beside the cells of an XLS; return it with the file that calamine is to read.

    Raises:
        Unreadable: there is no workbook in it.
    """
    import olefile

    file = BytesIO(raw)
    with olefile.OleFileIO(file, write_mode=True) as ole:
        name = next((each for each in ("Workbook", "Book") if ole.exists(each)), "")
        if not name:
            raise Unreadable("it has no workbook: the file is broken. Save it again")
        book = _OldBook(bytearray(ole.openstream(name).read()))
        if name == "Book":
            unread.add("comments")  # a format of before 1997, where they are written in another way
            return book, raw
        if any("MBD" in "/".join(path) for path in ole.listdir()):
            unread.add("embedded files")
        book.read()
        if book.gather_rows():
            ole.write_stream(name, bytes(book._stream))
            raw = file.getvalue()
    return book, raw


_Shown = Mapping[str, Mapping[int, Mapping[int, str]]]
"""Sheet -> row -> column -> text that the cell shows."""


def _workbook(raw: bytes, unread: Unread, beside: Mapping[str, list[str]], shown: _Shown | None = None) -> Content:
    """Read the sheets of a workbook of any format; ``beside`` has more text of each, ``shown`` other texts of cells."""
    from python_calamine import CalamineError, SheetTypeEnum, WorksheetNotFound, load_workbook

    try:
        book = load_workbook(BytesIO(raw))
        blocks = []
        for sheet in book.sheets_metadata:
            rows: list[str] = []
            if sheet.typ == SheetTypeEnum.WorkSheet:
                try:
                    cells = _rows(book.get_sheet_by_name(sheet.name), (shown or {}).get(sheet.name, {}))
                    rows += ("\t".join(_cells(row)) for row in cells)
                except WorksheetNotFound:
                    unread.add("sheets")
            blocks.append("\n".join([in_row(sheet.name), *(row for row in rows if row)]))
            blocks += beside.get(sheet.name, [])
    except CalamineError as e:
        if "password" in str(e).lower():
            raise Unreadable("it is encrypted. Save it without a password") from None
        raise
    return Content("\n\n".join(blocks), {"pages": len(book.sheet_names)} | unread.fields)


def _rows(sheet: Any, shown: Mapping[int, Mapping[int, str]]) -> Iterator[list[Any]]:
    """Yield the rows of a sheet, from the first of the sheet and the first column that is used on."""
    if not shown:
        yield from sheet.iter_rows()
        return
    first = sheet.start[1] if sheet.start else 0
    for number, row in enumerate(sheet.iter_rows()):
        for column, text in shown.get(number, {}).items():
            if 0 <= column - first < len(row):
                row[column - first] = text
        yield row


_SHEET_MARGIN: Final = re.compile(rb"<(?:\w+:)?(?:odd|even|first)(?:Header|Footer)(?:\s[^<>]*)?>([^<]*)<")
_MARGIN_CODE: Final = re.compile(r'&(?:"[^"]*"|K[0-9A-Fa-f]{6}|[0-9]{1,3}|[A-Za-z+-])')
"""Code in the header of a sheet: a font, a colour, a size, a position, or a field."""


def _printed(sheet: bytes) -> Iterator[str]:
    """Yield the headers and footers with which a sheet is printed."""
    for text in dict.fromkeys(_SHEET_MARGIN.findall(sheet[-_TAIL_BYTES:])):
        if words := _margin_text(unescape(text.decode("utf-8", "replace"))):
            yield words


def _margin_text(text: str) -> str:
    words = in_row(_MARGIN_CODE.sub(" ", text.replace("&&", _AMPERSAND))).replace(_AMPERSAND, "&")
    return " ".join(words.split()) if len(re.findall(r"\w+", words)) > 1 or not _FIELD_CODE.search(text) else ""


_FIELD_CODE: Final = re.compile("&[PNDTAFZG]")
"""Code for a field, such as the number of the page: a header with a word beside it, "Page", says nothing."""

_AMPERSAND: Final = "\ue000"
"""Placeholder for an ampersand while codes are taken out; a private use character."""


def _beside_sheet(package: Package, sheet: str, unread: Unread) -> Iterator[str]:
    """Yield the texts of shapes and charts on a sheet, then its comments."""
    listed = package.relations(sheet)
    if any(each.kind in EMBEDDED for each in listed):
        unread.add("embedded files")
    relations = [each for each in listed if each.target in package]
    for each in relations:
        if each.kind in ("drawing", "chart"):
            yield from OfficePart(package, each.target, unread).drawing_blocks()
    threads = [each.target for each in relations if each.kind == "threadedComment"]
    for part in [*threads, *(each.target for each in relations if each.kind == "comments")]:
        for comment in package.xml(part).iter("{*}comment", "{*}threadedComment"):
            pieces = (t.text or "" for t in comment.iter("{*}t", "{*}text") if local_name(t.getparent()) != "rPh")
            text = in_row("".join(pieces))
            if text and not (threads and text.startswith(_THREAD)):
                yield f"{comment.get('ref', '')}: {text}"


_THREAD: Final = "[Threaded comment]"
"""Beginning of the form in which older versions of Excel are shown a comment."""


def _for_calamine(package: Package, book: str, raw: bytes, replaced: Mapping[str, bytes]) -> bytes:
    """Return the workbook with its parts where calamine looks for them; most are there already.

    Args:
        replaced: key of a part -> content to be read in place of its own.
    """
    expected = {"sharedStrings": "xl/sharedstrings.xml", "styles": "xl/styles.xml"}
    relations = package.relations(book)
    moved = {each.target: expected[each.kind] for each in relations if each.kind in expected}
    moved = {old: new for old, new in {book: "xl/workbook.xml", **moved}.items() if part_key(old) != new}
    is_plain = all(mark not in each.stated for each in relations for mark in ("..", "%", "\\"))
    if not moved and not replaced and is_plain and "_rels/.rels" in package and not package.has_rooted_names:
        return raw
    from xml.sax.saxutils import quoteattr

    listed = "".join(
        f"<Relationship Id={quoteattr(each.id)} Type={quoteattr(_OFFICE_RELATION + each.kind)} "
        f"Target={quoteattr('/' + moved.get(each.target, each.target))}/>"
        for each in relations
    )
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        root = f'<Relationship Id="book" Type="{_OFFICE_RELATION}officeDocument" Target="xl/workbook.xml"/>'
        archive.writestr("_rels/.rels", f'<Relationships xmlns="{_RELATIONS}">{root}</Relationships>')
        archive.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{_RELATIONS}">{listed}</Relationships>')
        for part in each_once([book, *(each.target for each in relations if each.target in package)]):
            content = replaced.get(part_key(part))
            archive.writestr(moved.get(part, part), package.read(part) if content is None else content)
    return out.getvalue()


_RELATIONS: Final = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE_RELATION: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"


def _as_shown(name: str, sheet: bytes, codes: Mapping[int, str]) -> bytes:
    """Return a sheet whose cells calamine reads as a person sees them.

    Args:
        codes: style -> format code of its numbers.

    Raises:
        Unreadable: its grid is too large.
    """
    if _ERROR_MARK in sheet:
        sheet = _ERROR_CELL.sub(rb'\1"str"', sheet)
    if codes:
        sheet = _FORMATTED_CELL.sub(lambda cell: _show_cell(cell, codes), sheet)
    letters, digits = set(_COLUMN.findall(sheet)), set(_ROW.findall(sheet))
    rows, columns = {int(row) for row in digits}, {_column_number(column): column for column in letters}
    if max(rows, default=0) * max(columns, default=0) <= max(limits.EXTRACT_EMPTY_CELLS, len(sheet)):
        return sheet
    _check_grid(name, len(rows), len(columns))
    new_rows = {old: b"%d" % new for new, old in enumerate(sorted(rows), 1)}
    new_columns = {columns[old]: letters_of(new).encode() for new, old in enumerate(sorted(columns), 1)}
    return _PLACE.sub(lambda place: b'r="%s%s"' % (new_columns[place[1]], new_rows[int(place[2])]), sheet)


def _check_grid(name: str, rows: int, columns: int) -> None:
    """Refuse a sheet that would exhaust memory: the reader allocates the full grid, however few of its cells are used.

    Raises:
        Unreadable: the grid is too large.
    """
    if rows * columns > limits.EXTRACT_CELLS:
        raise Unreadable(
            f"{name} has cells in {rows} rows and {columns} columns, more than {limits.EXTRACT_CELLS} cells. "
            "Delete the stray ones, or split it"
        )


_FORMATTED_CELL: Final = re.compile(
    rb'(<(?:\w+:)?c\b[^<>]*?\bs="(\d{1,5})"[^<>]*)'
    rb"(>\s*+(?:<(?:\w+:)?f\b[^<>]*(?:/>|>[^<]*</(?:\w+:)?f>)\s*+)?<(?:\w+:)?v>)([^<]{1,40})(?=<)"
)
"""Cell with a style and a value; a formula may stand between them."""
_TYPE: Final = re.compile(rb'\bt="(\w*)"')


def _show_cell(cell: re.Match[bytes], codes: Mapping[int, str]) -> bytes:
    """Return a cell with the text that it shows in place of its number."""
    code = codes.get(int(cell[2]))
    kind = _TYPE.search(cell[1]) if code else None
    if code is None or (kind is not None and kind[1] != b"n"):
        return cell[0]
    try:
        text = format_value(float(cell[4]), code)
    except ValueError:
        return cell[0]
    if text is None or text.encode() == cell[4]:
        return cell[0]
    return b'%s t="str"%s%s' % (_TYPE.sub(b"", cell[1]), cell[3], escape(text).encode())


def _number_formats(package: Package, book: str) -> dict[int, str]:
    """Return style -> format code of the styles of a workbook whose numbers look other than their values."""
    part = next((each.target for each in package.relations(book) if each.kind == "styles"), "")
    if part not in package:
        return {}
    root = package.xml(part)
    codes = dict(_KNOWN_FORMATS)
    for each in root.iterfind("{*}numFmts/{*}numFmt"):
        codes[each.get("numFmtId", "")] = each.get("formatCode", "")
    return _shown_otherwise(codes, (each.get("numFmtId", "") for each in root.iterfind("{*}cellXfs/{*}xf")))


def _column_number(letters: bytes) -> int:
    """Return a column's number: A is 1, AA 27."""
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _cells(row: Iterable[Any]) -> list[str]:
    """Return the texts of a row's cells, without empty ones at its end."""
    texts = [_cell_text(value) for value in row]
    while texts and not texts[-1]:
        texts.pop()
    return texts


_WHOLE: Final = 10**15
"""Numbers of more digits are shown with an exponent."""


def _cell_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float():
            return f"{value:.15g}" if abs(value) >= _WHOLE or not value.is_integer() else str(int(value))
        case datetime():
            return format_time(value)
        case date() | time() | timedelta():
            return str(value)
    return in_row(str(value))


# Formats of numbers (ECMA-376, 18.8.30 and 18.8.31), as Excel shows them in English.

_KNOWN_FORMATS: Final = {
    "1": "0", "2": "0.00", "3": "#,##0", "4": "#,##0.00", "5": "#,##0", "6": "#,##0", "7": "#,##0.00", "8": "#,##0.00",
    "9": "0%", "10": "0.00%", "11": "0.00E+00", "37": "#,##0;(#,##0)", "38": "#,##0;(#,##0)",
    "39": "#,##0.00;(#,##0.00)", "40": "#,##0.00;(#,##0.00)", "41": '#,##0;-#,##0;"-"', "42": '#,##0;-#,##0;"-"',
    "43": '#,##0.00;-#,##0.00;"-"', "44": '#,##0.00;-#,##0.00;"-"', "48": "0.0E+0",
}  # fmt: skip
"""Numbers of formats that a file need not define. Those of money are without a sign: it is that of the reader's
country."""

_FORMAT_CHARACTERS: Final = 255
"""Longest format, as in Excel."""
_FORMAT_PIECE: Final = re.compile(
    r'"([^"]*)"|\\(.)|[_*](.)|\[([^\[\]]*)\]|([0#?][0#?.,]*+|\.[0#?]++)|E([+-])|(General)|(.)',
    re.IGNORECASE | re.DOTALL,
)
_QUOTED, _ESCAPED, _WIDTH, _BRACKET, _DIGITS, _EXPONENT, _GENERAL, _LITERAL = range(1, 9)
_CONDITION: Final = re.compile(r"(<=|>=|<>|<|>|=)(-?\d{1,15}(?:\.\d{1,15})?)")
_COMPARISONS: Final = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "<>": operator.ne,
}  # fmt: skip
_GROUPED: Final = re.compile("[0#?],+[0#?]")


class _Section(NamedTuple):
    """A section of a format: how numbers are shown that meet its condition.

    Attributes:
        before: text before the number.
        digits: places of its digits, with text between them: "0", "#", "?" and any other character.
        decimals: places behind its point.
        is_grouped: whether thousands are apart.
        scale: power of ten that it is multiplied by.
        exponent: sign of its exponent, "" for none.
        after: text after the number.
        condition: comparison and number; "" for none.
    """

    before: str
    digits: str
    decimals: str
    is_grouped: bool
    scale: int
    exponent: str
    after: str
    condition: tuple[str, float] = ("", 0.0)


def format_value(value: float, code: str) -> str | None:
    """Return a number as a cell shows it by a format; None where the number itself is as good: for dates, which
    calamine knows, fractions, and where nothing is shown."""
    sections = _sections(code)
    if not sections or not isfinite(value):
        return None
    has_conditions = any(section.condition[0] for section in sections)
    if has_conditions:
        chosen = next((n for n, each in enumerate(sections) if _meets(value, each.condition)), None)
    else:
        chosen = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0
    if chosen is None:
        return None
    text = _show(abs(value), sections[chosen]).strip()
    return f"-{text}" if text and value < 0 and (chosen == 0 or has_conditions) else text or None


def _meets(value: float, condition: tuple[str, float]) -> bool:
    return not condition[0] or _COMPARISONS[condition[0]](value, condition[1])


@lru_cache(maxsize=512)
def _sections(code: str) -> tuple[_Section, ...]:
    """Return the sections of a format, for positive numbers, negative ones and zero; () if it is of no use here."""
    if len(code) > _FORMAT_CHARACTERS:
        return ()
    pieces: list[list[re.Match[str]]] = [[]]
    for piece in _FORMAT_PIECE.finditer(code):
        if piece[_LITERAL] == ";":
            pieces.append([])
        else:
            pieces[-1].append(piece)
    sections = [_section(each) for each in pieces[:3]]
    if any(each is None for each in sections) or code.lower() == "general":
        return ()
    return tuple(each for each in sections if each is not None)


def _section(pieces: list[re.Match[str]]) -> _Section | None:
    """Return a section of a format; None for one of dates, fractions, and what is not known."""
    texts: list[tuple[bool, str]] = []
    exponent, scale, condition = "", 0, ("", 0.0)
    for piece in pieces:
        kind, text = piece.lastindex, piece[piece.lastindex or 0]
        if kind == _DIGITS:
            texts += [(True, text)] if not exponent else []
        elif kind == _EXPONENT:
            exponent = text
        elif kind == _BRACKET:
            if found := _CONDITION.fullmatch(text):
                condition = found[1], float(found[2])
            elif text.startswith("$"):
                texts.append((False, text[1:].partition("-")[0]))
            elif text.lower().strip("hms") == "":
                return None
        elif kind == _GENERAL or (kind == _LITERAL and (text in "/@" or (text.isascii() and text.isalpha()))):
            return None
        elif kind != _WIDTH:
            scale += 2 * (kind == _LITERAL and text == "%")
            texts.append((False, text))
    places = [at for at, (is_digits, _) in enumerate(texts) if is_digits]
    first, last = (places[0], places[-1]) if places else (len(texts), len(texts))
    number = "".join(text for _, text in texts[first : last + 1])
    whole, _, decimals = number.partition(".")
    if len(places) > 1 and (exponent or "." in number or "," in number):
        return None
    scale -= 3 * (len(number) - len(number.rstrip(",")) if decimals else len(whole) - len(whole.rstrip(",")))
    return _Section(
        "".join(text for _, text in texts[:first]),
        whole.replace(",", ""),
        decimals.rstrip(","),
        _GROUPED.search(whole) is not None,
        scale,
        exponent,
        "".join(text for _, text in texts[last + 1 :]),
        condition,
    )


def _show(value: float, section: _Section) -> str:
    if not section.digits and not section.decimals:
        return section.before + section.after
    number = Decimal(repr(value)).scaleb(section.scale)
    if section.exponent:
        return f"{section.before}{float(number):.{len(section.decimals)}E}{section.after}"
    shown = f"{number.quantize(Decimal(1).scaleb(-len(section.decimals)), ROUND_HALF_UP, _EXACT):f}"
    whole, _, decimals = shown.partition(".")
    least = section.decimals.rfind("0") + 1
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    digits = list(whole.lstrip("0"))
    out: list[str] = []
    for place in reversed(section.digits):
        if place not in "0#?":
            out.append(place)
        elif digits or place == "0":
            out.append(digits.pop() if digits else "0")
    rest = "".join([*digits, *reversed(out)])
    if section.is_grouped and rest.isdecimal():
        rest = ",".join(rest[max(0, end - 3) : end] for end in range(len(rest), 0, -3)[::-1])
    return f"{section.before}{rest}{'.' if decimals else ''}{decimals}{section.after}"


_EXACT: Final = Context(prec=400)
"""Precision in which the largest number of a cell has all of its digits."""
