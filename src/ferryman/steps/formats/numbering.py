"""Numbers that are shown before paragraphs, and that are not in their text: of lists and of headings.

In DOCX they follow from styles and lists, which are parts of their own (``styles.xml``, ``numbering.xml``). Bullets
are left out: they say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from lxml.etree import _Element

_LEVELS: Final = 9
"""Levels of an outline and of a list."""

_HEADING: Final = re.compile(r"heading ([1-9])")
"""Name of a built-in style, in every language."""

_PLACE: Final = re.compile("%([1-9])")
"""Place of a level's number in the text of a label."""

_CHAIN: Final = 50
"""Styles that a style is based on, at most: they may name each other in a circle."""

_HIGHEST: Final = 32767
"""Highest number of a list, as in Word."""

_ROMAN: Final = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x")),
    *((9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_HIGHEST_ROMAN: Final = 3999


class _Style(NamedTuple):
    """A style of paragraphs. Attributes that are None are those of the style that it is based on.

    Attributes:
        outline: its level in the outline, from 1; 0: none.
        list_id: the list in which its paragraphs are; "0": none.
    """

    based_on: str
    outline: int | None
    list_id: str | None
    level: int | None


class _Level(NamedTuple):
    """A level of a list.

    Attributes:
        label: its text, such as ``%1.%2``; "" for one that shows no number.
        restarts: whether it begins again after a paragraph of a level above.
        style: the style of paragraphs that are on this level.
    """

    start: int = 1
    format: str = "decimal"
    label: str = ""
    restarts: bool = True
    is_decimal: bool = False
    style: str = ""


class _List(NamedTuple):
    """A list, as paragraphs name it: its definition, which several may share, and the starts that it sets."""

    definition: str
    starts: dict[int, int]
    levels: dict[int, _Level]


class WordParagraphs:
    """Styles and lists of a document.

    Args:
        styles: the root of ``styles.xml``; None if there is none.
        numbering: the root of ``numbering.xml``; None if there is none.
    """

    def __init__(self, styles: _Element | None, numbering: _Element | None) -> None:
        self._styles: dict[str, _Style] = {}
        self._default = ""
        for style in () if styles is None else styles.iterchildren("{*}style"):
            name = _value(_child(style, "name")).lower()
            heading = _HEADING.fullmatch(name)
            properties = _child(style, "pPr")
            outline = _number(_child(properties, "outlineLvl"))
            level = int(heading[1]) if outline is None and heading else None if outline is None else outline + 1
            list_id, list_level = _list_of(properties)
            key = _attribute(style, "styleId")
            self._styles[key] = _Style(_value(_child(style, "basedOn")), level, list_id, list_level)
            if _attribute(style, "type") == "paragraph" and _attribute(style, "default") in ("1", "true", "on"):
                self._default = key
        self._lists = dict(_lists(numbering, self._styles)) if numbering is not None else {}
        self._counts: dict[str, list[int | None]] = {}
        self._begun: set[str] = set()

    def start_again(self) -> None:
        """Begin all lists again, for another part of the document."""
        self._counts.clear()
        self._begun.clear()

    def describe(self, paragraph: _Element) -> tuple[str, int]:
        """Return the number that is shown before a paragraph, "" for none, and its level in the outline, 0 for none.

        To be called for each paragraph, in their order: the numbers count on.
        """
        properties = _child(paragraph, "pPr")
        style = _value(_child(properties, "pStyle")) or self._default
        list_id, level = _list_of(properties)
        outline = _number(_child(properties, "outlineLvl"))
        heading = None if outline is None else outline + 1
        own = style
        for _ in range(_CHAIN):
            known = self._styles.get(style)
            if known is None:
                break
            heading = known.outline if heading is None else heading
            if list_id is None and known.list_id is not None:
                list_id = known.list_id
            level = known.level if level is None else level
            style = known.based_on
        label = self._label(list_id, level, own) if list_id not in (None, "0") else ""
        return label, heading if heading is not None and 1 <= heading <= _LEVELS else 0

    def _label(self, list_id: str | None, level: int | None, style: str) -> str:
        list_ = self._lists.get(list_id or "")
        if list_ is None:
            return ""
        if level is None:
            level = next((number for number, each in list_.levels.items() if style and each.style == style), 0)
        if not 0 <= level < _LEVELS:
            return ""
        counts = self._counts.setdefault(list_.definition, [None] * _LEVELS)
        if list_id not in self._begun:
            self._begun.add(list_id or "")
            for number, start in list_.starts.items():
                counts[number] = start - 1
        format_ = list_.levels.get(level, _Level())
        before = counts[level]
        counts[level] = format_.start if before is None else before + 1
        for number in range(level + 1, _LEVELS):
            if list_.levels.get(number, _Level()).restarts:
                counts[number] = None
        return _PLACE.sub(lambda place: self._count(list_, counts, int(place[1]) - 1, format_), format_.label)

    @staticmethod
    def _count(list_: _List, counts: list[int | None], level: int, shown_on: _Level) -> str:
        own = list_.levels.get(level, _Level())
        count = counts[level]
        return format_number(own.start if count is None else count, "decimal" if shown_on.is_decimal else own.format)


class _OdfLevel(NamedTuple):
    """A level of a list in OpenDocument.

    Attributes:
        format: "1", "a", "A", "i", "I"; "" shows no number.
        shown: number of levels, up to this one, whose numbers are shown.
    """

    start: int
    format: str
    prefix: str
    suffix: str
    shown: int


LIST_FORMATS: Final = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
"""Formats of OpenDocument and HTML, in the words of WordprocessingML."""


class OdfLists:
    """Lists of an OpenDocument file.

    Args:
        styles: the root of ``styles.xml``; None if there is none.
        content: the root of ``content.xml``.
    """

    def __init__(self, styles: _Element | None, content: _Element) -> None:
        self._styles: dict[str, dict[int, _OdfLevel]] = {}
        self._headings: dict[int, _OdfLevel] = {}
        for root in (styles, content):
            for each in () if root is None else root.iter("{*}list-style", "{*}outline-style"):
                levels = dict(_odf_levels(each))
                if str(each.tag).endswith("}outline-style"):
                    self._headings |= levels
                self._styles[_attribute(each, "name")] = levels
        self._counts: dict[str, dict[int, int]] = {}
        self._heading_counts: dict[int, int] = {}
        self._open: list[str] = []
        """Names of the styles of the lists around the current place."""

    def begin(self, list_: _Element) -> None:
        """Enter a list; without a style of its own it has that of the list around it."""
        style = _attribute(list_, "style-name") or (self._open[-1] if self._open else "")
        counts = self._counts.setdefault(style, {})
        continues = _attribute(list_, "continue-numbering") == "true" or _attribute(list_, "continue-list")
        if not continues:
            for level in [each for each in counts if each > len(self._open)]:
                del counts[level]
        self._open.append(style)

    def end(self) -> None:
        """Leave the list that was entered last."""
        self._open.pop()

    def label_of_item(self, item: _Element) -> str:
        """Return the number that is shown before an item of the list entered last; "" for none."""
        style, level = self._open[-1], len(self._open)
        start = integer_of(_attribute(item, "start-value"))
        return _count_up(self._counts[style], self._styles.get(style, {}), level, start)

    def label_of_heading(self, heading: _Element, level: int) -> str:
        """Return the number that is shown before a heading of this level; "" for none."""
        if not self._headings or _attribute(heading, "is-list-header") == "true":
            return ""
        start = integer_of(_attribute(heading, "start-value"))
        return _count_up(self._heading_counts, self._headings, level, start)


def _count_up(counts: dict[int, int], levels: dict[int, _OdfLevel], level: int, start: int | None) -> str:
    """Count a paragraph of a level, and return its number as it is shown."""
    own = levels.get(level)
    first = 1 if own is None else own.start
    counts[level] = start if start is not None else counts[level] + 1 if level in counts else first
    for deeper in [each for each in counts if each > level]:
        del counts[deeper]
    if own is None or own.format not in LIST_FORMATS:
        return ""
    numbers = []
    for number in range(max(1, level - own.shown + 1), level + 1):
        if (each := levels.get(number)) is not None and each.format in LIST_FORMATS:
            numbers.append(format_number(counts.get(number, each.start), LIST_FORMATS[each.format]))
    return f"{own.prefix}{'.'.join(numbers)}{own.suffix}".strip()


def _odf_levels(style: _Element) -> Iterator[tuple[int, _OdfLevel]]:
    for each in style.iterchildren("{*}list-level-style-number", "{*}outline-level-style"):
        level, start = integer_of(_attribute(each, "level")), integer_of(_attribute(each, "start-value"))
        if level is not None:
            prefix, suffix = (_attribute(each, name)[:_LABEL_CHARACTERS] for name in ("num-prefix", "num-suffix"))
            shown = integer_of(_attribute(each, "display-levels")) or 1
            format_ = _attribute(each, "num-format")
            yield level, _OdfLevel(1 if start is None else start, format_, prefix, suffix, shown)


class SlideParagraphs:
    """Numbered paragraphs of slides: each shape counts for itself."""

    def __init__(self) -> None:
        self._shape: _Element | None = None
        self._counts: dict[int, tuple[str, int]] = {}
        """Level -> format and number of its last paragraph."""

    def describe(self, paragraph: _Element) -> tuple[str, int]:
        """Return the number that is shown before a paragraph, "" for none, and 0: slides have no outline.

        To be called for each paragraph, in their order.
        """
        shape = paragraph.getparent()
        if shape is not self._shape:
            self._shape, self._counts = shape, {}
        if not any(each.text for each in paragraph.iter("{*}t")):  # shows no number
            return "", 0
        properties = _child(paragraph, "pPr")
        level = integer_of("" if properties is None else _attribute(properties, "lvl")) or 0
        for deeper in [each for each in self._counts if each > level]:
            del self._counts[deeper]
        style = None if shape is None else _child(_child(shape, "lstStyle"), f"lvl{level + 1}pPr")
        own = next((each for each in (properties, style) if _is_marked(each)), None)
        numbered = _child(own, "buAutoNum")
        if numbered is None:
            self._counts.pop(level, None)
            return "", 0
        format_, start = _attribute(numbered, "type"), integer_of(_attribute(numbered, "startAt"))
        before, number = self._counts.get(level, ("", 0))
        number = number + 1 if before == f"{format_} {start}" else 1 if start is None else start
        self._counts[level] = f"{format_} {start}", number
        return _slide_number(number, format_), 0


_MARKERS: Final = ("buAutoNum", "buChar", "buNone", "buBlip")


def _is_marked(properties: _Element | None) -> bool:
    """Return whether properties of a paragraph say what stands before it."""
    return any(_child(properties, name) is not None for name in _MARKERS)


_SLIDE_FORMATS: Final = {"alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}
_SLIDE_ENDS: Final = {"ParenBoth": "({})", "ParenR": "{})", "Plain": "{}"}


def _slide_number(number: int, format_: str) -> str:
    """Return a number as a slide shows it; ``format_`` is such as ``alphaLcParenR``. Digits of other scripts are
    ours."""
    digits = next((name for begin, name in _SLIDE_FORMATS.items() if format_.startswith(begin)), "1")
    shown = next((shown for end, shown in _SLIDE_ENDS.items() if format_.endswith(end)), "{}.")
    return shown.format(format_number(number, LIST_FORMATS[digits]))


def format_number(number: int, format_: str) -> str:
    """Return a number as a list shows it, in the words of WordprocessingML; formats of other scripts as digits."""
    match format_:
        case "none":
            return ""
        case "decimalZero":
            return f"{number:02}"
        case "lowerLetter" | "upperLetter" if 1 <= number <= _HIGHEST:
            times, letter = divmod(number - 1, 26)
            text = chr(ord("a") + letter) * (times + 1)
        case "lowerRoman" | "upperRoman" if 1 <= number <= _HIGHEST_ROMAN:
            text = ""
            for value, letters in _ROMAN:
                text += letters * (number // value)
                number %= value
        case _:
            return str(number)
    return text.upper() if format_.startswith("upper") else text


def _lists(root: _Element, styles: dict[str, _Style]) -> Iterator[tuple[str, _List]]:
    definitions: dict[str, dict[int, _Level]] = {}
    linked: dict[str, str] = {}
    for each in root.iterchildren("{*}abstractNum"):
        key = _attribute(each, "abstractNumId")
        definitions[key] = dict(_levels(each.iterchildren("{*}lvl")))
        if style := _value(_child(each, "numStyleLink")):
            linked[key] = style
    named = {_attribute(each, "numId"): each for each in root.iterchildren("{*}num")}
    for list_id, each in named.items():
        key = _value(_child(each, "abstractNumId"))
        style_of_list = styles.get(linked.get(key, ""))
        if style_of_list is not None and (target := named.get(style_of_list.list_id or "")) is not None:
            key = _value(_child(target, "abstractNumId"))
        levels, starts = dict(definitions.get(key, {})), dict[int, int]()
        for override in each.iterchildren("{*}lvlOverride"):
            level = integer_of(_attribute(override, "ilvl"))
            start = _number(_child(override, "startOverride"))
            if level is None or level >= _LEVELS:
                continue
            levels |= dict(_levels(override.iterchildren("{*}lvl")))
            if start is not None:
                starts[level] = start
        yield list_id, _List(key, starts, levels)


def _levels(elements: Iterable[_Element]) -> Iterator[tuple[int, _Level]]:
    for each in elements:
        level, format_ = integer_of(_attribute(each, "ilvl")), _value(_child(each, "numFmt")) or "decimal"
        if level is None or level >= _LEVELS:
            continue
        start, restart = _number(_child(each, "start")), _number(_child(each, "lvlRestart"))
        yield (
            level,
            _Level(
                1 if start is None else start,
                format_,
                "" if format_ == "bullet" else _value(_child(each, "lvlText"))[:_LABEL_CHARACTERS],
                restart != 0,
                _child(each, "isLgl") is not None,
                _value(_child(each, "pStyle")),
            ),
        )


_LABEL_CHARACTERS: Final = 100
"""Longest text of a label."""


def _list_of(properties: _Element | None) -> tuple[str | None, int | None]:
    """Return the list and the level that properties of a paragraph name."""
    numbers = _child(properties, "numPr")
    list_id = _value(_child(numbers, "numId"))
    return list_id or None, _number(_child(numbers, "ilvl"))


def _child(element: _Element | None, name: str) -> _Element | None:
    return None if element is None else next(element.iterchildren(f"{{*}}{name}"), None)


def _attribute(element: _Element, name: str) -> str:
    return next((str(value) for key, value in element.attrib.items() if str(key).rpartition("}")[2] == name), "")


def _value(element: _Element | None) -> str:
    return "" if element is None else _attribute(element, "val")


def _number(element: _Element | None) -> int | None:
    return integer_of(_value(element))


def integer_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_HIGHEST)) else None
