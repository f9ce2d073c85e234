"""JSON objects, one a line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.sources.base import Detect
from ferryman.sources.physical import Physical
from ferryman.sources.pointer import Pointer
from ferryman.sources.records import RecordRow, Records, bad_id
from ferryman.sources.selection import FileSelection

_KINDS: Final = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}

_decode = msgspec.json.Decoder().decode


class JsonLines(Records):
    """Every line of every file below ``root`` that the globs take, as a document: a JSON object, whose members are the
    fields.

    ``JsonLines("products.jsonl", id="sku")``, ``JsonLines("exports", include="**/*.jsonl.gz", id="/meta/id",
    content="/body")``.

    **Ids** are the file's path relative to the root and the line's number: ``exports/a.jsonl#line=12``. With ``id=`` an
    id is what stands there in the object, text or a number: then it does not matter in which file and line an object
    stands, and of several with one id the last counts.

    **Content.** Without ``content=`` a document is fields only. With it, the text that stands there is ``raw``, in
    UTF-8, and is not a field; where there is none, or null, the document has no ``raw``.

    **Bad input.** A line that is not a JSON object (``NaN`` and numbers that no double can hold are not JSON), is
    longer than ``max_bytes``, or has no id where ``id=`` says, ends as ERROR_DOC, named by file and line; the others go
    on. With ``id=`` nothing is deleted while there are such lines: whose they are is not known. Of two members of one
    name the last counts. Blank lines are passed by, but they count. About files, see ``Lines``.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several.
        id: a JSON pointer (RFC 6901), ``/meta/id``, or a member's name, ``id``.
        content: a JSON pointer, or a member's name.
        encoding: of the files. A byte order mark in a file wins.
        max_bytes: longest line (bytes).
        storage_options: see ``Files``.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant. Whether the root exists is asked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        *,
        id: str | None = None,
        content: str | None = None,
        encoding: str = "utf-8",
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, encoding, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.id = _pointer("id", id)
        self.content = _pointer("content", content)
        self.ids_in_rows = self.id is not None

    def rows(self, lines: Iterator[Physical]) -> Iterator[RecordRow]:
        for number, line, wrong in lines:
            if wrong:
                yield RecordRow(f"line={number}", number, {}, refused=wrong)
            elif not line.isspace():
                yield self._row(number, line)

    def _row(self, number: int, line: bytes) -> RecordRow:
        name = f"line={number}"
        try:
            value = _decode(line)
        except (ValueError, RecursionError) as e:
            return RecordRow(name, number, {}, refused=f"no JSON: {e}")
        if not isinstance(value, dict):
            return RecordRow(name, number, {}, refused=f"{_KINDS.get(type(value), 'a number')}, not a JSON object")
        id = None
        if self.id is not None:
            id = self.id.of(value)
            if id is not None and (isinstance(id, bool) or not isinstance(id, str | int | float)):
                return RecordRow(name, number, {}, refused=f"its id, at {self.id}, is neither text nor a number")
            id = "" if id is None else str(id)
            if refused := bad_id(id):
                return RecordRow(name, number, {}, refused=f"{refused} (at {self.id})")
        raw = None
        if self.content is not None:
            text = self.content.take(value)
            if not isinstance(text, str | None):
                return RecordRow(name, number, {}, id=id, refused=f"its content, at {self.content}, is not text")
            raw = None if text is None else text.encode()
        return RecordRow(name, number, value, raw, id)


def _pointer(option: str, text: str | None) -> Pointer | None:
    try:
        return None if text is None else Pointer(text)
    except ValueError as e:
        raise UsageError(f"JsonLines({option}={text!r}): {e}.") from None
