"""Payloads of submissions, and the jobs that they are split into, one for each object."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ferryman.destinations import JobIdentifiers
from ferryman.errors import UsageError
from ferryman.intake import Job
from ferryman.intake import job as inventory
from ferryman.intake.nodes import DEFAULT_PRIORITY, node_name
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.fetch import Fetcher
from ferryman.intake.service.manifest import (
    MANIFEST_BYTES,
    ManifestEntry,
    ManifestObject,
    check_digest,
    check_path,
    check_response_url,
    check_url,
    file_name_of,
    group_by_object,
    parse_integer,
    parse_manifest,
)
from ferryman.intake.service.workspace import SUFFIXES, Workspace, read_entries, write_lists
from ferryman.net.urls import split
from ferryman.plan import DestinationNode, Plan
from ferryman.storage import files


class PayloadKind(enum.StrEnum):
    FILE = "file"
    CONTAINER = "container"
    MANIFEST = "manifest"
    """Lines are files; those with the same local id form one object."""
    OBJECT = "object-manifest"
    """Lines are the files of a single object."""
    MANIFESTS = "manifest-of-manifests"
    """Lines are manifests, each of a single object."""
    CONTAINERS = "manifest-of-containers"
    """Lines are containers, each a single object."""


_ALIASES: Final = {
    "manifests": PayloadKind.MANIFESTS,
    "batch-manifest": PayloadKind.MANIFESTS,
    "single-file-batch-manifest": PayloadKind.MANIFEST,
    "container-batch-manifest": PayloadKind.CONTAINERS,
    "zip": PayloadKind.CONTAINER,
    "tar": PayloadKind.CONTAINER,
}
"""Names of kinds in other tools -> kinds."""

ADD: Final = "add"
"""Mode of a submission that names none."""

METADATA_FIELDS: Final = ("erc_who", "erc_what", "erc_when", "erc_where")
INHERITED_FIELDS: Final = (
    *("profile_name", "submitter", "submissionDate", "response_type", "response_url", "submission_mode"),
    *("batch_type", "mode", "delete"),
)
"""Fields of the submission that each of its jobs inherits."""

NAME_CHARS: Final = 1024
"""Maximum characters of an identifier or of a collection's name."""

OBJECT_LIST: Final = "object_list"
"""Key of the URL of a job's list of files, which the batch consumer has checked and stored in the working space."""

EDITION: Final = "edition"
"""Key of the number of edits of a job's configuration. Files of older editions are not used."""


