"""``ferryman intake access``: ask for originals, and look what became of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman.cli.intake.listing import OfState, or_error, told_rows
from ferryman.cli.intake.options import QueueUrl, opened
from ferryman.cli.options import Json, Verbose, seconds
from ferryman.cli.terminal import json_line, say
from ferryman.limits import MIB

if TYPE_CHECKING:
    from ferryman.intake import Assembly, Queue

LOOK_S: Final = 0.5
"""Between two looks at a request that is waited for."""


def access(
    objects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OBJECT]...", show_default=False, help="What to fetch: jobs (jid…), or local or primary ids."
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait", metavar="TIME", show_default=False, help="Wait until the bundle is ready, at most this long: 2m."
        ),
    ] = None,
    small: Annotated[
        int,
        typer.Option(
            "--small", metavar="MIB", min=0, help="Largest bundle that goes to the queue of small ones (MiB)."
        ),
    ] = 256,
    state: OfState = None,
    queue: QueueUrl = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Ask for a zip of delivered originals; without OBJECT, list access requests.

    It is put together by `ferryman intake serve`, small ones apart from large ones, and lies ready for a week. The
    token says when it is expected, and then where it is.
    """
    longest = seconds("--wait", wait)
    with opened(queue) as found:
        if not objects:
            _list(found, state, json)
            return
        from ferryman.service.bundles import ask

        request = ask(found, objects, time.time(), small_bytes=small * MIB)
        if longest is not None:
            _wait(request, longest)
        token, status = request.token, request.status
        if json:
            json_line({"id": f"{request.size}/{request.id}", "status": status, "token": token})
            return
        say(f"{request.size}/{request.id}: {status}")
        if status == "Completed":
            say(f"{token['url']} until {token['expires']}")
        elif status == "Failed":
            say(request.message)
            raise typer.Exit(1)
        else:
            say(f"expected at {token['anticipated-availability-time']}")


def _wait(request: Assembly, longest_s: float) -> None:
    give_up = time.monotonic() + longest_s
    while request.status in ("Pending", "Processing") and (left := give_up - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left))


def _list(queue: Queue, state: str | None, json: bool) -> None:
    """The small ones, then the large ones, oldest first."""
    rows = []
    for size in ("small", "large"):
        for name in queue.list_assemblies(size, state):
            request = or_error(lambda n=name, s=size: queue.load_assembly(s, n))
            row: dict[str, Any] = {"id": f"{size}/{name}"}
            if isinstance(request, str):
                rows.append({**row, "status": None, "message": request})
                continue
            told = {"status": request.status, "last_modified": request.last_modified, "message": request.message}
            rows.append({**row, **told, "token": request.token})
    told_rows(rows, ("id", "status", "last_modified", "message"), json)
