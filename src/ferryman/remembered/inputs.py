"""Inputs of steps that remember: the part of a document that the step reads, and the key of its answer.

The key is a hash of the name and version under which answers are shared, and of the canonical bytes of what is read:
fields as JSON with sorted keys, then the content. So the order of keys does not matter, and a list is a tuple; but 1
and 1.0, null and no field, and the two Unicode forms of a letter with an accent (NFC, NFD) are different inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Self

from ferryman.document import Document, copy_value, encode_fields
from ferryman.remembered.policy import CONTENT, TEXT, Remember

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
