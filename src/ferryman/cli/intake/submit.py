"""``ferryman intake submit``: submits a batch."""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

import typer

from ferryman.cli.intake.options import QueueUrl, open_queue
from ferryman.cli.options import Json, Verbose, argument, option, seconds
from ferryman.cli.terminal import print_json, print_line, print_note
from ferryman.errors import UsageError
from ferryman.net.urls import split

if TYPE_CHECKING:
    from ferryman.intake import Batch


class Payload(enum.StrEnum):
    """Kinds of payload; the last three are other tools' names of manifests."""

    FILE = "file"
    CONTAINER = "container"
    MANIFEST = "manifest"
    OBJECT_MANIFEST = "object-manifest"
    MANIFEST_OF_MANIFESTS = "manifest-of-manifests"
    MANIFEST_OF_CONTAINERS = "manifest-of-containers"
    BATCH_MANIFEST = "batch-manifest"
    SINGLE_FILE_BATCH_MANIFEST = "single-file-batch-manifest"
    CONTAINER_BATCH_MANIFEST = "container-batch-manifest"


POLL_S: Final = 0.5
"""Seconds between two checks of a batch that the command waits for."""

KIND_BY_SUFFIX = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz"), Payload.CONTAINER),
    **dict.fromkeys((".csv", ".jsonl", ".ndjson", ".checkm"), Payload.MANIFEST),
}


PayloadArgument = Annotated[str, argument("PAYLOAD", "A file, or a URL.")]
KindOption = Annotated[
    Payload | None,
    typer.Option("--type", show_default=False, help="What it is. Default: by its file extension."),
]
Collection = Annotated[
    str | None, option("--collection", "NAME", "The collection it is for (profile_name): one can be put on hold.")
]
Submitter = Annotated[str | None, option("--submitter", "NAME", "Who submits it.")]
BatchId = Annotated[str | None, option("--batch-id", "ID", "A batchID of your own: submitted twice, it is one batch.")]
LocalIds = Annotated[list[str] | None, option("--local-id", "ID", "Your own id of the object. Repeatable.")]
PrimaryId = Annotated[str | None, option("--primary-id", "ID", "The object's permanent id: an ARK.")]
Mode = Annotated[
    str | None, option("--mode", "MODE", "Kept for tools that read it: add, update. Default: add, in the job.")
]
SubmissionMode = Annotated[str | None, option("--submission-mode", "MODE", "Kept for tools that read it.")]
ResponseType = Annotated[str | None, option("--response-type", "TYPE", "Kept for tools that read it.")]
ErcWho = Annotated[str | None, option("--erc-who", "TEXT", "Who made the object.")]
ErcWhat = Annotated[str | None, option("--erc-what", "TEXT", "What it is called; --title is the same.")]
ErcWhen = Annotated[str | None, option("--erc-when", "TEXT", "When it was made.")]
ErcWhere = Annotated[str | None, option("--erc-where", "TEXT", "Where it is.")]
Title = Annotated[str | None, option("--title", "TEXT", "What it is about (erc_what).")]
Priority = Annotated[int | None, option("--priority", "N", "Priority of its jobs; 0 comes first.", min=0)]
Digest = Annotated[
    str | None, option("--digest", "sha256:HEX", "Digest that the payload must have, else it is rejected. md5, sha1, …")
]
ResponseUrl = Annotated[
    str | None, option("--response-url", "URL", "Each completed job, and the report, is posted there.")
]
Wait = Annotated[
    str | None,
    option("--wait", "TIME", "Wait for the report, at most this long: 60, 60s, 2h. Ends with 3 if a job failed."),
]


