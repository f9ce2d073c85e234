"""Documents: their ids, fields, raw bytes and the version of their content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from copy import deepcopy
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from ferryman import limits
from ferryman import limits as durations
from ferryman.errors import (
    BadDocument,
    PermanentError,
    Unsupported,
    UsageError,
    describe,
    plain_text,
    safe_repr,
    unless_interrupt,
)

Operation = Literal["upsert", "delete"]


def _plain_array(value: Any) -> Any:
    """Return an array of NumPy or Arrow, or a value out of one, as lists and numbers.

    Raises:
        NotImplementedError: it is something else, which JSON cannot hold.
    """
    convert = getattr(value, "tolist", None) or getattr(value, "as_py", None)
    if convert is None or type(value).__module__.partition(".")[0] not in ("numpy", "pyarrow"):
        raise NotImplementedError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return convert()


_encode = msgspec.json.Encoder(order="sorted", enc_hook=_plain_array).encode


class RereadRequest(NamedTuple):
    """Request of a step to have its document read and processed again later."""

    after_s: float
    why: str


class StepCaller(Protocol):
    """Port for the code that calls steps, which knows the current call."""

    def key_of(self, doc: Document) -> str | None:
        """Return the document's idempotency key in the current call; None if no step is being called."""
        ...


ALLOWED: Final = "allowed"
"""Field of a document that says who may read it, by convention: names of groups and users."""

current_caller: ContextVar[StepCaller | None] = ContextVar("called_by", default=None)
"""Caller of steps in this thread."""


