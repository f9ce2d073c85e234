"""Spreadsheets: XLSX, XLSB and XLS, read by calamine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from io import BytesIO
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats.content import Content, Unreadable, written
from ferryman.steps.formats.package import Package, core_fields

_LAST_ROW: Final = re.compile(rb'<(?:\w+:)?row\b[^>]*?\br="(\d{1,9})"')
_COLUMN: Final = re.compile(rb'\br="([A-Z]{1,3})\d')
_COLUMNS: Final = 16_384
"""Columns of a sheet, at most."""

_TAIL_BYTES: Final = limits.MIB


def xlsx(raw: bytes) -> Content:
    """Values of the cells: a block a sheet, headed by its name; a line a row, tabs between cells; no empty rows."""
    package = Package(raw)
    for name in package.names:
        if name.startswith("xl/worksheets/") and name.endswith(".xml"):
            _bounded(name, package.read(name))
    content = xls(raw)
    content.fields = core_fields(package) | content.fields
    return content


def xls(raw: bytes) -> Content:
    """The same of the older binary formats."""
    from python_calamine import CalamineError, load_workbook

    try:
        book = load_workbook(BytesIO(raw))
        blocks = []
        for name in book.sheet_names:
            rows = ("\t".join(_cells(row)) for row in book.get_sheet_by_name(name).iter_rows())
            blocks.append("\n".join([name, *(row for row in rows if row)]))
    except CalamineError as e:
        if "password" in str(e).lower():
            raise Unreadable("it is encrypted. Save it without a password") from None
        raise
    return Content("\n\n".join(blocks), {"pages": len(book.sheet_names)})


def _bounded(name: str, sheet: bytes) -> None:
    """Refuse what would take the process: the reader makes a full grid of a sheet, however few of its cells are used.

    Raises:
        Unreadable: too large a grid.
    """
    rows = max((int(row) for row in _LAST_ROW.findall(sheet[-_TAIL_BYTES:])), default=1)
    if rows * _COLUMNS <= limits.EXTRACT_CELLS:
        return
    columns = max((_number(letters) for letters in set(_COLUMN.findall(sheet))), default=1)
    if rows * columns > limits.EXTRACT_CELLS:
        raise Unreadable(
            f"{name} spans {rows} rows and {columns} columns, more than {limits.EXTRACT_CELLS} cells. "
            "Delete the stray cells at its end, or split it"
        )


def _number(letters: bytes) -> int:
    """A column's number: A is 1, AA 27."""
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number


def _cells(row: Iterable[Any]) -> list[str]:
    """Texts of a row, without empty ones at its end."""
    texts = [_shown(value) for value in row]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def _shown(value: Any) -> str:
    match value:
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            return written(value)
        case date() | time() | timedelta():
            return str(value)
    return str(value).replace("\n", " ").replace("\t", " ")