def submit(
    payload: PayloadArgument,
    kind: KindOption = None,
    collection: Collection = None,
    submitter: Submitter = None,
    batch_id: BatchId = None,
    local_id: LocalIds = None,
    primary_id: PrimaryId = None,
    mode: Mode = None,
    submission_mode: SubmissionMode = None,
    response_type: ResponseType = None,
    erc_who: ErcWho = None,
    erc_what: ErcWhat = None,
    erc_when: ErcWhen = None,
    erc_where: ErcWhere = None,
    title: Title = None,
    priority: Priority = None,
    digest: Digest = None,
    response_url: ResponseUrl = None,
    wait: Wait = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Submit a batch.

    A file, a container (zip, tar), a manifest (a list of URLs, CSV or JSON lines), or a manifest of manifests or of
    containers. The batch waits in the queue until `ferryman intake serve PLAN` acquires it; its id is printed.

    The lines of a manifest that have one local_id become one job, and a line without any one of its own; of an
    object-manifest all lines are one object.
    """
    from ferryman.intake.nodes import format_time

    longest_s = seconds("--wait", wait)
    _refuse_bad_names(collection, local_id, primary_id)
    _refuse_bad_response_url(response_url)
    url = payload_url(payload)
    name = Path(unquote(split(url)[1].path)).name
    payload_type = (kind or KIND_BY_SUFFIX.get(Path(name).suffix.lower(), Payload.FILE)).value
    fields = {
        "profile_name": collection,
        "submitter": submitter,
        "submissionDate": format_time(time.time()),
        "payload_url": url,
        "payload_type": payload_type,
        "type": kind,
        "payload_file_name": name,
        "batchID": batch_id,
        "local_id": local_id or None,
        "primary_id": primary_id,
        "mode": mode,
        "submission_mode": submission_mode,
        "response_type": response_type,
        "erc_who": erc_who,
        "erc_what": erc_what if erc_what is not None else title,
        "erc_when": erc_when,
        "erc_where": erc_where,
        "priority": priority,
        "digest": digest,
        "response_url": response_url,
    }
    submission = {key: value for key, value in fields.items() if value is not None}
    with open_queue(queue) as job_queue:
        batch = job_queue.create_batch(submission)
        if not json:
            print_line(batch.id)
        _note_earlier(batch, submission)
        if longest_s is not None:
            _wait_until_reported(batch, longest_s)
        if json:
            print_json({"id": batch.id, "status": batch.status, "message": batch.message, "submission": submission})
        elif longest_s is not None:
            print_line(f"{batch.status}: {batch.message}")
        if longest_s is not None:
            raise typer.Exit(EXIT_CODES.get(batch.status, EXIT_UNFINISHED))


def _note_earlier(batch: Batch, submission: dict[str, Any]) -> None:
    """Say what became of the batch if it was submitted before: its payload may have been corrected since."""
    if batch.submission.get("submissionDate") == submission["submissionDate"]:
        return
    status, message = batch.status, batch.message
    print_note(
        f"{batch.id} was submitted before, and is {status}{': ' if message else ''}{message.rstrip('.')}. Nothing was "
        "submitted. If its payload is another one now, give another --batch-id."
    )


def _check_url(url: str) -> str:
    from ferryman.intake.service.errors import CorruptSubmission
    from ferryman.intake.service.manifest import check_url

    try:
        return check_url(url)
    except CorruptSubmission as e:
        raise UsageError(f"submit: {e} Nothing was submitted.") from None


def _refuse_bad_response_url(url: str | None) -> None:
    from ferryman.intake.service.errors import CorruptSubmission
    from ferryman.intake.service.manifest import check_response_url

    try:
        if url is not None:
            check_response_url(url)
    except CorruptSubmission as e:
        raise UsageError(f"submit: {e} Nothing was submitted.") from None


def _refuse_bad_names(collection: str | None, local_ids: list[str] | None, primary_id: str | None) -> None:
    from ferryman.intake.service.errors import CorruptSubmission
    from ferryman.intake.service.payload import check_name

    try:
        names = [("collection", collection), ("primary_id", primary_id)]
        for kind, name in (*names, *(("local_id", name) for name in local_ids or [])):
            if name is not None:
                check_name(kind, name)
    except CorruptSubmission as e:
        raise UsageError(f"submit: {e}") from None


EXIT_CODES: Final = {"Completed": 0, "Failed": 3, "Deleted": 3}
"""Final state of a batch -> exit code, with the meanings of those of `run`."""

EXIT_UNFINISHED: Final = 4


def _wait_until_reported(batch: Batch, longest_s: float) -> None:
    """Wait until the batch is reported or given up, at most ``longest_s`` seconds."""
    deadline = time.monotonic() + longest_s
    while batch.status not in EXIT_CODES and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def payload_url(payload: str) -> str:
    """Return the payload's URL; a path becomes a ``file:`` URL.

    Raises:
        UsageError: there is no such file, or the URL cannot be fetched by ``serve``.
    """
    if "://" in payload or payload.startswith("file:"):
        return _check_url(payload)
    path = Path(payload)
    if not path.is_file():
        raise UsageError(f"{payload}: there is no such file. Give a file, or a URL.")
    return path.resolve().as_uri()
