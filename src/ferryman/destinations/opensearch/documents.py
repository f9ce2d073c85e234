"""Documents of an index: as lines of bulk requests, and as they read back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.destinations.base import (
    Delivery,
    Outcome,
    Stored,
    canonical_fields,
    canonical_json,
    content_hash,
    split_by_size,
)
from ferryman.errors import BadDocument

# Deliveries as lines of a bulk request.

ID_BYTES: Final = 512
"""Longest id that the server accepts, in UTF-8; it would refuse a whole request with a longer one."""

REQUEST_BYTES: Final = 10 * limits.MIB
"""Largest size of a request with several documents: the lowest limit of hosted clusters. JSON is longer than the
delivery, so a chunk may need several requests. A single document may be larger: the server then decides."""

OBJECT: Final = "_ferryman"
"""Field of a document with Ferryman's metadata."""

_SHOWN_CHARACTERS: Final = 80
"""Characters shown of an id that is too long."""

_encode = msgspec.json.Encoder().encode


class BulkRow(NamedTuple):
    """A delivery's lines in a request, and its position in the chunk."""

    position: int
    lines: bytes


class BulkWriter:
    """Converts deliveries to rows of bulk requests.

    Args:
        text: name of the field for the decoded raw bytes; None: they are left out.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._text_key = b"" if text is None else _encode(text) + b":"
        self._own_key = _encode(OBJECT) + b":"

    def rows(self, chunk: list[Delivery], outcomes: list[Outcome | None]) -> Iterator[BulkRow]:
        """Yield a row for each delivery without an outcome that can be sent; set the outcomes of the others."""
        for position, delivery in enumerate(chunk):
            if outcomes[position] is not None:
                continue
            try:
                id = _encode(delivery.id)
                if refused := _id_problem(delivery.id):
                    outcomes[position] = Outcome.permanent(refused)
                elif delivery.operation == "delete":
                    yield BulkRow(position, _action(b"delete", id, delivery.sequence))
                else:
                    yield BulkRow(
                        position, _action(b"index", id, delivery.sequence) + self._source(delivery, id) + b"\n"
                    )
            except (BadDocument, ValueError, TypeError) as e:
                printable = delivery.id.encode(errors="replace").decode()  # the reason must be text, if the id is none
                outcomes[position] = Outcome.permanent(f"{printable}: {e}")

    def _source(self, delivery: Delivery, id: bytes) -> bytes:
        """Return the document's source: its fields, without decoding them, then the text and Ferryman's metadata."""
        fields = delivery._fields_json
        if self._own_key in fields and OBJECT in delivery.fields:
            raise BadDocument(f"it has a field {OBJECT!r}, which Ferryman writes itself. Rename the field in a step.")
        pieces, text = [fields[:-1]], None
        if delivery.raw is not None and self._text is not None and not self._has_text(delivery, fields):
            text = delivery.text()
            pieces.append(self._text_key + _encode(text))
        pieces.append(self._own_key + _metadata(delivery, id, text, fields))
        return pieces[0] + (b"," if len(pieces[0]) > 1 else b"") + b",".join(pieces[1:]) + b"}"

    def _has_text(self, delivery: Delivery, fields: bytes) -> bool:
        """Return whether the document has a field of that name: then a step made it of the bytes."""
        return self._text_key in fields and self._text in delivery.fields


def split_requests(rows: Iterator[BulkRow]) -> Iterator[list[BulkRow]]:
    """Split rows into requests."""
    return split_by_size(rows, lambda row: len(row.lines), REQUEST_BYTES)


def _id_problem(id: str) -> str:
    size = len(id) if id.isascii() else len(id.encode())
    if size > ID_BYTES:
        beginning = id[:_SHOWN_CHARACTERS]
        return f"{beginning}…: its id has {size} bytes, {ID_BYTES} is the most. Give it a shorter one in the source."
    return "" if size else "its id is empty. Give it one in the source."


def _action(operation: bytes, id: bytes, sequence: int) -> bytes:
    """Return the action line of a delivery.

    With ``external_gte`` the server refuses a version that is lower than the stored one, and writes an equal one again:
    only the same delivery, with the same bytes, has an equal version.
    """
    return b'{"%s":{"_id":%s,"version":%d,"version_type":"external_gte"}}\n' % (operation, id, sequence)


def _metadata(d: Delivery, id: bytes, text: str | None, fields: bytes) -> bytes:
    route = b"[]" if not d.route else _encode(d.route)
    names = (d.id, d.hash, d.sequence, d.origin_id, d.parent_id, d.source, d.version, route)
    return (
        b'{"hash":"%s","sequence":%d,"origin":%s,"parent":%s,"source":%s,"version":%s,"route":%s,"content_hash":"%s"}'
        % (
            d.hash.encode(),
            d.sequence,
            id if d.origin_id == d.id else _encode(d.origin_id),
            b"null" if d.parent_id is None else _encode(d.parent_id),
            _encode(d.source),
            _encode(d.version),
            route,
            content_hash(*names, text, canonical_fields(fields)).encode(),
        )
    )


# Documents as they read back.

PAGE: Final = 200
"""Documents read in a request of ``inventory``: they are in memory together."""

SCROLL: Final = "5m"
"""Time for which the server keeps the rest of an inventory between two requests."""


class _Hit(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    source: msgspec.Raw = msgspec.field(name="_source", default=msgspec.Raw(b"{}"))


class _Hits(msgspec.Struct):
    hits: list[_Hit]


class _Shards(msgspec.Struct):
    failed: int = 0


class Page(msgspec.Struct):
    """Answer of a search; ``docs``: of a multi-get."""

    scroll_id: str = msgspec.field(name="_scroll_id", default="")
    timed_out: bool = False
    shards: _Shards = msgspec.field(name="_shards", default_factory=_Shards)
    hits: _Hits = msgspec.field(default_factory=lambda: _Hits([]))
    docs: list[_Hit] = []


read_page = msgspec.json.Decoder(Page).decode
_decode_source = msgspec.json.Decoder(dict[str, Any]).decode


def stored_document(hit: _Hit, text: str | None) -> Stored | None:
    """Return what a document of the index holds; None: it was not written by Ferryman.

    Args:
        text: name of the field for the decoded raw bytes.
    """
    source = _decode_source(hit.source)
    own = source.pop(OBJECT, None)
    if not isinstance(own, dict) or not isinstance(own.get("hash"), str):
        return None
    intact = None
    if (written := own.get("content_hash")) is not None:
        parts = [own.get(name) for name in ("hash", "sequence", "origin", "parent", "source", "version", "route")]
        names = (hit.id, *parts[:-1], _encode(parts[-1]))
        rest = {name: value for name, value in source.items() if name != text}
        candidates = [(None, source), *([(source[text], rest)] if text in source else [])]
        intact = any(
            content_hash(*names, text, canonical_json(_encode(fields))) == written for text, fields in candidates
        )
    route = own.get("route")
    return Stored(
        hit.id,
        own["hash"],
        intact,
        str(own.get("source", "")),
        str(own.get("version", "")),
        tuple(map(str, route)) if isinstance(route, list) else (),
    )
