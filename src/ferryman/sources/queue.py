"""Messages of a durable queue as documents."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.document import Document, content_version, encode_fields
from ferryman.errors import BadDocument, Misconfigured, QueueReplaced, Unavailable, UsageError
from ferryman.queues import Message
from ferryman.queues import Queue as DurableQueue
from ferryman.queues.message import messages_of
from ferryman.queues.place import check_name, root_of, uri_of
from ferryman.queues.queue import classified_queue_errors
from ferryman.records.provenance import Provenance, encode
from ferryman.records.rows import array_of, scalar_of
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, OnError, Piece, Positions, ReaderMove
from ferryman.sources.log_rows import ROWS

_TIME: Final = "%Y-%m-%dT%H:%M:%S+00:00"

_UNPACKED_RATIO: Final = 4
"""Approximate size of messages in memory, as a multiple of their size in a queue's files."""


class Queue(Log):
    """A durable queue (docs/how-to/use-a-queue.md): each message is a document, its fields are the message's.

    The id is ``<queue>/<index>``. A queue that does not exist yet has no messages; it is made by whoever appends first.

    Args:
        name: of the queue.
        root: the folder of queues. Relative to the plan file; in a program, to the current folder.
        types: take only messages of which ``type`` is one of these.
        topics: take only messages of which ``topics``, an object, has a true value for one of these. With ``types``: it
            is enough if either says so. What does not pass is dropped.
        ordered, on_error: see ``Log``.
        prefix: put before every id.

    Raises:
        UsageError: the name cannot be one, or types or topics are not texts.
    """

    def __init__(
        self,
        name: str,
        root: str | os.PathLike[str] = "queues",
        *,
        types: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        ordered: bool = True,
        on_error: OnError = "stop",
        prefix: str = "",
    ) -> None:
        super().__init__(prefix=prefix, ordered=ordered, on_error=on_error)
        self.name = check_name(name)
        self.root = root_of(root)
        if not isinstance(self.root, Path):
            self.ask_again_s = limits.WATCH_STORE_S
        self.types = _validate_texts("types", types)
        self.topics = _validate_texts("topics", topics)
        self.filters = self.types is not None or self.topics is not None
        self._queue: DurableQueue | None = None

    def place(self) -> str | None:
        return str(self.root / self.name)

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.root / self.name),)

    def reads(self) -> str | None:
        return uri_of(self.root / self.name)

    def check(self) -> None:
        """Raises:
        Misconfigured: something else is at its place.
        """
        self._queue = None  # it may have been deleted and created again since the last time
        with self._translated_errors():
            self._open_queue()

    def identity(self) -> str:
        with self._translated_errors():
            return self._open_queue().id or ""

    def nothing(self) -> str:
        with self._translated_errors():
            if self._open_queue().exists:
                return ""
        names = DurableQueue.all(self.root)
        return f"there is no queue {self.name} in {self.root} yet (there: {', '.join(names) or 'none'})"

    def begin(self) -> Positions:
        return {self.name: 1}

    def end(self) -> Positions:
        with self._translated_errors():
            return {self.name: self._open_queue().last_index + 1}

    def written_at(self, positions: Positions) -> float | None:
        with self._translated_errors():
            messages = self._open_queue().read(positions[self.name], 1)
        return messages[0].created.timestamp() if messages else None

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        first, last = start[self.name], end[self.name]
        with self._translated_errors():
            files = self._open_queue().files(first, last) if first < last else []
        if not files:
            return
        first = max(first, files[0][0])
        size = sum(size * (min(upto, last) - max(at, first)) // (upto - at) for at, upto, size in files)
        for at in range(first, last, limit):
            upto = min(at + limit, last)
            yield Piece(self.name, at, upto, _UNPACKED_RATIO * size * (upto - at) // (last - first))

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for table in self._read(piece):
            for message in messages_of(table):
                yield self._entry(message)

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        for table in self._read(piece):
            yield self._rows(table)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        name, _, number = listed.id.rpartition("/")
        if name != self.name or not number.isdecimal():
            raise BadDocument(f"{listed.id}: not a message of queue {self.name}")
        index = int(number)
        with self._translated_errors():
            messages = self._open_queue().read(index, 1)
        if not messages or messages[0].index != index:
            raise BadDocument(f"{listed.id}: the queue does not keep this message any more")
        return self._entry(messages[0])

    def entries_of(self, hashes: Collection[str]) -> list[str]:
        with self._translated_errors():
            return [self.full_id(f"{self.name}/{index}") for index in self._open_queue().indices_of(hashes)]

    def moved(self, reader: str) -> ReaderMove | None:
        with self._translated_errors():
            move = self._open_queue().moved(reader)
        return None if move is None else ReaderMove({self.name: move[0]}, move[1])

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        with self._translated_errors():
            queue = self._open_queue()
            if queue.exists:
                queue.register(reader, positions[self.name], moved)

    def forget(self, reader: str) -> None:
        with self._translated_errors():
            self._open_queue().forget(reader)

    def _read(self, piece: Piece) -> Iterator[pa.Table]:
        """Yield all messages of a piece, in order.

        Raises:
            Unavailable: a message is missing: it was trimmed meanwhile, or this machine sees another folder.
        """
        next_index, end = piece.start, piece.end
        with self._translated_errors():
            if not self._has_identity(piece.identity):
                self._queue = None  # it was opened before the queue was created again
            if not self._has_identity(piece.identity):
                raise Unavailable(f"queue {self.root / self.name} is another one on {socket.gethostname()}")
            for table in self._open_queue().read_rows(next_index, end):
                if table["index"][0].as_py() != next_index:
                    break
                next_index += table.num_rows
                yield table
        if next_index < end:
            raise Unavailable(
                f"message {next_index} of queue {self.root / self.name} is not there on {socket.gethostname()}. Every "
                "machine must see the same folder"
            )

    def _has_identity(self, identity: str) -> bool:
        return not identity or self._open_queue().id == identity

    def _rows(self, table: pa.Table) -> pa.Table:
        """Convert messages to the columns of ``ROWS``, without decoding them: a message is JSON already."""
        n = table.num_rows
        texts = table["message"].combine_chunks()
        fields = texts.cast(pa.binary())
        refused: pa.Array = pa.nulls(n, pa.string())
        if pc.any(escaped := pc.match_substring(texts, "\\ud")).as_py():
            fields, refused = _recode(texts, escaped)
        bodies = fields.to_pylist()
        stem = self.full_id(f"{self.name}/0")[:-1]
        index = table["index"].combine_chunks()
        return pa.table(
            [
                index,
                pc.binary_join_element_wise(_text(stem), index.cast(pa.string()), _text("")),
                fields,
                pa.nulls(n, pa.binary()),
                array_of([content_version(b"" if body is None else body, None) for body in bodies], pa.string()),
                refused,
                self._drop_reasons(texts),
                self._provenances(table),
            ],
            schema=ROWS,
        )

    def _drop_reasons(self, texts: pa.Array) -> pa.Array:
        if not self.filters:
            return pa.nulls(len(texts), pa.string())
        return pa.array([self._drop_reason(json.loads(text)) for text in texts.to_pylist()], pa.string())

    def _provenances(self, table: pa.Table) -> pa.Array:
        index = table["index"].combine_chunks().cast(pa.string())
        created = table["created"].combine_chunks().dictionary_encode()  # messages of one append have one time
        times = pc.strftime(created.dictionary, _TIME).take(created.indices)
        if table["meta"].null_count == table.num_rows:
            head = _text(f'{{"queues":{{"{self.name}":{{"index":')
            return pc.binary_join_element_wise(
                head, index, _text(',"time":"'), times, _text('"}},"tx":'), index, _text("}"), _text("")
            )
        columns = (table["index"].to_pylist(), times.to_pylist(), table["meta"].to_pylist())
        return array_of([self._provenance(*row) for row in zip(*columns, strict=True)], pa.string())

    def _entry(self, message: Message) -> Entry:
        meta = json.dumps(message.meta) if message.meta else None
        time = pc.strftime(pa.array([message.created], pa.timestamp("us", tz="UTC")), _TIME)[0].as_py()
        return Entry(
            message.index,
            Document.of(f"{self.name}/{message.index}", message.body),
            self._drop_reason(message.body) or "",
            self._provenance(message.index, time, meta),
        )

    def _provenance(self, index: int, time: str, meta: str | None) -> str:
        """Return ``{"queues": {name: {"index", "time"}}, "tx": index on the first queue}`` as JSON."""
        earlier = Provenance.of(meta)
        queues = {**earlier.queues, self.name: {"index": index, "time": time}}
        return encode(Provenance(queues, index if earlier.tx is None else earlier.tx))

    def _drop_reason(self, body: dict[str, Any]) -> str | None:
        """Return why the filter drops a message; None if it passes."""
        if not self.filters:
            return None
        kind, topics = body.get("type"), body.get("topics")
        if self.types is not None and isinstance(kind, str) and kind in self.types:
            return None
        if self.topics is not None and isinstance(topics, dict) and any(topics.get(name) for name in self.topics):
            return None
        wanted = [f"{name} {', '.join(of)}" for name, of in (("type", self.types), ("topics", self.topics)) if of]
        return f"not {' or '.join(wanted)}: queue {self.name} is read with a filter"

    def _open_queue(self) -> DurableQueue:
        if self._queue is None:
            self._queue = DurableQueue(self.name, self.root)
        return self._queue

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of the queue to ``Unavailable`` or ``Misconfigured``."""
        try:
            with classified_queue_errors(self.root / self.name):
                yield
        except Misconfigured as e:
            self._queue = None
            if isinstance(e.__cause__, QueueReplaced):
                raise Unavailable(str(e)) from e  # the next attempt opens the queue that is there now
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_queue": None}


def _text(value: str) -> pa.Scalar:
    return scalar_of(value, pa.string())


def _validate_texts(option: str, value: Iterable[str] | None) -> frozenset[str] | None:
    if value is None:
        return None
    texts = None if isinstance(value, str | bytes) else list(value)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{option}={value!r}: give a list of texts, as in {option}=['command'].")
    return frozenset(texts)


def _recode(texts: pa.Array, escaped: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (fields, refusals) of messages, some of which have escapes of surrogates: a lone one is refused."""
    fields: list[bytes | None] = []
    refused: list[str | None] = []
    for text, has_escape in zip(texts.to_pylist(), escaped.to_pylist(), strict=True):
        try:
            fields.append(encode_fields(json.loads(text)) if has_escape else text.encode())
            refused.append(None)
        except BadDocument as e:
            fields.append(None)
            refused.append(str(e))
    return pa.array(fields, pa.binary()), pa.array(refused, pa.string())
