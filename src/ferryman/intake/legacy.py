"""Records of the older queue, in which one node of ZooKeeper was one piece of work.

A node ``mrtQ-PPHWNNNNNNNNNN`` (priority, high-priority flag, worker digit, sequence) holds a status byte, eight bytes
of time, and a payload: JSON, XML, or Java properties, as text or serialized by Java. Names of inventory's records have
no flag and no worker: ``mrtQ-PPNNNNNNNNNN``. Each record becomes a job of the batch that its payload names, in the
record's state, with ingest's property names translated to Ferryman's (``CONFIGURATION``, ``IDENTIFIERS``,
``METADATA``). Unreadable records are reported and skipped.

A job needs a URL to be served. Inventory's records have one, ``manifestURL``. Ingest's have a ``filename``, whose file
is in ingest's queue folder: ``FOLDER/BATCHID/JOBID/FILENAME``. A record without a usable one becomes a Failed job with
the reason; so its batch can be reported and closed. Repeated with the right folder, the import gives it its file.

A batch is Held while its jobs are imported, so that no part of it is reported as a whole. An import that was killed
can be repeated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

from ferryman.document import decode_json
from ferryman.errors import FerrymanError, UsageError, plain_text
from ferryman.intake.batch import Batch
from ferryman.intake.errors import LockLost, StateError
from ferryman.intake.job import Job, file_url
from ferryman.intake.nodes import format_time
from ferryman.intake.queue import JobQueue
from ferryman.intake.states import BatchState, JobState

NAME: Final = re.compile(r"mrtQ-(?P<priority>[0-9]{2})(?P<flags>[0-9]{2})?(?P<sequence>[0-9]{10})")
"""Matches names of records: with flags (high priority, worker) as ingest named them, or without as inventory did."""

HEAD_BYTES: Final = 9
"""Bytes before the payload: status and time."""

RECORD_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a record; ZooKeeper's servers refuse larger nodes."""

STATUSES: Final = {
    0: JobState.PENDING,
    1: JobState.PENDING,
    2: JobState.DELETED,
    3: JobState.FAILED,
    4: JobState.COMPLETED,
    5: JobState.HELD,
}
"""Status byte -> state. A record that was consumed but not completed has to be processed again."""

SECONDS_MAX: Final = 100_000_000_000
"""Smaller times are seconds (until the year 5138), larger ones milliseconds (since March 1973): the older queue's
documentation and its code do not agree."""

TIME_MAX_S: Final = 253_402_300_799
"""The end of the year 9999."""

RECORD: Final = "legacy_record"
"""Key in a job's configuration: name of the record from which the job was made."""


class Record(NamedTuple):
    """A record that was read successfully."""

    name: str
    priority: int
    state: JobState
    time_s: float
    payload: dict[str, Any]


class ImportResult(NamedTuple):
    """Result of an import."""

    jobs: list[tuple[str, str]]
    """(record, job id) of the jobs that were created, and of earlier ones that were given their file."""
    known: list[str]
    """Records that were already imported."""
    skipped: list[tuple[str, str]]
    """(record, reason) of records that could not be read."""
    cannot_be_served: list[tuple[str, str]]
    """(record, reason) of records that had work left, and whose jobs are Failed because `serve` could not do it."""


Check = Callable[[Mapping[str, Any]], object]
"""Raises ``FerrymanError`` if ``serve`` would refuse a job's configuration."""


def import_legacy(
    queue: JobQueue,
    records: Iterable[tuple[str, bytes]],
    *,
    files: Path | None = None,
    check: Check = lambda configuration: None,
) -> ImportResult:
    """Create jobs from records, given by name and data.

    Args:
        files: folder of the files that ingest's records name; None: such records cannot be served.
        check: called with the configuration of each job that has work left.
    """
    run = _Import(queue, files, check)
    for name, data in sorted(records):
        try:
            run.add(parse_record(name, data))
        except FerrymanError as e:
            why = plain_text(e)
            run.result.skipped.append((name, why if name in why else f"{name}: {why}"))
    run.finish()
    return run.result


IMPORTING: Final = "its records are being imported"
"""Message of a batch that is Held until all of its records are imported."""


