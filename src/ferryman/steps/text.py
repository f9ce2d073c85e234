"""Steps that change text: trim, split, regular expressions, templates, URL encoding.

A field may hold a text or a list of texts; each text is treated alike. A field that is not there, or holds null, stays
as it is. Any other value is refused: ``BadDocument``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from string import Template
from typing import Any, ClassVar, Final, Literal, NamedTuple
from urllib.parse import quote

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Dropped, UsageError
from ferryman.steps.fields import (
    StepWithDefaults,
    bad_field,
    field_name,
    field_names,
    field_values,
    holds_list,
    map_values,
    short_repr,
)
from ferryman.steps.formats.plain import Heading, find_headings, split_lines


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
        object.__setattr__(self, "fields", field_names(self.fields))
        if self.characters == "":
            raise ValueError("characters='': give those to remove, or None for white space.")

    def __call__(self, doc: Document) -> Document:
        return map_values(doc, self.fields, lambda text: text.strip(self.characters))


@dataclass(frozen=True, slots=True)
class split:
    """Make a list of a text, cut at a separator.

    A list is cut element by element, into one flat list. A document without the field is left unchanged.

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
        object.__setattr__(self, "fields", field_names(self.fields))
        if self.separator == "":
            raise ValueError("separator='': give a text, or None for white space.")
        if self.separator is None:
            pattern = re.compile(r"\s+")
        else:
            pattern = _compile(self.separator if self.regex else re.escape(self.separator))
        if pattern.groups:
            raise ValueError(f"regular expression {self.separator!r}: has a capturing group. Write (?:…) for (…).")
        object.__setattr__(self, "_pattern", pattern)

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            texts = field_values(doc, name)
            if texts is not None:
                parts = [part for text in texts for part in self._pattern.split(text)]
                doc[name] = parts if self.keep_empty else [part for part in parts if part]
        return doc


@dataclass(frozen=True, slots=True)
class replace_matches:
    r"""Replace every match of a regular expression.

    A list is treated element by element. A document without the field is left unchanged.

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
        object.__setattr__(self, "fields", field_names(self.fields))
        object.__setattr__(self, "_pattern", _compile(self.pattern))
        try:
            self._pattern.sub(self.replacement, "")
        except (re.error, IndexError) as e:
            raise ValueError(f"replacement {self.replacement!r}: {e}. It follows {self.pattern!r}.") from None

    def __call__(self, doc: Document) -> Document:
        return map_values(doc, self.fields, lambda text: self._pattern.sub(self.replacement, text))


@dataclass(frozen=True, slots=True)
class keep_matches:
    r"""Keep only texts that a regular expression matches as a whole.

    Of a list the matching elements are kept: it may become empty. A single text that does not match is removed with its
    field. A document without the field is left unchanged.

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
        object.__setattr__(self, "fields", field_names(self.fields))
        object.__setattr__(self, "_pattern", _compile(self.pattern))

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            texts = field_values(doc, name)
            if texts is None:
                continue
            kept = [text for text in texts if self._pattern.fullmatch(text)]
            if holds_list(doc, name):
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
        field: the field to set, replacing an existing one.
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
        field_name(self.field, "field")
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
        value = doc.get(name)
        if value is None:
            return self.missing
        if isinstance(value, (list, tuple)):
            return self.join.join(_format_value(doc, name, element) for element in value if element is not None)
        return _format_value(doc, name, value)


