"""``ferryman intake submit``: hand in a batch."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from ferryman.cli.intake.options import QueueUrl, opened
from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import json_line, say
from ferryman.errors import UsageError


class Payload(enum.StrEnum):
    """What is handed in."""

    FILE = "file"
    CONTAINER = "container"
    MANIFEST = "manifest"
    BATCH_MANIFEST = "batch-manifest"


BY_ENDING = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz"), Payload.CONTAINER),
    **dict.fromkeys((".csv", ".jsonl", ".ndjson", ".checkm"), Payload.MANIFEST),
}


def _option(name: str, metavar: str, text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(name, metavar=metavar, show_default=False, help=text)
    return found


def submit(
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", show_default=False, help="A file, or a URL.")],
    kind: Annotated[
        Payload | None,
        typer.Option("--type", show_default=False, help="What it is. Default: by the ending of its name."),
    ] = None,
    collection: Annotated[
        str | None, _option("--collection", "NAME", "The collection it is for (profile_name): one can be put on hold.")
    ] = None,
    submitter: Annotated[str | None, _option("--submitter", "NAME", "Who hands it in.")] = None,
    batch_id: Annotated[
        str | None, _option("--batch-id", "ID", "A batchID of your own: handed in twice, it is one batch.")
    ] = None,
    local_id: Annotated[
        list[str] | None, _option("--local-id", "ID", "Your own id of the object. May be repeated.")
    ] = None,
    title: Annotated[str | None, _option("--title", "TEXT", "What it is about (erc_what).")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", min=0, show_default=False, help="Of its jobs. 0 is first.")
    ] = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Hand in a batch.

    A file, a container (zip, tar), a manifest (a list of URLs, CSV or JSON lines), or a manifest of manifests. The
    batch waits in the queue until a consumer takes it up; what is printed is its id.
    """
    url = _url(payload)
    name = Path(unquote(urlsplit(url).path)).name
    given = {
        "profile_name": collection,
        "submitter": submitter,
        "payload_url": url,
        "payload_type": (kind or BY_ENDING.get(Path(name).suffix.lower(), Payload.FILE)).value,
        "payload_file_name": name,
        "batchID": batch_id,
        "local_id": local_id or None,
        "erc_what": title,
        "priority": priority,
    }
    submission = {key: value for key, value in given.items() if value is not None}
    with opened(queue) as found:
        batch = found.create_batch(submission)
        if json:
            json_line({"id": batch.id, "status": batch.status, "submission": submission})
        else:
            say(batch.id)


def _url(payload: str) -> str:
    """Where it is; a path becomes a file's URL.

    Raises:
        UsageError: there is no such file.
    """
    if urlsplit(payload).scheme in ("http", "https", "file", "s3", "ftp"):
        return payload
    path = Path(payload)
    if not path.is_file():
        raise UsageError(f"{payload}: there is no such file. Give a file, or a URL.")
    return path.resolve().as_uri()
