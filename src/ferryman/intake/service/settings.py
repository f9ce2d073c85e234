"""Settings of ``serve``, and the stages made from them, in this process or in a child process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferryman.intake import JobQueue
from ferryman.intake.service.fetch import LOWEST_RATE, Fetcher
from ferryman.intake.service.hosts import PROMPT_S, SlowHosts
from ferryman.intake.service.reports import BatchReports, Callback, Mail
from ferryman.intake.service.stages import (
    Downloading,
    Estimating,
    JobStage,
    Notify,
    Pending,
    Provisioning,
    Recording,
    Storing,
)
from ferryman.intake.service.workspace import FULL_SHARE, Workspace
from ferryman.net.allowed_addresses import NOTHING_PRIVATE, Reach

THREADS: Final = 4
"""Threads per state. In most states a job waits for a disk or a server rather than for the processor."""


JOB_TIME_S: Final = 6 * 3600.0
"""Seconds in which all files of a job must be fetched: enough for 20 GB at a megabyte per second."""


@dataclass(frozen=True)
class Serving:
    """Settings of ``serve``.

    Attributes:
        work: the working space; every process that serves this queue, and every Spark worker, sees it at this path.
        threads: number of threads per state.
        keep_originals: keep delivered files in the working space, for access requests.
        full: share of used disk space above which no job is provisioned.
        once: end when nothing is left to do.
        reach: addresses and files that URLs from submitters and in documents may lead to.
        report_secret: secret for signing reports, as for webhooks; None: they are not signed.
        smtp: URL of a mail server, by which submitters that are e-mail addresses receive reports; None: they receive
            none.
        lowest_rate: minimum transfer rate of a submitter's server, in bytes per second.
        job_time_s: maximum time for fetching all files of a job, or a manifest, in seconds; 0: no limit.
        prompt_s: seconds after which a host that keeps a job waiting counts as slow.
    """

    work: Path
    threads: int = THREADS
    keep_originals: bool = True
    full: float = FULL_SHARE
    once: bool = False
    reach: Reach = NOTHING_PRIVATE
    report_secret: str | None = None
    lowest_rate: float = LOWEST_RATE
    job_time_s: float = JOB_TIME_S
    prompt_s: float = PROMPT_S
    smtp: str | None = None

    def fetcher(self, stop: threading.Event, slow: SlowHosts | None = None) -> Fetcher:
        """Return a fetcher of submitters' files; with ``slow``, it does not wait for slow hosts."""
        return Fetcher(stop, reach=self.reach, lowest_rate=self.lowest_rate, slow=slow)

    def callback(self, stop: threading.Event, slow: SlowHosts | None = None) -> Callback:
        """Return a callback to submitters; with ``slow``, it does not wait for slow receivers."""
        return Callback(stop, reach=self.reach, secret=self.report_secret, slow=slow)

    def reports(self, stop: threading.Event) -> BatchReports:
        """Return the sender of batch reports."""
        return BatchReports(self.callback(stop), Mail(self.smtp, stop) if self.smtp else None)

    def stages(
        self,
        queue: JobQueue,
        work: Workspace,
        fetcher: Fetcher,
        callback: Callback,
        stop: threading.Event,
        print_line: Callable[[str], None],
    ) -> list[JobStage]:
        """Return the stages of all states except Processing, in order."""
        return [
            Pending(work, fetcher, callback, self.job_time_s),
            Estimating(work, fetcher),
            Provisioning(queue, work, print_line, self.full),
            Downloading(work, fetcher, stop, time_s=self.job_time_s, full=self.full),
            Storing(queue, work, self.keep_originals),
            Recording(queue),
            Notify(work, callback),
        ]
