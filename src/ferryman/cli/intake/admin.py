"""``ferryman intake hold``, ``release``, ``requeue``, ``delete``, ``pause`` and the like: operator commands."""

from __future__ import annotations

from typing import Annotated

import typer

from ferryman import crash
from ferryman.cli.intake.options import Collection, Ids, QueueUrl, batch_of, each, item, job_of, opened
from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import error, json_line, note, say, table
from ferryman.errors import UsageError

Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", min=0, show_default=False, help="Give jobs this priority.")
]
Message = Annotated[str, typer.Option("--message", metavar="TEXT", show_default=False, help="Stored with the status.")]
AccessSize = Annotated[
    str | None,
    typer.Option("--access", metavar="SIZE", show_default=False, help="Use the access queue: small or large."),
]


def hold(
    ids: Ids = None,
    collection: Collection = None,
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Set pending jobs or batches aside, or a whole collection.

    Of a collection on hold, each pending job becomes Held when its turn comes; what is at work goes on.
    """
    with opened(queue) as found:
        _one_of(ids, collection)
        if collection is not None:
            locked = found.locks.lock("collection", collection)
            say(f"collection {collection}: {'on hold' if locked else 'is on hold already'}")
        each(ids or [], lambda name: _moved(item(found, name), "Held", message))


def release(ids: Ids = None, collection: Collection = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Let held jobs or batches go on, or a whole collection.

    Of a collection: it is not on hold any more, and all its held jobs are Pending again. `unlock collection NAME`
    ends the hold alone.
    """
    from ferryman.intake.acquire import collection_of

    with opened(queue) as found:
        _one_of(ids, collection)
        names = list(ids or [])
        if collection is not None:
            found.locks.unlock("collection", collection)
            held = [
                name
                for name in found.list_jobs("Held")
                if collection_of(found.tree, found.load_job(name)) == collection
            ]
            say(f"collection {collection}: not on hold, {len(held)} held {'job' if len(held) == 1 else 'jobs'}")
            names += held
        each(names, lambda name: _released(item(found, name)))


def requeue(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", show_default=False, help="Failed jobs (jid…), or batches.")
    ],
    priority: Priority = None,
    message: Message = "",
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            metavar="MANIFEST",
            show_default=False,
            help="Its files are those of this manifest (a file, or a URL).",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Another value in its configuration: payload_url=…, digest=…; KEY= removes it. Repeatable.",
        ),
    ] = None,
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Try failed jobs again.

    Each goes on in the state after the last one that succeeded, and its retries count one more. Of a batch: all its
    failed jobs. The batch itself stays as it is; `report` tells its submitter what has changed.

    With --manifest or --set its configuration is corrected first: it goes on from Pending, and nothing that was fetched
    before is used. A manifest is that of one object, whatever its lines' local_id.
    """
    edits = _edits(manifest, changes)
    if edits and (len(ids) != 1 or ids[0].startswith("bid")):
        raise UsageError("--manifest and --set correct one job: give one id (jid…).")
    with opened(queue) as found:

        def again(name: str) -> str:
            from ferryman.service.edition import edited

            job = job_of(found, name)
            configuration = edited(job, edits) if edits else None
            crash.point("requeue.checked")
            job.requeue(message, configuration, priority)
            crash.point("requeue.moved")
            return job.status

        names = []
        for name in ids:
            names += batch_of(found, name).failed_jobs if name.startswith("bid") else [name]
        each(names, again)


def report(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, help="Failed batches (bid…).")],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Have the submitter of a failed batch told what has changed since the last report."""
    with opened(queue) as found:
        each(ids, lambda name: _moved(batch_of(found, name), "UpdateReporting", ""))


def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, help="Jobs, batches, small/qid….")],
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Give up what is held or has failed; remove what is done with.

    Held and Failed become Deleted, and can still be looked at. Completed and Deleted are removed; a batch with all its
    jobs.
    """
    with opened(queue) as found:

        def gone(name: str) -> str:
            one = item(found, name)
            if not one.deletable:
                return _moved(one, "Deleted", message)
            one.delete()
            return "removed"

        each(ids, gone)


def cleanup(queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """Remove all completed and deleted batches, with their jobs.

    One that is damaged, or at work again, is named and stays; the command ends with 1 then.
    """
    with opened(queue) as found:
        done = found.cleanup()
    if json:
        json_line({"removed": done.removed, "passed_over": dict(done.passed_over)})
    else:
        for name in done.removed:
            say(f"{name}: removed")
        if not done.removed:
            note("There was nothing to remove.")
    for name, why in done.passed_over:
        error(f"{name} stays: {why}")
    if done.passed_over:
        raise typer.Exit(1)


def pause(access: AccessSize = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Stop giving out work: nothing new is acquired anywhere. What is at work goes on."""
    kind = _queue_of(access)
    with opened(queue) as found:
        say(f"{kind}: {'paused' if found.locks.lock(kind) else 'is paused already'}")


def resume(access: AccessSize = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Give out work again."""
    kind = _queue_of(access)
    with opened(queue) as found:
        was = found.locks.check(kind)
        found.locks.unlock(kind)
        say(f"{kind}: {'resumed' if was else 'was not paused'}")


def lock(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]", show_default=False, help="collection, storage, ingest, access-small, access-large."
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False, help="Its name.")] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Lock a collection or an object; without KIND, list all locks.

    It stays locked until somebody unlocks it. Locks of inventory and local ids live with the process that works there:
    they are listed, and cannot be taken by hand.
    """
    from ferryman.intake.locks import KINDS

    with opened(queue) as found:
        if kind is None:
            rows = [{"kind": one, "name": held} for one in KINDS for held in found.locks.held(one)]
            if json:
                json_line(rows)
            elif rows:
                table(("kind", "name"), [[row["kind"], row["name"]] for row in rows])
            else:
                note("Nothing is locked.")
            return
        if kind in KINDS and not KINDS[kind].stays:
            raise UsageError(
                f"lock {kind}: this lock belongs to the process that takes it, and would end with this command."
            )
        if not found.locks.lock(kind, name):
            error(f"{kind} {name or ''}: is locked already")
            raise typer.Exit(1)
        say(f"{kind} {name or ''}: locked")


def _edits(manifest: str | None, changes: list[str] | None) -> dict[str, str]:
    """What is to be changed in a job's configuration.

    Raises:
        UsageError: it is not KEY=VALUE, or the manifest cannot be fetched.
    """
    from ferryman.cli.intake.submit import url_of

    edits = {} if manifest is None else {"payload_url": url_of(manifest), "payload_type": "object-manifest"}
    for change in changes or ():
        key, sign, value = change.partition("=")
        if not sign:
            raise UsageError(f"--set {change}: give KEY=VALUE, or KEY= to remove it.")
        edits[key.strip()] = value
    return edits


def _moved(one: object, state: str, message: str) -> str:
    from ferryman.intake.item import Item

    assert isinstance(one, Item)
    one.set_status(state, message)
    return one.status


def _released(one: object) -> str:
    """Only what is held: that a failed job could be Pending too is another verb's work."""
    from ferryman.intake import StateError
    from ferryman.intake.item import Item

    assert isinstance(one, Item)
    if one.status != "Held":
        raise StateError(one.status, "Pending")
    return _moved(one, "Pending", "")


def _queue_of(access: str | None) -> str:
    if access not in (None, "small", "large"):
        raise UsageError(f"--access {access}: choose small or large.")
    return "ingest" if access is None else f"access-{access}"


def _one_of(ids: list[str] | None, collection: str | None) -> None:
    if not ids and collection is None:
        raise UsageError("give ids of jobs or batches, or --collection NAME.")
