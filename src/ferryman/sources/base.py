"""The source port: where documents come from.

A scan asks a source three things, in this order:

    check()                 driver: is it there at all?
    partitions()            driver: pieces of work, small and picklable
    listing(partition)      worker, once a piece: every document of it, in the source's own order
    read(listed)            worker, only for what the scan selected: the content

A source that has the content at hand while it lists (rows of a table, lines of a file) yields whole ``Document``s from
``listing``; one that would have to fetch it (files) yields ``Listed`` and is asked again by ``read``. After a crash
everything may be asked again. What ``listing`` raises makes the listing incomplete: the rest goes on, and nothing of
this source is deleted in this scan. So does a ``Doubt`` that the driver contradicts: no machine is trusted alone where
it does not see something. After ``Unavailable``, or an error of the device or the connection, all is listed again after
1, 4, 16 s …, if the run waits so long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.sources.paths import id_of_text, ids_of_texts, text_of

Detect = Literal["content", "fingerprint", "none"]


class Listed(NamedTuple):
    """One document as a listing sees it, content not read."""

    id: str
    """Relative to the source's root, without the prefix. ``read`` gets it as ``listing`` gave it."""
    size: int
    """Bytes, or a guess: what waves and tasks are cut by."""
    fingerprint: str = ""
    """Cheap to get, changes when the content does (size and mtime, an etag). "" if it cannot be trusted now, or if
    the source knows that the content has changed: this scan reads it, and feeds it if it differs."""
    location: str = ""
    """What ``read`` needs to find it, if the id is not enough."""
    refused: str = ""
    """Why it cannot be a document (a dangling link): it ends as ERROR_DOC with this message."""


class Doubt(NamedTuple):
    """What a listing found otherwise than it may be: a machine may not see a folder that is there (an unmounted share).

    A ``listing`` may yield it; the driver asks ``contradiction``.
    """

    place: str
    """Id of a folder or a file, without prefix."""
    seen: str
    """What it is where it was listed: MISSING, EMPTY or THERE."""


MISSING: Final = "missing"
EMPTY: Final = "empty"
THERE: Final = "there"
"""There, though the driver did not name it."""


class Source:
    """Base of all sources.

    Args:
        prefix: put before every id, so that two sources of one plan cannot clash.
        detect: what makes a document changed. "content" (its hash), "fingerprint" (content read only if the
            fingerprint changed), "none" (fed again in every scan).
        max_deleted: share of the known documents that may be missing in one scan before deletes wait for an operator.
    """

    lists_all = True
    """Does a complete listing name every document, so that a missing one was deleted? False: a listing
    brings work (jobs of a queue), and says nothing of the rest."""

    comes_again = ""
    """Where not every document is listed: what to do to have one listed again. A sentence, for messages."""

    unsupported: Literal["reject", "skip"] = "reject"
    """What becomes of a document of which a step says that it is of a kind it does not read (``Unsupported``): it is
    rejected, or dropped with the reason."""

    uncounted: frozenset[str] = frozenset()
    """Names of fields that are about a document, and no part of its content (a time of modification): what changes only
    in them has not changed."""

    in_batches = False
    """Do people submit its documents in batches? Then one batch of bad documents stops no node: see ``batch_of``."""

    encodes_ids = False
    """Is a ``#`` in its ids meant to part a row from its file, and one in a name encoded (``%23``)? False: any text may
    be an id, and the engine encodes it."""

    def __init__(
        self, *, prefix: str = "", detect: Detect = "content", max_deleted: float = limits.MAX_DELETED
    ) -> None:
        if detect not in get_args(Detect):
            raise UsageError(f"detect={detect!r}: choose one of {', '.join(get_args(Detect))}.")
        if not 0 <= max_deleted <= 1:
            raise UsageError(f"max_deleted={max_deleted!r}: give a share between 0 and 1.")
        if "#" in prefix:
            raise UsageError(f"prefix={prefix!r}: a # separates a child's key from its parent. Give another character.")
        self.prefix = prefix
        self.detect: Detect = detect
        self.max_deleted = max_deleted

    def check(self) -> None:
        """Raise ``UsageError`` if there is nothing to list from (no such folder)."""

    def place(self) -> str | None:
        """Where it reads, for people: an absolute path or a URL, without secrets; None if there is no such place."""
        return None

    def local_paths(self) -> tuple[str, ...]:
        """Absolute paths of what it reads on the machine's own file system. On a cluster each executor is asked for
        them before the run begins: all must see what the driver sees."""
        return ()

    def reads(self) -> str | None:
        """The ``target()`` of a destination whose deliveries it reads; None: it reads nothing that a destination
        writes. By it a ``Flow`` knows which plan comes after which."""
        return None

    def not_installed(self) -> str:
        """Which package is missing, and the command that installs it; "" if all is there. Opens nothing."""
        return ""

    def counted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields that make a document's version, with its raw bytes."""
        if not self.uncounted:
            return fields
        return {name: value for name, value in fields.items() if name not in self.uncounted}

    def full_id(self, id: str) -> str:
        """The id by which steps, destinations and the ledger know a document: behind the prefix, and encoded."""
        return self.prefix + (id if self.encodes_ids else id_of_text(id))

    def full_ids(self, ids: list[str]) -> list[str]:
        """The same of many ids."""
        if not self.encodes_ids:
            ids = ids_of_texts(ids)
        return [self.prefix + id for id in ids] if self.prefix else ids

    def own_id(self, full_id: str) -> str:
        """The id as ``listing`` gave it."""
        id = full_id[len(self.prefix) :]
        return id if self.encodes_ids else text_of(id)

    def partitions(self) -> list[Any]:
        """Pieces of work for ``listing``, in the source's own order. Of two documents with one id the later is kept."""
        raise NotImplementedError

    def listing(self, partition: Any) -> Iterator[Listed | Document | Doubt]:
        """Every document of this piece. In between, what the driver should look at again."""
        raise NotImplementedError

    def still_there(self, ids: Iterable[str]) -> str:
        """Of these documents, which were not listed any more: which one does this machine, the driver's, see all the
        same? Its place, and on which machine; "" if none, or if there is nothing to look at."""
        return ""

    def contradiction(self, doubt: Doubt) -> str:
        """What this machine, the driver's, sees otherwise, naming the place; "" if it sees the same."""
        return ""

    def batch_of(self, location: str) -> str:
        """The batch to which a document belongs that has this ``Listed.location``; asked if ``in_batches``."""
        return ""

    def read(self, listed: Listed) -> Document:
        """The content of what ``listing`` named, id without prefix.

        Raises:
            BadDocument: it can never be read as it is (ERROR_DOC).
            TransientError: not now; also for any ``OSError``. Tried again when due.
        """
        raise NotImplementedError
