"""Payloads of submissions, and the jobs made of them: one for each object."""

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
from ferryman.intake.nodes import PRIORITY, mapped
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.fetch import Fetcher
from ferryman.intake.service.manifest import (
    MANIFEST_BYTES,
    ManifestEntry,
    Object,
    checked_digest,
    checked_path,
    checked_url,
    name_in,
    objects_of,
    rows_of,
    whole,
)
from ferryman.intake.service.workspace import SUFFIXES, Workspace, read_entries, write_lists
from ferryman.net.urls import split
from ferryman.plan import DestinationNode, Plan
from ferryman.storage import files


class PayloadKind(enum.StrEnum):
    """Kind of a payload."""

    FILE = "file"
    CONTAINER = "container"
    MANIFEST = "manifest"
    """Lines of files; those with one local id are one object."""
    OBJECT = "object-manifest"
    """Lines of files of one object."""
    MANIFESTS = "manifest-of-manifests"
    """Lines of manifests, each of one object."""
    CONTAINERS = "manifest-of-containers"
    """Lines of containers, each one object."""


_OTHER_NAMES: Final = {
    "manifests": PayloadKind.MANIFESTS,
    "batch-manifest": PayloadKind.MANIFESTS,
    "single-file-batch-manifest": PayloadKind.MANIFEST,
    "container-batch-manifest": PayloadKind.CONTAINERS,
    "zip": PayloadKind.CONTAINER,
    "tar": PayloadKind.CONTAINER,
}
"""Names of kinds in other tools."""

ADD: Final = "add"
"""The mode of a submission that names none."""

METADATA: Final = ("erc_who", "erc_what", "erc_when", "erc_where")
INHERITED: Final = (
    *("profile_name", "submitter", "submissionDate", "response_type", "response_url", "submission_mode"),
    *("batch_type", "mode", "delete"),
)
"""Fields of the submission that each of its jobs inherits."""

NAME_CHARS: Final = 1024
"""Most characters of an identifier or a collection's name."""

OBJECT_LIST: Final = "object_list"
"""Names what the batch consumer has laid into the working space for a job: lines of files, already read and checked."""

EDITION: Final = "edition"
"""How often an operator has edited a job's configuration. What was fetched for an older edition is not used."""


class Planned(NamedTuple):
    """A job that is to be made."""

    configuration: dict[str, Any]
    """``jobID`` is its key in the batch."""
    priority: int
    identifiers: dict[str, Any]
    metadata: dict[str, Any]


def has_payload(submission: Mapping[str, Any]) -> bool:
    """Return whether jobs are made of the submission. (Jobs made through the API have a submission without payload.)"""
    return any(submission.get(name) not in (None, "") for name in ("payload_url", "manifest_url"))


def kind_of(submission: Mapping[str, Any]) -> PayloadKind:
    """Return the kind of payload of a submission or a job.

    Raises:
        Corrupt: nobody knows this kind.
    """
    named = str(submission.get("payload_type") or "").strip().lower().replace("_", "-").replace(" ", "-")
    if not named:
        if submission.get("manifest_url"):
            return PayloadKind.MANIFEST
        url = str(submission.get("payload_url") or "")
        try:
            path = split(url)[1].path.lower()
        except ValueError as e:
            raise CorruptSubmission(f"the payload_url {e}. Correct it.") from None
        return PayloadKind.CONTAINER if path.endswith(SUFFIXES) else PayloadKind.FILE
    if named in _OTHER_NAMES:
        return _OTHER_NAMES[named]
    try:
        return PayloadKind(named)
    except ValueError:
        raise CorruptSubmission(
            f"payload_type {named!r} is not known. Choose one of {', '.join(PayloadKind)}."
        ) from None


def planned(submission: Mapping[str, Any], batch_id: str, work: Workspace, fetcher: Fetcher) -> Iterator[Planned]:
    """The jobs of a batch, each time the same ones. What they need is in the working space.

    Raises:
        Corrupt: the payload is not what it says it is.
        PermanentError, TransientError: it cannot be fetched.
        Stopping.
    """
    kind = kind_of(submission)
    if kind not in (PayloadKind.MANIFEST, PayloadKind.MANIFESTS, PayloadKind.CONTAINERS):
        yield _single(submission, kind)
        return
    manifest = _manifest(submission, work.batch(batch_id) / "manifest", fetcher)
    with work.reading:
        yield from _of_manifest(submission, kind, manifest, work.batch(batch_id) / "objects")


