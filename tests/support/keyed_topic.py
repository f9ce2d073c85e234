"""A topic of which each message is a version of the document of its key, in a folder, as ``Kafka(keyed=True)`` has
them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.document import Document, content_version
from ferryman.errors import BadDocument
from ferryman.sources import Entry, Listed, Piece
from tests.support.logs import Topic


class KeyedTopic(Topic):
    """A value of None is a tombstone."""

    repeats_ids = many_versions = True

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        for table in super().rows(piece):
            places = table["place"]
            deletes = {at for at, _, value in self._records(piece.partition) if value is None}
            flags = pa.array([at in deletes for at in places.to_pylist()], pa.bool_())
            for name, value in (("fields", None), ("version", content_version(b"", None))):
                at = table.column_names.index(name)
                kept = pc.if_else(flags, pa.scalar(value, table[name].type), table[name])
                table = table.set_column(at, table.schema.field(name), kept)
            yield table.append_column("revision", pc.add(places, 1)).append_column("deletes", flags)

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for offset, key, value in self._records(piece.partition):
            if piece.start <= offset < piece.end:
                yield self._entry_of(offset, key, value)

    def entry(self, listed: Listed) -> Entry:
        found = [each for name in self.partition_names() for each in self._records(name) if each[1] == listed.id]
        if not found:
            raise BadDocument(f"{listed.id}: the topic keeps no message of this key any more")
        return self._entry_of(*found[-1])

    def _entry_of(self, offset: int, key: str, value: Any) -> Entry:
        if value is None:
            return Entry(offset, Document.deletion(key))
        if not isinstance(value, dict):
            return Entry(offset, Document(key), refused=f"{value!r} is not an object")
        return Entry(offset, Document(key, **value))

    # -- the outside world -------------------------------------------------------------------------

    def write(self, *messages: tuple[str, Any], partition: str = "p0") -> None:
        """Append messages, each (key, value)."""
        begin, end = self._bounds(partition)
        with (self.folder / f"{partition}.records").open("a") as file:
            file.writelines(json.dumps([at, key, value]) + "\n" for at, (key, value) in enumerate(messages, end))
        self._put_bounds(partition, begin, end + len(messages))


def make_topic(folder: Path, **options: Any) -> KeyedTopic:
    return KeyedTopic(folder / "topic", **options)
