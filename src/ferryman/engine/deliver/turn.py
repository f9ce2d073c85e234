"""A lane's turn at its destination, and what it is given to send."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from ferryman import limits
from ferryman.destinations.base import Destination, Guarantee, Outcome
from ferryman.engine.live import Live
from ferryman.engine.order import HeldKeys
from ferryman.engine.results import Tries
from ferryman.engine.runner.child import Child, Died, TooLong
from ferryman.errors import DeliveryError, Unavailable, WorkerDied, as_exception, plain_text
from ferryman.plan import DestinationNode, Policy
from ferryman.records.rows import UNTOUCHED, RowResult, Rows, Status
from ferryman.state.journal import Journal
from ferryman.storage.files import StatePath


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
        """Last chunks whose rows all had the same outcome: its text, the number of chunks, the number of rows."""
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
        if chunks + 1 < limits.SAME_ERROR_CHUNKS or rows + len(outcomes or ()) < limits.SAME_ERROR_ROWS:
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


# Calls a destination so that a call that hangs can be given up: from a thread, or from a process that may die.

_END: Final = object()


class Hung(Exception):
    """A call of the destination did not return in time; what it did is not known."""


class Killed(Exception):
    """A call of the destination ended its process, or an allocation of it failed there: ``death`` says how."""

    def __init__(self, death: Died) -> None:
        super().__init__(death)
        self.death = death

    def __str__(self) -> str:
        return self.death.said(1)


class Caller(Protocol):
    """Makes a destination's calls, one after the other."""

    @property
    def left_behind(self) -> bool:
        """Does a call that was given up still run in this process?"""
        ...

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """The call's result; what it raises is raised here.

        Args:
            meanwhile: called about every ``limits.RESULT_EVERY_S`` until the call returns, where that can be.

        Raises:
            Hung: it did not return within ``timeout_s``.
            Killed: it ended its process.
        """
        ...

    def end(self) -> None:
        """No more calls."""


class ThreadCaller:
    """Runs a destination's calls one after the other in a daemon thread.

    After ``Hung`` the thread is left behind: it cannot be stopped, only its process can. This object must not be used
    again.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"ferryman-{name}", daemon=True)
        self._thread.start()
        self.left_behind = False

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call ``function`` in a thread, see ``Caller.call``."""
        self._calls.put((function, args))
        until = time.monotonic() + timeout_s
        while True:
            try:
                left = max(0.0, until - time.monotonic())
                fine, answer = self._answers.get(timeout=min(left, limits.RESULT_EVERY_S))
                break
            except queue.Empty:
                if time.monotonic() >= until:
                    self.left_behind = True
                    raise Hung(f"no answer within {timeout_s:g} s") from None
                meanwhile()
        if fine:
            return answer
        raise as_exception(answer)

    def end(self) -> None:
        """No more calls."""
        self._calls.put(_END)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _END:
            function, args = call
            try:
                self._answers.put((True, _whole(function(*args))))
            except BaseException as e:
                self._answers.put((False, e))


class ProcessCaller:
    """Runs a destination's calls in a child process. After a death the next call finds the destination open again.

    A call that is given up ends with its process.

    Args:
        destination: one that was not opened in this process: it travels to the child pickled.
    """

    left_behind = False

    def __init__(self, destination: Destination) -> None:
        self._opened: tuple[Any, ...] | None = None
        self._child = Child(_Called(destination))

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call ``function`` in a child process, see ``Caller.call``."""
        meanwhile()
        name = function.__name__
        try:
            answer = self._child.ask((name, args, self._opened), timeout_s)
        except TooLong:
            raise Hung(f"no answer within {timeout_s:g} s") from None
        except Died as e:
            raise Killed(e) from None
        except WorkerDied as e:  # by nothing that the destination did
            raise Unavailable(str(e)) from e
        if name == "open":
            self._opened = args
        return answer

    def end(self) -> None:
        """No more calls."""
        self._child.end()


class _Called:
    """In the child: calls the destination, which is open after a death as it was before."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._is_open = False

    def __call__(self, request: tuple[str, tuple[Any, ...], tuple[Any, ...] | None]) -> Any:  # pragma: no cover
        name, args, opened = request
        if opened is not None and not self._is_open:
            self._destination.open(*opened)
        self._is_open = True
        return _whole(getattr(self._destination, name)(*args))


def _whole(answer: Any) -> Any:
    """Return a call's answer as a whole; a generator works while it is read, and that is part of the call."""
    return [*answer] if isinstance(answer, Iterator) else answer


def universal(error: BaseException) -> bool:
    """Return whether the error concerns the destination, not one document."""
    if isinstance(error, DeliveryError):
        return error.universal
    return isinstance(error, (ConnectionError, TimeoutError))


# What an outcome of a destination means for its row: delivered, pending again, failed, or in doubt.


def row_result(row: int, before: Tries, outcome: Outcome, policy: Policy, now_us: int) -> RowResult:
    """Return the journal's row for an outcome that was not ok."""
    attempt, since, transient = before.attempt + 1, before.since, before.transient
    kind, why = outcome.kind, plain_text(outcome.why)
    if kind == "stale":
        return RowResult(row, Status.INDEXED, "stale: the destination has something newer", attempt, None)
    if outcome.universal or kind == "held":
        return RowResult(row, UNTOUCHED, why, before.attempt, None)  # no attempt is spent
    if kind == "killed":
        return RowResult(row, Status.ERROR_DOC, why, attempt, None)
    if kind == "permanent":
        return RowResult(row, Status.DEAD, why, attempt, None)
    if kind == "unknown" and policy.guarantee is Guarantee.AT_MOST_ONCE:
        return RowResult(row, Status.INDEXING, f"unknown: {why}", attempt, None)
    waited_s = None
    if kind == "transient":
        since, transient = since or now_us, (transient or 0) + 1
        waited_s = (now_us - since) / 1e6
    if policy.limits.is_exhausted(attempt, transient or 0, waited_s):
        return RowResult(row, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt, None)
    patient = waited_s is not None and policy.patience_s is not None
    wait = random.uniform(0, policy.longest_wait_s(attempt, patient=patient))
    return RowResult(row, Status.ERROR, why, attempt, now_us + int(wait * 1e6), since, transient)
