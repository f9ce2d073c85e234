"""The source port: where documents come from.

A scan calls a source's methods in this order:

    check()                 driver: whether it exists at all
    partitions()            driver: pieces of work, small and picklable
    partitions_after(marks) driver, in place of partitions: for a source that keeps bookmarks
    listing(partition)      worker, once per piece: all its documents, in the source's own order
    read(listed)            worker, only for documents that the scan selected: the content

A source that has the content at hand while listing (rows of a table, lines of a file) yields whole ``Document``s from
``listing``; one that would have to fetch it (files) yields ``Listed``, and ``read`` is called later. After a crash, any
of these methods may be called again. If ``listing`` raises, the listing is incomplete: everything else continues, but
no document of this source is deleted in this scan. The same happens if the driver contradicts a ``Doubt``, since a
single machine that does not see something is not trusted. After ``Unavailable``, or an error of the device or the
connection, everything is listed again after 1, 4, 16 s …, if the run waits that long.

A source that cannot list everything each time (an API that is asked for what is new, a web site) yields ``Bookmark``s.
They are committed with the last wave of the scan, after everything that was listed before them, and the next scan gets
them back in ``partitions_after``. A scan that is killed begins again at the last bookmarks that were committed. A
source that keeps something in another system for its reader (a replication slot) makes it in ``begin_scan`` and lets go
of what was read in ``end_scan``; a preview calls neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args
from urllib.parse import unquote_to_bytes

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.sources.inotify import FolderEvents

Detect = Literal["content", "fingerprint", "none"]


class Listed(NamedTuple):
    """A document as found by a listing, without its content."""

    id: str
    """Id relative to the source's root, without the prefix. ``read`` receives it as ``listing`` returned it."""
    size: int
    """Size in bytes, or an estimate, by which waves and tasks are split."""
    fingerprint: str = ""
    """Value that is cheap to get and changes when the content does (size and mtime, an etag). "": it cannot be trusted
    now, or the source knows that the content has changed; then this scan reads the document, and processes it if it
    differs."""
    location: str = ""
    """Location that ``read`` needs in addition to the id, if any."""
    refused: str = ""
    """Reason why it cannot be a document (a dangling link); it then ends as ERROR_DOC with this message."""
    known: str = ""
    """For ``read``: the fingerprint under which the document was processed. The source may compare it with what it
    finds, and return ``Unchanged``. "": the content is needed, whether or not it has changed."""


class Unchanged(NamedTuple):
    """Answer of ``read``: the content is still that of ``Listed.known``."""


class Fetched(NamedTuple):
    """Answer of ``read``: the content, with the fingerprint that came with it. ``listing`` may yield it, too, and a
    ``Listed`` of this fingerprint in a later scan."""

    document: Document
    fingerprint: str


class Bookmark(NamedTuple):
    """How far a listing has read: ``listing`` may yield it, and the next scan is given it back.

    It must follow the documents that it covers. Of several for one partition, the last counts.
    """

    partition: str
    """Name of what was read: a host, a folder, "" if there is only one."""
    value: Any
    """Any JSON value, at most ``limits.BOOKMARK_BYTES`` when encoded; None: forget the partition."""
    meanwhile: Any = None
    """Value that counts from the first wave of the scan to its last, if it takes several: for a source whose next
    listing has to know that some of this one was committed. None: the bookmark before counts until then."""


class Note(NamedTuple):
    """Message for the people who run the plan, which ``listing`` may yield."""

    text: str


class BytesRead(NamedTuple):
    """Says how far a large file was read, which ``listing`` may yield now and then. It is shown; nothing depends on
    it."""

    done: int
    total: int


class Complete(NamedTuple):
    """Says that this listing names every document of its piece, although the source's listings usually do not
    (``Source.lists_all``). If all pieces do, documents that are missing count as deleted."""

    within: str | None = None
    """Beginning of ids: every document whose id begins with it was listed in this scan, and other pieces do not matter.
    None: the piece is complete, which matters only if all pieces are."""
    bookmark: Bookmark | None = None
    """Bookmark that counts only if nothing that is missing waits for an operator (``max_deleted``): as long as it does,
    the source is asked for the same again."""