class Document(MutableMapping[str, Any]):
    """A document on its way: a mutable mapping of fields (JSON values) with an id and, often, raw bytes.

    ``Document("plays/henryv.txt", raw=b"...", title="Henry V")``. ``doc["title"]``, ``doc.get("title")``,
    ``"title" in doc``, ``del doc["title"]`` and iteration work on the fields.

    Attributes:
        id: URI relative to the source's root; unique in its source.
        raw: the content's bytes, or None for documents that are fields only.
        parent_id: id of the document it was made from, else None.
        origin_id: id of the source document at the top of its family (its own id for one from a source).
        version: 32 hex digits, BLAKE2b-128 of raw and fields as the source gave them; "" before it is known.
        operation: "upsert" or "delete".
        refused: why nothing can be made of it, in words or as an ``Unsupported``, or None. A step sets it on a child
            that it cannot make (an encrypted member of an archive): that child goes no further and ends as ERROR_DOC
            with these words, at every destination below the step; the rest of its family goes on.
        only_if_changed: a step sets it on a child that need not be sent again with a new version of its origin where a
            destination has it with the same fields and raw. False: it is sent with each version.
        outline: level (from 1) and line of each heading in ``raw``, in their order, where ``extract_text`` has taken
            them out of markup, and the anchor that leads to it, from ``main_text``; ``split_text`` cuts there.
        previous: in the function of a keyed node: what it was given of this document before under the same key, as a
            dict of fields; None: nothing, or the document comes from a log.
    """

    __slots__ = (
        "_again", "_children", "_fields", "id", "only_if_changed", "operation", "origin_id", "outline", "parent_id",
        "previous", "raw", "refused", "version",
    )  # fmt: skip

    def __init__(self, id: str, /, *, raw: bytes | None = None, **fields: Any) -> None:
        self.id = id
        self.raw = raw
        self.parent_id: str | None = None
        self.origin_id = id
        self.version = ""
        self.operation: Operation = "upsert"
        self.refused: str | Unsupported | None = None
        self.only_if_changed = False
        self.outline: tuple[tuple[int, str] | tuple[int, str, str], ...] = ()
        self.previous: dict[str, Any] | None = None
        self._again: RereadRequest | None = None
        self._children = 0
        self._fields = fields

    @classmethod
    def of(cls, id: str, fields: dict[str, Any], raw: bytes | None = None, version: str = "") -> Document:
        """Make a document from a dict of fields, which it keeps (no copy); field names are free, "raw" too."""
        doc = cls.__new__(cls)  # called for each document and wave: takes half the time of __init__
        doc.id = doc.origin_id = id
        doc.raw = raw
        doc.parent_id = None
        doc.version = version
        doc.operation = "upsert"
        doc.refused = None
        doc.only_if_changed = False
        doc.outline = ()
        doc.previous = None
        doc._again = None
        doc._children = 0
        doc._fields = fields
        return doc

    @classmethod
    def deletion(cls, id: str) -> Document:
        """Make a document that deletes the one of this id at every destination below: as an export of a keyed node, or
        yielded by a source's listing. ``Document.deleted`` is the same."""
        doc = cls.of(id, {})
        doc.operation = "delete"
        return doc

    deleted = deletion

    def child(
        self, key: object = None, *, raw: bytes | None = None, only_if_changed: bool = False, **fields: Any
    ) -> Document:
        """A new document made from this one; return it from the step, alone or with others.

        Its id is this document's id, ``#``, and the key, percent-encoded. It must be the same on every run of the same
        input, for that is how the child is known again: give a key that names it, if the order may change. Who may read
        the document (its field ``allowed``) may read the child, unless the child is given a field of that name.

        Args:
            key: text or a number, unique among this document's children; default: how many were made before it.
            only_if_changed: the attribute of the child.

        Raises:
            PermanentError: an empty key.
        """
        if key is None:
            key = self._children
        self._children += 1
        name = str(key)
        if not (name.isascii() and name.isalnum()):
            name = quote(name, safe="", errors="surrogatepass")
        if not name:
            raise PermanentError(f"{self.id}: a child with an empty key: give text, or no key for its number.")
        child = Document(f"{self.id}#{name}", raw=raw)
        if ALLOWED in self._fields and ALLOWED not in fields:
            fields[ALLOWED] = copy_value(self._fields[ALLOWED])
        child._fields = fields
        child.parent_id = self.id
        child.origin_id = self.origin_id
        child.version = self.version
        child.only_if_changed = only_if_changed
        return child

    def again(self, after: str | float | timedelta, *, why: str = "") -> None:
        """Deliver what there is, and have the document read and walked again later, as a new revision, though nothing
        of it has changed: for a result that is partial today. The first scan after that time takes it up.

        Of a child it is said for its origin; of several times the earliest counts. Nothing is pending meanwhile. A
        version that comes before has a wish of its own, or none.

        Args:
            after: ``"1h"``, ``"2d"``, seconds, or a timedelta; at least 1 s.
            why: the ledger says it.

        Raises:
            PermanentError: ``after`` is not a duration. In a run also if the document is an entry of a log that a keyed
                node counts, or what a keyed node exports: it would be counted, or told, twice.
        """
        after_s = _seconds(after)
        if after_s is None:
            raise PermanentError(f"{self.id}: again(after={after!r}): give seconds, or text as in after='1h'.")
        self._again = RereadRequest(max(limits.REREAD_MIN_S, after_s), plain_text(why))

    @property
    def asked_again(self) -> RereadRequest | None:
        """Return the last request made by ``again``."""
        return self._again

    @property
    def idempotency_key(self) -> str:
        """In a step: 32 hex digits that are the same on every attempt of this call, for a service that takes such a key
        and then does a thing once.

        It is made of the plan's name and version, the state, source and id, version and revision of the document, its
        route and the step's name. So it stays as it is when a call is repeated after a kill or an error, and is another
        one when the document has changed, or is processed again on purpose (``retry --force``, ``again``). In a
        preview it is another one than in the run.

        Raises:
            UsageError: no step is being called in this thread.
        """
        caller = current_caller.get()
        if caller is None or (key := caller.key_of(self)) is None:
            raise UsageError(f"{self.id}: idempotency_key is known within a step, in the thread that it is called in.")
        return key

    def copy(self) -> Document:
        """Return a copy: its fields and their values can be changed independently.

        Raises:
            PermanentError: a field holds what cannot be copied (a lock, a generator); names it.
        """
        try:
            fields = {n: v if type(v) in _IMMUTABLE else copy_value(v) for n, v in self.fields.items()}  # most are
        except BaseException as e:
            raise _copy_error(self._fields, unless_interrupt(e)) from None
        copy = Document.of(self.id, fields, self.raw)
        copy.parent_id = self.parent_id
        copy.origin_id = self.origin_id
        copy.version = self.version
        copy.operation = self.operation
        copy.refused = self.refused
        copy.only_if_changed = self.only_if_changed
        copy.outline = self.outline
        copy.previous = self.previous
        copy._again = self._again
        copy._children = self._children
        return copy

    def text(self, encoding: str = "utf-8") -> str:
        """The raw bytes, decoded; "" where there are none.

        Raises:
            BadDocument: the bytes are not in this encoding; says at which byte. Ends as ERROR_DOC.
            Unsupported: they are no text at all.
        """
        if self.raw is None:
            return ""
        try:
            return self.raw.decode(encoding)
        except UnicodeDecodeError as e:
            if b"\0" in self.raw[:_BINARY_CHECK_BYTES] and not self.raw.startswith(_WIDE_BOMS):
                raise Unsupported(
                    f"{self.id}: it is not text but binary data. Leave it out with exclude=, or have its source drop "
                    "what is not read: unsupported='skip'."
                ) from None
            raise BadDocument(
                f"{self.id}: not {encoding} text: byte {e.start} (0x{self.raw[e.start]:02x}): {e.reason}. "
                "Save the file in this encoding, or decode it by its own: doc.text('latin-1')."
            ) from None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields themselves, as a dict."""
        return self._fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._fields[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a document cannot be deleted")  # whoever gets it next relies on each

    def __delitem__(self, name: str) -> None:
        del self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __bool__(self) -> bool:
        return True  # a document without fields is still a document

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Document):
            return NotImplemented
        return (self.id, self.raw, self._fields) == (other.id, other.raw, other._fields)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        raw = "" if self.raw is None else f", raw={len(self.raw)} bytes"
        return f"Document({self.id!r}{raw}, fields={sorted(self._fields)})"


_BINARY_CHECK_BYTES = 8000
"""Number of first bytes among which a NUL marks content as binary: git's rule, true of nearly all pictures and
programs."""

_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of text in UTF-16 and UTF-32, where NULs mean nothing."""


