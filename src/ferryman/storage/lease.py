"""The lock of a state in an object store: an object that says who holds it, and that the holder renews.

A store has no lock that dies with its process, so the next driver has to judge. A holder of this very machine whose
process is gone is dead at once. Any other is dead when the lease has not been renewed for ``EXPIRES_S`` of the
observer's own clock: clocks of two machines are never compared. It is a courtesy to whoever starts a second driver:
what keeps an overtaken one from committing is the epoch.
"""

from __future__ import annotations

import datetime as dt
import socket
import threading
import time
import uuid
from typing import Final, Self

import msgspec

from ferryman.errors import EngineError, StateHeld
from ferryman.storage.objects import ObjectPath
from ferryman.storage.processes import EXPIRES_S, RENEWED_S, Process

_LOOK_S: Final = 2.0


class Holder(msgspec.Struct, frozen=True):
    """What the object says.

    Attributes:
        token: of one ``take``; "": nobody holds it.
        machine: what no other machine, and no other container, has.
        start: when the process started, as the machine counts it: process numbers are used again.
        counter: how often it was renewed.
    """

    token: str
    host: str
    machine: str
    pid: int
    start: str
    since: str
    counter: int = 0

    @property
    def gone(self) -> bool:
        """Is its process gone for certain? False also where that cannot be seen from here."""
        return Process(self.machine, self.pid, self.start).gone


class ObjectLease:
    """Held from ``take`` until ``release``, as long as it is renewed."""

    def __init__(self, path: ObjectPath, holder: Holder, tag: str) -> None:
        self._path = path
        self._holder = holder
        self._tag: str | None = tag
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="ferryman-lease", daemon=True)
        self._renewing.start()

    @classmethod
    def take(cls, path: ObjectPath, *, take_over: bool = False) -> Self:
        """Take it; where it is held by a process that cannot be seen from here, wait until that renews it, or does not.

        Args:
            take_over: at once, whoever holds it.

        Raises:
            StateHeld: another process has it; says which.
        """
        me = Process.this()
        mine = Holder(uuid.uuid4().hex, socket.gethostname(), me.machine, me.pid, me.start, _now())
        data = msgspec.json.encode(mine)
        seen: tuple[str, float] | None = None
        while True:
            found = path.store.get_tagged(path.key)
            if found is None:
                if (tag := path.store.create(path.key, data)) is not None:
                    return cls(path, mine, tag)
                continue
            holder, tag = _decoded(found[0]), found[1]
            if seen is None or seen[0] != tag:
                if seen is not None and holder is not None and not holder.gone and holder.token:
                    raise _held(path, holder)  # it was renewed, or taken, under our eyes
                seen = tag, time.monotonic()
            expired = time.monotonic() - seen[1] >= EXPIRES_S
            if holder is None or not holder.token or holder.gone or expired or take_over:
                if (tag_now := path.store.put(path.key, data, tag)) is not None:
                    return cls(path, mine, tag_now)
            elif holder.machine == mine.machine:
                raise _held(path, holder)
            else:
                time.sleep(_LOOK_S)

    def release(self) -> None:
        """Give it up."""
        if not self._ended.is_set():
            self._ended.set()
            self._renewing.join()
            self._write(msgspec.structs.replace(self._holder, token=""))

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_S) and self._tag is not None:
            self._renew_now()

    def _renew_now(self) -> None:
        self._holder = msgspec.structs.replace(self._holder, counter=self._holder.counter + 1)
        self._write(self._holder)

    def _write(self, holder: Holder) -> None:
        """Nothing if somebody else has it now: the epoch tells the driver."""
        if self._tag is None:
            return
        try:
            self._tag = self._path.store.put(self._path.key, msgspec.json.encode(holder), self._tag)
        except EngineError:
            return  # the store is away: the next renewal tries again


def _held(path: ObjectPath, holder: Holder) -> StateHeld:
    return StateHeld(str(path.parent), holder.host, holder.pid, holder.since)


def _decoded(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.DecodeError:
        return None


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
