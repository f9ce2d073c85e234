"""The journal: small durable files by which executors say what they claimed and what came of it.

::

    journal/<pass>/<key>.<first>-<end>.claim     at-most-once: this chunk is mine, nobody sends it again
    journal/<pass>/<key>.<first>-<end>.sent      at-most-once: what became of this chunk
    journal/<pass>/<key>.<first>-<end>.result    the ledger events of these rows are in this data file
    journal/<pass>/<node>.<range>.update         what became of these keys of a keyed node, and of their documents
    journal/<pass>/<destination>.hung            a call of it was given up, and the worker that made it has ended
    journal/closed/<pass>.open                   this pass may send
    journal/closed/<pass>                        nothing unclaimed of this pass is sent any more

``key`` is the outbox file's first sequence, which stays the same when the file is rewritten; ``first`` and ``end`` are
values of its ``row`` column, end exclusive. Claims and results are published whole and once: of two workers with the
same chunk one wins. The order that makes closing sound on every file system, without clocks: a worker claims, *then*
looks whether its pass is open, *then* sends; a driver closes, *then* reads the journal.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ferryman.records.keys import UpdateResult
from ferryman.records.rows import Result, Rows
from ferryman.storage import files
from ferryman.storage import files as seals
from ferryman.storage.files import StatePath
from ferryman.storage.processes import Process

_NAME = re.compile(r"(\d+)\.(\d+)-(\d+)\.(claim|sent|result)\Z")

_TRIMS: Final = 10
"""How often a pass's folder is emptied to remove it. What is left after that is looked at again by the next settle."""


_OPEN: Final = ".open"


