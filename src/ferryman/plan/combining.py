"""A combiner as the update of a keyed node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ferryman.document import Document, copied
from ferryman.errors import PermanentError

Combiner = Callable[[str, list[Any]], Any]
"""(key, values) -> one value for all of them; None: the key has none any more."""

Value = str | Callable[[Document], Any]
"""A field, or a function of the document."""


@dataclass(frozen=True)
class Combining:
    """Combines the values of a wave's documents, then the result with the state; exports the change, if it is one."""

    combiner: Combiner
    value: Value | None
    inverse: Callable[[Any], Any] | None = None

    def __call__(self, key: str, state: Any, documents: list[Document]) -> tuple[Any, dict[str, Any] | None]:
        new = self.combiner(key, [value for doc in documents for value in self._values_of(doc)])
        if state is not None and new is not None:
            new = self.combiner(key, [copied(state), new])  # it may change the first of them and return that
        elif new is None:
            new = state
        if new == state:
            return new, None
        return new, {"key": key, "old": state, "new": new}

    def _values_of(self, doc: Document) -> Iterator[Any]:
        """What takes back what it was before, and what it is now."""
        if doc.previous is not None and self.inverse is not None:
            yield self.inverse(self._value_of(Document.of(doc.id, doc.previous)))
        if doc.operation == "upsert":
            yield self._value_of(doc)

    def _value_of(self, doc: Document) -> Any:
        if self.value is None:
            return 1
        if callable(self.value):
            return self.value(doc)
        if self.value not in doc.fields:
            raise PermanentError(f"the document has no field {self.value!r}, which is to be its value")
        return doc.fields[self.value]
