"""Errors of a queue in the words that a source or a destination answers with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ferryman.errors import EngineError, Misconfigured, StateFolderError, Unavailable, UsageError, describe
from ferryman.storage.files import StatePath
from ferryman.storage.folder import explained


@contextmanager
def explained_queue(folder: StatePath) -> Iterator[None]:
    """What goes wrong inside is about the whole queue.

    Raises:
        Misconfigured: it was deleted, is damaged, or cannot be read or written.
        Unavailable: no room, no memory, or a disk in trouble.
    """
    try:
        with explained(folder):
            yield
    except (StateFolderError, UsageError) as e:
        raise Misconfigured(str(e)) from e
    except (EngineError, MemoryError, pa.ArrowException) as e:
        # Not one message's fault: those behind it wait, and keep their order.
        raise Unavailable(str(e) or describe(e)) from e
