"""The destination port: writes documents to an external system, at the end of a path or, as a tee, in the middle of
one.

A destination is implemented once and used under any of three guarantees. Under at-least-once, which every destination
must support, the engine may make these calls:

    check()                         driver, before each wave that has rows for it
    open(context)                   worker, once per task
    write([d1, d2, d3])             d1 and d2 arrive, then the process is killed
    ...                             the next start
    open(context)                   another worker
    write([d1, d2, d3])             the same three, with the same hashes and sequences
    close()

Under *exactly-once* the second ``write`` must change nothing for d1 and d2: a ``transactional`` destination stores
``delivery.hash`` in the same transaction as the effect and skips a hash that is there. Under *at-most-once* there is
no second ``write``: the three are in doubt until an operator resolves them.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import itertools
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec

from ferryman.document import Operation, decode_fields, encode_fields
from ferryman.errors import BadDocument

_T = TypeVar("_T")


class Effect(enum.Enum):
    """Effect on the outside world of repeating something."""

    SAFE = "safe"
    """No outside effect at all: it may run any number of times."""
    IDEMPOTENT = "idempotent"
    """Repeating gives the same outside state."""
    POTENT = "potent"
    """Each call counts: it must run once per delivery."""


class Guarantee(enum.Enum):
    """Guarantee: what a kill may do to a delivery in flight."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class _DeliveryFields(msgspec.Struct, eq=False):
    """Fields of a delivery. The engine makes one from a row of columns in this order; msgspec does that in C."""

    id: str
    hash: str
    sequence: int
    operation: Operation = "upsert"
    fields: dict[str, Any] | bytes | None = None
    """Fields, or their JSON, which is decoded when the fields are first used."""
    raw: bytes | None = None
    version: str = ""
    source: str = ""
    parent_id: str | None = None
    origin_id: str = None  # type: ignore[assignment]  # until it is made: then its own id
    route: tuple[str, ...] = ()
    attempt: int = 1
    came_from: str | None = None
    """Provenance as JSON, see ``Delivery.provenance``."""
    key_hash: int | None = None


_stored_fields = vars(_DeliveryFields)["fields"].__get__  # ``super().fields``, but faster


