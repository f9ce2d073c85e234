"""JSON pointers (RFC 6901): where in a JSON value something is."""

from __future__ import annotations

import re
from typing import Any, Final

_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


class Pointer:
    """``/meta/id``, ``/tags/0``, ``/a~1b`` for the name ``a/b``, ``~0`` for ``~``. A text without a slash at its
    beginning, which is not a pointer, stands for that name: ``id``.

    Raises:
        ValueError: it is empty, which would be the whole value, or has a ``~`` that escapes nothing.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text:
            raise ValueError("give a JSON pointer, as '/meta/id', or a name")
        self.text = text
        if not text.startswith("/"):
            self._steps = [text]
        elif _BAD_ESCAPE.search(text):
            raise ValueError("in a JSON pointer ~ is written ~0, and a / that is part of a name ~1")
        else:
            self._steps = [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]

    def __str__(self) -> str:
        return self.text

    def of(self, value: Any) -> Any:
        """What is there; None if nothing is."""
        for step in self._steps:
            value = _below(value, step)
        return value

    def take(self, value: Any) -> Any:
        """The same, taken out of the object that it is in; what is in an array stays there."""
        for step in self._steps[:-1]:
            value = _below(value, step)
        found = _below(value, self._steps[-1])
        if isinstance(value, dict):
            value.pop(self._steps[-1], None)
        return found


def _below(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
        return value[int(step)]
    return None
