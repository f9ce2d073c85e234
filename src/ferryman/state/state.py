"""State directory of one plan version: its tables, its journal, its driver, and its identity."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import duckdb
import msgspec

from ferryman import crash, limits
from ferryman.errors import EngineError, PlanChanged, StateDamaged, StateForeign, StateHeld, StateLost, UsageError
from ferryman.plan import Differences, NodeRecord, Plan, changes, structure
from ferryman.plan.structure import Structure, reachable_destinations
from ferryman.records import rows
from ferryman.state.activity import Activity
from ferryman.state.journal import Journal
from ferryman.state.keyed import create_missing_tables, create_tables, existing_tables, keyed_tables, missing_tables
from ferryman.storage import disk, files
from ferryman.storage.delta import DataFile
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, is_disk_error
from ferryman.storage.locks import Lock, ObjectLease, Readers, take_lock
from ferryman.storage.parquet import Part, find_damage
from ferryman.storage.tables import OTHERS, Table, taken_over_error

WAVE: Final = "ferryman.wave"
"""Application id: number of the last committed wave (on the outbox)."""
SEQUENCE: Final = "ferryman.sequence"
"""Application id: the next free sequence (on the outbox)."""
SETTLED: Final = "ferryman.settled"
"""Application id: number of the last settled wave (on each table)."""
SNAPSHOT: Final = "ferryman.snapshot"
"""Application id: number of the snapshot of deliveries that counts begin with, see ``account.snapshot`` (on the
ledger)."""
DOCUMENT_COUNT: Final = "ferryman.kept"
"""Application id: lower bound of the number of documents, so this many rows of ``documents`` are not outdated."""

_LOADS: Final = 20
"""Times that a reader tries to load the tables while a driver commits faster than they load."""


def state_root(plan: Plan, state: str | StatePath | None = None, plan_file: Path | None = None) -> StatePath:
    """Return the path of a plan's state, ``<state>/<plan>-v<version>``; by default in ``.ferryman/`` beside the plan
    file.

    Args:
        state: a folder, or a URL such as s3://bucket/states.
    """
    if state is None:
        state = (plan_file.parent if plan_file else Path.cwd()) / ".ferryman"
    where = files.path_of(state)
    return (where.absolute() if isinstance(where, Path) else where) / folder_name(plan)


class State:
    """State directory. Read-only until ``take``; after it, this process is the only driver.

    Attributes:
        wave: number of the last committed wave, 0 before the first.
        settled: number of the last wave that is settled in all tables.
    """

    def __init__(self, root: StatePath, plan: Plan) -> None:
        self.root = root
        self.plan = plan
        self.outbox = Table(root / "outbox", rows.OUTBOX, rows.OUTBOX_PARTITION)
        self.documents = Table(root / "documents", rows.DOCUMENTS, [])
        self.ledger = Table(root / "ledger", rows.LEDGER, [])
        self._core = (self.outbox, self.documents, self.ledger)
        self.keyed = keyed_tables(plan, root)
        self.journal = Journal(root / "journal")
        self.commands = root / "commands"
        self.readers = Readers(root / READERS)
        self.epoch = 0
        self.notes: list[str] = []
        """Messages about what was found and repaired when the state was opened, one per line."""
        self._lock: Lock | ObjectLease | None = None
        self._epoch_before = 0
        """Epoch of the last driver, found when the state was opened and until this driver announces its own."""
        self._unpublished_identity: dict[str, Any] | None = None
        """Content of the state.json that is still to be published."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return (*self._core, *existing_tables(self.keyed))

    @property
    def named_tables(self) -> dict[str, Table]:
        """Path below the root -> table."""
        names = {str(table.folder).removeprefix(f"{self.root}/"): table for table in self.tables}
        return {name.replace(os.sep, "/"): table for name, table in names.items()}

    @property
    def staging(self) -> StatePath:
        """Folder for temporary files of this driver alone: a former driver may not know that it has been replaced."""
        return self.root / "staging" / str(self.epoch)

    @property
    def local_scratch(self) -> Path:
        """Driver-local scratch folder; executors do not see it."""
        return files.local_folder(self.staging)

    @property
    def exists(self) -> bool:  # a crash while it is created leaves no such file
        return files.exists(self.root / IDENTITY)

    @property
    def wave(self) -> int:
        return self.outbox.transactions[WAVE]

    @property
    def next_sequence(self) -> int:
        return self.outbox.transactions[SEQUENCE]

    def skip_sequences(self, sequence: int) -> bool:
        """Raise the next sequence above this one, starting with the next commit; return False if it is already higher,
        or if this is not a valid sequence."""
        if not self.next_sequence <= sequence < limits.SEQUENCE_MAX:
            return False
        self.outbox.transactions[SEQUENCE] = sequence + 1
        return True

    @property
    def settled(self) -> int:
        return min(t.transactions[SETTLED] for t in self._core)

    @classmethod
    def take(cls, root: StatePath, plan: Plan, *, successor: int | None = None, take_over: bool = False) -> Self:
        """Become the driver of this state, creating it if necessary.

        Args:
            successor: version of the plan that will continue from this state; None: the state is taken for the plan
                itself.
            take_over: see ``storage.locks.take_lock``.

        1. take the lock
        2. create the directory, if necessary; state.json last, since it means that everything else exists
        3. verify logs and live files; nothing is changed if anything is wrong
        4. make the names of all log entries durable, since the last driver may have been killed before it did
        5. announce the next epoch on every table, so that an older driver cannot commit any more; then check again that
           no newer version has closed the state, which it may have done before our epoch was visible

        Before step 5 nothing is removed or overwritten. If the file system's locks are unreliable, another driver may
        complete all five steps while this one is suspended at any of them, and be using what exists.

        Raises:
            StateHeld, StateDamaged, StateForeign: see errors; nothing was touched.
            StateLost: another driver took over in the meantime, which is possible only if locks are unreliable; raised
                in place of any error that this caused.
            UsageError: the file system has no locks, hard links or sync of folders.
            EngineError: the disk is full.
        """
        state = cls(root, plan)
        try:
            state._epoch_before = state.outbox.transaction_on_disk(state.application)
            state.refuse_foreign_folder()
            files.make_folder(root)
            files.probe(root if isinstance(root, Path) else root / "staging" / "probe")
            state._lock = take_lock(root / "lock", take_over=take_over)  # 1
            refuse_if_migrated(root, successor)
            if not state.exists:
                state.create()  # 2
            with files.cached_listing(root):
                state.verify()  # 3
                create_missing_tables(state.keyed, plan, state.recorded_structure())
                for path in sealed_files(state):
                    files.unseal(path)
                for table in state.tables:  # 4
                    table.log.sync()
                state.load()
            state.announce_epoch()  # 5
            refuse_if_migrated(root, successor)
        except BaseException as e:
            state.release()
            if files.is_disk_full(e):
                raise EngineError(f"{root}: the disk is full. Nothing is lost: make room and run again.") from e
            if isinstance(e, Exception) and not isinstance(e, StateHeld | StateLost) and not is_disk_error(e):
                state.check_ownership(e)
            if isinstance(e, OSError):
                raise EngineError(f"{root}: {e}. Nothing is lost: fix it and run again.") from e
            raise
        return state

    def open_for_reading(self) -> bool:
        """Check and load the state as ``take`` would, but change nothing; return False if there is no state yet.

        Raises:
            StateDamaged, StateForeign: as in ``take``; or because a driver is replacing files at this moment.
        """
        self.refuse_foreign_folder()
        refuse_if_migrated(self.root, None)
        if not self.exists:
            refuse_missing_identity(self.root, self.tables)
            return False
        self.verify()
        self.load()
        return True

    def record_plan(self, *, accept_changes: bool = False) -> Differences:
        """Record the plan's current structure, and return the differences from the last run.

        Raises:
            PlanChanged: its structure has changed, and that was not accepted. Nothing was changed.
        """
        found = changes(before := self.recorded_structure(), after := structure(self.plan))
        if found.structure and not accept_changes:
            raise PlanChanged(self.plan.name, self.plan.version, found.structure)
        if found.structure:
            record_missed_entries(self.root, before, after, self.outbox.log.transactions)
        if any(found) or before != after:  # also what an older version did not record of the same plan
            self.record_structure(after)
        return found

    def recorded_structure(self) -> dict[str, NodeRecord]:
        """Return the plan's structure in its last run."""
        return msgspec.convert(files.unseal(self.root / PLAN), dict[str, NodeRecord])

    def record_structure(self, plan: Structure) -> None:
        """Record a structure durably."""
        files.replace(self.root / PLAN, files.seal(plan))
        crash.point("plan.kept")

    def note_activity(self, activity: Activity) -> None:
        """Record what this driver is doing, for ``find_activity``."""
        if self._lock is not None:
            self._lock.note(msgspec.to_builtins(activity))

    def release(self) -> None:
        """Stop being the driver."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def verify(self) -> None:
        """Check that this is the plan's state, undamaged, and of a known format. Changes nothing; reads logs, not data
        files.

        Raises:
            StateForeign, StateDamaged: by name.
        """
        with files.cached_listing(self.root):
            for problem in self.problems():
                raise problem

    def problems(self) -> Iterator[StateDamaged]:
        """Yield an error for every damaged file, except data files and notes.

        Raises:
            StateForeign: it is not the state of this plan.
        """
        try:
            self.identity()
        except StateDamaged as e:
            yield e
        try:
            yield from missing_tables(self.keyed, self.recorded_structure())
        except StateDamaged as e:
            yield e
        for name in FOLDERS:
            if isinstance(self.root, Path) and not (self.root / name).is_dir():  # an object store has no folders
                yield StateDamaged(str(self.root / name), "the folder is missing")
        passes, found = self.journal.passes(), False  # noted before the logs are read, since a driver may be at work
        for table in self.tables:
            for problem in table.log.problems():
                found = True
                yield problem
        if not found:
            yield from self._missing_last_entries(passes)

    def _missing_last_entries(self, passes: list[int]) -> Iterator[StateDamaged]:
        """Yield an error for each log whose last entry is missing although another table or the journal refers to
        it."""
        tables, seen = self.named_tables, Counter[str]()
        for table in tables.values():
            table.log.refresh(durable=False)  # readers check it, too, and a driver has synced the logs
            seen |= Counter(table.log.last_info.get(OTHERS, {}))
        for name, table in tables.items():
            if table.log.version < seen[name]:
                table.log.refresh(durable=False)  # a driver may have committed since
            if table.log.version < seen[name]:
                yield StateDamaged(str(table.log.path(table.log.version + 1)), "the log file is missing")
        if passes and passes[-1] > self.outbox.log.transactions.get(WAVE, 0):
            yield StateDamaged(str(self.outbox.log.path(self.outbox.log.version + 1)), "the log file is missing")

    def load(self) -> None:
        """Load the tables as they are now; every live file must exist.

        Raises:
            StateDamaged: names the file.
        """
        self.outbox.load([self.application, WAVE, SEQUENCE, SETTLED])
        self.documents.load([self.application, SETTLED, DOCUMENT_COUNT])
        self.ledger.load([self.application, SETTLED])
        for each in self.keyed.values():
            each.load(self.application)
        if self.outbox.transactions[SEQUENCE] == 0:
            self.outbox.transactions[SEQUENCE] = self.identity()["first_sequence"]
        for table in self.tables:
            table.verify_sizes()
            table.verify_sizes(self.staged_files(table))
        if self.journal.highest_closed() < (closed := self.ledger.transactions[SETTLED]):
            raise StateDamaged(str(self.root / "journal" / "closed" / str(closed)), "the file is missing")

    def load_consistently(self, applications: Collection[str]) -> None:
        """Load the tables for a reader, all as of one moment: load again until no commit on the outbox came in
        between."""
        for _ in range(_LOADS):
            with files.cached_listing(self.root):
                last = self.outbox.log.last()
                for table in self.tables:
                    table.load(applications)
            if self.outbox.log.last() == last:
                return

    def staged_files(self, table: Table) -> list[DataFile]:
        """Return files that a commit or a worker's result has named for this table, but that are not in the table
        yet."""
        if table not in self._core or (wave := self.wave) <= table.transactions[SETTLED]:
            return []
        commit = self.outbox.log.find("wave", wave)
        parts = [Part(*p) for p in commit.get(table.name, ())]
        if table is self.ledger:
            parts += [part for result in self.journal.results(wave) if (part := result.ledger_part) is not None]
        return [table.data_file(p) for p in parts]

    @property
    def application(self) -> str:
        """Application id of the epochs."""
        return f"ferryman.plan.{self.plan.key}"

    def scratch(self, name: str) -> StatePath:
        """Return an empty scratch folder, for example for listings and the data they are compared with."""
        folder = self.staging / name
        files.remove_folder(folder)
        files.local_folder(folder).mkdir(parents=True, exist_ok=True)
        return folder

    def clear_staging(self) -> None:
        """Empty this driver's scratch folder, and remove those of earlier drivers."""
        for name in files.list_names(self.root / "staging"):
            if not name.isdigit() or int(name) <= self.epoch:
                remove_scratch(self.root / "staging" / name)
        self.local_scratch.mkdir(exist_ok=True)

    def retire(self, table: Table, paths: Iterable[str]) -> None:
        """Remove files that this table no longer names: now, or later if somebody is reading. In an object store they
        are removed when the next scan begins (``remove_retired``), since tasks of the current one may still read
        them."""
        table.retire(paths)
        if isinstance(self.root, Path):
            self.remove_retired()

    def remove_retired(self) -> None:
        """Remove retired files."""
        with self.removal_cutoff() if isinstance(self.root, Path) else contextlib.nullcontext() as before:
            for each in self.tables:
                each.remove_retired(before)

    @contextlib.contextmanager
    def removal_cutoff(self) -> Iterator[float | None]:
        """Yield which unnamed files may be removed: those last changed before this time, or all (None). Meanwhile
        readers are kept out, or need only files replaced more recently."""
        with self.readers.exclude_readers() as alone:
            yield None if alone else self.readers.filesystem_time() - limits.READERS_GRACE_S

    def close_for_version(self, version: int) -> None:
        """Reserve the state for this version of the plan: from now on only it may take the state, in order to continue
        from it."""
        files.replace(self.root / MIGRATED, files.seal({"to": version}))

    def refuse_foreign_folder(self) -> None:
        """Refuse to create a state inside a folder that contains anything other than a partly created state.

        Raises:
            StateForeign: the folder holds something else.
        """
        if self.exists or any(t.exists for t in self.tables):
            return
        if found := list(itertools.islice(unknown_files(self.root), 3)):
            raise StateForeign(
                f"{self.root} holds {', '.join(sorted(found))} and no state.json: it is not a Ferryman state. "
                "Nothing was touched. Give another --state."
            )

    def identity(self) -> dict[str, Any]:
        """Return the content of state.json, see ``identity_of``."""
        return self._unpublished_identity or identity_of(self.root, self.plan)

    def create(
        self, extra: Mapping[str, Any] | None = None, recorded: Structure | None = None, *, publish: bool = True
    ) -> None:
        """Create the directory, empty; state.json last.

        Args:
            extra: further fields of state.json.
            recorded: the plan's structure in its last run; None: the current one.
            publish: whether to write state.json; if not, ``publish_identity`` does so later, and existing files are
                kept and continued.
        """
        if publish:
            refuse_missing_identity(self.root, self.tables)
        for name in ("commands", "staging"):
            files.make_folder(self.root / name)
        self.journal.create()
        for table in self._core:
            table.create()
            crash.point("create.table")
        create_tables(self.keyed.values())
        self.record_structure(structure(self.plan) if recorded is None else recorded)
        self._unpublished_identity = new_identity(self.plan, extra or {})
        if publish:
            self.publish_identity()

    def publish_identity(self) -> None:
        """Write state.json, since everything else exists now."""
        files.publish(self.root / IDENTITY, files.seal(self._unpublished_identity))  # once, also unlocked
        self._unpublished_identity = None
        crash.point("create.state")

    def announce_epoch(self, *, after: int = 0) -> None:
        """Commit the next epoch on every table, at least one above ``after``."""
        epoch = 1 + max(after, *(t.transactions[self.application] for t in self.tables))
        for table in self.tables:
            table.siblings = self.named_tables
            table.fence(self.application, epoch)
            self.epoch = epoch  # valid from the first table on
            crash.point("epoch.table")
        self.local_scratch.mkdir(exist_ok=True)
        self.readers.create()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.release()
        if not isinstance(error, Exception) or isinstance(error, StateLost):
            return
        self.check_ownership(error)  # missing or damaged files may be the effect of another driver
        if isinstance(error, duckdb.Error) and (found := damaged_data(self)) is not None:
            raise found from error

    def check_ownership(self, error: BaseException | None = None) -> None:
        """Raise if another driver has announced itself.

        Raises:
            StateLost: it has; raised from ``error``.
        """
        own = self.epoch or self._epoch_before
        if (epoch := self.outbox.transaction_on_disk(self.application)) > own:
            raise taken_over_error(self.root, epoch, own) from error


