"""Errors of Spark as one line that a user can act on, and errors of our own that are raised in tasks.

Spark passes an error of a task on as text only. So one of our own is pickled into its text, and unpickled in the
driver.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import cloudpickle

from ferryman.errors import FerrymanError, plain_text

_PICKLED_ERROR: Final = re.compile(r"\[ferryman: ([A-Za-z0-9+/=]+)\]")
"""A pickled error of ours in the text of one of Spark's."""

_LONGEST_TRACE: Final = 1_000_000
"""Characters of an error's text that are searched: a cause may stand between two stack traces."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_NO_FERRYMAN: Final = "No module named 'ferryman'"
_NO_FERRYMAN_REMEDY: Final = (
    "The Python of an executor has no Ferryman: install it there, name a Python that has it in PYSPARK_PYTHON, or send "
    "one along with --conf spark.archives=…"
)

_OTHER_PYTHON: Final = "PYTHON_VERSION_MISMATCH"
_OTHER_PYTHON_REMEDY: Final = (
    "The session was made with PYSPARK_PYTHON naming another Python, or none. Before it is made, set "
    "os.environ['PYSPARK_PYTHON'] = sys.executable; on a cluster, name a Python of this version that the executors have"
)
_PYTHON_REMEDY: Final = (
    "Name the Python of the executors with --conf spark.pyspark.python=… or PYSPARK_PYTHON; it needs Ferryman"
)

_NO_MODULE_REMEDY: Final = (
    "The plan needs it, and the Python of an executor does not find it: put it beside the plan file or the program, "
    "which sends it, install it there, or send it with --conf spark.submit.pyFiles=…"
)


_NO_PYTHON: Final = re.compile(
    r'Cannot run program "(?P<python>[^"\n]{1,4096}+)"[^\n]{0,500}?(?P<why>No such file or directory|Permission denied)'
)
_SPOILED_PYTHON: Final = re.compile(
    r"(?:Bad data in|No port number in|port number from) \S+'s? st(?:andard out|dout)"
    r".*?(?:execute the daemon was:\s+(?P<python>\S+)|\Z)",
    re.DOTALL,
)
"""Error of Spark if the Python of a worker prints something before Spark's own answer, or answers nothing."""

_YARN_ENDED: Final = re.compile(
    r"(?:[Yy]arn|YARN) application has already (?:ended|exited)|Application (?P<id>application_\w+) failed"
)
_YARN_ID: Final = re.compile(r"application_\d+_\d+")


def describe_spark_error(error: BaseException) -> str:
    """Return the cause that a user can act on: the last line of a Python worker's traceback, if there is one; a Python
    that executors lack, or that does not answer; an application that YARN ended; otherwise the cause that Java
    names."""
    text = plain_text(error, _LONGEST_TRACE)
    lines = [line for line in text.splitlines() if line.strip()]
    if (line := _worker_error_line(lines)) is not None:
        if _NO_FERRYMAN in line:
            return f"{line}. {_NO_FERRYMAN_REMEDY}"
        if _OTHER_PYTHON in line:
            return f"{line.rstrip('.')}. {_OTHER_PYTHON_REMEDY}"
        return f"{line}. {_NO_MODULE_REMEDY}" if line.startswith("ModuleNotFoundError: ") else line
    if (match := _NO_PYTHON.search(text)) is not None:
        return f"an executor cannot run the Python {match['python']} ({match['why']}). {_PYTHON_REMEDY}"
    if (match := _SPOILED_PYTHON.search(text)) is not None:
        python = match["python"] or "of an executor"
        remedy = "" if python == sys.executable else f" {_PYTHON_REMEDY}"  # on one machine it is always this one
        return (
            f"the Python {python} prints something when it starts, where Spark expects its own answer. Look for a "
            "sitecustomize.py or a .pth file that prints, or for a script that starts Python, and let it print to "
            f"standard error.{remedy}"
        )
    if _YARN_ENDED.search(text) is not None:
        return describe_yarn_end(match[0] if (match := _YARN_ID.search(text)) is not None else "")
    return _java_cause([line.strip() for line in lines]) or type(error).__name__


def describe_yarn_end(application: str) -> str:
    """Return a sentence on an application that YARN has ended, and where to look for the reason."""
    return (
        f"YARN has ended {application or 'the application'}, if nobody stopped it: `yarn logs -applicationId "
        f"{application or 'ID'}` and the page of its resource manager have the reason, such as too little memory."
    )


def _java_cause(lines: Sequence[str]) -> str:
    """Return the last cause that Java names, else the first line with a text; a text may follow on the next line."""
    lines = [line for line in lines if not line.startswith("An error occurred while calling ")]
    found = [number for number, line in enumerate(lines) if line.startswith("Caused by:")][-1:] or [0]
    cause = ""
    for line in lines[found[0] :]:
        if line.startswith(("at ", "...")):
            break
        cause = f"{cause} {line}".strip()
        if not line.endswith(":"):
            break
    return cause.removeprefix("Caused by:").strip().removeprefix(": ")


def _worker_error_line(lines: Sequence[str]) -> str | None:
    """Return the line after a worker's last traceback, or a line that looks like an exception of Python; None: none."""
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
    """An error of ours that ends a task: its text, for Spark's log, with the pickled error, for the driver."""


@contextlib.contextmanager
def pack_errors() -> Iterator[None]:
    """Convert errors of ours in a task to ``TaskFailed``. Spark retries the task, and reports the last error as
    text."""
    try:
        yield
    except FerrymanError as e:
        pickled = base64.b64encode(cloudpickle.dumps(e)).decode()
        raise TaskFailed(f"{type(e).__name__}: {e} [ferryman: {pickled}]") from e


def unpack_error(error: BaseException) -> FerrymanError | None:
    """Return the error of ours that is in the text of one of Spark's; None: there is none."""
    match = _PICKLED_ERROR.search(plain_text(error))
    if match is None:
        return None
    with contextlib.suppress(Exception):  # Spark may have cut the text
        inside = pickle.loads(base64.b64decode(match[1]))
        return inside if isinstance(inside, FerrymanError) else None
    return None
