"""Scheduler of ``serve``: decides which item each thread works on next.

An *item* is a job, batch or access request. A *lane* holds the items of one kind of work, such as the jobs in one
state: those that are ready, locked, the most urgent first; and those that are to be tried again later, unlocked, so
that operators and other servers can act on them meanwhile. A free thread

1. polls the queue for one more item of the lane, if there may be any, and adds it;
2. takes the lane's most urgent item; acquires it again if it is one that was to be tried again;
3. works on it if the lane is open, and otherwise unlocks it.

Items whose work is quick are polled for, taken and worked on in groups, whose changes of the queue are made together.
Groups of a lane grow while all work in them is quick; as soon as some is not, they begin with one item again, so that
slow work holds up few others.

So a more urgent item in the queue is never passed over for one that waits here. A lane has as many threads at most as
it was given, so that no kind of work can hold up another one. Items that need a slow host wait, unlocked, for a lane of
their own.

A lane is not polled while nothing can have changed: its watch reports changes by anybody.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ferryman.errors import FerrymanError, describe
from ferryman.intake import LockLost, NodeInvalid, QueueLost, StateError
from ferryman.intake.service.errors import SlowHost, StopRequested, TryLater
from ferryman.intake.store.base import Watch

log = logging.getLogger("ferryman.intake")

PrintLine = Callable[[str], None]

POLL_PAUSE_S: Final = 0.05
"""Minimum seconds from a poll that found nothing to the next one; the first change is seen at once."""

OWN_MOVES_PAUSE_S: Final = 1.0
"""Minimum seconds between two polls if this process itself has moved items into or out of the lane since then: the
watch fires for its own moves, too, and so says nothing about others."""

QUIET_POLL_S: Final = 2.0
"""Seconds from a poll that found nothing to the next one even if the watch has not fired, since a lock that ends with
its process does not trigger it."""

EMPTY_POLL_S: Final = 60.0
"""Seconds from a poll that found nothing to the next one in a lane that is empty."""

ERROR_PAUSE_S: Final = 0.5
"""Seconds for which a lane pauses after an item was taken away, so that the same message is not repeated a thousand
times."""

LONGEST_WAIT_S: Final = 10.0
"""Longest pause between two attempts of an item that cannot be worked on yet, unless its first one was longer. Pauses
double until then, since each attempt acquires the item again: a thousand jobs that wait for space cost a hundred
acquisitions a second."""

QUEUE_LOST_RETRY_S: Final = 1.0
"""Seconds between two attempts while the queue's server does not answer."""

GROUP_ITEMS: Final = 32
"""Largest group of items: their changes cost little more than those of one, and a more urgent item waits for no more
than some tens of milliseconds."""

GROUP_S: Final = 2.0
"""Seconds in which a group is worked on if its work is as quick as it was expected to be."""

GRACE_S: Final = 30.0
"""Seconds after a stop in which threads have to finish or release their items. Locks of those that still hang end with
this process."""

NEVER: Final = float("inf")


class LaneWatch(NamedTuple):
    """How a lane learns that there may be items in the queue."""

    watch: Callable[[Callable[[], None]], Watch] | None = None
    """Watches the queue, and calls the given function when it may have changed; None: poll every ``poll_s``."""
    is_empty: Callable[[], bool] = lambda: False
    """Returns whether there is nothing, locked or not; this stays so until the watch fires."""
    poll_s: float = QUIET_POLL_S
    """Seconds from a poll that found nothing to the next one, unless the watch fires."""


class GroupWork(NamedTuple):
    """How a lane works on several items together."""

    acquire: Callable[[AbstractSet[str], int], list[Any]]
    """Acquires the most urgent items, except those with these ids, at most this many."""
    work: Callable[[list[Any]], bool]
    """Works on locked items, and unlocks them or hands them on, also if it raises. Returns whether the work on each of
    them was quick."""