class PlannedJob(NamedTuple):
    """A job that is to be created."""

    configuration: dict[str, Any]
    """Configuration of the job; ``jobID`` is its key within the batch."""
    priority: int
    identifiers: dict[str, Any]
    metadata: dict[str, Any]

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the JSON nodes of the job, by name."""
        return {"configuration": self.configuration, "identifiers": self.identifiers, "metadata": self.metadata}


def has_payload(submission: Mapping[str, Any]) -> bool:
    """Return whether jobs are created from the submission. (If jobs are created through the API, the submission has no
    payload.)"""
    return any(submission.get(name) not in (None, "") for name in ("payload_url", "manifest_url"))


def kind_of(submission: Mapping[str, Any]) -> PayloadKind:
    """Return the kind of payload of a submission or a job, which other tools call its ``type``.

    Raises:
        CorruptSubmission: the kind is unknown.
    """
    named = (
        str(submission.get("payload_type") or submission.get("type") or "")
        .strip()
        .lower()
        .replace("_", "-")
        .replace(" ", "-")
    )
    if not named:
        if submission.get("manifest_url"):
            return PayloadKind.MANIFEST
        url = str(submission.get("payload_url") or "")
        try:
            path = split(url)[1].path.lower()
        except ValueError as e:
            raise CorruptSubmission(f"the payload_url {e}. Correct it.") from None
        return PayloadKind.CONTAINER if path.endswith(SUFFIXES) else PayloadKind.FILE
    if named in _ALIASES:
        return _ALIASES[named]
    try:
        return PayloadKind(named)
    except ValueError:
        raise CorruptSubmission(
            f"payload_type {named!r} is not known. Choose one of {', '.join(PayloadKind)}."
        ) from None


def plan_jobs(submission: Mapping[str, Any], batch_id: str, work: Workspace, fetcher: Fetcher) -> Iterator[PlannedJob]:
    """Yield the jobs of a batch, the same ones each time. Their lists of files are stored in the working space.

    Raises:
        CorruptSubmission: the payload is not of its declared kind, or is invalid.
        PermanentError, TransientError: it cannot be fetched.
        StopRequested.
    """
    kind = kind_of(submission)
    if kind not in (PayloadKind.MANIFEST, PayloadKind.MANIFESTS, PayloadKind.CONTAINERS):
        yield _plan_single(submission, kind)
        return
    manifest = _fetch_manifest(submission, work.batch(batch_id) / "manifest", fetcher)
    with work.manifest_lock:
        yield from _plan_manifest(submission, kind, manifest, work.batch(batch_id) / "objects")


def _plan_manifest(
    submission: Mapping[str, Any], kind: PayloadKind, manifest: Path, folder: Path
) -> Iterator[PlannedJob]:
    objects = group_by_object(parse_manifest(manifest.read_bytes(), _payload_url(submission)))
    if kind is not PayloadKind.MANIFEST:
        for row in (row for one in objects for row in one.rows):
            yield _plan_row(submission, kind, ManifestObject(f"line {row.line}", [row]))
        return
    lists = [(one, folder / f"{number:07d}.jsonl") for number, one in enumerate(objects)]
    write_lists({path: [row.entry for row in one.rows] for one, path in lists})
    for each, path in lists:
        yield _plan_object(submission, each, path)


def _fetch_manifest(submission: Mapping[str, Any], path: Path, fetcher: Fetcher) -> Path:
    """Return the path of a batch's manifest. It is fetched only once, so that later changes at its URL do not lead to
    other jobs."""
    url = _payload_url(submission)
    if not path.exists():
        text = fetcher.fetch_content(url, MANIFEST_BYTES, check_digest(str(submission.get("digest") or "")))
        files.make_folder(path.parent)
        files.replace(path, text)
    return path


def _payload_url(values: Mapping[str, Any]) -> str:
    return check_url(str(values.get("manifest_url") or values.get("payload_url") or ""))


def _plan_single(submission: Mapping[str, Any], kind: PayloadKind) -> PlannedJob:
    """Plan the only job of a batch: a single file, a container, or the manifest of one object."""
    configuration = {**_inherited_fields(submission), "jobID": "1", "payload_type": kind.value}
    configuration["payload_url"] = submission.get("payload_url") or submission.get("manifest_url")
    for name in ("manifest_url", "payload_file_name", "digest", "size"):
        if submission.get(name) not in (None, ""):
            configuration[name] = submission[name]
    identifiers = _identifiers(submission)
    if identifiers.get("local_id"):
        configuration["local_id"] = identifiers["local_id"][0]
    return PlannedJob(configuration, _priority(submission), identifiers, _metadata(submission))


def _plan_row(submission: Mapping[str, Any], kind: PayloadKind, one: ManifestObject) -> PlannedJob:
    """Plan the job of a line that refers to a manifest or a container."""
    (row,) = one.rows
    inner = PayloadKind.OBJECT if kind is PayloadKind.MANIFESTS else PayloadKind.CONTAINER
    configuration = {
        **_inherited_fields(submission),
        "jobID": one.key,
        "payload_type": inner.value,
        "payload_url": row.entry.url,
        "manifest_url": row.entry.url if inner is PayloadKind.OBJECT else "",
        "digest": row.entry.digest,
        "size": row.entry.size,
    }
    return _planned_job(submission, one, configuration)


def _plan_object(submission: Mapping[str, Any], one: ManifestObject, path: Path) -> PlannedJob:
    """Plan the job of an object from its lines in the manifest."""
    configuration = {
        **_inherited_fields(submission),
        "jobID": one.key,
        "payload_type": PayloadKind.OBJECT.value,
        "payload_url": _payload_url(submission),
        OBJECT_LIST: inventory.file_url(path),
    }
    return _planned_job(submission, one, configuration)


def _planned_job(submission: Mapping[str, Any], one: ManifestObject, configuration: dict[str, Any]) -> PlannedJob:
    first = one.rows[0]
    priorities = [row.priority for row in one.rows if row.priority is not None]
    identifiers = {"local_id": [first.local_id] if first.local_id else [], "primary_id": first.primary_id}
    if first.collection:
        configuration["profile_name"] = first.collection
    configuration["local_id"] = first.local_id
    return PlannedJob(
        {name: value for name, value in configuration.items() if value not in (None, "")},
        min(priorities) if priorities else _priority(submission),
        {name: value for name, value in identifiers.items() if value},
        {**_metadata(submission), **_metadata(first.entry.fields)},
    )


def _inherited_fields(submission: Mapping[str, Any]) -> dict[str, Any]:
    return {name: submission[name] for name in INHERITED_FIELDS if submission.get(name) not in (None, "")}


def _identifiers(submission: Mapping[str, Any]) -> dict[str, Any]:
    local_id = submission.get("local_id")
    identifiers: dict[str, Any] = {
        "local_id": local_id if isinstance(local_id, list) else [local_id] if local_id else []
    }
    identifiers["primary_id"] = submission.get("primary_id")
    return {name: value for name, value in identifiers.items() if value}


def _metadata(submission: Mapping[str, Any]) -> dict[str, Any]:
    return {name: submission[name] for name in METADATA_FIELDS if submission.get(name)}


def _priority(submission: Mapping[str, Any]) -> int:
    priority = parse_integer("priority", str(submission.get("priority", DEFAULT_PRIORITY)))
    return DEFAULT_PRIORITY if priority is None else priority


def refuse_bad_names(job: Job) -> None:
    """Check the job's names, which become names of locks: each must be one line of text.

    Raises:
        CorruptSubmission: a name is invalid; says which.
    """
    identifiers, configuration = job.identifiers, job.configuration
    local = identifiers.get("local_id")
    names = [("local_id", name) for name in (local if isinstance(local, list) else [local])]
    names += [("primary_id", identifiers.get("primary_id")), ("profile_name", configuration.get("profile_name"))]
    for kind, name in names:
        if name not in (None, ""):
            check_name(kind, name)


def check_name(kind: str, name: object) -> str:
    """Return a name if a lock can have it.

    Raises:
        CorruptSubmission: it is not one line of text, or is too long.
    """
    if not isinstance(name, str | int):
        raise CorruptSubmission(f"its {kind} is not text but {str(name)[:80]!r}. Correct it.")
    if len(str(name)) > NAME_CHARS:
        raise CorruptSubmission(f"its {kind} has {len(str(name))} characters, more than {NAME_CHARS}. Shorten it.")
    try:
        node_name(str(name))
    except UsageError as e:
        raise CorruptSubmission(f"its {kind} {e}. Correct it.") from None
    return str(name)


def inventory_fields(job: Job, url: str) -> dict[str, Any]:
    """Return the values that other tools expect in a job's ``inventory`` and ``store``.

    Args:
        url: URL of the list of its files.
    """
    configuration = job.configuration
    fields = {"manifest_url": url, "mode": configuration.get("mode") or ADD}
    return {**fields, **({"delete": configuration["delete"]} if configuration.get("delete") else {})}


# --- a job's files ----------------------------------------------------------------------------------------------------


def entries_of(job: Job, work: Workspace, fetcher: Fetcher) -> list[ManifestEntry]:
    """Return the files that a job's submitter named; they are read once, then kept in the working space.

    Raises:
        CorruptSubmission: its manifest is invalid.
        PermanentError, TransientError: it cannot be fetched.
        StopRequested.
    """
    configuration = job.configuration
    edition = edition_of(configuration)
    entries = work.entries(job.id, edition)
    if entries is not None:
        return entries
    batch_list = _list_from_batch(configuration, work)
    if batch_list is not None and (entries := read_entries(batch_list.read_bytes())):
        return work.link_entries(job.id, batch_list, entries, edition)
    entries = _fetch_entries(configuration, fetcher)
    work.set_entries(job.id, entries, edition)
    return entries


def edition_of(configuration: Mapping[str, Any]) -> int:
    """Return how many times a configuration was edited."""
    edition = configuration.get(EDITION) or 0
    return edition if isinstance(edition, int) and edition > 0 else 0


def is_container(job: Job) -> bool:
    """Return whether the job's fetched file is a container, whose files become the documents."""
    return kind_of(job.configuration) is PayloadKind.CONTAINER


