"""The queue that a verb works on, and what its arguments mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli.terminal import error, say
from ferryman.errors import FerrymanError, UsageError

if TYPE_CHECKING:
    from ferryman.intake import Assembly, Batch, Job, Queue

DEFAULT: Final = Path(".ferryman") / "queue.db"

QueueUrl = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="URL",
        envvar="FERRYMAN_QUEUE",
        show_envvar=False,
        show_default=False,
        help=f"sqlite:///FILE or zookeeper://HOST:PORT,…/PATH. Default: FERRYMAN_QUEUE, or else sqlite:///{DEFAULT}.",
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", show_default=False, help="Jobs (jid…) and batches (bid…)."),
]
Collection = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", show_default=False, help="A whole collection, by its profile_name."),
]


@contextmanager
def opened(url: str | None) -> Iterator[Queue]:
    """The queue at a URL; the default one is made where there is none.

    Raises:
        FerrymanError: it cannot be opened.
    """
    from ferryman.intake import Queue

    if url is None:
        DEFAULT.parent.mkdir(exist_ok=True)
        url = f"sqlite:///{DEFAULT}"
    elif url.startswith("memory:"):
        raise UsageError(f"--queue {url}: a queue in memory ends with this command. Give sqlite:/// or zookeeper://.")
    with Queue.open(url) as queue:
        yield queue


def item(queue: Queue, name: str) -> Batch | Job | Assembly:
    """A batch (bid…), a job (jid…), or an access request (small/qid…).

    Raises:
        UsageError: this is not an id.
        NodeInvalid: it is not there, or damaged.
    """
    size, _, request = name.rpartition("/")
    if size:
        return queue.load_assembly(size, request)
    if name.startswith("bid"):
        return queue.load_batch(name)
    if name.startswith("jid"):
        return queue.load_job(name)
    raise UsageError(f"{name}: give a job (jid…), a batch (bid…), or an access request (small/qid…).")


def each(ids: Iterable[str], do: Callable[[str], str]) -> None:
    """Do it to each, say what was done, go on past those that cannot be; the command ends with 1 if there were any."""
    failed = False
    for name in ids:
        try:
            say(f"{name}: {do(name)}")
        except FerrymanError as e:
            error(f"{name}: {e}")
            failed = True
    if failed:
        raise typer.Exit(1)
