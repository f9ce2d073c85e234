"""A lane's calls of its destination, which may hang or kill their process, and the meaning of outcomes for rows."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ferryman import limits
from ferryman.destinations.base import Delivery, Destination, Guarantee, Outcome
from ferryman.engine.deliver.doubts import LaneDoubt
from ferryman.engine.live import ProgressWriter
from ferryman.engine.results import Attempts
from ferryman.engine.retries import judge_failure
from ferryman.engine.runner.child import Child, Died, TooLong
from ferryman.engine.send_order import HeldKeys, UndeliveredFamilies, UndeliveredUpsert
from ferryman.errors import (
    DeliveryError,
    NoChild,
    PermanentError,
    Unavailable,
    as_exception,
    describe,
    plain_text,
)
from ferryman.memory import describe_memory_error, is_failed_allocation
from ferryman.net.faults import is_connection_error
from ferryman.observe import Chunk
from ferryman.plan import DestinationNode, Policy
from ferryman.records.rows import HELD_DELETE, STALE, UNTOUCHED, RowResult, RowSpan, Status
from ferryman.state.journal import Journal
from ferryman.storage.files import StatePath


class LaneStop(Exception):
    """Raised to end a lane; its remaining rows stay pending.

    Attributes:
        hung: a call was abandoned.
        sequences: of the rows whose ``write`` failed as if the whole destination did, or hung; (): the rows played no
            part.
    """

    def __init__(
        self, why: str = "", permanent: bool = False, *, hung: bool = False, sequences: Sequence[int] = ()
    ) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent, self.hung, self.sequences = why, permanent, hung, sequences


class DeliveryPass(NamedTuple):
    """A pass over the outbox, as all its lanes see it.

    Attributes:
        epoch: epoch of the driver.
        now_us: time of its beginning, µs since 1970.
        pace_s: seconds after which no chunk is started.
        progress_folder: folder for live progress; see ``engine.live``.
        notes_chunks: whether lanes report their chunks.
    """

    number: int
    epoch: int
    now_us: int
    pace_s: float
    progress_folder: str = ""
    notes_chunks: bool = False


class Turn:
    """State of a lane during one pass: its destination and how that is called, the journal, the deadline.

    Attributes:
        number: number of the pass.
        epoch: epoch of the driver.
        isolated: a worker died over this destination, or it hung: it is called in a child process.
        progress: reports the lane's progress.
        at_most_once: the guarantee is at-most-once.
        exactly_once: the guarantee is exactly-once, so sending again has no effect.
        deadline: monotonic time; chunks that were not started by then stay pending.
        claimed_elsewhere: chunks that another worker has claimed.
        accepted: the destination has answered for a row in this pass, and not for all rows alike.
        alone: sequence of each row that failed alone in this pass as if the whole destination did -> the outcome.
        sent_alone: sequences of rows that were sent alone and failed so.
        takes_bytes: largest chunk that was accepted in halves of one that was not; 0: there was none.
        held_keys: keys with an export that was not delivered.
        versions: sources of which versions of a document must not overtake each other.
        undelivered: families with an upsert that was not delivered.
        chunks: the first calls of ``write``, if they are noted.
    """

    def __init__(
        self,
        root: StatePath,
        node: DestinationNode,
        current: DeliveryPass,
        *,
        isolated: bool = False,
        ended_holds: bool = True,
        doubt: LaneDoubt | None = None,
        versions: Collection[str] = (),
    ) -> None:
        self.versions = versions
        self.doubt = doubt or LaneDoubt()
        self.accepted = False
        self.alone: dict[int, Outcome] = {}
        self.takes_bytes = 0
        self.sent_alone: set[int] = set()
        self._failures_in_a_row = 0
        """Sends since the last one that was accepted."""
        self._context: tuple[Any, ...] = ()
        """Arguments of ``open``."""
        self._is_open = False
        self.progress = ProgressWriter(current.progress_folder)
        self.root = root
        self.node = node
        self.number = current.number
        self.epoch = current.epoch
        self.now_us = current.now_us
        self.journal = Journal(root / "journal")
        self.at_most_once = node.policy.guarantee is Guarantee.AT_MOST_ONCE
        self.exactly_once = node.policy.guarantee is Guarantee.EXACTLY_ONCE
        self.isolated = isolated
        self.deadline = time.monotonic() + current.pace_s
        self.claimed_elsewhere: list[RowSpan] = []
        self.held_keys = HeldKeys(ended_holds=ended_holds)
        self.undelivered = UndeliveredFamilies()
        self.chunks: list[Chunk] = []
        self._chunks_left = limits.CHUNK_SPANS if current.notes_chunks else 0
        self._same_error: tuple[str, int, int] = ("", 0, 0)
        """Error that all rows of the last chunks had in common: its text, the number of chunks, the number of rows."""
        self._caller: Caller = ProcessCaller(node.destination) if isolated else ThreadCaller(node.name)

    @property
    def has_abandoned_call(self) -> bool:
        """Return whether an abandoned call still runs in this process."""
        return self._caller.has_abandoned_call

    def call(self, function: Callable[..., Any], *args: Any, meanwhile: Callable[[], object] = lambda: None) -> Any:
        """Call the destination; raises what it raises, and ``Hung``."""
        return self._caller.call(function, *args, timeout_s=self.node.policy.send_timeout, meanwhile=meanwhile)

    def write(self, chunk: list[Delivery], meanwhile: Callable[[], object]) -> list[Any] | None:
        """Call the destination's ``write``; return its outcomes as a list, None if it gave none."""
        if not self._chunks_left:
            outcomes = self.call(self.node.destination.write, [*chunk], meanwhile=meanwhile)
            return None if outcomes is None else list(outcomes)
        self._chunks_left -= 1
        began, clock = time.time(), time.perf_counter()
        accepted, error = 0, ""
        try:
            outcomes = self.call(self.node.destination.write, [*chunk], meanwhile=meanwhile)
            outcomes = None if outcomes is None else list(outcomes)
            accepted = 0 if outcomes is None else outcomes.count(Outcome.ok())
            return outcomes
        except BaseException as e:
            error = type(e).__name__
            raise
        finally:
            took_s = time.perf_counter() - clock
            self.chunks.append(Chunk(self.node.name, began, took_s, len(chunk), accepted, error))

    def open(self, *context: Any) -> None:
        """Open the destination."""
        self._context = context
        self._call_for_lane(self.node.destination.open, *context)
        self._is_open = True

    def close(self) -> None:
        """Close the destination."""
        self._is_open = False
        self._call_for_lane(self.node.destination.close)

    def close_broken(self) -> None:
        """Close the destination after a ``write`` that failed as a whole: its connection may be broken, and closing it
        may fail, too.

        Raises:
            LaneStop: it hangs. Nothing may be called any more: its answer would be taken for that of the next call.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            self.call(self.node.destination.close)
        except Hung as e:
            if self.has_abandoned_call:
                raise LaneStop(f"close: {e}", hung=True) from e
        except Exception:
            return  # what it says of a broken connection is of no interest

    def reopen(self) -> None:
        """Close and open the destination after a ``write`` that failed as a whole."""
        self.close_broken()
        self.open(*self._context)

    def _call_for_lane(self, function: Any, *args: Any) -> None:
        """Call ``open`` or ``close``; an error concerns the whole destination, so it stops the lane."""
        try:
            self.call(function, *args)
        except Hung as e:
            raise LaneStop(f"{function.__name__}: {e}", hung=True) from e
        except Exception as e:
            why = f"{function.__name__}: {describe_memory_error(e)}" if is_failed_allocation(e) else describe(e)
            raise LaneStop(why, isinstance(e, PermanentError)) from e

    def may_doubt(self) -> bool:
        """Return whether another send may show that rows are to blame, not the destination."""
        return self._failures_in_a_row < limits.DOUBTED_SENDS

    def unexplained(self) -> list[int]:
        """Return the rows that failed alone although nothing shows that the destination is well: no other row was
        accepted, in this pass or in the one in which their chunk failed first."""
        return [] if self.accepted else [n for n in self.alone if n not in self.doubt.suspects]

    def note_answers(self, outcomes: list[Outcome] | None) -> None:
        """Record whether the destination has answered for single rows."""
        if outcomes is None or any(not o.universal and o.kind in _ANSWERS for o in outcomes):
            self.accepted, self._failures_in_a_row = True, 0
        else:
            self._failures_in_a_row += 1

    def may_send(self) -> bool:
        """Return whether the pass is open and the deadline has not passed (step 2)."""
        return self.journal.open_for(self.number) and time.monotonic() <= self.deadline

    def check_same_error(self, outcomes: list[Outcome] | None) -> LaneStop | None:
        """Return what stops the lane if every row of many consecutive chunks failed with the same text, which means
        that the destination as a whole has failed; None: continue."""
        kinds_and_reasons = {(o.kind, plain_text(o.why)) for o in outcomes or ()}
        if len(kinds_and_reasons) != 1 or next(iter(kinds_and_reasons))[0] not in (
            "permanent",
            "transient",
            "unforeseen",
        ):
            self._same_error = ("", 0, 0)
            return None
        [(kind, why)] = kinds_and_reasons
        before, chunks, rows = self._same_error if self._same_error[0] == why else (why, 0, 0)
        self._same_error = (before, chunks + 1, rows + len(outcomes or ()))
        if chunks + 1 < limits.SAME_ERROR_CHUNKS or rows + len(outcomes or ()) < limits.SAME_ERROR_ROWS:
            return None
        remedy = "once it is fixed, `ferryman retry PLAN` resends what it refused"
        return LaneStop(f"it refused every row of {chunks + 1} chunks in a row: {why} ({remedy})", kind == "permanent")

    def end(self) -> None:
        """End the calls. If live workers have claimed chunks of this lane, wait for their results, at most as long as a
        call may take."""
        self._caller.end()
        self.progress.flush()
        until = time.monotonic() + self.node.policy.send_timeout
        while self.claimed_elsewhere and time.monotonic() < until and self.journal.open_for(self.number):
            answered = self.journal.answered(self.number)
            self.claimed_elsewhere = [
                m for m in self.claimed_elsewhere if m not in answered and self.journal.owner_alive(self.number, m)
            ]
            if self.claimed_elsewhere:
                time.sleep(0.05)


# Callers: they call a destination in a thread or in a child process, so that a call that hangs can be abandoned.

_END: Final = object()


class Hung(Exception):
    """A call of the destination did not return in time; whether it took effect is unknown."""


class Killed(Exception):
    """A call of the destination killed its process, or ran out of memory in it; ``death`` has the details."""

    def __init__(self, death: Died) -> None:
        super().__init__(death)
        self.death = death

    def __str__(self) -> str:
        return self.death.describe(1)


class Caller(Protocol):
    """Calls a destination, one call at a time."""

    @property
    def has_abandoned_call(self) -> bool:
        """Return whether an abandoned call still runs in this process."""
        ...

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call ``function``, and return what it returns or raise what it raises.

        Args:
            meanwhile: called about every ``limits.RESULT_EVERY_S`` seconds until the call returns, if this caller
                supports it.

        Raises:
            Hung: it did not return within ``timeout_s``.
            Killed: it ended its process.
        """
        ...

    def end(self) -> None:
        """End the thread or process; no calls may follow."""


