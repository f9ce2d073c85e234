"""Answers to a bulk request, and to each of its items: what they mean for the deliveries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from ferryman.destinations.base import (
    Outcome,
)


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
