"""Documents as messages of a durable queue."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from ferryman import limits
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Outcome,
    Stored,
    writer_name,
)
from ferryman.errors import BadDocument, Misconfigured, Unavailable, plain_text
from ferryman.queues import Queue as DurableQueue
from ferryman.queues.append import SEQUENCE, WRITER
from ferryman.queues.message import CONTENT, text_of
from ferryman.queues.place import check_name, root_of, uri_of
from ferryman.queues.queue import classified_queue_errors
from ferryman.queues.upkeep import seconds_of
from ferryman.records.rows import array_of


class Queue(Destination):
    """A durable queue (docs/how-to/use-a-queue.md): each delivery is one message, once, in the order of the deliveries.

    The message is the document's fields. ``meta`` says which document it was: ``id``, ``source``, ``sequence``, and
    ``writer`` (plan, node, state); of a child also ``parent_id`` and ``origin_id``; of what came from queues ``queues``
    (queue -> ``index``, ``time``) and ``tx``, the index on the first of them. A delete is an empty message whose
    ``meta`` has ``"operation": "delete"``.

    A chunk is one atomic append. After a kill it may come again: messages of the same hash and sequence are not
    appended twice. Several plans and programs may append to the same queue; each state of a plan delivers for itself.
    """

    effect = Effect.POTENT
    transactional = True
    single_writer = True
    in_order = True
    holds_keys = True
    preferred_batch: ClassVar[int | None] = 5000
    """A commit costs three syncs, however many messages it has."""

    facts: ClassVar[Facts] = Facts(
        stored="a message a delivery, deletes too, with hash and sequence",
        limits=("256 MiB a message",),
        outcomes=(
            ("fields that are not JSON, or nested more than 100 deep", "permanent"),
            ("no room, a disk in trouble", "transient, about all"),
            ("no right to write, a damaged queue", "permanent, about all"),
        ),
    )

    def __init__(
        self,
        name: str,
        root: str | os.PathLike[str] = "queues",
        *,
        keep: str | float | None = None,
        text: str | None = "text",
    ) -> None:
        """The queue is made by the first run. A relative ``root`` is relative to the plan file's folder; in a program,
        to the current folder.

        Args:
            keep: messages older than this (``"10d"``) that all registered readers have read are removed.
            text: field for the raw bytes, decoded, of documents that have no field of this name; None: they are left
                out.

        Raises:
            UsageError: the name cannot be one, or ``keep`` is not a time.
        """
        if keep is not None:
            seconds_of(keep)
        self.name = check_name(name)
        self.root = root_of(root)
        self.keep = keep
        self.text = text
        self._queue: DurableQueue | None = None
        self._writer = ""
        self._settled = 0

    def target(self) -> str:
        return uri_of(self.root / self.name)

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.root),)

    def check(self) -> None:
        """Make the queue, if there is none.

        Raises:
            Misconfigured: something else is at its place, it is damaged, or cannot be written.
        """
        with self._translated_errors():
            self._open_queue().make()

    def identity(self) -> str | None:
        """Return the queue's id."""
        with self._translated_errors():
            return self._open_queue().id or ""

    def highest_of(self, context: DestinationContext) -> int | None:
        with self._translated_errors():
            if not self._open_queue().exists:  # not made yet, or away
                raise Unavailable(f"{self.root / self.name}: there is no queue")
            return self._open_queue().highest_of(writer_name(context))

    def adopt(self, context: DestinationContext, known: int, unknown: Callable[[], Collection[str]]) -> None:
        with self._translated_errors():
            self._open_queue().adopt_writer(writer_name(context), known)

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the messages of plans that were not trimmed, see ``Destination.inventory``. Their content is intact:
        whoever reads a queue verifies its files.

        Raises:
            Misconfigured: the queue is damaged, or cannot be read.
        """
        queue, wanted = self._open_queue(), None if ids is None else set(ids)
        with self._translated_errors():
            for rows in queue.read_rows(queue.first_index, queue.last_index + 1):
                for digest, text in zip(rows["hash"].to_pylist(), rows["meta"].to_pylist(), strict=True):
                    meta = json.loads(text) if text else {}  # an id may have half a character
                    if digest and WRITER in meta and (wanted is None or meta["id"] in wanted):
                        yield Stored(meta["id"], digest, True)

    def forgets(self, context: DestinationContext) -> bool:
        """Return whether messages were trimmed."""
        with self._translated_errors():
            return self._open_queue().first_index > 1

    def open(self, context: DestinationContext) -> None:
        self._writer = writer_name(context)
        self._settled = context.settled
        self._queue = None  # a worker keeps its plan for many runs, and the queue may have been made again since
        with self._translated_errors():
            self._open_queue()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Append the chunk, in the order of the sequences, in one commit.

        Raises:
            Unavailable: no room, or a disk in trouble; nothing was appended, or all of it.
            Misconfigured: the queue was deleted, is damaged, or cannot be written.
        """
        outcomes = [Outcome.ok()] * len(chunk)
        rows: dict[tuple[int, str], tuple[str, str, str, int]] = {}
        refused: set[tuple[str, int]] = set()
        for position, delivery in enumerate(chunk):
            if (export_key := (delivery.source, delivery.key_hash or 0)) in refused and delivery.key_hash is not None:
                outcomes[position] = Outcome.held()
                continue
            try:
                rows[delivery.sequence, delivery.hash] = self._row(delivery)
            except (TypeError, ValueError, BadDocument) as e:
                outcomes[position] = Outcome.permanent(f"the message: {plain_text(e)}")
                refused.add(export_key)
        if rows:
            schema = CONTENT.append(pa.field(SEQUENCE, pa.int64()))
            columns = zip(*(rows[key] for key in sorted(rows)), strict=True)
            with self._translated_errors():
                self._open_queue().append_new(
                    pa.table([*map(array_of, columns, schema.types)], schema), self._writer, self._settled
                )
        return outcomes

    def _row(self, delivery: Delivery) -> tuple[str, str, str, int]:
        """Return (message, meta, hash, sequence) of a delivery."""
        return self._message(delivery), self._meta(delivery), delivery.hash, delivery.sequence

    def _message(self, delivery: Delivery) -> str:
        """Return the message as JSON. The stored fields are used as they are, and checked only if they may be too
        large or nested too deep for a message."""
        if delivery.operation == "delete":
            return "{}"
        if self.text is not None and delivery.raw is not None:
            body = dict(delivery.fields)
            body.setdefault(self.text, delivery.text())
            return text_of(body)
        fields = delivery._fields_json
        flat = fields.count(b"{") + fields.count(b"[") <= limits.QUEUE_NESTED
        return fields.decode() if flat and len(fields) <= limits.QUEUE_MESSAGE_BYTES else text_of(delivery.fields)

    def _meta(self, delivery: Delivery) -> str:
        meta: dict[str, Any] = {"id": delivery.id, "source": delivery.source}
        if delivery.operation == "delete":
            meta["operation"] = "delete"
        if delivery.parent_id is not None:
            meta |= {"parent_id": delivery.parent_id, "origin_id": delivery.origin_id}
        meta |= {SEQUENCE: delivery.sequence, WRITER: self._writer}
        try:
            text = msgspec.json.encode(meta).decode()
        except UnicodeEncodeError:  # half a character in an id
            text = text_of(meta)
        return f"{text[:-1]},{delivery.came_from[1:]}" if delivery.came_from else text

    def _open_queue(self) -> DurableQueue:
        if self._queue is None:
            self._queue = DurableQueue(self.name, self.root, keep=self.keep)
        return self._queue

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of the queue to ``Unavailable`` or ``Misconfigured``."""
        try:
            with classified_queue_errors(self.root / self.name):
                yield
        except Misconfigured:
            self._queue = None
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_queue": None}
