"""A delivery as a document of Solr."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from ferryman.destinations.base import Delivery
from ferryman.errors import BadDocument

_SOLRS_OWN: Final = ("_version_", "_root_", "_nest_path_", "_nest_parent_", "_childDocuments_")
"""Fields with a meaning: a document that sets them would no longer be one of ours."""

_encode = msgspec.json.Encoder().encode


class Names(NamedTuple):
    """What fields are called in the collection."""

    text: str
    hash: str
    sequence: str


def document(delivery: Delivery, names: Names) -> dict[str, Any]:
    """The fields as they are, ``id``, the text, hash and sequence.

    Numbers, texts and truth values stay what they are, a list of them is a field with several values; None is left
    out. Anything deeper is JSON text: Solr would take an object for an order to change the document that is there.

    Raises:
        BadDocument: a field has a name that Solr or Ferryman keeps for itself.
    """
    made: dict[str, Any] = {}
    for name, value in delivery.fields.items():
        if name in _SOLRS_OWN or name in names[1:]:
            raise BadDocument(f"a field is called {name}, which has a meaning of its own. Rename it in a step.")
        if isinstance(value, list):
            made[name] = [_flat(each) for each in value if each is not None]
        elif value is not None:
            made[name] = _flat(value)
    if delivery.raw is not None:
        made[names.text] = delivery.text()
    return made | {"id": delivery.id, names.hash: delivery.hash, names.sequence: delivery.sequence}


def encoded(document: dict[str, Any]) -> bytes:
    """As JSON.

    Raises:
        BadDocument: it holds what JSON cannot hold.
    """
    try:
        return _encode(document)
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        for name, value in document.items():
            try:
                _encode({name: value})
            except Exception:
                raise BadDocument(f"field {name!r} holds what JSON cannot hold ({e}). Change it in a step.") from None
        raise BadDocument(f"its fields are not JSON: {e}") from None


def _flat(value: Any) -> Any:
    return _encode(value).decode() if isinstance(value, (dict, list)) else value
