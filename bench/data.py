"""Documents for benchmarks: 500 bytes each as JSON, of words that compress about as well as English."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARTS = 16
_BODY_CHARACTERS = 440


def table(folder: Path, documents: int) -> Path:
    """Make a Parquet table with columns id, title and body, unless it exists."""
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    text = words(random)
    starts = random.integers(0, len(text) - _BODY_CHARACTERS, size=documents)
    for part, numbers in enumerate(np.array_split(np.arange(documents), PARTS)):
        rows = pa.table(
            {
                "id": [f"doc-{n}" for n in numbers],
                "title": [f"Title {n}" for n in numbers],
                "body": [text[starts[n] : starts[n] + _BODY_CHARACTERS] for n in numbers],
            }
        )
        pq.write_table(rows, folder / f"part-{part:05d}.parquet")
    return folder


def small_files(folder: Path, files: int) -> Path:
    """Make text files of some hundred bytes, a hundred to a folder, unless they exist."""
    if folder.exists():
        return folder
    random = np.random.default_rng(7)
    text = words(random)
    for n, start in enumerate(random.integers(0, len(text) - 500, size=files)):
        place = folder / f"{n // 100:04d}"
        if n % 100 == 0:
            place.mkdir(parents=True)
        (place / f"{n:06d}.txt").write_text(text[start : start + 500])
    return folder


def words(random: np.random.Generator) -> str:
    """Return two million words out of five thousand, with frequencies as in English."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    vocabulary = ["".join(random.choice(letters, size=n)) for n in random.integers(2, 11, size=5000)]
    numbers = np.minimum(random.zipf(1.3, size=2_000_000), len(vocabulary)) - 1
    return " ".join(vocabulary[n] for n in numbers)