@dataclass(frozen=True, slots=True)
class url_encode:
    """Percent-encode a text as UTF-8, to be a part of a URL (RFC 3986).

    A list is encoded element by element. A document without the field is left unchanged. What is encoded already is
    encoded again.

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
        object.__setattr__(self, "fields", field_names(self.fields))
        if not self.safe.isascii():
            raise ValueError(f"safe={self.safe!r}: give ASCII characters; others cannot stand in a URL.")

    def __call__(self, doc: Document) -> Document:
        return map_values(doc, self.fields, lambda text: quote(text, safe=self.safe))


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ValueError(f"regular expression {pattern!r}: {e}.") from None


def _format_value(doc: Document, name: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
    raise bad_field(
        doc,
        name,
        f"holds {short_repr(value)}, a {type(value).__name__}, which a template cannot show. Convert it to text "
        "before.",
    )


# The step that splits a text into documents of its own.

By = Literal["paragraphs", "sentences", "characters", "tokens", "headings"]

_LIBRARIES: Final = {
    "sentences": "sentencex",
    "characters": "semantic_text_splitter",
    "tokens": "semantic_text_splitter",
}
_GAP: Final = re.compile(r"\n[^\S\n]*+(?:\n[^\S\n]*+)++")
_KEY_BYTES: Final = 16


_STRETCH_PIECES: Final = 4
"""Pieces of a stretch, on average: shorter ones confine an edit more, and leave more pieces that are not full."""
_TOKEN_CHARACTERS: Final = 4
"""Characters of a token, on average."""


class _Part(NamedTuple):
    """A part of a text, and the headings it stands under."""

    text: str
    headings: tuple[str, ...] = ()
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class split_text(StepWithDefaults):
    r"""Make children of the parts of a text: paragraphs, sentences, Markdown sections, or pieces of a size.

    The text is the document's ``raw``, as UTF-8 (``extract_text`` leaves it so). Each child has a part as its ``raw``,
    and the fields that ``copy`` names. The document itself goes no further, unless ``keep`` says so; one without
    ``raw`` goes on as it is, and one without text is DROPPED.

    >>> doc = Document("a.txt", raw=b"One. Two.\n\nThree.", title="Count")
    >>> [(c.id, c.raw, c["title"]) for c in split_text(copy="title")(doc)]
    [('a.txt#0', b'One. Two.', 'Count'), ('a.txt#1', b'Three.', 'Count')]

    Sections begin with a heading of Markdown, or with one of a page that ``extract_text`` has read. A heading with
    nothing below it is not a section: it stands before the text of the next one. Front matter is not a heading.

    By default a child's key is its number: what is inserted in the middle gives a new content to each child that
    follows. With ``key="content"`` it is a hash of the part's text, for parts that are equal with ``-2``, ``-3`` and so
    on: then an insertion changes no other child's id, and a child that was not changed is not sent again. Of a section
    it is a hash of its headings: it keeps its id, and so do parts that are made of it, when something in it changes.
    Pieces of a size, without overlap, begin again at some paragraphs, which their own text chooses: an edit changes the
    pieces around it, some four of them, and no others. Windows of several units, and pieces with overlap, begin
    elsewhere after an insertion; by paragraphs, sentences or headings, one each, they do not.

    A paragraph that is a heading of Markdown is not a part: it stands before the paragraph that follows.

    ``Plan.step("split", split_text)`` is ``split_text()``. Sentences, characters and tokens need
    ``pip install 'ferryman[split]'``; nothing is loaded from the web.

    Args:
        by: "paragraphs" (apart by blank lines), "sentences", "headings" (sections), or pieces of as many
            "characters" or "tokens" as fit into ``size``, cut at the best place: between paragraphs, sentences, words.
        size: how many of these one part has; None: 1000 characters, 256 tokens, else 1.
        overlap: how many of these a part repeats of the one before it.
        key: "number" or "content".
        copy: fields that each child gets of the document.
        heading: name of the field, by "headings", with the section's headings, outermost first; "": none.
        anchor: name of the field, by "headings", with the anchor of the section's heading, where ``main_text`` has read
            the page. A ``url`` that is copied then leads to the section.
        number: name of a field with the part's number, from 0; "": none. With it an insertion changes what follows.
        language: ISO 639-1 code for "sentences"; "": the document's field ``language``, else English.
        model: whose "tokens" are counted: a model of OpenAI, as tiktoken names them.
        keep: the document itself goes on, too.

    Raises:
        BadDocument: ``raw`` is not UTF-8.
        ValueError: when the step is made: a size below 1, an overlap that is not below it, another word for ``by``
            or ``key``, or a model that is not known.
        UsageError: when the step is made: a library is not installed.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    by: By = "paragraphs"
    size: int | None = None
    overlap: int = 0
    key: Literal["number", "content"] = "number"
    copy: str | Sequence[str] = ()
    heading: str = "headings"
    anchor: str = "anchor"
    number: str = ""
    language: str = ""
    model: str = "gpt-4o"
    keep: bool = False

    def __post_init__(self) -> None:
        if self.by not in limits.SPLIT_SIZE:
            raise ValueError(f"by={self.by!r}: give one of {', '.join(limits.SPLIT_SIZE)}.")
        if self.key not in ("number", "content"):
            raise ValueError(f"key={self.key!r}: give 'number' or 'content'.")
        if self.size is None:
            object.__setattr__(self, "size", limits.SPLIT_SIZE[self.by])
        if not isinstance(self.size, int) or self.size < 1 or not 0 <= self.overlap < self.size:
            raise ValueError(f"size={self.size!r}, overlap={self.overlap!r}: give a size from 1 on, and less overlap.")
        if self.by == "headings" and self.size != 1:
            raise ValueError(
                "by='headings' makes one section a part: leave size out, or split the sections by another."
            )
        object.__setattr__(self, "copy", (self.copy,) if isinstance(self.copy, str) else tuple(self.copy))
        needed = _LIBRARIES.get(self.by)
        if needed and find_spec(needed) is None:
            raise UsageError(f"split_text by {self.by} needs {needed}: pip install 'ferryman[split]'.")
        if self.by == "tokens":
            _token_splitter(self.model, self.size, self.overlap)

    def __call__(self, doc: Document) -> Document | list[Document]:
        if doc.raw is None:
            return doc
        parts = list(self._parts(doc, doc.text()))
        if not parts and not self.keep:
            raise Dropped("no text to split")
        keys = self._keys(parts)
        children = [self._child(doc, n, part, key) for n, (part, key) in enumerate(zip(parts, keys, strict=True))]
        return [doc, *children] if self.keep else children

    def _child(self, doc: Document, number: int, part: _Part, key: str | None) -> Document:
        child = doc.child(key, raw=part.text.encode(), **{name: doc[name] for name in self.copy if name in doc})
        if self.by == "headings":
            if self.heading and part.headings:
                child[self.heading] = list(part.headings)
            if self.anchor and part.anchor:
                child[self.anchor] = part.anchor
                if isinstance(url := child.get("url"), str):
                    child["url"] = f"{url.partition('#')[0]}#{part.anchor}"
        if self.number:
            child[self.number] = number
        child.only_if_changed = self.key == "content"
        return child

    def _keys(self, parts: Sequence[_Part]) -> Iterator[str | None]:
        counts: Counter[str] = Counter()
        for part in parts:
            if self.key == "number":
                yield None
                continue
            content = "\0".join(part.headings) if self.by == "headings" else part.text
            digest = blake2b(content.encode(), digest_size=_KEY_BYTES).hexdigest()
            counts[digest] += 1
            yield digest if counts[digest] == 1 else f"{digest}-{counts[digest]}"

    def _parts(self, doc: Document, text: str) -> Iterator[_Part]:
        match self.by:
            case "headings":
                yield from _sections(text, doc.outline)
            case "paragraphs":
                units = [unit.strip("\n") for unit in _GAP.split(text.strip("\n")) if unit.strip()]
                yield from self._windows(_with_headings(units), "\n\n")
            case "sentences":
                yield from self._windows(_sentences(self._language_of(doc), text), " ")
            case _:
                splitter = self._splitter()
                for stretch in self._stretches(text):
                    yield from (_Part(piece) for piece in splitter.chunks(stretch) if piece.strip())

    def _stretches(self, text: str) -> Iterator[str]:
        """Yield the stretches of a text that are cut into pieces by themselves: the whole, or, if pieces have keys of
        their content, from one paragraph that begins a stretch to the next."""
        assert self.size is not None
        if self.key == "number" or self.overlap:
            yield text
            return
        characters = self.size * (_TOKEN_CHARACTERS if self.by == "tokens" else 1) * _STRETCH_PIECES
        start = end = 0
        for gap in [*_GAP.finditer(text), None]:
            begins, end = end, len(text) if gap is None else gap.end()
            paragraph = text[begins : end if gap is None else gap.start()]
            share = int.from_bytes(blake2b(paragraph.encode(), digest_size=8).digest()) / 2**64
            if begins > start and share < len(paragraph) / characters:  # longer ones begin one more often
                yield text[start:begins]
                start = begins
        yield text[start:]

    def _windows(self, units: list[str], between: str) -> Iterator[_Part]:
        """Yield parts of ``size`` units, each beginning ``overlap`` units before the end of the previous one."""
        assert self.size is not None
        for at in range(0, max(len(units) - self.overlap, min(len(units), 1)), self.size - self.overlap):
            yield _Part(between.join(units[at : at + self.size]))

    def _language_of(self, doc: Document) -> str:
        language = self.language or doc.get("language") or "en"
        return language if isinstance(language, str) else "en"

    def _splitter(self) -> Any:
        assert self.size is not None
        if self.by == "tokens":
            return _token_splitter(self.model, self.size, self.overlap)
        return _character_splitter(self.size, self.overlap)


