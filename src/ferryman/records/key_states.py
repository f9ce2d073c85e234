"""The committed states of a keyed node, for who looks up single keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ferryman.errors import StateDamaged, UsageError
from ferryman.records.key_values import KeyRow, KeyValues, key_file
from ferryman.records.keyed import bucket_of
from ferryman.storage.files import StatePath
from ferryman.storage.folder import told_calls
from ferryman.storage.handles import newest_to_read
from ferryman.storage.lock import Readers
from ferryman.storage.mirror import log_folder


class KeyState(NamedTuple):
    """The state of a key.

    Attributes:
        sequence: of the last document that changed it.
        wave: that committed it.
    """

    key: str
    value: Any
    sequence: int
    wave: int


@told_calls(lambda states: states._folder)
class KeyStates:
    """The states of one keyed node, as of the last settled wave. A run may go on beside whoever asks.

    Args:
        root: of the state.
        node: its name.
    """

    def __init__(self, root: StatePath, node: str) -> None:
        self._folder = root / "state" / node
        self._readers = Readers(root / "readers")

    def get(self, key: str) -> Any:
        """The state of a key, a JSON value; None: it has none.

        Raises:
            UsageError: the key is not text.
            StateDamaged: a file is missing, or not what was written.
        """
        found = self.entry(key)
        return None if found is None else found.value

    def entry(self, key: str) -> KeyState | None:
        """The same with its sequence and wave; None: it has none."""
        if not isinstance(key, str):
            raise UsageError(f"{key!r}: a key is text.")
        with self._readers.reading():
            try:
                row = self._row(key)
            except StateDamaged:  # a driver may have replaced files since they were listed
                row = self._row(key)
        if row is None or row.value is None:
            return None
        return KeyState(key, msgspec.json.decode(row.value), row.sequence, row.wave)

    def _row(self, key: str) -> KeyRow | None:
        bucket = bucket_of(key)
        if (place := log_folder(self._folder)) is None:
            return None  # the plan has not run yet
        files = newest_to_read(place).files().values()
        found = KeyValues(key_file(self._folder, file) for file in files)
        try:
            return found.of(pa.array([key]), bucket, bucket).get(key)
        finally:
            found.close()
