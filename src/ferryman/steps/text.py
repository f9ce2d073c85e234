"""Steps that change text: trim, split, regular expressions, templates, URL encoding.

A field may hold a text or a list of texts; each text is treated alike. A field that is not there, or holds null, stays
as it is. Any other value is refused: ``BadDocument``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any, ClassVar
from urllib.parse import quote

from ferryman import limits
from ferryman.document import Document
from ferryman.steps.values import each, is_list, names, one_name, refused, shown, values


@dataclass(frozen=True, slots=True)
class trim:
    """Remove white space, or other characters, at both ends of a text.

    >>> trim("title")(Document("a", title="  Henry V "))["title"]
    'Henry V'

    Args:
        fields: one name or several. A list is trimmed element by element; without the field nothing is done.
        characters: what to remove, in any order; None: white space.

    Raises:
        BadDocument: a field holds something else than text.
        ValueError: when the step is made: there is no name, or ``characters`` is empty.
    """

    fields: str | Sequence[str]
    characters: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        if self.characters == "":
            raise ValueError("characters='': give those to remove, or None for white space.")

    def __call__(self, doc: Document) -> Document:
        return each(doc, self.fields, lambda text: text.strip(self.characters))


@dataclass(frozen=True, slots=True)
class split:
    """Make a list of a text, cut at a separator.

    A list is cut element by element, into one flat list. Without the field nothing is done.

    >>> split("tags", ",")(Document("a", tags="comedy,,verse"))["tags"]
    ['comedy', 'verse']
    >>> split("tags", r"\\s*[,;]\\s*", regex=True)(Document("a", tags="comedy ; verse"))["tags"]
    ['comedy', 'verse']

    Args:
        fields: one name or several.
        separator: where to cut, literally; None: at any white space.
        regex: ``separator`` is a regular expression, without capturing groups (write ``(?:…)``).
        keep_empty: keep empty parts, of which two separators in a row make one.

    Raises:
        BadDocument: a field holds something else than text.
        ValueError: when the step is made: no name, an empty separator, or a bad regular expression.
    """

    fields: str | Sequence[str]
    separator: str | None = None
    regex: bool = False
    keep_empty: bool = False
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        if self.separator == "":
            raise ValueError("separator='': give a text, or None for white space.")
        if self.separator is None:
            pattern = re.compile(r"\s+")
        else:
            pattern = _compiled(self.separator if self.regex else re.escape(self.separator))
        if pattern.groups:
            raise ValueError(f"regular expression {self.separator!r}: has a capturing group. Write (?:…) for (…).")
        object.__setattr__(self, "_pattern", pattern)

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            texts = values(doc, name)
            if texts is not None:
                parts = [part for text in texts for part in self._pattern.split(text)]
                doc[name] = parts if self.keep_empty else [part for part in parts if part]
        return doc


@dataclass(frozen=True, slots=True)
class replace_matches:
    r"""Replace every match of a regular expression.

    A list is treated element by element. Without the field nothing is done.

    >>> replace_matches("title", r"\s+", " ")(Document("a", title="Henry   the\nFifth"))["title"]
    'Henry the Fifth'
    >>> replace_matches("name", r"(\w+), (\w+)", r"\2 \1")(Document("a", name="Eyre, Jane"))["name"]
    'Jane Eyre'

    Args:
        fields: one name or several.
        pattern: a regular expression of Python's ``re``. Flags stand inside: ``(?i)henry``; plain text is made one by
            ``re.escape``. One that takes very long is stopped by the step's ``timeout=``.
        replacement: the text to put there; ``\1`` and ``\g<name>`` are the match's groups.

    Raises:
        BadDocument: a field holds something else than text.
        ValueError: when the step is made: no name, a bad regular expression, or a group that it does not have.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    fields: str | Sequence[str]
    pattern: str
    replacement: str = ""
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        object.__setattr__(self, "_pattern", _compiled(self.pattern))
        try:
            self._pattern.sub(self.replacement, "")
        except (re.error, IndexError) as e:
            raise ValueError(f"replacement {self.replacement!r}: {e}. It follows {self.pattern!r}.") from None

    def __call__(self, doc: Document) -> Document:
        return each(doc, self.fields, lambda text: self._pattern.sub(self.replacement, text))


