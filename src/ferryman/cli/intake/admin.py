"""``ferryman intake hold``, ``release``, ``requeue``, ``delete``, ``pause`` and the like: operator commands."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman import crash
from ferryman.cli.intake.listing import StateFilter, load_or_error, print_rows
from ferryman.cli.intake.options import (
    Collection,
    Ids,
    QueueUrl,
    apply_to_each,
    find_item,
    is_id,
    load_batch,
    load_item,
    load_job,
    open_queue,
)
from ferryman.cli.options import Json, Verbose, argument, option, seconds
from ferryman.cli.terminal import print_error, print_json, print_line, print_note, print_table
from ferryman.errors import UsageError
from ferryman.limits import MIB

if TYPE_CHECKING:
    from ferryman.intake import Assembly, JobQueue
    from ferryman.intake.items import Item


Priority = Annotated[int | None, option("--priority", "N", "Give jobs this priority.", min=0)]
Message = Annotated[str, option("--message", "TEXT", "Stored with the status.")]
AccessSize = Annotated[str | None, option("--access", "SIZE", "Use the access queue: small or large.")]


def hold(
    ids: Ids = None,
    collection: Collection = None,
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Put pending jobs or batches on hold, or a whole collection.

    Each pending job of a collection on hold becomes Held when its turn comes; jobs in progress continue.
    """
    with open_queue(queue) as job_queue:
        _refuse_no_target(ids, collection)
        if collection is not None:
            locked = job_queue.locks.lock("collection", collection)
            print_line(f"collection {collection}: {'on hold' if locked else 'is on hold already'}")
        apply_to_each(ids or [], lambda name: _set_status(load_item(job_queue, name), "Held", message))