@lru_cache(maxsize=8)
def _token_splitter(model: str, size: int, overlap: int) -> Any:
    """Return a splitter that counts tokens by the model's vocabulary, which the library contains.

    Raises:
        ValueError: the library does not know the model.
    """
    from semantic_text_splitter import TextSplitter

    try:
        return TextSplitter.from_tiktoken_model(model, size, overlap=overlap)
    except Exception as e:
        raise ValueError(f"model={model!r}: {e}. Give one of OpenAI's, such as 'gpt-4o'.") from None


@lru_cache(maxsize=8)
def _character_splitter(size: int, overlap: int) -> Any:
    from semantic_text_splitter import TextSplitter

    return TextSplitter(size, overlap=overlap)


def _with_headings(paragraphs: list[str]) -> list[str]:
    """Put paragraphs that consist of headings before the paragraph that follows; those at the end behind the last
    one."""
    units: list[str] = []
    headings: list[str] = []
    for paragraph in paragraphs:
        lines = split_lines(paragraph)
        found = find_headings(lines)
        if found and sum(heading.end - heading.line for heading in found) == len(lines):
            headings.append(paragraph)
        else:
            units.append("\n\n".join([*headings, paragraph]))
            headings = []
    if headings and units:
        headings.insert(0, units.pop())
    return [*units, "\n\n".join(headings)] if headings else units


