"""Deliveries as lines of JSON in a folder: a file a chunk."""

from __future__ import annotations

import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, Final

from ferryman import places
from ferryman.destinations.base import Delivery, Destination, Effect, Facts, Outcome
from ferryman.destinations.payload import payloads
from ferryman.errors import PlanError
from ferryman.storage import disk, files
from ferryman.storage.folder import explained

STALE_S: Final = 3600.0
"""A temporary file older than this is a killed writer's: no ``write`` takes nearly as long."""


class JsonLines(Destination):
    """A folder of files ``<first sequence>-<last sequence>-<chunk>.jsonl``; each appears whole, or not at all.

    A line is an object with ``hash``, ``sequence``, ``operation`` ("upsert" or "delete"), ``id``, ``parent_id``,
    ``origin_id``, ``source``, ``version``, ``route`` (a list), ``fields`` and ``text``: the raw bytes decoded as
    UTF-8, null without raw. Raw bytes that are not UTF-8 stand as base64 in ``raw_base64``, and ``text`` is null.

    The folder is a log: a new version is a new line, so is a delete. **How to read it:** sort the files by name, skip
    a line whose ``hash`` you have seen, and of an ``id`` take the line with the highest ``sequence``. A hash can stand
    in two files: after a kill a chunk is written again, and if it is cut the same it makes the same file, but rows
    that were not sure to have arrived may be cut differently then. Nothing that was confirmed is ever overwritten.

    A killed writer leaves at most a file whose name begins with a dot. Ignore it; it is removed later.
    """

    effect = Effect.IDEMPOTENT

    facts: ClassVar[Facts] = Facts(
        stored="a line a delivery, deletes too, with hash and sequence",
        limits=("a file has `rows` lines at most, and ends at the plan's `batch_bytes`",),
        outcomes=(
            ("no room, a disk in trouble", "transient, about all"),
            ("no right to write", "permanent, about all"),
            ("fields that are no JSON", "permanent"),
        ),
    )

    def __init__(self, directory: str | Path, rows: int | None = None) -> None:
        """``directory`` is made if it is not there. A relative one is meant from the plan file's
        folder; in a program, from the current one.

        Args:
            rows: lines a file at most; a plan's own ``batch=`` wins. None: 500. A file also ends at the plan's
                ``batch_bytes=``, 5 MiB by default, and where a pass of delivering ends.

        Raises:
            PlanError: ``rows`` is below 1.
        """
        if rows is not None and rows < 1:
            raise PlanError([f"JsonLines({str(directory)!r}): rows={rows}: give 1 or more"])
        self.directory = Path(places.absolute(directory))
        self.preferred_batch = rows  # type: ignore[misc]  # of this one

    def target(self) -> str:
        return self.directory.as_uri()

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.directory),)

    def check(self) -> None:
        """Make the folder, and clean up after killed writers."""
        with explained(self.directory):
            files.make_folder(self.directory)
            files.fsync_folder(self.directory)
            long_ago = time.time() - STALE_S
            for temporary in self.directory.glob(f"{disk.TEMPORARY}*"):
                with suppress(FileNotFoundError):
                    if temporary.stat().st_mtime < long_ago:
                        temporary.unlink()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write the chunk's file.

        Raises:
            Unavailable: no room, or a disk in trouble; no file was made.
            Misconfigured: no right to write here.
        """
        outcomes: list[Outcome | None] = [None] * len(chunk)
        if lines := payloads(chunk, outcomes):
            name = _name([chunk[position] for position, _ in lines])
            with explained(self.directory):
                files.replace(self.directory / name, b"\n".join(line for _, line in lines) + b"\n")
        return [outcome or Outcome.ok() for outcome in outcomes]


def _name(chunk: list[Delivery]) -> str:
    """The same for the same deliveries, and another one for any others, so that no file replaces a different one."""
    sequences = [d.sequence for d in chunk]
    digest = blake2b("".join(d.hash for d in chunk).encode(), digest_size=4).hexdigest()
    return f"{min(sequences):016d}-{max(sequences):016d}-{digest}.jsonl"
