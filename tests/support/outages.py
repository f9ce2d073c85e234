"""Steps and sources that are away while a file is there."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferryman.document import Document
from ferryman.errors import Unavailable
from ferryman.sources import Memory
from ferryman.sources.base import Listed
from tests.support.plan_world import PlanWorld

AWAY: dict[str, Callable[[], BaseException]] = {
    "unavailable": lambda: Unavailable("the database is being moved"),
    "connection": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "time-out": lambda: TimeoutError("no answer"),
}


def down(folder: Path, what: str = "down") -> Path:
    """As long as this file is there, the service is away."""
    path = folder / what
    path.touch()
    return path


def asking(flag: Path, error: Callable[[], BaseException], calls: Path | None = None) -> Callable[[Document], Document]:
    """A step whose service is away while the flag is there."""

    def step(doc: Document) -> Document:
        if calls is not None:
            with calls.open("a") as file:
                file.write(f"{doc.id}\n")
        if flag.exists():
            raise error()
        return doc

    return step


def ids(n: int) -> list[str]:
    return [f"d{i:03}" for i in range(n)]


def attempts(trial: PlanWorld) -> Counter[int]:
    """Attempts spent -> deliveries, by their latest events."""
    return Counter(d["attempt"] for d in trial.deliveries())


class Share(Memory):
    """A source whose reads fail while the flag is there."""

    def __init__(self, documents: Any, flag: Path, error: Callable[[], BaseException], **options: Any) -> None:
        super().__init__(documents, **{"max_deleted": 1.0, **options})
        self.flag, self.error = flag, error
        self.looks = flag.with_name("reads")

    def listing(self, partition: Any) -> Iterator[Listed]:
        for doc in super().listing(partition):
            assert isinstance(doc, Document)
            yield Listed(doc.id, len(doc.raw or b""), location=(doc.raw or b"").decode())

    def read(self, listed: Listed) -> Document:
        with self.looks.open("a") as file:
            file.write(f"{listed.id}\n")
        if self.flag.exists():
            raise self.error()
        return Document(listed.id, raw=listed.location.encode())
