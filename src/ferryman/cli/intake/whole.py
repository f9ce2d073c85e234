"""``ferryman intake audit``, ``dump``, ``restore``, ``import-legacy``: the queue as a whole."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from ferryman.cli.intake.options import QueueUrl, opened
from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import error, json_line, note, say, table
from ferryman.errors import UsageError


def audit(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired safely.")] = False,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Hold every node of the queue against its layout.

    A row a finding. What was changed less than an hour ago is a warning: it may be somebody's work of this moment. The
    command ends with 1 if there are others, and they were not repaired.
    """
    with opened(queue) as found:
        findings = found.audit(repair=repair)
        left = [one for one in findings if one.level == "FAIL" and not one.text.endswith("Repaired.")]
    if json:
        json_line([one._asdict() for one in findings])
    elif findings:
        table(("level", "rule", "path", "what"), [[f.level, f.rule, f.path, f.text] for f in findings])
    else:
        note("Every node is as it should be.")
    if left:
        raise typer.Exit(1)


def dump(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", show_default=False, help="Output file. Default: standard output.")
    ] = None,
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
    from ferryman.intake.redaction import dump_without_secrets
    from ferryman.storage.disk import write_private

    with opened(queue) as found:
        data = found.dump() if with_secrets else dump_without_secrets(found.dump())
    if file is None:
        json_line(data)
        return
    scratch = file.with_name(f"{file.name}.part")
    write_private(scratch, json_text.dumps(data, indent=1))
    scratch.replace(file)
    say(f"{file}: {len(data['nodes'])} nodes")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A dump.")],
    queue: QueueUrl = None,
    verbose: Verbose = False,
) -> None:
    """Make the nodes of a dump in an empty queue.

    Ids that were given before are not given again. Killed in the middle, it leaves the queue paused: type the same
    again.
    """
    try:
        data = json_text.loads(file.read_text("utf-8"))
    except ValueError as e:
        raise UsageError(f"{file}: this is not JSON ({e}). Give a file that `ferryman intake dump` wrote.") from None
    with opened(queue) as found:
        found.restore(data)
    say(f"{len(data['nodes'])} nodes restored")


def import_legacy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", show_default=False, help="A folder with one file per record, or zookeeper://HOST/PATH."
        ),
    ],
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Take over records of the older queue (mrtQ-…).

    Their payloads are JSON, XML, or Java's properties, as text or serialized; of what Java serialized nothing else is
    read, and no code is run.

    Ingest's properties get their names here: profile, type, filename, responseForm, objectID, localID, digestType
    and digestValue, and creator, title and date as metadata. Others keep theirs.

    Each becomes a job in the state that it was in, of the batch that it names. What cannot be read is named and
    skipped; the command ends with 1 then. Typed again, it takes over only what is not there yet.
    """
    from ferryman.intake import legacy

    with opened(queue) as found:
        done = legacy.import_legacy(found, legacy.records_at(source))
    if json:
        json_line({"jobs": dict(done.jobs), "known": done.known, "skipped": dict(done.skipped)})
    else:
        for record, job in done.jobs:
            say(f"{record}: {job}")
        note(f"{len(done.jobs)} imported, {len(done.known)} were already there, {len(done.skipped)} skipped")
    for _, why in done.skipped:
        error(why)
    if done.skipped:
        raise typer.Exit(1)
