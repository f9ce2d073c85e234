"""Waiting of an endless run for something to happen: changes of files, entries of logs, work that comes due.

A full listing at every period stays what a run relies on: it finds what no event said, and only a listing of all of a
source says what was deleted. Events make a run look earlier, at what they name:

1. A change of a file, or a new folder: only these are listed. Events that come together are one look.
2. A file that was removed, and is not back after a moment; events that were lost; a source of which one file has many
   documents: all of that source is listed.
3. A source whose changes nobody reports (on a network file system, or the kernel's limits are reached): all of it is
   listed again and again, in a share of the time.
4. New entries of a log, and what comes due: nothing is listed.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Self

from ferryman import limits
from ferryman.engine.results import Look
from ferryman.observe import WARNING
from ferryman.plan import Plan, sources_of
from ferryman.sources import Log, Source
from ferryman.sources.base import TouchedFiles
from ferryman.sources.inotify import CannotWatch, FolderEvents, setting_of

Report = Callable[[str, str], None]
"""Takes the name of a plan, and a message about it."""

_NOTHING: Final = TouchedFiles()


class EventWatch:
    """Watches the sources of plans while it is entered.

    Args:
        plans: name of each in its flow -> the plan; "" if there is only one.
        every: seconds between two full listings, for messages.

    Attributes:
        sources: all that is watched.
        lock: guards them; notified when something has changed.
    """

    def __init__(self, plans: Mapping[str, Plan], every: float, report: Report) -> None:
        self._every = every
        self._report = report
        self.lock = threading.Condition()
        self.sources = [
            _WatchedSource(label, node.name, node.source)
            for label, plan in plans.items()
            for node in sources_of(plan.nodes)
            if not isinstance(node.source, Log)
        ]
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = -1, -1
        self._thread: threading.Thread | None = None
        self._listed: list[_WatchedSource] = []
        """Sources of which the last look listed everything."""
        self._looked_at = time.monotonic()
        self._burst_s = limits.WATCH_BURST_S

    def __enter__(self) -> Self:
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        try:
            for each in self.sources:
                self._open(each)
        except BaseException:
            self.__exit__()
            raise
        self._thread = threading.Thread(target=self._follow, name="ferryman-watch", daemon=True)
        self._thread.start()
        self._listed = list(self.sources)  # the run begins with a full listing
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake_writer, b"\0")
        if self._thread is not None:
            self._thread.join()
        for each in self.sources:
            each.close()
            each.source.end_watch()
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def wait(self, until: float, has_work: Callable[[], bool]) -> dict[str, Look] | None:
        """Wait until something has happened; return what to list of which plan, nothing if it is only other work.

        None: it is time for a full listing.

        Args:
            until: monotonic time of the next full listing.
            has_work: whether there is work that needs no listing; called now and then.
        """
        began = time.monotonic()
        took = began - self._looked_at
        self._burst_s = max(limits.WATCH_BURST_S, took)
        for each in self.sources:
            self._read(each)
        with self.lock:
            for each in self._listed:
                each.was_listed(began, took)
            for each in self.sources:
                each.end_listing()
        try:
            return self._wait(until, has_work)
        finally:
            self._looked_at = time.monotonic()

    def list_again(self, plan: str, sources: Collection[str]) -> None:
        """List all of these sources again soon: what was missing in their listings is there."""
        with self.lock:
            for each in self.sources:
                if each.plan == plan and each.name in sources:
                    each.list_again(time.monotonic())

    def _wait(self, until: float, has_work: Callable[[], bool]) -> dict[str, Look] | None:
        next_tick = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= until:
                self._take_everything()
                return None
            if now >= next_tick:
                if has_work():
                    return self._take(now)
                next_tick = time.monotonic() + limits.WATCH_TICK_S
            with self.lock:
                pause = min([until, next_tick, *(at for each in self.sources if (at := each.due(now)) is not None)])
                if pause > now:
                    self.lock.wait(pause - now)
                    continue
            self._wait_for_quiet(until)
            if found := self._take(time.monotonic()):
                return found

    def _wait_for_quiet(self, until: float) -> None:
        """Wait until no events come any more, or for as long as it is worth it."""
        ends = min(until, time.monotonic() + self._burst_s)
        with self.lock:
            while (left := ends - time.monotonic()) > 0 and self.lock.wait(min(left, limits.WATCH_QUIET_S)):
                pass

    def _take(self, now: float) -> dict[str, Look]:
        found: dict[str, dict[str, TouchedFiles | None]] = {}
        with self.lock:
            self._listed = []
            for each in self.sources:
                lost = each.events is not None and each.events.lost_events
                if (changes := each.take(now)) == _NOTHING:
                    continue
                if changes is None:
                    self._listed.append(each)
                    self._report_loss(each, lost)
                found.setdefault(each.plan, {})[each.name] = changes
        for each in self._listed:
            self._watch_again(each)
        return dict(found)

    def _report_loss(self, each: _WatchedSource, lost: bool) -> None:
        """Report once that the kernel has dropped events of a source."""
        if lost and not each.reported_loss:
            each.reported_loss = True
            self._report(
                each.plan,
                f"source {each.name}: more changed at once than the kernel keeps (fs.inotify.max_queued_events is "
                f"{setting_of('max_queued_events')}). Nothing is lost: all of it is listed",
            )

    def _take_everything(self) -> None:
        """Forget what has changed, since all is listed now."""
        with self.lock:
            for each in self.sources:
                each.forget()
            self._listed = list(self.sources)
        for each in self._listed:
            self._watch_again(each)

    def _watch_again(self, each: _WatchedSource) -> None:
        """Before all of a source is listed, watch the folders that no event has named, or what could not be watched."""
        if each.events is None:
            if each.polled:
                self._open(each)
            return
        with self.lock:
            try:
                each.events.watch_again()
            except CannotWatch as e:
                self._lose(each, e)

    def _open(self, each: _WatchedSource) -> None:
        """Begin to notice the changes of a source, or say why they are not noticed."""
        try:
            events = each.source.watch()
        except CannotWatch as e:
            with self.lock:
                self._lose(each, e)
            return
        if events is None:
            every = f"{self._every:g} s"
            self._report(each.plan, f"source {each.name}: nothing reports its changes; it is listed every {every}")
            return
        with self.lock:
            each.events, each.polled = events, False
            events.begin_listing()  # it is on, or begins
        self._selector.register(events.fileno(), selectors.EVENT_READ, each)
        os.write(self._wake_writer, b"\1")

    def _lose(self, each: _WatchedSource, why: CannotWatch) -> None:
        """Go on without the events of a source, and say why, once."""
        if each.events is not None:
            self._selector.unregister(each.events.fileno())
        each.lose()
        if each.why != str(why):
            each.why = str(why)
            self._report(
                each.plan,
                f"{WARNING}source {each.name}: {why}. Its changes are found by listing all of it, every "
                f"{limits.WATCH_POLL_S:g} s or more",
            )

    # -- the thread that reads events, so that the kernel's queue does not overflow during a wave ------------------

    def _follow(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if b"\0" in os.read(self._wake_reader, 4096):
                        return
                else:
                    self._read(key.data)

    def _read(self, each: _WatchedSource) -> None:
        with self.lock:
            try:
                if each.read(time.monotonic()):
                    self.lock.notify_all()
            except CannotWatch as e:
                self._lose(each, e)
                self.lock.notify_all()


class _WatchedSource:
    """A source that is watched; its attributes are guarded by the watch's lock.

    Attributes:
        events: None: nothing reports its changes, or nothing does now.
        polled: whether it is listed again and again instead.
        why: why it is polled, as it was reported.
        reported_loss: whether it was reported that events were lost.
    """

    def __init__(self, plan: str, name: str, source: Source) -> None:
        self.plan = plan
        self.name = name
        self.source = source
        self.events: FolderEvents | None = None
        self.polled = False
        self.why = ""
        self.reported_loss = False
        self._lists_parts = source.changed_partitions(_NOTHING) is not None
        self._gone_since: float | None = None
        self._poll_at = 0.0
        self._list_at = 0.0
        """Monotonic time before which a change does not have all of it listed again."""
        self._again_at: float | None = None
        self._again_s = limits.WATCH_POLL_S
        """When all of it is listed again, since the last listing was not complete, and the pause before that."""

    def read(self, now: float) -> bool:
        """Read the events that wait, and return whether there is anything to take.

        Raises:
            CannotWatch: there are no events any more, see ``FolderEvents.read``.
        """
        if self.events is None:
            return False
        changed = self.events.read()
        if self.events.has_gone and self._gone_since is None:
            self._gone_since = now
        return changed

    def due(self, now: float) -> float | None:
        """Return the monotonic time at which there is something to take; None: nothing has changed."""
        if self.events is None:
            return self._poll_at if self.polled else self._again_at
        if self.events.overflowed:
            return max(now, self._list_at)
        times = [] if self._again_at is None else [self._again_at]
        if self.events.is_changed:
            times.append(now if self._lists_parts else max(now, self._list_at))
        if self._gone_since is not None:
            times.append(max(self._gone_since + limits.WATCH_GONE_S, self._list_at))
        return min(times, default=None)

    def take(self, now: float) -> TouchedFiles | None:
        """Return what is to be listed now, and forget it; None: all."""
        due = self.due(now)
        if due is None or due > now:
            return _NOTHING
        again = self._again_at is not None and now >= self._again_at
        if self.events is None or self.events.overflowed or not self._lists_parts or again:
            self.forget()
            return None
        if self._gone_since is not None and now >= max(self._gone_since + limits.WATCH_GONE_S, self._list_at):
            self._gone_since = None
            if self.events.take_gone():
                self.forget()
                return None
        return self.events.take()

    def forget(self) -> None:
        """Forget what has changed, since all is going to be listed."""
        self._gone_since = self._again_at = None
        if self.events is not None:
            self.events.forget()

    def end_listing(self) -> None:
        if self.events is not None:
            self.events.end_listing()

    def list_again(self, now: float) -> None:
        """Have all of it listed again, later and later as long as it is asked for."""
        self._again_at = now + self._again_s
        self._again_s *= 2

    def was_listed(self, now: float, took_s: float) -> None:
        """Record that all of it was listed, so that listings take a share of the time only."""
        self._list_at = now + took_s
        if self._again_at is None:
            self._again_s = limits.WATCH_POLL_S
        self._poll_at = now + max(limits.WATCH_POLL_S, limits.WATCH_POLL_SHARE * took_s)

    def lose(self) -> None:
        """Go on without events: list it again and again."""
        if self.events is not None:
            self.events.close()
        self.events, self.polled, self._gone_since, self._poll_at = None, True, None, 0.0

    def close(self) -> None:
        if self.events is not None:
            self.events.close()
            self.events = None
