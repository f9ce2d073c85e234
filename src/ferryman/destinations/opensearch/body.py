"""Deliveries as lines of a bulk request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import encode_fields
from ferryman.errors import BadDocument

ID_BYTES: Final = 512
"""Longest id that the server takes, in UTF-8; one that is longer would have the whole request refused."""

REQUEST_BYTES: Final = 10 * limits.MIB
"""A request closes at this size: the least that hosted clusters take. JSON is longer than what it was made of, so a
chunk may need several. One document alone may be larger: then it is the server's to refuse it."""

OBJECT: Final = "_ferryman"
"""Where a document keeps what Ferryman knows of it."""

_SHOWN_CHARACTERS: Final = 80
"""Of an id that is too long."""

_encode = msgspec.json.Encoder().encode


class BulkRow(NamedTuple):
    """A delivery's lines in a request."""

    position: int
    """In the chunk."""
    lines: bytes


class BulkWriter:
    """Makes rows of deliveries.

    Args:
        text: name of the field for the decoded raw bytes; None: they are left out.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._text_key = b"" if text is None else _encode(text) + b":"
        self._own_key = _encode(OBJECT) + b":"

    def rows(self, chunk: list[Delivery], outcomes: list[Outcome | None]) -> Iterator[BulkRow]:
        """A row for each delivery that fits a request; the others have their outcome noted."""
        for position, delivery in enumerate(chunk):
            try:
                id = _encode(delivery.id)
                if refused := _refused(delivery.id):
                    outcomes[position] = Outcome.permanent(refused)
                elif delivery.operation == "delete":
                    yield BulkRow(position, _action(b"delete", id, delivery.sequence))
                else:
                    yield BulkRow(
                        position, _action(b"index", id, delivery.sequence) + self._source(delivery, id) + b"\n"
                    )
            except (BadDocument, ValueError, TypeError) as e:
                shown = delivery.id.encode(errors="replace").decode()  # the reason must be text, if the id is none
                outcomes[position] = Outcome.permanent(f"{shown}: {e}")

    def _source(self, delivery: Delivery, id: bytes) -> bytes:
        """The fields as they are, without decoding them; then what Ferryman adds."""
        fields = delivery._fields_json or encode_fields(delivery.fields)
        if self._own_key in fields and OBJECT in delivery.fields:
            raise BadDocument(f"it has a field {OBJECT!r}, which Ferryman writes itself. Rename the field in a step.")
        pieces = [fields[:-1]]
        if delivery.raw is not None and self._text is not None and not self._has_text(delivery, fields):
            pieces.append(self._text_key + _encode(delivery.text()))
        pieces.append(self._own_key + _own(delivery, id))
        return pieces[0] + (b"," if len(pieces[0]) > 1 else b"") + b",".join(pieces[1:]) + b"}"

    def _has_text(self, delivery: Delivery, fields: bytes) -> bool:
        """Is there a field of that name? Then a step made it, and the bytes are what it made it of."""
        return self._text_key in fields and self._text in delivery.fields


def pieces(rows: Iterator[BulkRow], most: int = REQUEST_BYTES) -> Iterator[list[BulkRow]]:
    """Rows cut into requests of this size."""
    piece: list[BulkRow] = []
    size = 0
    for row in rows:
        if piece and size + len(row.lines) > most:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += len(row.lines)
    if piece:
        yield piece


def _refused(id: str) -> str:
    size = len(id) if id.isascii() else len(id.encode())
    if size > ID_BYTES:
        shown = id[:_SHOWN_CHARACTERS]
        return f"{shown}…: its id has {size} bytes, {ID_BYTES} is the most. Give it a shorter one in the source."
    return "" if size else "its id is empty. Give it one in the source."


def _action(operation: bytes, id: bytes, sequence: int) -> bytes:
    """``external_gte``: what has a lower version than what is there is refused, an equal one is written again. Equal
    is only the same delivery, with the same bytes."""
    return b'{"%s":{"_id":%s,"version":%d,"version_type":"external_gte"}}\n' % (operation, id, sequence)


def _own(d: Delivery, id: bytes) -> bytes:
    return b'{"hash":"%s","sequence":%d,"origin":%s,"parent":%s,"source":%s,"version":%s,"route":%s}' % (
        d.hash.encode(),
        d.sequence,
        id if d.origin_id == d.id else _encode(d.origin_id),
        b"null" if d.parent_id is None else _encode(d.parent_id),
        _encode(d.source),
        _encode(d.version),
        b"[]" if not d.route else _encode(d.route),
    )
