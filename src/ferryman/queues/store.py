"""One queue's folder as a process has it open: its table, its keys, its locks; and whether it is still that queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ferryman.errors import QueueDamaged, QueueReplaced, StateDamaged
from ferryman.queues.keys import RememberedKeys
from ferryman.queues.place import Identity, home_of, identity_of, stamp_of
from ferryman.queues.positions import Positions
from ferryman.queues.table import MessageTable
from ferryman.storage.files import StatePath


class QueueStore:
    """An open queue. One thread at a time uses it: whoever changes what it knows holds ``guard``."""

    def __init__(self, folder: StatePath, identity: Identity) -> None:
        self.folder = folder
        self.identity = identity
        self.home = home = home_of(folder, identity.id)
        self.table = MessageTable(home / "messages")
        self.keys = RememberedKeys(home / "keys")
        self.trimmed = RememberedKeys(home / "trimmed")
        self.positions = Positions(home / "tailers", identity.id)
        self.appending = home / "appending"
        self.merging = home / "merging"
        self.guard = threading.RLock()

    def check(self) -> None:
        """Is it still the queue that was opened?

        Raises:
            QueueReplaced: it was deleted, and perhaps made again.
        """
        try:
            if stamp_of(self.folder) == self.identity.stamp:
                return
        except (FileNotFoundError, NotADirectoryError):
            raise QueueReplaced(str(self.folder), self.identity.id, None) from None
        now = identity_of(self.folder)
        if now is None or now.id != self.identity.id:
            raise QueueReplaced(str(self.folder), self.identity.id, now.id if now else None)
        self.identity = now  # a copy of it, put in its place

    def move_on(self) -> bool:
        """See the newest version; was there one?

        Raises:
            QueueReplaced: it is not the queue any more that was opened.
            QueueDamaged: a file of the log is missing, or not what was written.
        """
        with self.guard, self.damage_told():
            self.check()
            return self.table.move_on()

    def find(self, name: str) -> range | None:
        """The indices that were given to an append with a key, as of the version that was moved on to.

        Args:
            name: what stands for the key.
        """
        for file in reversed(self.table.files):
            if file.key == name:
                return range(file.first, file.end)
        return self.keys.find(name)

    @contextlib.contextmanager
    def damage_told(self) -> Iterator[None]:
        """What is damaged is told in the words of queues; what vanished with its queue is not damage.

        Raises:
            QueueDamaged, QueueReplaced
        """
        try:
            yield
        except QueueDamaged:
            raise
        except StateDamaged as e:
            self.check()
            raise QueueDamaged(e.path, e.what) from e
        except FileNotFoundError as e:
            self.check()
            raise QueueDamaged(str(e.filename), "the file is missing") from e
