"""Office documents: DOCX, PPTX and OpenDocument, read from their XML; and packages, which others are, too.

Both families are zip archives of XML with text in paragraphs. Reading the XML also finds text that libraries with
object models leave out: text boxes, footnotes, comments, headers.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote

from ferryman import limits
from ferryman.steps.formats import (
    DOCX,
    HTML,
    MAIL,
    MARKDOWN,
    PLAIN,
    RTF,
    Content,
    Unread,
    Unreadable,
    iso_date,
    kind_of,
    load_reader,
    one_line,
)
from ferryman.steps.formats.numbering import OdfLists, SlideParagraphs, WordParagraphs

if TYPE_CHECKING:
    from lxml.etree import _Element


_UNSEEN: Final = ("{*}Fallback", "{*}del", "{*}moveFrom", "{*}instrText", "{*}tracked-changes")
"""Elements that a reader does not see: deleted text, codes of fields, the second form of content."""

_ROWS: Final = frozenset({"tr", "table-row"})
_CELLS: Final = frozenset({"tc", "table-cell", "covered-table-cell"})
_LINE_ENDS: Final = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
"""White space that would tear the row that a cell is in."""
_ESCAPE: Final = re.compile("_x00([01][0-9A-Fa-f])_")
"""Control character in DrawingML, such as the vertical tab of a line break in a title."""

_BESIDE: Final = ("header", "footer", "footnotes", "endnotes", "comments")
"""Parts of a DOCX beside its body, by their relationships; in the order in which they are read."""

EMBEDDED: Final = frozenset({"package", "oleObject"})
"""Relationships to files of other programs that a part embeds."""

_NESTED: Final = 3
"""Depth to which parts are read that others insert: documents in documents."""


def docx(raw: bytes, depth: int = 0) -> Content:
    """Read the body of a DOCX, then headers, footers, notes and comments.

    Args:
        depth: number of documents that this one is inserted into.
    """
    package, unread = Package(raw), Unread()
    types = _content_types(package)
    stated = [part for part, kind in types.items() if kind.endswith("main+xml") and "word" in kind]
    main = main_part(package, *stated, "word/document.xml")
    if not main:
        raise Unreadable("it has no main part: the file is broken. Save it again")
    word = _word_paragraphs(package, main)
    body = OfficePart(package, main, unread, depth, word)
    text = body.text()
    beside = []
    for kind in _BESIDE:
        found = [each.target for each in package.relations(main) if each.kind == kind]
        found += [part for part, type_ in types.items() if type_.endswith(f".{kind}+xml")]
        for part in each_once(found):
            if part in package:
                word.start_again()
                beside.append(OfficePart(package, part, unread, depth, word).text())
            else:
                unread.add(kind if kind.endswith("s") else f"{kind}s")
    content = _office_content(package, [text, *each_once(beside)], unread)
    content.outline = body.outline
    return content


def _word_paragraphs(package: Package, main: str) -> WordParagraphs:
    """Return the styles and lists of a DOCX."""
    parts = {each.kind: each.target for each in package.relations(main) if each.target in package}
    roots = (package.xml(parts[kind]) if kind in parts else None for kind in ("styles", "numbering"))
    return WordParagraphs(*roots)


def pptx(raw: bytes) -> Content:
    """Read slides in the order in which they are shown, each followed by its notes and comments; at the end what the
    masters of the slides show."""
    package, unread = Package(raw), Unread()
    main = main_part(package, "ppt/presentation.xml")
    targets = {each.id: each.target for each in package.relations(main)}
    slides = [targets.get(relation_id(slide), "") for slide in package.xml(main).iter("{*}sldId")]
    texts: list[str] = []
    masters: list[str] = []
    for slide in slides:
        if slide not in package:
            unread.add("slides")
            continue
        texts.append(OfficePart(package, slide, unread, numbers=SlideParagraphs()).text())
        for each in package.relations(slide):
            if each.target not in package:
                continue
            if each.kind == "notesSlide" or "notesslide" in each.target.lower():
                texts.append(OfficePart(package, each.target, unread).text())
            elif each.kind in ("comments", "comment"):
                texts.append(_comments(package.xml(each.target)))
            elif each.kind == "slideLayout":
                masters.append(each.target)
                masters += [up.target for up in package.relations(each.target) if up.kind == "slideMaster"]
    texts += [OfficePart(package, part, unread).fixed_text() for part in each_once(masters) if part in package]
    return _office_content(package, texts, unread, pages=len(slides))


def _office_content(package: Package, texts: Iterable[str], unread: Unread, **fields: Any) -> Content:
    text = "\n\n".join(each for each in texts if each)
    if not text and package.has_pictures:
        unread.add("pictures")
    return Content(text, core_fields(package) | fields | unread.fields)


def main_part(package: Package, *candidates: str) -> str:
    """Return the part at which a package begins: the one its relationships name, else the first candidate in it."""
    named = [each.target for each in package.relations("") if each.kind == "officeDocument"]
    parts = [*named, *candidates]
    return next((part for part in parts if part in package), parts[0] if parts else "")


def each_once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _content_types(package: Package) -> dict[str, str]:
    """Return part -> content type, of the parts that have a type of their own."""
    if "[Content_Types].xml" not in package:
        return {}
    overrides = package.xml("[Content_Types].xml").iter("{*}Override")
    return {each.get("PartName", "").lstrip("/"): each.get("ContentType", "") for each in overrides}


def relation_id(element: _Element, name: str = "id") -> str:
    """Return the ``r:id`` of an element, in either of its namespaces; or another attribute with a namespace."""
    return next((str(value) for key, value in element.attrib.items() if str(key).endswith(f"}}{name}")), "")


def _strip_unseen(root: _Element) -> _Element:
    from lxml import etree

    etree.strip_elements(root, *_UNSEEN, with_tail=False)
    return root


def _comments(root: _Element) -> str:
    """Return the comments on a slide: paragraphs, or in older files texts."""
    texts = []
    for each in root.iter("{*}p", "{*}text"):
        line = each.text if local_name(each) == "text" else "".join(t.text or "" for t in each.iter("{*}t"))
        texts.append((line or "").strip())
    return "\n\n".join(text for text in texts if text)


def in_row(text: str) -> str:
    """Return the text of a cell without line ends and tabs, which would tear its row."""
    return _LINE_ENDS.sub(" ", text).strip()


class OfficePart:
    """The text of one part of a package, with the parts that it inserts where they are inserted.

    Args:
        unread: where what is left out is added.
        depth: number of parts that this one is inserted into.
        numbers: what tells the numbers of its paragraphs.

    Attributes:
        outline: level and first line of each heading that was read so far, but those in tables.
    """

    is_odf: ClassVar[bool] = False

    def __init__(
        self,
        package: Package,
        name: str,
        unread: Unread,
        depth: int = 0,
        numbers: WordParagraphs | SlideParagraphs | None = None,
    ) -> None:
        self._package, self._name, self._unread, self._depth = package, name, unread, depth
        self._numbers = numbers
        self._cell_depth = 0
        self.outline: list[tuple[int, str]] = []
        self._relations = {each.id: each for each in package.relations(name)}
        if any(each.kind in EMBEDDED for each in self._relations.values()):
            unread.add("embedded files")

    def text(self) -> str:
        return "\n\n".join(self._blocks(_strip_unseen(self._package.xml(self._name))))

    def fixed_text(self) -> str:
        """Return the text that a master shows on its slides: without its placeholders, which slides fill."""
        root = _strip_unseen(self._package.xml(self._name))
        for placeholder in list(root.iter("{*}ph")):
            shape = next((up for up in placeholder.iterancestors() if local_name(up) in ("sp", "pic")), None)
            if shape is not None and (parent := shape.getparent()) is not None:
                parent.remove(shape)
        return "\n\n".join(self._blocks(root))

    def _blocks(self, element: _Element) -> Iterator[str]:
        """Yield paragraphs, and each table as one block: a line for each row, tabs between cells."""
        for each in element:
            yield from self._block(each)

    def _block(self, element: _Element) -> Iterator[str]:
        match local_name(element):
            case "p" | "h":
                yield from self._paragraph(element)
            case "tbl" | "table":
                rows = ("\t".join(self._cells(row)) for row in _nearest(element, _ROWS))
                if table := "\n".join(row for row in rows if row.strip()):
                    yield table
            case "altChunk" | "chart" | "relIds" | "textpath" as kind:
                yield from self._insertion(kind, element)
            case "object" | "object-ole" if self.is_odf and relation_id(element, "href"):
                self._unread.add("embedded files")
            case "":
                return
            case _:
                yield from self._blocks(element)

    def _cells(self, row: _Element) -> Iterator[str]:
        self._cell_depth += 1
        for cell in _nearest(row, _CELLS):
            yield in_row(" ".join(self._blocks(cell)))
        self._cell_depth -= 1

    def _insertion(self, kind: str, element: _Element) -> Iterator[str]:
        """Yield the text of what an element inserts: a document, a chart, SmartArt, or WordArt."""
        if kind == "textpath":
            yield element.get("string", "")
            return
        relation = self._relations.get(relation_id(element, "dm" if kind == "relIds" else "id"))
        if relation is None:  # the element of this name in a chart itself
            yield from self._blocks(element)
            return
        what = {"altChunk": "inserted documents", "chart": "charts", "relIds": "diagrams"}[kind]
        if relation.target not in self._package or self._depth >= _NESTED:
            self._unread.add(what)
        elif kind == "altChunk":
            yield from self._inserted_document(relation.target, what)
        else:
            part = OfficePart(self._package, relation.target, self._unread, self._depth + 1)
            yield from part.drawing_blocks()

    def drawing_blocks(self) -> Iterator[str]:
        """Yield the texts of a chart or diagram: titles and texts, then the names of series and categories."""
        root = _strip_unseen(self._package.xml(self._name))
        yield from self._blocks(root)
        names = (
            value.text or "" for cache in root.iter("{*}strCache", "{*}strDim") for value in cache.iter("{*}v", "{*}pt")
        )
        if line := "\t".join(in_row(name) for name in each_once(names) if name.strip()):
            yield line

    def _inserted_document(self, target: str, what: str) -> Iterator[str]:
        """Yield the text of a document of any format that is inserted as a whole (``altChunk``)."""
        raw = self._package.read(target)
        kind = kind_of(raw, target)
        if kind == DOCX:
            content = docx(raw, self._depth + 1)
        elif kind in _INSERTABLE:
            content = load_reader(kind.reader)(raw)
        else:
            self._unread.add(what)
            return
        for unread in content.fields.get("unread", ()):
            self._unread.add(unread)
        if content.parts:
            self._unread.add("attachments")
        self.outline += content.outline
        yield content.text

    def _paragraph(self, element: _Element) -> Iterator[str]:
        """Yield a paragraph's text, then the paragraphs anchored in it: text boxes, notes, charts."""
        anchored: list[_Element] = []
        label, level = self._describe(element)
        if text := "".join(self._runs(element, anchored)).strip():
            text = f"{label} {text}".lstrip()
            if level and not self._cell_depth:
                self.outline.append((level, text.partition("\n")[0]))
            yield text
        for each in anchored:
            yield from self._anchored(each)

    def _symbol(self, element: _Element) -> str:
        """Return the character that an element shows by a font; one of a font of pictures may be unread."""
        font, number = relation_id(element, "font").lower(), relation_id(element, "char")
        code = int(number, 16) if _CODE.fullmatch(number) else 0
        if code >= ord(" ") and code not in _PRIVATE and font not in _SYMBOLS:
            return chr(code)
        known = _SYMBOLS.get(font, {}).get(code & 0xFF, "")
        if not known:
            self._unread.add("symbols")
        return known

    def _describe(self, element: _Element) -> tuple[str, int]:
        """Return the number that is shown before a paragraph, and its level in the outline, 0 for none."""
        return ("", 0) if self._numbers is None else self._numbers.describe(element)

    def _anchored(self, element: _Element) -> Iterator[str]:
        yield from self._block(element) if local_name(element) in _INSERTIONS else self._blocks(element)

    def _runs(self, element: _Element, anchored: list[_Element]) -> Iterator[str]:
        """Yield runs of text. Office writes them into elements of their own, OpenDocument between its elements."""
        if self.is_odf and element.text:
            yield element.text
        for each in element:
            match local_name(each):
                case "t" if not self.is_odf:
                    yield _unescape(each)
                case "tab":
                    yield "\t"
                case "br" | "cr" | "line-break":
                    yield "\n"
                case "s" if self.is_odf:
                    yield " " * _count(each, "c", limit=_SPACES)
                case "noBreakHyphen":
                    yield "-"
                case "sym" if not self.is_odf:
                    yield self._symbol(each)
                case "txbxContent" | "text-box" | "note-body" | "annotation":
                    anchored.append(each)
                case "altChunk" | "chart" | "relIds" | "textpath":
                    anchored.append(each)
                case "object" | "object-ole" if self.is_odf and relation_id(each, "href"):
                    self._unread.add("embedded files")
                case "pPr" | "rPr" | "note-citation" | "":
                    pass
                case "r" if _is_hidden(each):
                    pass
                case _:
                    yield from self._runs(each, anchored)
            if self.is_odf and each.tail:
                yield each.tail