# --- files checked for damage beside the logs of tables ---


def sealed_files(state: State) -> list[StatePath]:
    """Return the sealed files of a state: queued commands, the journal, and notes about the state."""
    if not state.exists:
        return []
    existing = files.file_sizes(state.root)
    folders = [state.commands, *(state.journal.folder / str(number) for number in state.journal.passes())]
    found = [state.root / name for name in (MIGRATED, MIGRATION, MISSED, TARGETS, VERIFIED) if name in existing]
    found += [folder / name for folder in folders for name in files.file_sizes(folder)]
    found += [state.root / name for name in remembered_files(state.root) if name.endswith(".json")]
    return sorted((path for path in found if not path.name.startswith(TEMPORARY)), key=str)


def remembered_files(root: StatePath) -> list[str]:
    """Return the names below the root of the files that hold what sources remember, see ``state.source_memory``, and
    the batches of streams, see ``sources.stream``."""
    of_streams = [name for name in stream_files(root) if "/batches/" in name]
    return [*(f"{SOURCES}/{name}" for name in _walk(root / SOURCES)), *of_streams]


def stream_files(root: StatePath) -> list[str]:
    """Return the names below the root of all files of streams."""
    names = (f"{STREAMS}/{name}" for name in _walk(root / STREAMS))
    return [name for name in names if not files.is_folder(root / name)]


