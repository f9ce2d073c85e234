"""What ``Files`` says of a file beside its bytes: the fields of its document."""

from __future__ import annotations

import datetime as dt
import mimetypes
import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from ferryman.errors import UsageError

FIELDS: Final = ("uri", "name", "size", "modified", "mime")

_UNKNOWN: Final = "application/octet-stream"
_WEB: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^?#]+")
_PACKED: Final = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT: Final = "application/vnd.oasis.opendocument"
_TYPES: Final = {
    "7z": "application/x-7z-compressed",
    "doc": "application/msword",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "epub": "application/epub+zip",
    "jsonl": "application/jsonl",
    "md": "text/markdown",
    "msg": "application/vnd.ms-outlook",
    "ndjson": "application/x-ndjson",
    "odp": f"{_OPEN_DOCUMENT}.presentation",
    "ods": f"{_OPEN_DOCUMENT}.spreadsheet",
    "odt": f"{_OPEN_DOCUMENT}.text",
    "parquet": "application/vnd.apache.parquet",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "rst": "text/x-rst",
    "rtf": "application/rtf",
    "toml": "application/toml",
    "webp": "image/webp",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zst": "application/zstd",
}
"""Types that Python's own table does not have. The system's table is not asked: machines differ in it."""

_python = mimetypes.MimeTypes()
_python.types_map = ({}, {})
for _each in (mimetypes._types_map_default, {f".{end}": kind for end, kind in _TYPES.items()}):  # type: ignore[attr-defined]
    for _end, _kind in _each.items():
        _python.add_type(_kind, _end)


def name_of_file(id: str) -> str:
    """Its name without folders; what no text can hold of it stays encoded, as in the id."""
    last = id.rpartition("/")[2]
    try:
        return unquote_to_bytes(last).decode()
    except UnicodeDecodeError:
        return last


def mime_of(name: str) -> str:
    """The media type by the end of a file's name."""
    stem, dot, ends = name.partition(".")
    return _mime_of_ends(ends) if stem and dot else _mime_of(name)


@lru_cache(maxsize=1024)
def _mime_of_ends(ends: str) -> str:
    return _mime_of(f"x.{ends}")


def _mime_of(name: str) -> str:
    kind, packed = _python.guess_type(f"file:///{quote(name)}", strict=True)
    if packed is not None:
        return _PACKED.get(packed, _UNKNOWN)
    return kind or _UNKNOWN


def moment(seconds: float | None) -> str | None:
    """ISO 8601 in UTC; None where there is no such time."""
    try:
        return None if seconds is None else _second(int(seconds))
    except (OverflowError, OSError, ValueError):
        return None


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def web_address(base_url: str, id: str) -> str:
    """A file's address below the one of the root."""
    return f"{base_url.rstrip('/')}/{quote(unquote_to_bytes(id))}"


def checked_base_url(url: Any) -> str | None:
    """
    Raises:
        UsageError: it is not an absolute URL.
    """
    if url is not None and (not isinstance(url, str) or not _WEB.fullmatch(url)):
        raise UsageError(f"Files(base_url={url!r}): give the root's address, as in 'https://example.org/corpus'.")
    return url


def checked_names(option: str, names: Any) -> tuple[str, ...]:
    """
    Raises:
        UsageError: there is no such field.
    """
    found = FIELDS if names is True else () if names is False else (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in found if name not in FIELDS]
    if unknown:
        raise UsageError(f"Files({option}={names!r}): {unknown[0]!r} is not one of {', '.join(FIELDS)}.")
    return found
