"""The layout: where each thing is kept, and how it is written there. Other people's tools read these nodes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ferryman.document import decode_json, json_problem
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
PAUSED: Final = f"{QUEUE_LOCKS}/ingest"
"""While it is there, nothing of the ingest queue is acquired."""

SIZES: Final = ("small", "large")
"""The two access queues."""

DIGITS: Final = 10
"""Digits of the number in an id, as in ZooKeeper's sequential nodes."""

PRIORITY: Final = 5
"""Priority of a job whose submitter gave none."""

PRIORITY_NAMED_MAX: Final = 99
"""Names have two digits for it. What is less urgent is sorted with this one; the exact number is in the data."""

NODE_BYTES_MAX: Final = 512 << 10
"""Most bytes of one node. ZooKeeper's servers refuse requests near 1 MiB, and one request may carry several nodes."""

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
    """The folder of all jobs in a state."""
    return "/".join((JOB_STATES, state.lower(), *rest))


def parent_of(path: str) -> str:
    """The node that holds it; "" above the root."""
    return path.rpartition("/")[0] or ("" if path == "/" else "/")


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def numbered(prefix: str, number: int) -> str:
    """``bid0000000017``."""
    return f"{prefix}{number:0{DIGITS}d}"


def number_of(name: str) -> int | None:
    """17 of ``bid0000000017``; None for any other name."""
    digits = name[-DIGITS:]
    return int(digits) if len(name) > DIGITS and digits.isascii() and digits.isdigit() else None


def entry(priority: int, job_id: str) -> str:
    """A job's name in the folder of its state: sorted, these are most urgent first, then oldest."""
    return f"{min(max(priority, 0), PRIORITY_NAMED_MAX):02d}-{job_id}"


def job_of(name: str) -> str:
    """The job that an entry names."""
    return name.partition("-")[2]


def lock_of(items: str, name: str) -> str:
    """The lock of the item that an entry names."""
    return f"{items}/{job_of(name)}/lock"


def mapped(name: str) -> str:
    """A name as a node's: ``ark:/aaa/111`` is ``ark_aaa_111``.

    Raises:
        UsageError: it cannot be one.
    """
    node = re.sub(":?/", "_", name)
    if not node or node in (".", "..") or _NOT_IN_NAMES.search(node):
        raise UsageError(
            f"{name!r} cannot name a node of the queue: use a single non-empty line other than '.' and '..'"
        )
    return node


def encoded(path: str, value: Any) -> bytes:
    """A value as the JSON of a node.

    Raises:
        UsageError: it has no JSON, or too much of it.
    """
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as e:
        raise UsageError(f"{path}: this cannot be written as JSON: {e}. Give text, numbers, lists and objects.") from e
    if why := json_problem(value):
        raise UsageError(f"{path}: this {why}. Give text, numbers, lists and objects.")
    return sized(path, data)


def sized(path: str, data: bytes) -> bytes:
    """The data, if one node may hold so much.

    Raises:
        UsageError: it may not.
    """
    if len(data) > NODE_BYTES_MAX:
        raise UsageError(
            f"{path}: {len(data)} bytes are more than a node may hold ({NODE_BYTES_MAX}). Keep them in a file, and "
            "give its URL."
        )
    return data


def decoded(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object of a node.

    Raises:
        NodeInvalid: there is none in it.
    """
    try:
        value = decode_json(data)
    except ValueError as e:
        raise NodeInvalid(path, f"is not JSON ({e})") from None
    if not isinstance(value, dict):
        raise NodeInvalid(path, "holds JSON, but not an object")
    return value


def text_of(path: str, data: bytes) -> str:
    """The text of a node.

    Raises:
        NodeInvalid: it is not one.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NodeInvalid(path, "is not UTF-8 text") from None


def whole_number(path: str, data: bytes) -> int:
    """The decimal number of a node, as others write it too: ``5``, ``05``, with blanks around.

    Raises:
        NodeInvalid: it is not one.
    """
    text = text_of(path, data).strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise NodeInvalid(path, f"is not an integer but {text[:40]!r}")
    return int(text)


def time_text(seconds: float) -> str:
    """A time as it is written in nodes, in UTC: ``2026-11-20 21:45:38 +0000``."""
    return _second_text(int(seconds // 1))


@lru_cache(maxsize=4)
def _second_text(second: int) -> str:
    return dt.datetime.fromtimestamp(second, dt.UTC).strftime(TIME_FORMAT)


def submission_uuid(submission: Mapping[str, Any]) -> str:
    """The ``batchID`` of a submission; "" if it has none."""
    uuid = submission.get("batchID")
    return "" if uuid is None else str(uuid)


def undated(submission: Mapping[str, Any]) -> dict[str, Any]:
    """A submission that is repeated has another date."""
    found = {name: value for name, value in submission.items() if name != "submissionDate"}
    return decoded("", encoded("", found))


def skeleton() -> list[str]:
    """The folders that every queue has, each after the one it is in."""
    from ferryman.intake.states import JobState

    return [
        BATCH_UUIDS,
        BATCHES,
        JOBS,
        JOB_STATES,
        *(state_path(state) for state in JobState),
        ACCESS,
        *(f"{ACCESS}/{size}" for size in SIZES),
        LOCKS,
        QUEUE_LOCKS,
        COLLECTION_LOCKS,
        f"{LOCKS}/storage",
        f"{LOCKS}/inventory",
        f"{LOCKS}/localid",
    ]