def _walk(folder: StatePath) -> list[str]:
    return list(files.walk_names(folder)) if files.is_folder(folder) else []


def damaged_data(state: State) -> StateDamaged | None:
    """Return the error of the first damaged data file, reading all of them; called after a query has failed."""
    for table in state.tables:
        for file in (*table.files.values(), *state.staged_files(table)):
            try:
                what = find_damage(table.path(file.path))
            except StateDamaged as e:
                return e
            if what is not None:
                return StateDamaged(str(table.folder / file.path), what)
    return None


def refuse_missing_identity(root: StatePath, tables: Iterable[Table]) -> None:
    """Refuse a state that has no state.json although it is not empty.

    Raises:
        StateDamaged: tables have content, or a run with --from-version has begun and may be continued.
    """
    begun = files.exists(root / MIGRATION)
    if begun or any(table.log.last() > 0 for table in tables):  # more than creating an empty table writes
        what = "this state was only begun: run --from-version again" if begun else "the tables are not empty"
        raise StateDamaged(str(root / IDENTITY), f"the file is missing, and {what}")


# --- the identity of a state: state.json ---

IDENTITY: Final = "state.json"
"""Name of the file that is created last: if it exists, everything else does."""


def folder_name(plan: Plan) -> str:
    """Return the name of a plan's folder, ``<plan>-v<version>``.

    Raises:
        UsageError: it is not a plan, but the name of its file, or a flow.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"{plan!r} is not a Plan: import it from its file, as in `from papers import plan`.")
    return plan.key


def new_identity(plan: Plan, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a new state; ``extra`` adds fields."""
    return {
        "format": limits.FORMAT,
        "plan": plan.name,
        "version": plan.version,
        "id": str(uuid.uuid4()),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "first_sequence": int(time.time()) * limits.SEQUENCE_PER_SECOND,
        **extra,
    }


