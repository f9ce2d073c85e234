"""Preview: what the next run would do with some documents. Scan and transform, and nothing after them.

Documents are listed, detected and transformed as a run would do it, but all that is written goes to a scratch folder,
which is removed at the end. The state is only read: no lock is taken, no epoch announced, nothing repaired. No
destination is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.account.questions import named_damage, retry_read
from ferryman.engine import driver, migration
from ferryman.engine.nodes import Nodes
from ferryman.engine.preview import logs
from ferryman.engine.preview.pick import Picked, pick
from ferryman.engine.preview.sample import Cut, Draw, Sample, Sampled, draw, reasons
from ferryman.engine.runner.base import IsolatingRunner, PickledPlan, Runner, run_isolating
from ferryman.engine.scan.detect import ChangeSet, detect_changes
from ferryman.engine.scan.listing import NONE, Listing, Only, list_sources
from ferryman.engine.scan.log_looks import entries_that_wait
from ferryman.engine.scan.reason import Reason
from ferryman.engine.transform.task import Transform
from ferryman.errors import EngineError, PlanChanged, UsageError, WorkerDied
from ferryman.observe.progress import Observer, Silent
from ferryman.plan import DestinationNode, Plan, changes, structure
from ferryman.records.due import now_us
from ferryman.records.events import EVENT_OF_ROW
from ferryman.records.statuses import Status
from ferryman.state.commands import waiting
from ferryman.state.layout import TABLES
from ferryman.state.outbox import pending_rows
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath, disk_full
from ferryman.storage.folder import told_of_state
from ferryman.storage.parquet import read_part

_DELIVERY: Final = (*EVENT_OF_ROW, "attempt")
"""Columns of the ledger that both a delivery and an event have here."""

_EVENT: Final = (*_DELIVERY, "status", "message")


@dataclasses.dataclass
class Expected:
    """What a destination would get of the documents of a preview. Rows have the ledger's columns."""

    gets: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Deliveries: also ``fields``, ``text`` (None if there is none, or if it is not UTF-8) and its size, ``bytes``."""
    dropped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What would be dropped, or is there unchanged: also ``status``, ``message`` (why)."""
    refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What would end as ERROR_DOC or DEAD: also ``status``, ``message``."""
    errors: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What would fail and be tried again: also ``status``, ``message``, ``attempts`` (the most that there can be)."""
    waiting: int = 0
    """Rows that earlier waves committed and that the run would send first."""


@dataclasses.dataclass
class Preview:
    """What the next run would do: ``destinations`` by their names, for the ``documents`` of which each has its
    ``source``, ``document`` (the id) and ``reason``.

    Reasons: ``new``; ``changed``; ``retry`` (a failed step is due); ``forced`` (an operator wants it); ``again`` (its
    source has ``detect="none"``); ``gone``. And of one that was asked for by its id, though the run would leave it
    alone: ``unchanged``; ``later`` (a failed step is not due yet).
    """

    plan: str
    version: int
    limit: int | None
    """None: one document was asked for."""
    document: str | None
    documents: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    destinations: dict[str, Expected] = dataclasses.field(default_factory=dict)
    more: dict[str, int] = dataclasses.field(default_factory=dict)
    """Reason -> how many more documents the run would process."""
    unread: int = 0
    """How many more known documents the run would read to see whether they have changed."""
    stopped: list[str] = dataclasses.field(default_factory=list)
    """Why the run would stop before it changes anything; the rest is what it would do if it was told to go on."""
    complete: bool = True
    """False: a listing is incomplete; see ``messages``."""
    messages: list[str] = dataclasses.field(default_factory=list)
    """What you should know."""

    def as_dict(self) -> dict[str, Any]:
        """The object of ``preview --json``."""
        return dataclasses.asdict(self)