def _of_manifest(submission: Mapping[str, Any], kind: PayloadKind, manifest: Path, folder: Path) -> Iterator[Planned]:
    objects = objects_of(rows_of(manifest.read_bytes(), _url(submission)))
    if kind is not PayloadKind.MANIFEST:
        for row in (row for one in objects for row in one.rows):
            yield _of_row(submission, kind, Object(f"line {row.line}", [row]))
        return
    kept = [(one, folder / f"{number:07d}.jsonl") for number, one in enumerate(objects)]
    write_lists({path: [row.entry for row in one.rows] for one, path in kept})
    for one, path in kept:
        yield _of_lines(submission, one, path)


def _manifest(submission: Mapping[str, Any], kept: Path, fetcher: Fetcher) -> Path:
    """A batch's manifest. It is fetched once: what becomes of its URL later makes no other jobs."""
    url = _url(submission)
    if not kept.exists():
        text = fetcher.fetch_content(url, MANIFEST_BYTES, checked_digest(str(submission.get("digest") or "")))
        files.make_folder(kept.parent)
        files.replace(kept, text)
    return kept


def _url(values: Mapping[str, Any]) -> str:
    return checked_url(str(values.get("manifest_url") or values.get("payload_url") or ""))


def _single(submission: Mapping[str, Any], kind: PayloadKind) -> Planned:
    """A file, a container or the manifest of one object: the whole batch is one job."""
    configuration = {**_inherited(submission), "jobID": "1", "payload_type": kind.value}
    configuration["payload_url"] = submission.get("payload_url") or submission.get("manifest_url")
    for name in ("manifest_url", "payload_file_name", "digest", "size"):
        if submission.get(name) not in (None, ""):
            configuration[name] = submission[name]
    identifiers = _identifiers(submission)
    if identifiers.get("local_id"):
        configuration["local_id"] = identifiers["local_id"][0]
    return Planned(configuration, _priority(submission), identifiers, _metadata(submission))


def _of_row(submission: Mapping[str, Any], kind: PayloadKind, one: Object) -> Planned:
    """A line that leads to a manifest or a container."""
    (row,) = one.rows
    inner = PayloadKind.OBJECT if kind is PayloadKind.MANIFESTS else PayloadKind.CONTAINER
    configuration = {
        **_inherited(submission),
        "jobID": one.key,
        "payload_type": inner.value,
        "payload_url": row.entry.url,
        "manifest_url": row.entry.url if inner is PayloadKind.OBJECT else "",
        "digest": row.entry.digest,
        "size": row.entry.size,
    }
    return _planned(submission, one, configuration)


def _of_lines(submission: Mapping[str, Any], one: Object, path: Path) -> Planned:
    """Lines of one object."""
    configuration = {
        **_inherited(submission),
        "jobID": one.key,
        "payload_type": PayloadKind.OBJECT.value,
        "payload_url": _url(submission),
        OBJECT_LIST: inventory.url_of(path),
    }
    return _planned(submission, one, configuration)


def _planned(submission: Mapping[str, Any], one: Object, configuration: dict[str, Any]) -> Planned:
    first = one.rows[0]
    priorities = [row.priority for row in one.rows if row.priority is not None]
    identifiers = {"local_id": [first.local_id] if first.local_id else [], "primary_id": first.primary_id}
    if first.collection:
        configuration["profile_name"] = first.collection
    configuration["local_id"] = first.local_id
    return Planned(
        {name: value for name, value in configuration.items() if value not in (None, "")},
        min(priorities) if priorities else _priority(submission),
        {name: value for name, value in identifiers.items() if value},
        {**_metadata(submission), **_metadata(first.entry.fields)},
    )


def _inherited(submission: Mapping[str, Any]) -> dict[str, Any]:
    return {name: submission[name] for name in INHERITED if submission.get(name) not in (None, "")}


def _identifiers(submission: Mapping[str, Any]) -> dict[str, Any]:
    local = submission.get("local_id")
    found: dict[str, Any] = {"local_id": local if isinstance(local, list) else [local] if local else []}
    found["primary_id"] = submission.get("primary_id")
    return {name: value for name, value in found.items() if value}


