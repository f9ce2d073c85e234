"""Tells whom a plan or a command line named, once a run or a period, and remembers what got across.

1. compare the state with what was told last: nothing new, nothing is sent
2. send the digest to each target: those that fail get the rest with the next one
3. keep, durably, up to which wave each was told, and of which stopped nodes

A kill between 2 and 3 tells the same again, to a URL under the same id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import inf
from typing import Any

import msgspec

from ferryman import crash, limits
from ferryman.errors import StateDamaged
from ferryman.notify.channels import Undelivered, send
from ferryman.notify.digest import Digest, Example, Stopped, digest, news_since
from ferryman.plan.notice import NotifyTarget
from ferryman.state.layout import NOTIFIED
from ferryman.state.state import State
from ferryman.storage import files, seals


class Notified(msgspec.Struct, frozen=True):
    """What one target knows: all up to this wave, and that these nodes are stopped."""

    wave: int = 0
    stopped: list[str] = []


class Reporter:
    """Tells the targets of a run.

    Args:
        tell: takes a message for whoever watches the run.
    """

    def __init__(self, state: State, targets: Sequence[NotifyTarget], tell: Callable[[str], None]) -> None:
        self._state = state
        self._targets = list(dict.fromkeys(targets))
        self._tell = tell
        self._told_at = -inf
        self._known: dict[str, Notified] | None = None
        self._said: dict[str, str] = {}
        """Target -> the trouble with it that was told last: a run for months says it once."""

    def report(self, stopped: Sequence[Stopped] = (), least_s: float = 0.0) -> None:
        """Tell what is new, if anything is. Nothing that goes wrong over it goes on to the caller.

        Args:
            least_s: seconds that lie between two digests; before that nothing is looked at.
        """
        if not self._targets or time.monotonic() < self._told_at + least_s:
            return
        try:
            self._report(stopped)
        except Exception as e:
            self._complain("", f"no notification could be sent: {type(e).__name__}: {e}")

    def _report(self, stopped: Sequence[Stopped]) -> None:
        if self._known is None:
            self._known = self._read()
        before = self._known
        after = dict(before)
        news: dict[int, tuple[dict[str, int], list[Example]]] = {}
        for target in self._targets:
            key = _key(target)
            known = before.get(key, Notified())
            since = known.wave if known.wave <= self._state.settled else 0  # else it is another state's
            if since not in news:  # 1
                news[since] = news_since(self._state, since) if self._state.settled > since else ({}, [])
            fresh = [s for s in stopped if s.node not in known.stopped]
            told = Notified(self._state.settled, [s.node for s in stopped])
            if any(news[since][0].values()) or fresh:
                ordered = [*fresh, *(s for s in stopped if s not in fresh)]
                self._told_at = time.monotonic()
                if not self._sent(target, digest(self._state, since, ordered, news[since])):  # 2
                    continue
                crash.point("notify.sent")
            after.pop(key, None)
            after[key] = told
        if after != before:
            self._known = after
            self._keep(after)  # 3

    def _sent(self, target: NotifyTarget, told: Digest) -> bool:
        """Send it; one that does not come to an end in time is left to itself."""
        trouble: list[str] = []

        def work() -> None:
            try:
                send(target, told)
            except Exception as e:
                trouble.append(str(e) if isinstance(e, Undelivered) else f"{type(e).__name__}: {e}")

        thread = threading.Thread(target=work, name="ferryman-notify", daemon=True)
        thread.start()
        thread.join(target.timeout_s + limits.NOTIFY_GRACE_S)
        if thread.is_alive():
            trouble.append(f"no end after {target.timeout_s:g} s")
        if trouble:
            self._complain(target.shown, f"{trouble[0]}. The next digest repeats it.")
            return False
        self._said.pop(target.shown, None)
        return True

    def _complain(self, where: str, what: str) -> None:
        if self._said.get(where) != what:
            self._said[where] = what
            self._tell(f"notify {where}: {what}" if where else f"notify: {what}")

    # -- what was told before ----------------------------------------------------------------------

    def _read(self) -> dict[str, Notified]:
        path = self._state.root / NOTIFIED
        if not files.exists(path):
            return {}
        try:
            return msgspec.convert(seals.unseal(path), dict[str, Notified])
        except (StateDamaged, msgspec.ValidationError) as e:
            self._complain("", f"{path} is damaged: everything failed is reported again ({e})")
            return {}

    def _keep(self, told: dict[str, Notified]) -> None:
        newest: dict[str, Any] = dict(list(told.items())[-limits.NOTIFY_TARGETS :])
        files.replace(self._state.root / NOTIFIED, seals.sealed(newest))
        crash.point("notify.kept")


def _key(target: NotifyTarget) -> str:
    """Names it in the state, without its password."""
    return blake2b(target.to.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
