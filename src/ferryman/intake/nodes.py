"""Layout of the nodes: their paths, and the encoding of their content. Other tools read these nodes, too."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ferryman.document import decode_json, json_error, json_problem
from ferryman.errors import UsageError
from ferryman.intake.errors import NodeInvalid

BATCHES: Final = "/batches"
BATCH_UUIDS: Final = "/batch-uuids"
JOBS: Final = "/jobs"
JOB_STATES: Final = "/jobs/states"
ACCESS: Final = "/access"
LOCKS: Final = "/locks"
QUEUE_LOCKS: Final = "/locks/queue"
COLLECTION_LOCKS: Final = "/locks/collections"
PAUSE_PATH: Final = f"{QUEUE_LOCKS}/ingest"
"""Lock that pauses the ingest queue: while it exists, nothing is acquired."""

ACCESS_SIZES: Final = ("small", "large")
"""The two access queues."""

DIGITS: Final = 10
"""Digits of the number in an id, as in ZooKeeper's sequential nodes."""

DEFAULT_PRIORITY: Final = 5
"""Priority of a job whose submitter gave none."""

PRIORITY_IN_NAME_MAX: Final = 99
"""Highest priority that an entry's two digits can express. Less urgent jobs sort like it; their own node has the exact
number."""

NODE_BYTES_MAX: Final = 512 << 10
"""Maximum bytes of a node. ZooKeeper's servers refuse requests near 1 MiB, and one request may contain several
nodes."""

TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S %z"

_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufff0-\uffff]")
"""Characters that ZooKeeper refuses in paths."""


def batch_path(batch_id: str, *rest: str) -> str:
    return "/".join((BATCHES, batch_id, *rest))


def job_path(job_id: str, *rest: str) -> str:
    return "/".join((JOBS, job_id, *rest))


def access_path(size: str, access_id: str, *rest: str) -> str:
    return "/".join((ACCESS, size, access_id, *rest))


def state_path(state: str, *rest: str) -> str:
    """Return the folder that lists all jobs in a state."""
    return "/".join((JOB_STATES, state.lower(), *rest))


def parent_of(path: str) -> str:
    """Return the path of the parent node; "" above the root."""
    return path.rpartition("/")[0] or ("" if path == "/" else "/")


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def numbered_name(prefix: str, number: int) -> str:
    """Return a prefix with a number behind it: ``bid0000000017``."""
    return f"{prefix}{number:0{DIGITS}d}"


def number_of(name: str) -> int | None:
    """Return the number at the end of a name: 17 for ``bid0000000017``; None if the name has another form."""
    digits = name[-DIGITS:]
    return int(digits) if len(name) > DIGITS and digits.isascii() and digits.isdigit() else None


def state_entry(priority: int, job_id: str) -> str:
    """Return a job's name in the folder of its state; names sort by urgency, then by age."""
    return f"{min(max(priority, 0), PRIORITY_IN_NAME_MAX):02d}-{job_id}"


def job_of_entry(name: str) -> str:
    """Return the id of the job that an entry in a state's folder stands for."""
    return name.partition("-")[2]


def lock_of_entry(items: str, name: str) -> str:
    """Return the path of the lock of the item that an entry stands for."""
    return f"{items}/{job_of_entry(name)}/lock"


def node_name(name: str) -> str:
    """Convert a name to a node's name: ``ark:/aaa/111`` becomes ``ark_aaa_111``.

    Raises:
        UsageError: it cannot be converted.
    """
    node = re.sub(":?/", "_", name)
    if not node or node in (".", "..") or _NOT_IN_NAMES.search(node):
        raise UsageError(
            f"{name!r} cannot name a node of the queue: use a single non-empty line other than '.' and '..'"
        )
    return node


def encode_node(path: str, value: Any) -> bytes:
    """Encode a value as the JSON of a node.

    Raises:
        UsageError: it cannot be written as JSON, or is too large.
    """
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as e:
        why = json_error(b"", e)
        raise UsageError(
            f"{path}: this cannot be written as JSON: {why}. Give text, numbers, lists and objects."
        ) from e
    if why := json_problem(value):
        raise UsageError(f"{path}: this {why}. Give text, numbers, lists and objects.")
    return check_size(path, data)


def check_size(path: str, data: bytes) -> bytes:
    """Return the data if a node may be that large.

    Raises:
        UsageError: it is too large.
    """
    if len(data) > NODE_BYTES_MAX:
        raise UsageError(
            f"{path}: {len(data)} bytes are more than a node may hold ({NODE_BYTES_MAX}). Keep them in a file, and "
            "give its URL."
        )
    return data


def decode_node(path: str, data: bytes) -> dict[str, Any]:
    """Decode the JSON object of a node.

    Raises:
        NodeInvalid: it contains no JSON object.
    """
    try:
        value = decode_json(data)
    except ValueError as e:
        raise NodeInvalid(path, f"is not JSON ({e})") from None
    if not isinstance(value, dict):
        raise NodeInvalid(path, "holds JSON, but not an object")
    return value


def decode_text(path: str, data: bytes) -> str:
    """Decode the text of a node.

    Raises:
        NodeInvalid: it is not text.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NodeInvalid(path, "is not UTF-8 text") from None


def decode_integer(path: str, data: bytes) -> int:
    """Decode the decimal number of a node, also as other tools write it: ``5``, ``05``, with blanks around.

    Raises:
        NodeInvalid: it is not a number.
    """
    text = decode_text(path, data).strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise NodeInvalid(path, f"is not an integer but {text[:40]!r}")
    return int(text)


def format_time(seconds: float) -> str:
    """Format a time as in nodes, in UTC: ``2026-11-20 21:45:38 +0000``."""
    return _second_text(int(seconds // 1))


@lru_cache(maxsize=4)
def _second_text(second: int) -> str:
    return dt.datetime.fromtimestamp(second, dt.UTC).strftime(TIME_FORMAT)


def submission_uuid(submission: Mapping[str, Any]) -> str:
    """Return the ``batchID`` of a submission; "" if it has none."""
    uuid = submission.get("batchID")
    return "" if uuid is None else str(uuid)


def without_date(submission: Mapping[str, Any]) -> dict[str, Any]:
    """Return a submission without its date, which differs if the same one is submitted again."""
    values = {name: value for name, value in submission.items() if name != "submissionDate"}
    return decode_node("", encode_node("", values))


def layout_folders() -> list[str]:
    """Return the paths of the folders that every queue has, parents first."""
    from ferryman.intake.states import JobState

    return [
        BATCH_UUIDS,
        BATCHES,
        JOBS,
        JOB_STATES,
        *(state_path(state) for state in JobState),
        ACCESS,
        *(f"{ACCESS}/{size}" for size in ACCESS_SIZES),
        LOCKS,
        QUEUE_LOCKS,
        COLLECTION_LOCKS,
        f"{LOCKS}/storage",
        f"{LOCKS}/inventory",
        f"{LOCKS}/localid",
    ]
