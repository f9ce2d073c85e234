"""Documents that a program has at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ferryman import limits
from ferryman.document import Document, decode_fields, encode_fields
from ferryman.errors import BadDocument, UsageError
from ferryman.sources.base import Detect, Listed, Source

Published = Document | dict[str, Any]
"""Document that a program provides: a ``Document``, or a dict with "id", optionally "raw" (bytes), and fields."""

EncodedDocument = tuple[str, bytes | None, bytes, str]
"""Document encoded for a worker: id, raw, fields as JSON, and why it is refused, or ""."""

PIECE_DOCUMENTS: Final = 1000
"""Documents in a piece of the listing: few enough to spread over workers, enough for a task of their own."""


class Memory(Source):
    """Documents from a list, or from a function that makes them.

    ``Memory([Document("a", raw=b"..."), {"id": "b", "title": "B"}])``, ``Memory(lambda: fetch_all())``.

    A list is read again in every scan, so it may change between runs; what is no longer in it is deleted. A function is
    called in the driver, once per scan; what it makes must fit in the driver's memory. Steps get copies: they never
    change what was given. Values that JSON writes as text (dates) arrive as text. A document with a field that JSON
    cannot hold is refused by its id (ERROR_DOC); the others go on.

    Args:
        documents: see above.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an entry is not a document (naming its index): from here for a list, in a scan for a function.
    """

    def __init__(
        self,
        documents: Iterable[Published] | Callable[[], Iterable[Published]],
        *,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if isinstance(documents, Iterator) or not (callable(documents) or isinstance(documents, Iterable)):
            raise UsageError(
                f"Memory({type(documents).__name__}): give a list of documents, or a function that makes one; "
                "every scan looks at them again."
            )
        self._documents: Iterable[Published] | Callable[[], Iterable[Published]] | None = documents
        if not callable(documents):
            for index, document in enumerate(documents):
                _parse(index, document)

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the documents of their own piece, not all of them; and a function may not be picklable.
        return {**self.__dict__, "_documents": None}

    def __repr__(self) -> str:
        return "Memory(…)"

    def partitions(self) -> list[list[EncodedDocument]]:
        """Slices of the documents, with the documents in them.

        Raises:
            UsageError: an entry is not a document, naming its index; or this is a worker's copy of the source.
        """
        documents = self._documents() if callable(self._documents) else self._documents
        if documents is None:
            raise UsageError("Memory: its documents stay in the program that made it; a pickled copy has none to list.")
        pieces: list[list[EncodedDocument]] = []
        piece: list[EncodedDocument] = []
        room_bytes = 0
        for index, one in enumerate(documents):
            if room_bytes <= 0 or len(piece) >= PIECE_DOCUMENTS:
                piece = []
                pieces.append(piece)
                room_bytes = limits.TASK_BYTES
            entry = _encode(*_parse(index, one))
            piece.append(entry)
            room_bytes -= len(entry[1] or b"") + len(entry[2])
        return pieces

    def listing(self, partition: list[EncodedDocument]) -> Iterator[Listed | Document]:
        """The documents of this slice, whole."""
        for id, raw, fields, refused in partition:
            if refused:
                yield Listed(id, 0, refused=refused)
            else:
                yield Document.of(id, decode_fields(fields), raw)


def _parse(index: int, document: object) -> tuple[str, bytes | None, dict[str, Any]]:
    """Return id, raw and fields of a document that a program provides."""
    id: object
    raw: object
    match document:
        case Document(operation="delete"):
            raise UsageError(f"documents[{index}] is a delete: to delete a document, leave it out of the list.")
        case Document():
            id, raw, fields = document.id, document.raw, document.fields
        case dict():
            fields = {str(name): value for name, value in document.items() if name not in ("id", "raw")}
            id, raw = document.get("id"), document.get("raw")
        case _:
            raise UsageError(
                f"documents[{index}] is a {type(document).__name__}: give a Document, or a dict with 'id'."
            )
    if not isinstance(id, str) or not id:
        raise UsageError(f"documents[{index}] has the id {id!r}: give it a text of its own, not empty.")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise UsageError(f"documents[{index}] has the id {id!r}, which is not text that UTF-8 can hold.") from None
    if raw is not None and not isinstance(raw, bytes):
        raise UsageError(
            f"documents[{index}] ({id}): raw is a {type(raw).__name__}: give bytes, as from text.encode()."
        )
    return id, raw, fields


def _encode(id: str, raw: bytes | None, fields: dict[str, Any]) -> EncodedDocument:
    try:
        return id, raw, encode_fields(fields), ""
    except BadDocument as e:
        return id, None, b"", f"{id}: {e}"