class Delivery(_DeliveryFields, eq=False):
    """One document for one destination, as passed to ``write``. Equal on every attempt, except for ``attempt``.

    Attributes:
        hash: 32 hex digits; equal on every attempt of this delivery, different for every other.
        sequence: grows with every commit and row; of two deliveries of one id, the later has the higher (< 2**53).
        operation: "upsert" or "delete" (a delete has no fields and no raw).
        id, parent_id, origin_id, version, source: as the document's.
        route: names of the duplicating branches taken on the way.
        raw: the document's bytes at this point, or None.
        attempt: from 1.
        came_from: see ``provenance``.
        key_hash: for the export of a keyed node, a 56-bit hash of its key, which distinguishes the node's keys; else
            None.
    """

    _decoded: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.origin_id is None:
            self.origin_id = self.id

    @property  # type: ignore[misc]  # hides the field of the base class, which may hold JSON
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the document's fields as JSON values."""
        if self._decoded is None:
            stored = _stored_fields(self)
            self._decoded = decode_fields(stored or b"{}") if stored is None or isinstance(stored, bytes) else stored
        return self._decoded

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the provenance of a document from a log; for one from queues ``{"queues": {name: {"index", "time"}},
        "tx": index on the first queue}``. {} if it is unknown, or the plan has ``provenance=False``."""
        return msgspec.json.decode(self.came_from) if self.came_from else {}

    @property
    def _fields_json(self) -> bytes:
        """Return the fields as JSON, without decoding them first."""
        stored = _stored_fields(self)
        return stored if stored and isinstance(stored, bytes) else encode_fields(self.fields)

    def text(self, encoding: str = "utf-8") -> str:
        """Return the raw bytes decoded as text; undecodable bytes are replaced, since a destination should not refuse a
        document for its encoding."""
        return "" if self.raw is None else self.raw.decode(encoding, errors="replace")

    def __repr__(self) -> str:
        what = f"{self.operation}, hash={self.hash}, sequence={self.sequence}, attempt={self.attempt}"
        return f"Delivery({self.id!r}, {what})"


class Outcome(NamedTuple):
    """A destination's answer for one delivery: ok, stale, transient, permanent, unavailable or misconfigured.

    The last two are about the whole destination (down, full, wrong password) and have ``universal`` set: no attempt is
    spent, and the destination's other rows wait, too.
    """

    kind: str
    why: str = ""
    universal: bool = False

    @classmethod
    def ok(cls) -> Outcome:
        """The delivery took effect, now or earlier: a repeated hash is ok."""
        return _OK

    @classmethod
    def stale(cls) -> Outcome:
        """The destination has something newer (a higher sequence), so the delivery is done without effect."""
        return _STALE

    @classmethod
    def transient(cls, why: str) -> Outcome:
        """The delivery did not take effect; try again later."""
        return cls("transient", why)

    @classmethod
    def permanent(cls, why: str) -> Outcome:
        """The delivery did not take effect and never will, unless it changes."""
        return cls("permanent", why)

    @classmethod
    def unavailable(cls, why: str) -> Outcome:
        """The delivery did not take effect, because the whole destination is unavailable: no attempt is spent, and it
        is tried again later."""
        return cls("transient", why, True)

    @classmethod
    def misconfigured(cls, why: str) -> Outcome:
        """The delivery did not take effect, and none will until somebody fixes the destination; no attempt is spent."""
        return cls("permanent", why, True)

    @classmethod
    def held(cls) -> Outcome:
        """The delivery was not written, because it waits for an earlier one of the same source and key; see
        ``Destination.holds_keys``."""
        return _HELD


_OK = Outcome("ok")
_STALE = Outcome("stale")
_HELD = Outcome("held")


class Facts(NamedTuple):
    """Facts for the reference about a shipped destination; its class has them as ``facts``."""

    stored: str
    """How a delivery and a delete are stored."""
    limits: tuple[str, ...] = ()
    """Sizes and numbers above which something is refused, or cut."""
    outcomes: tuple[tuple[str, str], ...] = ()
    """(What the target says or does, what becomes of the delivery then.)"""
    tested: tuple[str, ...] = ()
    """Servers and versions with which its promises are tested; others that use the same protocol were not tested."""


class DestinationContext(NamedTuple):
    """Context passed to ``open``."""

    plan: str
    plan_version: int
    destination: str
    """Name of the node."""
    wave: int
    """Number of the pass that delivers."""
    guarantee: Guarantee
    state: str = ""
    """Id of the state. A plan may have several states, each of which delivers everything. A newer plan version that
    continues from a state delivers under the same id."""
    settled: int = 0
    """Deliveries of this state and node with lower sequences are settled: they are never sent again."""
    first_version: int = 0
    """Version of the plan when the state got its id; 0: the current one."""
    lane: int = 0
    """Number of this lane among those that write to this destination at the same time, from 0."""
    lanes: int = 1
    """Most lanes that a pass has now; another run may have had more."""
    send_timeout: float = 60.0
    """Seconds after which a call of ``write`` is given up."""
    is_open: Callable[[], bool] | None = None
    """Returns whether the pass is still open; False: another one may have begun, and nothing may be written any more.
    None: it is open."""


def writer_name(context: DestinationContext) -> str:
    """Return the name under which a target knows a node of a plan and its state. A newer version of the plan keeps it,
    because deliveries that it takes over may have arrived already."""
    version = context.first_version or context.plan_version
    return f"{context.plan}-v{version}/{context.destination} {context.state}".strip()


class Destination:
    """Base of all destinations. Only ``effect`` and ``write`` are required.

    Called in this order: ``check`` and ``begin_pass`` in the driver before a wave is delivered; then in a worker, all
    from one thread, ``open`` once per task, ``write`` any number of times, ``close`` once (not after a kill, or a call
    that hung). After a crash any ``write`` may be repeated with the same deliveries, unless the guarantee is
    at-most-once. After a ``write`` that failed as if the whole destination did, ``close`` and ``open`` may be called
    before the next one.

    ``check``, ``open`` and ``write`` report that the whole destination is down by raising ``ConnectionError``,
    ``TimeoutError`` or ``Unavailable(why)``, and that an operator must fix it by raising ``Misconfigured(why)``. Of
    ``write`` this is believed if ``check`` fails, too, or if no smaller chunk is accepted. Any other exception from
    ``write`` applies to the whole chunk.

    A destination is pickled for the workers, so open connections in ``open``, not in ``__init__``.
    """

    effect: ClassVar[Effect]
    transactional: ClassVar[bool] = False
    """True: it stores ``delivery.hash`` in the same transaction as the effect, which makes exactly-once possible."""
    single_writer: ClassVar[bool] = False
    """True: it allows only one writer at a time (an embedded database), so it always has a single lane."""
    in_order: ClassVar[bool] = False
    """True: the rows of a wave arrive in the order of the documents they are made from, whichever branches those
    took."""
    compares_sequences: ClassVar[bool] = False
    """True: it refuses, as stale, deliveries older than the stored one, so that a late write cannot undo a newer
    one."""

    holds_keys: ClassVar[bool] = False
    """True: a chunk may contain several exports of a key (``Delivery.source`` and ``key_hash``); after ``write``
    refuses one, it must leave out the later ones of its key and report them as held. False: a chunk contains at most
    one export of each key."""

    keyed_by_id: bool = False
    """True: it stores one document per id, so that deliveries of two sources, or by two routes, overwrite each
    other."""

    preferred_batch: ClassVar[int | None] = None
    """Number of rows per chunk if the plan does not set ``batch=``."""

    def target(self) -> str | None:
        """Return the place it writes to, without secrets (``sqlite:///out.db#documents``); None if no other node can
        write there."""
        return None

    def known_fields(self) -> dict[str, str]:
        """Return the fields or columns that its target has as far as the plan says so, with their types; a type may be
        "". For lineage events."""
        return {}

    def local_paths(self) -> tuple[str, ...]:
        """Return the absolute paths of the local folders that it writes to. On a cluster, each executor is checked
        before a run begins: all must see the driver's folders."""
        return ()

    def not_installed(self) -> str:
        """Return which package is missing, with the command that installs it; "" if none is. Opens nothing."""
        return ""

    def check(self) -> None:
        """Check that the destination is reachable and ready. Raise ``Unavailable`` or ``Misconfigured`` if not."""

    def durability_risk(self) -> str:
        """Return by which settings its target may lose what it has confirmed, and what to set instead; "": by none, or
        it cannot tell. Called by ``plan check --connect``, after ``check``."""
        return ""

    def identity(self) -> str | None:
        """Return an id of the target that changes if it is recreated, or another one takes its place; "": there is no
        target now; None: it has no identity.

        Called in the driver when a run begins, before ``check``, and after the first ``check``. Nothing is changed.
        """
        return None

    def highest_sequence(self) -> int | None:
        """Return the highest sequence among the deliveries that it holds, including tombstones; None: it holds none, or
        cannot tell.

        Called in the driver, after ``check``: when a state is created, and after stale deliveries, so that later
        sequences are higher. Useful for a destination that compares sequences.
        """
        return None

    def highest_of(self, context: DestinationContext) -> int | None:
        """Return the highest sequence that it has received from this very state and node; None: none, or it cannot
        tell.

        Called in the driver, when a run begins: a state that has not reached this sequence is an old copy, and a target
        that has a lower one than at the end of the last run is one. A destination whose effect is POTENT would take a
        repeated delivery for a new one: nothing is sent to it from an old copy, and as long as this raises.
        """
        return None

    def newer_than(self, sequence: int) -> Iterator[Stored]:
        """Yield records with higher sequences than this one, whoever wrote them; a hundred are enough.

        Called in the driver, when a run begins, of a destination that cannot tell ``highest_of``: if this plan wrote
        one of them, and the ledger does not have it, the state is an old copy.
        """
        return iter(())

    def adopt(self, context: DestinationContext, known: int, unknown: Callable[[], Collection[str]]) -> None:
        """Accept an old copy of a state: what was sent with sequences from ``known`` on may come again, with the same
        hashes and higher sequences, and must not take effect twice.

        Called by ``ferryman adopt``. Only a destination needs it that tells repeated deliveries by their sequences.

        Args:
            unknown: reads the inventory, and returns the hashes of what is there and what this state does not have as
                delivered.
        """

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield what the destination holds, in any order, with the store's strongest consistency.

        A destination that is keyed by id yields each document that is there, whoever wrote it; any other one every
        delivery, deletes too. Nothing is changed, and a target that does not exist holds nothing. Called by ``ferryman
        verify``, also while workers write; neither ``check`` nor ``open`` is called before.

        Args:
            ids: only the documents with these ids, 10 000 at most; None: all.

        Raises:
            NotImplementedError: what was written cannot be read back, as in this base class.
        """
        raise NotImplementedError

    def lookup(self, id: str) -> Hit | None:
        """Return the document of this id as it is stored, with its fields and text; None: it is not there.

        Called by anybody who has the plan, for ``ferryman mcp``, also while workers write; neither ``check`` nor
        ``open`` is called before.

        Raises:
            NotImplementedError: what was written cannot be read back, as in this base class.
        """
        raise NotImplementedError

    def maintain(self) -> list[str]:
        """Do what is better done once than with each chunk: build an index, compact files. Return a line about each
        thing that was done.

        Called in the driver, after a run or a round of an endless run has delivered what it could, also if that was
        nothing: the last process may have been killed before it was called. Workers do not write meanwhile, unless
        those of a killed driver go on. It may take long; if it raises, the run goes on and says so.
        """
        return []

    def forgets(self, context: DestinationContext) -> bool:
        """Return whether it may have removed what it received, as a queue does that is trimmed. Then nobody can tell
        whether a delivery that ``inventory`` lacks was lost."""
        return False

    def retained(self, context: DestinationContext) -> list[str]:
        """Return what it keeps in other systems for this state beside what was delivered, such as a topic of its own:
        names and places, without secrets; for ``plan remove``."""
        return []

    def after_loss(self, context: DestinationContext) -> str:
        """Return what an operator can do if what ``retained`` has named is gone, and rows may have been sent."""
        return ""

    def remove_retained(self, context: DestinationContext) -> None:
        """Have other systems keep nothing for this state beside what was delivered; there may be nothing. It will not
        be delivered to from this state again. Called while no worker is at work; it may be repeated."""

    def begin_pass(self, context: DestinationContext) -> None:
        """Make sure that no call of ``write`` in an earlier pass takes effect from now on, and prepare what the lanes
        of this pass share. Raises what ``check`` raises.

        Called in the driver after ``check``, before any ``open`` of the pass. Every earlier pass is closed, but a
        worker of it may have been stopped within a call, and wake up later. Needed only by a destination that finds out
        by reading what it has already received.
        """

    def open(self, context: DestinationContext) -> None:
        """Prepare for writing. Called once per task, in the worker."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Write a chunk; return one outcome per delivery, in the same order. A missing outcome counts as unknown, never
        as ok."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what ``open`` has opened. Called once per task, after the last ``write``."""


# Deliveries as JSON, for files of lines and for webhooks.

_encode = msgspec.json.Encoder().encode


def encode_payload(delivery: Delivery) -> bytes:
    """Encode a delivery as an object with ``hash``, ``sequence``, ``operation``, ``id``, ``parent_id``, ``origin_id``,
    ``source``, ``version``, ``route``, ``fields`` and ``text``; raw bytes that are not UTF-8 as ``raw_base64``. The
    result is equal on every attempt.

    Raises:
        BadDocument, ValueError, TypeError: it holds what JSON cannot hold.
    """
    content: dict[str, Any] = {
        "hash": delivery.hash,
        "sequence": delivery.sequence,
        "operation": delivery.operation,
        "id": delivery.id,
        "parent_id": delivery.parent_id,
        "origin_id": delivery.origin_id,
        "source": delivery.source,
        "version": delivery.version,
        "route": delivery.route,
        "fields": msgspec.Raw(delivery._fields_json),
        "text": None,
    }
    if delivery.raw is not None:
        try:
            content["text"] = delivery.raw.decode()
        except UnicodeDecodeError:
            content["raw_base64"] = base64.b64encode(delivery.raw).decode("ascii")
    return _encode(content)


def encode_payloads(chunk: list[Delivery], outcomes: list[Outcome | None]) -> list[tuple[int, bytes]]:
    """Return (position, payload) of the deliveries that JSON can hold; set a permanent outcome for the others."""
    encoded = []
    for position, delivery in enumerate(chunk):
        try:
            encoded.append((position, encode_payload(delivery)))
        except (BadDocument, ValueError, TypeError) as e:
            outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")
    return encoded


def printable_id(delivery: Delivery) -> str:
    """Return the id for a message, which must be text that UTF-8 can hold, even if the id is not."""
    return delivery.id.encode(errors="replace").decode()


# Destinations that keep one row per id: which of several deliveries counts.


class LastDelivery(NamedTuple):
    """Last delivery of an id that took effect, as the destination remembers it (also if it was a delete)."""

    sequence: int
    hash: str


def compare(chunk: Sequence[Delivery], known: dict[str, LastDelivery]) -> tuple[list[Outcome], dict[str, Delivery]]:
    """Return outcomes in the chunk's order, and for each id the delivery that must replace the stored one, if any.

    The result is the same as if the deliveries had come one at a time in the order of their sequences: an equal hash is
    a no-op (ok), a lower sequence than the one in force is stale, any other delivery wins. An equal hash with a higher
    sequence was sent again on purpose, because what is stored is not what was written: it replaces the stored one.

    Args:
        known: the last delivery of each id that the destination has stored; it is not changed.
    """
    outcomes = [Outcome.ok()] * len(chunk)
    winners: dict[str, Delivery] = {}
    in_force = dict(known)
    for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
        delivery = chunk[position]
        last = in_force.get(delivery.id)
        if last is not None and last.hash == delivery.hash and last.sequence >= delivery.sequence:
            continue
        if last is not None and last.sequence > delivery.sequence:
            outcomes[position] = Outcome.stale()
            continue
        in_force[delivery.id] = LastDelivery(delivery.sequence, delivery.hash)
        winners[delivery.id] = delivery
    return outcomes, winners


# --- the inventory of a destination, for ``ferryman verify``, and hashes that show whether its content was changed ---


class Stored(NamedTuple):
    """A delivery as a destination holds it.

    Attributes:
        id: the document's id.
        hash: the delivery's hash.
        intact: whether the stored content is what was written; None: unknown.
        source, version, route: as the delivery's; "" and () if they are not stored.
    """

    id: str
    hash: str
    intact: bool | None = None
    source: str = ""
    version: str = ""
    route: tuple[str, ...] = ()


class StoredColumns(NamedTuple):
    """Some records of an inventory: their values, by the fields of ``Stored``."""

    ids: Sequence[str]
    hashes: Sequence[str]
    intact: Sequence[bool | None]
    sources: Sequence[str]
    versions: Sequence[str]
    routes: Sequence[tuple[str, ...]]


class StoredPages(Iterator[Stored]):
    """Inventory of a destination that reads many records at a time: a caller that wants all of them takes them by
    columns, without an object for each.

    Args:
        pages: the records, in columns.
    """

    def __init__(self, pages: Iterator[StoredColumns]) -> None:
        self.pages = pages
        self._records = itertools.chain.from_iterable(map(Stored, *page) for page in pages)

    def __next__(self) -> Stored:
        return next(self._records)


def content_hash(*values: str | bytes | int | None) -> str:
    """Return a hash over these values, 32 hex digits of BLAKE2b-128.

    Raises:
        UnicodeEncodeError: a text has a lone surrogate.
    """
    [found] = content_hashes([values])
    return found


def content_hashes(rows: Iterable[tuple[str | bytes | int | None, ...]]) -> list[str]:
    """Return ``content_hash`` of each row's values."""
    return [blake2b(_pack(values), digest_size=16).hexdigest() for values in rows]


def canonical_json(text: bytes) -> bytes:
    """Return JSON in a form that is the same after a store has parsed and printed it: keys sorted, numbers of equal
    value written alike (1.0 and 1e0 as 1), U+FFFD for NUL."""
    value = _decode(text)
    return _encode_sorted(without_nul(value) if _NUL in text else value)


def canonical_fields(fields: bytes) -> bytes:
    """Return ``canonical_json`` of fields as ``encode_fields`` writes them: with sorted keys already."""
    return canonical_json(fields) if _FLOAT.search(fields) or _NUL in fields else fields


def without_nul(value: Any) -> Any:
    """Return a JSON value with U+FFFD for each NUL in its texts, for stores that have no NUL."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list():
            return [without_nul(each) for each in value]
        case dict():
            return {without_nul(name): without_nul(each) for name, each in value.items()}
        case _:
            return value


def slices(values: Iterable[str], size: int) -> Iterator[list[str]]:
    """Split values into lists of at most this size."""
    remaining = iter(values)
    while some := list(islice(remaining, size)):
        yield some


def split_by_size(rows: Iterable[_T], size_of: Callable[[_T], int], limit: int) -> Iterator[list[_T]]:
    """Split rows into lists whose sizes add up to at most this limit; a row that is larger is alone."""
    some: list[_T] = []
    total = 0
    for row in rows:
        size = size_of(row)
        if some and total + size > limit:
            yield some
            some, total = [], 0
        some.append(row)
        total += size
    if some:
        yield some


def is_same_value(stored: Any, written: Any, is_text: bool) -> bool:
    """Return whether a column has this value, however its type has changed the form of it: ``1`` for true, ``2.50`` for
    2.5, ``2024-01-01 00:00:00`` for ``2024-01-01T00:00Z``.

    Args:
        is_text: whether the column keeps text as it was written. Of any other one, a value whose form says nothing is
            believed to be the same.
    """
    if stored is None or written is None:
        return stored is None and written is None
    text = str(stored)
    if isinstance(written, bool):
        return text.lower() in (("1", "1.0", "t", "true") if written else ("0", "0.0", "f", "false"))
    if isinstance(written, list | dict):
        return canonical_json(text.encode()) == canonical_json(_encode_sorted(written))
    if isinstance(written, int | float):
        return _is_same_number(text, written)
    if text == written or text == written.replace("\0", "\ufffd"):
        return True
    return not is_text and _may_be_same(text, written)


def _is_same_number(text: str, written: float) -> bool:
    """Return whether a number is printed by this text, perhaps with the precision of a column: that of a 64-bit or a
    32-bit float, or 15 digits, as SQLite makes floats text."""
    try:
        number, exact = Decimal(text), Decimal(repr(written))
        if number == exact or not number.is_finite():
            return number == exact
        if isinstance(written, int) and text.lstrip("+-").isdecimal():
            return False
        digits = len(number.as_tuple().digits)
        return (
            float(number) == float(written)
            or number == Decimal(f"{written:.15g}")
            or (digits <= _SINGLE_DIGITS and _single(float(number)) == _single(float(written)))
        )
    except (InvalidOperation, OverflowError):
        return False


_SINGLE_DIGITS: Final = 9
"""Digits that a 32-bit float is printed with, at most."""


def _single(number: float) -> float:
    """Return a number with the precision of a 32-bit float.

    Raises:
        OverflowError: it is too large for one.
    """
    single: float = struct.unpack("f", struct.pack("f", number))[0]
    return single


def _may_be_same(text: str, written: str) -> bool:
    """Return whether two texts may be forms of one value."""
    if text.rstrip() == written.rstrip():  # char(n)
        return True
    for parse in (Decimal, _instant):
        with suppress(ValueError, InvalidOperation):
            expected = parse(written)
            with suppress(ValueError, InvalidOperation):
                found = parse(text)
                return bool(found == expected) or (parse is Decimal and float(text) == float(written))
            return False
    return True


def _instant(text: str) -> dt.datetime:
    """Parse a date or a time; one without a zone is in UTC.

    Raises:
        ValueError: it is none.
    """
    instant = dt.datetime.fromisoformat(text.strip())
    return instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


_FLOAT: Final = re.compile(rb"[:,\[]-?[0-9]+[.eE]")
"""Matches where JSON may have a number that is not an integer; also inside of texts."""

_NUL: Final = rb"\u0000"


def _canonical_number(literal: str) -> int | float:
    number = float(literal)
    return int(Decimal(repr(number))) if number.is_integer() else number


_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.json.Decoder(float_hook=_canonical_number).decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


# --- queries that a user types, and what they find: the same for every destination that can be searched ---

SNIPPET_WORDS: Final = 16
"""Words of a snippet: about a line."""

SNIPPET_CHARACTERS: Final = 100
"""Characters of a snippet, where words are not counted."""

_TERM: Final = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')

_LIGATURES: Final = (("ß", "ss"), ("æ", "ae"), ("œ", "oe"))
"""Letters that are also written as two, which no index takes for the same by itself."""

_MOST_PLACES: Final = 4
"""Places of a word at which both spellings are tried: with each the number of spellings doubles."""


class Term(NamedTuple):
    """A word, or several consecutive words.

    Attributes:
        is_prefix: whether the last word is only the beginning of a word.
    """

    phrase: str
    is_prefix: bool

    def spellings(self) -> list[str]:
        """Return the phrase as it was typed, then in other spellings: "strasse" is also "straße"."""
        found = {self.phrase: None}
        for letter, letters in _LIGATURES:
            for phrase in list(found):
                parts = re.split(f"({letter}|{letters})", phrase, flags=re.IGNORECASE)
                places = range(1, min(len(parts), 2 * _MOST_PLACES), 2)
                for chosen in itertools.product((letter, letters), repeat=len(places)):
                    spelled = parts.copy()
                    spelled[1 : 2 * len(places) : 2] = chosen
                    if places:
                        found["".join(spelled)] = None
                if self.is_prefix and phrase.lower().endswith(letters[0]):  # of "stras*" the word may go on in two ways
                    found[phrase[:-1] + letter] = None
        return list(found)


Query = list[list[Term]]
"""Alternatives, of which each needs all its terms."""


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    title: str | None
    """The field ``title``, if there is one."""
    snippet: str
    """Where the words stand."""
    rank: float
    """Rank as the server gives it, signed so that lower is better: BM25, or ``ts_rank`` on PostgreSQL; of a vector its
    distance."""
    score: float | None = None
    """Likeness to a question with a vector, higher is better; see ``ferryman.destinations.vectors``."""
    fields: Mapping[str, Any] | None = None
    """Fields of the document, without vectors; None: they were not read."""
    text: str | None = None
    """Text of the document, where it was read and there is one."""


def parse_query(text: str) -> Query:
    """Parse a user's query: words, ``"in quotes"``, ``begin*``, and ``OR`` in capitals between alternatives. No other
    sign has a meaning, and nothing is an error."""
    alternatives: Query = [[]]
    for phrase, star, word in _TERM.findall(text):
        if word == "OR":
            alternatives.append([])
            continue
        if word:
            phrase, star = word.rstrip("*"), "*" if word.endswith("*") else ""
        if any(character.isalnum() for character in phrase):
            alternatives[-1].append(Term(phrase, bool(star)))
    return [terms for terms in alternatives if terms]
