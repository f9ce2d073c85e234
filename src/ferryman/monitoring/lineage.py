"""OpenLineage: events of runs, with what a plan reads and writes, for lineage servers such as Marquez and DataHub.

START at the beginning of a run, RUNNING now and then, then COMPLETE, FAIL (an error, or something is still pending), or
ABORT (interrupted). Each plan is a job; a flow is a job, too, and the parent of its plans'. The events are those of
specification 2-0-2.
"""

from __future__ import annotations

import datetime as dt
import errno
import inspect
import os
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

import ferryman
from ferryman import limits
from ferryman.account.figures import done_between
from ferryman.account.queries import retry_read
from ferryman.errors import UsageError, plain_text
from ferryman.limits import plural
from ferryman.monitoring.metrics import MonitoredPlan
from ferryman.monitoring.sender import BackgroundSender
from ferryman.net import urls
from ferryman.net.http import Http, NotSent, Unanswered
from ferryman.observe import Silent
from ferryman.plan import DestinationNode, KeyedNode, Node, Plan, logs_read, sources_of
from ferryman.state.logs import LogPositions
from ferryman.state.state import IDENTITY, SETTLED, State
from ferryman.storage.files import exists

PRODUCER: Final = "https://pypi.org/project/ferryman"
_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = {
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet",
    "jobType": "2-0-3/JobTypeJobFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
    "parent": "1-1-0/ParentRunFacet",
    "processing_engine": "1-1-1/ProcessingEngineRunFacet",
    "schema": "1-1-1/SchemaDatasetFacet",
    "sourceCode": "1-0-1/SourceCodeJobFacet",
}
"""Facet -> its version and name in the specification."""

NAMESPACE_VARIABLE: Final = "OPENLINEAGE_NAMESPACE"
KEY_VARIABLE: Final = "OPENLINEAGE_API_KEY"
PARENT_VARIABLE: Final = "OPENLINEAGE_PARENT_ID"
"""Environment variables of OpenLineage: the namespace of jobs, the key that is sent to the server, and the run that
started this one, as ``namespace/job/run``."""

_ENDPOINT: Final = "/api/v1/lineage"
_QUEUE: Final = 256
"""Events that wait while a server is away: each may have 100 kB."""


def facet(name: str, /, **content: Any) -> dict[str, Any]:
    """Return a facet under its name."""
    version, _, kind = _FACETS[name].partition("/")
    schema = f"https://openlineage.io/spec/facets/{version}/{kind}.json#/$defs/{kind}"
    return {name: {"_producer": PRODUCER, "_schemaURL": schema, **content}}


# --- where events go: a server or a file ---


def parse_target(text: str) -> Path | str:
    """Parse the value of ``--openlineage``: the URL of a server, or a file to which events are appended.

    Raises:
        UsageError: it is neither.
    """
    if text.startswith(("http://", "https://")):
        try:
            _, parts = urls.split(text)
        except ValueError as e:
            raise UsageError(f"--openlineage: {e}.") from None
        if not parts.hostname:
            raise UsageError(f"--openlineage {urls.redact(text)}: it names no server, as in http://marquez:5000.")
        return text if parts.path.strip("/") else parts._replace(path=_ENDPOINT).geturl()
    if "://" in text or not text.strip() or text.endswith("/"):
        shown = urls.redact(text)
        raise UsageError(
            f"--openlineage {shown}: give a URL, as in http://marquez:5000, or a file, as in events.jsonl."
        )
    return Path(text).absolute()


def make_send(target: Path | str) -> Callable[[Sequence[bytes]], None]:
    """Return a function that sends encoded events. It raises OSError with the reason if it cannot."""
    if isinstance(target, Path):
        return lambda events: _append(target, events)
    http: list[Http] = []

    def post(events: Sequence[bytes]) -> None:
        if not http:  # an environment variable may be missing
            key = os.environ.get(KEY_VARIABLE)
            auth = f"Bearer ${{{KEY_VARIABLE}}}" if key else None
            http.append(Http(target, shown=urls.redact(target), auth=auth))
        headers = {"content-type": "application/json"}
        for event in events:
            try:
                answer = http[0].request(
                    "POST", http[0].path, event, timeout_s=limits.MONITORING_SEND_S, headers=headers
                )
            except (NotSent, Unanswered) as e:
                raise OSError(str(e)) from e
            if answer.status in urls.NOT_HANDLED or answer.status >= 500:
                raise OSError(f"answered {answer.status} {answer.reason}".rstrip())
            if not answer.is_success:
                raise OSError(f"answered {answer.status} {answer.reason} ({http[0].redact(answer.body)})")

    return post