def identity_of(root: StatePath, plan: Plan) -> dict[str, Any]:
    """Return the identity of a plan's state.

    Raises:
        StateDamaged: it cannot be read.
        StateForeign: it is of another plan, or of an unknown format.
    """
    path = root / IDENTITY
    try:
        found: Any = files.unseal(path)
    except OSError as e:
        raise StateDamaged(str(path), f"cannot be read ({e.strerror})") from e
    if found["format"] > limits.FORMAT:
        raise StateForeign(
            f"{path}: format {found['format']}, this Ferryman knows up to {limits.FORMAT}. "
            "Nothing was touched. Use the newer Ferryman that wrote it."
        )
    if found["format"] < limits.FORMAT:
        raise StateForeign(
            f"{path}: format {found['format']}, which an older Ferryman wrote; this one writes {limits.FORMAT}. "
            "Nothing was touched. Finish its runs with the older one, then begin a new state with --state."
        )
    if (found["plan"], found["version"]) != (plan.name, plan.version):
        raise StateForeign(
            f"{root} is the state of plan {found['plan']} version {found['version']}, not of {plan.name} "
            f"version {plan.version}. Nothing was touched. Give another --state, or the right plan."
        )
    return dict(found)


def refuse_if_migrated(root: StatePath, successor: int | None) -> None:
    """Refuse a state that another version of the plan continues from.

    Raises:
        StateForeign: another version than ``successor`` continues from it.
    """
    if not files.exists(path := root / MIGRATED):
        return
    if (to := msgspec.convert(files.unseal(path), dict[str, int])["to"]) != successor:
        raise StateForeign(
            f"{root}: version {to} of this plan continues from this state. Nothing was touched. "
            "Run that version; status, deliveries and history of this one can still be read."
        )


