"""Office documents: DOCX, PPTX, ODT and ODP, read from their XML, and spreadsheets.

Both families are zip archives of XML with text in paragraphs. Reading the XML also finds text that libraries with
object models leave out: text boxes, footnotes, comments, headers.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.steps.formats import Content, Unreadable, format_time, iso_date, one_line

if TYPE_CHECKING:
    from lxml.etree import _Element


_UNSEEN: Final = ("{*}Fallback", "{*}del", "{*}moveFrom", "{*}instrText", "{*}tracked-changes")
"""Elements that a reader does not see: deleted text, codes of fields, the second form of content."""

_ROWS: Final = frozenset({"tr", "table-row"})
_CELLS: Final = frozenset({"tc", "table-cell"})
_DIGITS: Final = 4
"""Longest number of a count of spaces, in digits: no line has ten thousand."""

_BESIDE: Final = ("header", "footer", "footnotes", "endnotes", "comments")
"""Parts of a DOCX beside its body, by the end of their content types; in the order in which they are read."""


def docx(raw: bytes) -> Content:
    """Read the body of a DOCX, then headers, footers, notes and comments."""
    package = Package(raw)
    types = _content_types(package)
    main = [part for part, kind in types.items() if kind.endswith("main+xml") and "word" in kind]
    if not main:
        raise Unreadable("it has no main part: the file is broken. Save it again")
    parts = main + [p for end in _BESIDE for p, kind in types.items() if kind.endswith(f".{end}+xml")]
    return Content(_join_blocks(_office_text(package, part) for part in parts), core_fields(package))


def pptx(raw: bytes) -> Content:
    """Read slides in the order in which they are shown, each followed by its notes."""
    package = Package(raw)
    main = "ppt/presentation.xml"
    targets = relationship_targets(package, main)
    slides = [targets.get(_relation_id(slide), "") for slide in package.xml(main).iter("{*}sldId")]
    parts = []
    for slide in slides:
        if slide in package:
            notes = [part for part in relationship_targets(package, slide).values() if "/notesSlide" in part]
            parts += [slide, *(part for part in notes if part in package)]
    return Content(
        _join_blocks(_office_text(package, part) for part in parts), core_fields(package) | {"pages": len(slides)}
    )


def odf(raw: bytes) -> Content:
    """Read the text, slides or sheets of an OpenDocument file."""
    package = Package(raw)
    if "META-INF/manifest.xml" in package and b"encryption-data" in package.read("META-INF/manifest.xml"):
        raise Unreadable("it is encrypted. Save it without a password")
    root = _strip_unseen(package.xml("content.xml"))
    fields = dublin_core_fields(package.xml("meta.xml")) if "meta.xml" in package else {}
    if slides := sum(1 for _ in root.iter("{*}page")):
        fields["pages"] = slides
    return Content("\n\n".join(_blocks(root, odf=True)), fields)


def _content_types(package: Package) -> dict[str, str]:
    """Return part -> content type."""
    overrides = package.xml("[Content_Types].xml").iter("{*}Override")
    return {each.get("PartName", "").lstrip("/"): each.get("ContentType", "") for each in overrides}


def _relation_id(element: _Element) -> str:
    """Return the ``r:id`` of an element, in either of its namespaces."""
    return next((str(value) for name, value in element.attrib.items() if str(name).endswith("}id")), "")


def _office_text(package: Package, part: str) -> str:
    return "\n\n".join(_blocks(_strip_unseen(package.xml(part)), odf=False))


def _join_blocks(texts: Iterator[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _strip_unseen(root: _Element) -> _Element:
    from lxml import etree

    etree.strip_elements(root, *_UNSEEN, with_tail=False)
    return root


def _blocks(element: _Element, odf: bool) -> Iterator[str]:
    """Yield paragraphs, and each table as one block: a line for each row, tabs between cells."""
    for each in element:
        match local_name(each):
            case "p" | "h":
                yield from _paragraph(each, odf)
            case "tbl" | "table":
                rows = (
                    "\t".join(" ".join(_blocks(cell, odf)) for cell in _nearest(row, _CELLS))
                    for row in _nearest(each, _ROWS)
                )
                if table := "\n".join(row for row in rows if row.strip()):
                    yield table
            case "":
                continue
            case _:
                yield from _blocks(each, odf)


def _paragraph(element: _Element, odf: bool) -> Iterator[str]:
    """Yield a paragraph's text, then the paragraphs anchored in it: text boxes, notes."""
    anchored: list[_Element] = []
    if text := "".join(_runs(element, odf, anchored)).strip():
        yield text
    for each in anchored:
        yield from _blocks(each, odf)


def _runs(element: _Element, odf: bool, anchored: list[_Element]) -> Iterator[str]:
    """Yield runs of text. Office writes them into elements of their own, OpenDocument between its elements."""
    if odf and element.text:
        yield element.text
    for each in element:
        match local_name(each):
            case "t" if not odf:
                yield each.text or ""
            case "tab":
                yield "\t"
            case "br" | "cr" | "line-break":
                yield "\n"
            case "s" if odf:
                count = next((str(value) for name, value in each.attrib.items() if str(name).endswith("}c")), "1")
                yield " " * (int(count) if count.isdecimal() and len(count) < _DIGITS else 1)
            case "noBreakHyphen":
                yield "-"
            case "txbxContent" | "text-box" | "note-body" | "annotation":
                anchored.append(each)
            case "pPr" | "rPr" | "note-citation" | "":
                pass
            case _:
                yield from _runs(each, odf, anchored)
        if odf and each.tail:
            yield each.tail


