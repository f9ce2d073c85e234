"""Tailers: readers of a queue that remember their position."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.queues.message import Message, messages_of
from ferryman.queues.store import QueueStore, read_between
from ferryman.storage.files import explain_errors_of_class


@explain_errors_of_class(lambda tailer: tailer._store.folder)
class Tailer:
    """Reads messages one after another; created by ``Queue.tailer``.

    With a name, its position is stored in the queue: it survives the process and is shared by all tailers of that name,
    so that each message goes to only one of them. Without a name it starts at 1 each time.

    The position is between two messages. Reading forward, which is the default, returns the message after it; reading
    backward the one before it. Each tailer has its own direction.
    """

    def __init__(self, store: QueueStore, name: str | None) -> None:
        self.name = name
        self._store = store
        self._forward = True
        self._place = 1
        self._ahead: dict[int, Message] = {}
        if name is not None:
            with store.queue_errors(), store.positions.hold(name):
                if store.positions.position_of(name) is None:
                    store.positions.record(name, 1)

    @property
    def position(self) -> int:
        """Return the index of the next message, which may not exist yet; 0 when reading backward at the beginning.

        Raises:
            QueueReplaced: the queue was deleted.
            UsageError: the reader was forgotten.
        """
        self._store.refresh()
        return self._next_index(self._recorded_place())

    def read(self, wait_s: float = 0) -> Message | None:
        """Return the next message; None if there is none even after ``wait_s`` seconds. The new position is durable
        when this returns."""
        found = self.read_many(1, wait_s)
        return found[0] if found else None

    def read_many(self, n: int, wait_s: float = 0) -> list[Message]:
        """Return the next messages, at most ``n``; the new position is recorded once for all of them."""
        until = time.monotonic() + wait_s
        pause = limits.QUEUE_POLL_S
        most = limits.QUEUE_POLL_MAX_S if isinstance(self._store.folder, Path) else limits.QUEUE_POLL_STORE_S
        while True:
            with self._hold_reader():
                found = self._next_messages(self._recorded_place(), n)
                if found and not self._record_place(self._place_after(found[-1])):
                    continue
                if found:
                    return found
            left = until - time.monotonic()
            if left <= 0 or n < 1:
                return []
            time.sleep(min(pause, left))
            pause = min(pause * 2, most)

    def peek(self) -> Message | None:
        """Return the next message without moving."""
        found = self._next_messages(self._recorded_place(), 1)
        return found[0] if found else None

    def to_start(self) -> Self:
        """Move before the first message that is kept."""
        return self._move(lambda first, _: first)

    def to_end(self) -> Self:
        """Move after the last message."""
        return self._move(lambda _, last: last + 1)

    def to(self, index: int) -> Self:
        """Move so that the message with this index comes next.

        Raises:
            UsageError: there is no such message; says which indices exist.
        """

        def checked_place(first: int, last: int) -> int:
            highest = last + 1 if self._forward else last
            if not first <= index <= max(highest, first):
                kept = f"{first} to {last} are kept" if first <= last else "no message is kept"
                raise UsageError(f"{self._store.folder}: there is no message {index}; {kept}. Nothing was moved.")
            return index if self._forward else index + 1

        return self._move(checked_place)

    def forward(self) -> Self:
        """Read forward from now on: the message after the position comes next."""
        self._forward = True
        return self

    def backward(self) -> Self:
        """Read backward from now on: the message before the position comes next."""
        self._forward = False
        return self

    def _next_messages(self, place: int, n: int) -> list[Message]:
        """Return at most ``n`` messages from a position on, in the current direction."""
        if self._store.table.last < place + n - 1:
            self._store.refresh()
        else:
            self._store.check_identity()
        found: list[Message] = []
        while len(found) < n and (index := self._next_index(place)) > 0:
            message = self._message_at(index)
            if message is not None:
                found.append(message)
                place = self._place_after(message)
            elif self._next_index(place) == index:  # or trimmed meanwhile: the first kept message comes next
                break
        return found

    def _place_after(self, message: Message) -> int:
        """Return the position after this message was read."""
        return message.index + 1 if self._forward else message.index

    def _message_at(self, index: int) -> Message | None:
        """Return the message with an index, or the next kept one if it was trimmed; None if there is none."""
        if index not in self._ahead:
            forward, back = limits.QUEUE_AHEAD_ROWS, limits.QUEUE_BACK_ROWS
            start, end = (index, index + forward) if self._forward else (max(index + 1 - back, 1), index + 1)
            self._ahead = {m.index: m for m in self._read_ahead(start, end)}
        if index in self._ahead or not self._forward:
            return self._ahead.get(index)
        later = min(self._ahead, default=None)
        return None if later is None else self._ahead[later]

    def _read_ahead(self, start: int, end: int) -> Iterator[Message]:
        end = min(end, self._store.table.last + 1)
        size = 0
        for part in read_between(self._store, start, end):
            yield from messages_of(part)
            size += part.nbytes
            if self._forward and size > limits.QUEUE_AHEAD_BYTES:
                return

    def _next_index(self, place: int) -> int:
        table = self._store.table
        return max(place, table.first) if self._forward else min(place, table.last + 1) - 1

    def _recorded_place(self) -> int:
        if self.name is None:
            return self._place
        with self._store.queue_errors():
            place = self._store.positions.position_of(self.name)
        if place is None:
            self._store.check_identity()
            raise UsageError(f"{self._store.folder}: the reader {self.name} was forgotten. Take its tailer again.")
        return place

    def _move(self, place: Callable[[int, int], int]) -> Self:
        """Move to the position that ``place`` returns for the first and last index; nothing is trimmed until it is
        recorded."""
        with self._hold_reader():
            noted = False
            while not noted:
                self._recorded_place()
                self._store.refresh()
                noted = self._record_place(
                    place(self._store.table.first, self._store.table.last), moved=uuid.uuid4().hex
                )
        return self

    def _record_place(self, place: int, moved: str = "") -> bool:
        """Record the place, see ``Positions.record``."""
        if self.name is None:
            self._place = place
            return True
        return self._store.positions.record(self.name, place, moved)

    @contextlib.contextmanager
    def _hold_reader(self) -> Iterator[None]:
        """Keep other tailers of this name from moving during the block."""
        if self.name is None:
            yield
            return
        with self._store.queue_errors(), self._store.positions.hold(self.name):
            yield
