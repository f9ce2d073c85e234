"""The store of one name: where tasks look for answers, and note their calls and what came of them.

::

    <states>/remembered/<name>/answers     the table, see ``remembered.table``
    <states>/remembered/<name>/log         what is not in the table yet, see ``remembered.log``
    <states>/remembered/<name>/calls…      claims, see ``remembered.claims``

A call of a task:

1. claim the input, so that no other task calls for it
2. read what others have answered since: if the answer is there, the claim is given back, and nothing is called
3. note that the call begins
4. call
5. note the answer, durably; *then* give the claim back

A kill after 3 leaves a call in doubt: it is called again, with the same key, and counted. After 5 nothing is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from ferryman import crash
from ferryman.records.rows import now_us
from ferryman.remembered import log
from ferryman.remembered.answers import REFUSED, Input, RememberedAnswer
from ferryman.remembered.claims import Claims, open_claims
from ferryman.remembered.log import (
    Answered,
    Begun,
    Doubted,
    Ended,
    Forgotten,
    Header,
    LogName,
    LogWriter,
    Record,
    Used,
)
from ferryman.remembered.policy import Remember
from ferryman.remembered.table import AnswerTable
from ferryman.storage.files import RecordPlace, StatePath

FOLDER: Final = "remembered"
"""Folder of all stores, beside the states."""
_USED_NOTED: Final = 256
"""Answers from memory that are noted at once."""
_SHORTEST_WAIT_S: Final = 0.002
_LONGEST_WAIT_S: Final = 0.25
"""Pauses between two looks at what another task is calling for, in seconds."""


class Place(NamedTuple):
    """Place of an answer in a log."""

    log: str
    position: RecordPlace
    created: int


class AnswerReader:
    """Reads the answers of a store: of its table, and of the logs that are not in it yet.

    Attributes:
        begun: inputs whose call has begun, and did not end as far as the logs say -> log of that call.
        doubted: inputs that were called again after such a call.
    """

    def __init__(self, folder: StatePath) -> None:
        self._log_folder = folder / "log"
        self.table = AnswerTable(folder)
        self.begun: dict[bytes, str] = {}
        self.doubted: set[bytes] = set()
        self._ends: dict[str, RecordPlace] = {}
        self._places: dict[bytes, Place] = {}
        self._forgotten: dict[bytes, int] = {}

    def refresh(self, without: str = "") -> None:
        """Read what has been written since the last time. The logs first: what leaves them is in the table then.

        Args:
            without: name of the task's own log.
        """
        names = log.log_names(self._log_folder)
        if gone := self._ends.keys() - {*names, without}:
            self._ends = {name: end for name, end in self._ends.items() if name not in gone}
            self._places = {key: place for key, place in self._places.items() if place.log not in gone}
            self.begun = {key: name for key, name in self.begun.items() if name not in gone}
        for name in names:
            if name == without:
                continue
            try:
                records, end = log.read_after(self._log_folder / name, self._ends.get(name, RecordPlace()))
            except FileNotFoundError:
                continue  # it has just gone into the table
            self._ends[name] = end
            for position, record in records:
                self.note(name, position, record)
        self.table.refresh()

    def note(self, name: str, position: RecordPlace, record: Record) -> None:
        """Take a record of a log into account."""
        match record:
            case Begun(keys):
                self.begun.update(dict.fromkeys(keys, name))
            case Answered(key, answer):
                self.begun.pop(key, None)
                if (old := self._places.get(key)) is None or old.created <= answer.created:
                    self._places[key] = Place(name, position, answer.created)
            case Ended(keys) | Doubted(keys):
                for key in keys:
                    self.begun.pop(key, None)
                if isinstance(record, Doubted):
                    self.doubted.update(keys)
            case Forgotten(keys, until):
                for key in keys:
                    self._forgotten[key] = max(until, self._forgotten.get(key, 0))

    def find(self, key: bytes) -> RememberedAnswer | None:
        """Return the newest answer to an input that was not forgotten; None: there is none."""
        answer = self._newest(key)
        return None if answer is None or answer.created <= self.forgotten_us(key) else answer

    def forgotten_us(self, key: bytes) -> int:
        """Return the time up to which answers to an input do not count, µs since 1970; 0: it was not forgotten."""
        return self._forgotten.get(key, 0)

    def is_in_doubt(self, key: bytes) -> bool:
        """Return whether a call for an input has begun of which no end was noted, and no answer came since: the logs of
        two tasks do not say whose call was the later one."""
        if (name := self.begun.get(key)) is None:
            return False
        answer, parsed = self._newest(key), log.LogName.parse(name)
        return answer is None or parsed is None or answer.created < parsed.began_us

    def _newest(self, key: bytes) -> RememberedAnswer | None:
        answer = None
        if (place := self._places.get(key)) is not None:
            answer = log.read_answer(self._log_folder / place.log, place.position)
            if answer is None:  # the log has gone into the table, or is damaged
                self._places.pop(key)
                self.refresh()
        return self.table.find(key) if answer is None else answer

    def finds(self, key: bytes, remember: Remember) -> RememberedAnswer | None:
        """Return the answer to an input if it has not expired."""
        answer = self.find(key)
        if answer is None:
            return None
        age_s = (now_us() - answer.created) / 1e6
        return answer if age_s < (remember.refusals_s if answer.kind == REFUSED else remember.expires_s) else None


class AnswerStore:
    """A store as one task uses it for one step. Threads may share it.

    Args:
        folder: of the store.
        log_name: log that it writes; None: it only reads.

    Attributes:
        calls, hits, in_doubt: inputs that were called for, answered from memory, and called for again although a call
            of theirs had begun.
    """

    def __init__(self, folder: StatePath, remember: Remember, log_name: LogName | None) -> None:
        self._folder = folder
        self._remember = remember
        self._lock = threading.RLock()
        self._reader = AnswerReader(folder)
        self._writer = None if log_name is None else LogWriter(folder / "log", log_name)
        self._claims: Claims | None = None
        self._used: list[tuple[bytes, bytes]] = []
        self._has_header = False
        self.calls = self.hits = self.in_doubt = self.bytes = 0
        self._reader.refresh()

    def recall(self, given: Input) -> RememberedAnswer | None:
        """Return the answer to an input from memory; None: it has to be called for."""
        with self._lock:
            answer = self._reader.finds(given.key, self._remember)
            if answer is not None:
                self.note_shared(given)
            return answer

    def note_shared(self, given: Input) -> None:
        """Count an input that was answered without a call."""
        with self._lock:
            self.hits += 1
            self._used.append((given.key, given.document))
            if len(self._used) >= _USED_NOTED:
                self.note_used()

    def begin(self, inputs: Sequence[Input]) -> set[bytes]:
        """Claim inputs and note that their calls begin (1, 2, 3); return the keys of those to call for now. The others
        are answered in the meantime, or another task is calling for them."""
        assert self._writer is not None
        with self._lock:
            self._claims = self._claims or open_claims(self._folder)
            documents = {each.key: each.document for each in inputs}
            taken = self._claims.take([*documents])  # 1
            self._reader.refresh(self._writer.name)  # 2
            answered = {key for key in taken if self._reader.finds(key, self._remember) is not None}
            if answered:
                self._claims.release(answered)
            if not (keys := sorted(taken - answered)):
                return set()
            dead = self._claims.left_by_dead()
            doubted = [key for key in keys if self._reader.is_in_doubt(key) or key in dead - self._reader.doubted]
            records: list[Record] = [Begun(keys, [documents[key] for key in keys])]
            if doubted:
                records.insert(0, Doubted(doubted))
            self._append(records, durable=False)  # 3
            self._reader.note(self._writer_name, RecordPlace(), Doubted(doubted))
            self.calls += len(keys)
            self.in_doubt += len(doubted)
            crash.point("remembered.begun")
            return {*keys}

    def end(self, answered: Sequence[tuple[Input, RememberedAnswer]], failed: Iterable[Input] = ()) -> None:
        """Note answers durably, and calls that ended without one; then give the claims back (5)."""
        with self._lock:
            keys = list(dict.fromkeys(each.key for each in failed))
            records = [Answered(given.key, self._after_forgotten(given.key, answer)) for given, answer in answered]
            ended: list[Record] = [Ended(keys)] if keys else []
            places = self._append([*ended, *records], durable=bool(records))
            for record, place in zip(reversed(records), reversed(places), strict=False):
                self._reader.note(self._writer_name, place, record)
                self.bytes += record.answer.size
            if records:
                crash.point("remembered.answered")
            self.release({*keys, *(record.key for record in records)})

    def _after_forgotten(self, key: bytes, answer: RememberedAnswer) -> RememberedAnswer:
        """Return a new answer so that it counts, also if one from a clock that is ahead was forgotten."""
        return msgspec.structs.replace(answer, created=max(answer.created, self._reader.forgotten_us(key) + 1))

    def release(self, keys: Iterable[bytes]) -> None:
        """Give claims back. Without a note about its end a call stays in doubt."""
        with self._lock:
            assert self._claims is not None
            self._claims.release(keys)

    def wait_s(self, tries: int) -> float:
        """Return the seconds to wait before the next look at an input that another task is calling for."""
        return float(min(_LONGEST_WAIT_S, _SHORTEST_WAIT_S * 2 ** min(tries, 10)))

    def close(self) -> None:
        """Note what was used, and release everything."""
        with self._lock:
            if self._writer is not None:
                self.note_used()
                self._writer.close()
            if self._claims is not None:
                self._claims.close()
                self._claims = None

    @property
    def _writer_name(self) -> str:
        assert self._writer is not None
        return self._writer.name

    def _append(self, records: Sequence[Record], *, durable: bool) -> list[RecordPlace]:
        assert self._writer is not None
        header = [] if self._has_header else [Header(self._remember.version, self._remember.cost * 1e6)]
        places = self._writer.append(*header, *records, durable=durable)
        self._has_header = True
        return places

    def note_used(self) -> None:
        """Note the inputs that were answered without a call since the last time."""
        if self._used and self._writer is not None:
            keys, documents = zip(*self._used, strict=True)
            self._append([Used([*keys], [*documents])], durable=False)
        self._used = []
