"""Failed allocations: recognizing their errors, and describing them with the memory limit of this process.

A document is no more and no less to blame for a failed allocation than for the end of its process: it is isolated in
the same way, and named.
"""

from __future__ import annotations

import errno
import resource
from typing import Final

from ferryman import limits
from ferryman.errors import describe
from ferryman.net.faults import causes

_MESSAGE_PARTS: Final = (
    *("failed to map segment", "cannot allocate memory", "can't start new thread", "failed to launch worker thread"),
    "bad_alloc",
)
"""Parts of messages of a library that cannot be loaded, a fork, Python's and Arrow's threads, and C++."""

_MESSAGE_TYPES: Final = (ImportError, OSError, RuntimeError)
"""Errors recognized by their message; so are Arrow's, without loading Arrow."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an allocation failed: Python's own, Arrow's, DuckDB's, one of C++, of a thread, or of loading a
    library."""
    return any(is_failed_allocation(each) for each in causes(error))


def is_failed_allocation(error: BaseException) -> bool:
    """Return whether this very error, not its cause, is a failed allocation."""
    if isinstance(error, MemoryError):  # Arrow's is one too, as are those that extensions make of std::bad_alloc
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if type(error).__name__ == "OutOfMemoryException" and "duckdb" in type(error).__module__:
        return True
    matched_by_message = isinstance(error, _MESSAGE_TYPES) or type(error).__module__ == "pyarrow.lib"
    return matched_by_message and any(word in _lowercase_message(error) for word in _MESSAGE_PARTS)


def describe_memory_error(error: BaseException, size: int | None = None) -> str:
    """Describe an error of ``lacks_memory``: the size needed, what failed, and the limit of this process.

    Args:
        size: bytes that the memory was needed for.
    """
    cause = next((each for each in causes(error) if is_failed_allocation(each)), error)
    found = [_mib(size)] if size is not None else []
    found.append(describe(cause).removesuffix(": "))
    return f"there is too little memory for it ({': '.join(found)}){_describe_limit()}"


def _describe_limit() -> str:
    """Describe the limit of this process's allocations; "" if there is none. (A container's limit lets an allocation
    succeed, and kills.)"""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return ""
    return f", a process may use {_mib(soft)} here (spark.executor.pyspark.memory, or ulimit -v)"


def _mib(size: int) -> str:
    return f"{size / limits.MIB:.{0 if size >= 10 * limits.MIB else 1}f} MiB"


def _lowercase_message(error: BaseException) -> str:
    try:
        return str(error).lower()
    except Exception:
        return ""
