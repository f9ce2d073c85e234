"""The queue that a verb works on, and what its arguments mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli.options import argument, option
from ferryman.cli.terminal import print_error, print_line
from ferryman.errors import FerrymanError, UsageError

if TYPE_CHECKING:
    from ferryman.intake import Assembly, Batch, Job, JobQueue

DEFAULT_QUEUE: Final = Path(".ferryman") / "queue.db"

QueueUrl = Annotated[
    str | None,
    option(
        "--queue",
        "URL",
        f"sqlite:///FILE or zookeeper://HOST:PORT,…/PATH. Default: FERRYMAN_QUEUE, or else sqlite:///{DEFAULT_QUEUE}.",
        envvar="FERRYMAN_QUEUE",
        show_envvar=False,
    ),
]
Ids = Annotated[list[str] | None, argument("[ID]...", "Jobs (jid…) and batches (bid…).")]
Collection = Annotated[str | None, option("--collection", "NAME", "A whole collection, by its profile_name.")]


@contextmanager
def open_queue(url: str | None) -> Iterator[JobQueue]:
    """Open the queue at a URL; create the default queue if it does not exist.

    Raises:
        FerrymanError: it cannot be opened.
    """
    from ferryman.intake import JobQueue

    if url is None:
        DEFAULT_QUEUE.parent.mkdir(exist_ok=True)
        url = f"sqlite:///{DEFAULT_QUEUE}"
    elif url.startswith("memory:"):
        raise UsageError(f"--queue {url}: a queue in memory ends with this command. Give sqlite:/// or zookeeper://.")
    with JobQueue.open(url) as queue:
        yield queue


def load_item(queue: JobQueue, name: str) -> Batch | Job | Assembly:
    """Load a batch (bid…), a job (jid…), or an access request (small/qid…).

    Raises:
        UsageError: this is not an id, or there is no such item.
        NodeInvalid: it is damaged.
    """
    return find_item(queue, name).load()


def find_item(queue: JobQueue, name: str) -> Batch | Job | Assembly:
    """Return an item without reading it, since it may be damaged.

    Raises:
        UsageError: this is not an id, or there is no such item.
    """
    from ferryman.intake import Assembly
    from ferryman.intake.nodes import ACCESS_SIZES, access_path

    size, _, request = name.rpartition("/")
    if size not in ACCESS_SIZES:
        return _find_batch(queue, name) if name.startswith("bid") else _find_job(queue, name)
    _refuse_unknown(queue, access_path(size, request), request, f"{name}: there is no such access request")
    return Assembly(queue.tree, size, request)


def load_batch(queue: JobQueue, name: str) -> Batch:
    """Load a batch (bid…). Raises as ``load_item``."""
    if not name.startswith("bid"):
        raise UsageError(f"{name}: give a batch (bid…).")
    return _find_batch(queue, name).load()


def load_job(queue: JobQueue, name: str) -> Job:
    """Load a job (jid…). Raises as ``load_item``."""
    return _find_job(queue, name).load()


def _find_batch(queue: JobQueue, name: str) -> Batch:
    from ferryman.intake import Batch
    from ferryman.intake.nodes import batch_path

    _refuse_unknown(queue, batch_path(name), name, f"{name}: there is no such batch")
    return Batch(queue.tree, name)


def _find_job(queue: JobQueue, name: str) -> Job:
    from ferryman.intake import Job
    from ferryman.intake.nodes import job_path

    if not name.startswith("jid"):
        raise UsageError(f"{name}: give a job (jid…), a batch (bid…), or an access request (small/qid…).")
    _refuse_unknown(queue, job_path(name), name, f"{name}: there is no such job")
    return Job(queue.tree, name)


def _refuse_unknown(queue: JobQueue, path: str, id: str, text: str) -> None:
    if not id or "/" in id or queue.tree.find(path) is None:
        raise UsageError(f"{text} in {queue.url}. `ferryman intake batches` and `jobs` list what there is.")


def is_id(name: str) -> bool:
    """Return whether this is the id of a job, a batch or an access request, rather than a kind of lock."""
    return name.startswith(("jid", "bid", "small/", "large/"))


def apply_to_each(ids: Iterable[str], do: Callable[[str], str]) -> None:
    """Apply an action to each item and print its result; report errors and continue with the other items.

    The command ends with 1 if there were errors, and with 2 if an id does not exist.
    """
    code = 0
    for name in ids:
        try:
            print_line(f"{name}: {do(name)}")
        except FerrymanError as e:
            text = str(e)
            print_error(text if text.startswith(f"{name}: ") else f"{name}: {text}")
            code = max(code, 2 if type(e) is UsageError else 1)
    if code:
        raise typer.Exit(code)
