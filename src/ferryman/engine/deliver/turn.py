"""A lane's turn at its destination, and what it is given to send."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ferryman import limits
from ferryman.destinations.base import Guarantee, Outcome
from ferryman.engine.deliver.callers import Caller, ProcessCaller, ThreadCaller
from ferryman.engine.deliver.key_order import HeldKeys
from ferryman.engine.deliver.precedence import SendOrder
from ferryman.engine.live import Live
from ferryman.errors import plain_text
from ferryman.plan import DestinationNode
from ferryman.records.row_results import Rows
from ferryman.state.journal import Journal
from ferryman.storage.files import StatePath


class OutboxFile(NamedTuple):
    """A file with pending rows."""

    path: str
    key: int
    """Its first sequence."""
    order: SendOrder | None = None
    """What is said about rows of documents of which several rows are pending."""


class LaneStop(Exception):
    """The lane ends here; the rest stays pending. ``hung``: a call was given up."""

    def __init__(self, why: str = "", permanent: bool = False, *, hung: bool = False) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent, self.hung = why, permanent, hung


class Turn:
    """A lane's turn at its destination in one pass: who is called and for how long, and where it is noted.

    Attributes:
        number: the pass.
        epoch: of the driver.
        careful: a worker died here before, or it hung: the destination is called in a child process.
        live: tells how far the lane is.
        once: the guarantee is at-most-once.
        exactly: it is exactly-once: what is sent again has no effect.
        until: monotonic time; what has not begun by then stays pending.
        met: chunks that somebody else has claimed.
        held: keys of which an export has not arrived.
    """

    def __init__(
        self,
        root: StatePath,
        node: DestinationNode,
        number: int,
        *,
        epoch: int,
        now_us: int,
        pace_s: float,
        isolated: bool = False,
        live: str = "",
        ended_holds: bool = True,
    ) -> None:
        self.live = Live(live)
        self.root = root
        self.node = node
        self.number = number
        self.epoch = epoch
        self.now_us = now_us
        self.journal = Journal(root / "journal")
        self.once = node.policy.guarantee is Guarantee.AT_MOST_ONCE
        self.exactly = node.policy.guarantee is Guarantee.EXACTLY_ONCE
        self.isolated = isolated
        self.until = time.monotonic() + pace_s
        self.met: list[Rows] = []
        self.held = HeldKeys(ended_holds=ended_holds)
        self._alike: tuple[str, int, int] = ("", 0, 0)
        """Of the last chunks: what was said of all their rows, how many chunks, how many rows."""
        self._sender: Caller = ProcessCaller(node.destination) if isolated else ThreadCaller(node.name)

    @property
    def left_behind(self) -> bool:
        """Does a call that was given up still run in this process?"""
        return self._sender.left_behind

    def call(self, function: Callable[..., Any], *args: Any, meanwhile: Callable[[], object] = lambda: None) -> Any:
        """Call the destination; raises what it raises, and ``Hung``."""
        return self._sender.call(function, *args, timeout_s=self.node.policy.send_timeout, meanwhile=meanwhile)

    def may_send(self) -> bool:
        """2. Is the pass open, and is there time?"""
        return self.journal.open_for(self.number) and time.monotonic() <= self.until

    def all_alike(self, outcomes: list[Outcome] | None) -> LaneStop | None:
        """Has every row of many chunks in a row failed with the same words? Then it is the destination's trouble."""
        said = {(o.kind, plain_text(o.why)) for o in outcomes or ()}
        if len(said) != 1 or next(iter(said))[0] not in ("permanent", "transient", "unforeseen"):
            self._alike = ("", 0, 0)
            return None
        [(kind, why)] = said
        before, chunks, rows = self._alike if self._alike[0] == why else (why, 0, 0)
        self._alike = (before, chunks + 1, rows + len(outcomes or ()))
        if chunks + 1 < limits.ALIKE_CHUNKS or rows + len(outcomes or ()) < limits.ALIKE_ROWS:
            return None
        again = "once it is fixed, `ferryman retry` resends what it refused"
        return LaneStop(f"it refused every row of {chunks + 1} chunks in a row: {why} ({again})", kind == "permanent")

    def end(self) -> None:
        """No more calls. Another's live claim: do not return before its result is there, at most a send's time."""
        self._sender.end()
        self.live.flush()
        until = time.monotonic() + self.node.policy.send_timeout
        while self.met and time.monotonic() < until and self.journal.open_for(self.number):
            done = self.journal.answered(self.number)
            self.met = [m for m in self.met if m not in done and self.journal.owner_alive(self.number, m)]
            if self.met:
                time.sleep(0.05)
