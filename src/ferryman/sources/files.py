"""Files in a folder, and in the folders below it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.sources.about import checked_base_url, checked_names, mime_of, moment, name_of_file, web_address
from ferryman.sources.base import Detect, Doubt, Listed
from ferryman.sources.packed import read_unpacked
from ferryman.sources.selection import FileSelection, FileSource
from ferryman.sources.tree import Piece


class Files(FileSource):
    """Every file below ``root`` that the globs take, as a document: its bytes are ``raw``.

    ``Files("corpus")``, ``Files("src", include="**/*.py", exclude=["**/.*", "build"])``, ``Files("s3://bucket/corpus")``.

    **Ids** are paths relative to the root with ``/`` between names: ``histories/henryv.txt``, ``a b/ça.txt``. So that
    every name has its own id, four things are percent-encoded: ``%`` (``%25``) and ``#`` (``%23``: it parts a child's
    key from its parent), control characters, and bytes of a name that are not UTF-8 (``%FF``).

    **Fields** say where a document comes from: ``uri`` (``file:///…``, or the URL in a store; with ``base_url=`` its
    web address), ``name`` (without folders), ``size`` (bytes of the file), ``modified`` (ISO 8601, UTC; null if a store
    does not say) and ``mime`` (by the end of the name). A document has not changed where only these have, so they are
    those of the time when its content changed last; ``counted=`` names fields in which a change counts.

    **Globs** are matched against the path relative to the root and are case-sensitive: ``*`` stays within a name,
    ``**`` is any number of folders, also none (``**/*.py`` takes ``setup.py`` too), and ``{py,md}`` is either. Files
    and folders whose names begin with a dot are taken like all others; ``exclude="**/.*"`` leaves them out. An exclude
    wins over every include, and one that matches a folder leaves out all that is in it, unvisited.

    **Folders** are never documents, whatever their name. One that cannot be read makes the listing incomplete (nothing
    is deleted in this scan), after everything else was listed. One that is deleted meanwhile counts as such.

    **Links** to files inside the root are read, under their own id. Links to folders inside the root are not followed:
    their files are documents already, under their real path; where the globs leave that out, the link is refused.
    Refused, by name, are links that lead nowhere, in a circle, back to a folder that holds them, or out of the root.

    Also refused: files of more than ``max_bytes``, and what is not a file (pipes, sockets, devices), which are never
    opened. An empty file is a document like any other, with ``raw=b""``. A refused name is a document that ends as
    ERROR_DOC; to have no such document, exclude it.

    **Compressed files**: one that is gzip, bzip2, xz or zstd by its first bytes, whatever its name, is unpacked; its id
    stays its path. One that is damaged or breaks off, or is larger than ``max_bytes`` when unpacked, ends as ERROR_DOC.
    With ``decompress=False`` they are documents as they are.

    **Elsewhere.** A root may be any URL that fsspec reads: ``s3://bucket/folder``, ``gs://…``, ``memory://…``,
    ``zip://::/data/corpus.zip`` (the members of an archive); ``pip install 'ferryman[s3]'`` or fsspec and what it asks
    for. Ids and globs are the same; folders are what lies between slashes. A name with an empty part, ``.`` or ``..``
    is refused. On a store that keeps such names apart (S3's ``a//b``) the folder is reported, the listing incomplete.

    **Changes** are seen by size and time of modification (``detect="fingerprint"``); where that time is less than 2 s
    ago, or yet to come, the file is read. A store that has an etag or a checksum of each file is asked for that.

    Args:
        root: a folder, or a URL. A relative path is meant from the plan file's folder; in a program, from the
            current one. On a cluster
            every worker must see the same folder at the same path.
        include: one glob or several.
        exclude: one glob or several.
        max_bytes: largest file that is read (bytes). A document lives whole in a worker's memory.
        base_url: address of the root on the web, for ``uri``.
        fields: whether to give fields, or which.
        counted: fields that make a document changed, as its bytes do: ``counted="uri"`` sends all again under a new
            ``base_url``.
        decompress: unpack compressed files.
        unsupported: what becomes of a file that a step does not read, a picture where text is wanted: "reject" (the
            run ends with 3), or "skip": it is dropped, with the reason, and counted as such.
        storage_options: options for fsspec beside the URL: ``{"endpoint_url": …}``. They travel to the workers, and
            are never shown. Credentials are better left where the client library finds them: environment, role, file.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: a glob or a limit that cannot be meant. Whether the root exists is asked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        max_bytes: int = limits.MAX_FILE_BYTES,
        *,
        base_url: str | None = None,
        fields: bool | Sequence[str] = True,
        counted: str | Sequence[str] = (),
        decompress: bool = True,
        unsupported: Literal["reject", "skip"] = "reject",
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, max_bytes, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.base_url = checked_base_url(base_url)
        self.fields = checked_names("fields", fields)
        self.uncounted = frozenset(self.fields) - frozenset(checked_names("counted", counted))
        if unsupported not in ("reject", "skip"):
            raise UsageError(f"Files(unsupported={unsupported!r}): give 'reject' or 'skip'.")
        self.decompress = decompress
        self.unsupported = unsupported

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """
        self._tree.check()

    def partitions(self) -> list[Piece]:
        """Up to ``limits.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until there are enough."""
        return self._tree.pieces()

    def listing(self, partition: Piece) -> Iterator[Listed | Doubt]:
        """Every file of these folders, sorted by name within each folder.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """
        return self._tree.listing(partition)

    def still_there(self, ids: Iterable[str]) -> str:
        """The first of these files that is there, by its path."""
        return self._tree.still_there(ids)

    def read(self, listed: Listed) -> Document:
        """The file's bytes as they are now, read once.

        Raises:
            BadDocument: this user may not read it; it is no longer a file, grew over the limit, or leads out of the
                root by now; it cannot be unpacked.
            TransientError: it was deleted since the listing (the next scan sees that), or the disk failed.
        """
        data, modified_s = self._tree.read(listed, self.max_bytes)
        fields = self._fields(listed.id, len(data), modified_s)
        if self.decompress:
            data = read_unpacked(data, self._tree.shown(listed.id), self.max_bytes)
        return Document.of(listed.id, fields, data)

    def _fields(self, id: str, size: int, modified_s: float | None) -> dict[str, Any]:
        name = name_of_file(id)
        say: dict[str, Callable[[], Any]] = {
            "uri": lambda: web_address(self.base_url, id) if self.base_url else self._tree.uri(id),
            "name": lambda: name,
            "size": lambda: size,
            "modified": lambda: moment(modified_s),
            "mime": lambda: mime_of(name),
        }
        return {field: say[field]() for field in self.fields}
