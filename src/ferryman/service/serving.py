"""How a queue is served: the settings, and the stages that they make, in this process or in a child of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferryman.intake import Queue
from ferryman.reach import NOTHING_PRIVATE, Reach
from ferryman.service.callback import Callback
from ferryman.service.fetch import LOWEST_RATE, Fetcher
from ferryman.service.stages import (
    Downloading,
    Estimating,
    JobStage,
    Notify,
    Pending,
    Provisioning,
    Recording,
    Storing,
)
from ferryman.service.workspace import FULL, Workspace

THREADS: Final = 4
"""A state: a job of most of them waits for a disk or a server, not for this machine."""


@dataclass(frozen=True)
class Serving:
    """How a queue is served.

    Attributes:
        work: the working space; every process that serves this queue, and every Spark worker, sees it at this path.
        threads: a state.
        keep_originals: files that were delivered stay in the working space, for access requests.
        full: share of the disk above which no job is provisioned.
        once: end when nothing is left to do.
        reach: what submitters, and the documents' own URLs, may lead to.
        report_secret: signs reports, as webhooks are signed; None: they are not signed.
        lowest_rate: bytes a second that a submitter's server must send at.
    """

    work: Path
    threads: int = THREADS
    keep_originals: bool = True
    full: float = FULL
    once: bool = False
    reach: Reach = NOTHING_PRIVATE
    report_secret: str | None = None
    lowest_rate: float = LOWEST_RATE

    def fetcher(self, stop: threading.Event) -> Fetcher:
        """What gets submitters' files."""
        return Fetcher(stop, reach=self.reach, lowest_rate=self.lowest_rate)

    def callback(self, stop: threading.Event) -> Callback:
        """What notifies submitters."""
        return Callback(stop, reach=self.reach, secret=self.report_secret)

    def stages(
        self,
        queue: Queue,
        work: Workspace,
        fetcher: Fetcher,
        callback: Callback,
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> list[JobStage]:
        """The work of each state but Processing, in their order."""
        return [
            Pending(work, fetcher),
            Estimating(work, fetcher),
            Provisioning(queue, work, say, self.full),
            Downloading(work, fetcher, stop),
            Storing(queue, work, self.keep_originals),
            Recording(queue),
            Notify(work, callback),
        ]
