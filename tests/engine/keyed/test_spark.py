"""State by key on real Spark: grouped and updated by executors, of which one dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account
from tests.support.keyed import count, count_words


class Deadly:
    """Kills its worker once, at a key in the middle."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        if key == "w7" and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return count(key, state, documents)


@pytest.mark.rule("keyed.kill")
@pytest.mark.spark
def test_a_worker_that_dies_counts_nothing_twice(place: Path, spark: Any) -> None:
    """Spark runs its task again; what the other tasks have published stays."""
    words = count_words(place, Deadly(place / "killed"))
    told: Counter[str] = Counter()
    for turn in range(2):
        words.put(*(f"w{n % 50}" for n in range(2000 + turn)))
        assert words.run(runner=spark, checked=turn > 0).exit == 0  # the next start removes what the dead one left
    assert (place / "killed").exists()
    assert words.states() == Counter(f"w{n % 50}" for turn in range(2) for n in range(2000 + turn))
    for export in words.bodies():
        assert export["old"] == told[export["key"]]
        told[export["key"]] = export["new"]
    assert told == words.states()


class Killer:
    """Ends its process over every document of one key."""

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        if key == "w7":
            os._exit(3)
        return count(key, state, documents)


@pytest.mark.rule("keyed.deadly")
@pytest.mark.spark
def test_a_key_that_kills_its_workers_harms_no_other(place: Path, spark: Any) -> None:
    """Its documents are rejected, with the reason; all others are counted."""
    words = count_words(place, Killer(), on_error="continue")
    words.put(*(f"w{n % 50}" for n in range(150)))
    summary = words.run(runner=spark, checked=False)
    assert (summary.exit, summary.rejected, summary.pending) == (3, 3, 0), summary
    assert words.states() == {f"w{n}": 3 for n in range(50) if n != 7}
    reasons = {row["message"] for row in account.deliveries(words.root, status="rejected")}
    assert all("it ended its process in each of 3 tries: exit code 3" in each for each in reasons)
