"""The embedding function of all programs in ``bench.retrieval``: a model from a wheel, whose calls are counted.

The file that ``BENCH_CALLS`` names gets, before each request, a line with the number of texts and a hash of each, and
after it a line that it was answered: what was asked for and has no answer was in flight at a kill. Once the file has
``BENCH_HOLD`` bytes, requests are not answered any more, so that a kill finds each program at the same place.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DIMENSIONS = 64
BATCH = 64
"""Texts of a request, for all programs."""
LOG, HOLD = "BENCH_CALLS", "BENCH_HOLD"
BYTES = 2 * 17
"""Of the log for a text that was asked for and answered."""


@cache
def _model() -> Any:
    import wordllama

    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(trunc_dim=DIMENSIONS, cache_dir=folder, disable_download=True)


def embed(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text, and count the call."""
    hashes = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
    log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, f"asked {' '.join(hashes)}\n".encode())
        if HOLD in os.environ and os.fstat(log).st_size >= int(os.environ[HOLD]):
            threading.Event().wait()
        vectors: list[list[float]] = _model().embed(texts, norm=True).tolist()
        os.write(log, f"answered {' '.join(hashes)}\n".encode())
    finally:
        os.close(log)
    return vectors


def paragraphs(text: str) -> list[str]:
    """Split a page, for all programs."""
    return text.split("\n\n")


class Calls(NamedTuple):
    """Texts that the function was asked for, by the log.

    Attributes:
        texts: all of them, as often as they were asked for.
        requests: lists of texts.
        in_flight: texts without an answer.
    """

    texts: int
    requests: int
    in_flight: int


def read_calls(log: Path) -> Calls:
    """Count the log's calls; a line that is still being written counts for nothing."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    requests = 0
    for line in lines:
        if line.endswith("\n"):
            kind, *hashes = line.split()
            (asked if kind == "asked" else answered).update(hashes)
            requests += kind == "asked"
    return Calls(asked.total(), requests, (asked - answered).total())