class ThreadCaller:
    """Runs a destination's calls one after the other in a daemon thread.

    After ``Hung`` the thread is abandoned, since only its whole process can be stopped. The object must not be used
    again.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"ferryman-{name}", daemon=True)
        self._thread.start()
        self.has_abandoned_call = False

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call ``function`` in a thread, see ``Caller.call``."""
        if self.has_abandoned_call:
            raise Hung("an earlier call has not returned")
        self._calls.put((function, args))
        until = time.monotonic() + timeout_s
        while True:
            try:
                remaining_s = max(0.0, until - time.monotonic())
                succeeded, answer = self._answers.get(timeout=min(remaining_s, limits.RESULT_EVERY_S))
                break
            except queue.Empty:
                if time.monotonic() >= until:
                    self.has_abandoned_call = True
                    raise Hung(f"no answer within {timeout_s:g} s{self._position()}") from None
                meanwhile()
        if succeeded:
            return answer
        raise as_exception(answer)

    def end(self) -> None:
        """End the thread or process; no calls may follow."""
        self._calls.put(_END)

    def _position(self) -> str:
        """Return where the call is, as the end of a sentence: a server that is silent and a lock look alike without."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return ""
        code = frame.f_code
        file = "/".join(Path(code.co_filename).parts[-2:])
        return f"; it was in {code.co_name}, line {frame.f_lineno} of {file}"

    def _work(self) -> None:
        while (call := self._calls.get()) is not _END:
            function, args = call
            try:
                self._answers.put((True, _read_all(function(*args))))
            except BaseException as e:
                self._answers.put((False, e))


class ProcessCaller:
    """Runs a destination's calls in a child process. If that dies, the destination is opened again before the next
    call.

    An abandoned call is ended together with the child process.

    Args:
        destination: must not be open in this process, since it is pickled for the child.
    """

    has_abandoned_call = False

    def __init__(self, destination: Destination) -> None:
        self._opened: tuple[Any, ...] | None = None
        self._child = Child(_DestinationServer(destination))

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
        except NoChild as e:  # not because of the destination
            raise Unavailable(str(e)) from e
        if name == "open":
            self._opened = args
        return answer

    def end(self) -> None:
        """End the thread or process; no calls may follow."""
        self._child.end()


class _DestinationServer:
    """Calls the destination in the child process; opens it first if it was open in an earlier child that died."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._is_open = False

    def __call__(self, request: tuple[str, tuple[Any, ...], tuple[Any, ...] | None]) -> Any:  # pragma: no cover
        name, args, opened = request
        if opened is not None and not self._is_open and name != "open":
            self._destination.open(*opened)
        self._is_open = True
        return _read_all(getattr(self._destination, name)(*args))