def _metadata(submission: Mapping[str, Any]) -> dict[str, Any]:
    return {name: submission[name] for name in METADATA if submission.get(name)}


def _priority(submission: Mapping[str, Any]) -> int:
    given = whole("priority", str(submission.get("priority", PRIORITY)))
    return PRIORITY if given is None else given


def refuse_bad_names(job: Job) -> None:
    """Names of a job become names of locks: each is one line of text.

    Raises:
        Corrupt: one of them is not, and which.
    """
    identifiers, configuration = job.identifiers, job.configuration
    local = identifiers.get("local_id")
    names = [("local_id", name) for name in (local if isinstance(local, list) else [local])]
    names += [("primary_id", identifiers.get("primary_id")), ("profile_name", configuration.get("profile_name"))]
    for kind, name in names:
        if name not in (None, ""):
            checked_name(kind, name)


def checked_name(kind: str, name: object) -> str:
    """A name that locks can have.

    Raises:
        Corrupt: it is not text of one line, or too long.
    """
    if not isinstance(name, str | int):
        raise CorruptSubmission(f"its {kind} is not text but {str(name)[:80]!r}. Correct it.")
    if len(str(name)) > NAME_CHARS:
        raise CorruptSubmission(f"its {kind} has {len(str(name))} characters, more than {NAME_CHARS}. Shorten it.")
    try:
        mapped(str(name))
    except UsageError as e:
        raise CorruptSubmission(f"its {kind} {e}. Correct it.") from None
    return str(name)


def inventory_of(job: Job, url: str) -> dict[str, Any]:
    """Return the values that other tools expect in a job's ``inventory`` and ``store``.

    Args:
        url: of the list of its files.
    """
    configuration = job.configuration
    found = {"manifest_url": url, "mode": configuration.get("mode") or ADD}
    return {**found, **({"delete": configuration["delete"]} if configuration.get("delete") else {})}


# --- a job's files ----------------------------------------------------------------------------------------------------


def listed(job: Job, work: Workspace, fetcher: Fetcher) -> list[ManifestEntry]:
    """The files that a job's submitter names; read once, then known in the working space.

    Raises:
        Corrupt: its manifest is not what it says it is.
        PermanentError, TransientError: it cannot be fetched.
        Stopping.
    """
    configuration = job.configuration
    edition = edition_of(configuration)
    found = work.entries(job.id, edition)
    if found is not None:
        return found
    written = _written(configuration, work)
    if written is not None and (found := read_entries(written.read_bytes())):
        work.link_entries(job.id, written, edition)
        return work.entries(job.id, edition) or found
    found = _entries(configuration, fetcher)
    work.set_entries(job.id, found, edition)
    return found


def edition_of(configuration: Mapping[str, Any]) -> int:
    """0: as it was made."""
    found = configuration.get(EDITION) or 0
    return found if isinstance(found, int) and found > 0 else 0


def is_container(job: Job) -> bool:
    """Return whether the fetched file of a job is a container, whose files are the documents."""
    return kind_of(job.configuration) is PayloadKind.CONTAINER


def _written(configuration: Mapping[str, Any], work: Workspace) -> Path | None:
    """The list that the batch consumer has laid into the working space; None: its files are named elsewhere."""
    if OBJECT_LIST not in configuration:
        return None
    path = Path(unquote(split(checked_url(str(configuration[OBJECT_LIST])))[1].path))
    if not path.resolve().is_relative_to(work.batches.resolve()):
        raise CorruptSubmission(f"{path}: is not a list of files that was made here.")
    return path


def _entries(configuration: Mapping[str, Any], fetcher: Fetcher) -> list[ManifestEntry]:
    url = _url(configuration)
    digest = checked_digest(str(configuration.get("digest") or ""))
    match kind_of(configuration):
        case PayloadKind.FILE | PayloadKind.CONTAINER:
            size = configuration.get("size")
            name = str(configuration.get("payload_file_name") or "") or name_in(url)
            return [ManifestEntry(url, checked_path(name), digest, None if size is None else whole("size", str(size)))]
        case PayloadKind.OBJECT:
            rows = rows_of(fetcher.fetch_content(url, MANIFEST_BYTES, digest), url)
            alone = [row._replace(local_id="1", collection="") for row in rows]
            return [row.entry for row in objects_of(alone)[0].rows]
        case kind:
            raise CorruptSubmission(f"payload_type {kind.value!r} is a batch's, not a job's.")


