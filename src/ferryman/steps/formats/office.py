"""Word processing and slides: DOCX, PPTX, ODT and ODP, read from their XML.

Both families are zip archives of XML whose text stands in paragraphs. Reading them from there takes what the object
models leave out: text boxes, footnotes, comments, headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ferryman.steps.formats.content import Content, Unreadable
from ferryman.steps.formats.package import Package, core_fields, described, local, related

if TYPE_CHECKING:
    from lxml.etree import _Element

_UNSEEN: Final = ("{*}Fallback", "{*}del", "{*}moveFrom", "{*}instrText", "{*}tracked-changes")
"""What a reader does not see: deleted text, codes of fields, the second form of what is there already."""

_ROWS: Final = frozenset({"tr", "table-row"})
_CELLS: Final = frozenset({"tc", "table-cell"})
_DIGITS: Final = 4
"""Of a number of spaces that is believed: a line has no ten thousand."""

_BESIDE: Final = ("header", "footer", "footnotes", "endnotes", "comments")
"""Parts of a DOCX beside its body, by the end of their content types; in the order in which they are read."""


def docx(raw: bytes) -> Content:
    """Body, then headers, footers, notes and comments."""
    package = Package(raw)
    types = _content_types(package)
    main = [part for part, kind in types.items() if kind.endswith("main+xml") and "word" in kind]
    if not main:
        raise Unreadable("it has no main part: the file is broken. Save it again")
    parts = main + [p for end in _BESIDE for p, kind in types.items() if kind.endswith(f".{end}+xml")]
    return Content(_joined(_office_text(package, part) for part in parts), core_fields(package))


def pptx(raw: bytes) -> Content:
    """Slides in the order in which they are shown, each followed by its notes."""
    package = Package(raw)
    main = "ppt/presentation.xml"
    targets = related(package, main)
    slides = [targets.get(_relation(slide), "") for slide in package.xml(main).iter("{*}sldId")]
    parts = []
    for slide in slides:
        if slide in package:
            notes = [part for part in related(package, slide).values() if "/notesSlide" in part]
            parts += [slide, *(part for part in notes if part in package)]
    return Content(
        _joined(_office_text(package, part) for part in parts), core_fields(package) | {"pages": len(slides)}
    )


def odf(raw: bytes) -> Content:
    """Text, slides, or sheets of OpenDocument."""
    package = Package(raw)
    if "META-INF/manifest.xml" in package and b"encryption-data" in package.read("META-INF/manifest.xml"):
        raise Unreadable("it is encrypted. Save it without a password")
    root = _seen(package.xml("content.xml"))
    fields = described(package.xml("meta.xml")) if "meta.xml" in package else {}
    if slides := sum(1 for _ in root.iter("{*}page")):
        fields["pages"] = slides
    return Content("\n\n".join(_blocks(root, odf=True)), fields)


def _content_types(package: Package) -> dict[str, str]:
    """Part -> content type."""
    overrides = package.xml("[Content_Types].xml").iter("{*}Override")
    return {each.get("PartName", "").lstrip("/"): each.get("ContentType", "") for each in overrides}


def _relation(element: _Element) -> str:
    """The ``r:id`` of an element, in whichever of its namespaces."""
    return next((str(value) for name, value in element.attrib.items() if str(name).endswith("}id")), "")


def _office_text(package: Package, part: str) -> str:
    return "\n\n".join(_blocks(_seen(package.xml(part)), odf=False))


def _joined(texts: Iterator[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _seen(root: _Element) -> _Element:
    from lxml import etree

    etree.strip_elements(root, *_UNSEEN, with_tail=False)
    return root


def _blocks(element: _Element, odf: bool) -> Iterator[str]:
    """Paragraphs, and tables as one block a table: a line a row, tabs between cells."""
    for each in element:
        match local(each):
            case "p" | "h":
                yield from _paragraph(each, odf)
            case "tbl" | "table":
                rows = (
                    "\t".join(" ".join(_blocks(cell, odf)) for cell in _below(row, _CELLS))
                    for row in _below(each, _ROWS)
                )
                if table := "\n".join(row for row in rows if row.strip()):
                    yield table
            case "":
                continue
            case _:
                yield from _blocks(each, odf)


def _paragraph(element: _Element, odf: bool) -> Iterator[str]:
    """Its text, then the paragraphs of what is anchored in it: text boxes, notes."""
    anchored: list[_Element] = []
    if text := "".join(_runs(element, odf, anchored)).strip():
        yield text
    for each in anchored:
        yield from _blocks(each, odf)


def _runs(element: _Element, odf: bool, anchored: list[_Element]) -> Iterator[str]:
    """Pieces of text. Office writes them into elements of their own, OpenDocument between its elements."""
    if odf and element.text:
        yield element.text
    for each in element:
        match local(each):
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


def _below(element: _Element, names: frozenset[str]) -> Iterator[_Element]:
    """The nearest elements of these names: those of a table inside a cell are that table's."""
    for each in element:
        if local(each) in names:
            yield each
        else:
            yield from _below(each, names)
