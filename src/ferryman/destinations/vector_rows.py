"""Documents as vector stores keep them: fields, text and vectors apart, tokens for filters, and how long deletes are
remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ferryman.destinations.base import Delivery, LastDelivery, Outcome, canonical_fields, content_hash, printable_id
from ferryman.destinations.vectors import Scalar, VectorField, read_vectors
from ferryman.document import encode_fields
from ferryman.errors import BadDocument

if TYPE_CHECKING:
    import numpy as np

TOMBSTONE_S: Final = 3600
"""Time that a delete is remembered, during which older upserts are refused. Ferryman sends nothing more than a minute
late; the rest allows for workers whose clocks differ. A remembered delete takes some 200 bytes."""

TOKEN_BYTES: Final = 200
"""Longest token that is kept as text; of a longer one its hash is kept."""

_encode = msgspec.json.Encoder(order="sorted").encode


class VectorRow(NamedTuple):
    """A delivery as a vector store keeps it.

    Attributes:
        position: its place in the chunk.
        text: the raw bytes decoded; None: it has none.
        fields: the fields without vectors, as JSON with sorted keys; ``{}`` for a delete.
        vectors: field -> vector, as float32.
    """

    position: int
    delivery: Delivery
    text: str | None
    fields: bytes
    vectors: Mapping[str, np.ndarray[Any, Any]]

    def content_hash(self, with_vectors: bool = True) -> str:
        """Return a hash of all that is stored, see ``stored_hash``."""
        d = self.delivery
        names = (d.id, d.hash, d.sequence, d.parent_id, d.origin_id, d.source, d.version, route_text(d.route))
        return stored_hash(names, self.text, self.fields, self.vectors if with_vectors else {})


def stored_hash(
    names: Sequence[str | int | None], text: str | None, fields: bytes, vectors: Mapping[str, np.ndarray[Any, Any]]
) -> str:
    """Return a hash of a stored document, by which ``ferryman verify`` sees whether somebody has changed it.

    Args:
        names: id, hash, sequence, parent, origin, source, version and route.
        fields: without vectors, as JSON with sorted keys.
        vectors: as float32, as they were written.
    """
    numbers = [part for name in sorted(vectors) for part in (name, vectors[name].astype("<f4").tobytes())]
    return content_hash(*names, text, canonical_fields(fields), *numbers)


def route_text(route: Sequence[str]) -> str:
    """Return a route as JSON."""
    return _encode(list(route)).decode()


def read_rows(
    chunk: Sequence[Delivery], vectors: Mapping[str, VectorField], outcomes: list[Outcome | None]
) -> list[VectorRow]:
    """Return the deliveries that can be stored; set a permanent outcome for the others."""
    found = read_vectors(chunk, vectors, outcomes)
    rows = []
    for position, delivery, numbers in zip(found.positions, found.deliveries, found.vectors, strict=True):
        try:
            if not delivery.id:
                raise BadDocument("its id is empty. Give it one in the source.")
            _encode([delivery.id, delivery.parent_id, delivery.origin_id])
            text, fields = None, b"{}"
            if delivery.operation == "upsert":
                text = None if delivery.raw is None else delivery.text()
                fields = encode_fields({k: v for k, v in delivery.fields.items() if k not in vectors})
        except (BadDocument, ValueError, TypeError) as e:
            outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")
        else:
            rows.append(VectorRow(position, delivery, text, fields, numbers))
    return rows


def outcome_of(delivery: Delivery, stored: LastDelivery | None) -> Outcome | None:
    """Return what became of a delivery, by what the store has of its id afterwards; None: it was not stored."""
    if stored is None:
        return None
    if stored.hash == delivery.hash and stored.sequence >= delivery.sequence:
        return Outcome.ok()
    return Outcome.stale() if stored.sequence > delivery.sequence else None


# Tokens: one for each value that a filter may ask for, so that a store needs only lists of text to filter by any field.


def filter_tokens(fields: Mapping[str, Any]) -> list[str]:
    """Return a token for each text, number and truth value among the fields, alone or in a list: ``team="a"``."""
    tokens: dict[str, None] = {}
    for name, value in fields.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | int | float):
                tokens[filter_token(name, each)] = None
    return list(tokens)


def filter_token(name: str, value: Scalar) -> str:
    """Return the token of a field's value. Equal values have equal tokens: 1 and 1.0 have, 1 and true have not."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    shown = str(value) if isinstance(value, int) and not isinstance(value, bool) else _encode(value).decode()
    token = f"{name}={shown}"
    encoded = token.encode()
    return token if len(encoded) <= TOKEN_BYTES else f"#{blake2b(encoded, digest_size=16).hexdigest()}"


def missing_package(module: str, extra: str, destination: str) -> str:
    """Return that a destination's client is missing, with the command that installs it; "" if it is there."""
    if find_spec(module) is not None:
        return ""
    return f"{destination} needs the extra [{extra}]: pip install 'ferryman[{extra}]'"


def another_vector(target: str, what: str) -> str:
    """Return the text of the error for a store whose vectors are not those of the plan."""
    return (
        f"{target}: {what}. What is stored stays as it is: name a new place in the plan, give the plan a higher "
        "version, and run it with --from-version."
    )
