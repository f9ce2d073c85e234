"""``ferryman queue``: look at durable queues, append to them, move their readers, make them smaller."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import (
    Json,
    PlanSpec,
    SourceFilter,
    StateDir,
    Verbose,
    Why,
    argument,
    load_with_state,
    option,
    seconds,
)
from ferryman.cli.terminal import format_time, next_command, print_json, print_json_array, print_line, print_table
from ferryman.document import decode_json
from ferryman.errors import UsageError
from ferryman.limits import plural

if TYPE_CHECKING:
    from ferryman.queues import Message, Queue

app = typer.Typer(
    name="queue",
    help="Durable queues: list, show, append, read, rewind, skip, trim, forget, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, argument("NAME", "The queue's name.")]
Reader = Annotated[str, argument("READER", "As `queue show` lists it.")]
Queues = Annotated[
    str, typer.Option("--queues", metavar="DIR", help="The folder of queues, or its URL, such as s3://bucket/queues.")
]

DEFAULT_FOLDER = "queues"


@app.command("list")
def list_queues(
    queues: Queues = DEFAULT_FOLDER,
    unused: Annotated[bool, typer.Option("--unused", help="Only queues without registered readers.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the queues of a folder."""
    from ferryman.queues import Queue

    descriptions = [describe(Queue(name, queues)) for name in (Queue.unused(queues) if unused else Queue.all(queues))]
    if json:
        print_json(descriptions)
    elif not descriptions:
        print_line(f"no queues in {queues}" if not unused else f"no unused queues in {queues}")
    else:
        print_table(
            ["queue", "first", "last", "kept", "readers"],
            [[q["queue"], q["first_index"], q["last_index"], q["kept"], ", ".join(q["readers"])] for q in descriptions],
        )


@app.command()
def show(name: Name, queues: Queues = DEFAULT_FOLDER, json: Json = False, verbose: Verbose = False) -> None:
    """Show a queue: its indices, its readers and how far each of them is."""
    description = describe(find_queue(name, queues))
    if json:
        print_json(description)
        return
    print_line(f"queue {name}, id {description['id']}")
    kept, first, last = description["kept"], description["first_index"], description["last_index"]
    print_line(f"{plural(kept, 'message', 'messages')} kept, {first} to {last}" if kept else "empty")
    if description["readers"]:
        print_table(
            ["reader", "next", "unread"],
            [[reader, at, last + 1 - max(at, first)] for reader, at in description["readers"].items()],
        )
    else:
        print_line("no registered readers")