def id_of(root: StatePath) -> str:
    """Return an id that no other state has; "" if there is no state. An older state has only its time of creation.

    Raises:
        StateDamaged: its identity cannot be read.
    """
    path = root / IDENTITY
    if not files.exists(path):
        return ""
    found: Any = files.unseal(path)
    return str(found.get("id", found["first_sequence"]))


class SenderIdentity(NamedTuple):
    """Identity under which a state delivers."""

    state: str
    """Id of the state; of a state that continues from an older version's, that state's id."""
    version: int
    """Version of the plan whose state has this id."""


def sender_of(root: StatePath) -> SenderIdentity:
    """Return the identity under which a state delivers.

    The state of a newer version that continues from it has the same identity, so that destinations recognize deliveries
    which were sent but not recorded and are sent again from there.

    Args:
        root: of the state, which exists.

    Raises:
        StateDamaged: its identity cannot be read.
    """
    found: Any = files.unseal(root / IDENTITY)
    inherited: dict[str, Any] | None = found.get("sender")
    return SenderIdentity(**inherited) if inherited else SenderIdentity(id_of(root), found["version"])


def plan_of(root: StatePath) -> Plan:
    """Return an empty plan with the name and version in a state's identity: enough to read the state.

    Raises:
        StateDamaged: its identity cannot be read.
    """
    path = root / IDENTITY
    if not files.exists(path):
        return Plan(root.name)
    found: Any = files.unseal(path)
    return Plan(found["plan"], found["version"])


