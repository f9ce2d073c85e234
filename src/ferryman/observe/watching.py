"""Which observer suits whom a run tells: a terminal, a pipe, a log file, a program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ferryman.observe.log_file import JsonLog, LogLines, open_log
from ferryman.observe.progress import Bar, Forwarding, LineProgress, Observer
from ferryman.observe.stream import Expendable


@contextlib.contextmanager
def watching(
    stream: TextIO, verbose: bool = False, log_file: Path | None = None, log_format: str = "text"
) -> Iterator[Observer]:
    """The observer that suits the stream, for as long as the run takes.

    Args:
        log_file: what is reported is appended to this file, too, in ``log_format``; else that is the stream's.

    Raises:
        UsageError: the log file cannot be written.
    """
    if log_file is None:
        with _on(stream, verbose, log_format) as observer:
            yield observer
        return
    with open_log(log_file) as opened, _on(stream, verbose, "text") as observer:
        file = Expendable(opened, lambda e: observer.message(f"warning: {_given_up(log_file, e)}"))
        log: Observer = JsonLog(file) if log_format == "json" else LogLines(file, verbose)
        try:
            yield Forwarding(observer, log)
        except BaseException as e:
            log.message(f"error: {type(e).__name__}: {e}")
            raise


def _given_up(log_file: Path, error: OSError) -> str:
    return f"--log-file {log_file}: {error.strerror}: nothing more is written to it. The run goes on."


@contextlib.contextmanager
def _on(stream: TextIO, verbose: bool, log_format: str) -> Iterator[Observer]:
    if log_format == "json":
        yield JsonLog(Expendable(stream))
        return
    if not stream.isatty():
        yield LineProgress(Expendable(stream), verbose)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True, redirect_stdout=False) as progress:
        yield Bar(progress, verbose=verbose)
