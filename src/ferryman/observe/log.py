"""Log lines of a run: to stderr, one line each, past the progress bar and not through it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from ferryman.observe.progress import Observer

NOISY = ("py4j", "pyspark")
"""Loggers whose messages tell users nothing about their documents."""


class ToObserver(logging.Handler):
    """Log records as messages of the observer."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.observer.message(self.format(record))
        except Exception:
            self.handleError(record)


class OneLine(logging.Formatter):
    """``warning: text``; of a traceback only what was raised."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        return text


@contextlib.contextmanager
def logging_to(observer: Observer, verbose: bool = False) -> Iterator[None]:
    """Warnings (with ``verbose`` information too) of the ``ferryman`` loggers to this observer, meanwhile."""
    logger = logging.getLogger("ferryman")
    handler = ToObserver(observer)
    handler.setFormatter(OneLine())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    logger.propagate = False
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
