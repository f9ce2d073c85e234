"""Steps that move whole fields: copy, rename, drop, set."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ferryman.document import Document, encode_fields
from ferryman.errors import BadDocument
from ferryman.steps.values import names, one_name

How = Literal["replace", "append", "if-empty"]


@dataclass(frozen=True, slots=True)
class copy_field:
    """Copy a field to another name, in the place of what is there.

    Without the field nothing is done. Any value is copied, whatever it holds; later changes of one do not show in
    the other.

    >>> copy_field("title", "sort_title")(Document("a", title="Henry V")).fields
    {'title': 'Henry V', 'sort_title': 'Henry V'}

    Args:
        field: the field to copy.
        to: name of the copy.

    Raises:
        ValueError: when the step is made: a name is empty, or both are the same.
    """

    field: str
    to: str

    def __post_init__(self) -> None:
        _two_names(self.field, self.to)

    def __call__(self, doc: Document) -> Document:
        if self.field in doc:
            doc[self.to] = deepcopy(doc[self.field])
        return doc


@dataclass(frozen=True, slots=True)
class rename_field:
    """Give a field another name, in the place of what is there.

    Without the field nothing is done.

    >>> rename_field("Title", "title")(Document("a", Title="Henry V")).fields
    {'title': 'Henry V'}

    Args:
        field: the old name.
        to: the new name.

    Raises:
        ValueError: when the step is made: a name is empty, or both are the same.
    """

    field: str
    to: str

    def __post_init__(self) -> None:
        _two_names(self.field, self.to)

    def __call__(self, doc: Document) -> Document:
        if self.field in doc:
            doc[self.to] = doc.pop(self.field)
        return doc


@dataclass(frozen=True, slots=True)
class drop_fields:
    """Remove fields. Those that are not there are no error.

    >>> drop_fields(["draft", "notes"])(Document("a", title="Henry V", draft=True)).fields
    {'title': 'Henry V'}

    Args:
        fields: one name or several.

    Raises:
        ValueError: when the step is made: there is no name, or an empty one.
    """

    fields: str | Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            doc.pop(name, None)
        return doc


@dataclass(frozen=True, slots=True)
class set_field:
    """Set a field to a value that is the same for all documents.

    >>> set_field("language", "en", how="if-empty")(Document("a", language="")).fields
    {'language': 'en'}
    >>> set_field("tags", "play", how="append")(Document("a", tags="comedy")).fields
    {'tags': ['comedy', 'play']}

    Args:
        field: name of the field.
        value: any value that JSON can hold.
        how: "replace" what is there; "append" to it: what becomes of it is a list, and if ``value`` is a list, each of
            its elements is added; "if-empty": only if there is no such field, or it holds null, an empty text, an
            empty list or an empty dict (0 and false are values).

    Raises:
        ValueError: when the step is made: the name is empty, JSON cannot hold the value, or ``how`` is another.
    """

    field: str
    value: Any
    how: How = "replace"

    def __post_init__(self) -> None:
        one_name(self.field, "field")
        if self.how not in get_args(How):
            raise ValueError(f"how={self.how!r}: choose one of {', '.join(get_args(How))}.")
        try:
            encode_fields({self.field: self.value})
        except BadDocument as e:
            raise ValueError(f"value: {e}") from None
        object.__setattr__(self, "value", deepcopy(self.value))

    def __call__(self, doc: Document) -> Document:
        held = doc.get(self.field)
        value = deepcopy(self.value)
        if self.how == "append":
            doc[self.field] = _as_list(held) + _as_list(value)
        elif self.how == "replace" or held is None or held in ("", [], (), {}):
            doc[self.field] = value
        return doc


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _two_names(field: str, to: str) -> None:
    if one_name(field, "field") == one_name(to, "to"):
        raise ValueError(f"field and to are both {to!r}: give two names.")
