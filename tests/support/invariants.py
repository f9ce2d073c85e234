"""What must hold after every run, computed from the tables' files without the code that answers ``status``."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq

from ferryman import account, operations
from ferryman.engine.run import Summary
from ferryman.plan import Plan, SourceNode, destinations_of_sources, keyed_nodes, logs_of_versions, sources_of
from ferryman.records.rows import MOVES, Status
from ferryman.sources import Log
from ferryman.state.logs import number_of_text
from ferryman.state.state import SEQUENCE, SETTLED, WAVE, MissedByLog, MissedEntries, State, missed_entries

TABLES = ("outbox", "documents", "ledger")
DERIVED = {Status.PROCESSING, Status.BATCHED}
"""Never stored: a stored event may follow another one by way of these."""


class Files:
    """A table as its log says, read by the protocol of Delta and without Ferryman's code.

    ``test_delta_rs_reads_what_the_invariants_read`` compares it with delta-rs, which takes ten times as long.

    Attributes:
        partitions: data files, relative to the table's folder, with the values of their partition columns.
        paths: the same files.
        transactions: numbers that commits have set, by name.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.transactions: dict[str, int] = {}
        added: dict[str, dict[str, Any]] = {}
        whole: set[str] = set()
        for action in _log_actions(self.folder / "_delta_log"):
            if (txn := action.get("txn")) is not None:
                self.transactions[txn["appId"]] = txn["version"]
            elif (add := action.get("add")) is not None:
                values = dict(add["partitionValues"])  # a map, which Parquet gives as pairs
                added[unquote(add["path"])] = {k: int(v) if k in whole else v for k, v in values.items()}
            elif (remove := action.get("remove")) is not None:
                added.pop(unquote(remove["path"]), None)
            elif (table := action.get("metaData")) is not None:
                whole = {f["name"] for f in msgspec.json.decode(table["schemaString"])["fields"] if f["type"] == "long"}
        self.partitions = dict(reversed(added.items()))  # the newest file first
        self.paths = set(added)

    def rows(self) -> list[dict[str, Any]]:
        """All rows, partition columns too."""
        found = []
        for path, partition in self.partitions.items():
            found += [{**row, **partition} for row in _rows_of(self.folder / path)]
        return found


def _log_actions(folder: Path) -> Iterator[dict[str, Any]]:
    """Actions of the newest checkpoint, and of the entries after it."""
    names = os.listdir(folder)
    checkpoint = max((name for name in names if name.endswith(".checkpoint.parquet")), default="")
    if checkpoint:
        yield from _rows_of(folder / checkpoint)
    first = int(checkpoint.partition(".")[0]) + 1 if checkpoint else 0
    versions = sorted(int(name.partition(".")[0]) for name in names if _ENTRY.fullmatch(name))
    newer = [version for version in versions if version >= first]
    assert newer == list(range(first, first + len(newer))), f"{folder}: an entry is missing: {names}"
    for version in newer:
        yield from _actions_of(folder / f"{version:020d}.json")


_ENTRY = re.compile(r"[0-9]{20}\.json")


def _actions_of(path: Path) -> list[dict[str, Any]]:
    found = path.stat()
    return _decode(path, found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1024)
def _decode(path: Path, *_: int) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]


def _rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a Parquet file. They are read once, for a file that is there does not change: where it was replaced or
    damaged, its time, its size or its number is another."""
    found = path.stat()
    return _read(path, found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)
def _read(path: Path, *_: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a state table."""
    return Files(root, table).rows()


def states(root: Path, node: str) -> dict[str, Any]:
    """Key -> state, of the keys that have one."""
    found = Files(root / "state", node).rows()
    last = {row["key"]: row for row in sorted(found, key=lambda row: int(row["wave"]))}
    return {key: json.loads(row["value"]) for key, row in last.items() if row["value"] is not None}


def check(root: Path, plan: Plan, summary: Summary | None = None, status: dict[str, Any] | None = None) -> None:
    """After a run that ended by itself: it adds up, nothing is damaged, nothing lies about.

    1. ``status`` is what the tables say (I4), and balanced; ``left_over`` and the run's summary agree with it
    2. each delivery went legal ways only, and its row is in the outbox as long as it should be
    3. no two waiting rows have one sequence; a document has one row a wave
    4. ``fsck`` finds nothing; no file lies about that nothing names
    5. of an entry that the plan stops before, one event says why, and no delivery was committed

    Args:
        status: what ``status`` has said of this state; None: it is asked.
    """
    status = status or account.status(root, plan)
    assert status["balanced"], status
    tables = {name: Files(root, name) for name in TABLES}
    ledger, outbox, documents = (tables[name].rows() for name in ("ledger", "outbox", "documents"))
    latest = _check_events(ledger)
    current = _check_documents(documents)
    _check_outbox(outbox, latest)
    _check_numbers(tables, outbox)
    _check_status(plan, status, latest, outbox, current, missed_entries(root, State(root, plan).recorded_structure()))
    left = account.outstanding(root, plan) if summary is None else dataclasses.asdict(summary)
    for name in ("failed", "rejected", "pending", "in_doubt"):
        assert left[name] == sum(d[name] for d in status["destinations"].values()), (name, left, status)
    if summary is not None and summary.exit == 2:
        assert any("--allow-deletes" in message for message in summary.messages), summary
    elif summary is not None and summary.exit not in (0, 4):
        assert summary.exit == 3, summary
        replaced = any("`ferryman verify PLAN --repair`" in message for message in summary.messages)
        assert summary.failed or summary.rejected or summary.in_doubt or replaced, summary
    assert operations.check(root) == []
    _check_files(root, tables)
    _check_stops(root, plan, tables["outbox"].transactions, ledger)