# An operator's corrections of a failed job's configuration: another manifest, another URL, a right digest.

EDITABLE: Final = (
    *("payload_url", "payload_type", "payload_file_name", "digest", "size", "profile_name", "response_url"),
    *("submitter", "mode", "delete"),
)
"""Keys that can be set. Others tell which job it is."""

_OF_FILES: Final = ("payload_url", "payload_type", "payload_file_name", "digest", "size")
"""These say which files a job has."""

_A_JOBS: Final = (PayloadKind.FILE, PayloadKind.CONTAINER, PayloadKind.OBJECT)


def edited(job: Job, changes: Mapping[str, str]) -> dict[str, Any]:
    """A job's configuration with these changes; an empty text removes a key.

    Raises:
        UsageError: a key cannot be set, or a value is not possible; nothing was changed.
    """
    before = job.configuration
    if unknown := sorted(changes.keys() - set(EDITABLE)):
        raise UsageError(f"{', '.join(unknown)}: cannot be set. Set one of {', '.join(EDITABLE)}.")
    after = {**before, **changes}
    if OBJECT_LIST in before and changes.keys() & set(_OF_FILES) and "payload_url" not in changes:
        raise UsageError(f"{job.id}: its files are lines of its batch's manifest. Give it a manifest of its own.")
    if "payload_url" in changes:  # what was said of the old one is not true of the new one
        for name in ("manifest_url", "digest", "size", OBJECT_LIST):
            if name not in changes:
                after.pop(name, None)
    after = {name: value for name, value in after.items() if value != ""}
    try:
        _refuse_impossible(after)
    except CorruptSubmission as e:
        raise UsageError(f"{job.id}: {e} Nothing was changed.") from None
    return {**after, EDITION: edition_of(before) + 1}


def _refuse_impossible(configuration: Mapping[str, Any]) -> None:
    """
    Raises:
        Corrupt: ``serve`` would refuse it.
    """
    checked_url(str(configuration.get("payload_url") or configuration.get("manifest_url") or ""))
    checked_digest(str(configuration.get("digest") or ""))
    if "size" in configuration:
        whole("size", str(configuration["size"]))
    if configuration.get("profile_name"):
        checked_name("profile_name", configuration["profile_name"])
    if kind_of(configuration) not in _A_JOBS:
        raise CorruptSubmission(f"payload_type: of a job it is one of {', '.join(_A_JOBS)}.")


# Identifiers that the plan has minted for a job's documents, beside those that the submitter gave.

TOLD: Final = 5
"""Primary ids that are named when documents of one job disagree."""


class Minted:
    """Reads what ``JobIdentifiers`` of a plan has noted; a plan without one costs nothing.

    Args:
        work: the working space, for a plan that is about to run.
    """

    def __init__(self, plan: Plan, work: Path | None = None) -> None:
        self._noting = {
            id(n.destination): n.destination
            for n in plan.nodes
            if isinstance(n, DestinationNode) and isinstance(n.destination, JobIdentifiers)
        }
        if work is not None:
            for each in self._noting.values():
                each.serve(work)

    def identifiers(self, job: Job, documents: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
        """A job's identifiers with those that were minted for its documents (source, id); None: nothing is new.

        Raises:
            ValueError: its documents do not agree about its primary id.
        """
        if not self._noting:
            return None
        before = job.identifiers
        notes = [note for each in self._noting.values() for place in documents for note in each.noted(*place)]
        given = str(before.get("primary_id") or "")
        primary = list(dict.fromkeys(one for one in (given, *(note.primary_id for note in notes)) if one))
        if len(primary) > 1:
            raise ValueError(
                f"its documents name several primary ids ({', '.join(primary[:TOLD])}): a job has one. Mint it from "
                "what they share, and leave alone what the submitter gave."
            )
        local = list(dict.fromkeys([*_listed(before), *(one for note in notes for one in note.local_id)]))
        after = {**before, **({"primary_id": primary[0]} if primary else {}), **({"local_id": local} if local else {})}
        return None if after == before else after


def _listed(identifiers: Mapping[str, Any]) -> list[str]:
    local = identifiers.get("local_id") or []
    return [str(one) for one in (local if isinstance(local, list) else [local])]