def _append(path: Path, events: Sequence[bytes]) -> None:
    """Append events, a line each; on a full disk nothing of them is left."""
    lines = b"".join(event + b"\n" for event in events)
    try:
        with open(path, "ab", buffering=0) as file:
            written = file.write(lines)
            if written < len(lines):
                if file.tell() == os.fstat(file.fileno()).st_size:  # nobody else has appended meanwhile
                    file.truncate(file.tell() - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as e:
        raise OSError(e.strerror or str(e)) from e


# --- datasets: what a plan reads and writes ---


def dataset_name(place: str | None, plan: Plan, node: str) -> tuple[str, str]:
    """Return namespace and name of what lies at a place, by the naming rules of OpenLineage.

    Args:
        place: ``Source.place()`` or ``Destination.target()``; None: only this plan knows it.
    """
    if not place:
        return job_namespace(), f"{plan.name}.{node}"
    if place.startswith("/"):
        return "file", place
    if place.startswith("kafka:") and not place.startswith("kafka://"):
        servers, _, topic = place.removeprefix("kafka:").partition("#")
        return f"kafka://{servers.partition(',')[0]}", topic
    place, _, table = place.partition("#")
    try:
        parts = urlsplit(place)
    except ValueError:
        return job_namespace(), place
    path = unquote(parts.path)
    if parts.scheme == "file":
        return "file", path + (f"#{table}" if table else "")
    if parts.scheme.partition("+")[0] == "sqlite":
        return "sqlite", path.removeprefix("/") + (f"#{table}" if table else "")
    scheme = "postgres" if parts.scheme.startswith("postgresql") else parts.scheme
    host = parts.netloc.rpartition("@")[2]
    name = path.strip("/")
    return f"{scheme}://{host}", ".".join(filter(None, (name, table))) or "/"


def job_namespace() -> str:
    """Return the namespace of jobs, which an environment variable may set."""
    return os.environ.get(NAMESPACE_VARIABLE) or "ferryman"


def inputs_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return source -> its dataset."""
    return {n.name: dataset_name(n.source.place(), plan, n.name) for n in sources_of(plan.nodes)}


def outputs_of(plan: Plan) -> dict[str, DestinationNode]:
    """Return name -> destination, of all that is delivered outside of the plan."""
    return {n.name: n for n in plan.nodes if isinstance(n, DestinationNode) and not isinstance(n, KeyedNode)}


def _source_code(nodes: Sequence[Node]) -> str:
    """Return the code of a plan's functions, as far as it is there, one after the other."""
    parts, left = [], limits.LINEAGE_CODE_CHARACTERS
    for node in nodes:
        function = getattr(node, "fn", None)
        try:
            code = inspect.getsource(function) if function is not None else ""
        except (OSError, TypeError):
            continue
        if code and left > 0:
            parts.append(f"# {node.kind} {node.name}\n{code[:left]}")
            left -= len(code)
    return "\n".join(parts)


# --- the events of a run ---


class _CountedTo(NamedTuple):
    """How far a run has come.

    Attributes:
        wave: the last settled wave.
        entries: source that reads a log -> entries read.
        files: names of the files of ``ledger`` and ``documents``; they have no rows of later waves.
    """

    wave: int
    entries: dict[str, int]
    files: frozenset[str]


class JobRun:
    """Events of one run of a plan.

    Args:
        parent: (namespace, name, run) of the job that started this one; None: there is none.
    """

    def __init__(self, plan: MonitoredPlan, parent: tuple[str, str, str] | None, *, endless: bool) -> None:
        self._plan, self._root = plan
        self._parent = parent
        self._processing = "STREAMING" if endless else "BATCH"
        self._id = str(uuid.uuid4())
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._code: str | None = None
        self._counted = self._reached()

    def event(self, kind: str, at: dt.datetime, message: str = "", trace: str = "") -> bytes:
        """Return an event, with what the run has done so far."""
        plan, counted = self._plan, kind != "START"
        if counted:
            self._count()
        run = facet("processing_engine", version=ferryman.__version__, name="ferryman") | _error(message, trace)
        if self._parent is not None:
            namespace, name, id = self._parent
            run |= facet("parent", run={"runId": id}, job={"namespace": namespace, "name": name})
        job = facet("jobType", processingType=self._processing, integration="FERRYMAN", jobType="JOB")
        if self._code is None:
            self._code = _source_code(plan.nodes)
        if self._code:
            job |= facet("sourceCode", language="python", sourceCode=self._code)
        inputs = [
            _dataset(name, "inputFacets", facet("inputStatistics", rowCount=self._read[source]) if counted else {})
            for source, name in inputs_of(plan).items()
        ]
        outputs = [
            _dataset(
                dataset_name(node.destination.target(), plan, name),
                "outputFacets",
                facet("outputStatistics", rowCount=self._written[name]) if counted else {},
                _schema(node),
            )
            for name, node in outputs_of(plan).items()
        ]
        return _encode(kind, at, self._id, plan.name, run, job, inputs, outputs)

    def _reached(self) -> _CountedTo:
        if not exists(self._root / IDENTITY):
            return _CountedTo(0, {}, frozenset())
        state = State(self._root, self._plan)
        logs = {node.name: LogPositions(state, node.name) for node in logs_read(self._plan.nodes)}
        with state.readers.reading():
            state.load_consistently([SETTLED, *(each.entries_read_id for each in logs.values())])
        return _CountedTo(
            state.settled,
            {name: each.entries_read for name, each in logs.items()},
            frozenset({*state.ledger.files, *state.documents.files}),
        )

    def _count(self) -> None:
        """Add what was done since the last count; what was counted before is not read again."""
        before, now = self._counted, retry_read(self._root, self._reached)
        if now.wave > before.wave:
            arrived, processed = done_between(self._root, self._plan, before.wave, now.wave, before.files)
            self._written.update(arrived)
            self._read.update(processed)
        self._read.update({name: read - before.entries.get(name, 0) for name, read in now.entries.items()})
        self._counted = now


def _error(message: str, trace: str) -> dict[str, Any]:
    if not message:
        return {}
    return facet("errorMessage", message=message, programmingLanguage="python", **_unless_empty("stackTrace", trace))


def _encode(
    kind: str,
    at: dt.datetime,
    run_id: str,
    name: str,
    run: Mapping[str, Any],
    job: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]] = (),
    outputs: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    event = {
        "eventType": kind,
        "eventTime": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "producer": PRODUCER,
        "schemaURL": _SPEC,
        "run": {"runId": run_id, "facets": run},
        "job": {"namespace": job_namespace(), "name": name, "facets": job},
        "inputs": inputs,
        "outputs": outputs,
    }
    return msgspec.json.encode(_encodable(event), enc_hook=str)


