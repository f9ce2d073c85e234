"""``ferryman intake unlock``, ``fail``, ``prioritize``: operator commands for what is at work or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli.intake.admin import Message
from ferryman.cli.intake.options import QueueUrl, batch_of, each, is_id, item, job_of, opened
from ferryman.cli.options import Verbose
from ferryman.cli.terminal import say
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.intake import Queue


ITEMS: Final = ("job", "batch", "access")
"""What may stand before an id."""


def unlock(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND|ID",
            show_default=False,
            help="A job (jid…), a batch (bid…), an access request (small/qid…); or a kind of lock: as for lock, "
            "inventory, localid.",
        ),
    ],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False, help="Its name.")] = None,
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Take a lock away, also from the process that works under it.

    Of a job, a batch or a request: whoever works at it cannot change it any more, and it can be acquired again, in the
    same state. Do this when its process hangs; one that has died loses its locks by itself.
    """
    with opened(queue) as found:
        if is_id(kind) and name is not None:
            raise UsageError(f"unlock {kind}: this is an id, which has no name ({name!r} was given).")
        if is_id(kind) or kind in ITEMS:
            one = kind if is_id(kind) else name or ""
            each([one], lambda one: "unlocked" if item(found, one).revoke() else "was not locked")
        else:
            _unlock_kind(found, kind, name)


def _unlock_kind(queue: Queue, kind: str, name: str | None) -> None:
    was = queue.locks.revoke(kind, name)
    say(f"{kind} {name or ''}: {'unlocked' if was else 'was not locked'}")


def fail(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, help="Jobs, batches, small/qid….")],
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Give up what is at work or waits: a job becomes Failed, and can be requeued or deleted.

    Its lock is taken away in the same change, so that whoever works at it cannot go on.
    """
    with opened(queue) as found:

        def failed(name: str) -> str:
            one = item(found, name)
            one.fail(message or "given up by an operator", revoke=True)
            return one.status

        each(ids, failed)


def prioritize(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", show_default=False, help="Jobs (jid…), or batches: their jobs.")
    ],
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", min=0, show_default=False, help="0 is most urgent.")
    ],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Give jobs that wait another priority. One that somebody works at keeps its own."""
    with opened(queue) as found:

        def changed(name: str) -> str:
            job_of(found, name).set_priority(priority)
            return f"priority {priority}"

        names = []
        for name in ids:
            names += batch_of(found, name).processing_jobs if name.startswith("bid") else [name]
        each(names, changed)
