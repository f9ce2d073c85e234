"""The real plan of a story: its documents, faults and runs, and what arrived."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.operations import resolve
from ferryman.plan import Plan
from ferryman.routers import ByField, Duplicate, RoundRobin, Router
from ferryman.sources import Memory
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.oracle import Paper, Shape, Spot, act, by_field, some
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.recorder import Recorder
from tests.support.stories import Content, Fault, Turn

BREAKS: Final = "breaks"
ERRORS: Final = frozenset({"transient", "permanent", "strange", "away", "connection", BREAKS})
RESET: Final = "Connection reset by peer"


class Faults:
    """What fails in this turn. Picklable; what was called how often lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turn = 0
        self.faults: list[Fault] = []
        self.down: set[str] = set()

    def met(self, node: str, id: str, errors: Collection[str] = ERRORS) -> str | None:
        """The error of this call, if it is one that fails with one of these errors."""
        for number, fault in enumerate(self.faults):
            if fault.error in errors and fault.meets(node, id):
                with open(self.folder / f"{self.turn}-{number}-{node}-{id}.calls", "ab") as file:
                    if file.seek(0, os.SEEK_END) < fault.times:
                        file.write(b".")
                        return fault.error
        return None

    def fail(self, node: str, id: str) -> None:
        """Raise what this call raises."""
        if node in self.down:
            raise Unavailable("down")
        match self.met(node, id):
            case "away":
                raise Unavailable("for a moment")
            case "connection":
                raise ConnectionRefusedError("nobody there")
            case "breaks":
                raise ConnectionResetError(RESET)
            case "transient":
                raise TransientError("not yet")
            case "permanent":
                raise PermanentError("never")
            case "strange":
                raise KeyError("strange")


class Step:
    """A step of the plan."""

    def __init__(self, spot: Spot, faults: Faults) -> None:
        self._spot = spot
        self._faults = faults

    def __call__(self, doc: Document) -> Any:
        self._faults.fail(self._spot.name, doc.id)
        made = act(self._spot, Paper(doc.id, dict(doc), doc.text()))
        if made is None:
            return None
        found = []
        for paper in made:
            if paper.id == doc.id:
                doc.fields.clear()
                doc.fields.update(paper.fields)
                found.append(doc)
            else:
                found.append(doc.child(paper.id.rpartition("#")[2], raw=paper.text.encode(), **paper.fields))
        return found if self._spot.does == "split" else found[0]


class Some(Router):
    """Copies to some of its branches."""

    copies: ClassVar[bool] = True

    def __init__(self, spot: Spot, faults: Faults) -> None:
        self._spot = spot
        self._faults = faults
        self._branches: list[str] = []

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = list(branches)

    def choose(self, document: Document) -> Sequence[str]:
        self._faults.fail(self._spot.name, document.id)
        return some(self._spot, self._branches, document.get("n", 0))


class World(PlanWorld):
    """The plan of a shape in a folder, with its documents and destinations."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        super().__init__(folder, each_time=True, wait=0, sleep=lambda _: None)
        self.shape = shape
        self.faults = Faults(folder)
        self.contents: dict[str, dict[str, Content]] = {s.name: {} for s in shape.of("source")}
        self.outs = {s.name: self._recorder(s, folder) for s in shape.of("tee", "end")}
        self.renewed: Counter[tuple[str, str]] = Counter()
        """(source, id) -> how often there was a reason to send it."""

    def _recorder(self, spot: Spot, folder: Path) -> Recorder:
        effect = Effect.POTENT if spot.does == "at most" else Effect.IDEMPOTENT
        out = Recorder(folder / f"{spot.name}.jsonl", effect=effect, transactional=spot.does == "exactly")
        if spot.does == "shared":
            out.place = "shared"
        faults, name = self.faults, spot.name

        def answer(delivery: Delivery) -> Outcome:
            if name in faults.down:
                return Outcome.unavailable("down")
            match faults.met(name, delivery.id, ERRORS - {BREAKS}):
                case None:
                    return Outcome.ok()
                case "permanent":
                    return Outcome.permanent("never")
                case _:
                    return Outcome.transient("not yet")

        def breaks(chunk: list[Delivery]) -> None:
            if name not in faults.down and [d for d in chunk if faults.met(name, d.id, {BREAKS})]:
                with open(faults.folder / f"{name}.broken", "a") as file:
                    file.write("".join(f"{delivery.hash}\n" for delivery in chunk))
                raise ConnectionResetError(RESET)

        out.answer, out.before = answer, breaks
        return out

    def broken(self, name: str) -> set[str]:
        """Hashes of the rows of all chunks that have broken the connection of this destination."""
        found = self.folder / f"{name}.broken"
        return {*found.read_text().split()} if found.exists() else set()

    def make_plan(self) -> Plan:
        """Build the plan as it is now, with the faults of its turn."""
        plan = Plan("random", version=1)
        for spot in self.shape:
            match spot.kind:
                case "source":
                    held = self.contents[spot.name]
                    listed = [(id, c.paper(id)) for id, c in held.items()]
                    plan.source(
                        spot.name,
                        Memory([{"id": id, "raw": p.text.encode(), **p.fields} for id, p in listed], max_deleted=1.0),
                    )
                case "step":
                    plan.step(spot.name, Step(spot, self.faults), after=spot.after)
                case "router":
                    plan.route(spot.name, self._router(spot), after=spot.after)
                case _:
                    plan.destination(
                        spot.name,
                        self.outs[spot.name],
                        after=spot.after,
                        tee=spot.kind == "tee",
                        attempts=spot.n % 3 + 1,
                        backoff=NOT_SOON_S if spot.flag else 0,
                    )
        return plan

    def _router(self, spot: Spot) -> Router:
        branches = self.shape.following(spot.name)
        match spot.does:
            case "by field":
                mapping, default = by_field(spot, branches)
                return ByField("kind", mapping, default)
            case "duplicate":
                return Duplicate()
            case "round robin":
                return RoundRobin()
            case _:
                return Some(spot, self.faults)

    def say(self, word: str | None) -> None:
        if word is None or not (self.root / "state.json").exists():
            return
        if word == "resolve":
            resolve(self.plan, "pending", state=self.state, why="a test says so")
            return
        one = "a" if word.endswith("one") else None
        force = word.startswith("force")
        self.retry(force=force, document=one, why="a test says so")
        if force:
            for source, held in self.contents.items():
                self.renewed.update((source, id) for id in held if one in (None, id))

    def change(self, changes: dict[tuple[int, str], Content | None]) -> None:
        names = list(self.contents)
        for (number, id), new in changes.items():
            held = self.contents[names[number]]
            if new is None:
                held.pop(id, None)
            elif held.get(id) != new:
                held[id] = new
                self.renewed[names[number], id] += 1

    def play(self, turn: Turn) -> None:
        self.change(turn.changes)
        self.say(turn.word)
        self.faults.turn += 1
        self.faults.faults, self.faults.down = turn.faults, turn.down
        if turn.kill is None:
            self.run()
            return
        phase, more = turn.kill
        state = self.root / "state.json"
        wave = 1 + more
        if state.exists():
            wave += max((row["wave"] for row in rows(self.root, "ledger")), default=0)
        with contextlib.suppress(Interrupted):
            self.run(observer=Until(wave, phase))

    def heal(self) -> None:
        self.faults.faults, self.faults.down = [], set()