@told_of_state
def preview(
    plan: Plan,
    *,
    state: str | StatePath | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    limit: int = 20,
    document: str | None = None,
    observer: Observer | None = None,
) -> Preview:
    """What the next run would do with its first documents, or with one. Writes nothing, calls no destination.

    Args:
        state: directory of states, as for ``run``; it need not be there. A run may hold it.
        spark, master, conf: as for ``run``.
        limit: how many documents are transformed.
        document: id of the only one that is, also if the run would leave it alone.

    Raises:
        PlanError, UsageError: the plan cannot run; a limit below 1; no source has this document.
        StateError: the state is damaged or foreign.
        EngineError: Spark failed, or there is no room for scratch files: they go where TMPDIR says.
    """
    root = state_root(plan, state)
    plan.freeze()
    if limit < 1:
        raise UsageError(f"limit={limit}: preview one document at least.")
    seen = retry_read(root, lambda: Seen.of(State(root, plan)))  # before Spark is started
    observer = observer or Silent()
    observer.phase(seen.wave + 1, "scan")
    session = driver.session_for(plan.key, [plan], spark, master, conf or {}, observer, soon=True)
    with scratch() as folder, session as runner:
        return Previewing(plan, root, folder, runner, observer).of(limit, document)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for listings and staged files, removed whatever happens. Executors must see it, too.

    Raises:
        EngineError: there is no room in it.
    """
    with tempfile.TemporaryDirectory(prefix="ferryman-preview-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        except Exception as e:
            if not disk_full(e):
                raise
            raise EngineError(
                f"{folder}: the disk is full. Nothing was written but scratch files, which are removed: set TMPDIR to "
                "a folder with more room."
            ) from e


class Seen(NamedTuple):
    """A state, as a reader finds it."""

    state: State
    """Loaded; its documents are those of the last committed wave. Empty if there is none yet."""
    wave: int
    waiting: dict[str, int]
    """Destination -> rows that are still to be sent."""
    commands: int
    """Requests that no run has applied."""
    differences: list[str]
    """What is another in the plan's structure than it was when it last ran."""

    @classmethod
    def of(cls, state: State) -> Seen:
        """Look at it.

        Raises:
            StateDamaged, StateForeign: by name; perhaps only because a driver replaced files meanwhile.
        """
        if not state.look():
            return cls(state, 0, {}, 0, [])
        state.documents.files.update((f.path, f) for f in state.staged(state.documents))
        pending: dict[str, int] = {}
        for file in state.outbox.files.values():
            name = file.partition["destination"]
            pending[name] = pending.get(name, 0) + pending_rows(file)
        differences = changes(state.remembered(), structure(state.plan)).structure
        return cls(state, state.wave, pending, len(waiting(state)), differences)


class Detected(NamedTuple):
    """What the next run would process."""

    seen: Seen
    changes: ChangeSet
    ahead: logs.LogsAhead
    picked: Picked | None