class Retained(NamedTuple):
    """Something that another system keeps until a reader has read it, such as a replication slot."""

    place: str
    """Name and place of it, without secrets."""
    bytes: int
    """Bytes that the other system keeps for it."""
    warning: str = ""
    """Message for an operator about it; "": there is nothing to say."""


class TouchedFiles(NamedTuple):
    """Files and folders in which something has changed, relative to the root of a source, as the operating system names
    them."""

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    """All in and below them may be new."""


class Doubt(NamedTuple):
    """A folder or file that a listing found missing or empty, though it may exist: a machine may not see it (an
    unmounted share).

    ``listing`` may yield it; the driver then calls ``contradiction``.
    """

    place: str
    """Id of a folder or a file, without prefix."""
    seen: str
    """How the listing found it: ``MISSING``, ``EMPTY`` or ``PRESENT``."""


MISSING: Final = "missing"
EMPTY: Final = "empty"
PRESENT: Final = "there"
"""The folder exists, although the driver did not see it when it split the listing."""


class Source:
    """Base of all sources.

    Args:
        prefix: put before every id, so that ids of two sources in a plan cannot collide.
        detect: how changes are detected: "content" (by its hash), "fingerprint" (the content is read only if the
            fingerprint changed), "none" (every document is processed in every scan).
        max_deleted: share of the known documents that may be missing in one scan before deletes wait for an operator.
    """

    lists_all = True
    """Whether a complete listing names every document, so that a missing one was deleted. False: a listing only brings
    work (jobs of a queue), and a missing document means nothing."""

    runs_queries = False
    """Whether it runs queries on the SparkSession, in the driver."""

    comes_again = ""
    """If not every document is listed: what to do to have one listed again, as a sentence for messages."""

    unsupported: Literal["reject", "skip"] = "reject"
    """How a document is treated if a step says that it does not read its kind (``Unsupported``): it is rejected, or
    dropped with the reason."""

    uncounted: frozenset[str] = frozenset()
    """Names of fields that are about a document but not part of its content (a time of modification): a document that
    differs only in them has not changed."""

    in_batches = False
    """Whether its documents are submitted in batches. Then a single batch of bad documents does not stop a node; see
    ``batch_of``."""

    counts_raw = True
    """Whether the raw bytes are part of a document's content. False: only its fields are, so that a page whose markup
    has a new number in it has not changed."""

    keeps_content = False
    """Whether a document can be listed only once, so that its content has to be kept as long as the document waits for
    a retry or has failed."""

    may_not_see_deletes = False
    """Whether documents may be deleted without its noticing it; ``unseen_deletes`` then says which."""

    encodes_ids = False
    """Whether a ``#`` in its ids separates a row from its file, while one in a name is encoded (``%23``). False: ids
    may be any text, and the engine encodes them."""

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
        """Raise ``UsageError`` if there is nothing to list from (such as a missing folder)."""

    def place(self) -> str | None:
        """Return where it reads, for people: an absolute path or a URL, without secrets; None if there is no such
        place."""
        return None

    def local_paths(self) -> tuple[str, ...]:
        """Return the absolute paths of local files and folders that it reads. On a cluster, each executor is checked
        before a run begins: all must see what the driver sees."""
        return ()

    def reads(self) -> str | None:
        """Return the ``target()`` of a destination whose deliveries it reads; None if it reads nothing that a
        destination writes. A ``Flow`` orders its plans by it."""
        return None

    def job_counts(self) -> dict[str, int]:
        """Return state -> number of jobs, if its documents belong to jobs of an intake queue; else {}. For metrics."""
        return {}

    def not_installed(self) -> str:
        """Return which package is missing, with the command that installs it; "" if none is. Opens nothing."""
        return ""

    def counted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that determine a document's version, together with its raw bytes."""
        if not self.uncounted:
            return fields
        return {name: value for name, value in fields.items() if name not in self.uncounted}

    def full_id(self, id: str) -> str:
        """Return the id by which steps, destinations and the ledger know a document: with the prefix, and encoded."""
        return self.prefix + (id if self.encodes_ids else id_of_text(id))

    def full_ids(self, ids: list[str]) -> list[str]:
        """Return the full ids of many ids, see ``full_id``."""
        if not self.encodes_ids:
            ids = ids_of_texts(ids)
        return [self.prefix + id for id in ids] if self.prefix else ids

    def own_id(self, full_id: str) -> str:
        """Return the id as ``listing`` yielded it, for a full id."""
        id = full_id[len(self.prefix) :]
        return id if self.encodes_ids else text_of(id)

    def partitions(self) -> list[Any]:
        """Return pieces of work for ``listing``, in the source's own order. Of two documents with the same id, the
        later one counts."""
        raise NotImplementedError

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        """Return pieces of work as ``partitions`` does, given what earlier listings have yielded.

        Args:
            bookmarks: partition -> value of its last ``Bookmark``.
        """
        return self.partitions()

    def begin_scan(self, reader: str, bookmarks: Mapping[str, Any]) -> Iterable[str]:
        """Prepare a scan of a run, in the driver, before ``partitions_after``; return messages for people.

        Args:
            reader: name that no source of another state has, and that stays the same as long as the state does.
            bookmarks: those of the last commit.
        """
        return ()

    def end_scan(self, bookmarks: Mapping[str, Any]) -> bool:
        """Release what lies before these bookmarks, in the driver, after their commit, possibly several times. Return
        whether there is more to list at once, in another scan of the same run."""
        return False

    def retained(self, reader: str, bookmarks: Mapping[str, Any]) -> list[Retained]:
        """Return what another system keeps for this reader, as of now; for ``status`` and ``plan remove``."""
        return []

    def unseen_deletes(self, bookmarks: Mapping[str, Any]) -> str:
        """Return which deletes it does not see, as a sentence for people; "" if it sees all of them.
        ``status`` shows it.

        Args:
            bookmarks: those of the last commit.
        """
        return ""

    def remove_retained(self, reader: str, bookmarks: Mapping[str, Any]) -> None:
        """Have other systems keep nothing for this reader any more. There may be nothing."""

    def changed_partitions(self, changes: TouchedFiles) -> list[Any] | None:
        """Return pieces of work that list these files and folders only; None: everything has to be listed to find what
        has changed in them."""
        return None

    def watch(self) -> FolderEvents | None:
        """Begin to notice changes of what it reads; None: only a listing finds them. Called in the driver of a run that
        watches, before anything is listed. From then on, files that programs make beside a document while they work on
        it are not listed.

        Raises:
            CannotWatch: it could notice them elsewhere, but not here; says why.
        """
        return None

    def end_watch(self) -> None:
        """List everything again as before ``watch``."""

    def partitions_of_ids(self, ids: Collection[str], bookmarks: Mapping[str, Any]) -> list[Any] | None:
        """Return pieces of work for documents that wait for a retry, by their own ids; None: everything is listed, and
        these are picked. For a source whose listing is expensive."""
        return None

    def listing(
        self, partition: Any
    ) -> Iterator[Listed | Document | Fetched | Doubt | Bookmark | Complete | Note | BytesRead]:
        """Yield every document of this piece, and ``Doubt``s for places that the driver should check. A
        ``Document.deleted(id)`` says that the document was deleted."""
        raise NotImplementedError

    def still_there(self, ids: Iterable[str]) -> str:
        """Return where this machine, the driver's, still sees one of these documents that are no longer listed: the
        place, and on which machine; "" if it sees none, or there is nothing to check."""
        return ""

    def contradiction(self, doubt: Doubt) -> str:
        """Return how this machine, the driver's, sees a doubtful place differently; "" if it sees the same."""
        return ""

    def batch_of(self, location: str) -> str:
        """Return the batch of the document with this ``Listed.location``; called if ``in_batches``."""
        return ""

    def read(self, listed: Listed) -> Document | Fetched | Unchanged:
        """Return the content of a listed document; its id has no prefix.

        Raises:
            BadDocument: it can never be read in its present form (ERROR_DOC).
            TransientError: it cannot be read now; it is retried when due. The same applies to any ``OSError``.
        """
        raise NotImplementedError


