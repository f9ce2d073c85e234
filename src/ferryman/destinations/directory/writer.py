"""One ``write`` into a directory of files: what each id's file is called, and how it gets there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from ferryman.destinations.base import Delivery
from ferryman.destinations.directory.names import below, key, plain, unlike
from ferryman.destinations.sequences import LastDelivery
from ferryman.storage import disk, files

INDEX: Final = ".ferryman"
"""The folder in the directory that is ours: the index, and files that are being written."""

DOCUMENTS: Final = sa.Table(
    "documents",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("path_key", sa.Text, unique=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("delivery_hash", sa.Text, nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What the directory has: the last delivery of each id, a delete too. Operation "new": its name is reserved only.
Without ``path_key`` the path is one by content, which many ids may have."""

_SLICE: Final = 500
"""Values in one ``IN (…)``: below what every SQLite takes."""


class Body(NamedTuple):
    """What a delivery puts into the directory.

    Attributes:
        data: None: it is a delete.
        suffix: behind the document's name.
        by_content: it is called by its content, not by its id.
        content: that path.
    """

    data: bytes | None
    suffix: str = ""
    by_content: bool = False
    content: str = ""


class Shelf:
    """A directory and its index, inside a transaction that holds the index's write lock."""

    def __init__(self, folder: Path, connection: sa.Connection) -> None:
        self._folder = str(folder)
        self._new = folder / INDEX / "new"
        self._connection = connection

    def known(self, ids: Iterable[str]) -> dict[str, LastDelivery]:
        """The last delivery of each id."""
        d = DOCUMENTS.c
        rows = self._rows(ids, d.id, d.sequence, d.delivery_hash, d.operation)
        return {row.id: LastDelivery(row.sequence, row.delivery_hash) for row in rows if row.operation != "new"}

    def reserve(self, wanted: Mapping[str, Body]) -> dict[str, str]:
        """Give each id a name that is its alone; which ids cannot have one, with the reason."""
        d = DOCUMENTS.c
        have = {row.id: row.path for row in self._rows(wanted, d.id, d.path)}
        refused = {}
        for id, body in wanted.items():
            if id in have and (body.by_content or not self._in_the_way(have[id])):
                continue
            path = "" if body.by_content else next(self._free(id, body.suffix), None)
            if path is None:
                asked = below(self._folder, plain(id + body.suffix) or unlike(id, body.suffix))
                refused[id] = (
                    f"{asked} already existed and was not written by Ferryman. Move it away, or use another folder."
                )
                continue
            names = {"path": path, "path_key": None if body.by_content else key(path)}
            if id in have:
                self._connection.execute(sa.update(DOCUMENTS).where(d.id == id).values(names))
            else:
                row = {"id": id, **names, "sequence": -1, "delivery_hash": "", "operation": "new"}
                self._connection.execute(sa.insert(DOCUMENTS).values(row))
        return refused

    def put(self, bodies: Mapping[str, Body]) -> None:
        """Make the directory hold these: whole files under their names, durably; deleted ones are gone."""
        d = DOCUMENTS.c
        paths = {row.id: row.path for row in self._rows(bodies, d.id, d.path)}
        placed = []
        touched = set()
        for id, body in bodies.items():
            if body.data is None:
                continue
            if body.content and os.path.exists(below(self._folder, body.content)):
                touched.add(Path(below(self._folder, body.content)).parent)  # its name may not be durable yet
                continue
            temporary = self._new / uuid.uuid4().hex
            disk.write_synced(temporary, body.data)
            placed.append((temporary, Path(below(self._folder, body.content or paths[id]))))
        for temporary, path in placed:
            files.make_folder(path.parent)
            os.replace(temporary, path)
            touched.add(path.parent)
        for id, body in bodies.items():
            if body.data is None and not body.by_content and id in paths:
                touched |= self._remove(Path(below(self._folder, paths[id])))
        for folder in touched:
            with suppress(FileNotFoundError):  # the last file of it went after it was touched
                files.fsync_folder(folder)

    def note(self, deliveries: Iterable[tuple[Delivery, Body]]) -> None:
        """These are what is there now."""
        for delivery, body in deliveries:
            values = {"sequence": delivery.sequence, "delivery_hash": delivery.hash, "operation": delivery.operation}
            if body.content:
                values["path"] = body.content
            self._connection.execute(sa.update(DOCUMENTS).where(DOCUMENTS.c.id == delivery.id).values(values))

    # --- names --------------------------------------------------------------------------------------------------------

    def _free(self, id: str, suffix: str) -> Iterator[str]:
        """Names that this id could have, best first."""
        for path in (plain(id + suffix), unlike(id, suffix)):
            if path is None or self._in_the_way(path) or self._taken(id, path):
                continue
            if not os.path.lexists(below(self._folder, path)):
                yield path

    def _taken(self, id: str, path: str) -> bool:
        """Has another id this name, or a folder in it, or is it another id's folder?"""
        asked, column = key(path), DOCUMENTS.c.path_key
        names = asked.split("/")
        folders = ["/".join(names[:n]) for n in range(1, len(names) + 1)]
        below_it = (column > f"{asked}/") & (column < f"{asked}0")  # 0 follows the slash
        found = sa.select(DOCUMENTS.c.id).where(column.in_(folders) | below_it, DOCUMENTS.c.id != id)
        return self._connection.execute(found.limit(1)).first() is not None

    def _in_the_way(self, path: str) -> bool:
        """Is there a folder where the file should be, or a file where a folder should be?"""
        full = Path(below(self._folder, path))
        if full.is_dir():
            return True
        return any(parent.is_file() for parent in full.parents if len(parent.parts) > len(Path(self._folder).parts))

    def _remove(self, path: Path) -> set[Path]:
        """Remove a file, and the folders that are empty then; folders that have changed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        folder = path.parent
        with suppress(OSError):  # it is not empty
            while folder != Path(self._folder):
                with suppress(FileNotFoundError):  # a kill came after it was removed
                    folder.rmdir()
                folder = folder.parent
        return {folder}

    def _rows(self, ids: Iterable[str], *columns: sa.Column) -> Iterator[sa.Row]:  # type: ignore[type-arg]
        every: Sequence[str] = list(ids)
        for start in range(0, len(every), _SLICE):
            some = every[start : start + _SLICE]
            yield from self._connection.execute(sa.select(*columns).where(DOCUMENTS.c.id.in_(some))).all()
