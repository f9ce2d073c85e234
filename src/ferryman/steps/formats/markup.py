"""HTML, EPUB and XML, read by libxml2 (lxml)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ferryman.steps.formats import Content, Unreadable, iso_date, one_line
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.office import Package, dublin_core_fields, local_name, parse_xml

if TYPE_CHECKING:
    from lxml.etree import _Element

_UNSEEN: Final = frozenset({"script", "style", "template", "head", "noscript", "svg", "math", "iframe", "object"})
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
_LINES: Final = frozenset({"li", "tr", "option", "caption"})
_CELLS: Final = frozenset({"td", "th"})

_BLANKS: Final = re.compile(r"[ \t\r\n\f]+")
_GAP: Final = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
_TAB: Final = re.compile(r" *\t[ \t]*")
_STATED_CHARSET: Final = re.compile(
    rb"""<(?:meta\b[^>]*?charset|\?xml\b[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE
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
    text = decoded.text
    if not text.strip():
        return Content("", decoded.fields)
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
    return Content(visible_text(root), {name: value for name, value in fields.items() if value})


def xml(raw: bytes, declared: str = "") -> Content:
    """Read the text of all elements, one line each."""
    decoded = decode(raw, declared, declared_inside(raw))
    root = parse_xml(_DECLARATION.sub("", decoded.text).encode("utf-8", "replace"))
    texts = (text.strip() for text in root.itertext() if isinstance(text, str))
    return Content("\n".join(text for text in texts if text), decoded.fields)


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
    chapters = [html(package.read(part)).text for part in parts if part in package]
    fields = dublin_core_fields(book)
    if "modified" in fields:
        fields["created"] = fields.pop("modified")  # its date is that of publication
    modified = next((m.text for m in book.iter("{*}meta") if m.get("property") == "dcterms:modified"), None)
    if modified_date := iso_date(modified):
        fields["modified"] = modified_date
    return Content("\n\n".join(chapter for chapter in chapters if chapter), fields)


def visible_text(root: _Element) -> str:
    """Return the text as a reader sees it: a blank line between blocks, rows and items on lines, tabs between cells."""
    text = _TAB.sub("\t", "".join(_pieces(root)))
    text = _GAP.sub(lambda gap: "\n\n" if gap[0].count("\n") > 1 else "\n", text)
    return re.sub(r" {2,}", " ", text).replace(_PRE_BLANK, " ").replace(_PRE_LINE, "\n").strip()


_PRE_BLANK: Final = "\ue000"
_PRE_LINE: Final = "\ue001"
"""Placeholders for white space of ``<pre>`` while the rest is collapsed; private use characters, which pages lack."""


def _pieces(root: _Element) -> Iterator[str]:
    """Yield text and gaps in their order. Iterative, because pages nest deeper than Python's stack."""
    from lxml import etree

    pre_depth = 0
    walk = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        name = local_name(element)
        if event == "start":
            if name in _UNSEEN:
                walk.skip_subtree()
                continue
            yield _separator(name)
            pre_depth += name == "pre"
            if element.text:
                yield _collapse(element.text, pre_depth > 0)
        else:
            if event == "end" and name not in _UNSEEN:
                pre_depth -= name == "pre"
                yield "\t" if name in _CELLS else "\n" if name == "br" else _separator(name)
            if element.tail and element is not root:
                yield _collapse(element.tail, pre_depth > 0)


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
