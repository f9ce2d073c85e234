"""Messages of Spark's errors in one line that a user can act on, and the way of our own errors through Spark."""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Final

import cloudpickle

from ferryman.errors import FerrymanError, plain_text

_PARCEL: Final = re.compile(r"\[ferryman: ([A-Za-z0-9+/=]+)\]")
"""An error of ours in the text of one of Spark's."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_MISSING: Final = "No module named 'ferryman'"
_NOT_THERE: Final = (
    "The Python of an executor has no Ferryman: install it there, name a Python that has it in PYSPARK_PYTHON, or send "
    "one along with --conf spark.archives=…"
)

_NO_MODULE: Final = (
    "The plan needs it, and the Python of an executor does not find it: put it beside the plan file or the program, "
    "which sends it, install it there, or send it with --conf spark.submit.pyFiles=…"
)


def reason(error: BaseException) -> str:
    """A Python worker's own last line, if there is one, else what Java names as the cause."""
    found = [line for line in plain_text(error).splitlines() if line.strip()]
    if (line := _of_worker(found)) is not None:
        if _MISSING in line:
            return f"{line}. {_NOT_THERE}"
        return f"{line}. {_NO_MODULE}" if line.startswith("ModuleNotFoundError: ") else line
    lines = [line.strip() for line in found]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    if causes:
        return causes[-1]
    said = [line for line in lines if not line.startswith("An error occurred while calling ")]
    return said[0].removeprefix(": ") if said else type(error).__name__


def _of_worker(lines: Sequence[str]) -> str | None:
    """The line behind a worker's last traceback, whatever its exception is called; or one that looks like that."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].rstrip().endswith(_TRACEBACK):
            margin = len(lines[number]) - len(lines[number].lstrip())
            behind = (line for line in lines[number + 1 :] if len(line) - len(line.lstrip()) <= margin)
            if (line := next(behind, None)) is not None:
                return line.strip()
    for line in reversed(lines):
        head = line.strip().split(":", 1)[0]
        if (
            head.replace(".", "").replace("_", "").isalnum()
            and head.endswith(("Error", "Exception"))
            and not head.startswith(("org.", "java.", "py4j."))
        ):
            return line.strip()
    return None


class TaskFailed(Exception):
    """An error of ours that ends a task: its words, for Spark's log, and the error itself, for the driver."""


@contextlib.contextmanager
def packed() -> Iterator[None]:
    """In a task: an error of ours passes through Spark, which tries the task again as often as it does, and says in the
    end what the last try raised, as text."""
    try:
        yield
    except FerrymanError as e:
        parcel = base64.b64encode(cloudpickle.dumps(e)).decode()
        raise TaskFailed(f"{type(e).__name__}: {e} [ferryman: {parcel}]") from e


def unpacked(error: BaseException) -> FerrymanError | None:
    """The error of ours that is in one of Spark's; None: there is none."""
    found = _PARCEL.search(plain_text(error))
    if found is None:
        return None
    with contextlib.suppress(Exception):  # it was cut
        inside = pickle.loads(base64.b64decode(found[1]))
        return inside if isinstance(inside, FerrymanError) else None
    return None
