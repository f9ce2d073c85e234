"""Operator commands: the effects of each verb, and the queue of commands that no driver has applied yet.

A command is a sealed file in the state's folder. The state's driver applies it between two waves.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import getpass
import socket
import uuid
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from ferryman import crash
from ferryman.document import storable_texts
from ferryman.records.rows import Status
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.files import StatePath


class OutboxEffect(enum.Enum):
    """Effect of a command on rows in the outbox."""

    UNTOUCHED = enum.auto()
    DUE = enum.auto()
    """They are due now, with attempts counted from zero."""
    REMOVED = enum.auto()


class DocumentsEffect(enum.Enum):
    """Effect of a command on ``documents`` rows, which makes the next scan read the documents again."""

    UNTOUCHED = enum.auto()
    DUE = enum.auto()
    """Failures at steps are due now, with attempts counted from zero."""
    FORCED = enum.auto()
    """The documents get a new revision, whether or not they have changed."""
    GIVEN_UP = enum.auto()
    """Failures at steps are removed: they are not retried."""
    MISSING = enum.auto()
    """Deliveries that arrived are made again for their destination alone, with the same hashes."""
    UNVERIFIED = enum.auto()
    """Fingerprints are removed, so that the documents are read, and processed if their content has changed."""


class Verb(NamedTuple):
    """Effects of an operator's command."""

    concerns: frozenset[Status]
    """Statuses of the deliveries that the command may apply to."""
    event: Status
    """Status of the event that the ledger records for these deliveries."""
    outbox: OutboxEffect
    documents: DocumentsEffect
    whole_documents: bool = False
    """Whether the command applies to whole documents, at all their destinations."""
    closes_claims: bool = False
    """Whether late results of workers for these deliveries are ignored from then on."""


_STORED: Final = frozenset(Status) - {Status.BATCHED}
"""All statuses but BATCHED, since rows that wait in the outbox are sent anyway."""

_IN_DOUBT: Final = frozenset({Status.INDEXING})

SKIP: Final = "queue skip"
"""Verb that has a plan pass the entry of a log that it stops before: it is tried again, and fails alone."""

REPAIR: Final = "verify --repair"
"""Verb that makes deliveries again which arrived and are not there any more."""

ADOPT: Final = "adopt"
"""Verb that has a state go on that was put back from an older copy: everything that it sends from now on is newer than
what its targets have."""

VERBS: Final = {
    "retry": Verb(
        frozenset({Status.ERROR, Status.DEAD, Status.ERROR_DOC}),
        Status.RESTART,
        OutboxEffect.DUE,
        DocumentsEffect.DUE,
    ),
    "retry --force": Verb(_STORED, Status.FORCE, OutboxEffect.UNTOUCHED, DocumentsEffect.FORCED, whole_documents=True),
    REPAIR: Verb(frozenset({Status.INDEXED}), Status.RESTART, OutboxEffect.UNTOUCHED, DocumentsEffect.MISSING),
    SKIP: Verb(frozenset(), Status.RESTART, OutboxEffect.UNTOUCHED, DocumentsEffect.UNTOUCHED),
    "verify --delete-extra": Verb(frozenset(), Status.RESTART, OutboxEffect.UNTOUCHED, DocumentsEffect.UNTOUCHED),
    ADOPT: Verb(frozenset(), Status.RESTART, OutboxEffect.UNTOUCHED, DocumentsEffect.UNTOUCHED),
    "dirty": Verb(_STORED, Status.DIRTY, OutboxEffect.UNTOUCHED, DocumentsEffect.UNVERIFIED, whole_documents=True),
    "resolve --as delivered": Verb(
        _IN_DOUBT, Status.INDEXED, OutboxEffect.REMOVED, DocumentsEffect.UNTOUCHED, closes_claims=True
    ),
    # The row of a failed delivery stays in the outbox, since a retry may need it.
    "resolve --as failed": Verb(
        _IN_DOUBT, Status.DEAD, OutboxEffect.UNTOUCHED, DocumentsEffect.UNTOUCHED, closes_claims=True
    ),
    "resolve --as pending": Verb(_IN_DOUBT, Status.RESTART, OutboxEffect.DUE, DocumentsEffect.DUE, closes_claims=True),
    "resolve --as dropped": Verb(
        frozenset({Status.DEAD, Status.ERROR_DOC, Status.INDEXING}),
        Status.DROPPED,
        OutboxEffect.REMOVED,
        DocumentsEffect.GIVEN_UP,
        closes_claims=True,
    ),
}
"""Verb of a command -> its effects."""


class ExtraRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record that a destination has and should not have, so that a delete is sent for it.

    Attributes:
        source, version, revision, route: of the delivery that wrote it. If the ledger has a delete of the document at
            this destination, that one is sent again, and these are not needed.
    """

    document: str
    destination: str
    source: str = ""
    version: str = ""
    revision: int = 0
    route: str = ""


class Command(msgspec.Struct, frozen=True):
    """A verb, and the selection of deliveries that it applies to."""

    verb: str
    """One of ``VERBS``."""
    who: str
    why: str
    statuses: frozenset[str] | None = None
    """Statuses of these deliveries; None: any that the verb applies to."""
    document: str | None = None
    destination: str | None = None
    source: str | None = None
    file: str = ""
    documents: frozenset[str] | None = None
    """Ids of the source documents; None: any."""
    deliveries: frozenset[str] | None = None
    """Hashes of the deliveries, of any revision of their documents; None: any of the current revisions."""
    extra: tuple[ExtraRecord, ...] = ()
    """Records to delete."""
    above: int = 0
    """Highest sequence that a destination has: what is sent because of the command gets a higher one."""
    reason: str | None = None
    """Reason of the deliveries, see ``account.relations.FilterOptions``; None: any."""

    @property
    def message(self) -> str:
        return f"{self.verb} by {self.who}" + (f": {self.why}" if self.why else "")

    @property
    def definition(self) -> Verb:
        return VERBS[self.verb]


def queue_command(folder: StatePath, command: Command) -> str:
    """Queue a command durably in a state's folder of commands; return the name of its file."""
    name = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}.json"
    command = msgspec.structs.replace(command, **(storable_texts(msgspec.structs.asdict(command)) or {}))
    files.publish(folder / name, files.seal(command))
    crash.point("command.queued")
    return name


def queue_retry(state: State, source: str, documents: Collection[str], why: str) -> None:
    """Queue a driver's own command to retry what failed of these documents of a source."""
    queue_command(state.commands, Command("retry", current_user(), why, source=source, documents=frozenset(documents)))


def queued_commands(state: State) -> list[Command]:
    """Return the commands that are queued and not applied, oldest first."""
    found = []
    for name in sorted(name for name in files.list_names(state.commands) if name.endswith(".json")):
        command = msgspec.convert(files.unseal(state.commands / name), Command)
        found.append(msgspec.structs.replace(command, file=name))
    return found


def current_user() -> str:
    """Return the user who gives commands in this process: "name@host"."""
    with contextlib.suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"somebody@{socket.gethostname()}"
