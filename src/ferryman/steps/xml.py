"""The step that makes fields of an XML document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, UsageError
from ferryman.steps.formats import one_line
from ferryman.steps.formats.office import parse_xml

if TYPE_CHECKING:
    from lxml.etree import XPath, _Element


@dataclass(frozen=True, slots=True)
class read_xml:
    """Set fields to what stands at paths in the document's XML, its ``raw``, which stays.

    >>> raw = b'<book xml:lang="en"><title>Henry <i>V</i></title><by>W. S.</by><by>J. F.</by></book>'
    >>> step = read_xml({"title": "title", "authors": "by", "language": "@xml:lang", "parts": "count(part)"})
    >>> step(Document("a", raw=raw)).fields
    {'title': 'Henry V', 'authors': ['W. S.', 'J. F.'], 'language': 'en', 'parts': 0}

    A path is XPath 1.0, from the root element on. Of an element it is the text in it, white space collapsed; of an
    attribute its value. What is found once is a text, several times a list; what is not found, or is empty, sets no
    field. Names in a namespace need a prefix, also those in the default one.

    No entity is resolved and nothing is loaded: a document that declares entities is refused. A document without
    ``raw`` goes on as it is. Needs ``pip install 'ferryman[extract]'``.

    Args:
        paths: field -> path.
        namespaces: prefix -> namespace, for the paths; ``xml`` is known.
        max_bytes: largest document that is taken.

    Raises:
        BadDocument: it is not XML, declares entities, nests too deep, or is too large.
        ValueError: when the step is made: no path, one that is not an XPath, or a prefix that is not in
            ``namespaces``.
        UsageError: when the step is made: lxml is not installed.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    paths: Mapping[str, str]
    namespaces: Mapping[str, str] | None = None
    max_bytes: int = limits.EXTRACT_PART_BYTES

    def __post_init__(self) -> None:
        if not self.paths or not all(isinstance(name, str) and name for name in self.paths):
            raise ValueError(f"paths={self.paths!r}: give a path for each field.")
        if not self.max_bytes > 0:
            raise ValueError(f"max_bytes={self.max_bytes}: give a number above 0.")
        object.__setattr__(self, "paths", dict(self.paths))
        object.__setattr__(self, "namespaces", dict(self.namespaces or {}))
        self._compile()

    def __call__(self, doc: Document) -> Document:
        if doc.raw is None:
            return doc
        root = self._root(doc, doc.raw)
        for name, path in self._compile().items():
            value = self._value(doc, name, path, root)
            if value not in ("", []):
                doc[name] = value
        return doc

    def _compile(self) -> dict[str, XPath]:
        """Compile the paths.

        Raises:
            ValueError: a path is not valid.
        """
        try:
            from lxml import etree
        except ModuleNotFoundError:
            raise UsageError("read_xml needs lxml, not installed here: pip install 'ferryman[extract]'.") from None

        compiled = {}
        for name, path in self.paths.items():
            try:
                compiled[name] = etree.XPath(path, namespaces=dict(self.namespaces or {}), smart_strings=False)
                compiled[name](etree.Element("any"))  # only now prefixes and functions are looked up
            except (etree.XPathError, TypeError, ValueError) as e:
                raise ValueError(
                    f"path {path!r} of field {name!r}: {e}. Give an XPath 1.0, and its prefixes."
                ) from None
        return compiled

    def _root(self, doc: Document, raw: bytes) -> _Element:
        from lxml import etree

        if len(raw) > self.max_bytes:
            raise BadDocument(
                f"{doc.id}: has {len(raw)} bytes, more than max_bytes={self.max_bytes}. Raise the limit, or split it."
            )
        try:
            root = _parse(raw)
        except etree.XMLSyntaxError as e:
            raise BadDocument(f"{doc.id}: it is not XML: {one_line(str(e))}. Correct it.") from None
        declared: Any = root.getroottree().docinfo.internalDTD
        if declared is not None and next(declared.iterentities(), None) is not None:
            raise BadDocument(f"{doc.id}: it declares entities, which are not resolved. Write them out.")
        return root

    def _value(self, doc: Document, name: str, path: XPath, root: _Element) -> Any:
        from lxml import etree

        try:
            result = path(root)
        except etree.XPathError as e:
            raise BadDocument(f"{doc.id}: the path of field {name!r} cannot be followed: {e}. Correct it.") from None
        match result:
            case bool():
                return result
            case float():
                return _number(result)
            case str():
                return one_line(result)
        texts = [text for each in result if (text := _text(each))]
        return texts if len(texts) > 1 else "".join(texts)


def _parse(raw: bytes) -> _Element:
    """Parse XML by the encoding that it states; if libxml2 does not know that, or it is wrong, by what the bytes show.

    Raises:
        XMLSyntaxError: it is not XML, or not in one encoding.
    """
    from lxml import etree

    from ferryman.steps.formats.charsets import decode
    from ferryman.steps.formats.markup import declared_inside, parse_decoded

    try:
        return parse_xml(raw)
    except etree.XMLSyntaxError:
        decoded = decode(raw, declared_inside(raw))
        if decoded.replaced:
            raise
        try:
            return parse_decoded(decoded.text)
        except etree.XMLSyntaxError:
            pass
        raise


_LARGEST: Final = 2.0**53


def _number(value: float) -> Any:
    """Convert to a JSON number; "" for what is not an exact number."""
    if value != value or abs(value) > _LARGEST:
        return ""
    return int(value) if value.is_integer() else value


def _text(value: Any) -> str:
    """Return an element's text or an attribute's value."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, tuple):  # a namespace
        return one_line(value[1])
    return one_line("".join(value.itertext()) if isinstance(value.tag, str) else value.text)
