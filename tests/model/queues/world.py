"""What the world of a plan between queues looks like; see ``tests.model.state`` for how worlds are made.

Entries of the log, and rows, are known by their number; a row's number is its sequence.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.state import Budget, Tables

OUT, ERRORS = range(2)
"""The queues that the plan appends to."""

NAMES: Final = ("the output queue", "the error queue")

STEP, REFUSAL = "step", "refusal"
"""Causes of an error message."""


class Row(NamedTuple):
    """A committed row of the outbox: a message for one of the queues."""

    entry: int
    into: int
    cause: str
    """Of an error message; of an output: empty."""
    wave: int


class Message(NamedTuple):
    """What is in a queue, of the row with this sequence."""

    sequence: int
    entry: int


class QueueLog(NamedTuple):
    """A queue: its messages by index, and what its last append has noted of its writer."""

    messages: tuple[Message, ...] = ()
    writer: int = 0
    """Always 0: the writer's name is that of the plan's state. Only under a mutation each driver has its own."""
    highest: int = -1


class Fold(NamedTuple):
    """What a journal comes to: sequences that were appended, and those that were refused."""

    appended: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()


class Head(NamedTuple):
    """The entry at which an ordered log waits, and the attempts that it has had."""

    entry: int = -1
    attempt: int = 0


class Stop(NamedTuple):
    """The entry that the plan stops before."""

    entry: int = -1
    passed: bool = False
    """An operator has the plan pass it: if it fails once more, it has failed, and the plan goes on."""
    told: bool = False
    """Its last failure has its event; a command wants the next one told, too."""


class Command(NamedTuple):
    """A file of an operator's."""

    verb: str
    entry: int
    """That it is about. Only under a mutation: -1, whichever the plan stops before."""


SKIP, RETRY = "skip", "retry"


class Staging(NamedTuple):
    """What a walk over some entries has staged."""

    rows: tuple[tuple[int, int, str], ...] = ()
    """(entry, queue, cause)."""
    waits: tuple[tuple[int, int], ...] = ()
    """Rows of ``documents``: (entry, attempts); 0: it does not wait any more."""
    blocked: Head = Head()
    """The first entry that could not be processed, where the log is ordered."""
    stops: bool = False
    """That entry failed for good: the plan stops before it."""
    failed: tuple[int, ...] = ()
    """Entries that failed, and that an operator has the plan pass."""


Chunk = tuple[int, ...]


class Lane(NamedTuple):
    """What one task appends to one queue, in the order of the sequences."""

    into: int
    chunks: tuple[Chunk, ...]


class Driver(NamedTuple):
    """A driver's memory."""

    at: str
    epoch: int = 0
    wave: int = 0
    overtaken: Tables = (0, 0, 0)
    entries: tuple[int, ...] = ()
    """What its wave walks."""
    retries: bool = False
    """These are entries that waited for their retry, not the next ones."""
    head: Head = Head()
    """The entry before which its wave ends."""
    staged: tuple[Staging, ...] = ()
    """The last one counts."""
    reached: int = 0
    """The position that its wave commits."""
    stopping: int = -1
    """The entry that stops the plan, as of the walk that counts."""
    halted: bool = False
    """Its run reads no more of the log."""
    command: Command | None = None
    """Applied, and still a file."""
    work: tuple[Lane, ...] = ()
    fold: Fold = Fold()


class Worker(NamedTuple):
    """A task that appends; it outlives its driver."""

    pass_: int
    epoch: int
    into: int
    at: str
    chunks: tuple[Chunk, ...]
    seen: int = -1
    """Messages of the queue, as it was read last."""
    new: Chunk = ()
    """Rows of the first chunk that were not among them."""
    done: Fold = Fold()
    """Not yet in the journal."""
    orphan: bool = False
    """Nobody waits for it."""


class Result(NamedTuple):
    """A file of the journal."""

    pass_: int
    fold: Fold


class Undone(NamedTuple):
    """What the tables were before a commit that is not synced yet."""

    position: int
    head: Head
    rows: int
    outbox: tuple[int, ...]
    wave: int
    staged: tuple[tuple[int, int], ...]
    failures: tuple[int, ...]
    stop: Stop
    stopped: int
    failed: tuple[int, ...]


class State(NamedTuple):
    """Everything."""

    arrived: int
    """Observed: entries that the log has."""
    position: int = 0
    """The entry that comes next; committed with the wave."""
    head: Head = Head()
    """Committed beside the position."""
    stop: Stop = Stop()
    """Committed beside the position, too."""
    stopped: int = -1
    """Observed: the entry that the last walk that was committed has ended before, as it failed for good."""
    failed: tuple[int, ...] = ()
    """Events: entries that failed, and have no message."""
    commands: tuple[Command, ...] = ()
    """Those that operators have queued."""
    may_ask: tuple[str, ...] = ()
    """What an operator may still ask for."""
    asked: tuple[Command, ...] = ()
    """Observed: what operators have asked for."""
    ended: bool = False
    """The last run ended as the plan stops, and no command has been applied since."""
    noted: int = 0
    """Where the log thinks the plan stands: what lies before it may be removed."""
    waits: tuple[tuple[int, int], ...] = ()
    """``documents``: entries that wait out of order, with their attempts."""
    rows: tuple[Row, ...] = ()
    outbox: tuple[int, ...] = ()
    """Pending rows."""
    refused: tuple[int, ...] = ()
    """Rows that are held for review."""
    ledger: tuple[str, ...] = ()
    wave: int = 0
    staged: tuple[tuple[int, int], ...] = ()
    """``documents`` rows that the last wave's commit has named."""
    unsynced: Undone | None = None
    """That commit is in the log, and a power cut would undo it."""
    epoch: int = 0
    settled: Tables = (0, 0, 0)
    fold: Fold = Fold()
    """What the last commit of the ledger says that the journal came to."""
    results: frozenset[Result] = frozenset()
    closed: int = 0
    queues: tuple[QueueLog, QueueLog] = (QueueLog(), QueueLog())
    drivers: tuple[Driver, ...] = ()
    workers: tuple[Worker, ...] = ()
    failures: tuple[int, ...] = ()
    """Observed: how often each entry was committed as one that waits."""
    budget: Budget = Budget()
    remembered: tuple[str, ...] = ()
    """Observed: what was done that no rule allows."""


class QueueConfig(NamedTuple):
    """What is explored."""

    name: str
    entries: int
    budget: Budget = Budget()
    answers: tuple[str, ...] = ()
    """What a fault may be: transient, permanent (of the step); lost: an append takes effect, and its answer does not
    come; down: it does not take effect."""
    refused: frozenset[int] = frozenset()
    """Entries whose outputs the output queue refuses."""
    ordered: bool = True
    late: int = 0
    """So many of the entries come while the plan runs."""
    batch: int = 2
    slice: int = 9
    """Entries a wave."""
    attempts: int = 2
    lock: bool = True
    on_error: str = "error queue"
    """stop: the plan stops before an entry that failed for good, and has no error queue."""
    commands: tuple[str, ...] = ()
    """What an operator may ask for when the plan has stopped, each once."""
    mutation: str = ""

    def first(self) -> State:
        """The world before the first start."""
        nothing = (0,) * self.entries
        return State(self.entries - self.late, budget=self.budget, failures=nothing, may_ask=self.commands)
