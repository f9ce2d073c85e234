"""``ferryman intake serve``: consumers for every state, and a plan for the documents."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman.cli import terminal
from ferryman.cli.intake.options import QueueUrl, opened
from ferryman.cli.options import (
    Conf,
    Has,
    LogFile,
    LogFormat,
    LogFormatOption,
    Master,
    PlanSpec,
    Preflight,
    StateDir,
    Verbose,
    resource_settings,
    seconds,
    spark_settings,
)
from ferryman.cli.terminal import CODE, SIGNALS
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.engine.runner.base import Runner
    from ferryman.state.state import State

ONE_S: Final = 1.0
"""Signals so close are one: `timeout` and some shells signal a process, and then its group."""


def serve(
    plan: PlanSpec,
    queue: QueueUrl = None,
    state: StateDir = None,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="DIR",
            show_default=False,
            help="Working directory for the files of jobs. Every process that serves this queue, and every "
            "worker of Spark, has to see it at this path. Default: work/ in the state's directory.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads per state.")] = 4,
    drop_originals: Annotated[
        bool,
        typer.Option("--drop-originals", help="Do not keep delivered files; access requests cannot be served then."),
    ] = False,
    full: Annotated[
        int,
        typer.Option(
            "--full", metavar="PERCENT", min=1, max=100, help="Disk usage above which jobs wait in Provisioning."
        ),
    ] = 80,
    allow_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--allow-files",
            metavar="DIR",
            show_default=False,
            help="Submitters may name files (file: URLs) below this directory. Default: no files. Repeatable.",
        ),
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--hosts",
            metavar="PATTERN",
            show_default=False,
            help="Submitters may name this host although its address is not public: a name with *, an address, or a "
            "network as 10.0.0.0/8; with :PORT, only there. Repeatable.",
        ),
    ] = None,
    report_secret: Annotated[
        str | None,
        typer.Option(
            "--report-secret",
            metavar="SECRET",
            show_default=False,
            help="Sign reports as webhooks are signed. ${NAME} is filled in from the environment.",
        ),
    ] = None,
    smtp: Annotated[
        str | None,
        typer.Option(
            "--smtp",
            metavar="URL",
            show_default=False,
            help="Mail server: a submitter that is an e-mail address gets the report of each batch. "
            "smtp://USER:PASSWORD@HOST:PORT?from=ADDRESS, or smtps://…; ${NAME} is filled in from the environment.",
        ),
    ] = None,
    lowest_rate: Annotated[
        int,
        typer.Option(
            "--lowest-rate", metavar="BYTES", min=0, help="Bytes a second below which a server's answer is broken off."
        ),
    ] = 1024,
    job_time: Annotated[
        str,
        typer.Option(
            "--job-time",
            metavar="TIME",
            help="Fail a job whose files are not fetched in this time: 30m, 6h; 0: any.",
        ),
    ] = "6h",
    once: Annotated[bool, typer.Option("--once", help="Exit when nothing is left to do.")] = False,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Continue under this version although the plan's structure changed."),
    ] = False,
    master: Master = "local[*]",
    conf: Conf = None,
    has: Has = None,
    preflight: Preflight = True,
    log_file: LogFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Verbose = False,
) -> None:
    """Serve the queue: carry batches from Pending to their reports, through a plan.

    The plan has a source of jobs: plan.source("jobs", Jobs()). Ctrl-C or SIGTERM ends it gracefully: each consumer
    finishes its step, or gives its job back as it is; a second one ends it at once. Killed at any moment, type the same
    again: the work is found where it was. Further processes that serve the same queue share all work but the plan's,
    and take that over when the first one ends.
    """
    from ferryman.intake.service import Serving
    from ferryman.intake.service import serve as serving
    from ferryman.intake.service.processing import jobs_sources
    from ferryman.intake.service.reports import parse_mail_server
    from ferryman.net.reach import Reach
    from ferryman.observe import logging_to, progress_observer
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    settings = {**resource_settings(has), **spark_settings(conf)}
    loaded = load_plan(plan)
    jobs_sources(loaded)
    for warning in loaded.check():
        if verbose:
            terminal.print_note(f"warning: {warning}")
    root = state_root(loaded, state, plan_file(plan))
    may = Reach(tuple(str(path.absolute()) for path in allow_files or ()), tuple(hosts or ()))
    may.check()
    if smtp is not None:
        parse_mail_server(smtp)
    if work is None and not isinstance(root, Path):
        raise UsageError(f"{root}: a state in an object store needs a folder for the jobs' files: give --work DIR.")
    how = Serving(
        work or Path(str(root.parent), "work"),
        *(threads, not drop_originals, full / 100, once, may, report_secret, lowest_rate),
        job_time_s=seconds("--job-time", job_time) or 0.0,
        smtp=smtp,
    )
    with opened(queue) as found, Graceful() as graceful:

        @contextmanager
        def driving() -> Iterator[tuple[State, Runner]]:
            from ferryman.intake.service import on_spark

            with on_spark(loaded, root.parent, master, settings, accept_changes, preflight=preflight) as driver:
                graceful.listen()  # Spark's start has put itself in the place of who hears Ctrl-C
                yield driver

        with progress_observer(sys.stderr, verbose, log_file, log_format) as observer, logging_to(observer, verbose):
            observer.message(f"serving {found.url} with plan {loaded.key}; files are in {how.work}")
            with graceful.excusing():
                serving(loaded, found, how, driving, stop=graceful.stop, observer=observer)
    if graceful.heard:
        terminal.print_note("stopped: unfinished work continues at the next start.")


class Graceful:
    """While it is entered, the first signal sets ``stop``, and the second ends this process at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.heard = False
        self._heard_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Graceful:
        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Be the one who is told."""
        for number in SIGNALS:
            signal.signal(number, self._heard)

    @contextmanager
    def excusing(self) -> Iterator[None]:
        """Ignore errors after a signal: Spark's JVM receives Ctrl-C too."""
        try:
            yield
        except Exception:
            if not self.heard:
                raise

    def _heard(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.heard and now - self._heard_at > ONE_S:
            os._exit(CODE)  # killing is safe at any moment
        if not self.heard:
            self._heard_at = now
        self.heard = True
        self.stop.set()
