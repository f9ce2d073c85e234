"""How often did each word come? An index by count in SQLite, with each word in it exactly once.

`python ranking.py` names the words of which that is not so.
"""

import sqlite3
import sys
from collections import Counter

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue

DATABASE = "ranking.db"


def entry(count: int, word: str) -> str:
    return f"{count:06}/{word}"


def count(word: str, state: int | None, documents: list[Document]) -> tuple[int, list[Document]]:
    old, new = state or 0, (state or 0) + len(documents)
    gone = [Document.deletion(entry(old, word))] if old else []
    return new, [*gone, Document(entry(new, word), word=word, count=new)]


plan = Plan("ranking", version=1)
counts = plan.source("words", Queue("words")).keyed("counts", count, key="word")
counts.destination("index", Sql(f"sqlite:///{DATABASE}", table="ranking"))


def wrong(database: str = DATABASE, queues: str = "queues") -> list[str]:
    """Words that the index has not exactly once, under the count that the queue gives them."""
    with sqlite3.connect(database) as db:
        entries = [id for (id,) in db.execute("SELECT id FROM ranking")]
    messages = DurableQueue("words", queues).read(limit=10_000_000)
    there = {entry(number, word) for word, number in Counter(m.body["word"] for m in messages).items()}
    twice = [word for word, number in Counter(id.partition("/")[2] for id in entries).items() if number > 1]
    return sorted({*twice, *(there ^ set(entries))})


if __name__ == "__main__":
    sys.exit("\n".join(wrong()) or 0)