@app.command()
def append(
    name: Name,
    file: Annotated[str, argument("[FILE]", "One JSON object a line. Default: stdin.")] = "-",
    key: Annotated[str | None, option("--key", "KEY", "Append once, however often this is repeated.")] = None,
    queues: Queues = DEFAULT_FOLDER,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Append messages: all of the lines, or none.

    Makes the queue if there is none. With a key that was given before, nothing is appended, and the indices of then
    are printed.
    """
    from ferryman.queues import Queue

    indices = Queue(name, queues).append(list(read_json_lines(file)), key)
    if json:
        print_json(indices)
    elif not indices:
        print_line("nothing to append")
    else:
        print_line(f"{indices[0]} to {indices[-1]}" if len(indices) > 1 else indices[0])


@app.command()
def read(
    name: Name,
    start: Annotated[int, typer.Option("--start", metavar="N", help="The first index.")] = 1,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many messages.")] = 100,
    tailer: Annotated[
        str | None,
        option("--tailer", "READER", "Read on where this reader is, and move it. It is registered if it is not."),
    ] = None,
    wait: Annotated[str | None, option("--wait", "TIME", "With --tailer: wait so long for one.")] = None,
    queues: Queues = DEFAULT_FOLDER,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print messages. Without --tailer nothing is moved."""
    wait_s = seconds("--wait", wait) or 0.0
    queue = find_queue(name, queues)
    messages = queue.tailer(tailer).read_many(limit, wait_s) if tailer else queue.read(start, limit)
    if json:
        print_json_array(map(message_row, messages))
    elif messages:
        rows = [
            [m.index, format_time(m.created.isoformat()), json_text.dumps(m.body, ensure_ascii=False)] for m in messages
        ]
        print_table(["index", "appended", "message"], rows)
    else:
        print_line("no messages")


@app.command()
def rewind(
    name: Name,
    reader: Reader,
    to: Annotated[int | None, option("--to", "N", "This message comes next.")] = None,
    end: Annotated[bool, typer.Option("--end", help="Behind the last message.")] = False,
    queues: Queues = DEFAULT_FOLDER,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Move a reader: to the first message that is kept, or where you say."""
    if to is not None and end:
        raise UsageError("--to and --end: give one of them.")
    queue = find_queue_of_reader(name, reader, queues)
    tailer = queue.tailer(reader)
    if to is not None:
        tailer.to(to)
    else:
        tailer.to_end() if end else tailer.to_start()
    if json:
        print_json({"queue": name, "reader": reader, "position": tailer.position})
    else:
        print_line(f"{reader}: message {tailer.position} comes next")


@app.command()
def skip(
    plan: PlanSpec,
    document: Annotated[str | None, option("--doc", "ID", "Only this message.")] = None,
    source: SourceFilter = None,
    why: Why = "",
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Let a plan pass the message that it stops before.

    The next run tries the message once more. If it fails again, it counts as failed or rejected, and the plan goes on
    behind it; `ferryman retry PLAN` may repeat it later. `ferryman status PLAN` says where a plan has stopped. While a
    run holds the state, the command is queued, and that run applies it.
    """
    from ferryman.operations import skip

    loaded, root = load_with_state(plan, state)
    done = skip(loaded, state=root.parent, document=document, source=source, why=why)
    again = next_command("run", plan, state=state)
    if json:
        print_json({"plan": loaded.name, "skipped": done.count, "queued": done.queued})
    elif done.queued:
        print_line(f"Queued: the current run, or the next one, will apply it: {again}")
    elif not done.count:
        print_line("The plan has not stopped before a message that matches: nothing was changed.")
    else:
        print_line(f"{plural(done.count, 'message', 'messages')} will not stop the plan. Next: {again}")


@app.command()
def trim(
    name: Name,
    keep: Annotated[str, option("--keep", "TIME", "Keep what is younger: 10d, 12h, 0s.")],
    force: Annotated[bool, typer.Option("--force", help="Also what registered readers have not read.")] = False,
    queues: Queues = DEFAULT_FOLDER,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove the oldest messages, by age. What a registered reader has not read stays."""
    queue = find_queue(name, queues)
    removed = queue.trim(keep, force)
    if json:
        print_json({"queue": name, "removed": removed, "first_index": queue.first_index})
    else:
        messages = "1 message" if removed == 1 else f"{removed} messages"
        print_line(f"{messages} removed; indices from {queue.first_index} on are kept")


@app.command()
def forget(
    name: Name, reader: Reader, queues: Queues = DEFAULT_FOLDER, json: Json = False, verbose: Verbose = False
) -> None:
    """Remove a reader: nothing is kept for it any more."""
    find_queue_of_reader(name, reader, queues).forget(reader)
    if json:
        print_json({"queue": name, "forgotten": reader})
    else:
        print_line(f"{reader} is not a reader of {name} any more")


@app.command()
def delete(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also if it has registered readers.")] = False,
    queues: Queues = DEFAULT_FOLDER,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Delete a queue with its messages and readers. This cannot be undone."""
    queue = find_queue(name, queues)
    if (readers := queue.readers()) and not force:
        raise UsageError(f"{name} has readers: {', '.join(readers)}. Nothing was deleted; --force deletes it.")
    queue.delete()
    if json:
        print_json({"queue": name, "deleted": True})
    else:
        print_line(f"{name} is deleted")


def find_queue(name: str, queues: str) -> Queue:
    """Return the queue of this name.

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    from ferryman.queues import Queue

    queue = Queue(name, queues)
    if not queue.exists:
        existing = ", ".join(Queue.all(queues)) or "none"
        raise UsageError(f"There is no queue {name} in {queues} (there: {existing}). Give another --queues or name.")
    return queue


def find_queue_of_reader(name: str, reader: str, queues: str) -> Queue:
    """Return the queue, which has this reader.

    Raises:
        UsageError: it has no such reader; the message lists its readers.
    """
    queue = find_queue(name, queues)
    if reader not in (readers := queue.readers()):
        raise UsageError(f"{name} has no reader {reader} (there: {', '.join(readers) or 'none'}).")
    return queue


def describe(queue: Queue) -> dict[str, Any]:
    """Return the facts about a queue that ``queue show --json`` prints."""
    first, last = queue.first_index, queue.last_index
    indices = {"first_index": first, "last_index": last, "kept": last - first + 1}
    return {"queue": queue.name, "id": queue.id, **indices, "readers": queue.readers()}


def message_row(message: Message) -> dict[str, Any]:
    """Return a message as ``queue read --json`` prints it."""
    created = message.created.isoformat()
    return {"index": message.index, "created": created, "message": message.body, "meta": message.meta}


def read_json_lines(file: str) -> Iterator[Any]:
    """Yield the JSON value of each line that is not blank.

    Raises:
        UsageError: a line is not JSON; the message gives its number.
    """
    with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield decode_json(line)
                except ValueError as e:
                    raise UsageError(f"{file}: line {number} is not JSON ({e}). Nothing was appended.") from None