class WorkLane:
    """Items of one kind of work.

    Args:
        threads: number of items that are worked on at once.
        acquire: acquires the most urgent item in the queue, except those with the ids in its argument; returns None if
            there is none. An item needs an id and a lock only if its work may raise ``TryLater``.
        work: works on an item, and unlocks it or hands it on. After ``TryLater`` it is tried again, after ``SlowHost``
            in the lane ``slow``; after any other exception the scheduler unlocks it.
        is_open: returns whether items can be worked on at all now; called before each one.
        slow: lane for items that need a slow host; None: this lane waits for slow hosts.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        acquire: Callable[[AbstractSet[str]], Any] | None,
        work: Callable[[Any], object],
        *,
        watch: LaneWatch = LaneWatch(),  # noqa: B008 - immutable
        slow: WorkLane | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self.threads, self.acquire, self.work = name, threads, acquire, work
        self.group: GroupWork | None = None
        """How several items are worked on together, in place of ``acquire`` and ``work``."""
        self.group_items = 1
        """Number of items that are polled for, and worked on, together now."""
        self.slow, self.is_open, self.watching = slow, is_open, watch
        self.ready: list[tuple[Any, int, Any]] = []
        """Heap of (urgency, number, item) of locked items."""
        self.put_at = 0.0
        """Time at which ``Scheduler.put`` last added items."""
        self.waiting: list[tuple[float, Any, int, Any]] = []
        """Heap of (time of the next attempt, urgency, number, item) of items that are not locked meanwhile."""
        self.waiting_ids: set[str] = slow.waiting_ids if slow else set()
        """Ids of items that wait here or in ``slow``; polls skip them."""
        self.attempts: dict[str, int] = slow.attempts if slow else {}
        """Id of an item that was to be tried again -> number of attempts so far."""
        self.busy = 0
        self.is_polling = False
        self.poll_at = NEVER if acquire is None else 0.0
        self.polled_at = -OWN_MOVES_PAUSE_S
        """Time of the last poll that found nothing."""
        self.has_own_moves = False
        """Whether this process has moved items into or out of the lane since the last poll."""
        self.is_changed = True
        """Whether the watch has fired, or there is none yet."""
        self.watch: Watch | None = None
        self.has_lost_queue = False

    def next_at(self) -> float:
        """Return the time from which a thread can do something here."""
        if self.ready:
            return 0.0
        return min(self.waiting[0][0] if self.waiting else NEVER, NEVER if self.is_polling else self.poll_at)

    def earliest_poll(self) -> float:
        """Return the earliest time of a poll for a change that the watch has reported."""
        return self.polled_at + (OWN_MOVES_PAUSE_S if self.has_own_moves else POLL_PAUSE_S)


class Scheduler:
    """Threads that work on the items of lanes.

    Args:
        acquire_again: locks an item that was unlocked, if it is still there to be worked on; returns whether it did.
        clock: in seconds.
    """

    def __init__(
        self,
        stop: threading.Event,
        print_line: PrintLine,
        acquire_again: Callable[[Any], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stop = stop
        self._print_line, self._acquire_again, self._clock = print_line, acquire_again, clock
        self._lanes: list[WorkLane] = []
        self._threads: list[threading.Thread] = []
        lock = threading.Lock()
        """Never held while the store is used, since watches fire under the store's lock."""
        self._changed, self._arrived = threading.Condition(lock), threading.Condition(lock)
        """Wake threads; those that wait for a lane without threads."""
        self._timer_at = NEVER
        """Time until which one of the idle threads waits; the others wait until they are woken."""
        self._numbers = itertools.count()
        self._closed = False

    def add(self, lane: WorkLane) -> WorkLane:
        self._lanes.append(lane)
        return lane

    def start(self) -> None:
        """Start the threads of all lanes."""
        for lane in self._lanes:
            self._threads += [
                threading.Thread(target=self._run, name=f"intake {lane.name}", daemon=True) for _ in range(lane.threads)
            ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all threads within ``GRACE_S``, and unlock the items that are ready. ``stop`` is set."""
        with self._changed:
            self._closed = True
            items = [item for lane in self._lanes for *_, item in lane.ready]
            for lane in self._lanes:
                lane.ready, lane.waiting = [], []
            self._changed.notify_all()
            self._arrived.notify_all()
        for item in items:
            _unlock(item)
        deadline = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = sum(thread.is_alive() for thread in self._threads)
        if hanging:
            log.warning("%d consumers did not end within %g s; their locks end with this process", hanging, GRACE_S)
        for lane in self._lanes:
            if lane.watch is not None:
                lane.watch.close()

    # --- items --------------------------------------------------------------------------------------------------------

    def room(self, lane: WorkLane, waiting: int) -> int:
        """Return how many more items may wait, locked, for a thread of the lane, if ``waiting`` may in all."""
        return 0 if self._closed else max(0, waiting - len(lane.ready))

    def put(self, lane: WorkLane, *items: Any) -> bool:
        """Add locked items to a lane. Returns False after the end."""
        with self._changed:
            if self._closed:
                return False
            for item in items:
                heapq.heappush(lane.ready, (item.urgency, next(self._numbers), item))
            lane.put_at = self._clock()
            self._notify(lane, 0.0)
            return True

    def take(self, lane: WorkLane, count: int) -> list[Any]:
        """Remove the most urgent items of a lane, at most ``count``; return those that are still locked."""
        with self._changed:
            items = [heapq.heappop(lane.ready)[2] for _ in range(min(count, len(lane.ready)))]
        return [item for item in items if item.locked]

    def try_later(self, lane: WorkLane, item: Any, error: TryLater) -> None:
        """Unlock an item, and try it again: after the time that the error names, which doubles with each attempt, or
        when a thread for slow hosts is free."""
        with self._changed:
            lane.waiting_ids.add(item.id)  # before it is unlocked, so that no poll finds it
            if isinstance(error, SlowHost) and lane.slow is not None:
                lane, at = lane.slow, 0.0
            else:
                attempts = lane.attempts[item.id] = lane.attempts.get(item.id, 0) + 1
                after_s = error.after_s * 2.0 ** min(attempts - 1, 10)
                at = self._clock() + min(after_s, max(error.after_s, LONGEST_WAIT_S))
        _unlock(item)
        with self._changed:
            if not self._closed:
                heapq.heappush(lane.waiting, (at, item.urgency, next(self._numbers), item))
                self._notify(lane, lane.next_at())

    def wake(self, lane: WorkLane, *, at_once: bool = False) -> None:
        """Poll the queue for items of a lane, since there may be some. ``at_once``: even right after a poll that found
        none."""
        with self._changed:
            before = lane.next_at()
            lane.is_changed = True
            lane.poll_at = 0.0 if at_once else min(lane.poll_at, lane.earliest_poll())
            if lane.next_at() < before:
                self._notify(lane, lane.next_at())

    def _notify(self, lane: WorkLane, at: float) -> None:
        """Wake a thread, since there is something to do in a lane from a time on, unless a thread waits until then."""
        if lane.threads == 0:
            self._arrived.notify_all()
        elif lane.busy < lane.threads and at < self._timer_at:
            self._changed.notify()

    def wait(self, lane: WorkLane, timeout_s: float) -> None:
        """Wait until there may be something in a lane without threads, or the end; at most ``timeout_s`` seconds."""
        with self._changed:
            deadline = self._clock() + timeout_s
            while not self._is_ending() and (now := self._clock()) < min(deadline, lane.next_at()):
                self._arrived.wait(min(deadline, lane.next_at()) - now)

    def is_idle(self) -> bool:
        """Return whether nobody works on anything, and no item is ready."""
        return not any(lane.busy or lane.ready or lane.has_lost_queue for lane in self._lanes)

    # --- threads ------------------------------------------------------------------------------------------------------

    def _is_ending(self) -> bool:
        return self._closed or self.stop.is_set()

    def _run(self) -> None:
        while (lane := self._next_lane()) is not None:
            try:
                self._turn(lane)
            finally:
                with self._changed:
                    lane.busy -= 1

    def _next_lane(self) -> WorkLane | None:
        """Wait until there is something to do. Returns the lane, in which this thread is busy now; None: the end."""
        with self._changed:
            while not self._is_ending():
                now = self._clock()
                waiting = [(lane.next_at(), lane) for lane in self._lanes if lane.busy < lane.threads]
                at, lane = min(waiting, key=itemgetter(0), default=(NEVER, None))
                if lane is not None and at <= now:
                    lane.busy += 1
                    self._notify_next(now, waiting)
                    return lane
                if at < self._timer_at:
                    self._timer_at = at
                    self._changed.wait(at - now)
                    self._timer_at = NEVER if self._timer_at == at else self._timer_at
                else:
                    self._changed.wait()
        return None

    def _notify_next(self, now: float, waiting: list[tuple[float, WorkLane]]) -> None:
        """Wake another thread if there is more to do now, or if no idle thread waits for the time of what is next."""
        at = min((at for at, lane in waiting if lane.busy < lane.threads), default=NEVER)
        if at <= now or at < self._timer_at:
            self._changed.notify()

    def _turn(self, lane: WorkLane) -> None:
        """Do one piece of work of a lane, if there is any."""
        threading.current_thread().name = f"intake {lane.name}"
        item = None
        try:
            if self.begin_poll(lane):
                self._add_found(lane, self._acquire(lane))
            item = self._take_next(lane)
            if item is None:
                return
            if not lane.is_open():
                self._put_back(lane, item)
                return
            if lane.group is None:
                lane.work(item)
                done = [item]
            else:
                done, item = [item, *self.take(lane, lane.group_items - 1)], None
                began = self._clock()
                is_quick = lane.group.work(done) and self._clock() - began <= GROUP_S
                lane.group_items = min(2 * lane.group_items, GROUP_ITEMS) if is_quick else 1
            lane.has_lost_queue = False
            for one in done:
                self._forget_attempts(lane, one)
        except TryLater as e:
            self.try_later(lane, item, e)
        except StopRequested:
            _unlock(item)
        except (LockLost, NodeInvalid, StateError) as e:
            self._fail(lane, item, f"{e}", ERROR_PAUSE_S)
        except QueueLost as e:
            self._fail(lane, item, "" if lane.has_lost_queue else f"{e}", QUEUE_LOST_RETRY_S)
            lane.has_lost_queue = True
        except Exception as e:  # a fault of Ferryman: report it, and continue with other work
            self._fail(lane, item, f"intake {lane.name}: {describe(e)}", QUEUE_LOST_RETRY_S)

    def _fail(self, lane: WorkLane, item: Any, text: str, pause_s: float) -> None:
        _unlock(item)
        if text:
            self._print_line(text)
        self.pause(lane, pause_s)

    def pause(self, lane: WorkLane, seconds: float) -> None:
        """Do not poll for items of a lane for some seconds; then do."""
        with self._changed:
            lane.is_polling, lane.is_changed = False, True
            lane.poll_at = self._clock() + seconds

    def begin_poll(self, lane: WorkLane) -> bool:
        """Return whether the caller is to poll for an item of a lane now, and then to call ``end_poll``."""
        with self._changed:
            if lane.is_polling or lane.poll_at > self._clock():
                return False
            lane.is_polling, lane.poll_at = True, NEVER
            was_changed, lane.is_changed, lane.has_own_moves = lane.is_changed, False, False
        if lane.watching.watch is None:
            return True
        if was_changed or lane.watch is None:
            if lane.watch is not None:
                lane.watch.close()
            lane.watch = lane.watching.watch(lambda: self.wake(lane))
        elif lane.watching.is_empty():
            self.end_poll(lane, EMPTY_POLL_S)
            return False
        return True

    def end_poll(self, lane: WorkLane, poll_s: float) -> None:
        """End a poll; the next one is in ``poll_s`` seconds, or when something changes."""
        with self._changed:
            lane.is_polling, lane.polled_at = False, self._clock()
            if lane.poll_at:  # it was not woken for a poll at once
                lane.poll_at = lane.polled_at + poll_s if lane.poll_at == NEVER else lane.earliest_poll()

    def _acquire(self, lane: WorkLane) -> list[Any]:
        assert lane.acquire is not None
        if not lane.is_open():
            return []
        if lane.group is not None:
            return lane.group.acquire(lane.waiting_ids, lane.group_items)
        item = lane.acquire(lane.waiting_ids)
        return [] if item is None else [item]

    def _add_found(self, lane: WorkLane, items: list[Any]) -> None:
        """End a poll. If an item was found, there may be more."""
        if not items:
            self.end_poll(lane, lane.watching.poll_s)
            return
        with self._changed:
            lane.is_polling, lane.poll_at = False, 0.0
            for item in items:
                heapq.heappush(lane.ready, (getattr(item, "urgency", 0), next(self._numbers), item))
            self._notify(lane, 0.0)

    def _take_next(self, lane: WorkLane) -> Any:
        """Remove and return the most urgent item, locked; None if there is none. Items that others have now are
        dropped."""
        while True:
            with self._changed:
                is_due = bool(lane.waiting) and lane.waiting[0][0] <= self._clock()
                if lane.ready and not (is_due and lane.waiting[0][1] < lane.ready[0][0]):
                    item, is_due = heapq.heappop(lane.ready)[-1], False
                elif is_due:
                    item = heapq.heappop(lane.waiting)[-1]
                    lane.waiting_ids.discard(item.id)
                else:
                    return None
            if self._acquire_again(item) if is_due else getattr(item, "locked", True):
                return item
            self._forget_attempts(lane, item)

    def _put_back(self, lane: WorkLane, item: Any) -> None:
        """Unlock an item of a lane that is not open, and poll for it again soon."""
        _unlock(item)
        with self._changed:
            if lane.acquire is not None:
                lane.poll_at = min(lane.poll_at, self._clock() + QUIET_POLL_S)

    def _forget_attempts(self, lane: WorkLane, item: Any) -> None:
        with self._changed:
            item_id = getattr(item, "id", "")
            if item_id not in lane.waiting_ids:
                lane.attempts.pop(item_id, None)


def _unlock(item: Any) -> None:
    if hasattr(item, "unlock"):
        with suppress(FerrymanError):
            item.unlock()
