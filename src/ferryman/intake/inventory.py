"""What lies in the working space for a job: a file that lists its files.

The list is published whole, after every file in it is durable: where it is, all of them are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from ferryman.document import unfit
from ferryman.errors import plain_text
from ferryman.intake.errors import NodeInvalid
from ferryman.net import split
from ferryman.storage import files

NAME: Final = "inventory.jsonl"
FILES: Final = "files"
"""The folder beside the list that the files are in."""


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that is there."""

    path: str
    """Relative to the folder of files, with ``/`` between names."""
    size: int
    sha256: str
    url: str = ""
    """Where it came from."""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the submitter said of it."""


def write(folder: Path, held: Iterable[StoredFile], *, synced: bool = True) -> Path:
    """Publish the list of a folder's files; another one is replaced. Returns its path.

    ``synced=False``: whole, but durable only when its caller has synced it.
    """
    path = folder / NAME
    data = b"".join(msgspec.json.encode(each) + b"\n" for each in held)
    if synced:
        files.replace(path, data)
        return path
    fresh = path.with_name(f".{NAME}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
    return path


def read(path: Path) -> Iterator[StoredFile]:
    """The files of a list.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is not a list of files.
    """
    with path.open("rb") as lines:
        for line in lines:
            try:
                found = msgspec.json.decode(line, type=StoredFile)
            except (msgspec.MsgspecError, RecursionError) as e:
                raise ValueError(plain_text(e)) from None
            if why := unfit(found.fields):
                raise ValueError(f"what is said of {found.path} {why}")
            yield found


def node(path: Path, held: list[StoredFile]) -> dict[str, Any]:
    """What the job's ``inventory`` node says of it."""
    return {"url": url_of(path), "files": len(held), "bytes": sum(each.size for each in held)}


def place(job_path: str, values: Mapping[str, Any]) -> Path:
    """Where the list is that a job's ``inventory`` node names.

    Raises:
        NodeInvalid: it names none.
    """
    try:
        _, url = split(str(values.get("url") or ""))
    except ValueError as e:
        raise NodeInvalid(f"{job_path}/inventory", f"names a list of files, but {e}") from None
    if url.scheme != "file" or not url.path:
        raise NodeInvalid(f"{job_path}/inventory", "names no list of files (a file:// URL)")
    return Path(unquote(url.path))


def url_of(path: Path) -> str:
    return "file://" + quote(str(path.absolute()))
