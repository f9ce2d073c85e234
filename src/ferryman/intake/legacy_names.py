"""The names that the older queue's ingest gave to a job's properties, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CONFIGURATION: Final = {
    "profile": "profile_name",
    "type": "payload_type",
    "filename": "payload_file_name",
    "responseForm": "response_type",
}
"""Ingest's name -> the key of a job's configuration."""

IDENTIFIERS: Final = {"objectID": "primary_id", "localID": "local_id"}
"""Ingest's name -> the key of a job's identifiers, which its configuration has too."""

METADATA: Final = {"creator": "erc_who", "title": "erc_what", "date": "erc_when"}
"""Ingest's name -> the key of a job's metadata."""

_ERC: Final = ("erc_who", "erc_what", "erc_when", "erc_where")
_DIGEST: Final = ("digestType", "digestValue")
_NONE: Final = ("(:unas)", "(:unav)", "(:unkn)", "(:none)")
"""What ingest wrote for a value that nobody gave."""


class JobNodes(NamedTuple):
    """What the nodes of a job hold."""

    configuration: dict[str, Any]
    identifiers: dict[str, Any]
    metadata: dict[str, Any]


def renamed(payload: Mapping[str, Any]) -> JobNodes:
    """The nodes of a job from a record's payload: what has a name of ours gets it, all else keeps its own.

    A payload that has both names keeps both, and ours counts.
    """
    found = {_ours(name, payload): value for name, value in payload.items()}
    metadata = {key: found.pop(key) for key in _ERC if key in found}
    digest = _digest(payload)
    if digest and "digest" not in payload:
        found = {name: value for name, value in found.items() if name not in _DIGEST} | {"digest": digest}
    return JobNodes(found, _identifiers(found), {key: value for key, value in metadata.items() if _is_given(value)})


def _ours(name: str, payload: Mapping[str, Any]) -> str:
    ours = (CONFIGURATION | IDENTIFIERS | METADATA).get(name, name)
    return name if ours in payload else ours


def _digest(payload: Mapping[str, Any]) -> str:
    """``md5:HEX`` of a digest's kind and value."""
    kind, value = (str(payload.get(name) or "") for name in _DIGEST)
    return f"{kind.lower().replace('-', '')}:{value.lower()}" if kind and value else ""


def _identifiers(found: Mapping[str, Any]) -> dict[str, Any]:
    identifiers: dict[str, Any] = {}
    if _is_given(found.get("primary_id")):
        identifiers["primary_id"] = found["primary_id"]
    local = found.get("local_id")
    if _is_given(local):
        names = local if isinstance(local, list) else [part.strip() for part in str(local).split(";")]
        identifiers["local_id"] = [name for name in names if name]
    return identifiers


def _is_given(value: object) -> bool:
    return bool(value) and str(value).strip().lower() not in _NONE
