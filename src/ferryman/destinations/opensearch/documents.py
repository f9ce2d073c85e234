"""Documents of an index: as lines of bulk requests, with the meaning of each answer, and as they read back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.stored import Stored, canonical_fields, canonical_json, content_hash, split_by_size
from ferryman.document import encode_fields
from ferryman.errors import BadDocument

# Answers to a bulk request and for each of its items, and what they mean for the deliveries.


class ErrorMeaning(NamedTuple):
    """Meaning of an error: the ``kind`` of the outcome, whether it concerns all deliveries, and the advice."""

    kind: str
    universal: bool = False
    remedy: str = ""


NO_ROUTING: Final = "Ferryman sends no routing: name an index whose mappings do not require it (_routing.required)"
NO_PIPELINE: Final = "Make the ingest pipeline, or take it out of the index's settings"

ITEM: Final[dict[int, ErrorMeaning]] = {
    200: ErrorMeaning("ok"),
    201: ErrorMeaning("ok"),
    404: ErrorMeaning("ok"),  # a delete of what is not there; an index that is not there has an error with it
    409: ErrorMeaning("stale"),
    400: ErrorMeaning("permanent", remedy="Correct the field in a step, or the mappings"),
    413: ErrorMeaning("permanent", remedy="Make it smaller in a step, or split it"),
    401: ErrorMeaning("permanent", True, "Correct auth="),
    403: ErrorMeaning("permanent", True, "Give the user the right to write to the index"),
    429: ErrorMeaning("transient", True, "It is sent again when the server has room"),
    503: ErrorMeaning("transient", True, "It is sent again when the shard is there"),
}
"""Status of an item -> its meaning. Any other status (500) is a transient outcome of its delivery."""

TYPES: Final[dict[str, ErrorMeaning]] = {
    "index_not_found_exception": ErrorMeaning("permanent", True, "Run again: Ferryman creates the index"),
    "index_closed_exception": ErrorMeaning("permanent", True, "Open the index"),
    "cluster_block_exception": ErrorMeaning("transient", True, "Lift the block: often the disk is full"),
    "circuit_breaking_exception": ErrorMeaning("transient", True, "It is sent again when the server has memory"),
    "routing_missing_exception": ErrorMeaning("permanent", True, NO_ROUTING),
}
"""Type of an item's error -> its meaning, whatever the status."""

REASONS: Final[dict[str, ErrorMeaning]] = {
    "pipeline with id [...] does not exist": ErrorMeaning("permanent", True, NO_PIPELINE),
    "no write index is defined for alias [...]": ErrorMeaning("permanent", True, "Name an index, or an alias of one"),
}
"""Beginning of an item's reason -> its meaning, where the type of the error is one that documents cause, too. ``...``
is any name."""

REQUEST: Final[dict[int, ErrorMeaning]] = {
    400: ErrorMeaning("halve", remedy="Correct the document in a step"),
    413: ErrorMeaning("halve", remedy="Make it smaller in a step, split it, or raise http.max_content_length"),
    401: ErrorMeaning("permanent", True, "Correct auth="),
    403: ErrorMeaning("permanent", True, "Give the user the right to write to the index"),
    404: ErrorMeaning("permanent", True, "Correct the url"),
    405: ErrorMeaning("permanent", True, "Correct the url"),
    429: ErrorMeaning("transient", True, "It is sent again when the server has room"),
    502: ErrorMeaning("unknown", True),
    503: ErrorMeaning("transient", True, "It is sent again when the server is there"),
    504: ErrorMeaning("unknown", True),
}
"""Status of a whole answer -> its meaning. ``halve``: the request is repeated in halves, until the document to blame is
alone in one: for that document it is permanent. ``unknown``: it may have taken effect."""


def request_meaning(status: int) -> ErrorMeaning:
    """Return the meaning of an answer with another status than 200."""
    if status in REQUEST:
        return REQUEST[status]
    if status >= 500:
        return ErrorMeaning("unknown")
    return ErrorMeaning("permanent", True, "Correct the url: redirects are not followed")