def _check_events(ledger: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """2; each delivery's latest event."""
    by_hash: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in ledger:
        if event["destination"]:
            by_hash[event["delivery_hash"]].append(event)
    latest = {}
    for digest, events in by_hash.items():
        events.sort(key=lambda e: (e["wave"], e["ordinal"]))
        order = [(e["wave"], e["ordinal"]) for e in events]
        assert len(set(order)) == len(order), f"two events of {digest} at one place: {events}"
        statuses = [Status(e["status"]) for e in events]
        before: Status | None = None
        for after in statuses:
            assert legal(before, after), f"{events[0]['document']}: {statuses}"
            before = after
        names = ("source", "document", "origin", "version", "revision", "operation", "route", "destination")
        assert len({tuple(e[n] for n in names) for e in events}) == 1, f"one hash, two deliveries: {events}"
        latest[digest] = events[-1]
    return latest


def legal(before: Status | None, after: Status) -> bool:
    """May this stored status follow that one, perhaps by way of statuses that are not stored?"""
    seen, reached = set(), {before}
    while reached - seen:
        at = next(iter(reached - seen))
        seen.add(at)
        if after in MOVES[at]:
            return True
        reached |= MOVES[at] & DERIVED
    return False


def _check_documents(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """3; each document's last row."""
    current: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(documents, key=lambda r: r["wave"]):
        key = (row["source"], row["document"])
        if key in current:
            assert current[key]["wave"] < row["wave"], f"two rows of {key} in wave {row['wave']}"
            assert current[key]["revision"] <= row["revision"], f"the revision of {key} went back"
        current[key] = row
    return current


def _check_outbox(outbox: list[dict[str, Any]], latest: dict[str, dict[str, Any]]) -> None:
    sequences = Counter(int(r["first_sequence"]) + r["row"] for r in outbox)
    assert all(n == 1 for n in sequences.values()), "two waiting rows have one sequence"
    hashes = Counter(r["delivery_hash"] for r in outbox)
    assert all(n == 1 for n in hashes.values()), "a delivery waits twice"
    for row in outbox:
        status = latest[row["delivery_hash"]]["status"] if row["delivery_hash"] in latest else None
        if row["due"] is None:
            # A parked row that is superseded by force stays until the outbox is merged.
            assert status in ("DEAD", "ERROR_DOC", "INDEXING", "FORCE", "DROPPED"), (
                f"parked, but {status}: {row['document']}"
            )
        else:
            assert status in (None, "ERROR", "RESTART", "FORCE"), f"owed, but {status}: {row['document']}"


def _check_numbers(tables: dict[str, Files], outbox: list[dict[str, Any]]) -> None:
    wave = tables["outbox"].transactions.get(WAVE)
    settled = {t.transactions.get(SETTLED) for t in tables.values()}
    assert settled == {wave}, "the last wave is not settled"
    free = tables["outbox"].transactions.get(SEQUENCE) or 2**53 - 1  # none given yet
    assert all(int(r["first_sequence"]) + r["row"] < free for r in outbox), "a sequence would be given twice"
    assert free < 2**53


def _check_status(
    plan: Plan,
    status: dict[str, Any],
    latest: dict[str, dict[str, Any]],
    outbox: list[dict[str, Any]],
    current: dict[tuple[str, str], dict[str, Any]],
    passed: MissedByLog,
) -> None:
    """1, by another way than ``account`` goes."""
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    accounted = set()
    entries: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)

    logs = {n.name for n in sources_of(plan.nodes) if isinstance(n.source, Log)}
    listed = {n.name for n in sources_of(plan.nodes)} - logs

    def is_current(event: dict[str, Any]) -> bool:
        known = current.get((event["source"], event["origin"]))
        if known is None:  # of what went through a log, also a former one, nothing else is kept
            return event["source"] not in listed or event["operation"] == "delete"  # or verify found it as extra
        return bool(known["revision"] <= event["revision"])

    exported = {n.name for n in keyed_nodes(plan.nodes)}

    def known_as(row: dict[str, Any]) -> str:
        """In ``documents``: exports are there by their places."""
        place, lane = divmod(row["revision"] - 1, 4)
        return f"lane{lane}/{place}" if row["source"] in exported else str(row["origin"])

    for event in latest.values():
        if is_current(event):
            expected[event["destination"]][_count_of(event)] += 1
            accounted.add((event["source"], known_as(event), event["destination"]))
            entries[event["source"], event["destination"]].add((event["origin"], event["revision"]))
    for row in outbox:
        event = latest.get(row["delivery_hash"])
        if event is None or (not is_current(event) and row["due"] is not None):
            expected[row["destination"]]["pending"] += 1
            accounted.add((row["source"], known_as(row), row["destination"]))
            entries[row["source"], row["destination"]].add((row["origin"], row["revision"]))
    combined = {n.name for n in plan.nodes if isinstance(n, SourceNode) and n.after}
    for name, counts in status["destinations"].items():
        assert name in combined or counts == {k: expected[name][k] for k in counts}, (name, counts, expected[name])
    assert not set(expected) - set(status["destinations"])
    reached = destinations_of_sources(plan.nodes)
    for (source, document), row in current.items():
        given = {destination for _, _, destination, *_ in msgspec.json.decode(row["given"] or "[]")}
        missed = passed.get(source, {}) if source in logs_of_versions(plan.nodes) else {}
        for name in set(reached.get(source, ())) - missed.keys():
            if row["operation"] == "upsert" or name in given:
                assert (source, document, name) in accounted, f"{document} is lost from sight at {name}"
    for name, counts in status["sources"].items():
        mine = Counter(r["operation"] for (s, _), r in current.items() if s == name)
        if name in logs and name not in logs_of_versions(plan.nodes):  # of these ``documents`` says which there are
            for destination in reached.get(name, ()):
                missed = (
                    passed.get(name, {}).get(destination, MissedEntries(0)).missed
                )  # read before it could have them
                assert len(entries[name, destination]) == counts["read"] - missed, (name, destination)
        if name in logs:
            continue
        again = sum(r["again"] is not None for (s, _), r in current.items() if s == name)
        assert counts == {"documents": mine["upsert"], "deleted": mine["delete"], "again": again}


def _count_of(event: dict[str, Any]) -> str:
    match event["status"]:
        case "INDEXED":
            return "delivered" if event["operation"] == "upsert" else "deleted"
        case "DROPPED":
            return "dropped"
        case "DEAD":
            return "failed"
        case "ERROR_DOC":
            return "rejected"
        case "INDEXING":
            return "in_doubt"
        case _:
            return "pending"


def _check_stops(root: Path, plan: Plan, numbers: dict[str, int], ledger: list[dict[str, Any]]) -> None:
    """5."""
    found = set()
    prefix = "ferryman.stop."
    for key, wave in numbers.items():
        if not (key.startswith(prefix) and key.endswith("/wave") and wave):
            continue
        name = key.removesuffix("/wave")
        source = name.removeprefix(prefix).partition("/")[0]
        [event] = [
            e
            for e in ledger
            if (e["wave"], e["source"], e["destination"], e["status"]) == (wave, source, "", "ERROR")
            and number_of_text(e["document"]) == numbers[f"{name}/entry"]
        ]
        found.add((source, event["document"]))
        of_entry = [e for e in ledger if (e["source"], e["origin"]) == (source, event["document"])]
        assert not [e for e in of_entry if e["destination"] and e["revision"] == event["revision"]], of_entry
    assert {(stop["source"], stop["document"]) for stop in account.stopped(root, plan)} == found


def _check_files(root: Path, tables: dict[str, Files]) -> None:
    """4: every file has its place. (What a commit has removed may be there until the next start.)"""
    files, folders = _everything_in(root)
    for name, table in tables.items():
        there = {path.removeprefix(f"{name}/") for path in files if path.startswith(f"{name}/")}
        there = {path for path in there if path.endswith(".parquet") and not path.startswith("_delta_log")}
        allowed = table.paths if there <= table.paths else table.paths | _removed(table.folder / "_delta_log")
        assert table.paths <= there <= allowed, f"{table.folder}: files that nothing names"
    at_work = ("", "commands", "journal")  # what is half written there may be somebody's, for an hour
    stray = [
        path
        for path in (*files, *folders)
        for parent, name in [os.path.split(path)]
        if (name.startswith(".tmp") and parent not in at_work and os.path.basename(parent) != "_delta_log")
        or ("#" in name and os.path.basename(parent) == "_delta_log")
    ]
    assert not stray, stray
    staged = [path for path in files if path.startswith("staging/")]
    assert not staged, staged
    assert len(os.listdir(root / "journal" / "closed")) <= 1


def _everything_in(root: Path) -> tuple[list[str], list[str]]:
    """All files, and all folders, by their paths below this one."""
    files, folders = [], []
    for folder, below, names in os.walk(root):
        prefix = "" if (relative := os.path.relpath(folder, root)) == "." else f"{relative}/"
        folders += [prefix + name for name in below]
        files += [prefix + name for name in names]
    return files, folders


def _removed(log: Path) -> set[str]:
    return {each["remove"]["path"] for path in log.glob("*.json") for each in _actions_of(path) if "remove" in each}
