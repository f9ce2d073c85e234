"""Spreadsheets of Excel: XLSX, XLSB and XLS. Their cells are read by calamine, the rest from the parts of the file."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from html import unescape
from io import BytesIO
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats import Content, Unread, Unreadable, format_time
from ferryman.steps.formats.office import (
    EMBEDDED,
    OfficePart,
    Package,
    core_fields,
    each_once,
    in_row,
    local_name,
    main_part,
    part_key,
    relation_id,
)

_LAST_ROW: Final = re.compile(rb'<(?:\w+:)?row\b[^<>]*?\br="(\d{1,9})"')
_COLUMN: Final = re.compile(rb'\br="([A-Z]{1,3})\d')
_COLUMNS: Final = 16_384
"""Columns of a sheet, at most."""

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
    beside = {}
    replaced: dict[str, bytes] = {}
    for part in each_once([*sheets.values(), *in_folder]):
        if part in package:
            cells = package.read(part)
            _check_grid(part, cells)
            if _ERROR_MARK in cells:
                replaced[part_key(part)] = _ERROR_CELL.sub(rb'\1"str"', cells)
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
    sheets = (part for part in parts if part.startswith("xl/worksheets/sheet"))
    if any(number in _BINARY_ERRORS for part in sheets for number, _ in _records(package.read(part))):
        unread.add("error values")
    return _workbook(raw, unread, {})


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


def xls(raw: bytes) -> Content:
    """Read a workbook of before 2007; texts of comments and shapes follow all sheets."""
    unread = Unread()
    texts = each_once(_xls_texts(raw, unread))  # first: where sectors lead in a circle, calamine would never end
    content = _workbook(raw, unread, {})
    content.text = "\n\n".join([content.text, *texts])
    content.fields |= unread.fields
    return content


_NOTE, _TEXT_OBJECT, _CONTINUE, _MARGINS = 0x1C, 0x1B6, 0x3C, (0x14, 0x15)
"""Numbers of records in an XLS: a comment's place, the text of a comment or shape, more of the one before, a header
or a footer."""
_VALUE, _FORMULA = 0x205, 0x06
"""Numbers of records in an XLS: a cell with a truth value or an error; a formula, with its result."""
_IS_ERROR: Final = {_VALUE: (7, b"\1"), _FORMULA: (6, b"\2")}
"""Place and value of the byte that says that the cell shows an error."""
_TEXT_OBJECT_BYTES: Final = 18


def _xls_texts(raw: bytes, unread: Unread) -> Iterator[str]:
    """Yield the texts in an XLS that are not in cells: comments, text boxes, headers, footers."""
    import olefile

    with olefile.OleFileIO(BytesIO(raw)) as ole:
        name = next((each for each in ("Workbook", "Book") if ole.exists(each)), "")
        if not name:
            raise Unreadable("it has no workbook: the file is broken. Save it again")
        stream = ole.openstream(name).read()
        if name == "Book":
            unread.add("comments")  # a format of before 1997, where they are written in another way
            return
        if any("MBD" in "/".join(path) for path in ole.listdir()):
            unread.add("embedded files")
    at, awaited = 0, 0
    while at + 4 <= len(stream):
        number, size = struct.unpack_from("<HH", stream, at)
        data = stream[at + 4 : at + 4 + size]
        at += 4 + size
        if number == _TEXT_OBJECT and size >= _TEXT_OBJECT_BYTES:
            awaited, text = struct.unpack_from("<H", data, 10)[0], ""
        elif number == _CONTINUE and awaited > 0 and data:
            piece = data[1:].decode("utf-16-le" if data[0] & 1 else "latin-1", "replace")[:awaited]
            text, awaited = text + piece, awaited - len(piece)
            if awaited <= 0 and (line := in_row(text)):
                yield line
        elif number in _IS_ERROR and _shows_error(number, data):
            unread.add("error values")
        elif number in _MARGINS and size > 3:
            words = data[3:].decode("utf-16-le" if data[2] & 1 else "latin-1", "replace")
            if line := _margin_text(words):
                yield line


def _shows_error(number: int, data: bytes) -> bool:
    """Return whether a cell shows an error, such as #N/A, which calamine leaves out."""
    at, mark = _IS_ERROR[number]
    return data[at : at + 1] == mark and (number == _VALUE or data[12:14] == b"\xff\xff")


_BINARY_ERRORS: Final = frozenset({3, 11})
"""Numbers of records in a binary workbook of cells that show an error (BrtCellError, BrtFmlaError)."""


def _workbook(raw: bytes, unread: Unread, beside: Mapping[str, list[str]]) -> Content:
    """Read the sheets of a workbook of any format; ``beside`` has more text of each."""
    from python_calamine import CalamineError, SheetTypeEnum, WorksheetNotFound, load_workbook

    try:
        book = load_workbook(BytesIO(raw))
        blocks = []
        for sheet in book.sheets_metadata:
            rows: list[str] = []
            if sheet.typ == SheetTypeEnum.WorkSheet:
                try:
                    rows += ("\t".join(_cells(row)) for row in book.get_sheet_by_name(sheet.name).iter_rows())
                except WorksheetNotFound:
                    unread.add("sheets")
            blocks.append("\n".join([in_row(sheet.name), *(row for row in rows if row)]))
            blocks += beside.get(sheet.name, [])
    except CalamineError as e:
        if "password" in str(e).lower():
            raise Unreadable("it is encrypted. Save it without a password") from None
        raise
    return Content("\n\n".join(blocks), {"pages": len(book.sheet_names)} | unread.fields)


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


def _check_grid(name: str, sheet: bytes) -> None:
    """Refuse a sheet that would exhaust memory: the reader allocates the full grid, however few of its cells are used.

    Raises:
        Unreadable: the grid is too large.
    """
    rows = max((int(row) for row in _LAST_ROW.findall(sheet[-_TAIL_BYTES:])), default=1)
    if rows * _COLUMNS <= limits.EXTRACT_CELLS:
        return
    columns = max((_column_number(letters) for letters in set(_COLUMN.findall(sheet))), default=1)
    if rows * columns > limits.EXTRACT_CELLS:
        raise Unreadable(
            f"{name} spans {rows} rows and {columns} columns, more than {limits.EXTRACT_CELLS} cells. "
            "Delete the stray cells at its end, or split it"
        )


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


def _cell_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            return format_time(value)
        case date() | time() | timedelta():
            return str(value)
    return in_row(str(value))
