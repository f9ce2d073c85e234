"""A join's function as a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.sources.combined import inputs_of


def joining(fn: Callable[..., Any]) -> Callable[[Document], Any]:
    """A step for the document that a join has made of one of each input: calls ``fn`` with those."""

    @wraps(fn)
    def joined(doc: Document) -> Any:
        out = fn(inputs_of(doc))
        if out is None:
            return None
        if isinstance(out, Mapping):
            return _with(doc, out)
        if isinstance(out, Iterable) and not isinstance(out, str | bytes):
            return _children(doc, out)
        raise PermanentError(f"returned a {type(out).__name__}: return a document, a dict of fields, several, or None")

    return joined


def _children(doc: Document, out: Iterable[Any]) -> Iterator[Document]:
    for each in out:
        if not isinstance(each, Mapping):
            raise PermanentError(f"returned a {type(each).__name__} among several: return documents or dicts of fields")
        yield _with(doc.child(), each)


def _with(doc: Document, out: Mapping[str, Any]) -> Document:
    """The document with the content of what was returned."""
    fields = dict(out)
    doc.fields.clear()
    doc.fields.update(fields)
    doc.raw = out.raw if isinstance(out, Document) else None
    return doc