def _list_from_batch(configuration: Mapping[str, Any], work: Workspace) -> Path | None:
    """Return the list of files that the batch consumer wrote for this job; None if the job has none."""
    if OBJECT_LIST not in configuration:
        return None
    path = unquote(split(check_url(str(configuration[OBJECT_LIST])))[1].path)
    is_below = path.startswith(f"{work.batches}/") and ".." not in path  # nobody else can put links there
    if not is_below and not Path(path).resolve().is_relative_to(work.real_batches):
        raise CorruptSubmission(f"{path}: is not a list of files that was made here.")
    return Path(path)


def _fetch_entries(configuration: Mapping[str, Any], fetcher: Fetcher) -> list[ManifestEntry]:
    url = _payload_url(configuration)
    digest = check_digest(str(configuration.get("digest") or ""))
    match kind_of(configuration):
        case PayloadKind.FILE | PayloadKind.CONTAINER:
            size = configuration.get("size")
            name = str(configuration.get("payload_file_name") or "") or file_name_of(url)
            return [
                ManifestEntry(url, check_path(name), digest, None if size is None else parse_integer("size", str(size)))
            ]
        case PayloadKind.OBJECT:
            rows = parse_manifest(fetcher.fetch_content(url, MANIFEST_BYTES, digest), url)
            as_one_object = [row._replace(local_id="1", collection="") for row in rows]
            return [row.entry for row in group_by_object(as_one_object)[0].rows]
        case kind:
            raise CorruptSubmission(f"payload_type {kind.value!r} is a batch's, not a job's.")