# File names as text: as ids that can be converted back, and in messages.

_PLAIN = re.compile(r"[ -~]*")
_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029"  # would break a line of output in two
_UNDECODABLE = "\udc80-\udcff"  # a byte that is not UTF-8, as Python keeps it
_ENCODED_IN_ID = re.compile(f"[%#{_CONTROL}{_UNDECODABLE}]")
_ENCODED_IN_OWN_ID = re.compile("#|%(?=2[35])")
_ENCODED_IN_MESSAGE = re.compile(f"[{_CONTROL}{_UNDECODABLE}]")


def id_of(name: str) -> str:
    """Return the id of a file for its name or relative path as the operating system gives it.

    Every name has exactly one id, and ``name_of`` converts it back, whatever bytes the name consists of. Letters of all
    alphabets, spaces and punctuation stay as they are. Percent-encoded, byte by byte, are ``%`` itself, ``#`` (it
    separates a child's key from its parent), control characters, Unicode's line ends, and bytes that are not UTF-8.
    The id does not depend on the locale of the process.
    """
    if _PLAIN.fullmatch(name) and "%" not in name and "#" not in name:
        return name
    return _ENCODED_IN_ID.sub(_encode, _utf8(name))


def name_of(id: str) -> str:
    """Return the name, as the operating system needs it, for an id made by ``id_of``.

    Raises:
        UnicodeEncodeError: ``id_of`` cannot have made this id.
    """
    if id.isascii() and "%" not in id:
        return id
    return os.fsdecode(unquote_to_bytes(id))


