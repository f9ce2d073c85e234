"""The policy by which a step remembers: what its answers depend on, how long they hold, what a call costs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ferryman import limits

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")

CONTENT: Final = "raw"
"""Name by which ``reads`` means the content of a document: its raw bytes."""
TEXT: Final = "text"
"""Name by which ``reads`` means the content of a document that has no field of this name."""


@dataclass(frozen=True, slots=True)
class Remember:
    """How a step remembers its answers: ``plan.step(..., remember=Remember("model-3/512", reads=["text"]))``.

    The step is called once for each distinct input and version, plus at most the calls that were under way at a kill.
    Equal inputs share an answer: of two documents, two plans, two versions of a plan.

    Args:
        version: names all that changes an answer besides its input: model, dimensions, role, prompt. Another version
            is called for again; answers of the old one stay until they are forgotten.
        name: name under which answers are shared between steps and plans; default: the step's name.
        reads: fields that the step reads; the others are not shown to it, and a change of them costs no call. "raw" is
            the content; so is "text" of a document without a field of this name. Default: all fields and the content.
            The id is never a part.
        writes: fields that the step may set, change or remove. Default: any.
        expires: how long an answer holds: seconds, or "365d", "12h". Default: for good.
        refusals: how long a ``PermanentError`` holds. No other error is remembered. None: it is not either.
        cost: price of a call for one document, in dollars, for the bill.
        max_bytes: size of the store from which on answers are dropped that were not used for longest. Default: no
            limit.
    """

    version: str
    name: str | None = None
    reads: Sequence[str] | None = None
    writes: Sequence[str] | None = None
    expires: str | float | None = None
    refusals: str | float | None = "1d"
    cost: float = 0.0
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in ("reads", "writes"):
            if (value := getattr(self, field)) is not None:
                object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(value))

    @property
    def expires_s(self) -> float:
        """Return the seconds for which an answer holds."""
        return _seconds(self.expires)

    @property
    def refusals_s(self) -> float:
        """Return the seconds for which a refusal holds; 0: refusals are not remembered."""
        return 0.0 if self.refusals is None else _seconds(self.refusals)

    def findings(self) -> Iterator[str]:
        """Yield what is wrong with the values, each as the rest of a sentence that begins with the node's name."""
        if not isinstance(self.version, str) or not self.version.strip():
            yield f"version={self.version!r}: name the model and all that changes an answer, such as 'model-3/512'."
        if self.name is not None and (not isinstance(self.name, str) or not NAME.match(self.name)):
            yield f"name={self.name!r}: use letters, digits, '_', '.', '-', beginning with a letter."
        for field in ("reads", "writes"):
            names = getattr(self, field)
            if names is not None and (not names or not all(isinstance(name, str) and name for name in names)):
                yield f"{field}={list(names)!r}: give names of fields, or leave it out for all."
        for field in ("expires", "refusals"):
            try:
                if not _seconds(getattr(self, field)) > 0:
                    yield f"{field}={getattr(self, field)!r}: give a time above 0."
            except (TypeError, ValueError) as e:
                yield f"{field}={e}."
        if not _is_number(self.cost) or self.cost < 0 or self.cost == math.inf:
            yield f"cost={self.cost!r}: give dollars, 0 or more."
        if self.max_bytes is not None and (not _is_number(self.max_bytes) or self.max_bytes < limits.MIB):
            yield f"max_bytes={self.max_bytes!r}: give bytes, {limits.MIB} or more, or leave it out."


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _seconds(value: str | float | None) -> float:
    """Convert a duration to seconds; None: without end.

    Raises:
        ValueError: not a duration.
    """
    if value is None:
        return math.inf
    if isinstance(value, str):
        return limits.seconds(value)
    if not _is_number(value):
        raise ValueError(f"{value!r}: give seconds, or text as in '365d'")
    return float(value)
