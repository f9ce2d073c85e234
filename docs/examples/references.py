"""Documents name words. Which documents name a word? A keyed node finds out what has changed in a document, and a
destination of its own keeps the inverse."""

import sqlite3
from pathlib import Path

from ferryman import Document, Effect, Plan
from ferryman.destinations import Delivery, Destination, Outcome
from ferryman.sources import Queue


def compare(id: str, state: list[str] | None, documents: list[Document]) -> tuple[list[str] | None, Document | None]:
    """The document's words are the state; what has come and what has gone is exported, if anything has."""
    last = documents[-1]
    old, new = set(state or []), set() if last.get("gone") else set(last["refs"].split())
    change = Document(id, document=id, added=sorted(new - old), deleted=sorted(old - new))
    return sorted(new) or None, change if new != old else None


class Inverse(Destination):
    """Word → documents, a table in SQLite. A change that comes twice, or late, changes nothing: of each document the
    last sequence is kept, in the same transaction."""

    effect = Effect.IDEMPOTENT
    compares_sequences = True
    single_writer = True

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).absolute())

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS inverse (word, document, PRIMARY KEY (word, document))")
            db.execute("CREATE TABLE IF NOT EXISTS last (document PRIMARY KEY, sequence)")
            for delivery in chunk:
                self._apply(db, delivery)
        return [Outcome.ok()] * len(chunk)

    def _apply(self, db: sqlite3.Connection, delivery: Delivery) -> None:
        document, fields = delivery.id, delivery.fields
        last = db.execute("SELECT sequence FROM last WHERE document = ?", [document]).fetchone()
        if last is not None and last[0] >= delivery.sequence:
            return
        for word in fields["deleted"]:
            db.execute("DELETE FROM inverse WHERE word = ? AND document = ?", [word, document])
        for word in fields["added"]:
            db.execute("INSERT INTO inverse VALUES (?, ?)", [word, document])
        db.execute("INSERT OR REPLACE INTO last VALUES (?, ?)", [document, delivery.sequence])


plan = Plan("references", version=1)
words = plan.source("documents", Queue("documents")).keyed("words", compare, key="document")
words.destination("inverse", Inverse("inverse.db"))
