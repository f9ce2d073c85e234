"""Records of the older queue, in which one node of ZooKeeper was one piece of work.

A node ``mrtQ-PPHWNNNNNNNNNN`` (priority, high-priority flag, worker digit, sequence) holds a status byte, eight bytes
of time, and a payload: JSON, XML, or Java properties, as text or serialized by Java. Names of inventory's records have
no flag and no worker: ``mrtQ-PPNNNNNNNNNN``. Each record becomes a job of the batch that its payload names, in the
state that it was in, with our names for ingest's properties (``legacy_names``); what cannot be read is named and
skipped. An import that was killed can be done again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

from ferryman.document import decode_json
from ferryman.errors import FerrymanError, UsageError, plain_text
from ferryman.intake import java_properties
from ferryman.intake.batch import Batch
from ferryman.intake.job import Job
from ferryman.intake.legacy_names import renamed
from ferryman.intake.nodes import time_text
from ferryman.intake.queue import Queue
from ferryman.intake.states import JobState

NAME: Final = re.compile(r"mrtQ-(?P<priority>[0-9]{2})(?P<flags>[0-9]{2})?(?P<sequence>[0-9]{10})")
"""With flags (high priority, worker) as ingest named its records, or without as inventory did."""

HEAD_BYTES: Final = 9
"""Status and time."""

RECORD_BYTES_MAX: Final = 1 << 20
"""ZooKeeper's servers refuse larger nodes: what is larger was no record."""

STATUSES: Final = {
    0: JobState.PENDING,
    1: JobState.PENDING,
    2: JobState.DELETED,
    3: JobState.FAILED,
    4: JobState.COMPLETED,
    5: JobState.HELD,
}
"""By the status byte. What was consumed and not completed is to be done again."""

SECONDS_MAX: Final = 100_000_000_000
"""Times below are seconds (until the year 5138), above milliseconds (since March 1973): what was written down about
them, and what wrote them, do not agree."""

TIME_MAX_S: Final = 253_402_300_799
"""The end of the year 9999."""

RECORD: Final = "legacy_record"
"""The key of a job's configuration that names the record it was made of."""


class Record(NamedTuple):
    """One that could be read."""

    name: str
    priority: int
    state: JobState
    time_s: float
    payload: dict[str, Any]


class Imported(NamedTuple):
    """What an import did."""

    jobs: list[tuple[str, str]]
    """(record, job id)"""
    known: list[str]
    """Records that were imported before."""
    skipped: list[tuple[str, str]]
    """(record, why)"""


def import_legacy(queue: Queue, records: Iterable[tuple[str, bytes]]) -> Imported:
    """Make jobs of records, given by name and data."""
    done = Imported([], [], [])
    batches: dict[str, tuple[Batch, dict[str, str]]] = {}
    for name, data in sorted(records):
        try:
            record = parsed(name, data)
            batch, known = _batch(queue, batches, record)
            if name in known:
                done.known.append(name)
                continue
            nodes = renamed(record.payload)
            job = batch.place_job(
                {**nodes._asdict(), "configuration": {**nodes.configuration, RECORD: name}},
                record.priority,
                record.state,
                f"imported: {time_text(record.time_s)}",
            )
            known[name] = job.id
            done.jobs.append((name, job.id))
        except FerrymanError as e:
            done.skipped.append((name, plain_text(e)))
    return done


def _batch(
    queue: Queue, batches: dict[str, tuple[Batch, dict[str, str]]], record: Record
) -> tuple[Batch, dict[str, str]]:
    """The batch of a record, in Processing, and the records that are in it."""
    uuid = str(record.payload.get("batchID") or record.name)
    if uuid not in batches:
        batch = queue.find_batch_by_uuid(uuid)
        if batch is None:
            submission: dict[str, Any] = {"batchID": uuid, "submission_mode": "legacy"}
            kept = ("submitter", "profile_name")
            configuration = renamed(record.payload).configuration
            submission |= {key: configuration[key] for key in kept if key in configuration}
            batch = queue.create_batch(submission)
        if batch.status == "Pending":
            batch.acquired()
        batches[uuid] = batch, _records(queue, batch)
    return batches[uuid]


def _records(queue: Queue, batch: Batch) -> dict[str, str]:
    """The records that jobs of a batch were made of."""
    ids = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
    return {str(Job(queue.tree, job).configuration.get(RECORD)): job for job in ids}


