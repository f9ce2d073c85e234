"""Plans that keep state by key, for tests; and their states, read from the tables' files by who knows Delta alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman import Document, account
from ferryman.destinations import Queue as IntoQueue
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import state_root
from tests.support.invariants import states
from tests.support.plan_world import run_plan


def count(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
    """How many documents a key has had; exports what it was and what it is."""
    old, new = state or 0, (state or 0) + len(documents)
    return new, Document(key, key=key, old=old, new=new)


class Counted:
    """``count``; notes each call in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        with open(self.path, "a") as file:
            file.write(f"{key}\n")
        return count(key, state, documents)


class Words:
    """Plan ``words``: queue ``in`` → keyed node ``counts``, by ``word`` → queue ``out``, in a folder."""

    def __init__(self, folder: Path, update: Callable[..., Any] = count, **options: Any) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.into = DurableQueue("in", folder)
        self.out = DurableQueue("out", folder)
        self.plan = Plan("words", version=1)
        source = {"on_error": options.pop("on_error", "stop")}
        node = self.plan.source("from_in", Queue("in", folder, **source))
        node.keyed("counts", update, **{"key": "word", **options}).destination("to_out", IntoQueue("out", folder))
        self.root = state_root(self.plan, self.state)

    def put(self, *words: str) -> None:
        self.into.append([{"word": word} for word in words])

    def run(self, **options: Any) -> Any:
        return run_plan(self.plan, self.state, **options)

    def states(self) -> dict[str, Any]:
        return states(self.root, "counts")

    def exported(self) -> list[dict[str, Any]]:
        """The messages that the exports became."""
        return [message.body for message in self.out.read(limit=100_000)]

    def status(self) -> dict[str, Any]:
        return account.status(self.root, self.plan)
