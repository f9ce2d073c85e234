"""``ferryman intake serve``: consumers for every state, and a plan for the documents."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman.cli import terminal
from ferryman.cli.intake.options import QueueUrl, open_queue
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
    option,
    resource_settings,
    seconds,
    spark_settings,
)
from ferryman.cli.run import AcceptChanges, Log, Metrics, OpenLineage
from ferryman.cli.terminal import CODE, SIGNALS
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.engine.runner.base import Runner
    from ferryman.intake.service import Serving
    from ferryman.net.allowed_addresses import Reach
    from ferryman.observe import Observer
    from ferryman.plan import Plan
    from ferryman.state.state import State
    from ferryman.storage.files import StatePath

SAME_SIGNAL_S: Final = 1.0
"""Seconds within which several signals count as one, since `timeout` and some shells signal a process and then its
group."""


WorkDir = Annotated[
    Path | None,
    option(
        "--work",
        "DIR",
        "Working directory for the files of jobs. Every process that serves this queue, and every "
        "worker of Spark, has to see it at this path. Default: work/ in the state's directory.",
    ),
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads per state.")]
DropOriginals = Annotated[
    bool,
    typer.Option("--drop-originals", help="Do not keep delivered files; access requests cannot be served then."),
]
FullPercent = Annotated[
    int,
    typer.Option("--full", metavar="PERCENT", min=1, max=100, help="Disk usage above which jobs wait in Provisioning."),
]
AllowFiles = Annotated[
    list[Path] | None,
    option(
        "--allow-files",
        "DIR",
        "Submitters may name files (file: URLs) below this directory. Default: no files. Repeatable.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    option(
        "--hosts",
        "PATTERN",
        "Submitters may name this host although its address is not public: a name with *, an address, or a "
        "network as 10.0.0.0/8; with :PORT, only there. Repeatable.",
    ),
]
ReportSecret = Annotated[
    str | None,
    option(
        "--report-secret", "SECRET", "Sign reports as webhooks are signed. ${NAME} is filled in from the environment."
    ),
]
SmtpUrl = Annotated[
    str | None,
    option(
        "--smtp",
        "URL",
        "Mail server: a submitter that is an e-mail address gets the report of each batch. "
        "smtp://USER:PASSWORD@HOST:PORT?from=ADDRESS, or smtps://…; ${NAME} is filled in from the environment.",
    ),
]
LowestRate = Annotated[
    int,
    typer.Option(
        "--lowest-rate", metavar="BYTES", min=0, help="Bytes a second below which a server's answer is broken off."
    ),
]
JobTime = Annotated[
    str,
    typer.Option(
        "--job-time",
        metavar="TIME",
        help="Fail a job whose files are not fetched in this time: 30m, 6h; 0: any.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Exit when nothing is left to do.")]


def serve(
    plan: PlanSpec,
    queue: QueueUrl = None,
    state: StateDir = None,
    work: WorkDir = None,
    threads: Threads = 4,
    drop_originals: DropOriginals = False,
    full: FullPercent = 80,
    allow_files: AllowFiles = None,
    hosts: Hosts = None,
    report_secret: ReportSecret = None,
    smtp: SmtpUrl = None,
    lowest_rate: LowestRate = 1024,
    job_time: JobTime = "6h",
    once: Once = False,
    accept_changes: AcceptChanges = False,
    master: Master = "local[*]",
    conf: Conf = None,
    has: Has = None,
    preflight: Preflight = True,
    metrics: Metrics = None,
    openlineage: OpenLineage = None,
    log_file: LogFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Verbose = False,
) -> None:
    """Serve the queue: process batches from Pending to their reports, through a plan.

    The plan has a source of jobs: plan.source("jobs", Jobs()). Ctrl-C or SIGTERM ends it gracefully: each consumer
    finishes its step, or releases its job unchanged; a second signal ends it at once. If it is killed, run the same
    command again: work continues where it was. Further processes that serve the same queue share all work except the
    plan's, and one of them takes that over when the first one ends.
    """
    from ferryman.intake.service import Serving, on_spark
    from ferryman.intake.service.processing import jobs_sources
    from ferryman.monitoring.run import monitor_of
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    spark_conf = {**resource_settings(has), **spark_settings(conf)}
    loaded = load_plan(plan)
    jobs_sources(loaded)
    for warning in loaded.check():
        if verbose:
            terminal.print_note(f"warning: {warning}")
    root = state_root(loaded, state, plan_file(plan))
    reach = _reach(allow_files, hosts)
    _check_smtp(smtp)
    serving = Serving(
        _work_folder(work, root),
        *(threads, not drop_originals, full / 100, once, reach, report_secret, lowest_rate),
        job_time_s=seconds("--job-time", job_time) or 0.0,
        smtp=smtp,
    )

    def open_driver() -> AbstractContextManager[tuple[State, Runner]]:
        return on_spark(loaded, root.parent, master, spark_conf, accept_changes, preflight=preflight)

    monitored = monitor_of(loaded, root, metrics, openlineage, endless=not once)
    _serve_until_stopped(loaded, queue, serving, open_driver, verbose, (log_file, log_format), monitored)


def _reach(allow_files: list[Path] | None, hosts: list[str] | None) -> Reach:
    """Return the files and hosts that submitters may name.

    Raises:
        UsageError: a host pattern is not valid.
    """
    from ferryman.net.allowed_addresses import Reach

    reach = Reach(tuple(str(path.absolute()) for path in allow_files or ()), tuple(hosts or ()))
    reach.check()
    return reach


def _check_smtp(url: str | None) -> None:
    """Refuse a URL of a mail server that cannot be used, before anything begins.

    Raises:
        UsageError: it is not such a URL.
        Misconfigured: a variable in it is not set.
    """
    from ferryman.intake.service.reports import parse_mail_server

    if url is not None:
        parse_mail_server(url)


def _work_folder(work: Path | None, root: StatePath) -> Path:
    """Return the working space: the given folder, or one beside the plan's state.

    Raises:
        UsageError: the state is in an object store, and no folder is given.
    """
    if work is None and not isinstance(root, Path):
        raise UsageError(f"{root}: a state in an object store needs a folder for the jobs' files: give --work DIR.")
    return work or Path(str(root.parent), "work")


def _serve_until_stopped(
    plan: Plan,
    queue_url: str | None,
    serving: Serving,
    open_driver: Callable[[], AbstractContextManager[tuple[State, Runner]]],
    verbose: bool,
    log: Log,
    monitored: Callable[[Observer], AbstractContextManager[Observer]],
) -> None:
    """Serve a queue with progress on stderr, until a signal, or with ``--once`` until nothing is left to do."""
    from ferryman.intake.service import serve as serve_queue
    from ferryman.observe import logging_to, progress_observer

    with open_queue(queue_url) as job_queue, GracefulStop() as graceful:

        @contextmanager
        def open_driver_and_take_signals() -> Iterator[tuple[State, Runner]]:
            with open_driver() as driver:
                graceful.install_handlers()  # Spark's start has replaced them, to get Ctrl-C itself
                yield driver

        with progress_observer(sys.stderr, verbose, *log) as observer, logging_to(observer, verbose):
            observer.message(f"serving {job_queue.url} with plan {plan.key}; files are in {serving.work}")
            with graceful.ignoring_errors(), monitored(observer) as run:
                serve_queue(plan, job_queue, serving, open_driver_and_take_signals, stop=graceful.stop, observer=run)
    if graceful.requested:
        terminal.print_note("stopped: unfinished work continues at the next start.")


class GracefulStop:
    """Context in which the first signal sets ``stop``, and the second one ends this process at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.requested = False
        self._requested_at = 0.0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> GracefulStop:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # nohup: it goes on without its terminal
                self._previous_handlers[number] = handler
        self.install_handlers()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def install_handlers(self) -> None:
        """Handle the signals in this object from now on."""
        for number in self._previous_handlers:
            signal.signal(number, self._handle_signal)

    @contextmanager
    def ignoring_errors(self) -> Iterator[None]:
        """Ignore errors after a signal: Spark's JVM receives Ctrl-C too."""
        try:
            yield
        except Exception:
            if not self.requested:
                raise

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested and now - self._requested_at > SAME_SIGNAL_S:
            os._exit(CODE)  # killing is safe at any moment
        if not self.requested:
            self._requested_at = now
        self.requested = True
        self.stop.set()