def _sentences(language: str, text: str) -> list[str]:
    from sentencex import segment

    return [" ".join(sentence.split()) for sentence in segment(language, text) if sentence.strip()]


def _sections(text: str, outline: Sequence[tuple[Any, ...]]) -> Iterator[_Part]:
    """Yield the sections of a text; each begins with its heading. A heading alone goes with the section after it.

    Args:
        outline: levels, lines and maybe anchors of the headings; without any they are those of Markdown.
    """
    lines = split_lines(text)
    headings = _locate(lines, outline) or find_headings(lines)
    ends = [heading.line for heading in headings][1:] + [len(lines)] * bool(headings)
    parts: list[_Part] = []
    if before := "".join(lines[: headings[0].line if headings else None]).strip():
        parts.append(_Part(before))
    above: list[tuple[int, str]] = []
    start: int | None = None
    anchor = ""
    for heading, end in zip(headings, ends, strict=True):
        above = [(level, words) for level, words in above if level < heading.level] + [(heading.level, heading.words)]
        if start is None or not anchor:
            anchor = heading.anchor
        start = heading.line if start is None else start
        if "".join(lines[heading.end : end]).strip():
            parts.append(_Part("".join(lines[start:end]).strip(), tuple(words for _, words in above), anchor))
            start = None
    if start is not None:  # headings at the end, without anything below
        rest = "".join(lines[start:]).strip()
        last = parts.pop() if parts else _Part("", tuple(words for _, words in above))
        parts.append(last._replace(text=f"{last.text}\n\n{rest}".strip()))
    yield from parts


def _locate(lines: Sequence[str], outline: Sequence[tuple[Any, ...]]) -> list[Heading]:
    """Find the headings of an outline among the lines; those that another step has changed are left out."""
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(lines if outline else ()):
        numbers.setdefault(line.strip(), []).append(number)
    headings: list[Heading] = []
    least = 0
    for level, line, *anchor in outline:
        places = numbers.get(line, [])
        at = bisect_left(places, least)
        if at < len(places):
            words = line.removeprefix(f"{'#' * level} ").strip() if anchor else line
            headings.append(Heading(places[at], places[at] + 1, level, words, *anchor))
            least = places[at] + 1
    return headings
