"""What all steps hold to: which fields they were given, and one value or a list of values alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from reprlib import Repr
from typing import Any, Final

from ferryman.document import Document
from ferryman.errors import BadDocument

Kinds = tuple[type, ...]
"""Classes of the values that a step takes: one of the two below."""

TEXT: Final[Kinds] = (str,)
NUMBER_OR_TEXT: Final[Kinds] = (int, float, str)

_CALLED: Final = {TEXT: "text", NUMBER_OR_TEXT: "a number or text"}


class Plain:
    """A step whose every argument has a default: ``Plan.step("text", extract_text)`` is ``extract_text()``."""

    __slots__ = ()

    def __new__(cls, doc: Document | None = None, /, **_options: Any) -> Any:
        return object.__new__(cls) if doc is None else cls()(doc)

    def __call__(self, doc: Document) -> Any:
        """What comes of the document."""
        raise NotImplementedError


_short = Repr()
_short.maxstring = _short.maxother = 60

_SHOWN: Final = 80
"""Characters of a value in a message, which is a line; the value may be a book."""


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name of a field or several, as a tuple.

    Raises:
        ValueError: none, or one that is not text or empty.
    """
    found = (given,) if isinstance(given, str) else tuple(given)
    if not found or not all(isinstance(name, str) and name for name in found):
        raise ValueError(f"fields {given!r}: give the name of a field, or a list of names.")
    return found


def one_name(given: str, argument: str) -> str:
    """The name of one field, as it was given.

    Raises:
        ValueError: no text, or empty; names the argument.
    """
    if not isinstance(given, str) or not given:
        raise ValueError(f"{argument}={given!r}: give the name of a field.")
    return given


def values(doc: Document, name: str, kinds: Kinds = TEXT) -> list[Any] | None:
    """The values of a field that may hold one or a list of them, nulls left out; None where there is no field.

    Raises:
        BadDocument: a value of another kind.
    """
    held = doc.get(name)
    if held is None:
        return None
    found = [value for value in _all(held) if value is not None]
    for value in found:
        _check(doc, name, value, kinds)
    return found


def each(doc: Document, fields: Sequence[str], change: Callable[[Any], Any], kinds: Kinds = TEXT) -> Document:
    """The document with every value of these fields changed: a value by itself, a list element by element.

    Fields that are not there, and nulls, stay as they are. ``change`` says by ``ValueError`` why it cannot.

    Raises:
        BadDocument: a value of another kind, or one that cannot be changed.
    """
    for name in fields:
        held = doc.get(name)
        if held is None:
            continue
        changed = [_changed(doc, name, value, change, kinds) for value in _all(held)]
        doc[name] = changed if isinstance(held, (list, tuple)) else changed[0]
    return doc


def keys_of(names: Iterable[str]) -> Iterator[str]:
    """A key for each name, no two alike: of several with one name the second is ``name-2``; without one its place."""
    taken: set[str] = set()
    for place, name in enumerate(names):
        first = name or str(place)
        key = next(key for key in (first, *(f"{first}-{n}" for n in range(2, place + 3))) if key not in taken)
        taken.add(key)
        yield key


def is_list(doc: Document, name: str) -> bool:
    """Does the field hold a list of values?"""
    return isinstance(doc.get(name), (list, tuple))


def shown(value: Any) -> str:
    """A value in a message, cut short."""
    text = _short.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def refused(doc: Document, name: str, why: str) -> BadDocument:
    """The error of a value that a step cannot take."""
    return BadDocument(f"{doc.id}: field {name!r} {why}")


def _all(held: Any) -> Sequence[Any]:
    return held if isinstance(held, (list, tuple)) else [held]


def _changed(doc: Document, name: str, value: Any, change: Callable[[Any], Any], kinds: Kinds) -> Any:
    if value is None:
        return None
    _check(doc, name, value, kinds)
    try:
        return change(value)
    except ValueError as e:
        raise refused(doc, name, f"holds {shown(value)}: {e}") from None


def _check(doc: Document, name: str, value: Any, kinds: Kinds) -> None:
    if not isinstance(value, kinds) or isinstance(value, bool):
        called = _CALLED[kinds]
        raise refused(
            doc,
            name,
            f"holds {shown(value)}, a {type(value).__name__}, where {called} is needed. "
            f"Make {called} of it in a step before this one, or give other fields.",
        )
