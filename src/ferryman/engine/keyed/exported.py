"""What an ``update`` returns, checked: a state that JSON can hold, and documents to export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ferryman.document import Document, check_size, content_version, encode_fields, encode_value, is_text
from ferryman.errors import BadDocument, PermanentError, shown


class Export(NamedTuple):
    """A document to export, as it is kept."""

    key: str
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None
    version: str


def returned(key: str, given: Any) -> tuple[str | None, list[Export]]:
    """The new state as JSON (None: there is none), and the exports, of what an ``update`` has returned.

    Raises:
        PermanentError: it is not a pair of these.
    """
    if not isinstance(given, tuple) or len(given) != 2:
        raise PermanentError(f"returned a {type(given).__name__}: return a pair: the new state, and what to export")
    state, exports = given
    return _state(state), [_export(key, each) for each in _each(exports)]


def _state(state: Any) -> str | None:
    if state is None:
        return None
    try:
        encoded = encode_value(state, "a state that")
    except BadDocument as e:
        raise PermanentError(f"returned {e}") from None
    check_size(encoded, None)
    return encoded.decode()


def _each(exports: Any) -> Iterator[Any]:
    if exports is None:
        return
    if isinstance(exports, Document | Mapping):
        yield exports
    elif isinstance(exports, Iterable) and not isinstance(exports, str | bytes):
        yield from exports
    else:
        raise PermanentError(f"returned a {type(exports).__name__} to export: give documents, a list of them, or None")


def _export(key: str, given: Any) -> Export:
    if not isinstance(given, Document):
        if not isinstance(given, Mapping):
            raise PermanentError(
                f"returned a {type(given).__name__} among its exports: give documents or dicts of fields"
            )
        given = Document.of(key, dict(given))
    id = given.id
    if not isinstance(id, str) or not id:
        raise PermanentError(f"returned an export with the id {shown(id)}: an id is text that is not empty")
    if not is_text(id):
        raise PermanentError(f"returned an export with the id {shown(id)}, which has half a character in it")
    if given.operation == "delete":
        return Export(key, id, "delete", None, None, content_version(b"", None))
    fields, raw = encode_fields(given.fields), given.raw
    if raw is not None and not isinstance(raw, bytes):
        raise BadDocument(f"{id} has a {type(raw).__name__} as raw, which must be bytes or None")
    check_size(fields, raw)
    return Export(key, id, "upsert", fields, raw, content_version(fields, raw))
