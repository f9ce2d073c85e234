"""Journal of a state: small durable files in which executors record what they claimed and what became of it.

::

    journal/<pass>/<key>.<first>-<end>.claim     at-most-once: this chunk is claimed, so no other worker sends it
    journal/<pass>/<key>.<first>-<end>.sent      at-most-once: the outcomes of this chunk
    journal/<pass>/<key>.<first>-<end>.result    the ledger events of these rows are in this data file
    journal/<pass>/<node>.<range>.update         the results of updating a range of keys of a keyed node
    journal/<pass>/<destination>.hung            a call of this destination was abandoned, and its worker ends
    journal/closed/<pass>.open                   this pass may send
    journal/closed/<pass>                        this pass is closed: no unclaimed row of it is sent any more

``key`` is the outbox file's first sequence, which stays the same when the file is rewritten; ``first`` and ``end`` are
values of its ``row`` column, end exclusive. Claims and results are published atomically and once: of two workers with
the same chunk one wins. Closing is reliable on every file system, without clocks, because of the order: a worker
claims, *then* checks that its pass is open, *then* sends; a driver closes, *then* reads the journal.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ferryman.records.keys import UpdateResult
from ferryman.records.rows import Result, RowSpan
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.processes import Process

_NAME = re.compile(r"(\d+)\.(\d+)-(\d+)\.(claim|sent|result)\Z")

_TRIMS: Final = 10
"""Times that a pass's folder is emptied in order to remove it. Anything left after that is removed by the next
settle."""


_OPEN: Final = ".open"


class Journal:
    """Journal of a state."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self._closed = folder / "closed"

    def create(self) -> None:
        files.make_folder(self._closed)

    # -- executors -----------------------------------------------------------------------------------

    def begin(self, pass_: int) -> StatePath:
        """Open the pass, unless it was closed in the meantime, and return its folder. That check reads a folder that
        this process has just changed, so on any file system its content is current."""
        folder = self.folder / str(pass_)
        files.make_folder(folder)
        files.publish(self._open(pass_), b"")
        if self.highest_closed() >= pass_:
            files.remove(self._open(pass_))
        return folder

    def claim(self, pass_: int, rows: RowSpan, eligible: list[int] | None = None) -> bool:
        """Claim a chunk durably; return False if it is claimed already (also by ourselves, before a crash).

        Args:
            eligible: the claimed rows; None: the whole range.
        """
        owner = {"process": Process.current(), "eligible": eligible}
        return files.publish(self._path(pass_, rows, "claim"), files.seal(owner))

    def publish(self, pass_: int, result: Result) -> bool:
        """Publish a result durably; return False if a result of the same kind and range exists already."""
        kind = "sent" if result.part is None else "result"
        return files.publish(self._path(pass_, result.range, kind), files.seal(result))

    def open_for(self, pass_: int) -> bool:
        """Return whether this pass may still send. Check before each chunk, after claiming it.

        The check opens a file, which makes a network file system ask its server; a folder's content may be cached for a
        minute.
        """
        return files.can_open(self._open(pass_))

    def publish_update(self, pass_: int, update: UpdateResult) -> bool:
        """Publish the results of a range of keys durably; return False if the range has results already: only the first
        ones count."""
        path = self.folder / str(pass_) / f"{update.node}.{update.range}.update"
        return files.publish(path, files.seal(update))

    def updates(self, pass_: int) -> list[UpdateResult]:
        """Return the results of keyed nodes in a pass.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        folder = self.folder / str(pass_)
        paths = [folder / name for name in sorted(files.list_names(folder)) if name.endswith(".update")]
        return [msgspec.convert(files.unseal(path), UpdateResult, strict=False) for path in paths]

    def give_up(self, pass_: int, destination: str, why: str) -> None:
        """Record durably that a call of this destination was abandoned; the worker that made it is about to end."""
        files.publish(self._hung(pass_, destination), files.seal(why))

    def given_up(self, pass_: int, destination: str) -> str | None:
        """Return why a call of this destination was abandoned in this pass; None if none was."""
        path = self._hung(pass_, destination)
        return str(files.unseal(path)) if files.exists(path) else None

    def owner_alive(self, pass_: int, rows: RowSpan) -> bool:
        """Return whether the process that claimed these rows is still running, as far as this machine can tell."""
        owner: Any = files.unseal(self._path(pass_, rows, "claim"))
        process = msgspec.convert(owner["process"], Process)
        return not process.is_gone and process != Process.current()

    def claimed_rows(self, pass_: int, rows: RowSpan) -> list[int] | None:
        """Return the rows that a claim covers; None: its whole range."""
        owner: Any = files.unseal(self._path(pass_, rows, "claim"))
        return None if owner["eligible"] is None else list(owner["eligible"])

    # -- both ----------------------------------------------------------------------------------------

    def highest_closed(self) -> int:
        """Return the number of the highest closed pass, 0 before the first."""
        return max((int(n) for n in files.list_names(self._closed) if n.isdigit()), default=0)

    def results(self, pass_: int) -> list[Result]:
        """Return the results of a pass that have a ledger file, in the order of their rows.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        return self._read(path for _, kind, path in self._entries(pass_) if kind == "result")

    def notes(self, pass_: int, wanted: Callable[[RowSpan], bool] = lambda rows: True) -> list[Result]:
        """Return the outcomes recorded for these chunks of a pass, in the order of their rows. A note may list every
        row, so exclude chunks that a ledger file covers.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        return self._read(path for rows, kind, path in self._entries(pass_) if kind == "sent" and wanted(rows))

    def answered(self, pass_: int, key: int | None = None) -> set[RowSpan]:
        """Return the ranges of a file that have a result or a note in this pass; of all files if ``key`` is None."""
        return {rows for rows, kind, _ in self._entries(pass_) if kind != "claim" and key in (None, rows.key)}

    def claims(self, pass_: int, key: int | None = None) -> list[RowSpan]:
        """Return the claims on a file's rows in this pass; on all files if ``key`` is None."""
        return sorted(rows for rows, kind, _ in self._entries(pass_) if kind == "claim" and key in (None, rows.key))

    # -- driver --------------------------------------------------------------------------------------

    def close(self, pass_: int) -> None:
        """Close this pass and all older ones: no unclaimed row of them is sent any more."""
        files.publish(self._closed / str(pass_), b"")
        files.remove(self._open(pass_))
        found = files.list_names(self._closed)
        highest = max(int(name) for name in found if name.isdigit())  # higher than ours if overtaken
        files.remove_all(self._closed / name for name in found if _pass_of(name) < highest + name.endswith(_OPEN))

    def passes(self) -> list[int]:
        """Return the passes that have a journal."""
        return sorted(int(n) for n in files.list_names(self.folder) if n.isdigit())

    def trim(self, pass_: int, keep: set[RowSpan]) -> None:
        """Remove a pass's journal, except the files of these claims, for which a result may still arrive."""
        for rows, _, path in list(self._entries(pass_)):
            if rows not in keep:
                files.remove(path)
        folder = self.folder / str(pass_)
        for _ in range(_TRIMS if not keep else 0):
            with contextlib.suppress(OSError):  # a late worker has added a file; or it cannot be removed
                files.remove_flat_folder(folder)
                return

    def forget(self, pass_: int, rows: RowSpan) -> None:
        """Remove a claim that was left open; late results for it no longer count."""
        folder = self.folder / str(pass_)
        files.remove_all(folder / name for name in files.list_names(folder) if name.startswith(f"{rows.name}."))

    def _open(self, pass_: int) -> StatePath:
        return self._closed / f"{pass_}{_OPEN}"

    def _hung(self, pass_: int, destination: str) -> StatePath:
        return self.folder / str(pass_) / f"{destination}.hung"

    def _path(self, pass_: int, rows: RowSpan, kind: str) -> StatePath:
        return self.folder / str(pass_) / f"{rows.name}.{kind}"

    def _read(self, paths: Iterable[StatePath]) -> list[Result]:
        found = [msgspec.convert(files.unseal(path), Result) for path in paths]
        return sorted(found, key=lambda r: (r.key, r.first, -r.end))

    def _entries(self, pass_: int) -> Iterator[tuple[RowSpan, str, StatePath]]:
        folder = self.folder / str(pass_)
        for name in files.list_names(folder):
            if found := _NAME.match(name):
                yield RowSpan(int(found[1]), int(found[2]), int(found[3])), found[4], folder / name


def _pass_of(name: str) -> int:
    """Return the pass that a file in ``closed`` is about; half-written files sort last."""
    number = name.removesuffix(_OPEN)
    return int(number) if number.isdigit() else sys.maxsize
