"""HTML, EPUB and XML, read by libxml2 (lxml)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from ferryman.steps.formats import Content, Unread, Unreadable, iso_date, one_line
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.numbering import LIST_FORMATS, format_number, integer_of
from ferryman.steps.formats.office import Package, dublin_core_fields, letters_of, local_name, parse_xml

if TYPE_CHECKING:
    from lxml.etree import _Element

_UNSEEN: Final = frozenset(
    {"script", "style", "template", "head", "noscript", "iframe", "object"}
    | {"title", "desc", "metadata", "defs", "annotation", "annotation-xml"}  # of drawings and formulas
)
_BLOCKS: Final = frozenset(
    {
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "ul",
    }
)
_LINES: Final = frozenset({"li", "tr", "option", "caption", "text"})
"""Elements that are lines; the last one is of drawings (SVG)."""
_CELLS: Final = frozenset({"td", "th"})

_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}

_BLANKS: Final = re.compile(r"[ \t\r\n\f]++")
_SPACES: Final = re.compile(r" {2,}+")
_GAP: Final = re.compile(r" ?[\r\n][ \r\n]*+")
_ATTRIBUTES: Final = 10_000
"""Attributes of an element, for which libxml2 takes 0.1 s: the time grows with the square of them."""
_LONG_TAG: Final = re.compile(r"<[A-Za-z][^<>]{50000,}")
_QUOTED: Final = re.compile(r"\"[^\"]*+\"|'[^']*+'")
_STATED_CHARSET: Final = re.compile(
    rb"""<(?:meta\b[^>]*?charset|\?xml\b[^>]*?encoding)\s*+=\s*+["']?+\s*+([\w.:-]{1,40})""", re.IGNORECASE
)
_DECLARED_BYTES: Final = 4096
"""First bytes searched for the declared encoding; the standard demands it within 1024."""

_DECLARATION: Final = re.compile(r"^\s*<\?xml[^>]*\?>")