def release(ids: Ids = None, collection: Collection = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Release held jobs or batches, or a whole collection.

    A released collection is not on hold any more, and all its held jobs are Pending again. `unlock collection NAME`
    only ends the hold.
    """
    from ferryman.intake import NodeInvalid
    from ferryman.intake.queue import effective_collection

    with open_queue(queue) as job_queue:
        _refuse_no_target(ids, collection)
        names = list(ids or [])
        damaged: dict[str, NodeInvalid] = {}

        def release_item(name: str) -> str:
            if name in damaged:
                raise damaged[name]
            return _release(load_item(job_queue, name))

        if collection is not None:
            job_queue.locks.unlock("collection", collection)
            held_jobs = []
            for name in job_queue.list_jobs("Held"):
                try:
                    if effective_collection(job_queue.tree, job_queue.load_job(name)) == collection:
                        held_jobs.append(name)
                except NodeInvalid as e:  # of which collection it is, is not known
                    damaged[name] = e
            print_line(
                f"collection {collection}: not on hold, "
                f"{len(held_jobs)} held {'job' if len(held_jobs) == 1 else 'jobs'}"
            )
            names += [*held_jobs, *damaged]
        apply_to_each(names, release_item)


def requeue(
    ids: Annotated[list[str], argument("ID...", "Failed jobs (jid…), or batches.")],
    priority: Priority = None,
    message: Message = "",
    manifest: Annotated[
        str | None, option("--manifest", "MANIFEST", "Its files are those of this manifest (a file, or a URL).")
    ] = None,
    changes: Annotated[
        list[str] | None,
        option(
            "--set",
            "KEY=VALUE",
            "Another value in its configuration: payload_url=…, digest=…; KEY= removes it. Repeatable.",
        ),
    ] = None,
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Try failed jobs again.

    Each continues in the state after the last one that succeeded, and its retries count one more. Of a batch, all
    failed jobs are requeued. The batch itself stays as it is; `report` notifies its submitter of what has changed.

    With --manifest or --set its configuration is corrected first: it starts again from Pending, and nothing that was
    fetched before is used. A manifest is that of one object, whatever its lines' local_id.
    """
    edits = _edits(manifest, changes)
    if edits and (len(ids) != 1 or ids[0].startswith("bid")):
        raise UsageError("--manifest and --set correct one job: give one id (jid…).")
    with open_queue(queue) as job_queue:

        def requeue_job(name: str) -> str:
            from ferryman.intake.service.payload import edit_configuration

            job = load_job(job_queue, name)
            edited = edit_configuration(job, edits) if edits else None
            crash.point("requeue.checked")
            job.requeue(message, edited, priority)
            crash.point("requeue.moved")
            return job.status

        names = []
        for name in ids:
            names += load_batch(job_queue, name).failed_jobs if name.startswith("bid") else [name]
        apply_to_each(names, requeue_job)


def report(
    ids: Annotated[list[str], argument("ID...", "Failed batches (bid…).")],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Notify the submitter of a failed batch of what has changed since the last report."""
    with open_queue(queue) as job_queue:
        apply_to_each(ids, lambda name: _set_status(load_batch(job_queue, name), "UpdateReporting", ""))


def delete(
    ids: Annotated[list[str], argument("ID...", "Jobs, batches, small/qid….")],
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Mark held and failed items as deleted; remove finished ones.

    Held and Failed become Deleted, and can still be shown. Completed and Deleted are removed; a batch with all its
    jobs. An item whose status is damaged becomes Deleted.
    """
    with open_queue(queue) as job_queue:

        def delete_item(name: str) -> str:
            item = find_item(job_queue, name)
            with _rewrite_if_damaged(item, "Deleted", message):
                if item.deletable:
                    item.delete()
                    return "removed"
                item.set_status("Deleted", message)
            return item.status

        apply_to_each(ids, delete_item)


def cleanup(queue: QueueUrl = None, json: Json = False, verbose: Verbose = False) -> None:
    """Remove all completed and deleted batches, with their jobs.

    A batch that is damaged, or has a job in progress, is named and kept; the command ends with 1 then.
    """
    with open_queue(queue) as job_queue:
        result = job_queue.cleanup()
    if json:
        print_json({"removed": result.removed, "passed_over": dict(result.passed_over)})
    else:
        for name in result.removed:
            print_line(f"{name}: removed")
        if not result.removed:
            print_note("There was nothing to remove.")
    for name, why in result.passed_over:
        print_error(f"{name} stays: {why}")
    if result.passed_over:
        raise typer.Exit(1)


def pause(access: AccessSize = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Pause the queue: nothing new is acquired anywhere. What is in progress continues."""
    kind = _pause_lock_of(access)
    with open_queue(queue) as job_queue:
        print_line(f"{kind}: {'paused' if job_queue.locks.lock(kind) else 'is paused already'}")


def resume(access: AccessSize = None, queue: QueueUrl = None, verbose: Verbose = False) -> None:
    """Resume a paused queue."""
    kind = _pause_lock_of(access)
    with open_queue(queue) as job_queue:
        was_paused = job_queue.locks.check(kind)
        job_queue.locks.unlock(kind)
        print_line(f"{kind}: {'resumed' if was_paused else 'was not paused'}")


def lock(
    kind: Annotated[str | None, argument("[KIND]", "collection, storage, ingest, access-small, access-large.")] = None,
    name: Annotated[str | None, argument("[NAME]", "Its name.")] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Lock a collection or an object; without KIND, list all locks.

    It stays locked until somebody unlocks it. Locks of inventory and local ids belong to the process that acquired
    them: they are listed, and cannot be acquired by this command.
    """
    from ferryman.intake.tree import KINDS

    with open_queue(queue) as job_queue:
        if kind is None:
            rows = [{"kind": one, "name": held} for one in KINDS for held in job_queue.locks.held(one)]
            if json:
                print_json(rows)
            elif rows:
                print_table(("kind", "name"), [[row["kind"], row["name"]] for row in rows])
            else:
                print_note("Nothing is locked.")
            return
        if kind in KINDS and not KINDS[kind].is_persistent:
            raise UsageError(
                f"lock {kind}: this lock belongs to the process that takes it, and would end with this command."
            )
        if not job_queue.locks.lock(kind, name):
            print_error(f"{kind} {name or ''}: is locked already")
            raise typer.Exit(1)
        print_line(f"{kind} {name or ''}: locked")


def _edits(manifest: str | None, changes: list[str] | None) -> dict[str, str]:
    """Return the changes to a job's configuration.

    Raises:
        UsageError: it is not KEY=VALUE, or the manifest cannot be fetched.
    """
    from ferryman.cli.intake.submit import payload_url

    edits = {} if manifest is None else {"payload_url": payload_url(manifest), "payload_type": "object-manifest"}
    for change in changes or ():
        key, sign, value = change.partition("=")
        if not sign:
            raise UsageError(f"--set {change}: give KEY=VALUE, or KEY= to remove it.")
        edits[key.strip()] = value
    return edits


@contextmanager
def _rewrite_if_damaged(item: Item, state: str, message: str) -> Iterator[None]:
    """Run a change of an item; if nodes of the item are damaged, rewrite them in this state instead."""
    from ferryman.intake import NodeInvalid

    try:
        yield
    except NodeInvalid as e:
        if not e.path.startswith(f"{item.path}/"):
            raise
        item.rewrite(state, message)


def _set_status(item: object, state: str, message: str) -> str:
    from ferryman.intake.items import Item

    assert isinstance(item, Item)
    item.set_status(state, message)
    return item.status


def _release(item: object) -> str:
    """Move a held item back to Pending. Other items are refused, since moving failed jobs to Pending is the task of
    ``requeue``."""
    from ferryman.intake import StateError
    from ferryman.intake.items import Item

    assert isinstance(item, Item)
    if item.status != "Held":
        raise StateError(item.status, "Pending")
    return _set_status(item, "Pending", "")


def _pause_lock_of(access: str | None) -> str:
    if access not in (None, "small", "large"):
        raise UsageError(f"--access {access}: choose small or large.")
    return "ingest" if access is None else f"access-{access}"


def _refuse_no_target(ids: list[str] | None, collection: str | None) -> None:
    if not ids and collection is None:
        raise UsageError("give ids of jobs or batches, or --collection NAME.")


# ``ferryman intake access``: ask for originals, and look what became of it.

POLL_S: Final = 0.5
"""Seconds between two checks of a request that the command waits for."""


def access(
    objects: Annotated[
        list[str] | None, argument("[OBJECT]...", "What to fetch: jobs (jid…), or local or primary ids.")
    ] = None,
    wait: Annotated[
        str | None, option("--wait", "TIME", "Wait until the bundle is ready, at most this long: 2m.")
    ] = None,
    small: Annotated[
        int,
        typer.Option(
            "--small", metavar="MIB", min=0, help="Largest bundle that goes to the queue of small ones (MiB)."
        ),
    ] = 256,
    state: StateFilter = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Request a zip of delivered originals; without OBJECT, list access requests.

    `ferryman intake serve PLAN` builds it, small ones separately from large ones, and keeps it for a week. The token
    says when it is expected, and later where it is.
    """
    longest_s = seconds("--wait", wait)
    with open_queue(queue) as job_queue:
        if not objects:
            _print_requests(job_queue, state, json)
            return
        from ferryman.intake.service.access import request_bundle

        request = request_bundle(job_queue, objects, time.time(), small_bytes=small * MIB)
        if longest_s is not None:
            _wait_until_ready(request, longest_s)
        token, status = request.token, request.status
        if json:
            print_json({"id": f"{request.size}/{request.id}", "status": status, "token": token})
            return
        print_line(f"{request.size}/{request.id}: {status}")
        if status == "Completed":
            print_line(f"{token['url']} until {token['expires']}")
        elif status == "Failed":
            print_line(request.message)
            raise typer.Exit(1)
        else:
            print_line(f"expected at {token['anticipated-availability-time']}")


def _wait_until_ready(request: Assembly, longest_s: float) -> None:
    deadline = time.monotonic() + longest_s
    while request.status in ("Pending", "Processing") and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def _print_requests(queue: JobQueue, state: str | None, json: bool) -> None:
    """Print access requests: small ones first, then large ones, each oldest first."""
    rows = []
    for size in ("small", "large"):
        for name in queue.list_assemblies(size, state):
            request = load_or_error(lambda n=name, s=size: queue.load_assembly(s, n))
            row: dict[str, Any] = {"id": f"{size}/{name}"}
            if isinstance(request, str):
                rows.append({**row, "status": None, "message": request})
                continue
            fields = {"status": request.status, "last_modified": request.last_modified, "message": request.message}
            rows.append({**row, **fields, "token": request.token})
    print_rows(rows, ("id", "status", "last_modified", "message"), json)


# ``ferryman intake unlock``, ``fail``, ``prioritize``: operator commands for items in progress or waiting.

ITEM_KINDS: Final = ("job", "batch", "access")
"""Kinds that may precede an id."""


def unlock(
    kind: Annotated[
        str,
        argument(
            "KIND|ID",
            "A job (jid…), a batch (bid…), an access request (small/qid…); or a kind of lock: as for lock, "
            "inventory, localid.",
        ),
    ],
    name: Annotated[str | None, argument("[NAME]", "Its name.")] = None,
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Revoke a lock, even from the process that holds it.

    A process that works on the job, batch or request cannot change it any more, and others can acquire it, in the same
    state. Use this when a process hangs; one that has died loses its locks by itself.
    """
    with open_queue(queue) as job_queue:
        if is_id(kind) and name is not None:
            raise UsageError(f"unlock {kind}: this is an id, which has no name ({name!r} was given).")
        if is_id(kind) or kind in ITEM_KINDS:
            id = kind if is_id(kind) else name or ""
            apply_to_each([id], lambda one: "unlocked" if load_item(job_queue, one).revoke() else "was not locked")
        else:
            _unlock_kind(job_queue, kind, name)


def _unlock_kind(queue: JobQueue, kind: str, name: str | None) -> None:
    was_locked = queue.locks.revoke(kind, name)
    print_line(f"{kind} {name or ''}: {'unlocked' if was_locked else 'was not locked'}")


def fail(
    ids: Annotated[list[str], argument("ID...", "Jobs, batches, small/qid….")],
    message: Message = "",
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Fail items that wait or are in progress: a job becomes Failed, and can be requeued or deleted.

    Its lock is revoked in the same change, so that a process that works on it cannot continue. The status of an item is
    rewritten if it is damaged.
    """
    with open_queue(queue) as job_queue:

        def fail_item(name: str) -> str:
            item, why = find_item(job_queue, name), message or "given up by an operator"
            with _rewrite_if_damaged(item, "Failed", why):
                item.fail(why, revoke=True)
            return item.status

        apply_to_each(ids, fail_item)


def prioritize(
    ids: Annotated[list[str], argument("ID...", "Jobs (jid…), or batches: their jobs.")],
    priority: Annotated[int, option("--priority", "N", "0 is most urgent.", min=0)],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Change the priority of waiting jobs. Jobs in progress keep theirs."""
    with open_queue(queue) as job_queue:

        def set_priority(name: str) -> str:
            load_job(job_queue, name).set_priority(priority)
            return f"priority {priority}"

        names = []
        for name in ids:
            names += load_batch(job_queue, name).processing_jobs if name.startswith("bid") else [name]
        apply_to_each(names, set_priority)


# ``ferryman intake audit``, ``dump``, ``restore``, ``import-legacy``: the queue as a whole.


def audit(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired safely.")] = False,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check every node of the queue against the layout.

    Each row is a finding. It is a warning if the node changed less than an hour ago, since it may be part of work in
    progress. The command ends with 1 if there are others that were not repaired.
    """
    with open_queue(queue) as job_queue:
        findings = job_queue.audit(repair=repair)
        unrepaired = [one for one in findings if one.level == "FAIL" and not one.text.endswith("Repaired.")]
    if json:
        print_json([one._asdict() for one in findings])
    elif findings:
        print_table(("level", "rule", "path", "what"), [[f.level, f.rule, f.path, f.text] for f in findings])
    else:
        print_note("Every node is as it should be.")
    if unrepaired:
        raise typer.Exit(1)


def dump(
    file: Annotated[Path | None, argument("[FILE]", "Output file. Default: standard output.")] = None,
    with_secrets: Annotated[
        bool,
        typer.Option(
            "--with-secrets", help="Keep passwords and tokens in URLs: only so can what needs them be fetched again."
        ),
    ] = False,
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Write the whole queue as JSON, in a file that only its owner can read.

    URLs are written without user, password and query, unless you ask for them. On ZooKeeper it is read while others
    change it: pause it first, for a dump of one moment.
    """
    from ferryman.intake.audit import dump_without_secrets
    from ferryman.storage.disk import write_private

    with open_queue(queue) as job_queue:
        data = job_queue.dump() if with_secrets else dump_without_secrets(job_queue.dump())
    if file is None:
        print_json(data)
        return
    scratch = file.with_name(f"{file.name}.part")
    write_private(scratch, json_text.dumps(data, indent=1))
    scratch.replace(file)
    print_line(f"{file}: {len(data['nodes'])} nodes")


def restore(
    file: Annotated[Path, argument("FILE", "A dump.")],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Create the nodes of a dump in an empty queue.

    Ids that were issued before are not issued again. If the command is killed, the queue stays paused: run the same
    command again.
    """
    try:
        data = json_text.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{file}: this is not JSON ({e}). Give a file that `ferryman intake dump` wrote.") from None
    with open_queue(queue) as job_queue:
        job_queue.restore(data)
    print_line(f"{len(data['nodes'])} nodes restored")


def import_legacy(
    source: Annotated[str, argument("SOURCE", "A folder with one file per record, or zookeeper://HOST/PATH.")],
    files: Annotated[
        Path | None,
        option(
            "--files",
            "DIR",
            "Queue folder of the older service, with the files that records name: DIR/BATCH/JOB/FILENAME.",
        ),
    ] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Import records of the older queue (mrtQ-…).

    Their payloads are JSON, XML, or Java's properties, as text or serialized; of what Java serialized nothing else is
    read, and no code is run.

    Ingest's properties get their names here: profile, type, filename, responseForm, objectID, localID, digestType
    and digestValue, and creator, title and date as metadata. Others keep theirs. The manifestURL of inventory's records
    is the manifest of one object.

    Each becomes a job in the state that it was in, of the batch that it names. What cannot be read is named and
    skipped. What has work left but no file that can be found becomes a Failed job, and is named with the reason. The
    command ends with 1 if there is any of these. Repeated, it imports only what is not there yet, and gives
    Failed jobs the files that it finds now. Serve the queue with --allow-files DIR, so that it may read them.
    """
    from ferryman.intake import legacy
    from ferryman.intake.service.payload import check_configuration

    if files is not None and not files.is_dir():
        raise UsageError(f"--files {files}: there is no such folder.")
    with open_queue(queue) as job_queue:
        result = legacy.import_legacy(
            job_queue, legacy.read_records(source), files=files and files.absolute(), check=check_configuration
        )
    if json:
        fields = {name: dict(each) for name, each in result._asdict().items() if name != "known"}
        print_json({**fields, "known": result.known})
    else:
        for record, job in result.jobs:
            print_line(f"{record}: {job}")
        print_note(
            f"{len(result.jobs)} imported, {len(result.known)} were already there, {len(result.skipped)} skipped"
        )
    for _, why in result.skipped:
        print_error(why)
    for record, why in result.cannot_be_served:
        print_error(f"{record}: imported as Failed: {why}")
    if result.skipped or result.cannot_be_served:
        raise typer.Exit(1)