# Corrections of a failed job's configuration by an operator: another manifest, another URL, the right digest.

EDITABLE: Final = (
    *("payload_url", "payload_type", "payload_file_name", "digest", "size", "profile_name", "response_url"),
    *("submitter", "mode", "delete"),
)
"""Keys that can be set; the other keys identify the job."""

_FILE_KEYS: Final = ("payload_url", "payload_type", "payload_file_name", "digest", "size")
"""Keys that determine which files a job has."""

_JOB_KINDS: Final = (PayloadKind.FILE, PayloadKind.CONTAINER, PayloadKind.OBJECT)


def edit_configuration(job: Job, changes: Mapping[str, str]) -> dict[str, Any]:
    """Return a job's configuration with these changes; an empty text removes a key.

    Raises:
        UsageError: a key cannot be set, or a value is not possible; nothing was changed.
    """
    before = job.configuration
    if unknown := sorted(changes.keys() - set(EDITABLE)):
        raise UsageError(f"{', '.join(unknown)}: cannot be set. Set one of {', '.join(EDITABLE)}.")
    after = {**before, **changes}
    if OBJECT_LIST in before and changes.keys() & set(_FILE_KEYS) and "payload_url" not in changes:
        raise UsageError(f"{job.id}: its files are lines of its batch's manifest. Give it a manifest of its own.")
    if "payload_url" in changes:  # other facts about the old file do not apply to the new one
        for name in ("manifest_url", "digest", "size", OBJECT_LIST):
            if name not in changes:
                after.pop(name, None)
    after = {name: value for name, value in after.items() if value != ""}
    try:
        check_configuration(after)
    except CorruptSubmission as e:
        raise UsageError(f"{job.id}: {e} Nothing was changed.") from None
    return {**after, EDITION: edition_of(before) + 1}


def check_configuration(configuration: Mapping[str, Any]) -> None:
    """Check a configuration as ``serve`` will do.

    Raises:
        CorruptSubmission: ``serve`` would refuse it.
    """
    check_url(str(configuration.get("payload_url") or configuration.get("manifest_url") or ""))
    check_digest(str(configuration.get("digest") or ""))
    if "size" in configuration:
        parse_integer("size", str(configuration["size"]))
    if configuration.get("profile_name"):
        check_name("profile_name", configuration["profile_name"])
    if configuration.get("response_url"):
        check_response_url(str(configuration["response_url"]))
    if kind_of(configuration) not in _JOB_KINDS:
        raise CorruptSubmission(f"payload_type: of a job it is one of {', '.join(_JOB_KINDS)}.")


# Identifiers that the plan has minted for a job's documents, in addition to the submitter's.

IDS_SHOWN: Final = 5
"""Number of primary ids that a message names if the documents of a job disagree."""


class MintedIdentifiers:
    """Reads the identifiers that a plan's ``JobIdentifiers`` have stored; costs nothing if the plan has no such
    destination.

    Args:
        work: the working space, for a plan that is about to run.
    """

    def __init__(self, plan: Plan, work: Path | None = None) -> None:
        self._destinations = {
            id(n.destination): n.destination
            for n in plan.nodes
            if isinstance(n, DestinationNode) and isinstance(n.destination, JobIdentifiers)
        }
        if work is not None:
            for each in self._destinations.values():
                each.serve(work)

    def merge_identifiers(self, job: Job, documents: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
        """Return a job's identifiers, merged with those minted for its documents (source, id); None if nothing is new.

        Raises:
            ValueError: the documents disagree about the primary id.
        """
        if not self._destinations:
            return None
        before = job.identifiers
        notes = [note for each in self._destinations.values() for place in documents for note in each.notes_of(*place)]
        given_id = str(before.get("primary_id") or "")
        primary_ids = list(dict.fromkeys(one for one in (given_id, *(note.primary_id for note in notes)) if one))
        if len(primary_ids) > 1:
            raise ValueError(
                f"its documents name several primary ids ({', '.join(primary_ids[:IDS_SHOWN])}): a job has one. Mint "
                "it from what they share, and leave alone what the submitter gave."
            )
        local_ids = list(dict.fromkeys([*_local_ids(before), *(one for note in notes for one in note.local_id)]))
        after = {
            **before,
            **({"primary_id": primary_ids[0]} if primary_ids else {}),
            **({"local_id": local_ids} if local_ids else {}),
        }
        return None if after == before else after


def _local_ids(identifiers: Mapping[str, Any]) -> list[str]:
    local = identifiers.get("local_id") or []
    return [str(one) for one in (local if isinstance(local, list) else [local])]
