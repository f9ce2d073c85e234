"""Destination ``JobIdentifiers``: passes identifiers that a plan mints back to the document's job."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from ferryman import crash
from ferryman.destinations.base import Delivery, Destination, Effect, Facts, Outcome
from ferryman.errors import Misconfigured, UsageError
from ferryman.intake.nodes import node_name
from ferryman.storage import files

NAME_CHARS: Final = 1024
"""Maximum number of characters in an identifier."""

LOCAL_IDS_MAX: Final = 100
"""Maximum number of local ids of a document: they are stored in a node of the queue, whose size is limited."""


class IdentifierNote(msgspec.Struct, frozen=True):
    """Identifiers that a document reports for its job; empty if the document was deleted."""

    sequence: int
    primary_id: str = ""
    local_id: tuple[str, ...] = ()


class JobIdentifiers(Destination):
    """Writes identifiers that a step has minted back to the job: `ferryman intake serve PLAN` adds them to the
    job's ``identifiers`` when all of its documents are delivered, and they appear in reports.

    A document's field ``primary_id`` becomes the job's primary id, ``local_id`` (text, or a list) its additional local
    ids. Identifiers from the submitter are in these fields already, so a step only has to mint the missing ones. All
    documents of a job must have the same primary id, and the submitter's if there is one; otherwise the job fails, and
    the message shows the ids.

    If a later job contains the same file, it counts as unchanged and runs through no step; the later job gets the same
    identifiers.

    It works only in a plan that ``ferryman intake serve PLAN`` runs; in any other it is misconfigured. The reported
    identifiers are kept in the working space, below ``identifiers/``, one small file per document.

    Args:
        primary_id, local_id: names of these fields.
    """

    effect = Effect.IDEMPOTENT
    compares_sequences = True
    facts: ClassVar[Facts] = Facts(
        stored="with the job: its primary id, and local ids added; a delete withdraws what was not given to a job yet",
        limits=(f"an identifier has {NAME_CHARS} characters at most, a document {LOCAL_IDS_MAX} local ids",),
        outcomes=(("an identifier that no lock can be named by, or too many", "permanent"),),
    )

    def __init__(self, *, primary_id: str = "primary_id", local_id: str = "local_id") -> None:
        self.primary_id, self.local_id = primary_id, local_id
        self._folder: str | None = None

    def __repr__(self) -> str:
        return "JobIdentifiers()"

    def serve(self, work: Path) -> None:
        """Store identifiers in this working space from now on; ``ferryman intake serve`` calls this before the plan
        runs."""
        self._folder = str(work.absolute() / "identifiers")

    def local_paths(self) -> tuple[str, ...]:
        return () if self._folder is None else (self._folder,)

    def check(self) -> None:
        files.make_folder(self._root, 0o700)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [self._write_note(delivery) for delivery in chunk]

    def notes_of(self, source: str, document: str) -> list[IdentifierNote]:
        """Return the identifiers that a document of this source and its descendants have reported."""
        folder = self._folder_of(source, document)
        if not folder.is_dir():
            return []
        return [note for path in sorted(folder.glob("*.json")) if (note := _read_note(path)) is not None]

    @property
    def _root(self) -> Path:
        if self._folder is None:
            raise Misconfigured(
                "JobIdentifiers: only `ferryman intake serve PLAN` runs documents of jobs. Serve the queue with this "
                "plan."
            )
        return Path(self._folder)

    def _folder_of(self, source: str, document: str) -> Path:
        name = _hash(source, document)
        return self._root / name[:2] / name

    def _write_note(self, delivery: Delivery) -> Outcome:
        path = self._folder_of(delivery.source, delivery.origin_id) / f"{_hash(delivery.id, *delivery.route)}.json"
        earlier = _read_note(path)
        if earlier is not None and earlier.sequence >= delivery.sequence:
            return Outcome.ok() if earlier.sequence == delivery.sequence else Outcome.stale()
        try:
            note = self._note_of(delivery)
        except UsageError as e:
            return Outcome.permanent(f"{delivery.id}: {e}")
        if earlier is None and not (note.primary_id or note.local_id):
            return Outcome.ok()
        files.make_folder(path.parent, 0o700)
        files.replace(path, msgspec.json.encode(note))
        crash.point("minted.noted")
        return Outcome.ok()

    def _note_of(self, delivery: Delivery) -> IdentifierNote:
        if delivery.operation == "delete":
            return IdentifierNote(delivery.sequence)
        local_ids = delivery.fields.get(self.local_id) or []
        local_ids = local_ids if isinstance(local_ids, list) else [local_ids]
        if len(local_ids) > LOCAL_IDS_MAX:
            raise UsageError(f"{self.local_id}: {len(local_ids)} local ids, more than {LOCAL_IDS_MAX}")
        primary_id = delivery.fields.get(self.primary_id)
        return IdentifierNote(
            delivery.sequence,
            "" if primary_id in (None, "") else _check_identifier(self.primary_id, primary_id),
            tuple(_check_identifier(self.local_id, one) for one in local_ids),
        )


def _check_identifier(field: str, value: Any) -> str:
    """Return an identifier if a lock can have it as its name.

    Raises:
        UsageError: it is not a valid identifier.
    """
    if not isinstance(value, str) or not value:
        raise UsageError(f"{field}: an identifier is text, not {value!r:.80}")
    if len(value) > NAME_CHARS:
        raise UsageError(f"{field}: {len(value)} characters, more than {NAME_CHARS}")
    node_name(value)
    return value


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read_note(path: Path) -> IdentifierNote | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=IdentifierNote)
    except (FileNotFoundError, NotADirectoryError):
        return None
