"""The changes of a state keep the promises of the port for logs."""

from __future__ import annotations

from pathlib import Path

from tests.support.keyed import count_words

from ferryman.sources import Changes, Log
from ferryman.testing.logs import LogSuite


class TestChanges(LogSuite):
    def source(self, folder: Path) -> Changes:
        self.words = count_words(folder)
        for turn in range(2):
            self.words.put(*(f"{letter}{turn}" for letter in "abcdefgh"))
            self.words.run()
        return Changes(self.words.plan, "counts", folder / "state")

    def append(self, source: Log) -> None:
        self.words.put("one more")
        self.words.run()