def parsed(name: str, data: bytes) -> Record:
    """A record.

    Raises:
        UsageError: it is not one; says what is wrong with it.
    """
    found = NAME.fullmatch(name)
    if not found:
        raise UsageError(f"{name}: this is not a record's name, which is mrtQ- and 14 digits, or 12.")
    if len(data) > RECORD_BYTES_MAX:
        raise UsageError(f"{name}: more than {RECORD_BYTES_MAX} bytes are too many for a record.")
    if len(data) < HEAD_BYTES:
        raise UsageError(f"{name}: {len(data)} bytes are too few: status and time alone are {HEAD_BYTES}.")
    status, time_s = struct.unpack_from(">Bq", data)
    if status not in STATUSES:
        raise UsageError(f"{name}: there is no status {status}: it is 0 to 5.")
    seconds = time_s / 1000 if time_s >= SECONDS_MAX else float(time_s)
    if not 0 <= seconds <= TIME_MAX_S:
        raise UsageError(f"{name}: {time_s} is not a time in seconds or milliseconds since 1970.")
    return Record(name, int(found["priority"]), STATUSES[status], seconds, _payload(name, data[HEAD_BYTES:]))


def _payload(name: str, data: bytes) -> dict[str, Any]:
    """JSON, XML or properties, whichever it is.

    Raises:
        UsageError: none of them.
    """
    if java_properties.is_serialized(data):
        try:
            return dict(java_properties.properties_of(data))
        except ValueError as e:
            raise UsageError(f"{name}: its payload is not Java's serialized Properties: {e}.") from None
    try:
        text = data.decode().strip("\0 \t\r\n")
    except UnicodeDecodeError as e:
        raise UsageError(f"{name}: its payload is not UTF-8 text (byte {e.start}).") from None
    if text.startswith("{"):
        try:
            return dict(decode_json(text))
        except (TypeError, ValueError) as e:
            raise UsageError(f"{name}: its payload looks like JSON, but is not: {e}.") from None
    if text.startswith("<"):
        return _of_xml(name, text)
    found = dict(properties(text))
    if not found:
        raise UsageError(f"{name}: its payload is empty, or neither JSON nor XML nor properties.")
    return found


def _of_xml(name: str, text: str) -> dict[str, Any]:
    """The leaves of an XML document by their names; ``<entry key="a">`` by its key; what comes twice is a list.

    Raises:
        UsageError: it is not one, or declares entities (which may be bombs).
    """
    if "<!ENTITY" in text:
        raise UsageError(f"{name}: its payload is XML that declares entities: those are not read.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as e:
        raise UsageError(f"{name}: its payload looks like XML, but is not: {e}.") from None
    found: dict[str, Any] = {}
    for leaf in (element for element in root.iter() if not len(element)):
        key = leaf.get("key") or leaf.tag.rpartition("}")[2]
        value = (leaf.text or "").strip()
        if key in found:
            earlier = found[key]
            found[key] = [*earlier, value] if isinstance(earlier, list) else [earlier, value]
        else:
            found[key] = value
    return found


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values as Java writes them: ``key=value``, ``key: value``, ``#`` comments, ``\\`` at line ends."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text)
    for line in joined.splitlines():
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        found = re.match(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+|$)(.*)", line, re.DOTALL)
        if found and ("=" in line or ":" in line):
            yield _unescaped(found[1]), _unescaped(found[2])


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if code[0] == "u" and len(code) == 5 else _ESCAPES.get(code, code)

    plain = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def records_at(source: str) -> Iterator[tuple[str, bytes]]:
    """Records of a folder (a file each, named as its node was), or of a node's children: ``zookeeper://h:2181/ingest``.

    Raises:
        UsageError: there is no such folder, or node.
    """
    if source.startswith("zookeeper://"):
        from ferryman.intake.store.zookeeper import ZooKeeperStore

        store = ZooKeeperStore(source, may_make=False)
        try:
            names = store.children("/")
            for name, node in zip(names, store.read([f"/{name}" for name in names]), strict=True):
                if node is not None and name.startswith("mrtQ-"):
                    yield name, node.data
        finally:
            store.close()
        return
    folder = Path(source)
    if not folder.is_dir():
        raise UsageError(f"{source}: there is no such folder. Give one with a file a record, or zookeeper://host/path.")
    for path in sorted(folder.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                yield path.name, file.read(RECORD_BYTES_MAX + 1)
