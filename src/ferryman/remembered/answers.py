"""Inputs and answers of steps that remember: what a step reads of a document, and what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Self

import msgspec
import numpy as np

from ferryman.document import Document, copy_value, encode_fields
from ferryman.errors import BadDocument, Dropped, Misconfigured, PermanentError, Unsupported, plain_text
from ferryman.remembered.policy import CONTENT, TEXT, Remember

# --- inputs: the part of a document that a step reads, and the key of its answer ---
# The key is a hash of the name and version under which answers are shared, and of the canonical bytes of what is read:
# fields as JSON with sorted keys, then the content. So the order of keys does not matter, and a list is a tuple; but 1
# and 1.0, null and no field, and the two Unicode forms of a letter with an accent (NFC, NFD) are different inputs.

KEY_BYTES = 16
"""Length of a key: BLAKE2b-128, as of versions and delivery hashes."""


class Input(Document):
    """Copy of what a step reads of a document; the step is called with it.

    Attributes:
        key: of the input.
        document: hash of the document's family.
        before: encoded value of each field before the call.
        content: raw bytes before the call.
    """

    __slots__ = ("before", "content", "document", "key")

    key: bytes
    document: bytes
    before: dict[str, bytes]
    content: bytes | None

    @property
    def idempotency_key(self) -> str:
        """Return the key of the input in 32 hex digits: the same for each call that is made for it."""
        return self.key.hex()

    def copy(self) -> Self:
        """Return a copy, as ``Document.copy``."""
        return type(self)._of(self, super().copy())

    @classmethod
    def _of(cls, origin: Input, plain: Document) -> Self:
        made = cls(plain.id, raw=plain.raw)
        made._fields = plain.fields
        made.parent_id, made.origin_id, made.version = plain.parent_id, plain.origin_id, plain.version
        made.outline = plain.outline
        made.key, made.document, made.before, made.content = origin.key, origin.document, origin.before, origin.content
        return made


def document_hash(id: str) -> bytes:
    """Return the hash by which a document's answers are found, also when it was deleted."""
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def key_of(name: str, version: str, fields: dict[str, Any], content: bytes | None) -> bytes:
    """Return the key of what is read.

    Raises:
        BadDocument: a field holds what JSON cannot hold.
    """
    h = blake2b(f"{name}\0{version}\0".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
    h.update(encode_fields(fields))
    if content is not None:
        h.update(b"\0")
        h.update(content)
    return h.digest()


def read_part(doc: Document, reads: Sequence[str] | None) -> tuple[dict[str, Any], bytes | None]:
    """Return the fields and the content that a step reads of a document."""
    if reads is None:
        return doc.fields, doc.raw
    fields = {name: doc.fields[name] for name in reads if name in doc.fields}
    reads_content = CONTENT in reads or (TEXT in reads and TEXT not in doc.fields)
    return fields, doc.raw if reads_content else None


def make_input(name: str, remember: Remember, doc: Document) -> Input | None:
    """Return a document's input; None if it has no key, so that the step is called for it each time: it has nothing of
    what is read, or a value that JSON cannot hold."""
    fields, content = read_part(doc, remember.reads)
    if not fields and content is None:
        return None
    try:
        if content is not None and type(content) is not bytes:
            return None
        key = key_of(name, remember.version, fields, content)
        made = Input(doc.id, raw=content)
        made._fields = {field: copy_value(value) for field, value in fields.items()}
        made.before = {field: encode_fields({field: value}) for field, value in fields.items()}
    except Exception:  # what JSON cannot hold, or cannot be copied
        return None
    made.parent_id, made.origin_id, made.version, made.outline = doc.parent_id, doc.origin_id, doc.version, doc.outline
    made.key, made.content, made.document = key, content, document_hash(doc.origin_id)
    return made


# --- answers: what a step wrote, in a form that can be applied to any document ---

WRITTEN: Final = "written"
DROPPED: Final = "dropped"
REFUSED: Final = "refused"

VECTOR_NUMBERS: Final = 16
"""Numbers from which on a list of them is a vector, kept as float32. Shorter lists, such as coordinates, stay as they
are."""

_ERRORS: Final[Mapping[str, type[PermanentError]]] = {
    each.__name__: each for each in (PermanentError, BadDocument, Unsupported)
}
_Place = list[str | int]
"""Names and numbers that lead to a value in the fields."""


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answer of a step to an input.

    Attributes:
        kind: ``WRITTEN``, ``DROPPED`` or ``REFUSED``.
        created: µs since 1970.
        fields: fields that the step set or changed, as JSON; null in place of each vector.
        removed: fields that it removed.
        vectors: place and length of each vector.
        numbers: all vectors' numbers, as little-endian float32.
        reason: why the document was dropped or refused; None: no reason was given.
        error: class of the refusal.
    """

    kind: str
    created: int
    fields: bytes = b"{}"
    removed: list[str] = []
    vectors: list[tuple[_Place, int]] = []
    numbers: bytes = b""
    reason: str | None = None
    error: str = ""

    @property
    def size(self) -> int:
        """Return its approximate number of bytes."""
        return len(self.fields) + len(self.numbers) + len(self.reason or "")

    def apply(self, doc: Document) -> Document | None:
        """Do to the document what the step did, and return what the step returned.

        Raises:
            Dropped: the step dropped it, with a reason.
            PermanentError: the step refused it.
        """
        if self.kind == REFUSED:
            raise _ERRORS.get(self.error, PermanentError)(self.reason or "")
        if self.kind == DROPPED:
            if self.reason is None:
                return None
            raise Dropped(self.reason)
        for name in self.removed:
            doc.fields.pop(name, None)
        doc.fields.update(self.written())
        return doc

    def written(self) -> dict[str, Any]:
        """Return the fields that the step set, with their vectors."""
        fields: dict[str, Any] = msgspec.json.decode(self.fields)
        at = 0
        for place, length in self.vectors:
            vector = np.frombuffer(self.numbers, "<f4", length, at * 4).tolist()
            at += length
            inner: Any = fields
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = vector
        return fields


class Unremembered(msgspec.Struct, frozen=True):
    """Result of a step that cannot be remembered: numbers that are none, vectors of zeros, values that are not JSON."""

    fields: dict[str, Any]
    removed: list[str]

    def apply(self, doc: Document) -> Document:
        """Do to the document what the step did."""
        for name in self.removed:
            doc.fields.pop(name, None)
        doc.fields.update(self.fields)
        return doc


def refusal(error: PermanentError, created: int) -> RememberedAnswer:
    """Return the answer of a step that refused its input for good."""
    kind = next(name for name in ("Unsupported", "BadDocument", "PermanentError") if isinstance(error, _ERRORS[name]))
    return RememberedAnswer(REFUSED, created, reason=plain_text(error), error=kind)


def answer_of(
    step: str, given: Input, returned: Any, writes: Iterable[str] | None, created: int
) -> RememberedAnswer | Unremembered:
    """Return what a step answered.

    Args:
        returned: what the step returned for this input.

    Raises:
        Misconfigured: it did something that cannot be remembered, so that each call of it would be paid in vain.
        PermanentError: it refused the input.
    """
    if returned is None:
        return RememberedAnswer(DROPPED, created)
    doc = _only_document(step, given, returned)
    if doc.refused is not None:
        raise doc.refused if isinstance(doc.refused, Unsupported) else BadDocument(plain_text(doc.refused))
    if doc.raw is not given.content and doc.raw != given.content:
        raise Misconfigured(
            f"{step} remembers, and changed the content of a document: only fields are remembered. Write to a field, "
            "or leave out remember=."
        )
    if doc.asked_again is not None or given.asked_again is not None:
        raise Misconfigured(f"{step} remembers, and called again(): say how long an answer holds, with expires=.")
    plain = {name: _plain(value) for name, value in doc.fields.items()}
    changed = {name: value for name, value in plain.items() if _is_changed(name, value, given)}
    removed = [name for name in given.before if name not in doc.fields]
    allowed = None if writes is None else {*writes}
    if allowed is not None and (other := [name for name in (*changed, *removed) if name not in allowed]):
        raise Misconfigured(f"{step} remembers, and wrote the field {other[0]!r}: name it in writes=.")
    vectors: list[tuple[_Place, list[Any]]] = []
    without = {name: _take_vectors(value, [name], vectors) for name, value in changed.items()}
    try:
        numbers = [np.asarray(vector, "<f4") for _, vector in vectors]
        if not all(np.isfinite(each).all() and each.any() for each in numbers):
            return Unremembered(changed, removed)
        fields = encode_fields(without)
    except (BadDocument, OverflowError):
        return Unremembered(changed, removed)
    places = [(place, len(vector)) for place, vector in vectors]
    return RememberedAnswer(WRITTEN, created, fields, removed, places, b"".join(each.tobytes() for each in numbers))


def _only_document(step: str, given: Input, returned: Any) -> Document:
    """Return the document that a step returned, alone or as the only one of several."""
    if isinstance(returned, Document):
        documents = [returned]
    elif isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
        raise Misconfigured(f"{step} returned a {type(returned).__name__}: return the document, or None.")
    else:
        documents = list(returned)
        if not documents:
            raise Dropped(f"step {step} returned no document")
    if len(documents) == 1 and isinstance(documents[0], Document) and documents[0].id == given.id:
        return documents[0]
    raise Misconfigured(
        f"{step} remembers, and made children: their ids belong to one document, an answer to many. Make children in a "
        "step before it."
    )


def _is_changed(name: str, value: Any, given: Input) -> bool:
    if name not in given.before:
        return True
    try:
        return encode_fields({name: value}) != given.before[name]
    except BadDocument:
        return True


def _plain(value: Any) -> Any:
    """Return NumPy arrays and numbers as Python's, as they would be read from an answer."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _take_vectors(value: Any, place: _Place, vectors: list[tuple[_Place, list[Any]]]) -> Any:
    """Return a value with null in place of its vectors, which are added to ``vectors``."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if _is_vector(value):
            vectors.append((place, list(value)))
            return None
        return [_take_vectors(each, [*place, n], vectors) for n, each in enumerate(value)]
    if isinstance(value, dict):
        return {
            name: _take_vectors(each, [*place, name], vectors) if type(name) is str else each
            for name, each in value.items()
        }
    return value


def _is_vector(value: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether a list is kept as float32: it is long, and of numbers that are not all whole."""
    if len(value) < VECTOR_NUMBERS:
        return False
    kinds = {type(each) for each in value}
    return float in kinds and kinds <= {float, int}