def outcome_rows() -> Iterator[tuple[str, str]]:
    """Yield (answer, outcome) of the tables above, for the reference."""
    for where, meanings in (
        ("item", ITEM),
        ("error of an item", TYPES),
        ("reason of an item", REASONS),
        ("whole answer", REQUEST),
    ):
        for answer, meaning in meanings.items():
            kind = "permanent, once it stands alone" if meaning.kind == "halve" else meaning.kind
            about = ", about all" if meaning.universal else ""
            yield f"{where} `{answer}`", f"{kind}{about}" + (f": {meaning.remedy}" if meaning.remedy else "")
    yield "an item with any other status", "transient"
    yield "a whole answer of any other 5xx", "unknown; the chunk is sent again in halves"
    yield "no connection", "transient, about all"
    yield "a request without a whole answer", "unknown, about all: the chunk is sent again"


class _Cause(msgspec.Struct):
    type: str = ""
    reason: str | None = None


class ErrorCause(msgspec.Struct):
    """Reason for the refusal of an item or a whole request."""

    type: str = ""
    reason: str | None = None
    caused_by: _Cause | None = None

    def __str__(self) -> str:
        """Return type and reason, without the document's id and value, so that equal faults have equal texts."""
        text = _strip_details(self.reason)
        if text in ("", "failed to parse") and self.caused_by is not None:
            text = f"{text}: {_strip_details(self.caused_by.reason) or self.caused_by.type}".removeprefix(": ")
        return f"{text} ({self.type})" if text else self.type


class BulkItem(msgspec.Struct):
    """The answer to one line of a request."""

    status: int
    error: ErrorCause | None = None

    def outcome(self, target: str) -> Outcome:
        meaning = ITEM.get(self.status, _OTHER_ERROR)
        if self.error is not None:
            meaning = TYPES.get(self.error.type, _OTHER_ERROR if self.status == 404 else meaning)
            meaning = _meaning_of_reason(self.error.reason) or meaning
        if meaning.kind == "ok":
            return Outcome.ok()
        if meaning.kind == "stale":
            return Outcome.stale()
        why = f"{target} refuses it: {self.error or self.status}"
        return Outcome(meaning.kind, f"{why}. {meaning.remedy}." if meaning.remedy else why, meaning.universal)


_OTHER_ERROR: Final = ErrorMeaning("transient")


def _meaning_of_reason(reason: str | None) -> ErrorMeaning | None:
    without_names = re.sub(r"\[[^\[\]]*\]", "[...]", reason or "", count=1)
    return next((meaning for start, meaning in REASONS.items() if without_names.startswith(start)), None)


class _Bulk(msgspec.Struct):
    errors: bool
    items: list[dict[str, BulkItem]]


class _Refusal(msgspec.Struct):
    error: ErrorCause | str = ""


FILTER: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"
"""Parts of an answer that are requested: a tenth of it, read in a tenth of the time."""

_decode_bulk = msgspec.json.Decoder(_Bulk).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def read_items(body: bytes) -> list[BulkItem]:
    """Return the result of each line of a request, in order.

    Raises:
        ValueError: this is not an answer to a bulk request.
    """
    return [item for each in _decode_bulk(body).items for item in each.values()]


def refusal(body: bytes) -> str:
    """Return why a request was refused, as far as the answer tells."""
    try:
        return str(_decode_refusal(body).error)
    except ValueError:
        return body.decode("utf-8", "replace").strip()


def _strip_details(reason: str | None) -> str:
    """Remove the parts of a reason that differ from document to document."""
    text = reason or ""
    text = re.sub(r"^\[\d+:\d+\] ", "", text)  # line and column
    text = re.sub(r",? (?:in|from) document with id '.*$", "", text, flags=re.DOTALL)
    return re.sub(r"\.? Preview of field's value: '.*$", "", text, flags=re.DOTALL).strip().rstrip(".")


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
        fields = delivery._fields_json or encode_fields(delivery.fields)
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


def split_requests(rows: Iterator[BulkRow], limit_bytes: int = REQUEST_BYTES) -> Iterator[list[BulkRow]]:
    """Split rows into requests of at most this size."""
    return split_by_size(rows, lambda row: len(row.lines), limit_bytes)


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