class _Import:
    """An import in progress."""

    def __init__(self, queue: JobQueue, files: Path | None, check: Check) -> None:
        self._queue, self._files, self._check = queue, files, check
        self._batches: dict[str, tuple[Batch, dict[str, str]]] = {}
        """batchID -> the batch, and its jobs by record."""
        self.result = ImportResult([], [], [], [])

    def add(self, record: Record) -> None:
        """Create the job of a record, unless there is one.

        Raises:
            UsageError: the record names a batch that cannot be created, or was reported already.
            NodeInvalid: its batch is damaged.
        """
        batch, job_of_record = self._find_or_create_batch(record)
        nodes = to_job_nodes(record.payload)
        location, why = self._locate(record, nodes.configuration) if record.state in HAS_WORK_LEFT else ({}, "")
        configuration = {**nodes.configuration, **location, RECORD: record.name}
        if record.name in job_of_record:
            self._add_again(record, Job(self._queue.tree, job_of_record[record.name]), configuration, why)
            return
        state = JobState.FAILED if why else record.state
        message = f"imported: {format_time(record.time_s)}" + (f"; it cannot be served: {why}" if why else "")
        job = batch.create_job_in_state(
            {**nodes._asdict(), "configuration": configuration}, record.priority, state, message
        )
        job_of_record[record.name] = job.id
        self.result.jobs.append((record.name, job.id))
        if why:
            self.result.cannot_be_served.append((record.name, why))

    def finish(self) -> None:
        """Let the batches be processed, now that they are complete."""
        for batch, _ in self._batches.values():
            if batch.status == BatchState.HELD and batch.message == IMPORTING:
                batch.set_status(BatchState.PENDING, "imported")
            with suppress(StateError, LockLost):  # a consumer acquired it first, or it is finished
                batch.start_processing()

    def _add_again(self, record: Record, job: Job, configuration: dict[str, Any], why: str) -> None:
        """Requeue the job of a record that could not be served by an earlier import, if it can be served now."""
        was_unserved = (
            record.state in HAS_WORK_LEFT and job.status == JobState.FAILED and not _url_of(job.configuration)
        )
        if was_unserved and why:
            self.result.cannot_be_served.append((record.name, why))
        elif was_unserved:
            job.requeue(f"imported: {format_time(record.time_s)}", configuration)
            self.result.jobs.append((record.name, job.id))
            return
        self.result.known.append(record.name)

    def _locate(self, record: Record, configuration: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the keys of a job's configuration that say where its payload is, and why it cannot be served, or
        ""."""
        try:
            location = locate_payload(record, configuration, self._files)
            self._check({**configuration, **location})
        except FerrymanError as e:
            return {}, plain_text(e)
        return location, ""

    def _find_or_create_batch(self, record: Record) -> tuple[Batch, dict[str, str]]:
        """Return the batch of a record, which accepts jobs, and its jobs by record."""
        uuid = str(record.payload.get("batchID") or record.name)
        if uuid not in self._batches:
            batch = self._queue.find_batch_by_uuid(uuid)
            if batch is None:
                submission: dict[str, Any] = {"batchID": uuid, "submission_mode": "legacy"}
                copied = ("submitter", "profile_name")
                configuration = to_job_nodes(record.payload).configuration
                submission |= {key: configuration[key] for key in copied if key in configuration}
                batch = self._queue.create_batch(submission, held=IMPORTING)
            self._batches[uuid] = batch, _jobs_by_record(self._queue, batch)
        return self._batches[uuid]


def _jobs_by_record(queue: JobQueue, batch: Batch) -> dict[str, str]:
    """Map each record that a job of the batch was made from to that job."""
    ids = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
    return {str(Job(queue.tree, job).configuration.get(RECORD)): job for job in ids}


HAS_WORK_LEFT: Final = frozenset({JobState.PENDING, JobState.HELD})
"""States of records whose jobs are to be served."""


def locate_payload(record: Record, configuration: Mapping[str, Any], files: Path | None) -> dict[str, Any]:
    """Return the keys of a job's configuration that say where a record's payload is.

    Raises:
        UsageError: the record names no file, or one that is not there.
    """
    if url := _url_of(configuration):
        is_manifest = bool(configuration.get("manifest_url")) and not configuration.get("payload_type")
        return {"payload_url": url} | ({"payload_type": "object-manifest"} if is_manifest else {})
    name = str(configuration.get("payload_file_name") or "")
    if not name:
        raise UsageError("it names no file: it has no filename, no manifestURL and no payload_url.")
    if "://" in name:
        return {"payload_url": name, "payload_file_name": ""}
    if files is None and not name.startswith("/"):
        raise UsageError(f"its file {name} is in the queue folder of the older service: give it with --files DIR.")
    ids = [str(record.payload.get(key) or "") for key in ("batchID", "jobID")]
    folder = files or Path("/")
    for parts in (ids, ids[:1], ids[1:], []):
        path = folder.joinpath(*parts, name)
        with suppress(OSError, ValueError):  # no file can have this name
            real = path.resolve()
            if real.is_file() and real.is_relative_to(folder.resolve()):
                return {"payload_url": file_url(real), "payload_file_name": path.name}
    raise UsageError(f"its file {name} is not below {folder}.")


def _url_of(configuration: Mapping[str, Any]) -> str:
    return str(configuration.get("payload_url") or configuration.get("manifest_url") or "")


def parse_record(name: str, data: bytes) -> Record:
    """Parse a record.

    Raises:
        UsageError: it is not a record; says what is wrong with it.
    """
    match = NAME.fullmatch(name)
    if not match:
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
    return Record(name, int(match["priority"]), STATUSES[status], seconds, _parse_payload(name, data[HEAD_BYTES:]))


def _parse_payload(name: str, data: bytes) -> dict[str, Any]:
    """Parse a payload as JSON, XML or properties, whichever it is.

    Raises:
        UsageError: it is none of these.
    """
    if is_serialized(data):
        try:
            return dict(read_serialized_properties(data))
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
        return _parse_xml(name, text)
    values = dict(parse_properties(text))
    if not values:
        raise UsageError(f"{name}: its payload is empty, or neither JSON nor XML nor properties.")
    return values


def _parse_xml(name: str, text: str) -> dict[str, Any]:
    """Map the leaves of an XML document by name, ``<entry key="a">`` by its key; repeated ones become a list.

    A document of Java's ``XMLEncoder``, as inventory wrote, contains calls: ``<void method="put">`` with a key and a
    value.

    Raises:
        UsageError: it is not XML, or declares entities (which may be bombs).
    """
    if "<!ENTITY" in text:
        raise UsageError(f"{name}: its payload is XML that declares entities: those are not read.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as e:
        raise UsageError(f"{name}: its payload looks like XML, but is not: {e}.") from None
    if root.tag == "java":
        calls = ([leaf.text or "" for leaf in call] for call in root.iter("void"))
        return dict(pair for pair in calls if len(pair) == 2)
    values: dict[str, Any] = {}
    for leaf in (element for element in root.iter() if not len(element)):
        key = leaf.get("key") or leaf.tag.rpartition("}")[2]
        value = (leaf.text or "").strip()
        if key in values:
            earlier = values[key]
            values[key] = [*earlier, value] if isinstance(earlier, list) else [earlier, value]
        else:
            values[key] = value
    return values


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values as Java writes them: ``key=value``, ``key: value``, ``#`` comments, ``\\`` at line ends."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text)
    for line in joined.splitlines():
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+|$)(.*)", line, re.DOTALL)
        if match and ("=" in line or ":" in line):
            yield _unescape(match[1]), _unescape(match[2])


def _unescape(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] == "u" and len(code) == 5 else _ESCAPES.get(code, code)

    plain = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replacement, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_records(source: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and data of the records in a folder (one file each, named like its node), or of the children of a
    node: ``zookeeper://h:2181/ingest``.

    Raises:
        UsageError: there is no such folder, or node.
    """
    if source.startswith("zookeeper://"):
        from ferryman.intake.store.zookeeper import ZooKeeperStore

        store = ZooKeeperStore(source, create_chroot=False)
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


# Serialized Java ``Properties``, read without Java: keys are text, values are text or a Boolean.
#
# The stream is parsed by hand, for these classes only; no class is looked up, instantiated or called, and a stream that
# names another class is refused. A Boolean, which ingest wrote for ``update``, becomes ``true`` or ``false`` as text.
# See Java's "Object Serialization Stream Protocol".

MAGIC: Final = b"\xac\xed\x00\x05"
"""First bytes of a stream of serialized Java objects."""

CHARACTERS_MAX: Final = 1 << 20
"""Maximum number of characters of all keys and values. A stream can refer to one long text many times, so its size does
not bound its content."""

DEFAULTS_MAX: Final = 8
"""Maximum depth of defaults: ``Properties`` have defaults, which are ``Properties`` again."""

_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING = 0x70, 0x71, 0x72, 0x73, 0x74
_BLOCK, _END, _LONG_STRING = 0x77, 0x78, 0x7C
_FIRST_HANDLE: Final = 0x7E0000
_PAIR_BYTES_MIN: Final = 6
"""Minimum bytes of a key and a value: an empty text takes three."""

_DEFAULTS: Final = b"\x00\x08defaults"
_PROPERTIES: Final = b"\x00\x14java.util.Properties" + bytes.fromhex("3912d07a70363e98 02 0001") + b"L" + _DEFAULTS
_TYPE: Final = "Ljava/util/Properties;"
_HASHTABLE: Final = (
    b"\x00\x13java.util.Hashtable" + bytes.fromhex("13bb0f25214ae4b8 03 0002")
    + b"F\x00\x0aloadFactorI\x00\x09threshold"
)  # fmt: skip
_BOOLEAN: Final = (
    b"\x00\x11java.lang.Boolean" + bytes.fromhex("cd207280d59cfaee 02 0001") + b"Z\x00\x05value" + bytes([_END, _NULL])
)


def is_serialized(data: bytes) -> bool:
    """Return whether this is a stream of serialized Java objects, of any class."""
    return data.startswith(MAGIC)


def read_serialized_properties(data: bytes) -> dict[str, str]:
    """Return the keys and values of a stream with one ``Properties`` object, including defaults for keys without a
    value of their own.

    Raises:
        ValueError: the stream contains something else, is cut off, or too large; says which, and at which byte.
    """
    stream = _SerializedStream(data)
    stream.expect(MAGIC, "Java's serialized objects")
    values = stream.read_properties()
    if data[stream.position :].strip(b"\0"):
        raise stream.error("more than one object")
    return values


class _SerializedStream:
    """Position in a stream, with the values read so far that later bytes may refer to."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._handles: list[Any] = []
        self._characters = 0

    def error(self, what: str) -> ValueError:
        return ValueError(f"{what} at byte {self.position}")

    def read_bytes(self, size: int) -> bytes:
        data = self._data[self.position : self.position + size]
        if len(data) < size:
            raise self.error(f"it ends too early: {size} more bytes are announced")
        self.position += size
        return data

    def read_number(self, layout: str) -> int:
        (number,) = struct.unpack(layout, self.read_bytes(struct.calcsize(layout)))
        return int(number)

    def expect(self, expected: bytes, what: str) -> None:
        if not self._data.startswith(expected, self.position):
            raise self.error(f"{what} was expected")
        self.position += len(expected)

    def read_properties(self, depth: int = 0) -> dict[str, str]:
        """Read a ``Properties`` object, from its first byte."""
        if depth > DEFAULTS_MAX:
            raise self.error(f"more than {DEFAULTS_MAX} levels of defaults")
        self.expect(bytes([_OBJECT]), "an object")
        self._read_class()
        self._handles.append(None)  # the object itself, which no text can refer to
        self.read_bytes(8)  # load factor and threshold of a Hashtable
        self.expect(bytes([_BLOCK, 8]), "the size of a Hashtable")
        self.read_bytes(4)
        pairs = self.read_number(">i")
        if not 0 <= pairs <= (len(self._data) - self.position) // _PAIR_BYTES_MIN:
            raise self.error(f"{pairs} entries are announced, more than fit")
        own = {self.read_text(): self.read_value() for _ in range(pairs)}
        self.expect(bytes([_END]), "the end of a Hashtable")
        return {**self._read_defaults(depth), **own}

    def _read_defaults(self, depth: int) -> dict[str, str]:
        if self._data[self.position : self.position + 1] == bytes([_NULL]):
            self.position += 1
            return {}
        return self.read_properties(depth + 1)

    def _read_class(self) -> None:
        """Read the description of ``Properties`` and its base class, or a reference to an earlier description."""
        kind = self.read_number("B")
        if kind == _REFERENCE:
            if self._read_reference() is not _PROPERTIES:
                raise self.error("an object of another class than Properties")
            return
        if kind != _CLASS:
            raise self.error("a class was expected")
        self.expect(_PROPERTIES, "java.util.Properties (another class is not read)")
        self._handles.append(_PROPERTIES)
        if self.read_text() != _TYPE:
            raise self.error("Properties whose defaults are something else")
        self.expect(bytes([_END, _CLASS]) + _HASHTABLE + bytes([_END, _NULL]), "java.util.Hashtable")
        self._handles.append(_HASHTABLE)

    def _read_reference(self) -> Any:
        handle = self.read_number(">I") - _FIRST_HANDLE
        if not 0 <= handle < len(self._handles):
            raise self.error("a reference to what is not there")
        return self._handles[handle]

    def read_value(self) -> str:
        """Read a text, or a Boolean as text."""
        start = self.position
        if self._data[start : start + 1] == bytes([_OBJECT]):
            self.position += 1
            return self._read_boolean()
        if self._data[start : start + 1] == bytes([_REFERENCE]):
            self.position += 1
            value = self._read_reference()
            if isinstance(value, bool):
                return str(value).lower()
            self.position = start
        return self.read_text()

    def _read_boolean(self) -> str:
        kind = self.read_number("B")
        if kind == _CLASS:
            self.expect(_BOOLEAN, "java.lang.Boolean (a value that is not text, of another class, is not read)")
            self._handles.append(_BOOLEAN)
        elif kind != _REFERENCE or self._read_reference() is not _BOOLEAN:
            raise self.error("a value that is not text, and of another class than Boolean")
        value = self.read_number("B") != 0
        self._handles.append(value)
        return str(value).lower()

    def read_text(self) -> str:
        """Read a text, or a reference to an earlier one."""
        kind = self.read_number("B")
        if kind == _REFERENCE:
            text = self._read_reference()
            if not isinstance(text, str):
                raise self.error("a reference to what is not text")
        elif kind in (_STRING, _LONG_STRING):
            text = self._decode(self.read_bytes(self.read_number(">H" if kind == _STRING else ">Q")))
            self._handles.append(text)
        else:
            raise self.error(f"a key or value that is not text (code {kind:#04x})")
        self._characters += len(text)
        if self._characters > CHARACTERS_MAX:
            raise self.error(f"more than {CHARACTERS_MAX} characters")
        return text

    def _decode(self, data: bytes) -> str:
        """Decode Java's own UTF-8: NUL in two bytes, characters beyond 16 bits as two surrogates."""
        try:
            halves = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise self.error("a text that is not Java's UTF-8 ends") from None
        return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Names that the older queue's ingest gave to a job's properties, and Ferryman's names for them.

CONFIGURATION: Final = {
    "profile": "profile_name",
    "type": "payload_type",
    "filename": "payload_file_name",
    "responseForm": "response_type",
    "manifestURL": "manifest_url",
}
"""Name in ingest's and inventory's records -> key in a job's configuration."""

IDENTIFIERS: Final = {"objectID": "primary_id", "localID": "local_id"}
"""Ingest's name -> key in a job's identifiers, which is also in its configuration."""

METADATA: Final = {"creator": "erc_who", "title": "erc_what", "date": "erc_when"}
"""Ingest's name -> key in a job's metadata."""

_ERC: Final = ("erc_who", "erc_what", "erc_when", "erc_where")
_DIGEST: Final = ("digestType", "digestValue")
_NONE: Final = ("(:unas)", "(:unav)", "(:unkn)", "(:none)")
"""Values that ingest wrote for missing ones."""


class JobNodes(NamedTuple):
    """Content of a job's nodes."""

    configuration: dict[str, Any]
    identifiers: dict[str, Any]
    metadata: dict[str, Any]


def to_job_nodes(payload: Mapping[str, Any]) -> JobNodes:
    """Convert a record's payload to the content of a job's nodes; unknown keys are kept under their own names.

    If a payload has both ingest's and Ferryman's name of a key, both are kept, and the value under Ferryman's name
    counts.
    """
    values = {_our_name(name, payload): value for name, value in payload.items()}
    metadata = {key: values.pop(key) for key in _ERC if key in values}
    digest = _digest_text(payload)
    if digest and "digest" not in payload:
        values = {name: value for name, value in values.items() if name not in _DIGEST} | {"digest": digest}
    return JobNodes(values, _identifiers(values), {key: value for key, value in metadata.items() if _is_given(value)})


def _our_name(name: str, payload: Mapping[str, Any]) -> str:
    ours = (CONFIGURATION | IDENTIFIERS | METADATA).get(name, name)
    return name if ours in payload else ours


def _digest_text(payload: Mapping[str, Any]) -> str:
    """Return ``md5:HEX`` from a payload's digest type and value; "" if one is missing."""
    kind, value = (str(payload.get(name) or "") for name in _DIGEST)
    return f"{kind.lower().replace('-', '')}:{value.lower()}" if kind and value else ""


def _identifiers(values: Mapping[str, Any]) -> dict[str, Any]:
    identifiers: dict[str, Any] = {}
    if _is_given(values.get("primary_id")):
        identifiers["primary_id"] = values["primary_id"]
    local = values.get("local_id")
    if _is_given(local):
        names = local if isinstance(local, list) else [part.strip() for part in str(local).split(";")]
        identifiers["local_id"] = [name for name in names if name]
    return identifiers


def _is_given(value: object) -> bool:
    return bool(value) and str(value).strip().lower() not in _NONE
