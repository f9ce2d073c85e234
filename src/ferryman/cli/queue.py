"""``ferryman queue``: look at durable queues, append to them, move their readers, make them smaller."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import Json, Verbose, seconds
from ferryman.cli.terminal import json_line, json_lines, say, table, when
from ferryman.errors import UsageError
from ferryman.observe import plural

if TYPE_CHECKING:
    from ferryman.queues import Message, Queue

app = typer.Typer(
    name="queue",
    help="Durable queues: list, show, append, read, rewind, trim, forget, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The queue's name.")]
Reader = Annotated[str, typer.Argument(metavar="READER", show_default=False, help="As `queue show` lists it.")]
Queues = Annotated[
    str, typer.Option("--queues", metavar="DIR", help="The folder of queues, or its URL, such as s3://bucket/queues.")
]

HERE = "queues"


@app.command("list")
def list_queues(
    queues: Queues = HERE,
    unused: Annotated[bool, typer.Option("--unused", help="Only queues without registered readers.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the queues of a folder."""
    from ferryman.queues import Queue

    found = [about(Queue(name, queues)) for name in (Queue.unused(queues) if unused else Queue.all(queues))]
    if json:
        json_line(found)
    elif not found:
        say(f"no queues in {queues}" if not unused else f"no unused queues in {queues}")
    else:
        table(
            ["queue", "first", "last", "kept", "readers"],
            [[q["queue"], q["first_index"], q["last_index"], q["kept"], ", ".join(q["readers"])] for q in found],
        )


@app.command()
def show(name: Name, queues: Queues = HERE, json: Json = False, verbose: Verbose = False) -> None:
    """Show a queue: its indices, its readers and how far each of them is."""
    said = about(the_queue(name, queues))
    if json:
        json_line(said)
        return
    say(f"queue {name}, id {said['id']}")
    numbers = f"{said['first_index']} to {said['last_index']}"
    say(f"{plural(said['kept'], 'message', 'messages')} kept, {numbers}" if said["kept"] else "empty")
    if said["readers"]:
        behind = said["last_index"] + 1
        table(
            ["reader", "next", "unread"],
            [[reader, at, behind - max(at, said["first_index"])] for reader, at in said["readers"].items()],
        )
    else:
        say("no registered readers")


@app.command()
def append(
    name: Name,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", show_default=False, help="One JSON object a line. Default: stdin.")
    ] = "-",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", show_default=False, help="Append once, however often this is repeated."),
    ] = None,
    queues: Queues = HERE,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Append messages: all of the lines, or none.

    Makes the queue if there is none. With a key that was given before, nothing is appended, and the indices of then
    are printed.
    """
    from ferryman.queues import Queue

    indices = Queue(name, queues).append(list(objects(file)), key)
    if json:
        json_line(indices)
    elif not indices:
        say("nothing to append")
    else:
        say(f"{indices[0]} to {indices[-1]}" if len(indices) > 1 else indices[0])


@app.command()
def read(
    name: Name,
    start: Annotated[int, typer.Option("--start", metavar="N", help="The first index.")] = 1,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many messages.")] = 100,
    tailer: Annotated[
        str | None,
        typer.Option(
            "--tailer",
            metavar="READER",
            show_default=False,
            help="Read on where this reader is, and move it. It is registered if it is not.",
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", show_default=False, help="With --tailer: wait so long for one."),
    ] = None,
    queues: Queues = HERE,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print messages. Without --tailer nothing is moved."""
    wait_s = seconds("--wait", wait) or 0.0
    queue = the_queue(name, queues)
    found = queue.tailer(tailer).read_many(limit, wait_s) if tailer else queue.read(start, limit)
    if json:
        json_lines(map(plain, found))
    elif found:
        rows = [[m.index, when(m.created.isoformat()), json_text.dumps(m.body, ensure_ascii=False)] for m in found]
        table(["index", "appended", "message"], rows)
    else:
        say("no messages")


@app.command()
def rewind(
    name: Name,
    reader: Reader,
    to: Annotated[
        int | None, typer.Option("--to", metavar="N", show_default=False, help="This message comes next.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Behind the last message.")] = False,
    queues: Queues = HERE,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Move a reader: to the first message that is kept, or where you say."""
    if to is not None and end:
        raise UsageError("--to and --end: give one of them.")
    queue = the_reader(name, reader, queues)
    tailer = queue.tailer(reader)
    if to is not None:
        tailer.to(to)
    else:
        tailer.to_end() if end else tailer.to_start()
    if json:
        json_line({"queue": name, "reader": reader, "position": tailer.position})
    else:
        say(f"{reader}: message {tailer.position} comes next")


@app.command()
def trim(
    name: Name,
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", show_default=False, help="Keep what is younger: 10d, 12h, 0s.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Also what registered readers have not read.")] = False,
    queues: Queues = HERE,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove the oldest messages, by age. What a registered reader has not read stays."""
    queue = the_queue(name, queues)
    removed = queue.trim(keep, force)
    if json:
        json_line({"queue": name, "removed": removed, "first_index": queue.first_index})
    else:
        told = "1 message" if removed == 1 else f"{removed} messages"
        say(f"{told} removed; indices from {queue.first_index} on are kept")


@app.command()
def forget(name: Name, reader: Reader, queues: Queues = HERE, json: Json = False, verbose: Verbose = False) -> None:
    """Remove a reader: nothing is kept for it any more."""
    the_reader(name, reader, queues).forget(reader)
    if json:
        json_line({"queue": name, "forgotten": reader})
    else:
        say(f"{reader} is not a reader of {name} any more")


@app.command()
def delete(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also if it has registered readers.")] = False,
    queues: Queues = HERE,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Delete a queue with its messages and readers. This cannot be undone."""
    queue = the_queue(name, queues)
    if (readers := queue.readers()) and not force:
        raise UsageError(f"{name} has readers: {', '.join(readers)}. Nothing was deleted; --force deletes it.")
    queue.delete()
    if json:
        json_line({"queue": name, "deleted": True})
    else:
        say(f"{name} is deleted")


def the_queue(name: str, queues: str) -> Queue:
    """The queue of this name.

    Raises:
        UsageError: there is none; names those that there are.
    """
    from ferryman.queues import Queue

    queue = Queue(name, queues)
    if not queue.exists:
        there = ", ".join(Queue.all(queues)) or "none"
        raise UsageError(f"There is no queue {name} in {queues} (there: {there}). Give another --queues or name.")
    return queue


def the_reader(name: str, reader: str, queues: str) -> Queue:
    """The queue, if it has this reader.

    Raises:
        UsageError: it has not; names those that it has.
    """
    queue = the_queue(name, queues)
    if reader not in (readers := queue.readers()):
        raise UsageError(f"{name} has no reader {reader} (there: {', '.join(readers) or 'none'}).")
    return queue


def about(queue: Queue) -> dict[str, Any]:
    """What is told of a queue."""
    first, last = queue.first_index, queue.last_index
    indices = {"first_index": first, "last_index": last, "kept": last - first + 1}
    return {"queue": queue.name, "id": queue.id, **indices, "readers": queue.readers()}


def plain(message: Message) -> dict[str, Any]:
    """A message for a script."""
    created = message.created.isoformat()
    return {"index": message.index, "created": created, "message": message.body, "meta": message.meta}


def objects(file: str) -> Iterator[Any]:
    """The JSON of each line that is not blank.

    Raises:
        UsageError: a line is not JSON; says which.
    """
    with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield json_text.loads(line)
                except ValueError as e:
                    raise UsageError(f"{file}: line {number} is not JSON ({e}). Nothing was appended.") from None
