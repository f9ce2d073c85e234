"""Steps that change numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from humanize import naturalsize

from ferryman.document import Document
from ferryman.steps.values import NUMBER_OR_TEXT, each, names

Units = Literal["decimal", "binary"]

_LARGEST: Final = 10**33
"""Above a thousand quettabytes there are no names of units."""


@dataclass(frozen=True, slots=True)
class format_size:
    """A number of bytes as people read it: 1500000 as ``1.5 MB``.

    A list is treated element by element. Without the field nothing is done. The number is then lost: where it is still
    needed, ``copy_field`` first.

    >>> format_size("size")(Document("a", size=1_500_000))["size"]
    '1.5 MB'
    >>> format_size("size", units="binary")(Document("a", size="1048576"))["size"]
    '1.0 MiB'

    Args:
        fields: one name or several. A value is a number, or a text of digits.
        units: "decimal": kB, MB, … are powers of 1000; "binary": KiB, MiB, … are powers of 1024.
        digits: decimal places, 0 to 9. Bytes themselves have none.

    Raises:
        BadDocument: a value is not a number, is less than 0, or not finite.
        ValueError: when the step is made: no name, other units, other digits.
    """

    fields: str | Sequence[str]
    units: Units = "decimal"
    digits: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        if self.units not in get_args(Units):
            raise ValueError(f"units={self.units!r}: choose one of {', '.join(get_args(Units))}.")
        if self.digits not in range(10):
            raise ValueError(f"digits={self.digits!r}: give a number from 0 to 9.")

    def __call__(self, doc: Document) -> Document:
        return each(doc, self.fields, self._written, NUMBER_OR_TEXT)

    def _written(self, size: int | float | str) -> str:
        if isinstance(size, str):
            if not (size.isascii() and size.isdigit()):
                raise ValueError("is not a number of bytes. Give a number, or a text of digits.")
            size = int(size)
        if not 0 <= size < _LARGEST:
            raise ValueError("is not a size: give a number of bytes from 0 on.")
        return naturalsize(size, binary=self.units == "binary", format=f"%.{self.digits}f")
