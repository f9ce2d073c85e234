"""Lines of text files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, get_args

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.sources.base import Detect
from ferryman.sources.physical import Physical
from ferryman.sources.records import RecordRow, Records
from ferryman.sources.selection import FileSelection

LineId = Literal["line", "content"]
Blank = Literal["skip", "keep"]


class Lines(Records):
    """Every line of every file below ``root`` that the globs take, as a document: the line's text is ``raw``, in UTF-8
    and without its line end; there are no fields.

    ``Lines("sonnets.txt")``, ``Lines("logs", include="**/*.log*", encoding="latin-1")``, ``Lines("s3://bucket/logs")``.

    **Ids** are the file's path relative to the root and the line's number: ``logs/app.log#line=12``. So a changed line
    is one changed document, and a line at the end is one more; but one that is put in at the top shifts all that
    follow, and each is sent again. With ``id="content"`` a line is known by what is in it, wherever it stands
    (``logs/app.log#content=`` and 32 hex digits): then equal lines of a file are one document, which the run counts as
    duplicates, and a changed line is one document deleted and one new.

    **Lines** end with LF or CR LF. Blank ones (white space only) are no documents, but they count: numbers are those
    that an editor shows. ``blank="keep"`` makes documents of them.

    **Files** are found and named as by ``Files``, the root may be a single file, or a URL that fsspec reads. Those that
    are gzip, bzip2, xz or zstd by their first bytes are unpacked. They stream: only one line is held in memory.

    **Bad input.** A line that is not text in this encoding, or longer than ``max_bytes``, ends as ERROR_DOC; the others
    go on. A file that cannot be read to its end (rights, a broken disk, damaged compressed data, a link out of the
    root) makes the listing incomplete: what could be read goes on, nothing is deleted in this scan, and the run says
    which file and why. The lines of a file that was deleted are deleted.

    Args:
        root: a folder, a file, or a URL.
        include: one glob or several.
        exclude: one glob or several.
        id: what a line is known by: "line", its number, or "content".
        blank: "skip" or "keep".
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
        id: LineId = "line",
        blank: Blank = "skip",
        encoding: str = "utf-8",
        max_bytes: int = limits.MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, encoding, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        for name, value, choices in (("id", id, get_args(LineId)), ("blank", blank, get_args(Blank))):
            if value not in choices:
                raise UsageError(f"Lines({name}={value!r}): choose one of {', '.join(choices)}.")
        self.id = id
        self.blank = blank

    def rows(self, lines: Iterator[Physical]) -> Iterator[RecordRow]:
        keep, by_content = self.blank == "keep", self.id == "content"
        for number, line, wrong in lines:
            if wrong:
                yield RecordRow(f"line={number}", number, {}, refused=wrong)
            elif keep or not line.isspace():
                text = line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
                name = f"content={blake2b(text, digest_size=16).hexdigest()}" if by_content else f"line={number}"
                yield RecordRow(name, number, {}, text)