def id_of_key(key: str) -> str:
    """Return the id of a file for its key in a store whose keys are text, like ``id_of``; ``key_of`` is the inverse."""
    return _ENCODED_IN_ID.sub(_encode, key)


def key_of(id: str) -> str:
    """Return the key in the store for an id made by ``id_of_key``."""
    return unquote_to_bytes(id).decode("utf-8", "surrogateescape") if "%" in id else id


def id_of_columns(texts: list[str]) -> str:
    """Return the id of a row by the texts of its key's columns: the text itself, or several joined with ``/``."""
    if len(texts) == 1:
        return texts[0]
    return "/".join(text.replace("%", "%25").replace("/", "%2F") for text in texts)


def id_of_text(text: str) -> str:
    """Return the id of a document that has a name of its own (a key of a table, a URL); ``text_of`` is the inverse.

    ``#`` becomes ``%23``, for it separates a child's key from its parent; a ``%`` becomes ``%25`` where 23 or 25
    follows, so that no two names have one id. Everything else stays as it is, also a URL with ``%20`` in it.
    """
    return _ENCODED_IN_OWN_ID.sub(_encode, text) if "#" in text or "%2" in text else text


def ids_of_texts(texts: list[str]) -> list[str]:
    """Encode many names as ids, with one quick check, since nearly always nothing needs encoding."""
    every = "\0".join(texts)
    return list(map(id_of_text, texts)) if "#" in every or "%2" in every else texts


def text_of(id: str) -> str:
    """Return the name for an id made by ``id_of_text``."""
    return id.replace("%23", "#").replace("%25", "%") if "%2" in id else id


def printable_key(key: str) -> str:
    """Return a store's key for a message: on one line."""
    return _ENCODED_IN_MESSAGE.sub(_encode, key)


def printable_path(path: str) -> str:
    """Return a path for a message: on one line and printable."""
    return path if _PLAIN.fullmatch(path) else _ENCODED_IN_MESSAGE.sub(_encode, _utf8(path))


def _utf8(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))