# --- names in a state's folder ---

PLAN: Final = "plan.json"
"""File of the plan's structure at its last run."""

MIGRATED: Final = "migrated.json"
"""File that names the newer version of the plan which continues from this state."""
MIGRATION: Final = "migration.json"
"""File that exists while a state that continues from an older version's has not run its first wave; see
``engine.migration``."""

NOTIFIED: Final = "notified.json"
"""File that records what each notification target was sent."""

MIRRORED: Final = "mirrored.json"
"""File that records up to which wave each mirror has the ledger; see ``mirror.mirror``."""

MISSED: Final = "passed.json"
"""File of log entries that destinations have missed; see ``MissedEntries``."""

TARGETS: Final = "targets.json"
"""File of the identities of the targets that destinations write to; see ``state.targets``."""

VERIFIED: Final = "verified.json"
"""File of the results of ``ferryman verify``: by destination, when it was verified, and up to which wave."""

COUNTED: Final = "counted.json"
"""Cache of the counts over the ledger that ``status`` shows of a large state; see ``account.counts``."""

SNAPSHOTS: Final = "counted"
"""Folder of the snapshot of deliveries that these counts go on from; see ``account.snapshot``."""

STEP_TIME: Final = "ferryman.took_us "
"""Prefix of the application ids (on the outbox) of the microseconds spent in the calls of each step."""

RUNS: Final = "runs.json"
"""File of the last runs: when they ended, how, and what they did; see ``state.runs``."""

READERS: Final = "readers"
"""File that is locked by every process reading the state; see ``storage.locks.Readers``."""

ONCE: Final = "once"
"""Folder in a driver's scratch folder, with a subfolder per wave, where tasks that run at most once record that they
have begun."""
OPEN: Final = "open"
"""File in such a subfolder: tasks may begin as long as it exists."""

STREAMS: Final = "streams"
"""Folder of what logs themselves keep in the state, such as the checkpoints of streams."""

SOURCES: Final = "sources"
"""Folder of what sources remember, see ``state.source_memory``; it exists if one of them does."""