_SYMBOLS: Final = {
    "symbol": dict(zip(range(0x61, 0x7B), "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)),
    "wingdings": {0x6F: "☐", 0x78: "☒", 0xA8: "☐", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑"},
    "wingdings 2": {0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0xA3: "☐"},
}
"""Fonts of pictures -> meaning of their characters: Greek letters, and boxes of forms, checked or not."""
_CODE: Final = re.compile("[0-9A-Fa-f]{1,4}")
_PRIVATE: Final = range(0xF000, 0xF100)
"""Where Word puts the characters of such fonts."""

_INSERTIONS: Final = frozenset({"altChunk", "chart", "relIds", "textpath"})
"""Elements in whose place something else is shown."""

_INSERTABLE: Final = (HTML, MAIL, RTF, PLAIN, MARKDOWN)
"""Kinds of inserted documents that are read, beside DOCX."""

_OUTLINE: Final = 10
"""Levels of an outline in OpenDocument."""

_SPACES: Final = 9999
"""Most spaces that one element may stand for: no line has ten thousand."""


def _is_hidden(run: _Element) -> bool:
    """Return whether a run of Word is hidden text, which is neither shown nor printed."""
    if not len(run) or local_name(run[0]) != "rPr":
        return False
    hiding = next(run[0].iterchildren("{*}vanish"), None)
    return hiding is not None and relation_id(hiding, "val") not in ("0", "false", "off")


def _unescape(element: _Element) -> str:
    text = element.text or ""
    if "_x00" not in text or "drawingml" not in str(element.tag):
        return text
    return _ESCAPE.sub(lambda escape: "\n" if escape[1].upper() in ("0A", "0B", "0D") else " ", text)


def _count(element: _Element, name: str, limit: int) -> int:
    """Return how often an element of OpenDocument stands for itself: once unless an attribute says otherwise."""
    value = relation_id(element, name)
    return max(1, min(int(value), limit)) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else 1


_DIGITS: Final = 9
"""Longest count that is believed, in digits."""


def _nearest(element: _Element, names: frozenset[str]) -> Iterator[_Element]:
    """Yield the nearest descendants of these names: rows and cells of a nested table belong to that table."""
    for each in element:
        if local_name(each) in names:
            yield each
        else:
            yield from _nearest(each, names)


# OpenDocument: ODT, ODP, ODS.

_MASTER_FIELDS: Final = ("sheet-name", "page-number", "page-count", "date", "time", "title", "file-name", "date-time")
"""Fields of headers and footers whose stored text is a placeholder such as ``???``."""


_ODT_BODY: Final = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}text"


def odf(raw: bytes) -> Content:
    """Read the text, slides or sheets of an OpenDocument file, then headers and footers, or what its masters show."""
    package, unread = Package(raw), Unread()
    if "META-INF/manifest.xml" in package and b"encryption-data" in package.read("META-INF/manifest.xml"):
        raise Unreadable("it is encrypted. Save it without a password")
    root = _strip_unseen(package.xml("content.xml"))
    lists = OdfLists(package.xml("styles.xml") if "styles.xml" in package else None, root)
    reader = _OdfPart(package, "content.xml", unread, lists)
    fields = dublin_core_fields(package.xml("meta.xml")) if "meta.xml" in package else {}
    book = next(root.iter("{*}spreadsheet"), None)
    if book is not None:
        sheets = [each for each in book if local_name(each) == "table"]
        fields["pages"] = len(sheets)
        texts = [reader.sheet(sheet) for sheet in sheets]
    else:
        texts = ["\n\n".join(reader.blocks(root))]
        if slides := sum(1 for _ in root.iter("{*}page")):
            fields["pages"] = slides
    outline = reader.outline
    texts += [in_row("".join(map(str, each.itertext()))) for each in root.iter("{*}header-decl", "{*}footer-decl")]
    if "styles.xml" in package:
        used = None if next(root.iter(_ODT_BODY), None) is not None else _used_masters(root)
        texts += each_once(_OdfPart(package, "styles.xml", unread, lists).masters(used))
    text = "\n\n".join(each for each in texts if each)
    if not text and package.has_pictures:
        unread.add("pictures")
    return Content(text, fields | unread.fields, outline=outline)


def _used_masters(root: _Element) -> set[str]:
    """Return the names of the masters that sheets or slides use."""
    names = {relation_id(each, "master-page-name") for each in root.iter("{*}style", "{*}page")}
    return names | {"Default", "Standard"}


class _OdfPart(OfficePart):
    """The text of a part of an OpenDocument file.

    Args:
        lists: the lists of the file, with their numbers.
    """

    is_odf = True

    def __init__(self, package: Package, name: str, unread: Unread, lists: OdfLists) -> None:
        super().__init__(package, name, unread)
        self._lists = lists
        self._label = ""
        """Number of the item that is read, until its first paragraph."""
        self._cells_left, self._characters_left = limits.EXTRACT_CELLS, limits.EXTRACT_TEXT_BYTES

    def blocks(self, root: _Element) -> Iterator[str]:
        """Yield the blocks of a text, or of slides."""
        return self._blocks(root)

    def _block(self, element: _Element) -> Iterator[str]:
        if local_name(element) != "list":
            yield from super()._block(element)
            return
        self._lists.begin(element)
        for each in element:
            self._label = self._lists.label_of_item(each) if local_name(each) == "list-item" else ""
            yield from self._blocks(each)
        self._label = ""
        self._lists.end()

    def _describe(self, element: _Element) -> tuple[str, int]:
        label, self._label = self._label, ""
        if local_name(element) != "h":
            return label, 0
        level = _count(element, "outline-level", _OUTLINE)
        return self._lists.label_of_heading(element, level) or label, level

    def masters(self, used: set[str] | None) -> list[str]:
        """Return the texts of headers and footers, or of the shapes that masters show on slides; of all masters, or of
        those that are used."""
        root = _strip_unseen(self._package.xml(self._name))
        texts: list[str] = []
        for master in root.iter("{*}master-page"):
            if used is not None and relation_id(master, "name") not in used:
                continue
            for shape in list(
                master.iter("{*}frame", "{*}notes", "{*}header-left", "{*}footer-left", "{*}header", "{*}footer")
            ):
                hidden = relation_id(shape, "placeholder") == "true" or relation_id(shape, "display") == "false"
                if (hidden or local_name(shape) == "notes") and (parent := shape.getparent()) is not None:
                    parent.remove(shape)
            for paragraph in list(master.iter("{*}p")):
                _strip_fields(paragraph)
            texts += self._blocks(master)
        return texts

    def sheet(self, sheet: _Element) -> str:
        """Return a sheet as a block: its name, its rows that are not empty, the texts of shapes on it, comments."""
        lines, comments, beside = [relation_id(sheet, "name")], list[str](), list[str]()
        for shapes in list(sheet.iter("{*}shapes")):
            beside += self._blocks(shapes)
            sheet.remove(shapes) if shapes.getparent() is sheet else None
        number = 1
        for row in _nearest(sheet, _ROWS):
            count = _count(row, "number-rows-repeated", limit=10**_DIGITS)
            comments += self._cell_comments(row, number)
            line = "\t".join(self._cells(row)).rstrip("\t")
            if line:
                self._spend(count * (line.count("\t") + 1), count * len(line))
                lines += [line] * count
            number += count
        return "\n\n".join(["\n".join(lines), *beside, *comments])

    def _cells(self, row: _Element) -> Iterator[str]:
        pending = 0
        for cell in _nearest(row, _CELLS):
            count = _count(cell, "number-columns-repeated", limit=10**_DIGITS)
            text = self._cell(cell)
            if not text:
                pending += count
                continue
            self._spend(count + pending, count * len(text))
            yield from [""] * pending
            yield from [text] * count
            pending = 0

    def _cell(self, cell: _Element) -> str:
        """Return the text that a cell shows; its value if the program that made the file wrote no text."""
        blocks = (text for each in cell if local_name(each) != "annotation" for text in self._block(each))
        if text := in_row(" ".join(blocks)):
            return text
        values = ("string-value", "date-value", "time-value", "boolean-value", "value")
        return in_row(next((value for name in values if (value := relation_id(cell, name))), ""))

    def _cell_comments(self, row: _Element, number: int) -> Iterator[str]:
        column = 1
        for cell in _nearest(row, _CELLS):
            for comment in cell.iter("{*}annotation"):
                if text := in_row(" ".join(self._blocks(comment))):
                    yield f"{letters_of(column)}{number}: {text}"
            column += _count(cell, "number-columns-repeated", limit=10**_DIGITS)

    def _spend(self, cells: int, characters: int) -> None:
        """Count repeated cells: a small file may stand for any number of them.

        Raises:
            Unreadable: there are too many.
        """
        self._cells_left -= cells
        self._characters_left -= characters
        if self._cells_left < 0 or self._characters_left < 0:
            raise Unreadable(
                f"its repeated cells span more than {limits.EXTRACT_CELLS} cells, or more than "
                f"{limits.EXTRACT_TEXT_BYTES} characters. Delete the stray cells at its end, or split it"
            )


def _strip_fields(paragraph: _Element) -> None:
    """Take placeholders of fields out of a paragraph; all of it if no more than a word such as "Page" is left."""
    from lxml import etree

    names = [f"{{*}}{name}" for name in _MASTER_FIELDS]
    if next(paragraph.iter(*names), None) is None:
        return
    etree.strip_elements(paragraph, *names, with_tail=False)
    if len(re.findall(r"\w+", "".join(map(str, paragraph.itertext())))) <= 1:
        paragraph.clear()


def letters_of(number: int) -> str:
    """Return a number above 0 as letters, as the columns of a sheet have: 1 is A, 26 Z, 27 AA."""
    letters = ""
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


# Packages: formats that are zip archives inside, such as DOCX, ODT, EPUB.

_CORE: Final = "docProps/core.xml"
"""Part in which Office keeps title and author."""


class Relation(NamedTuple):
    """A reference from a part of an Office file to another.

    Attributes:
        kind: last word of its type: ``officeDocument``, ``comments``; the words before it differ between standards.
        target: name of the part.
        stated: its name as it is written.
    """

    id: str
    kind: str
    target: str
    stated: str


def part_key(name: str) -> str:
    """Return the form in which names of parts are compared: Office ignores case, and reads backslashes."""
    return name.replace("\\", "/").lstrip("/").lower()


def _target(folder: str, target: str) -> str:
    path = unquote(target.replace("\\", "/"))
    return posixpath.normpath(posixpath.join("/", folder, path))[1:]


class Package:
    """A zip archive in memory. Its declared sizes are checked before anything is unpacked.

    Raises:
        Unreadable: it would unpack to more than the limit, or is encrypted.
        zipfile.BadZipFile: it is broken.
    """

    def __init__(self, raw: bytes) -> None:
        self._zip = zipfile.ZipFile(BytesIO(raw))
        self._infos = {part_key(info.filename): info for info in self._zip.infolist()}
        self._relations: dict[str, list[Relation]] = {}
        self.has_rooted_names = any(info.filename.startswith(("/", "\\")) for info in self._infos.values())
        unpacked = sum(info.file_size for info in self._infos.values())
        if unpacked > limits.EXTRACT_UNPACKED_BYTES:
            raise Unreadable(
                f"it unpacks to {unpacked} bytes, more than {limits.EXTRACT_UNPACKED_BYTES}: a decompression bomb, or "
                "too large. Leave it out, or split it"
            )

    def __contains__(self, name: str) -> bool:
        return part_key(name) in self._infos

    @property
    def names(self) -> list[str]:
        """Return the names of all parts, in order and in lower case."""
        return list(self._infos)

    @property
    def has_pictures(self) -> bool:
        return any("media/" in name or name.startswith("pictures/") for name in self._infos)

    def read(self, name: str) -> bytes:
        """Read a part; it yields no more bytes than it declares.

        Raises:
            Unreadable: it is not there, is encrypted, or is larger than one part may be.
        """
        info = self._infos.get(part_key(name))
        if info is None:
            raise Unreadable(f"its part {name} is missing: the file is broken. Save it again")
        if info.flag_bits & 1:
            raise Unreadable("it is encrypted. Save it without a password")
        if info.file_size > limits.EXTRACT_PART_BYTES:
            raise Unreadable(
                f"its part {name} unpacks to {info.file_size} bytes, more than {limits.EXTRACT_PART_BYTES}. Split it"
            )
        return self._zip.read(info)

    def replace(self, parts: Mapping[str, bytes]) -> bytes:
        """Return the package with other content of some parts, by their names in lower case; without pictures."""
        out = BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, info in self._infos.items():
                if "media/" not in name:
                    archive.writestr(info.filename, parts[name] if name in parts else self.read(name))
        return out.getvalue()

    def relations(self, part: str) -> list[Relation]:
        """Return what a part of an Office file refers to inside the package; "" is the package itself."""
        if part not in self._relations:
            self._relations[part] = self._read_relations(part)
        return self._relations[part]

    def _read_relations(self, part: str) -> list[Relation]:
        folder, name = posixpath.split(part)
        rels = f"{folder}/_rels/{name}.rels".lstrip("/")
        if rels not in self:
            return []
        found = []
        for each in self.xml(rels).iter("{*}Relationship"):
            if each.get("TargetMode") != "External":
                stated, kind = each.get("Target", ""), each.get("Type", "").rpartition("/")[2]
                found.append(Relation(each.get("Id", ""), kind, _target(folder, stated), stated))
        return found

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


def local_name(element: _Element) -> str:
    """Return an element's name without its namespace; "" for comments and the like."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
