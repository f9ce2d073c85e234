"""A topic that is piped through a plan, and the processes that are killed meanwhile."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from tests.destinations.search_index import SearchIndex
from tests.support.kafka_topics import Topics

MESSAGES = 300
KEYS = 7


class Pipe:
    """A topic with messages, and what came out of it."""

    def __init__(self, topics: Topics, place: Path, into: str = "kafka", **settings: str) -> None:
        self.topics = topics
        self.place = place
        self.into = into
        self.topic = topics.new(**settings)
        topics.new(f"{self.topic}-out", 2, **settings)
        self.written = 0
        self.fill()

    def fill(self, messages: int = MESSAGES) -> None:
        numbers = range(self.written, self.written + messages)
        self.topics.write(self.topic, [(f"k{n % KEYS}", b'{"n": %d}' % n) for n in numbers])
        self.written += messages

    @property
    def job(self) -> dict[str, object]:
        return {"url": self.topics.url, "topic": self.topic, "root": str(self.place), "into": self.into}

    def check(self) -> None:
        """Everything is there once; of each key in its order."""
        if self.into == "sqlite":
            with sqlite3.connect(self.place / "out.db") as db:
                rows = db.execute("SELECT n, twice FROM documents").fetchall()
            assert sorted(int(n) for n, _ in rows) == list(range(self.written))
            assert all(int(twice) == 2 * int(n) for n, twice in rows)
            return
        if self.into.startswith("http"):
            documents = SearchIndex(self.into, self.topic).documents()
            assert sorted(each["n"] for each in documents.values()) == list(range(self.written))
            assert all(each["twice"] == 2 * each["n"] for each in documents.values())
            return
        by_key: dict[bytes, list[int]] = {}
        for record in self.topics.read(f"{self.topic}-out"):
            value = msgspec.json.decode(record.value or b"")
            assert value["twice"] == 2 * value["n"]
            assert record.key is not None
            by_key.setdefault(record.key, []).append(value["n"])
        assert by_key == {f"k{k}".encode(): list(range(k, self.written, KEYS)) for k in range(KEYS)}


def ended_well(answer: tuple[int, str]) -> str:
    code, said = answer
    assert code == 0, said
    return said
