"""Upkeep of a store: its logs go into the table, old answers are forgotten, and it is kept below its size.

1. read the logs whose waves are settled: nobody needs them in their place any more
2. keep which documents used which inputs, and what was used now
3. write the answers, sorted, to data files that no version names
4. commit: the files are part of the table, and the logs are named as folded
5. remove the logs

After a kill between 4 and 5 the logs are read once more as logs, which changes nothing, and removed next time.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.errors import StateHeld
from ferryman.records.rows import now_us
from ferryman.remembered import log
from ferryman.remembered.answers import KEY_BYTES, document_hash, key_of
from ferryman.remembered.log import Answered, Begun, Doubted, Ended, Forgotten, Header, LogName, LogWriter, Used
from ferryman.remembered.policy import Remember
from ferryman.remembered.store import FOLDER, AnswerReader
from ferryman.remembered.table import (
    BUCKET,
    FOLDED,
    NEW,
    AnswerTable,
    Keys,
    Row,
    contains,
    keys_array,
    rows_of,
    table_of,
)
from ferryman.storage import files
from ferryman.storage.delta import DataFile
from ferryman.storage.files import StatePath
from ferryman.storage.locks import take_lock

FORGET: Final = "-forget"
"""Name of the plan in logs of ``forget``; no plan is called so."""
_FOLD_BYTES: Final = 8 * limits.MIB
_FOLD_LOGS: Final = 32
"""Bytes and number of logs from which on they go into the table between two waves. At the end of a run all do."""
_NEW_SHARE: Final = 8
"""Share of the table, one in so many bytes, from which on new files are merged with all others."""
_KEPT_SHARE: Final = 0.9
"""Share of ``max_bytes`` that is kept when a store has become larger, so that this is rare."""
_COUNTS: Final = ("calls", "hits", "in_doubt", "spent", "saved")
"""Totals of a store, kept as transaction numbers of its table; money in millionths of a dollar."""
_CHECKPOINT_COMMITS: Final = 50


class StoreTotals(NamedTuple):
    """Totals of a store: what it has, and what became of all inputs so far.

    Attributes:
        answers: in the table and the logs.
        bytes: of the table and the logs.
        spent, saved: dollars, by the costs that the plans named.
    """

    name: str
    answers: int
    bytes: int
    calls: int
    hits: int
    in_doubt: int
    spent: float
    saved: float


class _Folded:
    """Content of some logs, taken together."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: dict[bytes, Row] = {}
        self.forgotten: dict[bytes, int] = {}
        self.pairs: list[bytes] = []
        self.used: set[bytes] = set()
        self.begun: dict[bytes, tuple[bytes, int]] = {}
        """Key -> document, and time of the log, of calls that did not end."""
        self.counts: Counter[str] = Counter()

    def read(self, path: StatePath, name: str) -> Counter[str]:
        """Read a log; return what it says: calls, hits and so on."""
        version, cost = "", 0.0
        counts: Counter[str] = Counter()
        parsed = LogName.parse(name)
        began_us = 0 if parsed is None else parsed.began_us
        for record in log.all_records(path):
            match record:
                case Header():
                    version, cost = record.version, record.cost
                case Begun(keys, documents):
                    self.begun.update((key, (each, began_us)) for key, each in zip(keys, documents, strict=True))
                    self.pairs += map(bytes.__add__, documents, keys)
                    counts.update(calls=len(keys), spent=round(len(keys) * cost))
                case Used(keys, documents):
                    self.used |= {*keys}
                    self.pairs += map(bytes.__add__, documents, keys)
                    counts.update(hits=len(keys), saved=round(len(keys) * cost))
                case Answered(key, answer):
                    self.begun.pop(key, None)
                    self.used.add(key)
                    if (old := self.rows.get(key)) is None or old.answer.created <= answer.created:
                        self.rows[key] = Row(key, version, answer)
                case Ended(keys) | Doubted(keys):
                    for key in keys:
                        self.begun.pop(key, None)
                    counts["in_doubt"] += len(keys) * isinstance(record, Doubted)
                case Forgotten(keys, until):
                    for key in keys:
                        self.forgotten[key] = max(until, self.forgotten.get(key, 0))
        self.counts.update(counts)
        self.names.append(name)
        return counts

    def kept_rows(self) -> list[Row]:
        """Return the answers that were not forgotten."""
        return [row for key, row in self.rows.items() if row.answer.created > self.forgotten.get(key, 0)]