@dataclass(frozen=True, slots=True)
class keep_matches:
    r"""Keep only texts that a regular expression matches as a whole.

    Of a list the matching elements are kept: it may become empty. A single text that does not match is removed with its
    field. Without the field nothing is done.

    >>> keep_matches("isbn", r"\d{13}|\d{9}[\dX]")(Document("a", isbn=["9780141439518", "none"]))["isbn"]
    ['9780141439518']

    Args:
        fields: one name or several.
        pattern: a regular expression of Python's ``re``; see ``replace_matches``.

    Raises:
        BadDocument: a field holds something else than text.
        ValueError: when the step is made: no name, or a bad regular expression.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    fields: str | Sequence[str]
    pattern: str
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        object.__setattr__(self, "_pattern", _compiled(self.pattern))

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            texts = values(doc, name)
            if texts is None:
                continue
            kept = [text for text in texts if self._pattern.fullmatch(text)]
            if is_list(doc, name):
                doc[name] = kept
            elif not kept:
                del doc[name]
        return doc


class _Template(Template):
    """``$name``, and ``${any name}`` for fields whose names are no identifiers (``dc:title``)."""

    braceidpattern = r"[^{}]+"


@dataclass(frozen=True, slots=True)
class fill_template:
    """Set a field to a text made from other fields.

    >>> step = fill_template("line", "$title, by ${dc:creator}")
    >>> step(Document.of("a", {"title": "Emma", "dc:creator": ["J. Austen"]}))["line"]
    'Emma, by J. Austen'

    Numbers are written as JSON writes them, true and false likewise. Nothing but the values of fields can be asked for:
    there are no attributes, no calls, no formats.

    Args:
        field: the field to set, in the place of what is there.
        template: ``$name`` and ``${any name}`` stand for fields, ``$$`` for a dollar sign.
        join: put between the elements of a list.
        missing: stands for a field that is not there or holds null; None: then the field is not set, and the document
            goes on as it is.

    Raises:
        BadDocument: a field of the template holds a dict, or a list of such.
        ValueError: when the step is made: the template has a ``$`` that begins no name.
    """

    field: str
    template: str
    join: str = ", "
    missing: str | None = None

    def __post_init__(self) -> None:
        one_name(self.field, "field")
        if not _Template(self.template).is_valid():
            raise ValueError(
                f"template {self.template!r}: write $name or ${{name}} for a field, and $$ for a dollar sign."
            )

    def __call__(self, doc: Document) -> Document:
        template = _Template(self.template)
        texts = {name: self._text(doc, name) for name in template.get_identifiers()}
        if None not in texts.values():
            doc[self.field] = template.substitute(texts)
        return doc

    def _text(self, doc: Document, name: str) -> str | None:
        held = doc.get(name)
        if held is None:
            return self.missing
        if isinstance(held, (list, tuple)):
            return self.join.join(_written(doc, name, value) for value in held if value is not None)
        return _written(doc, name, held)


@dataclass(frozen=True, slots=True)
class url_encode:
    """Percent-encode a text as UTF-8, to be a part of a URL (RFC 3986).

    A list is encoded element by element. Without the field nothing is done. What is encoded already is encoded again.

    >>> url_encode("query")(Document("a", query="café & bar"))["query"]
    'caf%C3%A9%20%26%20bar'

    Args:
        fields: one name or several.
        safe: ASCII characters to leave as they are, besides letters, digits and ``_.-~``; ``"/"`` for a path.

    Raises:
        BadDocument: a field holds something else than text, or text that UTF-8 cannot hold.
        ValueError: when the step is made: no name, or ``safe`` is not ASCII.
    """

    fields: str | Sequence[str]
    safe: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        if not self.safe.isascii():
            raise ValueError(f"safe={self.safe!r}: give ASCII characters; others cannot stand in a URL.")

    def __call__(self, doc: Document) -> Document:
        return each(doc, self.fields, lambda text: quote(text, safe=self.safe))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ValueError(f"regular expression {pattern!r}: {e}.") from None


def _written(doc: Document, name: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
    raise refused(
        doc,
        name,
        f"holds {shown(value)}, a {type(value).__name__}, which a template cannot show. Convert it to text before.",
    )