def _nearest(element: _Element, names: frozenset[str]) -> Iterator[_Element]:
    """Yield the nearest descendants of these names: rows and cells of a nested table belong to that table."""
    for each in element:
        if local_name(each) in names:
            yield each
        else:
            yield from _nearest(each, names)


# Packages: formats that are zip archives inside, such as DOCX, ODT, EPUB.

_CORE: Final = "docProps/core.xml"
"""Part in which Office keeps title and author."""


class Package:
    """A zip archive in memory. Its declared sizes are checked before anything is unpacked.

    Raises:
        Unreadable: it would unpack to more than the limit, or is encrypted.
        zipfile.BadZipFile: it is broken.
    """

    def __init__(self, raw: bytes) -> None:
        self._zip = zipfile.ZipFile(BytesIO(raw))
        self._infos = {info.filename: info for info in self._zip.infolist()}
        unpacked = sum(info.file_size for info in self._infos.values())
        if unpacked > limits.EXTRACT_UNPACKED_BYTES:
            raise Unreadable(
                f"it unpacks to {unpacked} bytes, more than {limits.EXTRACT_UNPACKED_BYTES}: a decompression bomb, or "
                "too large. Leave it out, or split it"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    @property
    def names(self) -> list[str]:
        """Return the names of all members, in order."""
        return list(self._infos)

    def read(self, name: str) -> bytes:
        """Read a member; it yields no more bytes than it declares.

        Raises:
            Unreadable: it is not there, is encrypted, or is larger than one part may be.
        """
        info = self._infos.get(name)
        if info is None:
            raise Unreadable(f"its part {name} is missing: the file is broken. Save it again")
        if info.flag_bits & 1:
            raise Unreadable("it is encrypted. Save it without a password")
        if info.file_size > limits.EXTRACT_PART_BYTES:
            raise Unreadable(
                f"its part {name} unpacks to {info.file_size} bytes, more than {limits.EXTRACT_PART_BYTES}. Split it"
            )
        return self._zip.read(info)

    def xml(self, name: str) -> _Element:
        """Parse a member as XML."""
        return parse_xml(self.read(name))


def parse_xml(raw: bytes) -> _Element:
    """Parse untrusted XML and return its root: no entity is resolved, nothing is loaded, depth and sizes are
    limited."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    return etree.fromstring(raw, parser)


def core_fields(package: Package) -> dict[str, Any]:
    """Return title, author, dates and language that an Office file states."""
    return dublin_core_fields(package.xml(_CORE)) if _CORE in package else {}


def dublin_core_fields(root: _Element) -> dict[str, Any]:
    """Return fields from Dublin Core elements anywhere below: Office, OpenDocument and EPUB all use them."""
    texts: dict[str, list[str]] = {}
    for element in root.iter("{*}*"):
        name = local_name(element)
        if element.text and element.text.strip():
            texts.setdefault(name, []).append(element.text)
    fields = {
        "title": one_line(texts.get("title", [""])[0]),
        "author": "; ".join(map(one_line, texts.get("initial-creator") or texts.get("creator") or [])),
        "created": iso_date((texts.get("created") or texts.get("creation-date") or [""])[0]),
        "modified": iso_date((texts.get("modified") or texts.get("date") or [""])[0]),
        "language": one_line(texts.get("language", [""])[0]),
    }
    return {name: value for name, value in fields.items() if value}


def relationship_targets(package: Package, part: str) -> dict[str, str]:
    """Return the targets of an Office part's relationships, by their ids."""
    folder, name = posixpath.split(part)
    rels = f"{folder}/_rels/{name}.rels".lstrip("/")
    if rels not in package:
        return {}
    return {
        element.get("Id", ""): posixpath.normpath(posixpath.join("/", folder, element.get("Target", "")))[1:]
        for element in package.xml(rels).iter("{*}Relationship")
        if element.get("TargetMode") != "External"
    }


def local_name(element: _Element) -> str:
    """Return an element's name without its namespace; "" for comments and the like."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


# Spreadsheets: XLSX, XLSB and XLS, read by calamine.

_LAST_ROW: Final = re.compile(rb'<(?:\w+:)?row\b[^<>]*?\br="(\d{1,9})"')
_COLUMN: Final = re.compile(rb'\br="([A-Z]{1,3})\d')
_COLUMNS: Final = 16_384
"""Columns of a sheet, at most."""

_TAIL_BYTES: Final = limits.MIB


def xlsx(raw: bytes) -> Content:
    """Read the values of the cells: a block for each sheet, headed by its name; a line for each row that is not empty,
    tabs between cells."""
    package = Package(raw)
    for name in package.names:
        if name.startswith("xl/worksheets/") and name.endswith(".xml"):
            _check_grid(name, package.read(name))
    content = xls(raw)
    content.fields = core_fields(package) | content.fields
    return content


def xls(raw: bytes) -> Content:
    """Read a workbook of the older binary formats."""
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
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            return format_time(value)
        case date() | time() | timedelta():
            return str(value)
    return str(value).replace("\n", " ").replace("\t", " ")
