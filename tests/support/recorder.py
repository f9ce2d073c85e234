"""A destination that writes down what it was given, and answers as the test wants."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman.destinations.base import Delivery, Destination, Effect, Outcome

Answer = Callable[[Delivery], Outcome | None]
"""What the destination says of a delivery; None: nothing. What it raises is raised for the whole chunk."""


class Recorder(Destination):
    """Appends a line a delivery to a file, whoever calls it, whatever it answers. Picklable; read it with ``lines``.

    Args:
        answer: default: ok.
        before: called with the whole chunk first (to hang, to raise).
        refuse: called by ``check``.
    """

    effect = Effect.IDEMPOTENT
    place: str | None = None
    """What it says it writes to."""

    def __init__(
        self,
        path: Path,
        answer: Answer | None = None,
        *,
        before: Callable[[list[Delivery]], object] | None = None,
        refuse: Callable[[], object] | None = None,
        effect: Effect = Effect.IDEMPOTENT,
        transactional: bool = False,
        single_writer: bool = False,
    ) -> None:
        self.path = str(path)
        self.answer = answer
        self.before = before
        self.refuse = refuse
        self.effect = effect  # type: ignore[misc]
        self.transactional = transactional  # type: ignore[misc]
        self.single_writer = single_writer  # type: ignore[misc]

    def target(self) -> str | None:
        return self.place

    def check(self) -> None:
        self._note([{"called": "check"}])
        if self.refuse is not None:
            self.refuse()

    def open(self, context: Any) -> None:
        self._note([{"called": "open", "wave": context.wave}])

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        call = uuid.uuid4().hex
        self._note([{"called": "write", "call": call, "rows": len(chunk)}])
        if self.before is not None:
            self.before(chunk)
        outcomes, lines = [], []
        try:
            for d in chunk:
                outcome = Outcome.ok() if self.answer is None else self.answer(d)
                lines.append({**_told(d), "call": call, "said": None if outcome is None else outcome.kind})
                if outcome is not None:
                    outcomes.append(outcome)
        finally:
            self._note(lines)
        return outcomes

    def close(self) -> None:
        self._note([{"called": "close"}])

    # -- for the test ------------------------------------------------------------------------------

    def lines(self) -> list[dict[str, Any]]:
        """All deliveries that an answer was given to, in the order of their arrival."""
        return [line for line in self.notes() if "id" in line]

    def calls(self, of: str = "write") -> list[dict[str, Any]]:
        """All calls of a method, in their order."""
        return [line for line in self.notes() if line.get("called") == of]

    def arrived(self) -> list[str]:
        """Ids that were answered with ok, in the order of their arrival; deletes with a minus before them."""
        return [("-" if d["op"] == "delete" else "") + d["id"] for d in self.lines() if d["said"] == "ok"]

    def counted(self) -> Counter[str]:
        """How often each id (``-id``: its delete) was answered with ok."""
        return Counter(self.arrived())

    def forget(self) -> None:
        """Empty it."""
        Path(self.path).unlink(missing_ok=True)

    def notes(self) -> list[dict[str, Any]]:
        """All that was written down, in its order."""
        try:
            return [json.loads(line) for line in Path(self.path).read_text().splitlines()]
        except FileNotFoundError:
            return []

    def _note(self, lines: list[dict[str, Any]]) -> None:
        with open(self.path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(file.fileno(), "".join(json.dumps(line) + "\n" for line in lines).encode())


class Store(Recorder):
    """Stores a delivery's hash with its effect: one that is there already has no effect again. Exactly-once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, transactional=True)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        there = {line["hash"] for line in self.lines()}
        self._note([{**_told(d), "said": "ok"} for d in chunk if d.hash not in there])
        return [Outcome.ok()] * len(chunk)


def _told(d: Delivery) -> dict[str, Any]:
    return {
        "id": d.id,
        "op": d.operation,
        "hash": d.hash,
        "seq": d.sequence,
        "attempt": d.attempt,
        "version": d.version,
        "source": d.source,
        "parent": d.parent_id,
        "origin": d.origin_id,
        "route": "/".join(d.route),
        "fields": d.fields,
        "text": d.text(),
    }