FOLDERS: Final = ("outbox", "documents", "ledger", "journal", "journal/closed", "commands", "staging")
TABLES: Final = FOLDERS[:3]


def unknown_files(root: StatePath) -> Iterator[str]:
    """Yield the names of files that are neither part of a state being created nor half written."""
    expected = {
        "lock",
        PLAN,
        READERS,
        *FOLDERS,
        *(f"{t}/_delta_log" for t in TABLES),
        *(f"{t}/_delta_log/{0:020d}.json" for t in TABLES),
    }
    for name in files.walk_names(root):
        folder, _, last = name.rpartition("/")
        temporary = last.startswith(disk.TEMPORARY) or (folder.endswith("_delta_log") and "#" in last)
        if not temporary and name not in expected:
            yield last


def remove_scratch(folder: StatePath, part: str = "") -> None:
    """Remove a driver's scratch folder, or a part of it. First keep tasks that may run at most once from starting,
    since the records of their starts are removed too."""
    once = folder / ONCE
    files.remove_all(once / wave / OPEN for wave in files.list_names(once))
    files.remove_folder(folder / part if part else folder)


# --- log entries that destinations have missed, since they were read before the plan had a path there ---
#
# Such entries have no delivery at a destination, and none is missing. They are recorded beside the plan's structure
# whenever the plan has changed. The record is valid for that structure only, so a change that a crash interrupted has
# no effect.


class MissedEntries(msgspec.Struct, frozen=True, array_like=True):
    """Number of a log's entries that a destination has missed.

    Attributes:
        missed: entries read while the plan had no path from the log to the destination.
        read_at_removal: entries read in total when the path was removed; None if there is a path.
    """

    missed: int
    read_at_removal: int | None = None


MissedByLog = dict[str, dict[str, MissedEntries]]
"""Log -> destination -> missed entries; destinations that are not named have missed none."""


class _MissedFile(msgspec.Struct, frozen=True):
    """Content of the file: the missed entries ``before`` the last change of the plan, and those since its structure has
    this ``digest``."""

    digest: str
    before: MissedByLog
    after: MissedByLog


_NONE_MISSED: Final = MissedEntries(0)

READ: Final = "ferryman.read."
"""Prefix of the application id of the number of entries read from a log."""


def missed_entries(root: StatePath, plan: Structure) -> MissedByLog:
    """Return the missed entries under this structure, which the plan had in its last run.

    Args:
        root: of the state.

    Raises:
        StateDamaged: the file is not what was written.
    """
    path = root / MISSED
    if not files.exists(path):
        return {}
    noted = msgspec.convert(files.unseal(path), _MissedFile)
    return noted.after if noted.digest == _structure_digest(plan) else noted.before


def record_missed_entries(
    root: StatePath, before: Structure, after: Structure, transactions: Mapping[str, int]
) -> None:
    """Record, after a plan has changed, the log entries that its destinations have missed.

    Args:
        transactions: all transactions of the outbox, which include the number of entries read from each log, even from
            logs no longer in the plan.
    """
    known = missed_entries(root, before)
    read = {key.removeprefix(READ): number for key, number in transactions.items() if key.startswith(READ)}
    found = {
        log: _missed_entries_of_log(log, known.get(log, {}), before, after, number)
        for log, number in read.items()
        if number
    }
    found = {log: missed for log, missed in found.items() if missed}
    if found or files.exists(root / MISSED):
        files.replace(root / MISSED, files.seal(_MissedFile(_structure_digest(after), known, found)))


def _missed_entries_of_log(
    log: str, known: Mapping[str, MissedEntries], before: Structure, after: Structure, read: int
) -> dict[str, MissedEntries]:
    old, new = reachable_destinations(before, log), reachable_destinations(after, log)
    found = dict(known)
    for name in new - old:
        earlier = known.get(name, MissedEntries(0, 0))
        found[name] = MissedEntries(earlier.missed + read - (earlier.read_at_removal or 0))
    for name in old - new:
        found[name] = MissedEntries(known.get(name, _NONE_MISSED).missed, read)
    return {name: missed for name, missed in found.items() if missed != _NONE_MISSED}


def _structure_digest(plan: Structure) -> str:
    edges = {name: [node.kind, *node.after] for name, node in sorted(plan.items())}
    return blake2b(msgspec.json.encode(edges), digest_size=8).hexdigest()