_META: Final = {
    "author": "author",
    "dc.creator": "author",
    "dc.title": "title",
    "article:published_time": "created",
    "dcterms.created": "created",
    "article:modified_time": "modified",
    "dcterms.modified": "modified",
    "last-modified": "modified",
}
_OBFUSCATION: Final = (b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC")
"""Algorithms that obfuscate only an EPUB's fonts, which every reading program can undo."""


def html(raw: bytes, declared: str = "") -> Content:
    """Read the text of an HTML page as it is seen without styles; title, author, dates and language from its head.

    Args:
        declared: the encoding that HTTP or a mail states, which counts more than what the page states.
    """
    import lxml.html
    from lxml import etree

    decoded = decode(raw, declared, declared_inside(raw))
    text = _MARKS.sub("", decoded.text)
    if not text.strip():
        return Content("", decoded.fields)
    if any(len(_QUOTED.sub("", tag[0]).split()) > _ATTRIBUTES for tag in _LONG_TAG.finditer(text)):
        raise Unreadable(f"an element has more than {_ATTRIBUTES} attributes. Correct it")
    try:
        parser = lxml.html.HTMLParser(huge_tree=True, no_network=True)  # else deeply nested text would be lost
        root: Any = lxml.html.document_fromstring(_DECLARATION.sub("", text), parser=parser)
    except etree.ParserError:  # nothing but comments
        return Content("", decoded.fields)
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        raise Unreadable("its elements nest too deep, and the rest would be lost. Correct it")
    fields = decoded.fields
    for meta in root.iter("meta"):
        name = _META.get((meta.get("name") or meta.get("property") or "").lower())
        value = meta.get("content")
        if name and value:
            value_text = iso_date(value) if name in ("created", "modified") else one_line(value)
            fields.setdefault(name, value_text)
    title = root.find(".//title")
    fields["title"] = one_line(title.text_content() if title is not None else "") or fields.get("title", "")
    fields["language"] = one_line(root.get("lang"))
    visible, outline = visible_text(root)
    if not visible and next(root.iter("img", "image", "picture"), None) is not None:
        fields["unread"] = ["pictures"]
    return Content(visible, {name: value for name, value in fields.items() if value}, outline=outline)


def xml(raw: bytes, declared: str = "") -> Content:
    """Read the text of all elements, one line each, but those within a line."""
    decoded = decode(raw, declared, declared_inside(raw))
    root = parse_decoded(decoded.text)
    blocks = "".join(_xml_pieces(root, _inline_names(root))).split(_BLOCK_END)
    return Content("\n".join(block for each in blocks if (block := each.strip())), decoded.fields)


def parse_decoded(text: str) -> _Element:
    """Parse the text of an XML document, whatever encoding it states."""
    return parse_xml(_DECLARATION.sub("", text).encode("utf-8", "replace"))


def _inline_names(root: _Element) -> set[str]:
    """Return the names of elements that stand within a line of text: beside a letter, or with text on both sides."""
    names: set[str] = set()
    for element in root.iter("*"):
        parent, previous = element.getparent(), element.getprevious()
        if parent is None:
            continue
        before = (parent.text if previous is None else previous.tail) or ""
        after = element.tail or ""
        if before[-1:].strip() or after[:1].strip() or (before.strip() and after.strip()):
            names.add(str(element.tag))
    return names


def _xml_pieces(root: _Element, inline: set[str]) -> Iterator[str]:
    """Yield text and the ends of blocks, in their order."""
    from lxml import etree

    for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        if event in ("start", "end") and str(element.tag) not in inline:
            yield _BLOCK_END
        text = element.text if event == "start" else element.tail if element is not root else None
        if text:
            yield text


def epub(raw: bytes) -> Content:
    """Read the chapters of an EPUB in reading order."""
    package = Package(raw)
    roots = [root.get("full-path", "") for root in package.xml("META-INF/container.xml").iter("{*}rootfile")]
    if not roots:
        raise Unreadable("it names no book: the file is broken. Save it again")
    folder, book = posixpath.dirname(roots[0]), package.xml(roots[0])
    if "META-INF/encryption.xml" in package and _is_encrypted(package):
        raise Unreadable("it is protected (DRM). Get an unprotected copy")
    hrefs = {item.get("id", ""): item.get("href", "") for item in book.iter("{*}item")}
    parts = [
        posixpath.normpath(posixpath.join(folder, unquote(hrefs.get(ref.get("idref", ""), ""))))
        for ref in book.iter("{*}itemref")
    ]
    unread = Unread()
    chapters = []
    for part in parts:
        if part in package:
            chapters.append(html(package.read(part)))
        else:
            unread.add("chapters")
    fields = dublin_core_fields(book)
    if "modified" in fields:
        fields["created"] = fields.pop("modified")  # its date is that of publication
    modified = next((m.text for m in book.iter("{*}meta") if m.get("property") == "dcterms:modified"), None)
    if modified_date := iso_date(modified):
        fields["modified"] = modified_date
    outline = [heading for chapter in chapters for heading in chapter.outline]
    replaced = sum(chapter.fields.get("replaced_characters", 0) for chapter in chapters)
    if replaced:
        fields["replaced_characters"] = replaced
    text = "\n\n".join(each.text for each in chapters if each.text)
    if not text and any("pictures" in each.fields.get("unread", ()) for each in chapters):
        unread.add("pictures")
    return Content(text, fields | unread.fields, outline=outline)


def visible_text(root: _Element) -> tuple[str, list[tuple[int, str]]]:
    """Return the text as a reader sees it, with the levels and first lines of its headings.

    A blank line is between blocks, rows and items are lines, a tab is between cells, of which any may be empty.
    """
    text = _SPACES.sub(" ", "".join(_pieces(root)))
    text = _GAP.sub(lambda gap: "\n\n" if gap[0].count("\n") > 1 else "\n", text)
    *rows, rest = text.split(_ROW_END)
    text = _ROW_END.join([*(row.rstrip(" \n") for row in rows), rest])
    first, *cells = text.split(_CELL_MARK)
    if cells:
        inner = (cell.strip(" \n") for cell in cells[:-1])
        text = "\t".join([first.rstrip(" \n"), *inner, cells[-1].lstrip(" \n")])
    text = _FIRST_CELL.sub("", text)
    text = text.replace(_PRE_BLANK, " ").replace(_PRE_LINE, "\n")
    outline = [
        (ord(heading[1]) - _HEADING_0, words.partition("\n")[0])
        for heading in _HEADING.finditer(text)
        if (words := _MARKS.sub("", heading[2]).strip())
    ]
    return _MARKS.sub("", _HEADING_BLANKS.sub("", text)).strip(" \n"), outline


_PRE_BLANK, _PRE_LINE, _ROW_START, _CELL_MARK, _ROW_END, _BLOCK_END, _HEADING_END = map(chr, range(0xFDD0, 0xFDD7))
_HEADING_0: Final = 0xFDD8
"""Marks in the text while it is put together: characters that Unicode keeps free for that. ``_HEADING_0`` and a level
make the mark before a heading."""

_MARKS: Final = re.compile("[\ufdd0-\ufddf]")
_HEADING: Final = re.compile("([\ufdd9-\ufdde])([^\ufdd6\ufdd9-\ufdde]*+)\ufdd6")
_HEADING_BLANKS: Final = re.compile("[\ufdd9-\ufdde][ \n]*+")
_FIRST_CELL: Final = re.compile("\ufdd2[ \n]{0,4}")


def _pieces(root: _Element) -> Iterator[str]:
    """Yield text and gaps in their order. Iterative, because pages nest deeper than Python's stack."""
    from lxml import etree

    pre_depth = 0
    lists = _Lists()
    walk = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        name = local_name(element)
        if event == "start":
            if name in _UNSEEN:
                walk.skip_subtree()
                continue
            yield _separator(name)
            if name in _CELLS:
                previous = element.getprevious()
                while previous is not None and not isinstance(previous.tag, str):  # a comment
                    previous = previous.getprevious()
                yield _ROW_START if previous is None or local_name(previous) not in _CELLS else _CELL_MARK
            elif name in _HEADINGS:
                yield chr(_HEADING_0 + _HEADINGS[name])
            pre_depth += name == "pre"
            if name in _LISTS:
                lists.begin(name, element)
            if element.text:
                text = _collapse(element.text, pre_depth > 0)
                yield lists.with_label(text) if lists.label else text
        else:
            if event == "end" and name not in _UNSEEN:
                pre_depth -= name == "pre"
                if name in _LISTS:
                    yield lists.end(name)
                if name in _HEADINGS:
                    yield _HEADING_END
                elif name == "tr":
                    yield _ROW_END
                yield "\n" if name == "br" else _separator(name)
            if element.tail and element is not root:
                text = _collapse(element.tail, pre_depth > 0)
                yield lists.with_label(text) if lists.label else text


_LISTS: Final = frozenset({"ol", "ul", "menu", "li"})
"""Elements of lists in HTML."""

_UNMARKED: Final = re.compile(r"list-style(?:-type)?\s*+:[^;]*?\bnone\b", re.IGNORECASE)
_STYLE_CHARACTERS: Final = 1024


class _Lists:
    """Lists of a page.

    Attributes:
        label: numbers of items of which no text has come yet, with a blank behind each.
    """

    def __init__(self) -> None:
        self.label = ""
        self._open: list[_HtmlList] = []

    def begin(self, name: str, element: _Element) -> None:
        """Enter a list, or an item of the list entered last."""
        if name != "li":
            start, is_reversed = _signed(element.get("start")), element.get("reversed") is not None
            if start is None:
                start = sum(1 for _ in element.iterchildren("li")) if is_reversed else 1
            format_ = element.get("type") or "1"
            is_numbered = name == "ol" and not _UNMARKED.search((element.get("style") or "")[:_STYLE_CHARACTERS])
            self._open.append(_HtmlList(format_ if is_numbered else "", start, -1 if is_reversed else 1))
        elif self._open and (list_ := self._open[-1]).format:
            number = _signed(element.get("value"))
            number = list_.next if number is None else number
            self._open[-1] = list_._replace(next=number + list_.step)
            self.label += f"{_list_number(number, element.get('type') or list_.format)}. "

    def end(self, name: str) -> str:
        """Leave a list or an item; return the number of an item without text."""
        label = ""
        if name == "li":
            label, self.label = self.label, ""
        elif self._open:
            self._open.pop()
        return label

    def with_label(self, text: str) -> str:
        """Return text with the numbers that stand before it, if anything of it is seen."""
        if not text.strip():
            return text
        label, self.label = self.label, ""
        return label + text.lstrip(" ")


class _HtmlList(NamedTuple):
    """A list of a page.

    Attributes:
        format: "1", "a", "A", "i", "I"; "" shows no number.
    """

    format: str
    next: int
    step: int


def _list_number(number: int, format_: str) -> str:
    if format_ in ("a", "A") and number > 0:
        return letters_of(number) if format_ == "A" else letters_of(number).lower()
    return format_number(number, LIST_FORMATS.get(format_, "decimal"))


def _signed(text: str | None) -> int | None:
    """Return an integer, that may be negative; None for anything else."""
    text = (text or "").strip()
    number = integer_of(text.removeprefix("-"))
    return number if number is None or not text.startswith("-") else -number


def _separator(name: str) -> str:
    """Return the separator before an element: two ``\n`` are a blank line, a ``\r`` is a new line at least."""
    return "\n\n" if name in _BLOCKS else "\r" if name in _LINES else ""


def _collapse(text: str, is_pre: bool) -> str:
    if is_pre:
        return text.replace("\r\n", "\n").replace(" ", _PRE_BLANK).replace("\n", _PRE_LINE)
    return _BLANKS.sub(" ", text)


def declared_inside(raw: bytes) -> str:
    """Return the encoding that a page's ``<meta>`` or an XML declaration states; "" if it states none."""
    stated = _STATED_CHARSET.search(raw[:_DECLARED_BYTES])
    return stated[1].decode("ascii", "replace") if stated else ""


def _is_encrypted(package: Package) -> bool:
    """Return whether more than fonts is encrypted."""
    methods = re.findall(rb'Algorithm\s*=\s*"([^"]+)"', package.read("META-INF/encryption.xml"))
    return any(method not in _OBFUSCATION for method in methods)