class StoreKeeper:
    """Maintains one store. Of several processes one does at a time; the others leave it.

    Args:
        folder: of the store.
    """

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self._log_folder = folder / "log"
        self._documents = _SortedFiles(folder / "documents", 2 * KEY_BYTES)
        self._used = _SortedFiles(folder / "used", KEY_BYTES)

    @property
    def exists(self) -> bool:
        """Return whether anything was ever remembered here."""
        return files.is_folder(self.folder)

    # -- logs into the table ---------------------------------------------------------------------------

    def fold(
        self,
        is_settled: Callable[[LogName], bool],
        *,
        own: Callable[[LogName], bool] = lambda name: True,
        max_bytes: int | None = None,
        at_once: bool = True,
    ) -> Counter[str]:
        """Move logs into the table; return what those of them say that are one's own: calls, hits and so on.

        Args:
            is_settled: returns whether nobody needs a log in its place any more.
            own: returns whether a log is counted.
            max_bytes: drop what was not used for longest if the store is larger.
            at_once: also if the logs are few and small.
        """
        names = self._foldable(is_settled)
        if not names or (not at_once and len(names) < _FOLD_LOGS and self._log_bytes(names) < _FOLD_BYTES):
            return Counter()
        try:
            lock = take_lock(self.folder / "lock")
        except StateHeld:
            return Counter()  # another process is at it
        try:
            return self._fold(names, own, max_bytes)
        finally:
            lock.release()

    def _fold(self, names: list[str], own: Callable[[LogName], bool], max_bytes: int | None) -> Counter[str]:
        table = AnswerTable(self.folder)
        table.create()
        done = table.folded()
        self._remove_logs([name for name in names if name in done])
        folded, own_counts = _Folded(), Counter[str]()
        for name in names:  # 1
            if name not in done:
                with contextlib.suppress(FileNotFoundError):
                    counts = folded.read(self._log_folder / name, name)
                    if (parsed := LogName.parse(name)) is not None and own(parsed):
                        own_counts.update(counts)
        if not folded.names:
            return Counter()
        forgets = [name for name in log.log_names(self._log_folder) if name.startswith(FORGET)]
        folded.forgotten = self._read_logs(forgets).forgotten
        now = time.time()
        self._documents.add(keys_array(folded.pairs, 2 * KEY_BYTES), now)  # 2
        if max_bytes is not None:
            self._used.add(keys_array(folded.used), now)
        carried = self._carry_over(folded, table)
        adds, removes = self._write(table, folded)  # 3
        totals = {f"ferryman.{name}": self._total(table, name) + folded.counts[name] for name in _COUNTS}
        if not table.commit(adds, removes, totals, {FOLDED: folded.names}):  # 4
            return Counter()
        self._remove_logs(folded.names)  # 5
        crash.point("remembered.folded")
        self._merge(table)
        if max_bytes is not None and table.size > max_bytes:
            self._drop(table, max_bytes, carried)
        if table.log.commits_since_checkpoint >= _CHECKPOINT_COMMITS:
            table.log.checkpoint()
        table.remove_unnamed()
        return own_counts

    def _write(self, table: AnswerTable, folded: _Folded) -> tuple[list[DataFile], list[DataFile]]:
        """Write the answers of logs, and files without what was forgotten; return the files to add and to remove."""
        adds = [table.write(table_of(folded.kept_rows()), NEW)]
        removes = []
        if folded.forgotten:
            forgotten = np.sort(keys_array(folded.forgotten))
            for file in table.files:
                if contains(forgotten, np.asarray(table.keys(file))).any():
                    removes.append(file)
                    adds.append(table.write(_without(table.groups(file), folded.forgotten), file.partition[BUCKET]))
        return [file for file in adds if file is not None], removes

    def remove_forgotten(self) -> bool:
        """Remove what was forgotten from the table; return whether all of it is removed: what is in the log of a wave
        that is not settled goes with that."""
        self.fold(lambda name: name.plan == FORGET)
        return not any(name.startswith(f"{FORGET}~0~") for name in log.log_names(self._log_folder))

    def counts_of_logs(self, own: Callable[[LogName], bool]) -> Counter[str]:
        """Return what logs say that are not in the table: calls, hits, in_doubt, and what was spent and saved, in
        millionths.

        Args:
            own: returns whether a log is counted.
        """
        names = [n for n in log.log_names(self._log_folder) if (parsed := LogName.parse(n)) is not None and own(parsed)]
        table = AnswerTable(self.folder)
        if names:
            table.refresh()
        done = table.folded()
        return self._read_logs(name for name in names if name not in done).counts

    def size(self) -> int:
        """Return the bytes of the table and the logs."""
        table = AnswerTable(self.folder)
        if table.log.exists:
            table.log.refresh(durable=False)  # nothing relies on it
        return table.size + self._log_bytes(log.log_names(self._log_folder))

    def _carry_over(self, folded: _Folded, table: AnswerTable) -> set[bytes]:
        """Note calls that did not end in logs of their own, of the same time, since the log that says so goes; return
        their inputs. A call of an input that was answered since has been noted as in doubt."""
        by_time: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        for key, (document, began_us) in sorted(folded.begun.items()):
            row = folded.rows.get(key)
            answer = table.find(key) if row is None else row.answer
            if answer is None or answer.created < began_us:
                by_time[began_us][key] = document
        for began_us, documents in by_time.items():
            writer = LogWriter(self._log_folder, LogName.new(FORGET, 1, began_us))
            writer.append(Begun([*documents], [*documents.values()]), durable=True)
            folded.counts["calls"] -= len(documents)  # they are counted with that log
            writer.close()
        return {key for documents in by_time.values() for key in documents}

    def _foldable(self, is_settled: Callable[[LogName], bool]) -> list[str]:
        """Return the logs that can go into the table. One that forgets stays as long as an older log does, of which it
        may forget answers."""
        done: list[str] = []
        all_done = True
        for name in log.log_names(self._log_folder):
            if self._is_done(name, is_settled) and (all_done or not name.startswith(FORGET)):
                done.append(name)
            else:
                all_done = False
        return done

    def _is_done(self, name: str, is_settled: Callable[[LogName], bool]) -> bool:
        parsed = LogName.parse(name)
        return parsed is not None and is_settled(parsed) and not log.is_written(self._log_folder / name)

    def _log_bytes(self, names: Iterable[str]) -> int:
        wanted = {*names}
        sizes = files.file_sizes(self._log_folder)
        return sum(size for name, size in sizes.items() if name[: name.find(log.SUFFIX) + len(log.SUFFIX)] in wanted)

    def _remove_logs(self, names: list[str]) -> None:
        if isinstance(self._log_folder, Path):
            files.remove_all(self._log_folder / name for name in names)
            return
        wanted = {*names}
        found = files.list_names(self._log_folder)
        files.remove_all(self._log_folder / name for name in found if name.rpartition(".")[0] in wanted)

    # -- merges ------------------------------------------------------------------------------------------

    def _merge(self, table: AnswerTable) -> None:
        """Merge new files when they are many: with each other, or, when they are large, with all others."""
        new = [file for file in table.files if file.partition[BUCKET] == NEW]
        size = sum(file.size for file in new)
        if len(new) <= limits.REMEMBERED_FILES + size // limits.REMEMBERED_FILE_BYTES:
            return
        everything = size * _NEW_SHARE >= table.size
        merged = table.files if everything else [file for file in new if file.size < limits.REMEMBERED_FILE_BYTES]
        bits = max(0, (sum(file.size for file in merged) // limits.REMEMBERED_FILE_BYTES).bit_length())
        adds = []
        for number in range(1 << bits):
            low = (number << (8 * KEY_BYTES - bits)).to_bytes(KEY_BYTES, "big")
            high = (((number + 1) << (8 * KEY_BYTES - bits)) - 1).to_bytes(KEY_BYTES, "big")
            groups = [group for file in merged for group in table.groups(file, None, (low, high))]
            bucket = f"{number:x} of {1 << bits:x}" if everything else NEW
            adds.append(table.write(_between(groups, low, high), bucket))
        table.commit([file for file in adds if file is not None], merged, {}, {})

    def _drop(self, table: AnswerTable, max_bytes: int, needed: set[bytes]) -> None:
        """Drop what was not used for longest, but nothing that a log which was not folded has used."""
        rest = self._read_logs(log.log_names(self._log_folder))
        protected = needed | rest.used | rest.begun.keys()
        keep = np.sort(keys_array(protected))
        ages, sizes, owners = [], [], []
        sets = sorted(self._used.sets(), key=lambda each: each[0])
        for number, file in enumerate(table.files):
            keys = np.asarray(table.keys(file))
            age = np.zeros(len(keys))
            for when, used in sets:
                age[contains(used, keys)] = when
            age[contains(keep, keys)] = np.inf
            ages.append(age)
            sizes.append(np.full(len(keys), file.size / max(1, file.rows)))
            owners.append(np.full(len(keys), number))
        age, size, owner = np.concatenate(ages), np.concatenate(sizes), np.concatenate(owners)
        order = np.argsort(age, kind="stable")
        excess = table.size - _KEPT_SHARE * max_bytes
        dropped = np.zeros(len(age), bool)
        dropped[order[: int(np.searchsorted(np.cumsum(size[order]), excess)) + 1]] = True
        dropped &= np.isfinite(age)
        adds, removes = [], []
        for number, file in enumerate(table.files):
            if not (gone := dropped[owner == number]).any():
                continue
            keys = np.asarray(table.keys(file))
            without = dict.fromkeys(_items(keys[gone]), limits.GIB * limits.GIB)
            removes.append(file)
            adds.append(table.write(_without(table.groups(file), without), file.partition[BUCKET]))
        table.commit([f for f in adds if f is not None], removes, {}, {})

    # -- forgetting and telling -----------------------------------------------------------------------

    def keys_of_documents(self, ids: Iterable[str]) -> set[bytes]:
        """Return the inputs that these documents, or children of them, have used, also if they were deleted since. All
        files are read once, however many documents there are."""
        wanted = {document_hash(id) for id in ids}
        pairs = self._read_logs(log.log_names(self._log_folder)).pairs
        pairs += self._documents.with_prefixes(sorted(wanted))
        return {pair[KEY_BYTES:] for pair in pairs if pair[:KEY_BYTES] in wanted}

    def rows(self) -> Iterator[Row]:
        """Yield key, version and answer of each input, of the table and of all logs; an answer may be older than
        another one that is yielded."""
        table, logs, _ = self._read()
        yield from logs.kept_rows()
        for file in table.files:
            for group in table.groups(file):
                for row in rows_of(group):
                    if row.answer.created > logs.forgotten.get(row.key, 0):
                        yield row

    def _read_logs(self, names: Iterable[str]) -> _Folded:
        """Read these logs; those that have gone into the table meanwhile are skipped."""
        logs = _Folded()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                logs.read(self._log_folder / name, name)
        return logs

    def _read(self, *, durable: bool = True) -> tuple[AnswerTable, _Folded, list[str]]:
        """Read the logs that are not in the table, *then* the table. If some have gone into it meanwhile, again."""
        table = AnswerTable(self.folder)
        table.refresh(durable=durable)
        while True:
            names = [name for name in log.log_names(self._log_folder) if name not in table.folded()]
            logs = self._read_logs(names)
            table.refresh(durable=durable)
            if not table.folded() & {*names}:
                return table, logs, names

    def keys_where(self, version: str | None = None, before_us: int | None = None) -> set[bytes]:
        """Return the inputs with answers of a version, and from before a time (µs since 1970); None: of any."""
        return {
            row.key
            for row in self.rows()
            if version in (None, row.version) and (before_us is None or row.answer.created < before_us)
        }

    def keys_of_input(self, fields: dict[str, Any], content: bytes | None) -> set[bytes]:
        """Return the keys of an input, one for each version that has answers."""
        versions = {row.version for row in self.rows()}
        return {key_of(self.folder.name, version, fields, content) for version in versions}

    def forget(self, keys: Iterable[bytes]) -> int:
        """Forget the answers to these inputs, at once for all tasks; return how many there were."""
        reader = AnswerReader(self.folder)
        reader.refresh()
        found = {key: answer.created for key in {*keys} if (answer := reader.find(key)) is not None}
        wanted = sorted(found)
        if wanted:
            writer = LogWriter(self._log_folder, LogName.new(FORGET, 0))
            until = max(now_us(), *found.values())  # the clocks of two machines may differ
            writer.append(Forgotten(wanted, until), durable=True)
            writer.close()
            crash.point("remembered.forgotten")
        return len(wanted)

    def totals(self) -> StoreTotals:
        """Return what the store has, and what became of all inputs so far."""
        table, logs, names = self._read(durable=False)
        counts = Counter({name: self._total(table, name) for name in _COUNTS}) + logs.counts
        return StoreTotals(
            self.folder.name,
            table.rows + len(logs.rows),
            table.size + self._log_bytes(names),
            counts["calls"],
            counts["hits"],
            counts["in_doubt"],
            counts["spent"] / 1e6,
            counts["saved"] / 1e6,
        )

    def _total(self, table: AnswerTable, name: str) -> int:
        return table.log.transactions.get(f"ferryman.{name}", 0)


def _items(keys: Keys) -> Iterator[bytes]:
    data = keys.tobytes()
    return (data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES))


def _without(groups: Iterable[pa.Table], forgotten: dict[bytes, int]) -> pa.Table:
    """Return rows without those that were created up to the time at which their key was forgotten."""
    kept = []
    for group in groups:
        until = [forgotten.get(bytes.fromhex(key), 0) for key in group["key"].to_pylist()]
        created = group["created"].cast(pa.int64()).to_numpy()
        kept.append(group.filter(pa.array(created > np.array(until, np.int64))))
    return pa.concat_tables(kept) if kept else table_of([])


def _between(groups: list[pa.Table], low: bytes, high: bytes) -> pa.Table:
    if not groups:
        return table_of([])
    table = pa.concat_tables(groups)
    key = table["key"]
    return table.filter(pc.and_(pc.greater_equal(key, low.hex()), pc.less_equal(key, high.hex())))


def store_of(step: str, remember: Remember | None, states: StatePath) -> StoreKeeper:
    """Return the store of a step.

    Args:
        states: folder of all states.
    """
    assert remember is not None
    return StoreKeeper(states / FOLDER / (remember.name or step))


def stores(states: StatePath) -> list[StoreKeeper]:
    """Return the stores of a folder of states, by name."""
    folder = states / FOLDER
    return [StoreKeeper(folder / name) for name in sorted(files.list_names(folder))]


# --- sets of keys in a few sorted files, to which sets are added: what was used, and by which document ---

_SUFFIX: Final = ".sorted"
_HEAD: Final = 16
"""Bytes before the elements: the CRC-32 of what follows, and the time of the file in seconds since 1970."""
_MERGE_FACTOR: Final = 8
"""Number of files of one size class that are merged into one."""

_Elements = np.ndarray[Any, Any]


class _SortedFiles:
    """Sets of elements of ``size`` bytes, each set with a time. A file that is damaged counts as missing."""

    def __init__(self, folder: StatePath, size: int) -> None:
        self._folder = folder
        self._size = size

    def add(self, elements: _Elements, when: float) -> None:
        """Add a set of elements, durably."""
        if not len(elements):
            return
        files.make_folder(self._folder)
        self._write(elements, when)
        self._merge()

    def sets(self) -> list[tuple[float, _Elements]]:
        """Return the time and the sorted elements of each file."""
        names = sorted(name for name in files.list_names(self._folder) if name.endswith(_SUFFIX))
        return [each for name in names if (each := self._read(name)) is not None]

    def with_prefixes(self, prefixes: Sequence[bytes]) -> list[bytes]:
        """Return all elements that begin with one of these."""
        found: set[bytes] = set()
        low, high = (
            keys_array((each.ljust(self._size, end) for each in prefixes), self._size) for end in (b"\0", b"\xff")
        )
        for _, elements in self.sets():
            begins, ends = np.searchsorted(elements, low), np.searchsorted(elements, high, "right")
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                data = elements[begin:end].tobytes()
                found |= {data[at : at + self._size] for at in range(0, len(data), self._size)}
        return sorted(found)

    def _write(self, elements: _Elements, when: float) -> None:
        body = np.unique(elements).tobytes()
        head = b"%08x%08x" % (zlib.crc32(body), int(when))
        files.replace(self._folder / f"{uuid.uuid4().hex}{_SUFFIX}", head + body)

    def _read(self, name: str) -> tuple[float, _Elements] | None:
        with contextlib.suppress(FileNotFoundError):
            path: Path = files.local_copy(self._folder / name)
            data = path.read_bytes()
            if len(data) > _HEAD and data[:8] == b"%08x" % zlib.crc32(memoryview(data)[_HEAD:]):
                return int(data[8:_HEAD], 16), np.frombuffer(data, f"S{self._size}", offset=_HEAD)
        return None

    def _merge(self) -> None:
        classes: dict[int, list[str]] = {}
        for name, size in files.file_sizes(self._folder).items():
            if name.endswith(_SUFFIX):
                classes.setdefault((size // self._size).bit_length() // 3, []).append(name)
        for names in classes.values():
            found = [each for name in names if (each := self._read(name)) is not None]
            if len(names) >= _MERGE_FACTOR and found:
                self._write(np.concatenate([elements for _, elements in found]), max(when for when, _ in found))
                files.remove_all(self._folder / name for name in names)
