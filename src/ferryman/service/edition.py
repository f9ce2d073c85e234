"""An operator's corrections of a failed job's configuration: another manifest, another URL, a right digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferryman.errors import UsageError
from ferryman.intake import Job
from ferryman.service.errors import Corrupt
from ferryman.service.manifest import checked_digest, checked_url, whole
from ferryman.service.payload import EDITION, OBJECT_LIST, PayloadKind, checked_name, edition_of, kind_of

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
    except Corrupt as e:
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
        raise Corrupt(f"payload_type: of a job it is one of {', '.join(_A_JOBS)}.")
