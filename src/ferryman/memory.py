"""Memory that there is not: is an error that of an allocation which failed, and how much may this process use?

What an allocation fails for is as little to blame, and as much, as what ends its process: it is isolated in the same
way, and named.
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
"""What is said by a library that cannot be loaded, a fork, Python's and Arrow's threads, and C++."""

_MESSAGE_TYPES: Final = (ImportError, OSError, RuntimeError)
"""Errors that say it in words; so do Arrow's, which is not loaded for them."""


def lacks_memory(error: BaseException) -> bool:
    """Did an allocation fail: Python's own, Arrow's, DuckDB's, one of C++, a thread's, a library's that is loaded?"""
    return any(is_failed_allocation(each) for each in causes(error))


def is_failed_allocation(error: BaseException) -> bool:
    """The same of this very error, not of what has led to it."""
    if isinstance(error, MemoryError):  # Arrow's is one, and so is what extensions make of std::bad_alloc
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if type(error).__name__ == "OutOfMemoryException" and "duckdb" in type(error).__module__:
        return True
    says = isinstance(error, _MESSAGE_TYPES) or type(error).__module__ == "pyarrow.lib"
    return says and any(word in _lowercase_message(error) for word in _MESSAGE_PARTS)


def describe_memory_error(error: BaseException, size: int | None = None) -> str:
    """What is said of an error of ``lacks_memory``: for how much there was none, what failed, and what this process may
    use.

    Args:
        size: bytes of what the memory was for.
    """
    cause = next((each for each in causes(error) if is_failed_allocation(each)), error)
    found = [_mib(size)] if size is not None else []
    found.append(describe(cause).removesuffix(": "))
    return f"there is too little memory for it ({': '.join(found)}){_describe_limit()}"


def _describe_limit() -> str:
    """What this process may allocate; "": nobody says. (A container's limit lets an allocation succeed, and kills.)"""
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
