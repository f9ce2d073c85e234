"""How much of the working space one job may take: nobody knows how large it is before it is there."""

from __future__ import annotations

import threading

from ferryman.errors import PermanentError
from ferryman.service.workspace import Workspace


class NoRoom(PermanentError):
    """A job is larger than was known, and the disk is too full for it."""


class Room:
    """Of a job that is being downloaded.

    Its servers said how large it is, or did not, or lied; a container unpacks to what it likes. Up to what Provisioning
    has granted it writes in any case, beyond that as long as the disk is not fuller than Provisioning allows. So no job
    can take the room of all others.

    Args:
        full: share of the disk above which no job is provisioned.
        granted: bytes.
    """

    def __init__(self, work: Workspace, full: float, granted: int) -> None:
        self._work, self._full, self._granted = work, full, granted
        self._written = 0
        self._counting = threading.Lock()

    def take(self, size: int) -> None:
        """So many bytes are about to be written.

        Raises:
            NoRoom.
        """
        with self._counting:
            self._written += size
            if self._written <= self._granted:
                return
        total, used = self._work.space()
        if used > total * self._full:
            raise NoRoom(
                f"it has more than the {self._granted} bytes that were known of, and {self._work.root} is more than "
                f"{self._full:.0%} full. Make room and requeue it, or serve the queue with --work on a larger disk."
            )