class Previewing:
    """A preview at work.

    Args:
        folder: for scratch files; see ``scratch``.
    """

    def __init__(self, plan: Plan, root: StatePath, folder: Path, runner: Runner, observer: Observer) -> None:
        self._plan = plan
        self._root = root
        self._folder = folder
        self._staged = folder / "staged"
        self._runner = runner
        self._observer = observer
        self._shipped = PickledPlan.of(plan)
        self._now_us = now_us()

    def of(self, limit: int, document: str | None = None) -> Preview:
        """The first documents, or this one."""
        found = Preview(self._plan.name, self._plan.version, limit if document is None else None, document)
        listed = self._folder / "listed"
        listed.mkdir()
        entries = self._entries(found, document)
        runner = IsolatingRunner(self._runner)
        listings = list_sources(self._plan, self._shipped, listed, runner, entries=entries)
        with State(self._root, self._plan).readers.reading():  # tasks read the rows of documents, too
            self._fill(found, listings, limit, document)
        return found

    def _fill(self, found: Preview, listings: list[Listing], limit: int, document: str | None) -> None:
        detected = retry_read(self._root, lambda: self._detect(listings, document))
        cuts: list[Cut] = [cut for piece in detected.changes.slices for cut in piece.tasks]
        self._tell_of_scan(found, detected)
        self._observer.phase(detected.seen.wave + 1, "transform")
        task = self._task(detected.seen.wave + 1)
        if detected.picked is None:
            cuts += detected.ahead.splits
            draws, rest = draw(cuts, limit, lambda items: self._sample(found, task, items), self._runner.slots)
            left = reasons(rest)
        else:
            draws = self._one(found, task, detected.picked)
            picked = reasons(detected.picked.cuts)
            left = reasons(cuts) - picked + detected.ahead.but(detected.picked)
        found.unread = left.pop(Reason.LOOK, 0)
        found.more = dict(left)
        nodes = Nodes(self._plan, lambda _: None, time.monotonic)
        nodes.hear(report for each in draws for report in each.staged.nodes)
        for hint in nodes.hints():
            self._tell(found, hint)
        for each in draws:
            self._tell_of(found, each)

    # -- scan --------------------------------------------------------------------------------------

    def _entries(self, found: Preview, document: str | None) -> Only:
        """Entries of logs that are read by their ids: those that wait, and the one that is asked for."""
        if not (of := logs.logs_of(self._plan)):
            return NONE
        folder = Path(tempfile.mkdtemp(dir=self._folder))

        def look() -> Only:
            state = State(self._root, self._plan)
            with named_damage(state, folder):
                documents = Seen.of(state).state.documents.paths()
                return entries_that_wait(of, documents, folder, self._now_us)

        with State(self._root, self._plan).readers.reading():
            waiting = retry_read(self._root, look)
        if document is None:
            return waiting
        asked, notes = logs.asked_for(self._plan, document)
        for note in notes:
            self._tell(found, note)
        return logs.merged(waiting, asked)

    def _detect(self, listings: list[Listing], document: str | None) -> Detected:
        """One look at the state."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        state = State(self._root, self._plan)
        with named_damage(state, folder):
            seen = Seen.of(state)
            changes = detect_changes(listings, state, folder, now_us=self._now_us, slots=self._runner.slots)
            picked = None
            if document is not None:
                cuts = [cut for piece in changes.slices for cut in piece.tasks]
                through = logs.gone_through(state, document, logs.logs_of(self._plan), folder)
                picked = pick(document, cuts, listings, state.documents, folder, through)
            ahead = logs.logs_ahead(self._plan, state)
        return Detected(seen, changes, ahead, picked)

    def _tell_of_scan(self, found: Preview, detected: Detected) -> None:
        for node in self._plan.nodes:
            if isinstance(node, DestinationNode):
                found.destinations[node.name] = Expected(waiting=detected.seen.waiting.get(node.name, 0))
        found.complete = detected.changes.complete and detected.ahead.complete
        seen, plan = detected.seen, self._plan
        if seen.differences and not migration.is_pending(seen.state):
            found.stopped.append(str(PlanChanged(plan.name, plan.version, seen.differences)))
        for note in dict.fromkeys((*detected.changes.notes, *detected.changes.too_many, *detected.ahead.notes)):
            self._tell(found, note)
        for why in found.stopped:
            self._tell(found, f"A run would stop: {why} What follows is what it would do otherwise.")
        if migration.is_pending(seen.state):
            self._tell(
                found,
                "The run first migrates the state of an older version. What it processes again for that is "
                "not shown here.",
            )
        if detected.seen.commands:
            what = "request is waiting" if detected.seen.commands == 1 else "requests are waiting"
            self._tell(
                found,
                f"{detected.seen.commands} {what} (`retry`, `resolve`): the run applies them first. What becomes "
                "due by that is not shown here.",
            )

    # -- transform ---------------------------------------------------------------------------------

    def _task(self, number: int) -> Transform:
        for name in TABLES:
            (self._staged / name).mkdir(parents=True)
        return Transform(self._shipped, str(self._staged), number, self._now_us)

    def _sample(self, found: Preview, task: Transform, items: Sequence[tuple[Cut, int]]) -> list[Sampled]:
        """Tasks whose worker dies are run again one by one, and those that die again in isolation mode, as in a run."""

        def died(death: WorkerDied) -> None:
            self._tell(found, f"{death}. Its tasks are run again, one by one.")

        isolated = dataclasses.replace(task, isolated=True)
        return run_isolating(self._runner, Sample(task), items, Sample(isolated), died)

    def _one(self, found: Preview, task: Transform, picked: Picked) -> list[Draw]:
        """The document from each source that has it."""
        sampled = self._sample(found, task, [(cut, 1) for cut in picked.cuts])
        pairs = zip(picked.cuts, sampled, strict=True)
        draws = [Draw(cut.source, one.drawn, one.staged) for cut, one in pairs if one.drawn]
        taken_up = {each.source for each in draws}
        left = [(source, *row) for source, row in picked.anyway.items() if source not in taken_up]
        sampled = self._sample(found, task, [(cut, 1) for _, _, cut in left])
        for (source, why, _), one in zip(left, sampled, strict=True):
            draws.append(Draw(source, [d._replace(reason=why) for d in one.drawn], one.staged))
            what = "is unchanged" if why == "unchanged" else "has failed and is not due yet"
            self._tell(found, f"{picked.id} of source {source} {what}: a run would not process it now.")
        if not draws:
            raise UsageError(
                f"{picked.id}: no source of plan {self._plan.name} has a document of this id. An id is relative to its "
                "source's root, behind its prefix=; run preview without --doc to see some ids."
            )
        return draws

    # -- what came of it ---------------------------------------------------------------------------

    def _tell_of(self, found: Preview, drawn: Draw) -> None:
        """Read back what was staged."""
        if (blocked := drawn.staged.blocked) is not None:
            does = "would stop before" if blocked.stop else "would wait at"
            self._tell(found, f"source {drawn.source} {does} {blocked.id}: {blocked.why}")
        order = {d.id: n for n, d in enumerate(drawn.documents)}
        for each in drawn.documents:
            found.documents.append({"source": drawn.source, "document": each.id, "reason": each.reason})
        for destination, part in drawn.staged.outbox:
            table = read_part(self._staged / "outbox" / part.path)
            found.destinations.setdefault(destination, Expected()).gets += map(_delivery, _of(table, order))
        attempts = {n.name: n.policy.attempts for n in self._plan.nodes if isinstance(n, DestinationNode)}
        for part in drawn.staged.ledger:
            for row in _of(read_part(self._staged / "ledger" / part.path), order):
                expected = found.destinations.setdefault(row["destination"], Expected())
                event = {name: row[name] for name in _EVENT}
                match row["status"]:
                    case Status.DROPPED | Status.INDEXED:  # let go, or there as it is
                        expected.dropped.append(event)
                    case Status.ERROR:
                        expected.errors.append({**event, "attempts": attempts[row["destination"]]})
                    case _:
                        expected.refused.append(event)

    def _tell(self, found: Preview, text: str) -> None:
        found.messages.append(text)
        self._observer.message(text)


def _of(table: pa.Table, order: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of these documents' families, in the documents' order."""
    mine = table.filter(pc.is_in(table["origin"], value_set=pa.array(list(order), pa.string())))
    rows: list[dict[str, Any]] = mine.to_pylist()
    return sorted(rows, key=lambda row: order[row["origin"]])


def _delivery(row: dict[str, Any]) -> dict[str, Any]:
    """An outbox row as the destination would see it."""
    raw: bytes | None = row["raw"]
    text = None
    if raw is not None:
        with contextlib.suppress(UnicodeDecodeError):
            text = raw.decode()
    return {
        **{name: row[name] for name in _DELIVERY},
        "attempt": row["attempt"] + 1,
        "fields": None if row["fields"] is None else msgspec.json.decode(row["fields"]),
        "text": text,
        "bytes": None if raw is None else len(raw),
    }
