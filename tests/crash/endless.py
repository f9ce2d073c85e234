"""An endless run (``--every``) over a corpus that changes between its scans, and between the phases of its waves.

The history is a row of turns. Which turn it is stands in a file: a run that was killed goes on in the turn that it was
killed in, as the world outside does.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, Unavailable
from ferryman.observe import Silent
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.sources import Files
from tests.crash import scenario

SHAPE = "endless"
BATCH = 2


class Turn(NamedTuple):
    """What is changed before a scan: id -> new text; None: it goes.

    Attributes:
        amid: what is changed when the scan is through and nothing was read yet.
        away: who is away in this turn: ``service`` (of the step), ``destination``.
        word: a person says ``retry``.
    """

    changes: Mapping[str, str | None]
    amid: Mapping[str, str | None] = MappingProxyType({})
    away: tuple[str, ...] = ()
    word: bool = False


TURNS = (
    Turn({"a": "1", "b": "1", "c": "1", "d": "bad 0", "e": "refuse 0", "f": "slow 0"}),
    Turn({"a": "2", "b": None, "g": "1"}, amid={"a": "3"}, word=True),
    Turn({"c": "2", "h": "1", "f": "slow 1"}, away=("service",)),
    Turn({"a": "4", "g": None, "e": "refuse 1"}, away=("destination",)),
    Turn({"b": "2", "c": "3", "d": "bad 1", "i": "slow 2"}, amid={"h": None, "f": "2"}),
    Turn({"c": None, "e": "3", "j": "refuse 2"}, word=True),
    Turn({"a": "5", "k": "1"}, amid={"k": None}),
)


class Enough(Exception):
    """The history is through."""


class Log(scenario.Log):
    """Refuses some, and is away now and then."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if (Path(self.path).parent / "destination-is-away").exists():
            return [Outcome.unavailable("it is away")] * len(chunk)
        fine = [d for d in chunk if not (d.text() or "").startswith("refuse")]
        super().write(fine)
        return [Outcome.ok() if d in fine else Outcome.permanent("refused on principle") for d in chunk]


def stepping(root: Path) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if (root / "service-is-away").exists():
            raise Unavailable("the service is being moved")
        if doc.text().startswith("bad"):
            raise PermanentError("it cannot be read")
        if doc.text().startswith("slow"):
            calls = root / f"{doc.id}.{doc.text()}.calls"
            with calls.open("ab") as file:
                file.write(b".")
            if calls.stat().st_size == 1:
                raise RuntimeError("not the first time")
        return doc

    return step


def make_plan(root: Path, guarantee: str) -> Plan:
    plan = Plan("endless", version=1)
    plan.notify(f"tee -a {root / 'told.jsonl'}")
    made = plan.source("files", Files(str(root / "corpus"), max_deleted=1.0)).step("step", stepping(root))
    made.destination("log", Log(root), guarantee=guarantee, batch=BATCH, backoff=0)
    return plan


class History(Silent):
    """Watches a run and changes the world around it.

    Args:
        arm: called at the beginning of turn ``armed_at``.
    """

    def __init__(self, root: Path, plan: Plan, armed_at: int, arm: Callable[[], None]) -> None:
        self.root = root
        self.plan = plan
        self.armed_at = armed_at
        self.arm = arm
        self.at = root / "turn"

    @property
    def turn(self) -> int:
        return int(self.at.read_text()) if self.at.exists() else 0

    def begin(self) -> None:
        """Make the world as it is in this turn; doing it again changes nothing."""
        if self.turn >= self.armed_at:
            self.arm()
        turn = TURNS[self.turn]
        for name in ("service", "destination"):
            flag = self.root / f"{name}-is-away"
            flag.touch() if name in turn.away else flag.unlink(missing_ok=True)
        self._write(turn.changes)
        if turn.word:
            retry(self.plan, state=self.root / "state", status="failed", why="a test says so")

    def sleep(self, seconds: float) -> None:
        """In place of waiting for the next scan."""
        if self.turn + 1 == len(TURNS):
            raise Enough
        self.at.write_text(str(self.turn + 1))
        self.begin()

    def clock(self) -> float:
        """An hour a turn: by the next one whoever was away is asked again."""
        return 3600.0 * self.turn

    def phase(self, wave: int, name: str) -> None:
        """Once, in the first wave of the turn that comes so far."""
        done = self.root / f"amid-{self.turn}"
        if name == "transform" and not done.exists():
            done.touch()
            self._write(TURNS[self.turn].amid)

    def _write(self, changes: Mapping[str, str | None]) -> None:
        folder = self.root / "corpus"
        folder.mkdir(exist_ok=True)
        for id, text in changes.items():
            if text is None:
                (folder / id).unlink(missing_ok=True)
            elif not (folder / id).exists() or (folder / id).read_text() != text:
                (folder / id).write_text(text)


def last_corpus() -> dict[str, str]:
    """Id -> text when the history is through."""
    there: dict[str, str | None] = {}
    for turn in TURNS:
        there |= {**turn.changes, **turn.amid}
    return {id: text for id, text in there.items() if text is not None}


def check(root: Path, guarantee: str, unknown: set[tuple[str, str]], killed: str) -> None:
    """The destination against the history. ``unknown``: (operation, id) of what is in doubt."""
    lines = [json.loads(line) for line in (root / "delivered.jsonl").read_text().splitlines()]
    was = {(id, text) for turn in TURNS for changes in (turn.changes, turn.amid) for id, text in changes.items()}
    last: dict[str, dict[str, Any]] = {}
    for line in lines:
        assert line["op"] == "delete" or (line["id"], line["text"]) in was, f"nobody ever wrote {line}"
        assert line["seq"] >= last.get(line["id"], line)["seq"], f"{line['id']} went back in time"
        last[line["id"]] = line
    corpus = last_corpus()
    for id, text in corpus.items():
        if not text.startswith(("bad", "refuse")) and (last[id]["op"], last[id]["text"]) != ("upsert", text):
            assert ("upsert", id) in unknown, f"{id} is lost"
    for id in last.keys() - corpus:
        assert last[id]["op"] == "delete" or ("delete", id) in unknown, f"{id} is gone, and still there"
    hashes = collections.Counter(line["hash"] for line in lines)
    doubled = sum(n - 1 for n in hashes.values())
    assert doubled <= (BATCH if guarantee == "at-least-once" and killed == "executor" else 0), f"{doubled} doubled"
    assert len(unknown) <= (BATCH if guarantee == "at-most-once" and killed == "executor" else 0), unknown