def _encodable(value: Any) -> Any:
    """Return the value with texts that are Unicode, since names of files may be other bytes; and without NUL, which
    PostgreSQL does not take, in which servers keep events."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
        case dict():
            return {key: _encodable(each) for key, each in value.items()}
        case list():
            return [_encodable(each) for each in value]
    return value


def _dataset(
    name: tuple[str, str], kind: str, facets: Mapping[str, Any], schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"namespace": name[0], "name": name[1], "facets": dict(schema or {}), kind: dict(facets)}


def _schema(node: DestinationNode) -> dict[str, Any]:
    columns = node.destination.known_fields()
    fields = [{"name": name, **_unless_empty("type", kind)} for name, kind in columns.items()]
    return facet("schema", fields=fields) if fields else {}


def _unless_empty(name: str, value: str) -> dict[str, str]:
    return {name: value} if value else {}


class _Event:
    """An event that is to be sent; it is made when its turn comes, in the sender's thread, since it reads the state.

    Args:
        make: returns the encoded event; it is given the time of what the event reports.
    """

    def __init__(self, make: Callable[[dt.datetime], bytes]) -> None:
        self._make = make
        self._at = dt.datetime.now(dt.UTC)
        self._body: bytes | None = None
        self.is_sent = False

    def body(self) -> bytes:
        """Return the encoded event, the same each time."""
        if self._body is None:
            self._body = self._make(self._at)
        return self._body


class LineageRecorder(Silent):
    """Sends the events of a run.

    Args:
        flow: name of the flow; "": a plan is run.
        plans: label of a plan, as ``about`` gives it, or "" -> the plan.
        report: takes a line of text, in any thread.
    """

    def __init__(
        self,
        target: Path | str,
        flow: str,
        plans: Mapping[str, MonitoredPlan],
        report: Callable[[str], None],
        *,
        endless: bool,
    ) -> None:
        self._shown = f"lineage {urls.redact(target) if isinstance(target, str) else target}"
        self._send = make_send(target)
        self._report = report
        self._sender: BackgroundSender[_Event] = BackgroundSender(self._shown, self._send_events, report, size=_QUEUE)
        self._flow = flow
        self._id = str(uuid.uuid4())
        self._outer = _outer_run()
        parent = (job_namespace(), flow, self._id) if flow else self._outer
        self._runs = {label: JobRun(plan, parent, endless=endless) for label, plan in plans.items()}
        self._next_running = time.monotonic() + limits.LINEAGE_EVERY_S
        if flow:
            self._put_of(self._flow_event, "START")
        for run in self._runs.values():
            self._put_of(run.event, "START")

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        if time.monotonic() >= self._next_running:
            self._next_running = time.monotonic() + limits.LINEAGE_EVERY_S
            for run in self._runs.values():
                self._put_of(run.event, "RUNNING")

    def end(
        self, counts: Mapping[str, Mapping[str, int]], errors: Mapping[str, BaseException], error: BaseException | None
    ) -> None:
        """Send the last events.

        Args:
            counts: plan -> its exit code and counts, as far as they are known.
            errors: plan -> what stopped it.
            error: what ended the run; None: it came to its end.
        """
        for label, run in self._runs.items():
            kind, *why = _how(counts.get(label, {}), errors.get(label, error))
            self._put_of(run.event, kind, *why)
        if self._flow:
            exits = {numbers["exit"] for numbers in counts.values() if "exit" in numbers}
            code = next((code for code in (1, 2, 4) if code in exits), 0)
            kind, *why = _how({"exit": code}, error or next(iter(errors.values()), None))
            self._put_of(self._flow_event, kind, *why)

    def close(self, deadline: float) -> None:
        """Send what waits; give up at this monotonic time."""
        self._sender.end(deadline)

    def _put_of(self, make: Callable[..., bytes], kind: str, *why: str) -> None:
        self._sender.put(_Event(lambda at: make(kind, at, *why)))

    def _send_events(self, events: Sequence[_Event]) -> None:
        """Send events in their order; after an error those that were sent are not sent again."""
        for event in events:
            if event.is_sent:
                continue
            try:
                body = event.body()
            except Exception as e:  # the state cannot be read
                self._report(f"{self._shown}: an event is left out: {plain_text(e)}")
                event.is_sent = True
                continue
            self._send([body])
            event.is_sent = True

    def _flow_event(self, kind: str, at: dt.datetime, message: str = "", trace: str = "") -> bytes:
        run = facet("processing_engine", version=ferryman.__version__, name="ferryman") | _error(message, trace)
        if self._outer is not None:
            namespace, name, id = self._outer
            run |= facet("parent", run={"runId": id}, job={"namespace": namespace, "name": name})
        job = facet("jobType", processingType="BATCH", integration="FERRYMAN", jobType="DAG")
        return _encode(kind, at, self._id, self._flow, run, job)


def _outer_run() -> tuple[str, str, str] | None:
    """Return namespace, job and run of what started this one."""
    parts = os.environ.get(PARENT_VARIABLE, "").rsplit("/", 2)
    try:
        return (parts[0], parts[1], str(uuid.UUID(parts[2]))) if len(parts) == 3 else None
    except ValueError:
        return None


def _how(counts: Mapping[str, int], error: BaseException | None) -> tuple[str, str, str]:
    """Return how a run ended: kind of the event, message and traceback."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "ABORT", "", ""
    if error is not None:
        return "FAIL", plain_text(error) or type(error).__name__, "".join(traceback.format_exception(error))
    code = counts.get("exit", 0)
    if code in (0, 3):
        return "COMPLETE", "", ""
    pending = counts.get("pending", 0)
    return (
        "FAIL",
        f"exit code {code}" + (f": {plural(pending, 'delivery is', 'deliveries are')} pending" if pending else ""),
        "",
    )