def _seconds(after: object) -> float | None:
    """Convert a duration to seconds; None if it is not a valid one."""
    try:
        if isinstance(after, timedelta):
            seconds = after.total_seconds()
        else:
            seconds = durations.seconds(after) if isinstance(after, str) else float(after)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= limits.REREAD_MAX_S and not isinstance(after, bool) else None


def copy_value(value: Any) -> Any:
    """Copy a JSON value, several times faster than ``deepcopy``; other values by ``deepcopy``."""
    kind = type(value)
    if kind is dict:
        return {name: copy_value(each) for name, each in value.items()}
    if kind is list:
        return [copy_value(each) for each in value]
    return value if kind in _IMMUTABLE else deepcopy(value)


def _copy_error(fields: dict[str, Any], error: BaseException) -> PermanentError:
    """Return the error that says which field cannot be copied, and why."""
    for name, value in fields.items():
        try:
            copy_value(value)
        except BaseException as e:
            unless_interrupt(e)
            why = _TOO_DEEP if isinstance(e, RecursionError) else f"holds a {type(value).__name__}"
            return PermanentError(
                f"field {safe_repr(name)} {why}, of which no copy can be made ({describe(e)}). Copies are made for "
                "steps with batch= and for routers that send a document several ways: take the field out before, or "
                "make the object in the step that uses it."
            )
    return PermanentError(f"its fields cannot be copied ({describe(error)})")


_SCALAR_TYPES = frozenset({str, int, bool, bytes, type(None)})
"""Types whose values JSON can all hold."""