class Journal:
    """The journal of a state."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self._closed = folder / "closed"

    def create(self) -> None:
        files.make_folder(self._closed)

    # -- executors -----------------------------------------------------------------------------------

    def begin(self, pass_: int) -> StatePath:
        """The pass's folder, made if need be. It is open from now on, unless somebody has closed it meanwhile: who sees
        that looks into the folder that he has just changed, which is then seen as it is on any file system."""
        folder = self.folder / str(pass_)
        files.make_folder(folder)
        files.publish(self._open(pass_), b"")
        if self.highest_closed() >= pass_:
            files.remove(self._open(pass_))
        return folder

    def claim(self, pass_: int, rows: Rows, eligible: list[int] | None = None) -> bool:
        """Make a chunk ours, durably; False if it is somebody's already (also our own, from before a crash).

        Args:
            eligible: the rows that are meant, where that is not the whole range.
        """
        owner = {"process": Process.current(), "eligible": eligible}
        return files.publish(self._path(pass_, rows, "claim"), seals.seal(owner))

    def publish(self, pass_: int, result: Result) -> bool:
        """Make a result known, durably; False if there is one of its kind for these very rows already."""
        kind = "sent" if result.part is None else "result"
        return files.publish(self._path(pass_, result.range, kind), seals.seal(result))

    def open_for(self, pass_: int) -> bool:
        """May this pass still send? Look before each chunk, after claiming it.

        A file that is opened is asked for where it lies; what a folder has, a network file system may remember for a
        minute.
        """
        return files.can_open(self._open(pass_))

    def publish_update(self, pass_: int, update: UpdateResult) -> bool:
        """Make known what became of a range of keys, durably; False if that was done before: only the first counts."""
        path = self.folder / str(pass_) / f"{update.node}.{update.range}.update"
        return files.publish(path, seals.seal(update))

    def updates(self, pass_: int) -> list[UpdateResult]:
        """What became of keys in a pass.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        folder = self.folder / str(pass_)
        paths = [folder / name for name in sorted(files.list_names(folder)) if name.endswith(".update")]
        return [msgspec.convert(seals.unseal(path), UpdateResult, strict=False) for path in paths]

    def give_up(self, pass_: int, destination: str, why: str) -> None:
        """A call of this destination was given up; the worker that made it is about to end. Durable."""
        files.publish(self._hung(pass_, destination), seals.seal(why))

    def given_up(self, pass_: int, destination: str) -> str | None:
        """Why a call of this destination was given up in this pass; None: none was."""
        path = self._hung(pass_, destination)
        return str(seals.unseal(path)) if files.exists(path) else None

    def owner_alive(self, pass_: int, rows: Rows) -> bool:
        """Is the process that claimed these rows still there, as far as we can see?"""
        owner: Any = seals.unseal(self._path(pass_, rows, "claim"))
        process = msgspec.convert(owner["process"], Process)
        return not process.is_gone and process != Process.current()

    def claimed_rows(self, pass_: int, rows: Rows) -> list[int] | None:
        """The rows that a claim means; None: all of its range."""
        owner: Any = seals.unseal(self._path(pass_, rows, "claim"))
        return None if owner["eligible"] is None else list(owner["eligible"])

    # -- both ----------------------------------------------------------------------------------------

    def highest_closed(self) -> int:
        """Number of the highest closed pass, 0 before the first."""
        return max((int(n) for n in files.list_names(self._closed) if n.isdigit()), default=0)

    def results(self, pass_: int) -> list[Result]:
        """Results of a pass that have a ledger file, in the order of their rows.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        return self._read(path for _, kind, path in self._entries(pass_) if kind == "result")

    def notes(self, pass_: int, wanted: Callable[[Rows], bool] = lambda rows: True) -> list[Result]:
        """What was noted of these chunks of a pass, in the order of their rows: each of their rows may be named, so of
        a chunk that a ledger file covers it is better left unread.

        Raises:
            StateDamaged: a journal file is not what was written.
        """
        return self._read(path for rows, kind, path in self._entries(pass_) if kind == "sent" and wanted(rows))

    def answered(self, pass_: int, key: int | None = None) -> set[Rows]:
        """Ranges of a pass (of one file) that have a result or a note."""
        return {rows for rows, kind, _ in self._entries(pass_) if kind != "claim" and key in (None, rows.key)}

    def claims(self, pass_: int, key: int | None = None) -> list[Rows]:
        """Claims of a pass (of one file)."""
        return sorted(rows for rows, kind, _ in self._entries(pass_) if kind == "claim" and key in (None, rows.key))

    # -- driver --------------------------------------------------------------------------------------

    def close(self, pass_: int) -> None:
        """From now on nothing unclaimed of this pass or an older one is sent."""
        files.publish(self._closed / str(pass_), b"")
        files.remove(self._open(pass_))
        found = files.list_names(self._closed)
        highest = max(int(name) for name in found if name.isdigit())  # above ours, if we were overtaken
        files.remove_all(self._closed / name for name in found if _pass_of(name) < highest + name.endswith(_OPEN))

    def passes(self) -> list[int]:
        """Passes that have a journal."""
        return sorted(int(n) for n in files.list_names(self.folder) if n.isdigit())

    def trim(self, pass_: int, keep: set[Rows]) -> None:
        """Remove a pass's journal but for what concerns these claims (which a late worker may still answer)."""
        for rows, _, path in list(self._entries(pass_)):
            if rows not in keep:
                files.remove(path)
        folder = self.folder / str(pass_)
        for _ in range(_TRIMS if not keep else 0):
            with contextlib.suppress(OSError):  # a late worker has put something into it; or it cannot be removed
                files.remove_flat_folder(folder)
                return

    def forget(self, pass_: int, rows: Rows) -> None:
        """Remove a claim that was left open: late answers to it do not count any more."""
        folder = self.folder / str(pass_)
        files.remove_all(folder / name for name in files.list_names(folder) if name.startswith(f"{rows.name}."))

    def _open(self, pass_: int) -> StatePath:
        return self._closed / f"{pass_}{_OPEN}"

    def _hung(self, pass_: int, destination: str) -> StatePath:
        return self.folder / str(pass_) / f"{destination}.hung"

    def _path(self, pass_: int, rows: Rows, kind: str) -> StatePath:
        return self.folder / str(pass_) / f"{rows.name}.{kind}"

    def _read(self, paths: Iterable[StatePath]) -> list[Result]:
        found = [msgspec.convert(seals.unseal(path), Result) for path in paths]
        return sorted(found, key=lambda r: (r.key, r.first, -r.end))

    def _entries(self, pass_: int) -> Iterator[tuple[Rows, str, StatePath]]:
        folder = self.folder / str(pass_)
        for name in files.list_names(folder):
            if found := _NAME.match(name):
                yield Rows(int(found[1]), int(found[2]), int(found[3])), found[4], folder / name


def _pass_of(name: str) -> int:
    """Of a file in ``closed``, half written ones last."""
    number = name.removesuffix(_OPEN)
    return int(number) if number.isdigit() else sys.maxsize