def _read_all(answer: Any) -> Any:
    """Return a call's answer, with a generator converted to a list, since consuming it is part of the call."""
    return [*answer] if isinstance(answer, Iterator) else answer


_ANSWERS: Final = ("ok", "stale", "permanent", "transient")
"""Kinds of outcomes by which a destination answers for a row, accepting or refusing it."""


def universal_outcome(error: BaseException, why: str) -> Outcome:
    """Return the outcome of each row of a chunk for an error that concerns the destination as a whole.

    Its kind matters once a row has failed so alone, see ``alone_outcome``.
    """
    if isinstance(error, PermanentError):
        return Outcome("permanent", why, True)
    declared = isinstance(error, Unavailable) and not is_connection_error(error)
    return Outcome("away" if declared else "unforeseen", why, True)


def is_doubtful(outcome: Outcome) -> bool:
    """Return whether the rows may be to blame, although this sounds as if the whole destination failed.

    ``Outcome.unavailable`` is believed: the destination has answered, and says itself that it has no room now.
    """
    return outcome.universal and outcome.kind != "transient"


def alone_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome of a row that fails as if the whole destination did, each time it is sent alone.

    What raises ``Unavailable`` is retried with patience, as any transient error; a broken connection or a refusal that
    others do not meet spends attempts.
    """
    kind = "transient" if outcome.kind == "away" else "unforeseen"
    return Outcome(kind, f"each time this is sent, while others are accepted: {plain_text(outcome.why)}")


def is_universal(error: BaseException) -> bool:
    """Return whether the error concerns the destination as a whole."""
    if isinstance(error, DeliveryError):
        return error.universal
    return isinstance(error, (ConnectionError, TimeoutError))


# Outcomes of a destination, and what they mean for their rows: delivered, pending again, failed, or in doubt.


def row_result(
    row: int, before: Attempts, outcome: Outcome, policy: Policy, now_us: int, not_read: str = ""
) -> RowResult:
    """Return the result to record in the journal for an outcome other than ok.

    Args:
        not_read: message of the delivery if the outcome is ok after all.
    """
    attempt, kind, why = before.attempt + 1, outcome.kind, plain_text(outcome.why)
    if kind == "ok":
        return RowResult(row, Status.INDEXED, not_read, attempt, None)
    if kind == "stale":
        return RowResult(row, Status.INDEXED, STALE, attempt, None)
    if outcome.universal or kind == "held":
        return RowResult(row, UNTOUCHED, why, before.attempt, None)  # no attempt is spent
    if kind == "killed":
        return RowResult(row, Status.ERROR_DOC, why, attempt, None)
    if kind == "permanent":
        return RowResult(row, Status.DEAD, why, attempt, None)
    if kind == "unknown" and policy.guarantee is Guarantee.AT_MOST_ONCE:
        return RowResult(row, Status.INDEXING, f"unknown: {why}", attempt, None)
    failed = judge_failure(before, policy.limits, now_us, transient=kind == "transient")
    if failed.is_last:
        return RowResult(row, Status.DEAD, f"{why} (attempt {attempt}, the last)", attempt, None)
    after = failed.attempts
    return RowResult(row, Status.ERROR, why, attempt, failed.next_us(policy, now_us), after.since, after.transient)


def waiting_result(row: int, before: Attempts, upsert: UndeliveredUpsert) -> RowResult:
    """Return the result to record for a delete that waits for an upsert of its family; it spends no attempt."""
    if upsert.due is None:
        why = (
            f"{HELD_DELETE}{upsert.document}, which the newer version has in its place, was not delivered; "
            "`ferryman retry PLAN` sends both again"
        )
        return RowResult(row, Status.DEAD, why, before.attempt, None)
    why = f"waits until {upsert.document}, which the newer version has in its place, is delivered"
    return RowResult(row, Status.ERROR, why, before.attempt, upsert.due, before.since, before.transient)