_IMMUTABLE = _SCALAR_TYPES | {float}


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Encode fields as JSON with sorted keys, so that equal fields give equal bytes.

    Raises:
        BadDocument: a value that JSON cannot hold, NaN and the infinite numbers among them, or one that is nested too
            deep; names the field.
    """
    try:
        encoded = _encode(fields)
    except MemoryError:
        raise
    except Exception as e:  # also what the objects raise that msgspec asks
        raise _encoding_error(fields, e) from None
    for name, value in fields.items():
        if type(value) not in _SCALAR_TYPES and (why := json_problem(value, limits.NESTED - 1)):
            raise BadDocument(
                f"field {safe_repr(name)} {why}. Set it to something else in a step, such as text or None."
            )
    return encoded


def is_text(text: str) -> bool:
    """Return whether text can be stored: it has no lone surrogate, as in a file name that is not UTF-8."""
    if text.isascii():
        return True
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def raw_bytes(raw: object) -> bytes | None:
    """Return raw bytes given by a source.

    Raises:
        BadDocument: it is something else.
    """
    if raw is None or type(raw) is bytes:
        return raw
    if isinstance(raw, bytes | bytearray | memoryview):
        return bytes(raw)
    raise BadDocument(f"its source gave a {type(raw).__name__} as raw, which must be bytes or None")


def storable_id(id: str) -> str:
    """Return a source's id in a form that can be stored: lone surrogates are escaped, so that the document can be named
    when it is refused."""
    return id if is_text(id) else plain_text(id)


def storable_texts(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the parameters of a query with each text as ``storable_id`` stores it; None: there are none."""
    texts = {name: storable_id(value) for name, value in (values or {}).items() if isinstance(value, str)}
    return {**(values or {}), **texts} or None


def check_source_id(id: str) -> None:
    """Check that a source's id is text that can be stored.

    Raises:
        BadDocument: it is not.
    """
    if not is_text(id):
        raise BadDocument(
            f"its source gave it the id {safe_repr(id)}, which has half a character in it (a lone surrogate)"
        )


def encode_value(value: Any, what: str) -> bytes:
    """Encode a value that is to be part of fields as JSON with sorted keys.

    Args:
        what: begins the message, such as "the state".

    Raises:
        BadDocument: as ``encode_fields``.
    """
    try:
        encoded = _encode(value)
    except MemoryError:
        raise
    except RecursionError:
        raise BadDocument(f"{what} {_TOO_DEEP}") from None
    except Exception as e:
        raise BadDocument(f"{what} JSON cannot hold ({plain_text(e)})") from None
    if why := json_problem(value, limits.NESTED - 1):
        raise BadDocument(f"{what} {why}")
    return encoded


def decode_json(text: bytes | str) -> Any:
    """Decode a JSON value that came from outside.

    Raises:
        ValueError: it is not JSON, or nested more than ``limits.NESTED`` deep.
    """
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(json_error(text, e)) from None
    if why := json_problem(value):
        raise ValueError(f"it {why}")
    return value


def json_error(text: bytes | str, error: Exception) -> str:
    """Return why text could not be decoded as JSON: in the decoder's words, unless they mislead.

    Of an escape without its other half it says that the input was cut off; of what is nested too deep each release of
    Python says something else.
    """
    if isinstance(error, RecursionError):
        return f"it {_TOO_DEEP}"
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        return f"{_HALF_CHARACTER}: \\u{ord(e.object[e.start]):04x} stands alone. Write both halves, or neither"
    except (ValueError, RecursionError):
        pass
    return str(error)


def json_problem(value: Any, levels: int = limits.NESTED) -> str:
    """Return why fields may not hold a value that can be encoded, as the rest of a sentence about it; "" if they may.

    NaN and the infinite numbers would silently become null; deep nesting breaks code that recurses over it: copies,
    pickling, other programs' parsers.

    Args:
        levels: number of nested lists and dicts that it may have.
    """
    kind = type(value)
    if kind is float:
        return "" if value - value == 0 else f"holds {value}, {_NOT_A_NUMBER}"
    if kind in _SCALAR_TYPES:
        return ""
    if kind is dict or isinstance(value, dict):
        inner: Iterable[Any] = value.values()
    elif kind is list or isinstance(value, _SEQUENCE_TYPES):
        inner = value
    else:
        plain = msgspec.to_builtins(
            value, str_keys=True, enc_hook=_plain_array
        )  # dates, dataclasses and whatever else msgspec knows
        return "" if type(plain) is kind else json_problem(plain, levels)
    if not levels:
        return _TOO_DEEP
    if kind is list and value and type(value[0]) is float and are_finite(value):  # embeddings: the fast path
        return ""
    for each in inner:
        if type(each) not in _SCALAR_TYPES and (why := json_problem(each, levels - 1)):
            return why
    return ""


def replace_nan(fields: dict[str, Any]) -> None:
    """Replace NaN and the infinite numbers in fields by None, at any depth that fields may have."""
    for name, value in fields.items():
        if type(value) is float:
            if value - value != 0:
                fields[name] = None
        elif type(value) not in _SCALAR_TYPES and json_problem(value, limits.NESTED - 1).endswith(_NOT_A_NUMBER):
            fields[name] = _without_nan(msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_array))


def _without_nan(value: Any) -> Any:
    if type(value) is float:
        return value if value - value == 0 else None
    if type(value) is dict:
        return {name: _without_nan(each) for name, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, _SEQUENCE_TYPES) else value


_NOT_A_NUMBER: Final = "which is not a number in JSON"

_SEQUENCE_TYPES: Final = (list, tuple, set, frozenset)


def are_finite(numbers: list[Any]) -> bool:
    """Return whether all numbers are finite. Fast for embeddings: NaN and infinity make the sum not finite."""
    try:
        total = sum(numbers)
    except Exception:  # other values are among them
        return False
    return bool(total - total == 0)


def _encoding_error(fields: dict[str, Any], error: Exception) -> BadDocument:
    """Return the error that says which field cannot be encoded, and why."""
    for name, value in fields.items():
        try:
            _encode({name: value})
        except RecursionError:
            return BadDocument(f"field {safe_repr(name)} {_TOO_DEEP}. Set it to something flatter in a step.")
        except UnicodeEncodeError:
            return BadDocument(
                f"field {safe_repr(name)} holds {_HALF_CHARACTER}, which UTF-8 cannot hold. Replace it in a step: "
                "text.encode('utf-8', 'replace').decode()."
            )
        except Exception:
            return BadDocument(
                f"field {safe_repr(name)} holds a {type(value).__name__} that JSON cannot hold "
                f"({plain_text(error)}). Set it to text, a number, a list or a dict in a step."
            )
    return BadDocument(f"the fields are not JSON: {plain_text(error)}")


_HALF_CHARACTER: Final = "text with half a character in it (a lone surrogate)"

_TOO_DEEP: Final = f"is nested more than {limits.NESTED} deep"


def check_size(fields: bytes, raw: bytes | None) -> None:
    """Check that a delivery can hold fields and raw bytes of this size.

    Raises:
        BadDocument: it is larger than ``limits.MAX_CONTENT_BYTES``.
    """
    if (len(fields) > limits.MAX_CONTENT_BYTES or raw) and (why := size_problem(fields, raw)):
        raise BadDocument(why)


def size_problem(fields: bytes, raw: bytes | None) -> str:
    """Return why a delivery cannot hold fields and raw bytes of this size; "" if it can."""
    for what, size in (("fields", len(fields)), ("raw bytes", len(raw or b""))):
        if size > (limit := limits.MAX_CONTENT_BYTES):
            return (
                f"its {what} are too large: {limits.format_count(size)} bytes, and a document holds "
                f"{limits.format_count(limit)} at most. "
                "Split it into children in a step, or deliver its location instead of its content."
            )
    return ""


decode_fields = msgspec.json.Decoder(dict[str, Any]).decode
"""Decode JSON bytes to fields."""


_EMPTY_HASH = blake2b(digest_size=16)


def content_version(fields: bytes, raw: bytes | None) -> str:
    """Return the version of a document: BLAKE2b-128 (32 hex digits) of its encoded fields and raw bytes, of no time.

    A NUL, which JSON does not contain, separates fields from raw; documents without raw differ from those with empty
    raw.
    """
    h = _EMPTY_HASH.copy()  # takes three quarters of the time of a new one
    h.update(fields)
    if raw is not None:
        h.update(b"\0")
        h.update(raw)
    return h.hexdigest()
